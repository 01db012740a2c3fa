//! The words of a command line that say what to run in a sandbox.

use std::{collections::HashMap, ffi::OsString};

use clap::Args;

/// What to run, and where.
#[derive(Debug, Args)]
pub(crate) struct Words {
    /// Directory to start in, relative to the workspace.
    #[arg(long, value_name = "DIR")]
    pub(super) cwd: Option<String>,
    /// Variable to add to the command's environment; repeatable.
    #[arg(long, value_name = "K=V", value_parser = variable)]
    env: Vec<(String, String)>,
    /// The command; after `--`, the program and its arguments.
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    words: Vec<String>,
    /// Whether `--` stands before the words.
    #[arg(skip)]
    is_argv: bool,
}

impl Words {
    /// Notes whether `--` stands before the words, which clap does not tell: the words are the end
    /// of the line.
    pub(crate) fn note_escape(&mut self, line: &[OsString]) {
        self.is_argv = line
            .len()
            .checked_sub(self.words.len() + 1)
            .is_some_and(|before| line[before] == "--");
    }

    /// Whether there is nothing to run.
    pub(super) fn are_none(&self) -> bool {
        self.words.is_empty()
    }

    /// The text for a shell, or the program and its arguments.
    pub(super) fn command(&self) -> (Option<String>, Vec<String>) {
        if self.is_argv {
            (None, self.words.clone())
        } else {
            (Some(self.words.join(" ")), Vec::new())
        }
    }

    /// The variables to be added.
    pub(super) fn env(&self) -> HashMap<String, String> {
        self.env.iter().cloned().collect()
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables() {
        assert_eq!(variable("A=b"), Ok(("A".into(), "b".into())));
        assert!(variable("A").is_err());
        assert!(variable("=b").is_err());
    }
}
