//! The scripts that bash runs before and after a command of a named shell.
//!
//! A command can define functions, aliases and read-only variables of any name. The prologue
//! therefore defines its own names first and restores functions last. The epilogue enters POSIX mode
//! by an assignment, which nothing can replace. There `unset` is found before functions, and frees
//! `builtin`, which reaches everything else.

use std::{collections::BTreeSet, sync::LazyLock};

use super::{quoting::quote, state::ShellState};

/// Least limit of open files with which the scripts work: they save descriptors at numbers from 10 on.
pub(crate) const MIN_OPEN_FILES: u32 = 32;

/// Options of `set -o` that are on in every shell that is not interactive.
const DEFAULT_OPTIONS: [&str; 3] = ["braceexpand", "hashall", "interactive-comments"];
/// Options of `set -o` with which nothing could be saved, or that no command can set.
const OMITTED_OPTIONS: [&str; 3] = ["noexec", "restricted", "privileged"];
/// Options of `shopt` that no command can set, or that change how the prologue is parsed.
const OMITTED_SHELL_OPTIONS: [&str; 3] = ["expand_aliases", "login_shell", "restricted_shell"];

/// Saves the state. Also the trap on EXIT, for commands that end the shell.
///
/// A second run finds no mark at the position in the file, and does nothing.
const EPILOGUE: &str = concat!(
    r#"{ POSIXLY_CORRECT="$?;$SHELLOPTS;$BASHOPTS"; \unset -f builtin; "#,
    // A limit on the size of files must not end the shell here.
    r#"\builtin trap '' XFSZ; "#,
    r#"\builtin set +aefnuvx -- "$POSIXLY_CORRECT" "$@"; \builtin unset -v POSIXLY_CORRECT; "#,
    // In a function, local variables hide others.
    r#"if \builtin read -r -N 8 -u 9 __jig_mark && [[ $__jig_mark = jigshell && "#,
    r#"${FUNCNAME[@]//source} != *[![:space:]]* ]]; then "#,
    r#"\builtin trap - DEBUG RETURN EXIT; "#,
    r#"\builtin printf '1\0%s\0' "$1"; \builtin pwd; \builtin printf '\0'; \builtin umask; "#,
    r#"\builtin printf '\0%d\0' $(($# - 1)); (($# == 1)) || \builtin printf '%s\0' "${@:2}"; "#,
    r#"\builtin printf '%d\0' $((${#DIRSTACK[@]} - 1)); "#,
    r#"((${#DIRSTACK[@]} < 2)) || \builtin printf '%s\0' "${DIRSTACK[@]:1}"; "#,
    r#"\builtin declare -p; \builtin printf '\0'; \builtin declare -f; \builtin printf '\0'; "#,
    r#"\builtin declare -F; \builtin printf '\0'; \builtin alias -p; \builtin printf '\0'; "#,
    r#"\builtin trap -p; \builtin printf '\0end\0'; fi; "#,
    r#"\builtin exit "${1%%;*}"; } 2>/dev/null >&9"#,
);

/// Restores the state, evaluates the command and saves the state. One line, so that the lines of the
/// command count from 1.
///
/// `__jig_start` passes the command to `eval` as `$_`, so that no variable holds it. The descriptors 6
/// and 7 keep a trap on ERR or `set -x` from seeing `eval` itself fail. Bash closes its copies of the
/// redirected descriptors when it executes a program.
const MAIN: &str = concat!(
    r#". /proc/self/fd/8 5>&2 2>/dev/null; "#,
    r#"{ __jig_start "$__jig_status" "$__jig_command" && [[ x ]]; "#,
    r#"eval "$_" >&6 2>&7 9>&- 6>&- 7>&-; } 6>&1 7>&2 >/dev/null 2>&1; "#,
);

/// The script for `bash -c`.
pub(crate) fn main_script() -> &'static str {
    static SCRIPT: LazyLock<String> = LazyLock::new(|| [MAIN, EPILOGUE].concat());
    &SCRIPT
}

/// What a command changes of the state that it starts with.
#[derive(Debug)]
pub(crate) struct RestoreOptions<'a> {
    /// Variables that the command gets from its request or the daemon.
    pub(crate) own_variables: &'a BTreeSet<String>,
    /// Whether the request names a working directory, in which the shell already is.
    pub(crate) has_directory: bool,
}

/// Returns the prologue of `command` in a shell with `state`; `None` for a new shell.
pub(crate) fn restore_script(
    state: Option<&ShellState>,
    command: &[u8],
    options: &RestoreOptions<'_>,
) -> Vec<u8> {
    let mut script = Script::default();
    script.line(&[b"exec 8<&-; unset -v BASH_EXECUTION_STRING"]);
    let status = state.map_or(0, |state| state.status).to_string();
    script.line(&[b"__jig_status=", status.as_bytes(), b" __jig_command=", &quote(command)]);
    script.line(&[b"trap -- ", &quote(EPILOGUE.as_bytes()), b" EXIT"]);
    script.line(&[start_function(state).as_bytes()]);
    match state {
        Some(state) => script.restore(state, options),
        None => script.line(&[b"set --"]),
    }
    script.0
}

