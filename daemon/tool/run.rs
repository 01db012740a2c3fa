//! `run`: one command in a sandbox of its own.

mod limits;
mod refusal;
mod span;

pub(crate) mod answer;

use std::{ffi::CString, time::Duration};

use self::{
    answer::{facts, response},
    limits::lowered,
    span::ProcessSpan,
};
use super::{
    Done, Scene, Tool, Work,
    egress::{self, Connected},
};
use crate::{
    api::v1,
    daemon::{
        error::{Error, MOST_VIOLATIONS, Violation},
        process::{
            environment::Environment,
            live::{Exit, Live},
            outcome::Outcome,
            spec::{Program, Spec, Stdin},
            supervise::{self, Artifacts, RunError},
        },
        sandbox::{image::TerminalSize, limits::Limits},
        store::session::StreamName,
        telemetry::semconv::process_error,
        workspace::RelativePath,
    },
};

/// How long a command keeps the turn of its call: as long as it takes to start one. From then on the
/// kernel shares out the CPUs.
pub(super) const TURN: Duration = Duration::from_millis(3);

/// The tool.
#[derive(Debug)]
pub(crate) struct Run;

/// A request that was checked.
#[derive(Debug)]
pub(crate) struct Params {
    pub(super) program: Program,
    pub(super) cwd: RelativePath,
    pub(super) environment: Environment,
    pub(super) stdin: bytes::Bytes,
    pub(super) timeout: Option<Duration>,
    limits: Limits,
    pub(super) inline_bytes: usize,
}

impl Tool for Run {
    const NAME: &'static str = "run";
    const NEEDS_SANDBOX: bool = true;
    const LIMITS_ITSELF: bool = true;
    const TURN: Duration = TURN;
    type Request = v1::RunRequest;
    type Response = v1::RunResponse;
    type Params = Params;

    fn lost(step: Option<u64>) -> Result<v1::RunResponse, Error> {
        Ok(answer::lost(step))
    }

    fn cwd(params: &Params) -> Option<&RelativePath> {
        Some(&params.cwd)
    }

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
            limits,
        } = request;
        let mut report = |field: String, description: &str| {
            violations.push(Violation { field, description: description.to_owned() })
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
                argv.into_iter().map(CString::new).collect::<Result<_, _>>().ok().map(Program::Argv)
            }
        };
        let mut environment = Environment::base(&scene.settings.path);
        let mut variables: Vec<_> = env.into_iter().collect();
        variables.sort_unstable();
        for (name, value) in variables {
            if violations.len() > MOST_VIOLATIONS {
                break;
            }
            let field = format!("env[{name:?}]");
            let known = violations.iter().any(|violation| violation.field == field);
            if let Err(description) = environment.set(name, value)
                && !known
            {
                violations.push(Violation { field, description: description.to_owned() });
            }
        }
        if let Some(program) = &program {
            violations.extend(program.violation(&environment));
        }
        let limits = lowered(
            scene.settings.limits,
            limits.unwrap_or_default(),
            scene.isolation.level,
            violations,
        );
        let timeout = timeout_sec.map(|seconds| Duration::from_secs(u64::from(seconds)));
        if let (Some(timeout), Some(wall)) = (timeout, limits.wall)
            && timeout > wall
        {
            let text = format!("must be at most {}, which the operator set", wall.as_secs());
            violations.push(Violation::new("timeout_sec", text));
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
            timeout,
            limits,
            inline_bytes: max_output_bytes.map_or(0, |bytes| bytes as usize),
        }))
    }

    async fn execute(params: Params, work: Work) -> Result<Done<v1::RunResponse>, Error> {
        // Nobody waits for a job: it is as good as a process that was started.
        let default = work.job.is_none().then_some(work.default_timeout);
        let timeout = params.timeout.or(work.limit).or(default);
        let connection =
            Connection { stdin: Stdin::Whole(params.stdin.clone()), terminal: None, live: None };
        let isolation = work.scene.isolation.level.to_string();
        let done = perform(params, timeout, connection, work).await?;
        Ok(done.map(|exit| response(exit, isolation)))
    }
}

/// Where the rest of an output is, for who reads the answer.
fn rest_in(path: String, reader: Option<&str>) -> String {
    match reader {
        Some(reader) => format!("{path}: read it with {reader}, commands cannot see it"),
        None => path,
    }
}

