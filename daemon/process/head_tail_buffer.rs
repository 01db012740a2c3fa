//! Head and tail of what a command writes, and how much that is in all.

use std::collections::VecDeque;

use memchr::memchr_iter;

/// Head and tail of a stream, in bounded memory.
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
    /// Keeps at most `inline_bytes`: the first half of them, and the last.
    pub(super) fn new(inline_bytes: usize) -> Self {
        let head_at_most = inline_bytes.div_ceil(2);
        Self {
            head: Vec::new(),
            max_head_bytes: head_at_most,
            tail: VecDeque::new(),
            max_tail_bytes: inline_bytes - head_at_most,
            total_bytes: 0,
            newlines: 0,
            is_line_open: false,
        }
    }

    /// Takes what comes next.
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

    /// All lines, with a last one that has no line ending.
    pub(super) fn total_lines(&self) -> u64 {
        self.newlines + u64::from(self.is_line_open)
    }

    /// What the answer holds, and whether it leaves something out. Bytes that are not UTF-8 become
    /// U+FFFD; a character is never cut by the gap.
    pub(super) fn render(&self, path: &str) -> (String, bool) {
        let (first, second) = self.tail.as_slices();
        let kept = (self.head.len() + self.tail.len()) as u64;
        if kept == self.total_bytes {
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

/// Length of `bytes` without the beginning of a character that its end cuts off.
fn complete_characters_length(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let at = bytes.len() - back;
        let length = match bytes.get(at) {
            Some(0xc2..=0xdf) => 2,
            Some(0xe0..=0xef) => 3,
            Some(0xf0..=0xf4) => 4,
            Some(0x80..=0xbf) => continue,
            _ => return bytes.len(),
        };
        return if length > back { at } else { bytes.len() };
    }
    bytes.len()
}

/// How many bytes at the start of `bytes` belong to a character that began before.
fn leading_continuation_bytes(bytes: &[u8]) -> usize {
    bytes.iter().take(3).take_while(|byte| matches!(byte, 0x80..=0xbf)).count()
}

#[cfg(test)]
mod tests {
    use super::HeadTailBuffer;

    fn captured(inline: usize, chunks: &[&[u8]]) -> (String, bool, u64) {
        let mut capture = HeadTailBuffer::new(inline);
        chunks.iter().for_each(|chunk| capture.push(chunk));
        let (text, truncated) = capture.render("p");
        (text, truncated, capture.total_bytes)
    }

    #[test]
    fn what_fits_is_whole() {
        assert_eq!(captured(4, &[b"ab", b"cd"]), ("abcd".to_owned(), false, 4));
        assert_eq!(captured(5, &[b"abcde"]), ("abcde".to_owned(), false, 5));
        assert_eq!(captured(0, &[]), (String::new(), false, 0));
    }

    #[test]
    fn what_does_not_fit_keeps_head_and_tail() {
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
    fn all_lines_are_counted_whatever_is_kept() {
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
                let mut capture = HeadTailBuffer::new(inline);
                chunks.iter().for_each(|chunk| capture.push(chunk.as_bytes()));
                assert_eq!(capture.total_lines(), lines, "{chunks:?}");
            }
        }
    }

    #[test]
    fn characters_are_not_cut_by_the_gap() {
        // Three bytes each: the head of 4 holds one, the tail of 4 one.
        let (text, truncated, bytes) = captured(8, &["€€€€".as_bytes()]);
        assert_eq!(
            (text, truncated, bytes),
            ("€\n[jig: 6 bytes left out; the whole output is in p]\n€".to_owned(), true, 12)
        );
    }

    #[test]
    fn bytes_that_are_not_utf8_are_replaced() {
        assert_eq!(captured(9, &[b"a\xff\0b"]).0, "a\u{fffd}\0b");
    }
}
