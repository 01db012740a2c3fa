//! `run`: one command in a sandbox of its own.

mod limits;
mod run_error;
mod span;

pub(crate) mod response;

use std::{ffi::CString, time::Duration};

use self::{
    limits::lower_limits,
    response::{record_fields, response},
    span::ProcessSpan,
};
use super::{
    Tool, ToolContext, ToolOutput, WorkspaceContext,
    proxied_run::{self, ProxiedObserver},
};
use crate::{
    api::v1,
    daemon::{
        error::{Error, MAX_VIOLATIONS, Violation},
        process::{
            environment::CommandEnvironment,
            handle::{ProcessExit, SupervisedProcess},
            outcome::CommandOutcome,
            spec::{CommandSpec, Program, StdinSource},
            supervisor::{self, OutputArtifacts, RunError},
        },
        sandbox::{image::TerminalSize, limits::RunLimits},
        store::session::StreamName,
        telemetry::semconv::process_error,
        workspace::RelativePath,
    },
};

/// How long a command keeps the turn of its call: as long as it takes to start one. From then on the
/// kernel shares out the CPUs.
pub(super) const START_PERMIT_HOLD: Duration = Duration::from_millis(3);

/// The tool.
#[derive(Debug)]
pub(crate) struct RunCommand;

/// A request that was checked.
#[derive(Debug)]
pub(crate) struct Params {
    pub(super) program: Program,
    pub(super) cwd: RelativePath,
    pub(super) environment: CommandEnvironment,
    pub(super) stdin: bytes::Bytes,
    pub(super) timeout: Option<Duration>,
    limits: RunLimits,
    pub(super) max_inline_bytes: usize,
}

impl Tool for RunCommand {
    const NAME: &'static str = "run";
    const NEEDS_SANDBOX: bool = true;
    const ENFORCES_OWN_TIMEOUT: bool = true;
    const START_PERMIT_HOLD: Duration = START_PERMIT_HOLD;
    type Request = v1::RunRequest;
    type Response = v1::RunResponse;
    type Params = Params;

    fn daemon_lost_response(step: Option<u64>) -> Result<v1::RunResponse, Error> {
        Ok(response::daemon_lost_response(step))
    }

    fn cwd(params: &Params) -> Option<&RelativePath> {
        Some(&params.cwd)
    }

