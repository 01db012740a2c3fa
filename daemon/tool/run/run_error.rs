//! Maps the errors of starting a command to the errors of the contract.

use std::time::Duration;

use crate::daemon::{
    error::{Error, Reason},
    fd_exhaustion,
    process::{
        spec::{CommandSpec, Program, default_shell},
        supervisor::RunError,
    },
    sandbox::{
        level::IsolationLevel,
        stage::{Stage, StageFailure},
    },
    telemetry::semconv::process_error,
    tool::{WorkspaceContext, replaced_while_pending_error},
};

/// Delay before a retry when no sandbox was free.
const SANDBOX_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Fails if the daemon cannot run commands at all.
pub(super) fn check_available(workspace_context: &WorkspaceContext) -> Result<(), Error> {
    if !workspace_context.isolation.is_ready() {
        return Err(commands_unavailable_error(workspace_context));
    }
    if workspace_context.sandbox_pool.is_keeper_dead() {
        return Err(keeper_lost_error());
    }
    Ok(())
}

/// The host does not reach the isolation level that the operator requires.
fn commands_unavailable_error(workspace_context: &WorkspaceContext) -> Error {
    let isolation = &workspace_context.isolation;
    let Some(failure) = isolation.failure() else {
        let text = format!(
            "cannot run commands: the isolation is {}, but the operator requires at least {} (--minimum-level)",
            isolation.level, isolation.minimum
        );
        return Error::new(Reason::SandboxUnavailable, text);
    };

    let remedy = isolation.next_step().unwrap_or_default();
    let remedy = match isolation.best_below_minimum {
        Some(possible) => format!(
            "--minimum-level {possible} runs them at {possible}; for {}: {remedy}",
            IsolationLevel::L3
        ),
        None => remedy,
    };
    let lower_levels: String = isolation
        .failed_levels
        .iter()
        .skip(1)
        .map(|failed| format!(" {} is not possible either: {}.", failed.level, failed.failure))
        .collect();
    let (workspace, host) = (&isolation.workspace, &isolation.host_environment);

    let text = format!(
        "cannot run commands: this host ({host}) allows isolation {}, but the operator requires at least {}. Workspace {workspace}: {failure}. To change that: {remedy}.{lower_levels}",
        isolation.level, isolation.minimum
    );
    let error = Error::new(Reason::SandboxUnavailable, text)
        .with_metadata("stage", failure.stage.name())
        .with_metadata("errno", failure.errno_name())
        .with_metadata("remedy", remedy)
        .with_metadata("workspace", workspace.clone());
    match isolation.suggested_flags() {
        Some(flags) => error.with_metadata("flags", flags),
        None => error,
    }
}

/// The sandbox keeper has died. Only the operator or a defect can cause that.
fn keeper_lost_error() -> Error {
    let remedy = "restart the daemon";
    let text = format!("cannot run commands: the sandbox keeper process has died: {remedy}");
    Error::new(Reason::SandboxUnavailable, text)
        .with_metadata("stage", Stage::Launcher.name())
        .with_metadata("errno", "")
        .with_metadata("remedy", remedy)
}

/// Value of the span attribute `error.type` for a command that was not run, or was lost.
pub(super) fn error_type(error: &RunError) -> &'static str {
    match error {
        RunError::SandboxLost => process_error::SANDBOX_LOST,
        RunError::Abandoned | RunError::Draining | RunError::EndedBeforeStart => {
            process_error::CANCELLED
        }
        RunError::NotStarted(_) | RunError::SandboxTimeout => process_error::SPAWN_FAILED,
    }
}

/// The error of the contract for a command that was not run, or was lost.
pub(super) fn command_error(error: RunError, spec: &CommandSpec) -> Error {
    match error {
        RunError::NotStarted(failure) => start_error(failure, spec),
        RunError::SandboxTimeout => sandbox_timeout_error(spec.timeout),
        RunError::Abandoned => Error::new(
            Reason::Timeout,
            "the caller stopped waiting before the command started; nothing was run",
        ),
        RunError::Draining => Error::new(
            Reason::Draining,
            "the daemon began to shut down before the command started; nothing was run: retry on another daemon, or when this one is back",
        ),
        RunError::EndedBeforeStart => Error::new(
            Reason::ProcessEnded,
            "a signal ended the command before it started; nothing was run",
        ),
        RunError::SandboxLost => Error::new(
            Reason::SandboxError,
            "the sandbox was lost while the command ran: its changes until then persist, and the artifacts hold the output that was read",
        ),
    }
}

