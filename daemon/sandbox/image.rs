//! The request that a sandbox receives: the command as execve(2) wants it, laid out by the daemon
//! so that the receiving process has nothing to compute and nothing to allocate.
//!
//! ```text
//! | header | limits | argv: offsets, 0 | envp: offsets, 0 | cwd \0 program \0 … argument \0 … NAME=value \0 … |
//! ```

use std::ffi::CString;

use super::limits::{RLIMIT_COUNT, RunLimits};

/// What a command's process needs to know.
#[derive(Debug, Clone)]
pub(crate) struct ExecRequest {
    /// Absolute path of the directory to start in.
    pub(crate) cwd: CString,
    /// Device and inode that this directory must have, if it must be a certain one.
    pub(crate) cwd_identity: Option<(u64, u64)>,
    /// Paths to try to execute, in order, as execvp(3) would.
    pub(crate) programs: Vec<CString>,
    /// Arguments, the program's name first.
    pub(crate) argv: Vec<CString>,
    /// Environment, as `NAME=value`.
    pub(crate) envp: Vec<CString>,
}

/// What a command is connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StdioLayout {
    /// Descriptors that come with the request, in this order.
    Descriptors {
        /// Whether there is one for its standard input before those of its two outputs; without, it
        /// reads nothing.
        stdin: bool,
    },
    /// A terminal that its process makes in the sandbox.
    Terminal(TerminalSize),
}

/// Size of a terminal, in characters; of no size where nobody has said which.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TerminalSize {
    /// Characters in a line.
    pub(crate) columns: u16,
    /// Lines.
    pub(crate) rows: u16,
}

/// Where things are in an image.
#[derive(Debug, Clone, Copy)]
pub(super) struct ImageHeader {
    /// Whether to run the probe instead of a command.
    pub(super) is_probe: bool,
    /// Whether a descriptor comes first, to be written to when the command cannot be executed, and
    /// closed by its execution.
    pub(super) has_exec_pipe: bool,
    /// What the command is connected to.
    pub(super) stdio: StdioLayout,
    /// Bytes of the image.
    pub(super) length: usize,
    /// Offset of the directory's path.
    pub(super) cwd: usize,
    /// Device and inode that the directory must have, if it must be a certain one.
    pub(super) cwd_identity: Option<(u64, u64)>,
    /// Offset of the first program's path; the others follow.
    pub(super) programs: usize,
    /// How many programs there are.
    pub(super) program_count: usize,
    /// Offset of the list of arguments.
    pub(super) argv: usize,
    /// How many there are.
    pub(super) argc: usize,
    /// Offset of the list of variables.
    pub(super) envp: usize,
    /// How many there are.
    pub(super) envc: usize,
    /// Limits of the command's processes, see [`Limits::resources`].
    pub(super) rlimits: [u64; RLIMIT_COUNT],
}

/// Flags of a header.
const FLAG_PROBE: u32 = 1;
const FLAG_EXEC_PIPE: u32 = 2;
const FLAG_STDIN: u32 = 4;
const FLAG_TERMINAL: u32 = 8;
const FLAG_CWD_IDENTITY: u32 = 16;

const HEADER_WORDS: usize = 16;
/// Bytes of the header, its limits included; a multiple of 8, so that the lists are aligned.
pub(super) const HEADER_BYTES: usize = HEADER_WORDS * 4 + RLIMIT_COUNT * 8;
const IMAGE_MAGIC: u32 = 0x6a69_6704;

/// Image that asks for the probe.
pub(crate) fn probe_image() -> Vec<u8> {
    let mut image = vec![0; HEADER_BYTES + 8];
    let length = u32::try_from(image.len()).expect("a header is short");
    let mut header = [0; HEADER_WORDS];
    (header[0], header[1], header[2]) = (IMAGE_MAGIC, FLAG_PROBE, length);
    write_header(&mut image, header);
    image
}

impl ExecRequest {
    /// Lays the command out. Answers nothing when it is larger than 4 GiB, which no kernel would
    /// execute.
    pub(crate) fn to_image(
        &self,
        wiring: StdioLayout,
        has_start: bool,
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
        let word = |value: usize| u32::try_from(value).ok();
        let start = if has_start { FLAG_EXEC_PIPE } else { 0 };
        let (flags, size) = match wiring {
            StdioLayout::Descriptors { stdin: true } => (FLAG_STDIN, [0, 0]),
            StdioLayout::Descriptors { stdin: false } => (0, [0, 0]),
            StdioLayout::Terminal(TerminalSize { columns, rows }) => {
                (FLAG_TERMINAL, [columns, rows])
            }
        };
        let identity = self.cwd_identity.map_or(0, |_| FLAG_CWD_IDENTITY);
        let (device, inode) = self.cwd_identity.unwrap_or_default();
        let half = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or_default();
        let halves = |number: u64| [half(number >> 32), half(number)];
        let ([device_high, device_low], [inode_high, inode_low]) = (halves(device), halves(inode));
        let header = [
            IMAGE_MAGIC,
            flags | start | identity,
            word(image.len())?,
            word(cwd)?,
            word(programs)?,
            word(self.programs.len())?,
            word(argv)?,
            word(self.argv.len())?,
            word(envp)?,
            word(self.envp.len())?,
            u32::from(size[0]),
            u32::from(size[1]),
            device_high,
            device_low,
            inode_high,
            inode_low,
        ];
        write_header(&mut image, header);
        let resources = image.get_mut(HEADER_WORDS * 4..HEADER_BYTES)?;
        for (bytes, value) in resources.chunks_exact_mut(8).zip(limits.rlimits()) {
            bytes.copy_from_slice(&value.to_ne_bytes());
        }
        Some(image)
    }
}

impl ImageHeader {
    /// Reads the header of `image`. Allocates nothing.
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
        let mut resources = [0; RLIMIT_COUNT];
        let bytes = image.get(HEADER_WORDS * 4..HEADER_BYTES)?;
        for (resource, bytes) in resources.iter_mut().zip(bytes.chunks_exact(8)) {
            *resource = u64::from_ne_bytes(bytes.try_into().ok()?);
        }
        let is = |flag: u32| flags & flag as usize != 0;
        let wiring = if is(FLAG_TERMINAL) {
            StdioLayout::Terminal(TerminalSize {
                columns: u16::try_from(columns).ok()?,
                rows: u16::try_from(rows).ok()?,
            })
        } else {
            StdioLayout::Descriptors { stdin: is(FLAG_STDIN) }
        };
        let number = |high: usize, low: usize| (high as u64) << 32 | low as u64;
        let identity = (number(device_high, device_low), number(inode_high, inode_low));
        (magic == IMAGE_MAGIC as usize).then_some(Self {
            is_probe: is(FLAG_PROBE),
            has_exec_pipe: is(FLAG_EXEC_PIPE),
            stdio: wiring,
            length,
            cwd,
            cwd_identity: is(FLAG_CWD_IDENTITY).then_some(identity),
            programs,
            program_count,
            argv,
            argc,
            envp,
            envc,
            rlimits: resources,
        })
    }
}

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
