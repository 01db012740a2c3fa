//! A named shell: loads its state before the command, and stores the new one after it.

use std::{collections::BTreeSet, ffi::CStr, io, sync::Arc};

use crate::{
    api::v1::LowerLimits,
    daemon::{
        error::{Error, Reason, Violation},
        process::{
            environment::CommandEnvironment,
            shell_state::{
                script::{MIN_OPEN_FILES, RestoreOptions, restore_script},
                state::{MissingState, ShellState},
            },
            spec::has_bash,
        },
        queue::PrincipalName,
        sandbox::level::IsolationLevel,
        store::{
            failure::state_failure,
            session::{MAX_SHELLS_PER_CALLER, Session, ShellName, StoredShell},
        },
        task,
        tool::ToolContext,
    },
};

/// Variables that differ from run to run at L1, where each has directories of its own.
const SCRATCH_VARIABLES: [&str; 2] = ["HOME", "TMPDIR"];

/// Values of `RunResponse.shell_state`.
const UPDATED: &str = "updated";
const ENDED_EARLY: &str = "ended_early";
const REPLACED: &str = "replaced";
const TOO_LARGE: &str = "too_large";
const MALFORMED: &str = "malformed";
const NOT_STORED: &str = "not_stored";
const JOB: &str = "job";

/// The shell of a request.
#[derive(Debug)]
pub(super) struct ShellParams {
    pub(super) name: ShellName,
    /// Whether the command starts in a new shell.
    restart: bool,
    /// Names of the request's variables.
    variables: BTreeSet<String>,
    /// Whether the request names a working directory other than the workspace.
    pub(super) has_directory: bool,
}

/// A shell while a command runs in it.
#[derive(Debug)]
pub(in super::super) struct NamedShell {
    params: ShellParams,
    session: Arc<Session>,
    owner: PrincipalName,
    /// The state before the command; `None` for a new shell.
    state: Option<ShellState>,
    /// The environment of every command.
    base: CommandEnvironment,
    /// Whether a job runs the command, with a copy of the state.
    is_copy: bool,
}

/// Parses the shell of a request: its name, with the names of the request's variables.
pub(super) fn parse(
    shell: Option<(&str, BTreeSet<String>)>,
    restart: bool,
    argv: &[String],
    limits: Option<LowerLimits>,
    violations: &mut Vec<Violation>,
) -> Option<ShellParams> {
    let Some((name, variables)) = shell else {
        if restart {
            violations.push(Violation::new("restart_shell", "needs a shell"));
        }
        return None;
    };

    if !argv.is_empty() {
        violations.push(Violation::new("shell", "needs a command: argv runs without a shell"));
    }
    if !has_bash() {
        let text = "needs bash, which this host has not at /bin/bash";
        violations.push(Violation::new("shell", text));
    }
    let open_files = limits.and_then(|limits| limits.open_files);
    if open_files.is_some_and(|files| files < MIN_OPEN_FILES) {
        let text = format!("must be at least {MIN_OPEN_FILES} with a shell");
        violations.push(Violation::new("limits.open_files", text));
    }

    let parsed = ShellName::parse(name);
    if parsed.is_none() {
        let text = "must have 1 to 64 letters, digits, dots, underscores and hyphens, and not begin with a dot";
        violations.push(Violation::new("shell", text));
    }
    parsed.map(|name| ShellParams { name, restart, variables, has_directory: false })
}

impl NamedShell {
    /// Loads the state of the shell, or removes it for a restart.
    pub(super) async fn open(
        mut params: ShellParams,
        context: &ToolContext,
    ) -> Result<Self, Error> {
        let workspace_context = &context.workspace_context;
        if workspace_context.isolation.level == IsolationLevel::L1 {
            params.variables.extend(SCRATCH_VARIABLES.map(str::to_owned));
        }

        let (session, owner) = (Arc::clone(&context.session), Arc::clone(&context.principal));
        let is_copy = context.job.is_some();
        let (name, restart) = (params.name.clone(), params.restart);
        let load = move || {
            if restart && !is_copy {
                session.remove_shell(&owner, &name)?;
            }
            if restart && is_copy {
                Ok(StoredShell::New)
            } else {
                session.read_shell(&owner, &name)
            }
        };
        let stored = task::spawn_blocking(load).await.map_err(Error::internal)?;
        let state = match stored.map_err(|error| state_failure(&error))? {
            StoredShell::State(bytes) => {
                Some(ShellState::decode(&bytes).ok_or_else(|| damaged_state_error(&params.name))?)
            }
            StoredShell::TooMany if !is_copy => return Err(too_many_shells_error()),
            StoredShell::New | StoredShell::TooMany => None,
        };

        Ok(Self {
            params,
            session: Arc::clone(&context.session),
            owner: Arc::clone(&context.principal),
            state,
            base: CommandEnvironment::base(&workspace_context.run_settings.path_directories),
            is_copy,
        })
    }

    /// Returns what the shell reads before `command`, and removes from its environment what the state
    /// has.
    pub(super) fn prepare(
        &mut self,
        command: &CStr,
        environment: &mut CommandEnvironment,
    ) -> Vec<u8> {
        let is_own = |name: &&String| self.base.get(name).is_none();
        let own: Vec<_> = environment.names().filter(is_own).cloned().collect();
        self.params.variables.extend(own);
        if self.state.is_some() {
            // The state has those of every command, unless a command has removed them.
            environment.retain(|name| self.params.variables.contains(name));
        }

        let options = RestoreOptions {
            own_variables: &self.params.variables,
            has_directory: self.params.has_directory,
        };
        restore_script(self.state.as_ref(), command.to_bytes(), &options)
    }

    /// Stores the state that the command left. Returns whether it did, for the response.
    pub(super) async fn finish(self, output: Option<Vec<u8>>) -> &'static str {
        if self.is_copy {
            return JOB;
        }
        let Some(output) = output else {
            return ENDED_EARLY;
        };
        let mut state = match ShellState::from_output(&output) {
            Ok(state) => state,
            Err(MissingState::Replaced) => return REPLACED,
            Err(MissingState::TooLarge) => return TOO_LARGE,
            Err(MissingState::Malformed) => return MALFORMED,
        };
        state.restore_variables(&self.params.variables, self.state.as_ref(), &self.base);

        let save = move || self.session.save_shell(&self.owner, &self.params.name, &state.encode());
        let saved = task::spawn_blocking(save).await;
        match saved.map_err(io::Error::other).and_then(|saved| saved) {
            Ok(()) => UPDATED,
            Err(error) => {
                tracing::error!(%error, "cannot store the state of a shell");
                NOT_STORED
            }
        }
    }
}

fn too_many_shells_error() -> Error {
    let text = format!(
        "this caller has {MAX_SHELLS_PER_CALLER} shells in this session, the maximum: use one of them (restart_shell makes it new), or another session"
    );
    Error::new(Reason::ResourceExhausted, text)
}

fn damaged_state_error(name: &ShellName) -> Error {
    let text = format!(
        "the stored state of the shell {:?} is damaged: set restart_shell to begin anew",
        name.as_str()
    );
    Error::new(Reason::Internal, text)
}
