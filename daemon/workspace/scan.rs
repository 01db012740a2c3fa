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

use super::{file::RegularFile, stop::Stop};
use crate::daemon::error::{Error, Reason};

/// Size up to which a file is read to its end, and without a range of lines.
const LARGEST_WHOLE: u64 = 256 << 20;
/// Lines at the start, and at the end, of a file that has more than both together.
const END_LINES: u64 = 5000;
/// Bytes that are read at once, and between two looks at the time.
const CHUNK: usize = 128 * 1024;
/// Most bytes of a character that can be missing at the end of a chunk.
const CARRY: usize = 3;

/// What is asked of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    /// First and last line, counted from 1, in this order; none for the whole file.
    pub(crate) lines: Option<(u64, u64)>,
    /// Most bytes.
    pub(crate) most: usize,
    /// Whether the file must be UTF-8, and so must what is answered of it; of a file that is not
    /// read to its end, only the latter.
    pub(crate) as_text: bool,
}

/// What is answered of a file.
#[derive(Debug)]
pub(crate) struct Excerpt {
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
    pub(crate) whole: Option<Whole>,
}

/// What only who has read all of a file knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Whole {
    /// Its lines.
    pub(crate) total_lines: u64,
    /// Its hash.
    pub(crate) sha256: [u8; 32],
}

/// One pass over a file.
#[derive(Debug)]
struct Scan {
    /// First line to keep, counted from 1.
    first: u64,
    /// Last line to keep.
    last: u64,
    /// Most bytes to keep.
    most: usize,
    as_text: bool,
    /// The start of what was asked for.
    kept: Vec<u8>,
    /// Whether more was asked for than was kept.
    cut: bool,
    /// Hash of what was read; none where the file is not read to its end.
    hash: Option<Sha256>,
    /// Bytes so far.
    offset: u64,
    /// Line endings so far.
    endings: u64,
    ends_with_ending: bool,
    /// Where the last lines start, when the whole file is read.
    starts: Option<Starts>,
}

/// Where lines start: those that may be the last ones, and the one after the first ones.
#[derive(Debug)]
struct Starts {
    /// Start of the line with each number, counted from 0, modulo the length. A line more than
    /// needed: the one that begins where the file ends is none.
    recent: Vec<u64>,
    /// Where the first lines end.
    head: u64,
}

impl Excerpt {
    /// Reads a file.
    pub(crate) fn read(file: &RegularFile, wish: Wish, stop: &Stop) -> Result<Self, Error> {
        let path = file.path();
        if wish.lines.is_none() && file.size() > LARGEST_WHOLE {
            return Err(Error::new(
                Reason::FileTooLarge,
                format!(
                    "{path:?} has {} bytes, over 256 MiB: ask for a range of lines with start_line and end_line",
                    file.size()
                ),
            )
            .with("path", path)
            .with("size_bytes", file.size().to_string()));
        }
        let mut scan = Scan::new(wish, file.size());
        if !scan.read(file, stop)? || !scan.keeps_text() {
            return Err(Error::new(
                Reason::BinaryFile,
                format!("{path:?} holds bytes that are not UTF-8: for Base64 set encoding to ENCODING_BASE64"),
            )
            .with("path", path));
        }
        let (first, total) = (scan.first, scan.total_lines());
        if first > total.max(1) {
            return Err(Error::new(
                Reason::LineRangeInvalid,
                format!(
                    "start_line is {first}, but {path:?} has {total} lines: ask for one of those"
                ),
            )
            .with("path", path)
            .with("total_lines", total.to_string()));
        }
        scan.excerpt(file)
    }
}

impl Scan {
    fn new(wish: Wish, size: u64) -> Self {
        let (first, last) = wish.lines.unwrap_or((1, u64::MAX));
        Self {
            first,
            last,
            most: wish.most,
            as_text: wish.as_text,
            kept: Vec::new(),
            cut: false,
            hash: (size <= LARGEST_WHOLE).then(Sha256::new),
            offset: 0,
            endings: 0,
            ends_with_ending: true,
            starts: wish.lines.is_none().then(|| Starts { recent: vec![0], head: 0 }),
        }
    }

