//! `run`: runs one command in a sandbox of its own and returns its output.
//!
//! [`run_command`] is shared with [`super::start`], which does not wait for the end.

mod limits;
mod named_shell;
mod run_error;
mod span;

pub(crate) mod response;

use std::{
    collections::BTreeMap, ffi::CString, os::unix::ffi::OsStrExt as _, path::Path, time::Duration,
};

use bytes::Bytes;

use self::{
    limits::lower_limits,
    named_shell::{NamedShell, ShellParams},
    response::{record_fields, response},
    span::ProcessSpan,
};
use super::{
    Tool, ToolContext, ToolOutput, WorkspaceContext, bounds_watch,
    proxied_run::{self, ProxiedObserver, RunRecorder},
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
            supervisor::{self, OutputArtifacts},
        },
        sandbox::{image::TerminalSize, limits::RunLimits},
        store::{
            artifact_writer::ArtifactWriter,
            session::{ShellName, StreamName},
        },
        telemetry::{content::truncated_list, semconv::process_error},
        workspace::RelativePath,
    },
};

/// How long a command holds the start permit of its call: as long as starting one takes. After that
/// the kernel schedules the command.
pub(super) const COMMAND_START_PERMIT_HOLD: Duration = Duration::from_millis(3);

#[derive(Debug)]
pub(crate) struct RunCommand;

/// The validated request.
#[derive(Debug)]
pub(crate) struct Params {
    pub(super) program: Program,
    pub(super) cwd: RelativePath,
    pub(super) environment: CommandEnvironment,
    pub(super) stdin: Bytes,
    pub(super) timeout: Option<Duration>,
    /// The shell that runs the command, if it is a named one.
    shell: Option<ShellParams>,
    limits: RunLimits,
    pub(super) max_inline_bytes: usize,
}

impl Tool for RunCommand {
    const NAME: &'static str = "run";
    const NEEDS_SANDBOX: bool = true;
    const ENFORCES_OWN_TIMEOUT: bool = true;
    const START_PERMIT_HOLD: Duration = COMMAND_START_PERMIT_HOLD;
    type Request = v1::RunRequest;
    type Response = v1::RunResponse;
    type Params = Params;

    fn daemon_lost_response(step: Option<u64>) -> Result<v1::RunResponse, Error> {
        Ok(response::daemon_lost_response(step))
    }

    fn cwd(params: &Params) -> Option<&RelativePath> {
        Some(&params.cwd)
    }

    fn shell(params: &Params) -> Option<&ShellName> {
        params.shell.as_ref().map(|shell| &shell.name)
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
            shell,
            restart_shell,
        } = request;
        let settings = &workspace_context.run_settings;

        let shell = shell.as_deref().map(|name| (name, env.keys().cloned().collect()));
        let mut shell = named_shell::parse(shell, restart_shell, &argv, limits, violations);
        let mut program = parse_program(command, argv, violations);
        if let (Some(shell), Some(Program::Shell(command))) = (&mut shell, &program) {
            shell.has_directory = cwd.as_deref().is_some_and(|cwd| cwd != ".");
            program = Some(Program::NamedShell(command.clone()));
        }
        let environment = build_environment(env, &settings.path_directories, violations);
        if let Some(program) = &program {
            violations.extend(program.size_violation(&environment));
        }

        let limits = lower_limits(
            settings.limits,
            limits.unwrap_or_default(),
            workspace_context.isolation.level,
            violations,
        );

        let timeout = timeout_sec.map(|seconds| Duration::from_secs(u64::from(seconds)));
        if let (Some(timeout), Some(wall)) = (timeout, limits.wall_clock)
            && timeout > wall
        {
            let text = format!(
                "must be at most {} seconds, the daemon's limit (limits.wall_clock)",
                wall.as_secs()
            );
            violations.push(Violation::new("timeout_sec", text));
        }

