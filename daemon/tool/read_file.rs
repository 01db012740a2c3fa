//! `read_file`: a file of the workspace, whole or by lines.
//!
//! The file is read once, from start to end, whatever its size: its hash, its lines and whether it is text are of the whole file, and no more of it is
//! kept than is answered. Only the last lines of a file that is too large to be kept are read a second time, once it is known where they begin.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use memchr::memchr_iter;
use sha2::{Digest as _, Sha256};

use super::{Done, Scene, Tool, Work, on_files};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Reason, Violation},
        workspace::{RegularFile, Stop, Workspace},
    },
};

/// Bytes to answer with when a request says nothing about it.
const DEFAULT_BYTES: u32 = 3 << 20;
/// Size up to which a file is read without a range of lines.
const LARGEST_WHOLE: u64 = 256 << 20;
/// Lines at the start, and at the end, of a file that has more than both together.
const END_LINES: u64 = 5000;
/// Bytes that are read at once, and between two looks at the time.
const CHUNK: usize = 128 * 1024;
/// Most bytes of a character that can be missing at the end of a chunk.
const CARRY: usize = 3;

/// The tool.
#[derive(Debug)]
pub(crate) struct ReadFile;

impl Tool for ReadFile {
    const NAME: &'static str = "read_file";
    type Request = v1::ReadFileRequest;
    type Response = v1::ReadFileResponse;
    type Params = v1::ReadFileRequest;

    fn check(
        request: Self::Request,
        _: &Scene,
        _: &mut Vec<Violation>,
    ) -> Result<Option<Self::Params>, Error> {
        Ok(Some(request))
    }

    async fn execute(request: Self::Request, work: Work) -> Result<Done<Self::Response>, Error> {
        on_files(work, move |workspace, stop| {
            read_file(workspace, request, stop)
        })
        .await
    }
}

