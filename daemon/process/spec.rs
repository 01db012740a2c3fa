//! Specification of a command, in types that cannot hold one that the kernel would not execute.

use std::{
    ffi::{CStr, CString},
    path::Path,
    sync::LazyLock,
    time::Duration,
};

use bytes::Bytes;

use super::{environment::CommandEnvironment, shell_state::script::main_script};
use crate::daemon::{
    error::Violation,
    sandbox::{
        image::{ExecRequest, TerminalSize},
        limits::RunLimits,
    },
};

/// Limit of arguments and environment together, pointers included. It is a quarter of the stack
/// limit of 8 MiB (execve(2)), minus space for what the kernel adds. The caller's trace context
/// and baggage need space too; they come out of 16 KiB of metadata.
const MAX_EXEC_BYTES: usize = (2 << 20) - (64 << 10);

/// Limit of a command or directory in a list: two thousand of them fit into one message.
const MAX_DISPLAY_BYTES: usize = 512;
/// Limit of a program's name: that of a file name (NAME_MAX).
const MAX_PROGRAM_NAME_CHARS: usize = 255;

#[derive(Debug, Clone)]
pub(crate) enum Program {
    /// A script for `/bin/sh -c`.
    Shell(CString),
    /// A script for the default shell: bash, or `/bin/sh` if there is none.
    DefaultShell(CString),
    /// A script for a named shell ([`super::shell_state`]). It reaches bash in
    /// [`CommandSpec::restore_script`].
    NamedShell(CString),
    /// A program and its arguments; never empty.
    Argv(Vec<CString>),
}

#[derive(Debug, Clone)]
pub(crate) struct CommandSpec {
    pub(crate) program: Program,
    /// Absolute path of the working directory, inside the sandbox.
    pub(crate) cwd: CString,
    /// Device and inode that this directory must have, if the call was approved for it.
    pub(crate) cwd_identity: Option<(u64, u64)>,
    pub(crate) environment: CommandEnvironment,
    pub(crate) stdin: StdinSource,
    /// Size of the terminal; none for pipes.
    pub(crate) terminal: Option<TerminalSize>,
    /// Limit of the run time; none for unlimited.
    pub(crate) timeout: Option<Duration>,
    pub(crate) limits: RunLimits,
    /// What a named shell reads before its command, with the command.
    pub(crate) restore_script: Option<Vec<u8>>,
    /// Limit of each stream in the response.
    pub(crate) max_inline_bytes: usize,
}

#[derive(Debug, Clone)]
pub(crate) enum StdinSource {
    /// These bytes, then the end of the input.
    Bytes(Bytes),
    /// Input that clients send while the command runs.
    Streamed,
}

/// The shell that named shells need.
const BASH: &CStr = c"/bin/bash";

/// Whether sandboxes have bash: they have the programs of the host.
pub(crate) fn has_bash() -> bool {
    static HAS_BASH: LazyLock<bool> = LazyLock::new(|| Path::new("/bin/bash").exists());
    *HAS_BASH
}

/// Returns the default shell: bash, or `/bin/sh` if there is none.
pub(crate) fn default_shell() -> &'static CStr {
    if has_bash() { BASH } else { c"/bin/sh" }
}

impl Program {
    /// Returns a violation if the kernel would reject the size of the program with `environment`.
    pub(crate) fn size_violation(&self, environment: &CommandEnvironment) -> Option<Violation> {
        let strings = self.argv().into_iter().chain(environment.to_envp());
        let bytes: usize =
            strings.map(|string| string.as_bytes_with_nul().len() + size_of::<usize>()).sum();

        let field = match self {
            Self::Shell(_) | Self::DefaultShell(_) | Self::NamedShell(_) => "command",
            Self::Argv(_) => "argv",
        };

        (bytes > MAX_EXEC_BYTES).then(|| Violation {
            field: field.to_owned(),
            description: format!(
                "with the environment it takes {bytes} bytes; the kernel executes at most {MAX_EXEC_BYTES}: pass large input through stdin or a file"
            ),
        })
    }

    /// Returns the arguments, starting with the program's name.
    pub(crate) fn argv(&self) -> Vec<CString> {
        match self {
            Self::Shell(text) => vec![c"/bin/sh".to_owned(), c"-c".to_owned(), text.clone()],
            Self::DefaultShell(text) => {
                vec![default_shell().to_owned(), c"-c".to_owned(), text.clone()]
            }
            Self::NamedShell(text) => vec![BASH.to_owned(), c"-c".to_owned(), text.clone()],
            Self::Argv(argv) => argv.clone(),
        }
    }

    /// Returns a text for people: the script, or the arguments joined by spaces. Truncated.
    pub(crate) fn display(&self) -> String {
        let text = match self {
            Self::Shell(text) | Self::DefaultShell(text) | Self::NamedShell(text) => {
                text.to_string_lossy().into_owned()
            }
            Self::Argv(argv) => {
                let words: Vec<_> = argv.iter().map(|word| word.to_string_lossy()).collect();
                words.join(" ")
            }
        };
        truncate_for_display(&text)
    }

    /// Returns the program's name for people: `sh` for a script.
    pub(crate) fn name(&self) -> String {
        let program = match self {
            Self::Shell(_) => return "sh".to_owned(),
            Self::NamedShell(_) => return "bash".to_owned(),
            Self::DefaultShell(_) => default_shell().to_string_lossy().into_owned(),
            Self::Argv(argv) => argv
                .first()
                .map(|program| program.to_string_lossy().into_owned())
                .unwrap_or_default(),
        };
        let name = program.rsplit('/').next().unwrap_or_default();
        name.chars().take(MAX_PROGRAM_NAME_CHARS).collect()
    }
}

/// Truncates a text for people to [`MAX_DISPLAY_BYTES`].
pub(crate) fn truncate_for_display(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_DISPLAY_BYTES);
    text.get(..end).unwrap_or_default().to_owned()
}

impl CommandSpec {
    /// Returns the command in the form that the sandbox receives.
    pub(crate) fn exec_request(&self) -> ExecRequest {
        let argv = match &self.program {
            Program::NamedShell(_) => named_shell_argv(),
            Program::Shell(_) | Program::DefaultShell(_) | Program::Argv(_) => self.program.argv(),
        };
        let programs =
            argv.first().map(|program| self.executable_candidates(program)).unwrap_or_default();
        ExecRequest {
            cwd: self.cwd.clone(),
            cwd_identity: self.cwd_identity,
            programs,
            argv,
            envp: self.environment.to_envp(),
        }
    }

    /// Returns the paths to try: the program itself if it names a path, else its name in each
    /// directory of the command's `PATH`, as execvp(3) does.
    fn executable_candidates(&self, program: &CString) -> Vec<CString> {
        let name = program.as_bytes();
        if name.is_empty() || name.contains(&b'/') {
            return vec![program.clone()];
        }

        let path = self.environment.get("PATH").unwrap_or_default();
        path.split(':')
            .filter_map(|directory| {
                let directory = if directory.is_empty() { "." } else { directory };
                let mut candidate = directory.as_bytes().to_vec();
                candidate.push(b'/');
                candidate.extend_from_slice(name);
                CString::new(candidate).ok()
            })
            .collect()
    }
}

/// The arguments of a named shell. Its `$0` is `bash`, as that of a shell that a person starts.
fn named_shell_argv() -> Vec<CString> {
    let script = CString::new(main_script()).expect("the script has no NUL");
    vec![BASH.to_owned(), c"-c".to_owned(), script, c"bash".to_owned()]
}
