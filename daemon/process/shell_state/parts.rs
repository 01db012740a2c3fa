//! The parts of a shell's state, each ended by a NUL, and the names in them.

use std::collections::BTreeMap;

/// Prefix of the names that prologue and epilogue use.
const OWN_PREFIX: &str = "__jig_";
/// Variables of bash itself that cannot be restored, or belong to one process.
const PROCESS_VARIABLES: [&str; 37] = [
    "BASH",
    "BASHOPTS",
    "BASHPID",
    "BASH_ALIASES",
    "BASH_ARGC",
    "BASH_ARGV",
    "BASH_ARGV0",
    "BASH_CMDS",
    "BASH_COMMAND",
    "BASH_EXECUTION_STRING",
    "BASH_LINENO",
    "BASH_MONOSECONDS",
    "BASH_SOURCE",
    "BASH_SUBSHELL",
    "BASH_TRAPSIG",
    "BASH_VERSINFO",
    "BASH_VERSION",
    "COPROC",
    "COPROC_PID",
    "DIRSTACK",
    "EPOCHREALTIME",
    "EPOCHSECONDS",
    "EUID",
    "FUNCNAME",
    "GROUPS",
    "HISTCMD",
    "LINENO",
    "PIPESTATUS",
    "POSIXLY_CORRECT",
    "PPID",
    "PWD",
    "RANDOM",
    "SECONDS",
    "SHELLOPTS",
    "SHLVL",
    "SRANDOM",
    "UID",
];

/// Reads the parts of a state, one after the other.
pub(super) struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the next part; `None` if no NUL ends it.
    pub(super) fn read(&mut self) -> Option<&'a [u8]> {
        let end = memchr::memchr(0, self.0)?;
        let (part, rest) = self.0.split_at_checked(end)?;
        self.0 = rest.get(1..)?;
        Some(part)
    }

    /// Returns as many parts as the next one says.
    pub(super) fn list(&mut self) -> Option<Vec<Vec<u8>>> {
        let count: usize = str::from_utf8(self.read()?).ok()?.parse().ok()?;
        (0..count).map(|_| self.read().map(<[u8]>::to_vec)).collect()
    }
}

/// Parses names of options between colons.
pub(super) fn option_names(text: &str) -> Option<Vec<String>> {
    let is_name = |name: &str| {
        name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'))
    };
    text.split(':')
        .filter(|name| !name.is_empty())
        .map(|name| is_name(name).then(|| name.to_owned()))
        .collect()
}

/// Parses lines of `declare -p`: `declare -x NAME="value"`. Omits the variables that no other process
/// can have.
///
/// Values have no line breaks: bash writes them as `$'\n'`.
pub(super) fn declarations(text: &[u8]) -> Option<BTreeMap<String, Vec<u8>>> {
    let mut variables = BTreeMap::new();
    for line in lines(text) {
        let declared = after_attributes(line)?;
        let name_end = memchr::memchr(b'=', declared).unwrap_or(declared.len());
        let name = variable_name(declared.get(..name_end)?)?;
        let is_of_process = PROCESS_VARIABLES.contains(&name) || name == "_";
        if !is_of_process && !name.starts_with(OWN_PREFIX) {
            variables.insert(name.to_owned(), line.to_vec());
        }
    }
    Some(variables)
}

/// Parses lines of `declare -F`: `declare -fx NAME`. Omits functions without attributes.
pub(super) fn function_attributes(text: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut attributes = Vec::new();
    for line in lines(text) {
        // The name of a function can have any character that is no blank.
        let is_name = |byte: &u8| !byte.is_ascii_whitespace() && !b"'\"\\`$;&|<>()".contains(byte);
        let name = after_attributes(line)?;
        if !line.starts_with(b"declare -f ") && name.iter().all(is_name) {
            attributes.push(line.to_vec());
        }
    }
    Some(attributes)
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

/// Returns what follows `declare -ATTRIBUTES `.
fn after_attributes(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_prefix(b"declare -")?;
    let end = memchr::memchr(b' ', rest)?;
    let (attributes, declared) = rest.split_at_checked(end)?;
    let is_attribute = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'-';
    (!attributes.is_empty() && attributes.iter().all(is_attribute)).then(|| declared.get(1..))?
}

fn variable_name(name: &[u8]) -> Option<&str> {
    let is_first = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_';
    let is_other = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let is_valid = name.first().is_some_and(is_first) && name.iter().all(is_other);
    str::from_utf8(name).ok().filter(|_| is_valid)
}
