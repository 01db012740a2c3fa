//! `run`: one command in a sandbox of its own.

use std::{ffi::CString, time::Duration};

use opentelemetry::{KeyValue, trace::SpanKind};
use serde_json::{Map, Value};

use super::{Done, Scene, Tool, Work};
use crate::{
    api::v1::{self, Outcome as WireOutcome},
    daemon::{
        error::{Error, Reason, Violation},
        process::{
            environment::Environment,
            outcome::{Outcome, signal_name},
            spec::{Program, Spec},
            supervise::{self, Artifacts, Finished, Observer, RunError},
        },
        sandbox::stage::{Failure, Stage},
        store::session::StreamName,
        telemetry::{
            semconv::{self, process_error},
            spans::Span,
        },
        workspace::RelativePath,
    },
};

/// How long to wait before asking again when no sandbox was free.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The tool.
#[derive(Debug)]
pub(crate) struct Run;

/// A request that was checked.
#[derive(Debug)]
pub(crate) struct Params {
    program: Program,
    cwd: RelativePath,
    environment: Environment,
    stdin: bytes::Bytes,
    timeout: Option<Duration>,
    inline_bytes: usize,
}

impl Tool for Run {
    const NAME: &'static str = "run";
    const LIMITS_ITSELF: bool = true;
    type Request = v1::RunRequest;
    type Response = v1::RunResponse;
    type Params = Params;

    fn check(
        request: v1::RunRequest,
        scene: &Scene,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Params>, Error> {
        let v1::RunRequest {
            command,
            argv,
            cwd,
            env,
            stdin,
            timeout_sec,
            max_output_bytes,
        } = request;
        let mut report = |field: String, description: &str| {
            violations.push(Violation {
                field,
                description: description.to_owned(),
            })
        };
        let program = match (command, argv.as_slice()) {
            (Some(_), [_, ..]) => {
                report(
                    "command".to_owned(),
                    "must not be given together with argv: give exactly one of the two",
                );
                report(
                    "argv".to_owned(),
                    "must not be given together with command: give exactly one of the two",
                );
                None
            }
            (None, []) => {
                report("command".to_owned(), "must be given, unless argv is");
                None
            }
            (Some(command), []) if command.trim().is_empty() => {
                report("command".to_owned(), "must not be empty");
                None
            }
            (Some(command), []) => CString::new(command).ok().map(Program::Shell),
            (None, [program, ..]) => {
                if program.is_empty() {
                    report("argv[0]".to_owned(), "must name a program");
                }
                argv.into_iter()
                    .map(CString::new)
                    .collect::<Result<_, _>>()
                    .ok()
                    .map(Program::Argv)
            }
        };
        let mut environment = Environment::base(&scene.settings.path);
        let mut variables: Vec<_> = env.into_iter().collect();
        variables.sort_unstable();
        for (name, value) in variables {
            let field = format!("env[{name:?}]");
            let known = violations.iter().any(|violation| violation.field == field);
            if let Err(description) = environment.set(name, value)
                && !known
            {
                violations.push(Violation {
                    field,
                    description: description.to_owned(),
                });
            }
        }
        if let Some(program) = &program {
            violations.extend(program.violation(&environment));
        }
        if !violations.is_empty() {
            return Ok(None);
        }
        let cwd = RelativePath::parse(cwd.as_deref().unwrap_or("."), scene.workspace.mount_path())?;
        Ok(program.map(|program| Params {
            program,
            cwd,
            environment,
            stdin,
            timeout: timeout_sec.map(|seconds| Duration::from_secs(u64::from(seconds))),
            inline_bytes: max_output_bytes.map_or(0, |bytes| bytes as usize),
        }))
    }

    async fn execute(params: Params, work: Work) -> Result<Done<v1::RunResponse>, Error> {
        let Work {
            scene,
            session,
            step,
            stop,
            default_timeout,
            span,
            telemetry,
            ..
        } = work;
        if !scene.isolation.is_ready() {
            return Err(unavailable(&scene));
        }
        if scene.sandboxes.is_lost() {
            return Err(lost());
        }
        let cwd = params.cwd.absolute(scene.workspace.mount_path());
        let Params {
            program,
            environment,
            stdin,
            timeout,
            inline_bytes,
            ..
        } = params;
        let timeout = timeout.unwrap_or(default_timeout);
        let name = program.name();
        let process = ProcessSpan::start(&telemetry, &span, &name, &cwd, timeout, &scene);
        let mut environment = environment;
        for (name, value) in telemetry.propagators().variables(process.span.context()) {
            environment.provide(&name, value);
        }
        let cwd =
            CString::new(cwd.into_os_string().into_encoded_bytes()).map_err(Error::internal)?;
        let spec = Spec {
            program,
            cwd,
            environment,
            stdin,
            timeout,
            inline_bytes,
        };
        let cap = scene.settings.artifact_bytes;
        let (stdout, stderr) = (
            session.sink(step, StreamName::Stdout, cap),
            session.sink(step, StreamName::Stderr, cap),
        );
        let (stdout_path, stderr_path) = (stdout.1.clone(), stderr.1.clone());
        let mut observer = process;
        let artifacts = Artifacts { stdout, stderr };
        let finished =
            supervise::run(&spec, &scene.sandboxes, artifacts, &stop, &mut observer).await;
        match finished {
            Ok(finished) => {
                observer.finished(&finished);
                let error_type = matches!(finished.ended.outcome, Outcome::TimedOut(_))
                    .then_some(process_error::TIMEOUT);
                let facts = facts(&finished, &stdout_path, &stderr_path);
                let response = response(finished, stdout_path, stderr_path, &scene);
                Ok(Done {
                    facts,
                    error_type,
                    ..Done::plain(response)
                })
            }
            Err(error) => {
                let error_type = match error {
                    RunError::Lost => process_error::SANDBOX_LOST,
                    RunError::Abandoned | RunError::Draining => process_error::CANCELLED,
                    RunError::NotStarted(_) | RunError::NoSandboxInTime => {
                        process_error::SPAWN_FAILED
                    }
                };
                Err(observer.failed(run_error(error, &spec), error_type))
            }
        }
    }
}

/// The span of the command's process.
struct ProcessSpan {
    span: Span,
}

impl ProcessSpan {
    fn start(
        telemetry: &crate::daemon::telemetry::Telemetry,
        tool: &Span,
        name: &str,
        cwd: &std::path::Path,
        timeout: Duration,
        scene: &Scene,
    ) -> Self {
        let attributes = vec![
            KeyValue::new(semconv::PROCESS_EXECUTABLE_NAME, name.to_owned()),
            KeyValue::new(
                semconv::PROCESS_WORKING_DIRECTORY,
                cwd.display().to_string(),
            ),
            KeyValue::new(semconv::SANDBOX_LEVEL, scene.isolation.level.to_string()),
            KeyValue::new(semconv::SANDBOX_NETWORK, "none"),
            KeyValue::new(semconv::LIMIT_WALL, timeout.as_secs_f64()),
            KeyValue::new(semconv::LIMIT_PIDS, i64::from(scene.settings.processes)),
        ];
        Self {
            span: Span::start(
                telemetry.tracer(),
                name.to_owned(),
                SpanKind::Client,
                attributes,
                tool.context(),
            ),
        }
    }

