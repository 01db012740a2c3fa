//! Reads lines of a file, and facts about the whole file: its hash, and the number of its lines.
//!
//! The file is read once, from start to end. Hash, line count and UTF-8 check cover the whole file,
//! but only the requested content is held in memory. The last lines of a file that is too large for
//! that are read a second time, once their position is known.
//!
//! Files above [`MAX_WHOLE_FILE_BYTES`] are read only up to the end of the requested lines.

use memchr::memchr_iter;
use sha2::{Digest as _, Sha256};

use super::{cancel::CancelToken, file::RegularFile};
use crate::daemon::{
    error::{Error, Reason},
    text::count_lines,
};

/// Size of a file that is read to its end, and of one that can be read without a range of lines.
const MAX_WHOLE_FILE_BYTES: u64 = 256 << 20;
/// Lines returned from the start, and from the end, of a file with more than both together.
const MAX_HEAD_OR_TAIL_LINES: u64 = 5000;
/// Bytes read at once, between two cancellation checks.
const READ_CHUNK_BYTES: usize = 128 * 1024;
/// Bytes of a UTF-8 character that can lie in the chunk before its last byte.
const MAX_SPLIT_CHARACTER_BYTES: usize = 3;

/// What to read of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadOptions {
    /// First and last line, counted from 1. `None` for the whole file.
    pub(crate) lines: Option<(u64, u64)>,
    /// Limit for the returned content.
    pub(crate) max_bytes: usize,
    /// Whether the file must be UTF-8. Of a file that is not read to its end, only the returned
    /// content must be.
    pub(crate) require_utf8: bool,
}

/// Lines of a file.
#[derive(Debug)]
pub(crate) struct FileExcerpt {
    pub(crate) content: Vec<u8>,
    /// Whether the content is less than was requested.
    pub(crate) truncated: bool,
    /// Lines omitted between the first and the last ones.
    pub(crate) omitted_lines: u64,
    /// First line, counted from 1. 0 for an empty file.
    pub(crate) start_line: u64,
    /// Last line, counted from 1. 0 for an empty file.
    pub(crate) end_line: u64,
    /// Size of the whole file.
    pub(crate) size: u64,
    /// `None` if the file was not read to its end.
    pub(crate) totals: Option<FileTotals>,
}

/// Facts about a whole file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileTotals {
    pub(crate) total_lines: u64,
    pub(crate) sha256: [u8; 32],
}

/// One pass over a file.
#[derive(Debug)]
struct FileScan {
    /// First requested line, counted from 1.
    first_line: u64,
    /// Last requested line.
    last_line: u64,
    /// Limit for `content`.
    max_bytes: usize,
    require_utf8: bool,
    /// The requested content, up to the limit.
    content: Vec<u8>,
    /// Whether the requested content exceeds the limit.
    truncated: bool,
    /// Hash of the bytes read so far. `None` if the file is not read to its end.
    hash: Option<Sha256>,
    /// Bytes read so far.
    offset: u64,
    /// Newlines read so far.
    line_endings: u64,
    ends_with_newline: bool,
    /// Starts of the last lines. `None` if a range of lines is requested.
    line_starts: Option<LineStarts>,
}

/// Starts of the most recent lines, and the end of the first ones.
#[derive(Debug)]
struct LineStarts {
    /// Ring buffer of line starts. It has one more slot than lines are needed: the line that begins
    /// at the end of the file is none.
    recent_offsets: Vec<u64>,
    /// End of the first [`MAX_HEAD_OR_TAIL_LINES`] lines.
    head_end: u64,
}

