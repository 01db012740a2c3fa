//! The parsed state of a shell.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    file::{MAX_STATE_BYTES, STATE_MARK},
    parts::{self, Parts},
    quoting::quote,
};
use crate::daemon::process::environment::CommandEnvironment;

/// First part of a state: the version of its form.
const STATE_VERSION: &[u8] = b"1";
/// Last part of a state.
const STATE_END: &[u8] = b"end";
/// An unfinished state that ends this close to the end of the file was too large for it: bash writes
/// blocks of this size.
const WRITE_BLOCK_BYTES: usize = 4096;

/// What the next command of a shell starts with. Texts are bytes without NUL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShellState {
    /// Exit status of the last command.
    pub(super) status: u8,
    /// Options of `set -o` that are on.
    pub(super) options: Vec<String>,
    /// Options of `shopt` that are on.
    pub(super) shell_options: Vec<String>,
    /// Absolute path of the working directory.
    pub(super) directory: Vec<u8>,
    /// File mode mask, in octal.
    pub(super) umask: String,
    /// Positional parameters.
    pub(super) arguments: Vec<Vec<u8>>,
    /// The stack of `pushd`, without the working directory.
    pub(super) directory_stack: Vec<Vec<u8>>,
    /// Declarations by name, as `declare -p` prints them.
    pub(super) variables: BTreeMap<String, Vec<u8>>,
    /// Definitions, as `declare -f` prints them.
    pub(super) functions: Vec<u8>,
    /// Attributes, as `declare -F` prints them.
    pub(super) function_attributes: Vec<Vec<u8>>,
    /// As `alias -p` prints them.
    pub(super) aliases: Vec<u8>,
    /// As `trap -p` prints them.
    pub(super) traps: Vec<u8>,
}

/// Why a command has left no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingState {
    /// The epilogue did not run, or wrote nothing: the command replaced the shell or its trap on EXIT,
    /// or called `exit` in a function.
    Replaced,
    TooLarge,
    /// The file holds something else.
    Malformed,
}

impl ShellState {
    /// Parses the content of the file that the epilogue has written, which may be padded with NULs.
    pub(crate) fn from_output(output: &[u8]) -> Result<Self, MissingState> {
        let written = output.strip_prefix(STATE_MARK).ok_or(MissingState::Malformed)?;
        if written.first().is_none_or(|byte| *byte == 0) {
            return Err(MissingState::Replaced);
        }
        let mut parts = Parts::new(written);
        if parts.read() != Some(STATE_VERSION) {
            return Err(MissingState::Malformed);
        }

        Self::parse(&mut parts).ok_or_else(|| {
            let used = output.iter().rposition(|byte| *byte != 0).unwrap_or_default();
            if used >= MAX_STATE_BYTES - 2 * WRITE_BLOCK_BYTES {
                MissingState::TooLarge
            } else {
                MissingState::Malformed
            }
        })
    }

    /// Decodes [`Self::encode`].
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut parts = Parts::new(bytes);
        if parts.read()? != STATE_VERSION {
            return None;
        }
        Self::parse(&mut parts)
    }

    /// Encodes the state for the state directory, in the form that the epilogue writes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut add = |part: &[u8]| {
            bytes.extend_from_slice(part);
            bytes.push(0);
        };

        add(STATE_VERSION);
        let (options, shell_options) = (self.options.join(":"), self.shell_options.join(":"));
        add(format!("{};{options};{shell_options}", self.status).as_bytes());
        add(&[self.directory.as_slice(), b"\n"].concat());
        add(self.umask.as_bytes());
        for list in [&self.arguments, &self.directory_stack] {
            add(list.len().to_string().as_bytes());
            list.iter().for_each(|text| add(text));
        }
        add(&join_lines(self.variables.values()));
        add(&self.functions);
        add(&join_lines(&self.function_attributes));
        add(&self.aliases);
        add(&self.traps);
        add(STATE_END);
        bytes
    }

    /// Parses what follows the version.
    fn parse(parts: &mut Parts<'_>) -> Option<Self> {
        let mut settings = str::from_utf8(parts.read()?).ok()?.split(';');
        let status = settings.next()?.parse().ok()?;
        let options = parts::option_names(settings.next()?)?;
        let shell_options = parts::option_names(settings.next()?)?;

        let directory = parts.read()?.strip_suffix(b"\n")?.to_vec();
        let umask = str::from_utf8(parts.read()?).ok()?.trim_end().to_owned();
        let is_octal = |byte: u8| (b'0'..=b'7').contains(&byte);
        if directory.first() != Some(&b'/')
            || !(1..=4).contains(&umask.len())
            || !umask.bytes().all(is_octal)
        {
            return None;
        }

        let arguments = parts.list()?;
        let directory_stack = parts.list()?;
        let variables = parts::declarations(parts.read()?)?;
        let functions = parts.read()?.to_vec();
        let function_attributes = parts::function_attributes(parts.read()?)?;
        let aliases = parts.read()?.to_vec();
        let traps = parts.read()?.to_vec();
        (parts.read()? == STATE_END).then_some(Self {
            status,
            options,
            shell_options,
            directory,
            umask,
            arguments,
            directory_stack,
            variables,
            functions,
            function_attributes,
            aliases,
            traps,
        })
    }

    /// Replaces the variables that were given to the command alone by those of the state before it, or
    /// of every command's environment if there was none.
    pub(crate) fn restore_variables(
        &mut self,
        names: &BTreeSet<String>,
        previous: Option<&Self>,
        base: &CommandEnvironment,
    ) {
        for name in names {
            let before = match previous {
                Some(previous) => previous.variables.get(name).cloned(),
                None => base.get(name).map(|value| exported_declaration(name, value)),
            };
            match before {
                Some(declaration) => self.variables.insert(name.clone(), declaration),
                None => self.variables.remove(name),
            };
        }
    }
}

