//! How following a process ended, what is told about that, and the exit code that says so.

use std::io::ErrorKind;

use jig::api::v1::{Outcome, ProcessExited};
use serde_json::json;

use super::reconnect::is_connection_loss;
use crate::{cli_error::CliError, command::exit_note, exit, global::GlobalArgs, output};

/// How following ended.
#[derive(Debug)]
pub(super) struct FollowOutcome {
    /// The process, if it is known.
    pub(super) process_id: Option<String>,
    /// Whether it goes on without a reader.
    pub(super) keeps_running: bool,
    /// Whether it was given what was typed.
    pub(super) forwards_stdin: bool,
    /// Whether it was watched only, and is another's.
    pub(super) is_view_only: bool,
    /// With what.
    pub(super) end: Result<FollowEnd, CliError>,
}

/// With what following ended.
#[derive(Debug)]
pub(super) enum FollowEnd {
    /// With the process.
    Exited(Box<ObservedExit>),
    /// It was left as soon as it was started.
    Detached,
    /// It was left by who typed.
    LeftByUser,
}

/// The end of a process, and what of it did not come here.
#[derive(Debug, Default)]
pub(super) struct ObservedExit {
    /// Its end.
    pub(super) exited: ProcessExited,
    /// Whether the connection was lost meanwhile.
    pub(super) connection_was_lost: bool,
    /// Whether standard output, and standard error, came with a gap.
    pub(super) has_gaps: [bool; 2],
}

impl FollowOutcome {
    /// Tells what is to be told; answers with the exit code.
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
            Ok(FollowEnd::LeftByUser) => {
                self.report_left();
                match self.process_id {
                    Some(_) if self.keeps_running => exit::SUCCESS,
                    _ => exit::CANCELLED,
                }
            }
            Err(failure) => {
                failure.report(global.json);
                if self.keeps_running_after(failure) {
                    self.report_left();
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
                // It runs, and nobody was told which one it is.
                failure.report(false);
                self.report_left();
                exit_code_of(&failure)
            }
        }
    }

    /// Whether a failure left it to itself, so that there is something to say about it.
    fn keeps_running_after(&self, failure: &CliError) -> bool {
        let is_left = match failure {
            CliError::Interrupted(_) | CliError::Output(_) | CliError::Local(_) => true,
            CliError::Call(error) => is_connection_loss(error) || error.name() == "TIMEOUT",
            CliError::Connect(_)
            | CliError::Embedded(_)
            | CliError::Usage(_)
            | CliError::System(_)
            | CliError::Daemon(_) => false,
        };
        is_left && (self.keeps_running || self.is_view_only)
    }

    /// Says no more than is known: whether the daemon has noticed yet is not.
    fn report_left(&self) {
        output::note(&match &self.process_id {
            Some(id) if self.keeps_running => {
                let flag = if self.forwards_stdin { "-i " } else { "" };
                format!("left; it goes on, come back with: jig attach {flag}{id}")
            }
            None if self.keeps_running => {
                "left; whether it was started is not known: see `jig ps`".to_owned()
            }
            _ => "left; the command ends when the daemon notices that nobody watches it any more"
                .to_owned(),
        });
    }
}

impl ObservedExit {
    /// What the exit code alone does not say, and the exit code.
    fn exit_notes(&self, keeps: bool, session: Option<&str>) -> (Vec<String>, u8) {
        let exited = &self.exited;
        let mut notes = Vec::new();
        let mut code = exit::of_process(exited);
        if self.connection_was_lost && !keeps && exited.outcome() == Outcome::Cancelled {
            let text = "the connection was lost, which ended the command (--keep lets it go on)";
            notes.push(text.to_owned());
            code = exit::RUN_FAILED;
        } else {
            notes.extend(exit_note::exit_note(exited.outcome, &exited.signal, &exited.limit));
        }
        let session = session.map_or_else(String::new, |name| format!(" --session {name}"));
        let paths = [&exited.stdout_path, &exited.stderr_path];
        for (name, (is_left_out, path)) in
            ["standard output", "standard error"].iter().zip(self.has_gaps.iter().zip(paths))
        {
            if *is_left_out {
                notes.push(format!(
                    "a part of {name} did not come; the whole is in: jig artifact{session} {path}"
                ));
                // Who takes what came for the whole must not be told that all is well.
                if code == exit::SUCCESS {
                    code = exit::RUN_FAILED;
                }
            }
        }
        if !exited.artifact_error.is_empty() {
            notes.push(format!("the whole output was not kept: {}", exited.artifact_error));
        }
        if exited.kill_pending {
            notes.push("a process of it could not be killed yet".to_owned());
        }
        (notes, code)
    }
}

/// The exit code that says so: a command's own must not be mixed up with ours.
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
    fn output_that_was_left_out_is_no_success() {
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
    fn the_connection_is_named_where_it_ended_the_command() {
        let ended = |was_lost, keeps| {
            let exit =
                ObservedExit { connection_was_lost: was_lost, ..exit(Outcome::Cancelled, None) };
            exit.exit_notes(keeps, None)
        };
        let (notes, code) = ended(true, false);
        assert!(notes[0].starts_with("the connection was lost"), "{notes:?}");
        assert_eq!(code, exit::RUN_FAILED);
        for (was_lost, keeps) in [(false, false), (true, true)] {
            let expected = (vec!["ended: cancelled".to_owned()], exit::CANCELLED);
            assert_eq!(ended(was_lost, keeps), expected);
        }
    }
}
