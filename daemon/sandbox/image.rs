//! The binary form of a command for a sandbox: the arguments of execve(2), laid out by the daemon.
//!
//! The process that receives the image shares memory with another, so it must not allocate. The
//! image therefore leaves nothing to compute except adding the base address to offsets.
//!
//! ```text
//! | header | limits | argv: offsets, 0 | envp: offsets, 0 | cwd \0 program \0 … argument \0 … NAME=value \0 … |
//! ```

use std::ffi::CString;

use super::limits::{RLIMIT_COUNT, RunLimits};

#[derive(Debug, Clone)]
pub(crate) struct ExecRequest {
    /// Absolute path of the working directory.
    pub(crate) cwd: CString,
    /// Device and inode that the working directory must have, if the call checked it before.
    pub(crate) cwd_identity: Option<(u64, u64)>,
    /// Paths to try, in order, as execvp(3) does.
    pub(crate) programs: Vec<CString>,
    /// Arguments, starting with the program's name.
    pub(crate) argv: Vec<CString>,
    /// Environment variables as `NAME=value`.
    pub(crate) envp: Vec<CString>,
}

/// The standard streams of a command, as its sandbox receives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StdioLayout {
    /// Descriptors that are sent with the request, in the order stdin, stdout, stderr.
    Descriptors {
        /// Whether a descriptor for stdin comes first. Otherwise stdin is `/dev/null`.
        stdin: bool,
    },
    /// A terminal that the command's process opens in the sandbox.
    Terminal(TerminalSize),
}

/// The numbers that the files of a named shell have in it: it reads its state from the first and writes
/// it to the second.
pub(crate) const SHELL_FILE_NUMBERS: [i32; 2] = [8, 9];

/// Size of a terminal in characters; zero if unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TerminalSize {
    pub(crate) columns: u16,
    pub(crate) rows: u16,
}

/// Header of an image: flags, and byte offsets from the start of the image.
#[derive(Debug, Clone, Copy)]
pub(super) struct ImageHeader {
    /// Whether to run the probe instead of a command.
    pub(super) is_probe: bool,
    /// Whether the first descriptor is a pipe that execve(2) closes. If execution fails, the error
    /// number is written to it.
    pub(super) has_exec_pipe: bool,
    /// Whether the next command may start in a warm shell ([`super::warm_shell`]).
    pub(super) uses_warm_shells: bool,
    /// Whether the files of a named shell come after the standard streams.
    pub(super) has_shell_files: bool,
    pub(super) stdio: StdioLayout,
    pub(super) length: usize,
    /// Offset of the working directory's path.
    pub(super) cwd: usize,
    /// Device and inode that the working directory must have, if it is checked.
    pub(super) cwd_identity: Option<(u64, u64)>,
    /// Offset of the first program's path. The other paths follow.
    pub(super) programs: usize,
    pub(super) program_count: usize,
    /// Offset of the list of argument offsets.
    pub(super) argv: usize,
    pub(super) argc: usize,
    /// Offset of the list of environment offsets.
    pub(super) envp: usize,
    pub(super) envc: usize,
    /// Limits of the command's processes, in the order of [`RunLimits::rlimits`].
    pub(super) rlimits: [u64; RLIMIT_COUNT],
}

/// Flags of an image that do not follow from its command.
#[derive(Debug, Clone, Copy)]
pub(super) struct ImageFlags {
    pub(super) has_exec_pipe: bool,
    /// Whether the next command may start in a warm shell ([`super::warm_shell`]).
    pub(super) uses_warm_shells: bool,
    /// Whether the command gets the files of a named shell.
    pub(super) has_shell_files: bool,
}

/// Flags in the header.
const FLAG_PROBE: u32 = 1;
const FLAG_EXEC_PIPE: u32 = 2;
const FLAG_STDIN: u32 = 4;
const FLAG_TERMINAL: u32 = 8;
const FLAG_CWD_IDENTITY: u32 = 16;
const FLAG_WARM_SHELLS: u32 = 32;
const FLAG_SHELL_FILES: u32 = 64;

const HEADER_WORDS: usize = 16;
/// Length of the header with its limits. A multiple of 8, so that the lists are aligned.
pub(super) const HEADER_BYTES: usize = HEADER_WORDS * 4 + RLIMIT_COUNT * 8;
const IMAGE_MAGIC: u32 = 0x6a69_6704;

pub(crate) fn probe_image() -> Vec<u8> {
    let mut image = vec![0; HEADER_BYTES + 8];
    let length = u32::try_from(image.len()).expect("a header is short");
    let mut header = [0; HEADER_WORDS];
    (header[0], header[1], header[2]) = (IMAGE_MAGIC, FLAG_PROBE, length);
    write_header(&mut image, header);
    image
}

