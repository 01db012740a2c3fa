//! The request that a sandbox receives: the command as execve(2) wants it, laid out by the daemon
//! so that the receiving process has nothing to compute and nothing to allocate.
//!
//! ```text
//! | header | argv: offsets, 0 | envp: offsets, 0 | cwd \0 program \0 … argument \0 … NAME=value \0 … |
//! ```

use std::ffi::CString;

/// What a command's process needs to know.
#[derive(Debug)]
pub(crate) struct Command {
    /// Absolute path of the directory to start in.
    pub(crate) cwd: CString,
    /// Paths to try to execute, in order, as execvp(3) would.
    pub(crate) programs: Vec<CString>,
    /// Arguments, the program's name first.
    pub(crate) argv: Vec<CString>,
    /// Environment, as `NAME=value`.
    pub(crate) envp: Vec<CString>,
    /// Whether a descriptor for its standard input comes with the request.
    pub(crate) has_stdin: bool,
}

/// Where things are in an image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    /// Whether to run the probe instead of a command.
    pub(super) probe: bool,
    /// Whether a descriptor for the standard input comes first.
    pub(super) has_stdin: bool,
    /// Bytes of the image.
    pub(super) length: usize,
    /// Offset of the directory's path.
    pub(super) cwd: usize,
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
}

const WORDS: usize = 10;
/// Bytes of the header; a multiple of 8, so that the lists are aligned.
pub(super) const HEADER_BYTES: usize = WORDS * 4;
const MAGIC: u32 = 0x6a69_6701;

/// Image that asks for the probe.
pub(crate) fn probe_image() -> Vec<u8> {
    let mut image = vec![0; HEADER_BYTES + 8];
    let length = u32::try_from(image.len()).expect("a header is short");
    write_header(&mut image, [MAGIC, 1, length, 0, 0, 0, 0, 0, 0, 0]);
    image
}

impl Command {
    /// Lays the command out. Answers nothing when it is larger than 4 GiB, which no kernel would
    /// execute.
    pub(crate) fn image(&self) -> Option<Vec<u8>> {
        let argv = HEADER_BYTES;
        let envp = argv + 8 * (self.argv.len() + 1);
        let cwd = envp + 8 * (self.envp.len() + 1);
        let mut image = vec![0; cwd];
        append(&mut image, &self.cwd);
        let programs = image.len();
        for program in &self.programs {
            append(&mut image, program);
        }
        for (list, strings) in [(argv, &self.argv), (envp, &self.envp)] {
            for (index, string) in strings.iter().enumerate() {
                let offset = u64::try_from(append(&mut image, string)).ok()?;
                let entry = list + 8 * index;
                image
                    .get_mut(entry..entry + 8)?
                    .copy_from_slice(&offset.to_ne_bytes());
            }
        }
        let word = |value: usize| u32::try_from(value).ok();
        let header = [
            MAGIC,
            if self.has_stdin { 2 } else { 0 },
            word(image.len())?,
            word(cwd)?,
            word(programs)?,
            word(self.programs.len())?,
            word(argv)?,
            word(self.argv.len())?,
            word(envp)?,
            word(self.envp.len())?,
        ];
        write_header(&mut image, header);
        Some(image)
    }
}

impl Header {
    /// Reads the header of `image`. Allocates nothing.
    pub(super) fn parse(image: &[u8]) -> Option<Self> {
        let mut words = [0usize; WORDS];
        for (word, bytes) in words
            .iter_mut()
            .zip(image.get(..HEADER_BYTES)?.chunks_exact(4))
        {
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
        ] = words;
        (magic == MAGIC as usize).then_some(Self {
            probe: flags & 1 != 0,
            has_stdin: flags & 2 != 0,
            length,
            cwd,
            programs,
            program_count,
            argv,
            argc,
            envp,
            envc,
        })
    }
}

fn append(image: &mut Vec<u8>, string: &CString) -> usize {
    let offset = image.len();
    image.extend_from_slice(string.as_bytes_with_nul());
    offset
}

fn write_header(image: &mut [u8], words: [u32; WORDS]) {
    for (bytes, word) in image.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
}