fn exported_declaration(name: &str, value: &str) -> Vec<u8> {
    [format!("declare -x {name}=").into_bytes(), quote(value.as_bytes())].concat()
}

fn join_lines<'a>(lines: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    let mut text = Vec::new();
    for line in lines {
        text.extend_from_slice(line);
        text.push(b'\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const VARIABLES: &str = concat!(
        "declare -- BASH=\"/bin/bash\"\n",
        "declare -x HOME=\"/root\"\n",
        "declare -A m=([\"a b\"]=\"c\" )\n",
        "declare -x undefined\n",
        "declare -- __jig_mark=\"jigshell\"\n",
        "declare -- _=\"x\"\n",
    );

    /// The content of the file, with these declarations.
    fn output(variables: &str) -> Vec<u8> {
        let parts = [
            "jigshell1",
            "3;braceexpand:pipefail;extglob",
            "/a\nb\n",
            "0022\n",
            "2",
            "x",
            "",
            "1",
            "/usr",
            variables,
            "f () \n{ \n    :\n}\n",
            "declare -f f\ndeclare -fx f\n",
            "alias a='b'\n",
            "",
            "end",
            "",
        ];
        let mut bytes = parts.join("\0").into_bytes();
        bytes.resize(8192, 0);
        bytes
    }

    #[test]
    fn state_is_parsed_and_encoded_without_loss() {
        let state = ShellState::from_output(&output(VARIABLES)).unwrap();
        assert_eq!((state.status, state.umask.as_str()), (3, "0022"));
        assert_eq!(state.options, ["braceexpand", "pipefail"]);
        assert_eq!(state.directory, b"/a\nb");
        assert_eq!(state.arguments, [b"x".to_vec(), Vec::new()]);
        assert_eq!(state.directory_stack, [b"/usr"]);
        assert_eq!(state.variables.keys().collect::<Vec<_>>(), ["HOME", "m", "undefined"]);
        assert_eq!(state.function_attributes, [b"declare -fx f"]);
        assert_eq!(ShellState::decode(&state.encode()), Some(state));
    }

    #[test]
    fn every_truncation_and_forgery_is_rejected() {
        let whole = output(VARIABLES);
        let end = whole.iter().rposition(|byte| *byte != 0).unwrap();
        for length in 0..=end {
            let mut cut = whole[..length].to_vec();
            cut.resize(8192, 0);
            assert!(ShellState::from_output(&cut).is_err(), "{length}");
        }
        for (from, to) in [
            ("jigshell1", "jigshell2"),
            ("3;brace", "300;brace"),
            ("3;brace", "-1;brace"),
            ("pipefail", "pipe fail"),
            ("pipefail", "pipe$(x)"),
            ("/a\n", "a\n"),
            ("0022", "0082"),
            ("0022", "00000022"),
            ("2\0x", "99999999999999999999\0x"),
            ("2\0x", "-1\0x"),
            ("declare -x HOME", "touch pwned; declare -x HOME"),
            ("declare -x HOME", "declare -x HO;ME"),
            ("declare -x HOME", "declare  HOME"),
            ("declare -fx f", "touch pwned #-fx f"),
        ] {
            let forged = String::from_utf8(whole.clone()).unwrap().replacen(from, to, 1);
            assert!(ShellState::from_output(forged.as_bytes()).is_err(), "{to}");
        }

        let missing = |output: &[u8]| ShellState::from_output(output).unwrap_err();
        assert_eq!(missing(b"jigshell\0\0"), MissingState::Replaced);
        let mut large = b"jigshell1\0".to_vec();
        large.resize(MAX_STATE_BYTES - 100, b'x');
        assert_eq!(missing(&large), MissingState::TooLarge);
    }

    #[test]
    fn variables_of_one_command_are_not_kept() {
        let names = ["HOME", "SECRET", "PATH"].map(str::to_owned).into();
        let base = CommandEnvironment::base(&[]);
        let text = "declare -x HOME=\"of request\"\ndeclare -x SECRET=\"s\"\n";
        let of_request = || ShellState::from_output(&output(text)).unwrap();

        let mut first = of_request();
        first.restore_variables(&names, None, &base);
        assert!(first.variables["PATH"].starts_with(b"declare -x PATH='/usr/local/sbin:"));
        assert!(!first.variables.contains_key("SECRET"));

        let mut second = of_request();
        second.restore_variables(&names, Some(&first), &base);
        assert_eq!(second, first);
    }
}