        if !violations.is_empty() {
            return Ok(None);
        }
        let mount_path = workspace_context.workspace.mount_path();
        let cwd = RelativePath::parse(cwd.as_deref().unwrap_or("."), mount_path)?;
        Ok(program.map(|program| Params {
            program,
            cwd,
            environment,
            stdin,
            timeout,
            shell,
            limits,
            max_inline_bytes: max_output_bytes.map_or(0, |bytes| bytes as usize),
        }))
    }

    async fn execute(
        mut params: Params,
        mut context: ToolContext,
    ) -> Result<ToolOutput<v1::RunResponse>, Error> {
        // Held until the state is stored.
        let _lease = context.shell_lease.take();
        let mut shell = match params.shell.take() {
            Some(shell) => Some(NamedShell::open(shell, &context).await?),
            None => None,
        };

        // No caller waits for a job, so it has no default timeout, like a started process.
        let default = context.job.is_none().then_some(context.default_timeout);
        let timeout = params.timeout.or(context.call_timeout).or(default);
        let stdin = StdinSource::Bytes(params.stdin.clone());
        let io = CommandIo { stdin, terminal: None, supervised: None, shell: shell.as_mut() };
        let isolation = context.workspace_context.isolation.level.to_string();

        let mut output = run_command(params, timeout, io, context).await?;
        let shell_state = match shell {
            Some(shell) => shell.finish(output.response.result.shell_output.take()).await,
            None => "",
        };
        if !shell_state.is_empty() {
            output.record_fields.insert("shell_state".to_owned(), shell_state.into());
        }
        Ok(output.map_response(|exit| response(exit, isolation, shell_state)))
    }
}

/// The program of a request: a shell command or an argument vector. The request must give exactly
/// one of them.
fn parse_program(
    command: Option<String>,
    argv: Vec<String>,
    violations: &mut Vec<Violation>,
) -> Option<Program> {
    match (command, argv.as_slice()) {
        (Some(_), [_, ..]) => {
            violations.push(Violation::new(
                "command",
                "must not be given together with argv: give exactly one of the two",
            ));
            violations.push(Violation::new(
                "argv",
                "must not be given together with command: give exactly one of the two",
            ));
            None
        }
        (None, []) => {
            violations.push(Violation::new("command", "is required, unless argv is given"));
            None
        }
        (Some(command), []) if command.trim().is_empty() => {
            violations.push(Violation::new("command", "must not be empty"));
            None
        }
        (Some(command), []) => CString::new(command).ok().map(Program::Shell),
        (None, [program, ..]) => {
            if program.is_empty() {
                violations.push(Violation::new("argv[0]", "must name a program"));
            }
            argv.into_iter().map(CString::new).collect::<Result<_, _>>().ok().map(Program::Argv)
        }
    }
}

/// The base environment, with the variables of the request. Reports each invalid variable once.
fn build_environment(
    variables: BTreeMap<String, String>,
    path_directories: &[String],
    violations: &mut Vec<Violation>,
) -> CommandEnvironment {
    let mut environment = CommandEnvironment::base(path_directories);
    for (name, value) in variables {
        if violations.len() > MAX_VIOLATIONS {
            break;
        }

        let field = format!("env[{name:?}]");
        let is_reported = violations.iter().any(|violation| violation.field == field);
        if let Err(description) = environment.set(name, value)
            && !is_reported
        {
            violations.push(Violation::new(field, description));
        }
    }
    environment
}

/// What connects a command with the daemon.
pub(super) struct CommandIo<'a> {
    pub(super) stdin: StdinSource,
    /// Size of the command's terminal, if it has one.
    pub(super) terminal: Option<TerminalSize>,
    /// The task's side of the process handle, if clients can attach to the command.
    pub(super) supervised: Option<SupervisedProcess>,
    /// The named shell that runs the command, if one does.
    pub(super) shell: Option<&'a mut NamedShell>,
}

/// Runs a command in a sandbox, with artifacts for its output and a span for its process.
pub(super) async fn run_command(
    params: Params,
    timeout: Option<Duration>,
    io: CommandIo<'_>,
    mut context: ToolContext,
) -> Result<ToolOutput<ProcessExit>, Error> {
    let sandbox_permit = context
        .sandbox_permit
        .take()
        .ok_or_else(|| Error::internal("a command was admitted without a sandbox permit"))?;
    let workspace_context = &context.workspace_context;
    run_error::check_available(workspace_context)?;
    bounds_watch::check_bounds(&workspace_context.workspace).await?;

    let CommandIo { stdin, terminal, supervised, shell } = io;
    let cwd = params.cwd.absolute(workspace_context.workspace.mount_path());
    let mut spec = command_spec(params, &cwd, timeout, stdin, context.in_default_shell)?;
    spec.cwd_identity = context.approved_cwd;
    spec.terminal = terminal;
    let process = start_process_span(&context, &cwd, &mut spec);
    if let (Some(shell), Program::NamedShell(command)) = (shell, &spec.program) {
        spec.restore_script = Some(shell.prepare(command, &mut spec.environment));
    }

    let artifacts = open_artifacts(&context);
    let [stdout_path, stderr_path] = artifacts.each_ref().map(|(_, path)| path.clone());
    if let Some(supervised) = &supervised {
        supervised.process.set_output_paths(stdout_path.clone(), stderr_path.clone());
    }
    let [stdout, stderr] = artifacts
        .map(|(writer, path)| (writer, full_output_location(path, context.artifact_reader)));

    let span = process.context().clone();
    let recorder = RunRecorder::new(context.session, context.step, context.common_record_fields);
    let mut observer =
        ProxiedObserver::new(process, workspace_context, &context.telemetry, &span, recorder);
    let result = supervisor::run(
        &spec,
        &workspace_context.sandbox_pool,
        sandbox_permit,
        OutputArtifacts { stdout, stderr },
        &context.cancel,
        &mut observer,
        supervised,
    )
    .await;
    let process = observer.finish().await;
    bounds_watch::measure_later(&workspace_context.workspace);

    match result {
        Ok(result) => {
            process.finish(&result);
            Ok(run_output(ProcessExit { result, stdout_path, stderr_path }))
        }
        Err(error) => {
            let error_type = run_error::error_type(&error);
            Err(process.fail(run_error::command_error(error, &spec), error_type))
        }
    }
}

