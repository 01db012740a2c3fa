//! Reads `events.jsonl` forwards, backwards, and by binary search.
//!
//! Written records never change, so readers need no lock while more are appended.

use std::{
    borrow::Cow,
    fs::File,
    io::{self, BufRead as _, BufReader, Read},
    ops::ControlFlow,
    os::unix::fs::FileExt as _,
};

use memchr::{memchr, memmem::Finder, memrchr};
use serde::Deserialize;

/// Bytes per read of a sequential reader.
const READ_BLOCK_BYTES: usize = 64 * 1024;
/// Bytes per read of a binary search, which then continues elsewhere: a few records.
const PROBE_BLOCK_BYTES: usize = 4096;

/// The fields of a record that identify it.
#[derive(Debug, Deserialize)]
pub(super) struct RecordHeader<'a> {
    pub(super) sequence: u64,
    /// Number of the step; 0 if the record belongs to none.
    pub(super) step: u64,
    #[serde(borrow, default)]
    pub(super) event: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) tool: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) time: Cow<'a, str>,
}

/// Reads the records of a range of a file.
pub(super) struct RecordReader<'a> {
    reader: BufReader<FileWindow<'a>>,
    position: u64,
    to: u64,
    line: Vec<u8>,
}

/// A range of a file.
struct FileWindow<'a> {
    file: &'a File,
    position: u64,
    end: u64,
}

impl<'a> RecordHeader<'a> {
    /// Returns `None` if the line is not a record.
    pub(super) fn parse(line: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }

    pub(super) fn begins_step(&self) -> bool {
        self.event == "tool_call_started" && self.step != 0
    }

    pub(super) fn ends_step(&self) -> bool {
        self.event == "tool_call_finished" && self.step != 0
    }

    pub(super) fn is_of_run(&self) -> bool {
        self.tool == "run"
    }
}

impl<'a> RecordReader<'a> {
    /// Reads the records from offset `from`, where one begins, to offset `to`, where one ends.
    pub(super) fn new(file: &'a File, from: u64, to: u64) -> Self {
        Self::with_capacity(file, from, to, to, READ_BLOCK_BYTES)
    }

    /// Reads the records that begin after any offset `from`, up to `to`. Reads small blocks, for a
    /// caller that needs only the first few. The file's last record ends at `end`.
    fn starting_after(file: &'a File, from: u64, to: u64, end: u64) -> io::Result<Self> {
        let Some(before) = from.checked_sub(1) else {
            return Ok(Self::with_capacity(file, 0, to, end, PROBE_BLOCK_BYTES));
        };

        let mut records = Self::with_capacity(file, before, to, end, PROBE_BLOCK_BYTES);
        records.next()?; // skips the rest of the record that begins earlier
        Ok(records)
    }

    fn with_capacity(file: &'a File, from: u64, to: u64, end: u64, capacity: usize) -> Self {
        let window = FileWindow { file, position: from, end };
        Self {
            reader: BufReader::with_capacity(capacity, window),
            position: from,
            to,
            line: Vec::new(),
        }
    }

    /// Returns the offset of the next record.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the next line, with its newline.
    pub(super) fn next(&mut self) -> io::Result<Option<&[u8]>> {
        self.line.clear();
        if self.position >= self.to {
            return Ok(None);
        }

        let length = self.reader.read_until(b'\n', &mut self.line)?;
        self.position += length as u64;
        Ok((length > 0).then_some(&*self.line))
    }
}

impl Read for FileWindow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let remaining = usize::try_from(self.end - self.position).unwrap_or(usize::MAX);
        let wanted = remaining.min(buffer.len());
        let length = match buffer.get_mut(..wanted) {
            Some(target) => self.file.read_at(target, self.position)?,
            None => 0,
        };
        self.position += length as u64;
        Ok(length)
    }
}