    /// Ends the span of a command that ran. What it exited with is the command's affair and marks
    /// this span only.
    fn finished(self, finished: &Finished) {
        let span = self.span;
        let ended = &finished.ended;
        let error_type = match ended.outcome {
            Outcome::Exited(0) => None,
            Outcome::Exited(_) => Some(process_error::EXIT_NONZERO),
            Outcome::Signaled(_) => Some(process_error::SIGNAL),
            Outcome::TimedOut(_) => Some(process_error::TIMEOUT),
            Outcome::Cancelled(_) => Some(process_error::CANCELLED),
        };
        if let Some(code) = ended.outcome.exit_code() {
            span.set(semconv::PROCESS_EXIT_CODE, i64::from(code));
        }
        if let Some(signal) = ended.outcome.signal() {
            span.set(semconv::PROCESS_SIGNAL, signal_name(signal));
        }
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        span.set(
            semconv::PROCESS_TERMINATION_REASON,
            error_type.unwrap_or("exit_zero"),
        );
        span.set(
            semconv::PROCESS_CPU_USER,
            Duration::from_micros(ended.usage.user_us).as_secs_f64(),
        );
        span.set(
            semconv::PROCESS_CPU_SYSTEM,
            Duration::from_micros(ended.usage.system_us).as_secs_f64(),
        );
        span.set(
            semconv::PROCESS_MAX_RSS,
            signed(ended.usage.max_rss_kib.saturating_mul(1024)),
        );
        span.set(semconv::PROCESS_STDOUT_BYTES, signed(finished.stdout.bytes));
        span.set(semconv::PROCESS_STDERR_BYTES, signed(finished.stderr.bytes));
        span.set(
            semconv::PROCESS_TRUNCATED,
            finished.stdout.truncated || finished.stderr.truncated,
        );
        if let Some(error_type) = error_type {
            span.fail(error_type);
        }
        span.end();
    }