/// The function that begins the command: it removes all names of the prologue and sets the options.
/// Its status is that of the last command.
fn start_function(state: Option<&ShellState>) -> String {
    let mut body =
        String::from("builtin unset -f __jig_start; builtin unset -v __jig_command __jig_status; ");
    if let Some(ShellState { options, shell_options, .. }) = state {
        if shell_options.iter().any(|name| name == "expand_aliases") {
            body.push_str("builtin shopt -s expand_aliases; ");
        }
        let is_on = |name: &str| options.iter().any(|option| option == name);
        for name in DEFAULT_OPTIONS.iter().filter(|name| !is_on(name)) {
            body.push_str(&format!("builtin set +o {name}; "));
        }
        let is_set = |name: &&String| {
            let name = name.as_str();
            !DEFAULT_OPTIONS.contains(&name) && !OMITTED_OPTIONS.contains(&name)
        };
        for name in options.iter().filter(is_set) {
            body.push_str(&format!("builtin set -o {name}; "));
        }
    }
    format!("__jig_start() {{ {body}builtin return \"$1\"; }}")
}

#[derive(Debug, Default)]
struct Script(Vec<u8>);

impl Script {
    fn line(&mut self, parts: &[&[u8]]) {
        parts.iter().for_each(|part| self.0.extend_from_slice(part));
        self.0.push(b'\n');
    }

    fn restore(&mut self, state: &ShellState, options: &RestoreOptions<'_>) {
        let settable = |name: &&String| !OMITTED_SHELL_OPTIONS.contains(&name.as_str());
        let shell_options: Vec<_> =
            state.shell_options.iter().filter(settable).map(String::as_str).collect();
        self.line(&[b"shopt -u ${BASHOPTS//:/ }"]);
        self.line(&[b"shopt -s ", shell_options.join(" ").as_bytes()]);
        self.line(&[b"umask ", state.umask.as_bytes()]);
        if !options.has_directory {
            self.enter_directory(&state.directory);
        }

        for (name, declaration) in &state.variables {
            if !options.own_variables.contains(name) {
                self.line(&[declaration]);
            }
        }
        if options.has_directory {
            self.line(&[b"export OLDPWD=", &quote(&state.directory)]);
        }
        for directory in state.directory_stack.iter().rev() {
            self.line(&[b"pushd -n -- ", &quote(directory), b" >/dev/null"]);
        }
        let mut arguments = b"set --".to_vec();
        for argument in &state.arguments {
            arguments.push(b' ');
            arguments.extend_from_slice(&quote(argument));
        }
        self.line(&[&arguments]);

        self.line(&[&state.aliases]);
        self.line(&[&state.traps]);
        // The epilogue ignores this signal.
        self.line(&[b"trap - XFSZ"]);
        self.line(&[&state.functions]);
        for attributes in &state.function_attributes {
            self.line(&[b"builtin ", attributes]);
        }
    }

    /// Enters the directory of the last command. A command whose directory is gone starts in the
    /// workspace, with a line on standard error.
    fn enter_directory(&mut self, directory: &[u8]) {
        let shown = String::from_utf8_lossy(directory);
        let note = format!(
            "jig: the directory of this shell, {shown:?}, does not exist or cannot be entered: the command starts in "
        );
        let (directory, note) = (quote(directory), quote(note.as_bytes()));
        self.line(&[b"cd -- ", &directory, b" || echo ", &note, b"\"$PWD\" >&5"]);
        self.line(&[b"unset -v OLDPWD"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::{
        process::shell_state::file::STATE_MARK, sandbox::image::SHELL_FILE_NUMBERS,
    };

    #[test]
    fn scripts_use_the_numbers_and_the_mark_of_the_files() {
        let [restore, output] = SHELL_FILE_NUMBERS;
        assert!(MAIN.starts_with(&format!(". /proc/self/fd/{restore} ")));
        assert!(EPILOGUE.ends_with(&format!(" >&{output}")));
        let mark = str::from_utf8(STATE_MARK).unwrap();
        let reads_mark = format!("read -r -N {} -u {output} __jig_mark", mark.len());
        assert!(EPILOGUE.contains(&reads_mark) && EPILOGUE.contains(&format!("= {mark} &&")));
        assert!(!main_script().contains('\n'));
    }

    #[test]
    fn quoted_text_is_one_word() {
        assert_eq!(quote(b"a'b\xff"), b"'a'\\''b\xff'");
    }
}
