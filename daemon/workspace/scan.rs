//! Reading lines of a file, and what is known of the whole of it.
//!
//! The file is read once, from start to end: its hash, its lines and whether it is text are of the
//! whole file, and no more of it is kept than is answered. Only the last lines of a file that is
//! too large to be kept are read a second time, once it is known where they begin.
//!
//! That takes too long for the largest files. Of those, line endings are counted up to the lines
//! that are asked for, and what is behind these is not read.

use memchr::memchr_iter;
use sha2::{Digest as _, Sha256};

use super::{cancel::CancelToken, file::RegularFile};
use crate::daemon::error::{Error, Reason};

/// Size up to which a file is read to its end, and without a range of lines.
const MAX_WHOLE_FILE_BYTES: u64 = 256 << 20;
/// Lines at the start, and at the end, of a file that has more than both together.
const HEAD_TAIL_LINES: u64 = 5000;
/// Bytes that are read at once, and between two looks at the time.
const READ_CHUNK_BYTES: usize = 128 * 1024;
/// Most bytes of a character that can be missing at the end of a chunk.
const MAX_SPLIT_CHARACTER_BYTES: usize = 3;

/// What is asked of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadOptions {
    /// First and last line, counted from 1, in this order; none for the whole file.
    pub(crate) lines: Option<(u64, u64)>,
    /// Most bytes.
    pub(crate) max_bytes: usize,
    /// Whether the file must be UTF-8, and so must what is answered of it; of a file that is not
    /// read to its end, only the latter.
    pub(crate) require_utf8: bool,
}

/// What is answered of a file.
#[derive(Debug)]
pub(crate) struct FileExcerpt {
    /// Bytes of the lines asked for.
    pub(crate) content: Vec<u8>,
    /// Whether they are fewer than were asked for.
    pub(crate) truncated: bool,
    /// Lines between the first and the last ones.
    pub(crate) omitted_lines: u64,
    /// First line, counted from 1; 0 when the file is empty.
    pub(crate) start_line: u64,
    /// Last line, counted from 1; 0 when the file is empty.
    pub(crate) end_line: u64,
    /// Size of the whole file.
    pub(crate) size: u64,
    /// What else is known of the whole file, where it was read to its end.
    pub(crate) totals: Option<FileTotals>,
}

/// What only who has read all of a file knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileTotals {
    /// Its lines.
    pub(crate) total_lines: u64,
    /// Its hash.
    pub(crate) sha256: [u8; 32],
}

/// One pass over a file.
#[derive(Debug)]
struct FileScan {
    /// First line to keep, counted from 1.
    first_line: u64,
    /// Last line to keep.
    last_line: u64,
    /// Most bytes to keep.
    max_bytes: usize,
    require_utf8: bool,
    /// The start of what was asked for.
    content: Vec<u8>,
    /// Whether more was asked for than was kept.
    truncated: bool,
    /// Hash of what was read; none where the file is not read to its end.
    hash: Option<Sha256>,
    /// Bytes so far.
    offset: u64,
    /// Line endings so far.
    line_endings: u64,
    ends_with_newline: bool,
    /// Where the last lines start, when the whole file is read.
    line_starts: Option<LineStarts>,
}

/// Where lines start: those that may be the last ones, and the one after the first ones.
#[derive(Debug)]
struct LineStarts {
    /// Start of the line with each number, counted from 0, modulo the length. A line more than
    /// needed: the one that begins where the file ends is none.
    recent_offsets: Vec<u64>,
    /// Where the first lines end.
    head_end: u64,
}