    fn failed(self, error: Error, error_type: &'static str) -> Error {
        self.span.fail(error_type);
        self.span.end();
        error
    }
}

impl Observer for ProcessSpan {
    fn started(&mut self, pid: Option<i32>) {
        if let Some(pid) = pid {
            self.span.set(semconv::PROCESS_PID, i64::from(pid));
        }
        self.span.set(semconv::PROCESS_VPID, 2);
    }
}

fn response(
    finished: Finished,
    stdout_path: String,
    stderr_path: String,
    scene: &Scene,
) -> v1::RunResponse {
    let Finished {
        ended,
        stdout,
        stderr,
        duration,
    } = finished;
    let outcome = match ended.outcome {
        Outcome::Exited(_) => WireOutcome::Exited,
        Outcome::Signaled(_) => WireOutcome::Signaled,
        Outcome::TimedOut(_) => WireOutcome::TimedOut,
        Outcome::Cancelled(_) => WireOutcome::Cancelled,
    };
    let millis = |micros: u64| u32::try_from(micros / 1000).unwrap_or(u32::MAX);
    let artifact_error = [
        ("stdout", stdout.artifact_error),
        ("stderr", stderr.artifact_error),
    ]
    .into_iter()
    .filter(|(_, error)| !error.is_empty())
    .map(|(name, error)| format!("{name}: {error}"))
    .collect::<Vec<_>>()
    .join("; ");
    v1::RunResponse {
        outcome: outcome.into(),
        exit_code: ended.outcome.exit_code(),
        signal: ended.outcome.signal().map(signal_name).unwrap_or_default(),
        stdout: stdout.text,
        stderr: stderr.text,
        stdout_bytes: stdout.bytes,
        stderr_bytes: stderr.bytes,
        stdout_truncated: stdout.truncated,
        stderr_truncated: stderr.truncated,
        stdout_path,
        stderr_path,
        limit: String::new(),
        kill_pending: ended.kill_pending,
        duration_ms: u32::try_from(duration.as_millis()).unwrap_or(u32::MAX),
        usage: Some(v1::ResourceUsage {
            user_ms: millis(ended.usage.user_us),
            system_ms: millis(ended.usage.system_us),
            max_rss_bytes: ended.usage.max_rss_kib.saturating_mul(1024),
        }),
        isolation: scene.isolation.level.to_string(),
        artifact_error,
    }
}

fn facts(finished: &Finished, stdout_path: &str, stderr_path: &str) -> Map<String, Value> {
    let outcome = match finished.ended.outcome {
        Outcome::Exited(_) => "EXITED",
        Outcome::Signaled(_) => "SIGNALED",
        Outcome::TimedOut(_) => "TIMED_OUT",
        Outcome::Cancelled(_) => "CANCELLED",
    };
    let mut facts = Map::new();
    let mut add = |name: &str, value: Value| facts.insert(name.to_owned(), value);
    add("outcome", outcome.into());
    add("exit_code", finished.ended.outcome.exit_code().into());
    add("stdout_bytes", finished.stdout.bytes.into());
    add("stderr_bytes", finished.stderr.bytes.into());
    add("stdout_path", stdout_path.into());
    add("stderr_path", stderr_path.into());
    facts
}

fn unavailable(scene: &Scene) -> Error {
    let isolation = &scene.isolation;
    let Some((workspace, failure)) = &isolation.failure else {
        let text = format!(
            "commands are not run: the isolation is {}, and the operator asks for {} at least (--minimum-level)",
            isolation.level, isolation.minimum
        );
        return Error::new(Reason::SandboxUnavailable, text);
    };
    let remedy = failure.stage.remedy();
    let text = format!(
        "commands are not run: this host gives isolation {}, and the operator asks for {} at least. Workspace {workspace}: {failure}. To change that: {remedy}",
        isolation.level, isolation.minimum
    );
    Error::new(Reason::SandboxUnavailable, text)
        .with("stage", failure.stage.name())
        .with("errno", failure.errno_name())
        .with("remedy", remedy)
        .with("workspace", workspace.clone())
}

/// The keeper of sandboxes has died, which nothing but an operator or a defect can bring about.
fn lost() -> Error {
    let remedy = "restart the daemon";
    let text = format!("commands are not run: the process that makes sandboxes has died: {remedy}");
    Error::new(Reason::SandboxUnavailable, text)
        .with("stage", Stage::Launcher.name())
        .with("errno", "")
        .with("remedy", remedy)
}

/// Why a command was not run, in the terms of the contract.
fn run_error(error: RunError, spec: &Spec) -> Error {
    match error {
        RunError::NotStarted(failure) => not_started(failure, spec),
        RunError::NoSandboxInTime => Error::new(
            Reason::ResourceExhausted,
            "no sandbox became free within timeout_sec: too many commands run at once; try again later, or allow more at a time (limits.concurrent_runs)",
        )
        .retry_after(RETRY_AFTER),
        RunError::Abandoned => Error::new(
            Reason::Timeout,
            "nobody waited any more before the command was started; nothing was run",
        ),
        RunError::Draining => Error::new(
            Reason::Draining,
            "the daemon was told to end before the command was started; nothing was run: retry elsewhere or later",
        ),
        RunError::Lost => Error::new(
            Reason::SandboxError,
            "the sandbox was lost while the command ran: what it did until then stands, and its output is in the artifacts as far as it was read",
        ),
    }
}

fn not_started(failure: Failure, spec: &Spec) -> Error {
    let cwd = spec.cwd.to_string_lossy().into_owned();
    let program = match &spec.program {
        Program::Shell(_) => "/bin/sh".to_owned(),
        Program::Argv(argv) => argv
            .first()
            .map(|program| program.to_string_lossy().into_owned())
            .unwrap_or_default(),
    };
    match (failure.stage, failure.errno) {
        (Stage::ChangeDirectory, libc::ENOENT) => {
            Error::new(Reason::DirectoryNotFound, format!("cwd {cwd:?} does not exist")).with("cwd", cwd)
        }
        (Stage::ChangeDirectory, libc::ENOTDIR) => Error::new(Reason::NotADirectory, format!("cwd {cwd:?} is not a directory")).with("cwd", cwd),
        (Stage::ChangeDirectory, libc::EACCES) => {
            Error::new(Reason::PermissionDenied, format!("cwd {cwd:?} cannot be entered by the sandbox's user")).with("cwd", cwd)
        }
        (Stage::ChangeDirectory, libc::ELOOP) => Error::new(Reason::SymlinkBlocked, format!("cwd {cwd:?} is a loop of links")).with("cwd", cwd),
        (Stage::ChangeDirectory, libc::ENAMETOOLONG) => Error::invalid_field("cwd", "is longer than the kernel takes"),
        (Stage::Execute, libc::ENOENT | libc::ENOTDIR) => Error::new(
            Reason::CommandNotFound,
            format!("{program:?} was not found in the sandbox; commands see /usr, /opt, the workspace and what the operator binds"),
        )
        .with("program", program),
        (Stage::Execute, libc::EACCES) => {
            Error::new(Reason::PermissionDenied, format!("{program:?} may not be executed: it has no execute permission, or is a directory"))
                .with("program", program)
        }
        (Stage::Execute, libc::ENOEXEC) => Error::new(
            Reason::CommandNotExecutable,
            format!("{program:?} is not in an executable format; a script needs a first line that names its interpreter (#!/bin/sh)"),
        )
        .with("program", program),
        (Stage::Execute, libc::E2BIG) => Error::invalid_field("argv", "arguments and environment are larger than the kernel executes"),
        (Stage::Execute, libc::ENAMETOOLONG) => Error::invalid_field("argv[0]", "is longer than the kernel takes"),
        (_, libc::EMFILE | libc::ETOOMANYREFS | libc::ENFILE | libc::ENOMEM | libc::ENOSPC | libc::EAGAIN | libc::EUSERS) => {
            let text = format!("the host has not enough left to build a sandbox: {failure}");
            Error::new(Reason::ResourceExhausted, text).with("stage", failure.stage.name()).with("errno", failure.errno_name()).retry_after(RETRY_AFTER)
        }
        (stage, _) => {
            let text = format!("the command was not run: {failure}. What may help: {}", stage.remedy());
            Error::new(Reason::SandboxError, text).with("stage", stage.name()).with("errno", failure.errno_name()).caused_by(failure)
        }
    }
}
