//! How following a process ended, what is told about that, and the exit code that says so.

use std::io::ErrorKind;

use jig::api::v1::{Outcome, ProcessExited};
use serde_json::json;

use super::loss::is_loss;
use crate::{command::ended, exit, failure::Failure, global::Global, output};

/// How following ended.
#[derive(Debug)]
pub(super) struct Followed {
    /// The process, if it is known.
    pub(super) process_id: Option<String>,
    /// Whether it goes on without a reader.
    pub(super) keeps: bool,
    /// Whether it was given what was typed.
    pub(super) is_fed: bool,
    /// Whether it was watched only, and is another's.
    pub(super) is_viewed: bool,
    /// With what.
    pub(super) end: Result<End, Failure>,
}

/// With what following ended.
#[derive(Debug)]
pub(super) enum End {
    /// With the process.
    Exited(Box<Exit>),
    /// It was left as soon as it was started.
    Detached,
    /// It was left by who typed.
    Left,
}

/// The end of a process, and what of it did not come here.
#[derive(Debug, Default)]
pub(super) struct Exit {
    /// Its end.
    pub(super) exited: ProcessExited,
    /// Whether the connection was lost meanwhile.
    pub(super) was_lost: bool,
    /// Whether standard output, and standard error, came with a gap.
    pub(super) left_out: [bool; 2],
}

impl Followed {
    /// Tells what is to be told; answers with the exit code.
    pub(super) fn tell(self, global: &Global) -> u8 {
        match &self.end {
            Ok(End::Exited(exit)) => {
                let (notes, code) = exit.told(self.keeps, global.session());
                for note in notes {
                    output::note(&note);
                }
                code
            }
            Ok(End::Detached) => self.tell_id(global.json),
            Ok(End::Left) => {
                self.tell_left();
                match self.process_id {
                    Some(_) if self.keeps => exit::SUCCESS,
                    _ => exit::CANCELLED,
                }
            }
            Err(failure) => {
                failure.report(global.json);
                if self.goes_on_after(failure) {
                    self.tell_left();
                }
                code_of(failure)
            }
        }
    }

    fn tell_id(&self, as_json: bool) -> u8 {
        let id = self.process_id.as_deref().unwrap_or_default();
        let printed = if as_json {
            output::json(&json!({ "process_id": id }))
        } else {
            output::stdout(format!("{id}\n").as_bytes())
        };
        match printed {
            Ok(()) => exit::SUCCESS,
            Err(failure) => {
                // It runs, and nobody was told which one it is.
                failure.report(false);
                self.tell_left();
                code_of(&failure)
            }
        }
    }

    /// Whether a failure left it to itself, so that there is something to say about it.
    fn goes_on_after(&self, failure: &Failure) -> bool {
        let is_left = match failure {
            Failure::Interrupted(_) | Failure::Output(_) | Failure::Local(_) => true,
            Failure::Call(error) => is_loss(error) || error.name() == "TIMEOUT",
            Failure::Connect(_)
            | Failure::Embedded(_)
            | Failure::Usage(_)
            | Failure::System(_)
            | Failure::Daemon(_) => false,
        };
        is_left && (self.keeps || self.is_viewed)
    }

    /// Says no more than is known: whether the daemon has noticed yet is not.
    fn tell_left(&self) {
        output::note(&match &self.process_id {
            Some(id) if self.keeps => {
                let flag = if self.is_fed { "-i " } else { "" };
                format!("left; it goes on, come back with: jig attach {flag}{id}")
            }
            None if self.keeps => {
                "left; whether it was started is not known: see `jig ps`".to_owned()
            }
            _ => "left; the command ends when the daemon notices that nobody watches it any more"
                .to_owned(),
        });
    }
}

impl Exit {
    /// What the exit code alone does not say, and the exit code.
    fn told(&self, keeps: bool, session: Option<&str>) -> (Vec<String>, u8) {
        let exited = &self.exited;
        let mut notes = Vec::new();
        let mut code = exit::of_process(exited);
        if self.was_lost && !keeps && exited.outcome() == Outcome::Cancelled {
            let text = "the connection was lost, which ended the command (--keep lets it go on)";
            notes.push(text.to_owned());
            code = exit::RUN_FAILED;
        } else {
            notes.extend(ended::how(exited.outcome, &exited.signal, &exited.limit));
        }
        let session = session.map_or_else(String::new, |name| format!(" --session {name}"));
        let paths = [&exited.stdout_path, &exited.stderr_path];
        for (name, (is_left_out, path)) in
            ["standard output", "standard error"].iter().zip(self.left_out.iter().zip(paths))
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
pub(super) fn code_of(failure: &Failure) -> u8 {
    match failure {
        Failure::Interrupted(code) => *code,
        Failure::Output(error) if error.kind() == ErrorKind::BrokenPipe => exit::BROKEN_PIPE,
        Failure::Call(_)
        | Failure::Connect(_)
        | Failure::Embedded(_)
        | Failure::Usage(_)
        | Failure::Local(_)
        | Failure::System(_)
        | Failure::Daemon(_)
        | Failure::Output(_) => exit::RUN_FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(outcome: Outcome, exit_code: Option<i32>) -> Exit {
        Exit {
            exited: ProcessExited {
                outcome: outcome.into(),
                exit_code,
                stdout_path: "logs/out".into(),
                stderr_path: "logs/err".into(),
                ..ProcessExited::default()
            },
            ..Exit::default()
        }
    }

    #[test]
    fn output_that_was_left_out_is_no_success() {
        let whole = exit(Outcome::Exited, Some(0));
        assert_eq!(whole.told(true, None), (vec![], 0));
        let cut = Exit { left_out: [true, false], ..exit(Outcome::Exited, Some(0)) };
        let (notes, code) = cut.told(true, Some("s"));
        assert_eq!((notes.len(), code), (1, exit::RUN_FAILED));
        assert!(notes[0].ends_with("jig artifact --session s logs/out"), "{notes:?}");
        let failed = Exit { left_out: [true, true], ..exit(Outcome::Exited, Some(3)) };
        let (notes, code) = failed.told(true, None);
        assert_eq!((notes.len(), code), (2, 3));
    }

    #[test]
    fn the_connection_is_named_where_it_ended_the_command() {
        let ended = |was_lost, keeps| {
            let exit = Exit { was_lost, ..exit(Outcome::Cancelled, None) };
            exit.told(keeps, None)
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