impl FileExcerpt {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// If the file is too large to be read whole, is not UTF-8 but must be, or has no such line.
    pub(crate) fn read(
        file: &RegularFile,
        options: ReadOptions,
        cancel: &CancelToken,
    ) -> Result<Self, Error> {
        let path = file.path();
        if options.lines.is_none() && file.size() > MAX_WHOLE_FILE_BYTES {
            return Err(Error::new(
                Reason::FileTooLarge,
                format!(
                    "{path:?} has {} bytes, over 256 MiB: request a range of lines with start_line and end_line",
                    file.size()
                ),
            )
            .with_metadata("path", path)
            .with_metadata("size_bytes", file.size().to_string()));
        }

        let mut scan = FileScan::new(options, file.size());
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
    fn new(options: ReadOptions, size: u64) -> Self {
        let (first, last) = options.lines.unwrap_or((1, u64::MAX));
        Self {
            first_line: first,
            last_line: last,
            max_bytes: options.max_bytes,
            require_utf8: options.require_utf8,
            content: Vec::new(),
            truncated: false,
            hash: (size <= MAX_WHOLE_FILE_BYTES).then(Sha256::new),
            offset: 0,
            line_endings: 0,
            ends_with_newline: true,
            line_starts: options
                .lines
                .is_none()
                .then(|| LineStarts { recent_offsets: vec![0], head_end: 0 }),
        }
    }

    /// Reads the file. Returns false as soon as it is found not to be UTF-8 although it must be.
    fn read(&mut self, file: &RegularFile, cancel: &CancelToken) -> Result<bool, Error> {
        // Bytes that are appended during the scan are not read, so that the loop ends. Some file
        // systems report no size: their files are read to the end.
        let size = match file.size() {
            0 => MAX_WHOLE_FILE_BYTES,
            size => size,
        };

        let chunk =
            usize::try_from(size).map_or(READ_CHUNK_BYTES, |size| size.min(READ_CHUNK_BYTES));
        let mut buffer = vec![0; MAX_SPLIT_CHARACTER_BYTES + chunk];
        let mut carried_bytes = 0;

        loop {
            cancel.check()?;
            let remaining = usize::try_from(size - self.offset).unwrap_or(usize::MAX);
            let target = &mut buffer[carried_bytes..][..chunk.min(remaining)];
            let read = if target.is_empty() { 0 } else { file.read_at(target, self.offset)? };
            if read == 0 {
                return Ok(carried_bytes == 0);
            }

            let end = carried_bytes + read;
            self.add(&buffer[carried_bytes..end]);
            if self.hash.is_none() {
                if self.truncated || self.line_endings >= self.last_line {
                    return Ok(true);
                }
            } else if self.require_utf8 {
                carried_bytes = match str::from_utf8(&buffer[..end]) {
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

    /// Whether the content is UTF-8, if it must be, except for a last character cut at the limit.
    fn is_valid_text(&self) -> bool {
        if !self.require_utf8 || self.hash.is_some() {
            return true; // checked while reading
        }
        let problem = str::from_utf8(&self.content).err();
        problem.is_none_or(|problem| self.truncated && problem.error_len().is_none())
    }

    fn add(&mut self, chunk: &[u8]) {
        if let Some(hash) = &mut self.hash {
            hash.update(chunk);
        }
        // Counting newlines is much faster than locating each.
        let line_endings = self.line_endings + memchr_iter(b'\n', chunk).count() as u64;
        let is_outside = self.line_endings >= self.last_line || line_endings + 1 < self.first_line;
        if is_outside && self.line_starts.is_none() {
            self.line_endings = line_endings;
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
            let requested = &chunk[from..to];
            let fitting = requested.len().min(self.max_bytes - self.content.len());
            self.content.extend_from_slice(&requested[..fitting]);
            self.truncated |= fitting < requested.len();
        }
    }

    fn total_lines(&self) -> u64 {
        self.line_endings + u64::from(!self.ends_with_newline)
    }

    /// Assembles the excerpt, after the file was read.
    fn excerpt(mut self, file: &RegularFile) -> Result<FileExcerpt, Error> {
        let total = self.total_lines();
        let is_whole = self.line_starts.is_some();
        let omitted_lines =
            if is_whole { total.saturating_sub(2 * MAX_HEAD_OR_TAIL_LINES) } else { 0 };
        let tail = if omitted_lines > 0 { self.append_tail(file, total)? } else { None };

        let mut content = self.content;
        let mut truncated = self.truncated || omitted_lines > 0;
        if self.require_utf8 {
            // The file is UTF-8, so only the last character can be incomplete, unless the file was
            // written in the meantime.
            let valid = str::from_utf8(&content).map_or_else(|error| error.valid_up_to(), str::len);
            truncated |= valid < content.len();
            content.truncate(valid);
        }

        let (start_line, end_line) = match (total, tail) {
            (0, _) => (0, 0),
            (_, Some((head, line))) if content.len() > head => {
                (1, line + count_lines(&content[head..]).max(1) as u64 - 1)
            }
            _ => (self.first_line, self.first_line + count_lines(&content).max(1) as u64 - 1),
        };
        let totals =
            self.hash.map(|hash| FileTotals { total_lines: total, sha256: hash.finalize().into() });
        Ok(FileExcerpt {
            content,
            truncated,
            omitted_lines,
            start_line,
            // The tail may have been read again, with other lines.
            end_line: end_line.min(total),
            size: totals.map_or(file.size(), |_| self.offset),
            totals,
        })
    }

    /// Replaces everything after the first lines by the last lines, in a whole file with lines
    /// between them. Returns the end of the first lines in `content`, and the number of the first
    /// of the last lines. `None` if even the first lines exceed the limit.
    fn append_tail(
        &mut self,
        file: &RegularFile,
        total: u64,
    ) -> Result<Option<(usize, u64)>, Error> {
        let Some(starts) = &self.line_starts else {
            return Ok(None);
        };
        let tail_line = total - MAX_HEAD_OR_TAIL_LINES;
        let tail_start = starts.offset_of(tail_line);
        let Some(head) =
            usize::try_from(starts.head_end).ok().filter(|head| *head <= self.content.len())
        else {
            return Ok(None);
        };

        let requested = usize::try_from(self.offset - tail_start).unwrap_or(usize::MAX);
        let length = requested.min(self.max_bytes - head);
        let bytes = match usize::try_from(tail_start) {
            // The content contains the tail already.
            Ok(start) if start.saturating_add(length) <= self.content.len() => {
                self.content[start..start + length].to_vec()
            }
            _ => file.bytes_at(tail_start, length)?,
        };
        self.content.truncate(head);
        self.content.extend_from_slice(&bytes);
        Ok(Some((head, tail_line + 1)))
    }
}

impl LineStarts {
    /// Records the start of a line, counted from 0.
    fn add(&mut self, number: u64, offset: u64) {
        if number == MAX_HEAD_OR_TAIL_LINES {
            self.head_end = offset;
        }
        if number <= MAX_HEAD_OR_TAIL_LINES {
            self.recent_offsets.push(offset);
        } else {
            let index = self.ring_index(number);
            self.recent_offsets[index] = offset;
        }
    }

    fn offset_of(&self, number: u64) -> u64 {
        self.recent_offsets[self.ring_index(number)]
    }

    fn ring_index(&self, number: u64) -> usize {
        usize::try_from(number % (MAX_HEAD_OR_TAIL_LINES + 1)).unwrap_or(0)
    }
}