/// The command to run, without a terminal.
fn command_spec(
    params: Params,
    cwd: &Path,
    timeout: Option<Duration>,
    stdin: StdinSource,
    in_default_shell: bool,
) -> Result<CommandSpec, Error> {
    let Params { program, environment, limits, max_inline_bytes, .. } = params;
    let program = match program {
        Program::Shell(text) if in_default_shell => Program::DefaultShell(text),
        Program::Shell(_)
        | Program::DefaultShell(_)
        | Program::NamedShell(_)
        | Program::Argv(_) => program,
    };

    Ok(CommandSpec {
        program,
        cwd: CString::new(cwd.as_os_str().as_bytes()).map_err(Error::internal)?,
        cwd_identity: None,
        environment,
        stdin,
        terminal: None,
        restore_script: None,
        timeout: timeout.into_iter().chain(limits.wall_clock).min(),
        limits,
        max_inline_bytes,
    })
}

/// Starts the span of the command's process. Adds the variables of the trace and of the proxy to
/// the command's environment.
fn start_process_span(context: &ToolContext, cwd: &Path, spec: &mut CommandSpec) -> ProcessSpan {
    let ToolContext { workspace_context, telemetry, span, .. } = context;
    let name = spec.program.name();
    let process = ProcessSpan::start(
        telemetry,
        span,
        &name,
        cwd,
        spec.timeout,
        &spec.limits,
        workspace_context,
    );
    if let Some(args) = command_args(context, &spec.program) {
        process.set_command_args(args);
    }

    for (name, value) in telemetry.propagators().child_variables(process.context()) {
        spec.environment.set_default(&name, value);
    }
    proxied_run::set_proxy_variables(workspace_context, &mut spec.environment);
    process
}

/// The command line for the span, if content is captured. A custom tool has none: its parameters may
/// be secret.
fn command_args(context: &ToolContext, program: &Program) -> Option<opentelemetry::Value> {
    let max_bytes = context.telemetry.capture().max_bytes().filter(|_| !context.is_custom_tool)?;
    let argv = program.argv();
    let texts: Vec<_> = argv.iter().map(|text| text.to_string_lossy().into_owned()).collect();
    Some(truncated_list(&texts, max_bytes))
}

/// The output of a command that ended, with the fields of its record.
fn run_output(exit: ProcessExit) -> ToolOutput<ProcessExit> {
    let timed_out = matches!(exit.result.termination.outcome, CommandOutcome::TimedOut(_));
    ToolOutput {
        record_fields: record_fields(&exit),
        error_type: timed_out.then_some(process_error::TIMEOUT),
        ..ToolOutput::new(exit)
    }
}

/// Opens the artifacts of the output streams. Returns each with the path to read it at.
fn open_artifacts(context: &ToolContext) -> [(ArtifactWriter, String); 2] {
    let operator_max = context.workspace_context.run_settings.max_artifact_bytes;
    let requested_max = context.max_artifact_bytes;
    let max_bytes = requested_max.map_or(operator_max, |bytes| bytes.min(operator_max));

    [StreamName::Stdout, StreamName::Stderr].map(|stream| {
        let (writer, path) = context.session.artifact_writer(context.step, stream, max_bytes);
        let writer = writer.notifying(context.output_written.clone());
        // A caller that limits the artifacts expects them even if empty.
        if requested_max.is_some() { (writer.create_if_empty(), path) } else { (writer, path) }
    })
}

/// Where the full output is, for the reader of a truncated one.
fn full_output_location(path: String, reader: Option<&str>) -> String {
    match reader {
        Some(reader) => format!("{path}: read it with {reader}, commands cannot see it"),
        None => path,
    }
}
