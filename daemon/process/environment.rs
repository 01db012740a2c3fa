//! The environment of a command: it starts empty, gets a few variables that every program expects,
//! and those of the request.

use std::{collections::BTreeMap, ffi::CString};

use crate::daemon::sandbox::plan::{SANDBOX_HOME, SANDBOX_USER};

/// Longest argument or variable, in bytes without its NUL (MAX_ARG_STRLEN of linux/binfmts.h is 32
/// pages with it).
const MAX_VARIABLE_BYTES: usize = 131_071;
/// Where programs are looked up unless the request or the workspace says otherwise.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables by name. None holds a NUL, and no name is empty or holds `=`.
#[derive(Debug, Clone)]
pub(crate) struct CommandEnvironment(BTreeMap<String, String>);

impl CommandEnvironment {
    /// What every command gets; `path` is looked up before the usual directories.
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

    /// Sets a variable. Answers what is wrong with it, if anything.
    pub(crate) fn set(&mut self, name: String, value: String) -> Result<(), &'static str> {
        if name.is_empty() {
            return Err("a variable must have a name");
        }
        if name.contains('=') {
            return Err("the name of a variable cannot hold `=`");
        }
        if name.contains('\0') || value.contains('\0') {
            return Err("a variable cannot hold a NUL character");
        }
        if name.len() + 1 + value.len() > MAX_VARIABLE_BYTES {
            return Err("a variable and its value can have at most 131,071 bytes together");
        }
        self.0.insert(name, value);
        Ok(())
    }

    /// Sets a variable that the daemon provides, unless there is one of that name.
    pub(crate) fn set_default(&mut self, name: &str, value: String) {
        if !value.contains('\0') {
            self.0.entry(name.to_owned()).or_insert(value);
        }
    }

    /// The value of a variable.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The variables as execve(2) takes them.
    pub(super) fn to_envp(&self) -> Vec<CString> {
        self.0
            .iter()
            .filter_map(|(name, value)| CString::new(format!("{name}={value}")).ok())
            .collect()
    }
}