    /// Reads the file; false as soon as it turns out not to be the text that was asked for.
    fn read(&mut self, file: &RegularFile, stop: &Stop) -> Result<bool, Error> {
        // What is appended meanwhile is not read: a file could grow for ever. Some file systems
        // give files no size; those end where they end.
        let size = match file.size() {
            0 => LARGEST_WHOLE,
            size => size,
        };
        let chunk = usize::try_from(size).map_or(CHUNK, |size| size.min(CHUNK));
        let mut buffer = vec![0; CARRY + chunk];
        let mut carried = 0;
        loop {
            stop.check()?;
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
                if self.cut || self.endings >= self.last {
                    return Ok(true);
                }
            } else if self.as_text {
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
    fn keeps_text(&self) -> bool {
        if !self.as_text || self.hash.is_some() {
            return true; // It was looked at while it was read.
        }
        let problem = str::from_utf8(&self.kept).err();
        problem.is_none_or(|problem| self.cut && problem.error_len().is_none())
    }

    fn add(&mut self, chunk: &[u8]) {
        if let Some(hash) = &mut self.hash {
            hash.update(chunk);
        }
        // Counting is much faster than looking at each line.
        let endings = self.endings + memchr_iter(b'\n', chunk).count() as u64;
        let is_outside = self.endings >= self.last || endings + 1 < self.first;
        if is_outside && self.starts.is_none() {
            self.endings = endings;
        } else {
            self.add_lines(chunk);
        }
        self.offset += chunk.len() as u64;
        self.ends_with_ending = chunk.last() == Some(&b'\n');
    }

    fn add_lines(&mut self, chunk: &[u8]) {
        let mut from = (self.endings + 1 >= self.first).then_some(0);
        let mut to = chunk.len();
        for ending in memchr_iter(b'\n', chunk) {
            self.endings += 1;
            if self.endings + 1 == self.first {
                from = Some(ending + 1);
            }
            if self.endings == self.last {
                to = ending + 1;
            }
            if let Some(starts) = &mut self.starts {
                starts.add(self.endings, self.offset + ending as u64 + 1);
            }
        }
        if let Some(from) = from {
            let wanted = &chunk[from..to];
            let fitting = wanted.len().min(self.most - self.kept.len());
            self.kept.extend_from_slice(&wanted[..fitting]);
            self.cut |= fitting < wanted.len();
        }
    }

    fn total_lines(&self) -> u64 {
        self.endings + u64::from(!self.ends_with_ending)
    }

    /// What to answer, once the file was read.
    fn excerpt(self, file: &RegularFile) -> Result<Excerpt, Error> {
        let total = self.total_lines();
        let mut kept = self.kept;
        let mut omitted_lines = 0;
        // Where the last lines begin in what is kept, and the number of the first of them.
        let mut tail = None;
        if let Some(starts) = &self.starts
            && total > 2 * END_LINES
        {
            omitted_lines = total - 2 * END_LINES;
            let tail_line = total - END_LINES;
            let tail_start = starts.of(tail_line);
            if let Ok(head) = usize::try_from(starts.head)
                && head <= kept.len()
            {
                let room = self.most - head;
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
        let mut truncated = self.cut || omitted_lines > 0;
        if self.as_text {
            // It is text, so only the last character can be incomplete, unless others wrote to the
            // file meanwhile.
            let valid = str::from_utf8(&kept).map_or_else(|error| error.valid_up_to(), str::len);
            truncated |= valid < kept.len();
            kept.truncate(valid);
        }
        let (start_line, end_line) = match (total, tail) {
            (0, _) => (0, 0),
            (_, Some((head, line))) if kept.len() > head => {
                (1, line + lines_in(&kept[head..]).max(1) - 1)
            }
            _ => (self.first, self.first + lines_in(&kept).max(1) - 1),
        };
        let whole =
            self.hash.map(|hash| Whole { total_lines: total, sha256: hash.finalize().into() });
        Ok(Excerpt {
            content: kept,
            truncated,
            omitted_lines,
            start_line,
            // Read again, the end may by now have other lines.
            end_line: end_line.min(total),
            size: whole.map_or(file.size(), |_| self.offset),
            whole,
        })
    }
}

impl Starts {
    /// The line `number`, counted from 0, starts at `offset`.
    fn add(&mut self, number: u64, offset: u64) {
        if number == END_LINES {
            self.head = offset;
        }
        if number <= END_LINES {
            self.recent.push(offset);
        } else {
            let slot = self.slot(number);
            self.recent[slot] = offset;
        }
    }

    fn of(&self, number: u64) -> u64 {
        self.recent[self.slot(number)]
    }

    fn slot(&self, number: u64) -> usize {
        usize::try_from(number % (END_LINES + 1)).unwrap_or(0)
    }
}

fn lines_in(bytes: &[u8]) -> u64 {
    let unfinished = bytes.last().is_some_and(|byte| *byte != b'\n');
    memchr_iter(b'\n', bytes).count() as u64 + u64::from(unfinished)
}