/// What a command is connected to.
pub(super) struct Connection {
    /// What it reads.
    pub(super) stdin: Stdin,
    /// Size of the terminal that it gets, if any.
    pub(super) terminal: Option<TerminalSize>,
    /// The side of its task, where it is watched while it runs.
    pub(super) live: Option<Live>,
}

/// Runs a command, whoever asked for it and however its output is told.
pub(super) async fn perform(
    params: Params,
    timeout: Option<Duration>,
    connection: Connection,
    work: Work,
) -> Result<Done<Exit>, Error> {
    let Work {
        scene,
        session,
        step,
        stop,
        span,
        telemetry,
        about,
        seat,
        job,
        reader,
        artifact_bytes,
        in_default_shell,
        approved_cwd,
        ..
    } = work;
    let seat = seat.ok_or_else(|| Error::internal("a run was let in without a sandbox"))?;
    if !scene.isolation.is_ready() {
        return Err(refusal::unavailable(&scene));
    }
    if scene.sandboxes.is_lost() {
        return Err(refusal::lost());
    }
    let cwd = params.cwd.absolute(scene.workspace.mount_path());
    let Params { program, mut environment, limits, inline_bytes, .. } = params;
    let program = match program {
        Program::Shell(text) if in_default_shell => Program::DefaultShell(text),
        Program::Shell(_) | Program::DefaultShell(_) | Program::Argv(_) => program,
    };
    let timeout = timeout.into_iter().chain(limits.wall).min();
    let name = program.name();
    let process = ProcessSpan::start(&telemetry, &span, &name, &cwd, timeout, &limits, &scene);
    for (name, value) in telemetry.propagators().variables(process.context()) {
        environment.provide(&name, value);
    }
    egress::provide(&scene, &mut environment);
    let Connection { stdin, terminal, live } = connection;
    let spec = Spec {
        program,
        cwd: CString::new(cwd.into_os_string().into_encoded_bytes()).map_err(Error::internal)?,
        cwd_identity: approved_cwd,
        environment,
        stdin,
        terminal,
        timeout,
        limits,
        inline_bytes,
    };
    let cap = scene.settings.artifact_bytes;
    let cap = artifact_bytes.map_or(cap, |bytes| bytes.min(cap));
    let written = job.map(|job| job.written);
    let [stdout, stderr] = [StreamName::Stdout, StreamName::Stderr].map(|stream| {
        let (sink, path) = session.sink(step, stream, cap);
        let sink = sink.telling(written.clone());
        match artifact_bytes {
            Some(_) => (sink.even_if_empty(), path),
            None => (sink, path),
        }
    });
    let (stdout_path, stderr_path) = (stdout.1.clone(), stderr.1.clone());
    if let Some(live) = &live {
        live.process.set_paths(stdout_path.clone(), stderr_path.clone());
    }
    let [stdout, stderr] = [stdout, stderr].map(|(sink, path)| (sink, rest_in(path, reader)));
    let artifacts = Artifacts { stdout, stderr };
    let context = process.context().clone();
    let records = egress::Records::new(session, step, about);
    let mut observer = Connected::new(process, &scene, &telemetry, &context, records);
    let finished =
        supervise::run(&spec, &scene.sandboxes, seat, artifacts, &stop, &mut observer, live).await;
    let observer = observer.end().await;
    match finished {
        Ok(finished) => {
            observer.finished(&finished);
            let timed_out = matches!(finished.ended.outcome, Outcome::TimedOut(_));
            let exit = Exit { finished, stdout_path, stderr_path };
            Ok(Done {
                facts: facts(&exit),
                error_type: timed_out.then_some(process_error::TIMEOUT),
                ..Done::plain(exit)
            })
        }
        Err(error) => {
            let error_type = match error {
                RunError::Lost => process_error::SANDBOX_LOST,
                RunError::Abandoned | RunError::Draining | RunError::EndedBefore => {
                    process_error::CANCELLED
                }
                RunError::NotStarted(_) | RunError::NoSandboxInTime => process_error::SPAWN_FAILED,
            };
            Err(observer.failed(refusal::run_error(error, &spec), error_type))
        }
    }
}
