//! Outcome of following a process: notes and exit code.

use std::io::ErrorKind;

use jig::api::v1::{Outcome, ProcessExited};
use serde_json::json;

use super::reconnect::is_connection_loss;
use crate::{cli_error::CliError, command::exit_note, exit, global::GlobalArgs, output};

/// Outcome of following a process.
#[derive(Debug)]
pub(super) struct FollowOutcome {
    /// Id of the process, if known.
    pub(super) process_id: Option<String>,
    /// Whether the process continues without a reader.
    pub(super) keeps_running: bool,
    /// Whether input was forwarded to the process.
    pub(super) forwards_stdin: bool,
    /// Whether this side only watched the process of another client.
    pub(super) is_view_only: bool,
    /// How following ended.
    pub(super) end: Result<FollowEnd, CliError>,
}

/// How following ended without an error.
#[derive(Debug)]
pub(super) enum FollowEnd {
    /// The process ended.
    Exited(Box<ObservedExit>),
    /// Following stopped after the start, as requested.
    Detached,
    /// The user detached from the process.
    DetachedByUser,
}

/// End of a process, and gaps in its output.
#[derive(Debug, Default)]
pub(super) struct ObservedExit {
    pub(super) exited: ProcessExited,
    /// Whether the connection was lost at least once.
    pub(super) connection_was_lost: bool,
    /// Whether standard output and standard error have gaps.
    pub(super) has_gaps: [bool; 2],
}

impl FollowOutcome {
    /// Prints notes or the error. Returns the exit code.
    pub(super) fn report(self, global: &GlobalArgs) -> u8 {
        match &self.end {
            Ok(FollowEnd::Exited(exit)) => {
                let (notes, code) = exit.exit_notes(self.keeps_running, global.session());
                for note in notes {
                    output::note(&note);
                }
                code
            }
            Ok(FollowEnd::Detached) => self.report_process_id(global.json),
            Ok(FollowEnd::DetachedByUser) => {
                self.report_detached();
                match self.process_id {
                    Some(_) if self.keeps_running => exit::SUCCESS,
                    _ => exit::CANCELLED,
                }
            }
            Err(failure) => {
                failure.report(global.json);
                if self.keeps_running_after(failure) {
                    self.report_detached();
                }
                exit_code_of(failure)
            }
        }
    }

    fn report_process_id(&self, as_json: bool) -> u8 {
        let id = self.process_id.as_deref().unwrap_or_default();
        let printed = if as_json {
            output::write_json(&json!({ "process_id": id }))
        } else {
            output::write_stdout(format!("{id}\n").as_bytes())
        };
        match printed {
            Ok(()) => exit::SUCCESS,
            Err(failure) => {
                // The process runs, but its id could not be printed.
                failure.report(false);
                self.report_detached();
                exit_code_of(&failure)
            }
        }
    }

    /// Returns whether the process may still run after this failure.
    fn keeps_running_after(&self, failure: &CliError) -> bool {
        let may_run = match failure {
            CliError::Interrupted(_) | CliError::Output(_) | CliError::Local(_) => true,
            CliError::Call(error) => is_connection_loss(error) || error.name() == "TIMEOUT",
            CliError::Connect(_)
            | CliError::Embedded(_)
            | CliError::Usage(_)
            | CliError::System(_)
            | CliError::Daemon(_) => false,
        };

        may_run && (self.keeps_running || self.is_view_only)
    }

    /// Reports that jig has detached. Whether the daemon has noticed is unknown.
    fn report_detached(&self) {
        output::note(&match &self.process_id {
            Some(id) if self.keeps_running => {
                let flag = if self.forwards_stdin { "-i " } else { "" };
                format!("detached; the command continues, reattach with: jig attach {flag}{id}")
            }
            None if self.keeps_running => {
                "detached; the command may have started: see `jig ps`".to_owned()
            }
            _ => "detached; the command ends when the daemon notices that it has no reader"
                .to_owned(),
        });
    }
}