impl ExecRequest {
    /// Lays out the command. Returns `None` above 4 GiB, which no kernel would execute.
    pub(super) fn to_image(
        &self,
        layout: StdioLayout,
        flags: ImageFlags,
        limits: &RunLimits,
    ) -> Option<Vec<u8>> {
        let argv = HEADER_BYTES;
        let envp = argv + 8 * (self.argv.len() + 1);
        let cwd = envp + 8 * (self.envp.len() + 1);
        let mut image = vec![0; cwd];

        append_string(&mut image, &self.cwd);
        let programs = image.len();
        for program in &self.programs {
            append_string(&mut image, program);
        }
        for (list, strings) in [(argv, &self.argv), (envp, &self.envp)] {
            for (index, string) in strings.iter().enumerate() {
                let offset = u64::try_from(append_string(&mut image, string)).ok()?;
                let entry = list + 8 * index;
                image.get_mut(entry..entry + 8)?.copy_from_slice(&offset.to_ne_bytes());
            }
        }

        let (stdio_flag, terminal) = match layout {
            StdioLayout::Descriptors { stdin: true } => (FLAG_STDIN, TerminalSize::default()),
            StdioLayout::Descriptors { stdin: false } => (0, TerminalSize::default()),
            StdioLayout::Terminal(size) => (FLAG_TERMINAL, size),
        };
        let exec_pipe_flag = if flags.has_exec_pipe { FLAG_EXEC_PIPE } else { 0 };
        let warm_flag = if flags.uses_warm_shells { FLAG_WARM_SHELLS } else { 0 };
        let shell_flag = if flags.has_shell_files { FLAG_SHELL_FILES } else { 0 };
        let identity_flag = if self.cwd_identity.is_some() { FLAG_CWD_IDENTITY } else { 0 };
        let (device, inode) = self.cwd_identity.unwrap_or_default();
        let ([device_high, device_low], [inode_high, inode_low]) = (halves(device), halves(inode));
        let word = |value: usize| u32::try_from(value).ok();
        let header = [
            IMAGE_MAGIC,
            stdio_flag | exec_pipe_flag | identity_flag | warm_flag | shell_flag,
            word(image.len())?,
            word(cwd)?,
            word(programs)?,
            word(self.programs.len())?,
            word(argv)?,
            word(self.argv.len())?,
            word(envp)?,
            word(self.envp.len())?,
            u32::from(terminal.columns),
            u32::from(terminal.rows),
            device_high,
            device_low,
            inode_high,
            inode_low,
        ];
        write_header(&mut image, header);

        let rlimits = image.get_mut(HEADER_WORDS * 4..HEADER_BYTES)?;
        for (bytes, value) in rlimits.chunks_exact_mut(8).zip(limits.rlimits()) {
            bytes.copy_from_slice(&value.to_ne_bytes());
        }
        Some(image)
    }
}

impl ImageHeader {
    /// Parses the header of `image`. Allocates nothing.
    pub(super) fn parse(image: &[u8]) -> Option<Self> {
        let mut words = [0usize; HEADER_WORDS];
        for (word, bytes) in words.iter_mut().zip(image.get(..HEADER_BYTES)?.chunks_exact(4)) {
            *word = u32::from_ne_bytes(bytes.try_into().ok()?) as usize;
        }
        let [
            magic,
            flags,
            length,
            cwd,
            programs,
            program_count,
            argv,
            argc,
            envp,
            envc,
            columns,
            rows,
            device_high,
            device_low,
            inode_high,
            inode_low,
        ] = words;

        let mut rlimits = [0; RLIMIT_COUNT];
        let bytes = image.get(HEADER_WORDS * 4..HEADER_BYTES)?;
        for (rlimit, bytes) in rlimits.iter_mut().zip(bytes.chunks_exact(8)) {
            *rlimit = u64::from_ne_bytes(bytes.try_into().ok()?);
        }

        let has = |flag: u32| flags & flag as usize != 0;
        let stdio = if has(FLAG_TERMINAL) {
            StdioLayout::Terminal(TerminalSize {
                columns: u16::try_from(columns).ok()?,
                rows: u16::try_from(rows).ok()?,
            })
        } else {
            StdioLayout::Descriptors { stdin: has(FLAG_STDIN) }
        };
        let number = |high: usize, low: usize| (high as u64) << 32 | low as u64;
        let identity = (number(device_high, device_low), number(inode_high, inode_low));
        (magic == IMAGE_MAGIC as usize).then_some(Self {
            is_probe: has(FLAG_PROBE),
            has_exec_pipe: has(FLAG_EXEC_PIPE),
            uses_warm_shells: has(FLAG_WARM_SHELLS),
            has_shell_files: has(FLAG_SHELL_FILES),
            stdio,
            length,
            cwd,
            cwd_identity: has(FLAG_CWD_IDENTITY).then_some(identity),
            programs,
            program_count,
            argv,
            argc,
            envp,
            envc,
            rlimits,
        })
    }
}

/// Splits a number into its high and low half.
fn halves(number: u64) -> [u32; 2] {
    let low_half = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or_default();
    [low_half(number >> 32), low_half(number)]
}

/// Appends a NUL-terminated string. Returns its offset.
fn append_string(image: &mut Vec<u8>, string: &CString) -> usize {
    let offset = image.len();
    image.extend_from_slice(string.as_bytes_with_nul());
    offset
}

fn write_header(image: &mut [u8], words: [u32; HEADER_WORDS]) {
    for (bytes, word) in image.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
}
