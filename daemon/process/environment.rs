//! The environment of a command: it starts empty, gets a few variables that all programs expect, and
//! those of the request.

use std::{collections::BTreeMap, ffi::CString};

use crate::daemon::sandbox::plan::{SANDBOX_HOME, SANDBOX_USER};

/// Longest variable in bytes, with its name and without its NUL. MAX_ARG_STRLEN of linux/binfmts.h
/// is 32 pages including the NUL.
const MAX_VARIABLE_BYTES: usize = 131_071;
/// Searched for programs after the directories of the workspace.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables by name. None contains a NUL; no name is empty or contains `=`.
#[derive(Debug, Clone)]
pub(crate) struct CommandEnvironment(BTreeMap<String, String>);

impl CommandEnvironment {
    /// Creates the variables that all commands get. `path` is searched before [`DEFAULT_PATH`].
    pub(crate) fn base(path: &[String]) -> Self {
        let path =
            path.iter().map(String::as_str).chain([DEFAULT_PATH]).collect::<Vec<_>>().join(":");
        let variables = [
            ("PATH", path.as_str()),
            ("HOME", SANDBOX_HOME),
            ("USER", SANDBOX_USER),
            ("LOGNAME", SANDBOX_USER),
            ("SHELL", "/bin/sh"),
            ("LANG", "C.UTF-8"),
            ("TMPDIR", "/tmp"),
        ];
        Self(
            variables
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        )
    }

    /// Sets a variable. Returns what is wrong with an invalid one.
    pub(crate) fn set(&mut self, name: String, value: String) -> Result<(), &'static str> {
        if name.is_empty() {
            return Err("a variable must have a name");
        }
        if name.contains('=') {
            return Err("the name of a variable cannot contain `=`");
        }
        if name.contains('\0') || value.contains('\0') {
            return Err("a variable cannot contain a NUL character");
        }
        if name.len() + 1 + value.len() > MAX_VARIABLE_BYTES {
            return Err("a variable and its value can have at most 131,071 bytes together");
        }

        self.0.insert(name, value);
        Ok(())
    }

    /// Sets a variable of the daemon, unless the name is set already.
    pub(crate) fn set_default(&mut self, name: &str, value: String) {
        if !value.contains('\0') {
            self.0.entry(name.to_owned()).or_insert(value);
        }
    }

    /// Removes the variables for which `is_kept` is false.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| is_kept(name));
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns the variables in the form that execve(2) takes.
    pub(super) fn to_envp(&self) -> Vec<CString> {
        self.0
            .iter()
            .filter_map(|(name, value)| CString::new(format!("{name}={value}")).ok())
            .collect()
    }
}
