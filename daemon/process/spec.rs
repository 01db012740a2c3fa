//! What a command is: types that cannot hold what could not be executed.

use std::{
    ffi::{CStr, CString},
    path::Path,
    sync::LazyLock,
    time::Duration,
};

use bytes::Bytes;

use super::environment::CommandEnvironment;
use crate::daemon::{
    error::Violation,
    sandbox::{
        image::{ExecRequest, TerminalSize},
        limits::RunLimits,
    },
};

/// Most bytes that arguments and environment may take together, pointers included: a quarter of the
/// stack limit of 8 MiB (execve(2)), less room for what the kernel puts there itself and for the
/// caller's trace context and baggage, which come out of 16 KiB of metadata.
const MAX_EXEC_BYTES: usize = (2 << 20) - (64 << 10);

/// Longest command or directory that is shown, in bytes: a list of two thousand fits into a message.
const MAX_DISPLAY_BYTES: usize = 512;
/// Longest name of a program that is told, in characters: that of a file (NAME_MAX).
const MAX_PROGRAM_NAME_CHARS: usize = 255;

/// The program and its arguments.
#[derive(Debug, Clone)]
pub(crate) enum Program {
    /// A text for `/bin/sh -c`.
    Shell(CString),
    /// A text for the shell that users log in with: bash, or `/bin/sh` where there is none.
    DefaultShell(CString),
    /// A program and its arguments; never empty.
    Argv(Vec<CString>),
}

/// A command to be run.
#[derive(Debug, Clone)]
pub(crate) struct CommandSpec {
    /// What is executed.
    pub(crate) program: Program,
    /// Absolute path, inside the sandbox, of the directory to start in.
    pub(crate) cwd: CString,
    /// Device and inode that this directory must have, where somebody approved it.
    pub(crate) cwd_identity: Option<(u64, u64)>,
    /// Its environment.
    pub(crate) environment: CommandEnvironment,
    /// What it reads.
    pub(crate) stdin: StdinSource,
    /// Size of the terminal that it gets instead of pipes, if it is to get one.
    pub(crate) terminal: Option<TerminalSize>,
    /// How long it may take; nothing for as long as it wants.
    pub(crate) timeout: Option<Duration>,
    /// Its limits.
    pub(crate) limits: RunLimits,
    /// Most bytes of each stream that the answer holds.
    pub(crate) max_inline_bytes: usize,
}

/// What a command reads.
#[derive(Debug, Clone)]
pub(crate) enum StdinSource {
    /// These bytes, and then the end.
    Bytes(Bytes),
    /// What it is fed while it runs.
    Streamed,
}

/// The shell that users log in with. Sandboxes have the programs of the host.
pub(crate) fn default_shell() -> &'static CStr {
    static SHELL: LazyLock<&CStr> = LazyLock::new(|| match Path::new("/bin/bash").exists() {
        true => c"/bin/bash",
        false => c"/bin/sh",
    });
    &SHELL
}

impl Program {
    /// What is wrong with a program that no kernel would execute in `environment`, whatever it is.
    pub(crate) fn size_violation(&self, environment: &CommandEnvironment) -> Option<Violation> {
        let strings = self.argv().into_iter().chain(environment.to_envp());
        let bytes: usize =
            strings.map(|string| string.as_bytes_with_nul().len() + size_of::<usize>()).sum();
        let field = match self {
            Self::Shell(_) | Self::DefaultShell(_) => "command",
            Self::Argv(_) => "argv",
        };
        (bytes > MAX_EXEC_BYTES).then(|| Violation {
            field: field.to_owned(),
            description: format!(
                "with the environment it takes {bytes} bytes; the kernel executes at most {MAX_EXEC_BYTES}: pass large input through stdin or a file"
            ),
        })
    }

    /// The arguments, the program's name first.
    fn argv(&self) -> Vec<CString> {
        match self {
            Self::Shell(text) => vec![c"/bin/sh".to_owned(), c"-c".to_owned(), text.clone()],
            Self::DefaultShell(text) => {
                vec![default_shell().to_owned(), c"-c".to_owned(), text.clone()]
            }
            Self::Argv(argv) => argv.clone(),
        }
    }

    /// What is executed, for people: the text, or the arguments with spaces between them.
    pub(crate) fn display(&self) -> String {
        let text = match self {
            Self::Shell(text) | Self::DefaultShell(text) => text.to_string_lossy().into_owned(),
            Self::Argv(argv) => {
                let words: Vec<_> = argv.iter().map(|word| word.to_string_lossy()).collect();
                words.join(" ")
            }
        };
        truncate_for_display(&text)
    }

    /// Name of the program, for people: `sh` for a shell's text.
    pub(crate) fn name(&self) -> String {
        let program = match self {
            Self::Shell(_) => return "sh".to_owned(),
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

/// A text for people, not longer than such are.
pub(crate) fn truncate_for_display(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_DISPLAY_BYTES);
    text.get(..end).unwrap_or_default().to_owned()
}

impl CommandSpec {
    /// The command as the sandbox receives it.
    pub(crate) fn exec_request(&self) -> ExecRequest {
        let argv = self.program.argv();
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

    /// Where the program may lie: itself if it names a path, else in each directory of the
    /// command's `PATH`, as execvp(3) looks.
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