/// Reads a file.
fn read_file(
    workspace: &Workspace,
    request: v1::ReadFileRequest,
    stop: &Stop,
) -> Result<v1::ReadFileResponse, Error> {
    let lines = lines(&request)?;
    let as_text = match request
        .encoding
        .map_or(Ok(v1::Encoding::Unspecified), v1::Encoding::try_from)
    {
        Ok(v1::Encoding::Unspecified | v1::Encoding::Utf8) => true,
        Ok(v1::Encoding::Base64) => false,
        Err(_unknown) => {
            let problem = "must be ENCODING_UTF8 or ENCODING_BASE64";
            return Err(Error::invalid_field("encoding", problem));
        }
    };
    let most = request.max_bytes.unwrap_or(DEFAULT_BYTES).max(1);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let path = workspace.resolve(&request.path)?;
    let file = workspace.open_file(&path)?;
    let path = path.as_str();
    if lines.is_none() && file.size() > LARGEST_WHOLE {
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

    let mut scan = Scan::new(lines, most, as_text);
    if !scan.read(&file, stop)? {
        return Err(Error::new(
            Reason::BinaryFile,
            format!("{path:?} holds bytes that are not UTF-8: ask for ENCODING_BASE64"),
        )
        .with("path", path));
    }
    let total = scan.total_lines();
    let first = scan.first;
    if first > total.max(1) {
        return Err(Error::new(
            Reason::LineRangeInvalid,
            format!("start_line is {first}, but {path:?} has {total} lines: ask for one of those"),
        )
        .with("path", path)
        .with("total_lines", total.to_string()));
    }
    let excerpt = scan.excerpt(&file)?;
    let sha256 = scan.hash.finalize();
    Ok(v1::ReadFileResponse {
        content: excerpt.content,
        encoding: match as_text {
            true => v1::Encoding::Utf8,
            false => v1::Encoding::Base64,
        }
        .into(),
        truncated: excerpt.truncated,
        omitted_lines: clamped(excerpt.omitted_lines),
        total_lines: clamped(total),
        start_line: clamped(excerpt.start_line),
        end_line: clamped(excerpt.end_line),
        size_bytes: scan.offset,
        sha256: sha256.iter().map(|byte| format!("{byte:02x}")).collect(),
    })
}

/// First and last line to read, counted from 1; none for the whole file.
fn lines(request: &v1::ReadFileRequest) -> Result<Option<(u64, u64)>, Error> {
    if request.start_line.is_none() && request.end_line.is_none() {
        return Ok(None);
    }
    let first = request.start_line.unwrap_or(1).max(1);
    let last = request.end_line.map_or(u64::MAX, u64::from);
    if last < u64::from(first) {
        return Err(Error::invalid_field(
            "end_line",
            format!("must not be before start_line, which is {first}"),
        ));
    }
    Ok(Some((first.into(), last)))
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
    hash: Sha256,
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
    /// Start of the line with each number, counted from 0, modulo the length. A line more than needed: the one that begins where the file ends is none.
    recent: Vec<u64>,
    /// Where the first lines end.
    head: u64,
}

/// What is answered of a file.
#[derive(Debug)]
struct Excerpt {
    content: String,
    truncated: bool,
    omitted_lines: u64,
    start_line: u64,
    end_line: u64,
}

impl Scan {
    fn new(lines: Option<(u64, u64)>, most: usize, as_text: bool) -> Self {
        let (first, last) = lines.unwrap_or((1, u64::MAX));
        Self {
            first,
            last,
            most,
            as_text,
            kept: Vec::new(),
            cut: false,
            hash: Sha256::new(),
            offset: 0,
            endings: 0,
            ends_with_ending: true,
            starts: lines.is_none().then(|| Starts {
                recent: vec![0],
                head: 0,
            }),
        }
    }

    /// Reads the file; false as soon as it turns out not to be the text that was asked for.
    fn read(&mut self, file: &RegularFile, stop: &Stop) -> Result<bool, Error> {
        // What is appended meanwhile is not read: a file could grow for ever. Some file systems give files no size; those end where they end.
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
            if self.as_text {
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

    fn add(&mut self, chunk: &[u8]) {
        self.hash.update(chunk);
        if self.starts.is_none() && self.endings >= self.last {
            self.endings += memchr_iter(b'\n', chunk).count() as u64;
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

    /// What to answer, once the whole file was read.
    fn excerpt(&mut self, file: &RegularFile) -> Result<Excerpt, Error> {
        let total = self.total_lines();
        let mut kept = std::mem::take(&mut self.kept);
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
                    _ => read_again(file, tail_start, length)?,
                };
                kept.truncate(head);
                kept.extend_from_slice(&bytes);
                tail = Some((head, tail_line + 1));
            }
        }
        let mut truncated = self.cut || omitted_lines > 0;
        if self.as_text {
            // The file is text, so only the last character can be incomplete, unless others wrote to it meanwhile.
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
        Ok(Excerpt {
            content: match self.as_text {
                true => String::from_utf8(kept).map_err(Error::internal)?,
                false => BASE64_STANDARD.encode(kept),
            },
            truncated,
            omitted_lines,
            start_line,
            end_line,
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

/// Reads `length` bytes from `offset` on, fewer where the file has become shorter.
fn read_again(file: &RegularFile, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while filled < length {
        match file.read_at(&mut bytes[filled..], offset + filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

fn lines_in(bytes: &[u8]) -> u64 {
    let unfinished = bytes.last().is_some_and(|byte| *byte != b'\n');
    memchr_iter(b'\n', bytes).count() as u64 + u64::from(unfinished)
}

/// A number of lines for the wire. Only a file of more than 4 GiB of line endings alone reaches the limit.
fn clamped(lines: u64) -> u32 {
    u32::try_from(lines).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _, os::unix::fs::symlink};

    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use tempfile::TempDir;
    use v1::Encoding::{Base64, Utf8};

    use super::*;

    fn workspace() -> (TempDir, Workspace) {
        let directory = tempfile::tempdir().unwrap();
        let workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();
        (directory, workspace)
    }

    fn request(path: &str) -> v1::ReadFileRequest {
        v1::ReadFileRequest {
            path: path.to_owned(),
            ..Default::default()
        }
    }

    fn read(
        content: impl AsRef<[u8]>,
        change: impl FnOnce(&mut v1::ReadFileRequest),
    ) -> Result<v1::ReadFileResponse, Error> {
        let (directory, workspace) = workspace();
        fs::write(directory.path().join("f"), content).unwrap();
        let mut request = request("/workspace/f");
        change(&mut request);
        read_file(&workspace, request, &Stop::new())
    }

    /// Lines of different lengths, the line's number in each.
    fn numbered(lines: u64) -> String {
        (1..=lines).map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn whole_files_come_as_they_are() {
        for (content, lines) in [
            ("", 0),
            ("\n", 1),
            ("a", 1),
            ("a\n", 1),
            ("a\nb", 2),
            ("a\r\nb\r\n", 2),
            ("a\rb", 1),
            ("\n\n\n", 3),
            ("nul \0 is text\n", 1),
            ("\u{feff}\u{202e}\u{1f600}\u{e9}\n", 1),
            (&"\u{20ac}".repeat(200_000), 1),
            (&format!("a{}", "\u{1f600}".repeat(100_000)), 1),
            (&numbered(10_000), 10_000),
        ] {
            for encoding in [Utf8, Base64] {
                let response = read(content, |request| request.encoding = Some(encoding.into()));
                let response = response.unwrap();
                let expected = v1::ReadFileResponse {
                    content: match encoding {
                        Base64 => BASE64_STANDARD.encode(content),
                        _ => content.to_owned(),
                    },
                    encoding: encoding.into(),
                    truncated: false,
                    omitted_lines: 0,
                    total_lines: lines,
                    start_line: lines.min(1),
                    end_line: lines,
                    size_bytes: content.len() as u64,
                    sha256: hash(content),
                };
                assert_eq!(response, expected);
            }
        }
        assert_eq!(
            hash(""),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }

    fn hash(content: &str) -> String {
        Sha256::digest(content)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    #[test]
    fn ranges_of_lines_are_inclusive_and_clamped() {
        const FILE: &str = "one\ntwo\r\nthree\n\nfive";
        for (start, end, content, lines) in [
            (Some(1), Some(1), "one\n", (1, 1)),
            (Some(2), Some(3), "two\r\nthree\n", (2, 3)),
            (Some(4), Some(4), "\n", (4, 4)),
            (Some(4), None, "\nfive", (4, 5)),
            (Some(5), Some(5), "five", (5, 5)),
            (Some(5), Some(u32::MAX), "five", (5, 5)),
            (None, Some(2), "one\ntwo\r\n", (1, 2)),
            (Some(1), None, FILE, (1, 5)),
        ] {
            let response = read(FILE, |request| {
                request.start_line = start;
                request.end_line = end;
            });
            let response = response.unwrap();
            assert_eq!(response.content, content, "{start:?} {end:?}");
            assert_eq!((response.start_line, response.end_line), lines);
            assert!(!response.truncated);
            assert_eq!((response.total_lines, response.omitted_lines), (5, 0));
            assert_eq!(response.sha256, hash(FILE));
        }
    }

    #[test]
    fn a_range_outside_of_the_file_is_refused() {
        for (content, start, end, reason) in [
            ("a\nb\n", 3, None, Some(Reason::LineRangeInvalid)),
            ("a\nb\n", 2, None, None),
            ("a\nb", 3, Some(3), Some(Reason::LineRangeInvalid)),
            ("", 1, None, None),
            ("", 1, Some(7), None),
            ("", 2, None, Some(Reason::LineRangeInvalid)),
            ("a", u32::MAX, None, Some(Reason::LineRangeInvalid)),
            ("a\nb\n", 2, Some(1), Some(Reason::InvalidParams)),
        ] {
            let result = read(content, |request| {
                request.start_line = Some(start);
                request.end_line = end;
            });
            assert_eq!(
                result.err().map(|error| error.reason),
                reason,
                "{content:?}"
            );
        }
        let error = read("a\nb\n", |request| request.start_line = Some(9)).unwrap_err();
        assert!(error.message.contains("has 2 lines"), "{error}");
        let error = read("a", |request| {
            request.start_line = Some(2);
            request.end_line = Some(1);
        });
        assert_eq!(error.unwrap_err().violations[0].field, "end_line");
    }

    #[test]
    fn of_long_files_the_first_and_the_last_lines_come() {
        for (lines, final_ending) in [
            (10_001, true),
            (10_001, false),
            (10_002, true),
            (25_000, false),
        ] {
            let mut content = numbered(lines);
            if !final_ending {
                content.pop();
            }
            let split: Vec<&str> = content.split_inclusive('\n').collect();
            let head = split[..5000].concat();
            let tail = split[split.len() - 5000..].concat();
            let expected = format!("{head}{tail}");
            // With the whole file kept; with none of the tail; with a part of it.
            let all = expected.len();
            for most in [
                3 << 20,
                all + 1,
                all,
                all - 1,
                head.len() + 7,
                head.len(),
                head.len() - 1,
                3,
            ] {
                let response = read(&content, |request| {
                    request.max_bytes = Some(u32::try_from(most).unwrap());
                });
                let response = response.unwrap();
                let expected = &expected[..most.min(all)];
                assert!(response.content == expected, "{lines} {most}");
                assert!(response.truncated);
                assert_eq!(u64::from(response.omitted_lines), lines - 10_000);
                assert_eq!(u64::from(response.total_lines), lines);
                assert_eq!(response.start_line, 1);
                let last = expected.trim_end().split('\n').next_back().unwrap();
                if most >= all || most <= head.len() && expected.ends_with('\n') {
                    assert_eq!(response.end_line.to_string(), last, "{lines} {most}");
                }
                assert!(
                    response.end_line.to_string().starts_with(last),
                    "{lines} {most}"
                );
                assert_eq!(response.sha256, hash(&content));
            }
        }
        // A range that covers the whole file is no reason to leave lines out.
        let content = numbered(12_000);
        let response = read(&content, |request| request.start_line = Some(1)).unwrap();
        assert!(response.content == content && !response.truncated);
        assert_eq!((response.omitted_lines, response.end_line), (0, 12_000));
    }

    #[test]
    fn text_is_cut_between_characters_and_bytes_anywhere() {
        for (content, most, expected, end_line) in [
            ("a\u{20ac}b", 1, "a", 1),
            ("a\u{20ac}b", 2, "a", 1),
            ("a\u{20ac}b", 3, "a", 1),
            ("a\u{20ac}b", 4, "a\u{20ac}", 1),
            ("\u{1f600}", 3, "", 1),
            ("a\nb\nc\n", 2, "a\n", 1),
            ("a\nb\nc\n", 3, "a\nb", 2),
            ("a\nb\nc\n", 5, "a\nb\nc", 3),
        ] {
            for start_line in [None, Some(1)] {
                let cut = |encoding: v1::Encoding| {
                    read(content, |request| {
                        request.max_bytes = Some(most);
                        request.start_line = start_line;
                        request.encoding = Some(encoding.into());
                    })
                    .unwrap()
                };
                let text = cut(Utf8);
                assert_eq!(text.content, expected, "{content:?} {most}");
                assert!(text.truncated);
                assert_eq!((text.start_line, text.end_line), (1, end_line));
                let bytes = cut(Base64);
                let expected = &content.as_bytes()[..usize::try_from(most).unwrap()];
                assert_eq!(bytes.content, BASE64_STANDARD.encode(expected));
                assert!(bytes.truncated);
            }
        }
        let exact = read("abc", |request| request.max_bytes = Some(3)).unwrap();
        assert!(!exact.truncated);
    }

    #[test]
    fn one_huge_line_takes_no_more_than_asked_for() {
        let content = "\u{20ac}".repeat(2 << 20);
        let response = read(&content, |_| ()).unwrap();
        assert_eq!(response.content.len(), (3 << 20) / 3 * 3);
        assert!(response.truncated);
        assert_eq!((response.total_lines, response.end_line), (1, 1));
        assert_eq!(response.size_bytes, content.len() as u64);
    }

    #[test]
    fn what_is_not_text_is_refused_wherever_it_is() {
        let mut late = numbered(50_000).into_bytes();
        late.push(0xff);
        let mut split = vec![b'a'; CHUNK - 1];
        split.extend([0xe2, 0x82]);
        for content in [
            &b"\xff"[..],
            b"a\n\xc3",
            b"\xed\xa0\x80",
            b"\xc0\x80",
            &late,
            &split,
        ] {
            for start_line in [None, Some(1)] {
                let error = read(content, |request| {
                    request.start_line = start_line;
                    request.end_line = start_line;
                });
                let error = error.unwrap_err();
                assert_eq!(error.reason, Reason::BinaryFile);
                assert!(error.message.contains("ENCODING_BASE64"), "{error}");
            }
            let bytes = read(content, |request| {
                request.start_line = Some(1);
                request.encoding = Some(Base64.into());
            });
            assert_eq!(bytes.unwrap().content, BASE64_STANDARD.encode(content));
        }
    }

    #[test]
    fn large_files_need_a_range_and_are_not_touched_without() {
        let (directory, workspace) = workspace();
        let file = fs::File::create(directory.path().join("f")).unwrap();
        for size in [(256 << 20) + 1, 1 << 40] {
            file.set_len(size).unwrap();
            let error = read_file(&workspace, request("f"), &Stop::new()).unwrap_err();
            assert_eq!(error.reason, Reason::FileTooLarge);
            assert!(error.message.contains("start_line"), "{error}");
        }
        // With one they are read until the call's time is up.
        let stop = Stop::new();
        let late = stop.clone();
        let waiting = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            late.stop();
        });
        let ranged = v1::ReadFileRequest {
            start_line: Some(1),
            ..request("f")
        };
        let error = read_file(&workspace, ranged, &stop).unwrap_err();
        assert_eq!(error.reason, Reason::Timeout);
        waiting.join().unwrap();
    }

    #[test]
    fn only_regular_files_are_opened() {
        let (directory, workspace) = workspace();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("directory")).unwrap();
        fs::write(at("directory/file"), "text").unwrap();
        mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        symlink("directory/file", at("link")).unwrap();
        symlink("directory", at("way")).unwrap();
        symlink("/etc/passwd", at("out")).unwrap();
        for (path, reason) in [
            ("directory/file", None),
            ("/workspace/directory/../directory//file", None),
            ("directory", Some(Reason::NotAFile)),
            (".", Some(Reason::NotAFile)),
            ("fifo", Some(Reason::NotAFile)),
            ("socket", Some(Reason::NotAFile)),
            ("link", Some(Reason::SymlinkBlocked)),
            ("way/file", Some(Reason::SymlinkBlocked)),
            ("out", Some(Reason::SymlinkBlocked)),
            ("none", Some(Reason::FileNotFound)),
            ("none/file", Some(Reason::FileNotFound)),
            ("directory/file/x", Some(Reason::FileNotFound)),
            ("../x", Some(Reason::PathEscape)),
            ("/etc/passwd", Some(Reason::PathEscape)),
        ] {
            let result = read_file(&workspace, request(path), &Stop::new());
            assert_eq!(result.err().map(|error| error.reason), reason, "{path}");
        }
        let unknown = v1::ReadFileRequest {
            encoding: Some(9),
            ..request("directory/file")
        };
        let error = read_file(&workspace, unknown, &Stop::new()).unwrap_err();
        assert_eq!(error.violations[0].field, "encoding");
    }

    #[test]
    fn a_file_that_changes_meanwhile_is_answered_consistently() {
        let (directory, workspace) = workspace();
        let path = directory.path().join("f");
        fs::write(&path, numbered(20_000)).unwrap();
        let stop = Stop::new();
        let ended = stop.clone();
        let writer = std::thread::spawn(move || {
            let mut round = 0_u64;
            while ended.check().is_ok() {
                round += 1;
                let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
                file.write_all(numbered(50).as_bytes()).unwrap();
                if round.is_multiple_of(20) {
                    file.set_len(round).unwrap();
                }
            }
        });
        for _ in 0..200 {
            let short = v1::ReadFileRequest {
                max_bytes: Some(50_000),
                ..request("f")
            };
            let response = read_file(&workspace, short, &Stop::new()).unwrap();
            assert!(response.content.len() <= 50_000);
            assert!(response.end_line <= response.total_lines);
        }
        stop.stop();
        writer.join().unwrap();
    }
}