impl FileExcerpt {
    /// Reads a file.
    pub(crate) fn read(
        file: &RegularFile,
        wish: ReadOptions,
        cancel: &CancelToken,
    ) -> Result<Self, Error> {
        let path = file.path();
        if wish.lines.is_none() && file.size() > MAX_WHOLE_FILE_BYTES {
            return Err(Error::new(
                Reason::FileTooLarge,
                format!(
                    "{path:?} has {} bytes, over 256 MiB: ask for a range of lines with start_line and end_line",
                    file.size()
                ),
            )
            .with_metadata("path", path)
            .with_metadata("size_bytes", file.size().to_string()));
        }
        let mut scan = FileScan::new(wish, file.size());
        if !scan.read(file, cancel)? || !scan.is_valid_text() {
            return Err(Error::new(
                Reason::BinaryFile,
                format!("{path:?} holds bytes that are not UTF-8: for Base64 set encoding to ENCODING_BASE64"),
            )
            .with_metadata("path", path));
        }
        let (first, total) = (scan.first_line, scan.total_lines());
        if first > total.max(1) {
            return Err(Error::new(
                Reason::LineRangeInvalid,
                format!(
                    "start_line is {first}, but {path:?} has {total} lines: ask for one of those"
                ),
            )
            .with_metadata("path", path)
            .with_metadata("total_lines", total.to_string()));
        }
        scan.excerpt(file)
    }
}

impl FileScan {
    fn new(wish: ReadOptions, size: u64) -> Self {
        let (first, last) = wish.lines.unwrap_or((1, u64::MAX));
        Self {
            first_line: first,
            last_line: last,
            max_bytes: wish.max_bytes,
            require_utf8: wish.require_utf8,
            content: Vec::new(),
            truncated: false,
            hash: (size <= MAX_WHOLE_FILE_BYTES).then(Sha256::new),
            offset: 0,
            line_endings: 0,
            ends_with_newline: true,
            line_starts: wish
                .lines
                .is_none()
                .then(|| LineStarts { recent_offsets: vec![0], head_end: 0 }),
        }
    }

    /// Reads the file; false as soon as it turns out not to be the text that was asked for.
    fn read(&mut self, file: &RegularFile, cancel: &CancelToken) -> Result<bool, Error> {
        // What is appended meanwhile is not read: a file could grow for ever. Some file systems
        // give files no size; those end where they end.
        let size = match file.size() {
            0 => MAX_WHOLE_FILE_BYTES,
            size => size,
        };
        let chunk =
            usize::try_from(size).map_or(READ_CHUNK_BYTES, |size| size.min(READ_CHUNK_BYTES));
        let mut buffer = vec![0; MAX_SPLIT_CHARACTER_BYTES + chunk];
        let mut carried = 0;
        loop {
            cancel.check()?;
            let left = usize::try_from(size - self.offset).unwrap_or(usize::MAX);
            let room = &mut buffer[carried..][..chunk.min(left)];
            let read = match room.len() {
                0 => 0,
                _ => file.read_at(room, self.offset)?,
            };
            if read == 0 {
                return Ok(carried == 0);
            }
            let end = carried + read;
            self.add(&buffer[carried..end]);
            if self.hash.is_none() {
                if self.truncated || self.line_endings >= self.last_line {
                    return Ok(true);
                }
            } else if self.require_utf8 {
                carried = match str::from_utf8(&buffer[..end]) {
                    Ok(_) => 0,
                    Err(error) if error.error_len().is_some() => return Ok(false),
                    Err(error) => {
                        let incomplete = error.valid_up_to()..end;
                        let length = incomplete.len();
                        buffer.copy_within(incomplete, 0);
                        length
                    }
                };
            }
        }
    }

    /// Whether what is kept is text, where it must be, but for a last character that was cut in two.
    fn is_valid_text(&self) -> bool {
        if !self.require_utf8 || self.hash.is_some() {
            return true; // It was looked at while it was read.
        }
        let problem = str::from_utf8(&self.content).err();
        problem.is_none_or(|problem| self.truncated && problem.error_len().is_none())
    }

    fn add(&mut self, chunk: &[u8]) {
        if let Some(hash) = &mut self.hash {
            hash.update(chunk);
        }
        // Counting is much faster than looking at each line.
        let endings = self.line_endings + memchr_iter(b'\n', chunk).count() as u64;
        let is_outside = self.line_endings >= self.last_line || endings + 1 < self.first_line;
        if is_outside && self.line_starts.is_none() {
            self.line_endings = endings;
        } else {
            self.count_line_endings(chunk);
        }
        self.offset += chunk.len() as u64;
        self.ends_with_newline = chunk.last() == Some(&b'\n');
    }