    fn validate(
        request: v1::RunRequest,
        workspace_context: &WorkspaceContext,
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
        let mut environment =
            CommandEnvironment::base(&workspace_context.run_settings.path_directories);
        let mut variables: Vec<_> = env.into_iter().collect();
        variables.sort_unstable();
        for (name, value) in variables {
            if violations.len() > MAX_VIOLATIONS {
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
            violations.extend(program.size_violation(&environment));
        }
        let limits = lower_limits(
            workspace_context.run_settings.limits,
            limits.unwrap_or_default(),
            workspace_context.isolation.level,
            violations,
        );
        let timeout = timeout_sec.map(|seconds| Duration::from_secs(u64::from(seconds)));
        if let (Some(timeout), Some(wall)) = (timeout, limits.wall_time)
            && timeout > wall
        {
            let text = format!("must be at most {}, which the operator set", wall.as_secs());
            violations.push(Violation::new("timeout_sec", text));
        }
        if !violations.is_empty() {
            return Ok(None);
        }
        let cwd = RelativePath::parse(
            cwd.as_deref().unwrap_or("."),
            workspace_context.workspace.mount_path(),
        )?;
        Ok(program.map(|program| Params {
            program,
            cwd,
            environment,
            stdin,
            timeout,
            limits,
            max_inline_bytes: max_output_bytes.map_or(0, |bytes| bytes as usize),
        }))
    }

    async fn execute(
        params: Params,
        context: ToolContext,
    ) -> Result<ToolOutput<v1::RunResponse>, Error> {
        // Nobody waits for a job: it is as good as a process that was started.
        let default = context.job.is_none().then_some(context.default_timeout);
        let timeout = params.timeout.or(context.call_timeout).or(default);
        let connection = CommandIo {
            stdin: StdinSource::Bytes(params.stdin.clone()),
            terminal: None,
            supervised: None,
        };
        let isolation = context.workspace_context.isolation.level.to_string();
        let done = run_command(params, timeout, connection, context).await?;
        Ok(done.map_response(|exit| response(exit, isolation)))
    }
}

/// Where the rest of an output is, for who reads the answer.
fn full_output_location(path: String, reader: Option<&str>) -> String {
    match reader {
        Some(reader) => format!("{path}: read it with {reader}, commands cannot see it"),
        None => path,
    }
}

/// What a command is connected to.
pub(super) struct CommandIo {
    /// What it reads.
    pub(super) stdin: StdinSource,
    /// Size of the terminal that it gets, if any.
    pub(super) terminal: Option<TerminalSize>,
    /// The side of its task, where it is watched while it runs.
    pub(super) supervised: Option<SupervisedProcess>,
}

/// Runs a command, whoever asked for it and however its output is told.
pub(super) async fn run_command(
    params: Params,
    timeout: Option<Duration>,
    connection: CommandIo,
    tool_context: ToolContext,
) -> Result<ToolOutput<ProcessExit>, Error> {
    let ToolContext {
        workspace_context: scene,
        session,
        step,
        cancel: stop,
        span,
        telemetry,
        common_record_fields: about,
        sandbox_permit: seat,
        job,
        artifact_reader: reader,
        max_artifact_bytes: artifact_bytes,
        uses_default_shell: in_default_shell,
        approved_cwd,
        ..
    } = tool_context;
    let seat = seat.ok_or_else(|| Error::internal("a run was let in without a sandbox"))?;
    if !scene.isolation.is_ready() {
        return Err(run_error::commands_unavailable(&scene));
    }
    if scene.sandbox_pool.is_keeper_dead() {
        return Err(run_error::keeper_lost());
    }
    let cwd = params.cwd.absolute(scene.workspace.mount_path());
    let Params { program, mut environment, limits, max_inline_bytes: inline_bytes, .. } = params;
    let program = match program {
        Program::Shell(text) if in_default_shell => Program::DefaultShell(text),
        Program::Shell(_) | Program::DefaultShell(_) | Program::Argv(_) => program,
    };
    let timeout = timeout.into_iter().chain(limits.wall_time).min();
    let name = program.name();
    let process = ProcessSpan::start(&telemetry, &span, &name, &cwd, timeout, &limits, &scene);
    for (name, value) in telemetry.propagators().child_variables(process.context()) {
        environment.set_default(&name, value);
    }
    proxied_run::set_proxy_variables(&scene, &mut environment);
    let CommandIo { stdin, terminal, supervised: live } = connection;
    let spec = CommandSpec {
        program,
        cwd: CString::new(cwd.into_os_string().into_encoded_bytes()).map_err(Error::internal)?,
        cwd_identity: approved_cwd,
        environment,
        stdin,
        terminal,
        timeout,
        limits,
        max_inline_bytes: inline_bytes,
    };
    let cap = scene.run_settings.max_artifact_bytes;
    let cap = artifact_bytes.map_or(cap, |bytes| bytes.min(cap));
    let written = job.map(|job| job.output_written);
    let [stdout, stderr] = [StreamName::Stdout, StreamName::Stderr].map(|stream| {
        let (sink, path) = session.artifact_writer(step, stream, cap);
        let sink = sink.notifying(written.clone());
        match artifact_bytes {
            Some(_) => (sink.create_if_empty(), path),
            None => (sink, path),
        }
    });
    let (stdout_path, stderr_path) = (stdout.1.clone(), stderr.1.clone());
    if let Some(live) = &live {
        live.process.set_output_paths(stdout_path.clone(), stderr_path.clone());
    }
    let [stdout, stderr] =
        [stdout, stderr].map(|(sink, path)| (sink, full_output_location(path, reader)));
    let artifacts = OutputArtifacts { stdout, stderr };
    let context = process.context().clone();
    let records = proxied_run::RunRecorder::new(session, step, about);
    let mut observer = ProxiedObserver::new(process, &scene, &telemetry, &context, records);
    let finished =
        supervisor::run(&spec, &scene.sandbox_pool, seat, artifacts, &stop, &mut observer, live)
            .await;
    let observer = observer.finish().await;
    match finished {
        Ok(finished) => {
            observer.finish(&finished);
            let timed_out = matches!(finished.termination.outcome, CommandOutcome::TimedOut(_));
            let exit = ProcessExit { result: finished, stdout_path, stderr_path };
            Ok(ToolOutput {
                record_fields: record_fields(&exit),
                error_type: timed_out.then_some(process_error::TIMEOUT),
                ..ToolOutput::new(exit)
            })
        }
        Err(error) => {
            let error_type = match error {
                RunError::SandboxLost => process_error::SANDBOX_LOST,
                RunError::Abandoned | RunError::Draining | RunError::EndedBeforeStart => {
                    process_error::CANCELLED
                }
                RunError::NotStarted(_) | RunError::SandboxTimeout => process_error::SPAWN_FAILED,
            };
            Err(observer.fail(run_error::error_of_run(error, &spec), error_type))
        }
    }
}
