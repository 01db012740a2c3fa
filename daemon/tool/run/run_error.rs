//! Why a command was not run, in the terms of the contract.

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
    tool::{WorkspaceContext, replaced_while_pending},
};

/// How long to wait before asking again when no sandbox was free.
const SANDBOX_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Refuses where commands are not run at all.
pub(super) fn commands_unavailable(workspace_context: &WorkspaceContext) -> Error {
    let isolation = &workspace_context.isolation;
    let Some(failure) = isolation.failure() else {
        let text = format!(
            "commands are not run: the isolation is {}, and the operator asks for {} at least (--minimum-level)",
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
    let (workspace, found) = (&isolation.workspace, &isolation.host_environment);
    let lower = isolation.rejected.iter().skip(1);
    let lower: String = lower
        .map(|refused| format!(" Nor is it {}: {}.", refused.level, refused.failure))
        .collect();
    let text = format!(
        "commands are not run: this host ({found}) gives isolation {}, and the operator asks for {} at least. Workspace {workspace}: {failure}. To change that: {remedy}.{lower}",
        isolation.level, isolation.minimum
    );
    let refused = Error::new(Reason::SandboxUnavailable, text)
        .with_metadata("stage", failure.stage.name())
        .with_metadata("errno", failure.errno_name())
        .with_metadata("remedy", remedy)
        .with_metadata("workspace", workspace.clone());
    match isolation.suggested_flags() {
        Some(flags) => refused.with_metadata("flags", flags),
        None => refused,
    }
}

/// The keeper of sandboxes has died, which nothing but an operator or a defect can bring about.
pub(super) fn keeper_lost() -> Error {
    let remedy = "restart the daemon";
    let text = format!("commands are not run: the process that makes sandboxes has died: {remedy}");
    Error::new(Reason::SandboxUnavailable, text)
        .with_metadata("stage", Stage::Launcher.name())
        .with_metadata("errno", "")
        .with_metadata("remedy", remedy)
}

/// Why a command was not run, in the terms of the contract.
pub(super) fn error_of_run(error: RunError, spec: &CommandSpec) -> Error {
    match error {
        RunError::NotStarted(failure) => error_of_start(failure, spec),
        RunError::SandboxTimeout => Error::new(
            Reason::ResourceExhausted,
            "no sandbox became free within timeout_sec: too many commands run at once; try again later, or allow more at a time (limits.concurrent_runs)",
        )
        .retry_after(SANDBOX_RETRY_DELAY),
        RunError::Abandoned => Error::new(
            Reason::Timeout,
            "nobody waited any more before the command was started; nothing was run",
        ),
        RunError::Draining => Error::new(
            Reason::Draining,
            "the daemon was told to end before the command was started; nothing was run: retry elsewhere or later",
        ),
        RunError::EndedBeforeStart => Error::new(
            Reason::ProcessEnded,
            "a signal ended the command before it was started; nothing was run",
        ),
        RunError::SandboxLost => Error::new(
            Reason::SandboxError,
            "the sandbox was lost while the command ran: what it did until then stands, and its output is in the artifacts as far as it was read",
        ),
    }
}

fn error_of_start(failure: StageFailure, spec: &CommandSpec) -> Error {
    let cwd = spec.cwd.to_string_lossy().into_owned();
    let program = match &spec.program {
        Program::Shell(_) => "/bin/sh".to_owned(),
        Program::DefaultShell(_) => default_shell().to_string_lossy().into_owned(),
        Program::Argv(argv) => {
            argv.first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default()
        }
    };
    match (failure.stage, failure.errno) {
        (Stage::ChangeDirectory, libc::ENOENT) => {
            Error::new(Reason::DirectoryNotFound, format!("cwd {cwd:?} does not exist")).with_metadata("cwd", cwd)
        }
        (Stage::ChangeDirectory, libc::ESTALE) => replaced_while_pending(&cwd),
        (Stage::ChangeDirectory, libc::ENOTDIR) => Error::new(Reason::NotADirectory, format!("cwd {cwd:?} is not a directory")).with_metadata("cwd", cwd),
        (Stage::ChangeDirectory, libc::EACCES) => {
            Error::new(Reason::PermissionDenied, format!("cwd {cwd:?} cannot be entered by the sandbox's user")).with_metadata("cwd", cwd)
        }
        (Stage::ChangeDirectory, libc::ELOOP) => Error::new(Reason::SymlinkBlocked, format!("cwd {cwd:?} is a loop of links")).with_metadata("cwd", cwd),
        (Stage::ChangeDirectory, libc::ENAMETOOLONG) => Error::invalid_field("cwd", "is longer than the kernel takes"),
        (Stage::Execute, libc::ENOENT | libc::ENOTDIR) => Error::new(
            Reason::CommandNotFound,
            format!("{program:?} was not found in the sandbox; commands see /usr, /opt, the workspace and what the operator binds"),
        )
        .with_metadata("program", program),
        (Stage::Execute, libc::EACCES) => {
            Error::new(Reason::PermissionDenied, format!("{program:?} may not be executed: it has no execute permission, or is a directory"))
                .with_metadata("program", program)
        }
        (Stage::Execute, libc::ENOEXEC) => Error::new(
            Reason::CommandNotExecutable,
            format!("{program:?} is not in an executable format; a script needs a first line that names its interpreter (#!/bin/sh)"),
        )
        .with_metadata("program", program),
        (Stage::Execute, libc::ETXTBSY) => Error::new(
            Reason::CommandNotExecutable,
            format!("{program:?} is open for writing: close it, or wait until what writes it has ended"),
        )
        .with_metadata("program", program),
        (Stage::Execute, libc::EPERM) => Error::new(
            Reason::CommandNotExecutable,
            format!("{program:?} has file capabilities that commands may not have: copy it without them"),
        )
        .with_metadata("program", program),
        (Stage::Execute, libc::E2BIG) => Error::invalid_field("argv", "arguments and environment are larger than the kernel executes"),
        (Stage::Execute, libc::ENAMETOOLONG) => Error::invalid_field("argv[0]", "is longer than the kernel takes"),
        (_, libc::EMFILE | libc::ENFILE) => {
            fd_exhaustion::fd_exhausted_error(failure.to_io_error(), "the command").with_metadata("stage", failure.stage.name()).with_metadata("errno", failure.errno_name())
        }
        (_, libc::ETOOMANYREFS | libc::ENOMEM | libc::ENOSPC | libc::EAGAIN | libc::EUSERS) => {
            let remedy = failure.stage.remedy();
            let text = format!("the host has not enough left to build a sandbox: {failure}. Try again with fewer calls at a time; if it goes on so: {remedy}");
            Error::new(Reason::ResourceExhausted, text)
                .with_metadata("stage", failure.stage.name())
                .with_metadata("errno", failure.errno_name())
                .with_metadata("remedy", remedy)
                .retry_after(SANDBOX_RETRY_DELAY)
        }
        (stage, _) => {
            let text = format!("the command was not run: {failure}. What may help: {}", stage.remedy());
            Error::new(Reason::SandboxError, text).with_metadata("stage", stage.name()).with_metadata("errno", failure.errno_name()).with_cause(failure)
        }
    }
}