fn sandbox_timeout_error(timeout: Option<Duration>) -> Error {
    let seconds = timeout.unwrap_or_default().as_secs();
    let text = format!(
        "no sandbox became free within the {seconds} s of the command's timeout: too many commands run at once. Retry later; the operator can raise limits.concurrent_runs"
    );
    Error::new(Reason::ResourceExhausted, text).with_retry_after(SANDBOX_RETRY_DELAY)
}

fn start_error(failure: StageFailure, spec: &CommandSpec) -> Error {
    let specific = if failure.stage == Stage::ChangeDirectory {
        cwd_error(failure.errno, spec)
    } else if failure.stage == Stage::Execute {
        program_error(failure.errno, &spec.program)
    } else {
        None
    };
    specific.unwrap_or_else(|| sandbox_error(failure))
}

/// The command could not enter its working directory, by the errno of `chdir`.
fn cwd_error(errno: i32, spec: &CommandSpec) -> Option<Error> {
    let cwd = spec.cwd.to_string_lossy().into_owned();
    let (reason, problem) = match errno {
        libc::ENOENT => (Reason::DirectoryNotFound, "does not exist"),
        libc::ENOTDIR => (Reason::NotADirectory, "is not a directory"),
        libc::EACCES => (Reason::PermissionDenied, "cannot be entered by the sandbox's user"),
        libc::ELOOP => (Reason::SymlinkBlocked, "is a loop of symbolic links"),
        libc::ESTALE => return Some(replaced_while_pending_error(&cwd)),
        libc::ENAMETOOLONG => {
            return Some(Error::invalid_field("cwd", "is longer than the kernel accepts"));
        }
        _ => return None,
    };

    Some(Error::new(reason, format!("cwd {cwd:?} {problem}")).with_metadata("cwd", cwd))
}

/// The program could not be executed, by the errno of `execve`.
fn program_error(errno: i32, program: &Program) -> Option<Error> {
    let field = match program {
        Program::Shell(_) | Program::DefaultShell(_) | Program::NamedShell(_) => "command",
        Program::Argv(_) => "argv",
    };

    let program = match program {
        Program::Shell(_) => "/bin/sh".to_owned(),
        Program::NamedShell(_) => "/bin/bash".to_owned(),
        Program::DefaultShell(_) => default_shell().to_string_lossy().into_owned(),
        Program::Argv(argv) => {
            argv.first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default()
        }
    };

    let (reason, problem) = match errno {
        libc::ENOENT | libc::ENOTDIR => (
            Reason::CommandNotFound,
            "was not found in the sandbox; commands see /usr, /opt, the workspace and what the operator binds",
        ),
        libc::EACCES => (
            Reason::PermissionDenied,
            "may not be executed: it has no execute permission, or is a directory",
        ),
        libc::ENOEXEC => (
            Reason::CommandNotExecutable,
            "is not in an executable format; a script needs a first line that names its interpreter (#!/bin/sh)",
        ),
        libc::ETXTBSY => (
            Reason::CommandNotExecutable,
            "is open for writing: close it, or wait until its writer has ended",
        ),
        libc::EPERM => (
            Reason::CommandNotExecutable,
            "has file capabilities that commands may not have: copy it without them",
        ),
        libc::E2BIG => {
            return Some(Error::invalid_field(
                field,
                "is larger than the kernel accepts, together with the environment",
            ));
        }
        libc::ENAMETOOLONG => {
            return Some(Error::invalid_field("argv[0]", "is longer than the kernel accepts"));
        }
        _ => return None,
    };

    Some(Error::new(reason, format!("{program:?} {problem}")).with_metadata("program", program))
}

/// The sandbox could not be built: the host lacks a resource, or a step failed.
fn sandbox_error(failure: StageFailure) -> Error {
    let (stage, errno, remedy) =
        (failure.stage.name(), failure.errno_name(), failure.stage.remedy());
    match failure.errno {
        libc::EMFILE | libc::ENFILE => {
            fd_exhaustion::fd_exhausted_error(failure.to_io_error(), "the command")
                .with_metadata("stage", stage)
                .with_metadata("errno", errno)
        }
        libc::ETOOMANYREFS | libc::ENOMEM | libc::ENOSPC | libc::EAGAIN | libc::EUSERS => {
            let text = format!(
                "the host lacks the resources to build a sandbox: {failure}. Retry with fewer calls at a time; if the error persists: {remedy}"
            );
            Error::new(Reason::ResourceExhausted, text)
                .with_metadata("stage", stage)
                .with_metadata("errno", errno)
                .with_metadata("remedy", remedy)
                .with_retry_after(SANDBOX_RETRY_DELAY)
        }
        _ => {
            let text = format!("the command was not run: {failure}. Possible remedy: {remedy}");
            Error::new(Reason::SandboxError, text)
                .with_metadata("stage", stage)
                .with_metadata("errno", errno)
                .with_cause(failure)
        }
    }
}