impl ObservedExit {
    /// Returns notes on what the exit code does not show, and the exit code.
    fn exit_notes(&self, keeps_running: bool, session: Option<&str>) -> (Vec<String>, u8) {
        let exited = &self.exited;
        let mut notes = Vec::new();
        let mut code = exit::of_process(exited);

        if self.connection_was_lost && !keeps_running && exited.outcome() == Outcome::Cancelled {
            let text = "the connection was lost, which ended the command (--keep lets it continue)";
            notes.push(text.to_owned());
            code = exit::RUN_FAILED;
        } else {
            notes.extend(exit_note::exit_note(exited.outcome, &exited.signal, &exited.limit));
        }

        let session = session.map_or_else(String::new, |name| format!(" --session {name}"));
        let paths = [&exited.stdout_path, &exited.stderr_path];
        for (name, (has_gap, path)) in
            ["standard output", "standard error"].iter().zip(self.has_gaps.iter().zip(paths))
        {
            if !has_gap {
                continue;
            }
            notes.push(format!(
                "a part of {name} is missing; all of it: jig artifact{session} {path}"
            ));
            // A caller must not take incomplete output for a success.
            if code == exit::SUCCESS {
                code = exit::RUN_FAILED;
            }
        }

        if !exited.artifact_error.is_empty() {
            notes.push(format!("the complete output was not stored: {}", exited.artifact_error));
        }
        if exited.kill_pending {
            notes.push(exit_note::KILL_PENDING_NOTE.to_owned());
        }

        (notes, code)
    }
}

/// Returns the exit code for a failure of jig, which must differ from exit codes of commands.
pub(super) fn exit_code_of(failure: &CliError) -> u8 {
    match failure {
        CliError::Interrupted(code) => *code,
        CliError::Output(error) if error.kind() == ErrorKind::BrokenPipe => exit::BROKEN_PIPE,
        CliError::Call(_)
        | CliError::Connect(_)
        | CliError::Embedded(_)
        | CliError::Usage(_)
        | CliError::Local(_)
        | CliError::System(_)
        | CliError::Daemon(_)
        | CliError::Output(_) => exit::RUN_FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(outcome: Outcome, exit_code: Option<i32>) -> ObservedExit {
        ObservedExit {
            exited: ProcessExited {
                outcome: outcome.into(),
                exit_code,
                stdout_path: "logs/out".into(),
                stderr_path: "logs/err".into(),
                ..ProcessExited::default()
            },
            ..ObservedExit::default()
        }
    }

    #[test]
    fn missing_output_is_not_success() {
        let whole = exit(Outcome::Exited, Some(0));
        assert_eq!(whole.exit_notes(true, None), (vec![], 0));
        let cut = ObservedExit { has_gaps: [true, false], ..exit(Outcome::Exited, Some(0)) };
        let (notes, code) = cut.exit_notes(true, Some("s"));
        assert_eq!((notes.len(), code), (1, exit::RUN_FAILED));
        assert!(notes[0].ends_with("jig artifact --session s logs/out"), "{notes:?}");
        let failed = ObservedExit { has_gaps: [true, true], ..exit(Outcome::Exited, Some(3)) };
        let (notes, code) = failed.exit_notes(true, None);
        assert_eq!((notes.len(), code), (2, 3));
    }

    #[test]
    fn lost_connection_that_ended_the_command_is_reported() {
        let ended = |was_lost, keeps_running| {
            let exit =
                ObservedExit { connection_was_lost: was_lost, ..exit(Outcome::Cancelled, None) };
            exit.exit_notes(keeps_running, None)
        };
        let (notes, code) = ended(true, false);
        assert!(notes[0].starts_with("the connection was lost"), "{notes:?}");
        assert_eq!(code, exit::RUN_FAILED);
        for (was_lost, keeps_running) in [(false, false), (true, true)] {
            let expected = (vec!["ended: cancelled".to_owned()], exit::CANCELLED);
            assert_eq!(ended(was_lost, keeps_running), expected);
        }
    }
}