/// Returns the offset of the first record, of the first `length` bytes, for which `is_before`
/// returns false. `is_before` returns `None` for records that cannot be compared.
pub(super) fn binary_search(
    file: &File,
    length: u64,
    is_before: impl Fn(&RecordHeader<'_>) -> Option<bool>,
) -> io::Result<u64> {
    let (mut low, mut high) = (0, length);
    while low < high {
        let middle = low + (high - low) / 2;
        let mut reader = RecordReader::starting_after(file, middle, high, length)?;
        let mut before = None;
        while before.is_none() {
            let Some(line) = reader.next()? else { break };
            before = RecordHeader::parse(line).and_then(|header| is_before(&header));
        }

        match before {
            Some(true) => low = reader.position(),
            Some(false) | None => high = middle,
        }
    }
    Ok(low)
}

/// Calls `visit` with the lines of the first `length` bytes, last line first, until it breaks.
///
/// With `filter`, skips most of the lines that do not contain its needle.
pub(super) fn visit_lines_reverse(
    file: &File,
    length: u64,
    filter: Option<&Finder<'_>>,
    mut visit: impl FnMut(&[u8]) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut end = length;
    // The start of the previous block: the end of a line that begins before it.
    let mut partial_line = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(READ_BLOCK_BYTES as u64);
        let mut block = vec![0; usize::try_from(end - start).unwrap_or(READ_BLOCK_BYTES)];
        file.read_exact_at(&mut block, start)?;
        block.append(&mut partial_line);

        let first_line = match (start, memchr(b'\n', &block)) {
            (0, _) => 0,
            (_, Some(newline)) => newline + 1,
            (_, None) => block.len(),
        };
        let mut lines = block.get(first_line..).unwrap_or_default();
        // One search over all lines: many times faster than a search per line.
        if filter.is_some_and(|finder| finder.find(lines).is_none()) {
            lines = &[];
        }

        while let Some((_, before)) = lines.split_last() {
            let begin = memrchr(b'\n', before).map_or(0, |newline| newline + 1);
            let (earlier, line) = lines.split_at(begin);
            if visit(line).is_break() {
                return Ok(());
            }
            lines = earlier;
        }

        block.truncate(first_line);
        partial_line = block;
        end = start;
    }
    Ok(())
}

/// Returns the offset after the last newline of a file of `length` bytes.
pub(super) fn last_line_end(file: &File, length: u64) -> io::Result<u64> {
    let mut end = length;
    while end > 0 {
        let start = end.saturating_sub(READ_BLOCK_BYTES as u64);
        let mut block = vec![0; usize::try_from(end - start).unwrap_or(READ_BLOCK_BYTES)];
        file.read_exact_at(&mut block, start)?;
        if let Some(newline) = memrchr(b'\n', &block) {
            return Ok(start + newline as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn file(lines: &[String]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(lines.concat().as_bytes()).unwrap();
        file
    }

    fn lines(count: u64) -> Vec<String> {
        let line = |number: u64| {
            // Of all lengths, some longer than a block.
            let length = if number.is_multiple_of(97) { 200_000 } else { number * 37 % 901 };
            let text = "x".repeat(usize::try_from(length).unwrap());
            format!("{{\"sequence\":{number},\"step\":{number},\"text\":\"{text}\"}}\n")
        };
        (1..=count).map(line).collect()
    }

    #[test]
    fn lines_are_equal_in_both_directions() {
        let lines = lines(400);
        let file = file(&lines);
        let length = lines.concat().len() as u64;
        let mut records = RecordReader::new(&file, 0, length);
        for line in &lines {
            assert_eq!(records.next().unwrap(), Some(line.as_bytes()));
        }
        assert_eq!(records.next().unwrap(), None);

        let mut expected = lines.iter().rev();
        visit_lines_reverse(&file, length, None, |line| {
            assert_eq!(Some(line), expected.next().map(String::as_bytes));
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(expected.next(), None);

        for number in [1, 97, 200, 399, 400] {
            let text = format!("\"sequence\":{number},");
            let mut found = false;
            visit_lines_reverse(&file, length, Some(&Finder::new(&text)), |line| {
                found |= RecordHeader::parse(line).unwrap().sequence == number;
                ControlFlow::Continue(())
            })
            .unwrap();
            assert!(found, "{number}");
        }

        for cut in [1, 100, 300_000] {
            let ends = lines.iter().scan(0, |end, line| {
                *end += line.len() as u64;
                Some(*end)
            });
            let expected = ends.take_while(|end| *end <= length - cut).last();
            assert_eq!(last_line_end(&file, length - cut).unwrap(), expected.unwrap());
        }
        assert_eq!(last_line_end(&file, 5).unwrap(), 0);
    }

    #[test]
    fn binary_search_finds_every_record() {
        let lines = lines(400);
        let file = file(&lines);
        let length = lines.concat().len() as u64;
        let mut begins = 0;
        for (number, line) in (1..).zip(&lines) {
            let found = binary_search(&file, length, |head| Some(head.sequence < number)).unwrap();
            assert_eq!(found, begins, "{number}");
            begins += line.len() as u64;
        }
        assert_eq!(binary_search(&file, length, |_| Some(true)).unwrap(), length);
        assert_eq!(binary_search(&file, length, |_| None).unwrap(), 0);
        assert_eq!(binary_search(&file, 0, |_| Some(true)).unwrap(), 0);
    }
}
