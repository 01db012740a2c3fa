//! Reading `events.jsonl`: forwards, backwards, and finding a place in it by halving. What has been
//! written is never written again, so that all of it can be read while more is appended.

use std::{
    borrow::Cow,
    fs::File,
    io::{self, BufRead as _, BufReader, Read},
    ops::ControlFlow,
    os::unix::fs::FileExt as _,
};

use memchr::{memchr, memmem::Finder, memrchr};
use serde::Deserialize;

/// Bytes that are read at a time.
const READ_BLOCK_BYTES: usize = 64 * 1024;
/// Bytes that are read at a time where the next place is elsewhere: a few records.
const PROBE_BLOCK_BYTES: usize = 4096;

/// What of a record says where it belongs.
#[derive(Debug, Deserialize)]
pub(super) struct RecordHeader<'a> {
    /// Its number.
    pub(super) sequence: u64,
    /// The step that it is about.
    pub(super) step: u64,
    /// What happened.
    #[serde(borrow, default)]
    pub(super) event: Cow<'a, str>,
    /// Of which tool the step is a call.
    #[serde(borrow, default)]
    pub(super) tool: Cow<'a, str>,
    /// When it happened.
    #[serde(borrow, default)]
    pub(super) time: Cow<'a, str>,
}

/// Records from one place to another.
pub(super) struct RecordReader<'a> {
    reader: BufReader<FileWindow<'a>>,
    position: u64,
    to: u64,
    line: Vec<u8>,
}

/// A part of a file.
struct FileWindow<'a> {
    file: &'a File,
    position: u64,
    end: u64,
}

impl<'a> RecordHeader<'a> {
    /// That of a record, if it is one.
    pub(super) fn parse(line: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }

    /// Whether it is the first record of its step.
    pub(super) fn begins_step(&self) -> bool {
        self.event == "tool_call_started" && self.step != 0
    }

    /// Whether it is the last record of its step.
    pub(super) fn ends_step(&self) -> bool {
        self.event == "tool_call_finished" && self.step != 0
    }

    /// Whether the step is a command.
    pub(super) fn is_of_run(&self) -> bool {
        self.tool == "run"
    }
}

impl<'a> RecordReader<'a> {
    /// The records of `file` that begin at `from`, where one begins, and before `to`, where one ends.
    pub(super) fn new(file: &'a File, from: u64, to: u64) -> Self {
        Self::with_capacity(file, from, to, to, READ_BLOCK_BYTES)
    }

    /// Those that begin behind `from`, wherever that is, and before `to`, of which only the first few
    /// are wanted. The file's last one ends at `end`.
    fn starting_after(file: &'a File, from: u64, to: u64, end: u64) -> io::Result<Self> {
        let Some(before) = from.checked_sub(1) else {
            return Ok(Self::with_capacity(file, 0, to, end, PROBE_BLOCK_BYTES));
        };
        let mut records = Self::with_capacity(file, before, to, end, PROBE_BLOCK_BYTES);
        records.next()?; // the rest of the one that begins earlier
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

    /// Where the next one begins.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The next line, with its end.
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
        let left = usize::try_from(self.end - self.position).unwrap_or(usize::MAX);
        let wanted = left.min(buffer.len());
        let length = match buffer.get_mut(..wanted) {
            Some(room) => self.file.read_at(room, self.position)?,
            None => 0,
        };
        self.position += length as u64;
        Ok(length)
    }
}

/// Finds, of the first `length` bytes, where the first record begins that is not before what is looked
/// for, by halving. `is_before` answers nothing for records that do not say.
pub(super) fn binary_search(
    file: &File,
    length: u64,
    is_before: impl Fn(&RecordHeader<'_>) -> Option<bool>,
) -> io::Result<u64> {
    let (mut low, mut high) = (0, length);
    while low < high {
        let middle = low + (high - low) / 2;
        let mut records = RecordReader::starting_after(file, middle, high, length)?;
        let mut before = None;
        while before.is_none() {
            let Some(line) = records.next()? else { break };
            before = RecordHeader::parse(line).and_then(|head| is_before(&head));
        }
        match before {
            Some(true) => low = records.position(),
            Some(false) | None => high = middle,
        }
    }
    Ok(low)
}

/// Shows the lines of the first `length` bytes to `visit`, the last one first, until that has seen
/// enough. Where only lines that hold something count, most of the others are not shown.
pub(super) fn visit_lines_reverse(
    file: &File,
    length: u64,
    holding: Option<&Finder<'_>>,
    mut visit: impl FnMut(&[u8]) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut end = length;
    // The beginning of what was read, which is the end of a line that begins before it.
    let mut rest = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(READ_BLOCK_BYTES as u64);
        let mut block = vec![0; usize::try_from(end - start).unwrap_or(READ_BLOCK_BYTES)];
        file.read_exact_at(&mut block, start)?;
        block.append(&mut rest);
        let first = match (start, memchr(b'\n', &block)) {
            (0, _) => 0,
            (_, Some(newline)) => newline + 1,
            (_, None) => block.len(),
        };
        let mut lines = block.get(first..).unwrap_or_default();
        // Looked for once in all of them: that is many times faster than line by line.
        if holding.is_some_and(|what| what.find(lines).is_none()) {
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
        block.truncate(first);
        rest = block;
        end = start;
    }
    Ok(())
}

/// Finds where the last line of a file of `length` bytes ends.
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

    /// A file of such lines.
    fn file(lines: &[String]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(lines.concat().as_bytes()).unwrap();
        file
    }

    fn lines(count: u64) -> Vec<String> {
        let line = |number: u64| {
            // Of all lengths, some of them longer than what is read at a time.
            let length = if number.is_multiple_of(97) { 200_000 } else { number * 37 % 901 };
            let text = "x".repeat(usize::try_from(length).unwrap());
            format!("{{\"sequence\":{number},\"step\":{number},\"text\":\"{text}\"}}\n")
        };
        (1..=count).map(line).collect()
    }

    #[test]
    fn lines_come_backwards_as_they_come_forwards() {
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
    fn every_record_is_found() {
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
