//! The head and tail of a command's output, and counts of all of it.

use std::collections::VecDeque;

use memchr::memchr_iter;

/// Head and tail of a stream, in limited memory.
#[derive(Debug)]
pub(super) struct HeadTailBuffer {
    head: Vec<u8>,
    max_head_bytes: usize,
    tail: VecDeque<u8>,
    max_tail_bytes: usize,
    pub(super) total_bytes: u64,
    newlines: u64,
    /// Whether the last line has no line ending.
    is_line_open: bool,
}

impl HeadTailBuffer {
    /// Stores at most `inline_bytes`: one half for the head, one for the tail.
    pub(super) fn new(inline_bytes: usize) -> Self {
        let max_head_bytes = inline_bytes.div_ceil(2);
        Self {
            head: Vec::new(),
            max_head_bytes,
            tail: VecDeque::new(),
            max_tail_bytes: inline_bytes - max_head_bytes,
            total_bytes: 0,
            newlines: 0,
            is_line_open: false,
        }
    }

    /// Appends output.
    pub(super) fn push(&mut self, data: &[u8]) {
        self.total_bytes += data.len() as u64;
        self.newlines += memchr_iter(b'\n', data).count() as u64;
        self.is_line_open = data.last().map_or(self.is_line_open, |last| *last != b'\n');

        let (head, rest) = data.split_at(data.len().min(self.max_head_bytes - self.head.len()));
        self.head.extend_from_slice(head);

        let rest = rest.get(rest.len().saturating_sub(self.max_tail_bytes)..).unwrap_or_default();
        let excess = (self.tail.len() + rest.len()).saturating_sub(self.max_tail_bytes);
        self.tail.drain(..excess);
        self.tail.extend(rest);
    }

    /// Returns the number of lines, including a last one without a line ending.
    pub(super) fn total_lines(&self) -> u64 {
        self.newlines + u64::from(self.is_line_open)
    }

    /// Returns the text for the response, and whether it omits output, which is in the artifact
    /// `path`. Replaces bytes that are not UTF-8 by U+FFFD. The gap never cuts a character.
    pub(super) fn render(&self, path: &str) -> (String, bool) {
        let (first, second) = self.tail.as_slices();
        let stored = (self.head.len() + self.tail.len()) as u64;
        if stored == self.total_bytes {
            let whole = [self.head.as_slice(), first, second].concat();
            return (into_lossy_string(whole), false);
        }

        let head = self.head.get(..complete_characters_length(&self.head)).unwrap_or_default();
        let tail = [first, second].concat();
        let tail = tail.get(leading_continuation_bytes(&tail)..).unwrap_or_default();
        let omitted = self.total_bytes - (head.len() + tail.len()) as u64;

        let newline = if head.is_empty() || head.ends_with(b"\n") { "" } else { "\n" };
        let head = String::from_utf8_lossy(head);
        let tail = String::from_utf8_lossy(tail);
        (
            format!(
                "{head}{newline}[jig: {omitted} bytes left out; the whole output is in {path}]\n{tail}"
            ),
            true,
        )
    }
}

fn into_lossy_string(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Returns the length of `bytes` without an incomplete character at the end.
fn complete_characters_length(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let start = bytes.len() - back;
        let length = match bytes.get(start) {
            Some(0xc2..=0xdf) => 2,
            Some(0xe0..=0xef) => 3,
            Some(0xf0..=0xf4) => 4,
            Some(0x80..=0xbf) => continue,
            _ => return bytes.len(),
        };
        return if length > back { start } else { bytes.len() };
    }
    bytes.len()
}

/// Returns how many bytes at the start of `bytes` continue a character that begins before them.
fn leading_continuation_bytes(bytes: &[u8]) -> usize {
    bytes.iter().take(3).take_while(|byte| matches!(byte, 0x80..=0xbf)).count()
}

#[cfg(test)]
mod tests {
    use super::HeadTailBuffer;

    fn captured(inline: usize, chunks: &[&[u8]]) -> (String, bool, u64) {
        let mut buffer = HeadTailBuffer::new(inline);
        chunks.iter().for_each(|chunk| buffer.push(chunk));
        let (text, truncated) = buffer.render("p");
        (text, truncated, buffer.total_bytes)
    }

    #[test]
    fn small_output_is_complete() {
        assert_eq!(captured(4, &[b"ab", b"cd"]), ("abcd".to_owned(), false, 4));
        assert_eq!(captured(5, &[b"abcde"]), ("abcde".to_owned(), false, 5));
        assert_eq!(captured(0, &[]), (String::new(), false, 0));
    }

    #[test]
    fn large_output_is_reduced_to_head_and_tail() {
        let gap = |omitted| format!("[jig: {omitted} bytes left out; the whole output is in p]\n");
        assert_eq!(captured(4, &[b"abcdefgh"]).0, format!("ab\n{}gh", gap(4)));
        assert_eq!(
            captured(4, &[b"a", b"b", b"c", b"d", b"e"]),
            (format!("ab\n{}de", gap(1)), true, 5)
        );
        assert_eq!(captured(0, &[b"abc"]), (gap(3), true, 3));
        assert_eq!(captured(1, &[b"abc"]), (format!("a\n{}", gap(2)), true, 3));
    }

    #[test]
    fn all_lines_are_counted() {
        for (chunks, lines) in [
            (vec![], 0),
            (vec![""], 0),
            (vec!["a"], 1),
            (vec!["a\n"], 1),
            (vec!["\n\n"], 2),
            (vec!["a\n", "b"], 2),
            (vec!["a", "b\n", ""], 1),
            (vec!["aaaa\naaaa\naaaa\naaaa\naaaa", "a", "\n", "a"], 6),
        ] {
            for inline in [0, 4, 100] {
                let mut buffer = HeadTailBuffer::new(inline);
                chunks.iter().for_each(|chunk| buffer.push(chunk.as_bytes()));
                assert_eq!(buffer.total_lines(), lines, "{chunks:?}");
            }
        }
    }

    #[test]
    fn gap_does_not_cut_characters() {
        // Three bytes each: the head of 4 holds one, the tail of 4 one.
        let (text, truncated, bytes) = captured(8, &["€€€€".as_bytes()]);
        assert_eq!(
            (text, truncated, bytes),
            ("€\n[jig: 6 bytes left out; the whole output is in p]\n€".to_owned(), true, 12)
        );
    }

    #[test]
    fn invalid_utf8_is_replaced() {
        assert_eq!(captured(9, &[b"a\xff\0b"]).0, "a\u{fffd}\0b");
    }
}
