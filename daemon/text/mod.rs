//! Text transformations behind the file tools: edits, diffs, patches and notebook changes. Pure
//! functions, no I/O.
//!
//! | module | contents |
//! |---|---|
//! | [`diff`] | unified diff of two texts |
//! | [`edit`] | exact string replacement |
//! | [`notebook`] | reading and changing cells of a Jupyter notebook |
//! | [`patch`] | parsing and applying unified diffs |
//! | [`similar_lines`] | hints for an edit whose string is not found |
//! | [`v4a`] | patches in the format of OpenAI's models |

pub(crate) mod diff;
pub(crate) mod edit;
pub(crate) mod notebook;
pub(crate) mod patch;
mod similar_lines;
pub(crate) mod v4a;

use memchr::memchr_iter;

/// Counts lines, including a last one without a newline.
pub(crate) fn count_lines(bytes: &[u8]) -> usize {
    let has_partial_line = bytes.last().is_some_and(|byte| *byte != b'\n');
    memchr_iter(b'\n', bytes).count() + usize::from(has_partial_line)
}

/// Returns the longest prefix of `text` of at most `max_bytes` bytes.
pub(crate) fn truncate_str(text: &str, max_bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(max_bytes)).unwrap_or(text)
}