    fn count_line_endings(&mut self, chunk: &[u8]) {
        let mut from = (self.line_endings + 1 >= self.first_line).then_some(0);
        let mut to = chunk.len();
        for ending in memchr_iter(b'\n', chunk) {
            self.line_endings += 1;
            if self.line_endings + 1 == self.first_line {
                from = Some(ending + 1);
            }
            if self.line_endings == self.last_line {
                to = ending + 1;
            }
            if let Some(starts) = &mut self.line_starts {
                starts.add(self.line_endings, self.offset + ending as u64 + 1);
            }
        }
        if let Some(from) = from {
            let wanted = &chunk[from..to];
            let fitting = wanted.len().min(self.max_bytes - self.content.len());
            self.content.extend_from_slice(&wanted[..fitting]);
            self.truncated |= fitting < wanted.len();
        }
    }

    fn total_lines(&self) -> u64 {
        self.line_endings + u64::from(!self.ends_with_newline)
    }

    /// What to answer, once the file was read.
    fn excerpt(self, file: &RegularFile) -> Result<FileExcerpt, Error> {
        let total = self.total_lines();
        let mut kept = self.content;
        let mut omitted_lines = 0;
        // Where the last lines begin in what is kept, and the number of the first of them.
        let mut tail = None;
        if let Some(starts) = &self.line_starts
            && total > 2 * HEAD_TAIL_LINES
        {
            omitted_lines = total - 2 * HEAD_TAIL_LINES;
            let tail_line = total - HEAD_TAIL_LINES;
            let tail_start = starts.offset_of(tail_line);
            if let Ok(head) = usize::try_from(starts.head_end)
                && head <= kept.len()
            {
                let room = self.max_bytes - head;
                let wanted = usize::try_from(self.offset - tail_start).unwrap_or(usize::MAX);
                let length = room.min(wanted);
                let bytes = match usize::try_from(tail_start) {
                    // It is there already.
                    Ok(start) if start.saturating_add(length) <= kept.len() => {
                        kept[start..start + length].to_vec()
                    }
                    _ => file.bytes_at(tail_start, length)?,
                };
                kept.truncate(head);
                kept.extend_from_slice(&bytes);
                tail = Some((head, tail_line + 1));
            }
        }
        let mut truncated = self.truncated || omitted_lines > 0;
        if self.require_utf8 {
            // It is text, so only the last character can be incomplete, unless others wrote to the
            // file meanwhile.
            let valid = str::from_utf8(&kept).map_or_else(|error| error.valid_up_to(), str::len);
            truncated |= valid < kept.len();
            kept.truncate(valid);
        }
        let (start_line, end_line) = match (total, tail) {
            (0, _) => (0, 0),
            (_, Some((head, line))) if kept.len() > head => {
                (1, line + count_lines(&kept[head..]).max(1) - 1)
            }
            _ => (self.first_line, self.first_line + count_lines(&kept).max(1) - 1),
        };
        let whole =
            self.hash.map(|hash| FileTotals { total_lines: total, sha256: hash.finalize().into() });
        Ok(FileExcerpt {
            content: kept,
            truncated,
            omitted_lines,
            start_line,
            // Read again, the end may by now have other lines.
            end_line: end_line.min(total),
            size: whole.map_or(file.size(), |_| self.offset),
            totals: whole,
        })
    }
}

impl LineStarts {
    /// The line `number`, counted from 0, starts at `offset`.
    fn add(&mut self, number: u64, offset: u64) {
        if number == HEAD_TAIL_LINES {
            self.head_end = offset;
        }
        if number <= HEAD_TAIL_LINES {
            self.recent_offsets.push(offset);
        } else {
            let slot = self.ring_index(number);
            self.recent_offsets[slot] = offset;
        }
    }

    fn offset_of(&self, number: u64) -> u64 {
        self.recent_offsets[self.ring_index(number)]
    }

    fn ring_index(&self, number: u64) -> usize {
        usize::try_from(number % (HEAD_TAIL_LINES + 1)).unwrap_or(0)
    }
}

/// Number of lines in `bytes`, with a last one that has no line ending.
pub(crate) fn count_lines(bytes: &[u8]) -> u64 {
    let unfinished = bytes.last().is_some_and(|byte| *byte != b'\n');
    memchr_iter(b'\n', bytes).count() as u64 + u64::from(unfinished)
}
