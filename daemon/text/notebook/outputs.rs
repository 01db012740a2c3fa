//! Outputs of cells as text: what a model can read, and a name for what it cannot.

use super::{
    document::MAX_FIELDS,
    json_span::{JsonContainer, for_each_entry, parse_multiline_text, parse_string},
};

/// Bytes of all outputs together.
pub(super) const MAX_TOTAL_OUTPUT_BYTES: usize = 640 << 10;
/// Bytes of one output.
const MAX_OUTPUT_BYTES: usize = 10_000;
/// Outputs of one cell.
const MAX_OUTPUTS_PER_CELL: usize = 200;
/// Bytes that an output costs beside its text.
const OUTPUT_OVERHEAD_BYTES: usize = 32;
/// Bytes of names that the file chooses.
const MAX_NAME_BYTES: usize = 100;

/// An output of a code cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RenderedCellOutput {
    /// Its kind, as nbformat names it.
    pub(crate) kind: String,
    /// Its text.
    pub(crate) text: String,
    /// Whether there is more of it.
    pub(crate) truncated: bool,
}

/// The outputs of a cell. They take from what is `left` for those of all cells; what does not fit
/// is counted in a last one.
pub(super) fn render_outputs(json: &str, left: &mut usize) -> Vec<RenderedCellOutput> {
    let (mut outputs, mut left_out) = (Vec::new(), 0_usize);
    // What is no array holds no outputs; that it is JSON was seen before.
    let _no_array = for_each_entry(json, |part| {
        if left_out > 0 || outputs.len() == MAX_OUTPUTS_PER_CELL {
            left_out += 1;
            return Ok(());
        }
        let output = RenderedCellOutput::render(part.value);
        match left.checked_sub(output.text.len() + output.kind.len() + OUTPUT_OVERHEAD_BYTES) {
            Some(less) => {
                *left = less;
                outputs.push(output);
            }
            None => left_out += 1,
        }
        Ok(())
    });
    if left_out > 0 {
        outputs.push(RenderedCellOutput {
            kind: String::new(),
            text: format!("[{left_out} more outputs]"),
            truncated: true,
        });
    }
    outputs
}

impl RenderedCellOutput {
    fn render(json: &str) -> Self {
        let Ok(fields) = JsonContainer::parse(json, MAX_FIELDS) else {
            return Self {
                kind: String::new(),
                text: "[no output that nbformat knows]".to_owned(),
                truncated: false,
            };
        };
        let kind = fields.get("output_type").and_then(parse_string);
        let kind =
            kind.map_or(String::new(), |kind| truncate_str(&kind, MAX_NAME_BYTES).to_owned());
        let (text, truncated) = match kind.as_str() {
            "stream" => {
                parse_multiline_text(fields.get("text").unwrap_or_default(), MAX_OUTPUT_BYTES)
            }
            "error" => error_text(&fields),
            _ => data_text(fields.get("data").unwrap_or_default()),
        };
        Self { kind, text, truncated }
    }
}

/// An error's traceback, or its name and value where it has none.
fn error_text(fields: &JsonContainer<'_>) -> (String, bool) {
    let mut plain = String::new();
    let mut truncated = false;
    let _no_array = for_each_entry(fields.get("traceback").unwrap_or_default(), |part| {
        if plain.len() > MAX_OUTPUT_BYTES {
            return Err(String::new());
        }
        if let Some(line) = parse_string(part.value) {
            if !plain.is_empty() {
                plain.push('\n');
            }
            plain.push_str(&strip_terminal_escapes(&line));
        }
        Ok(())
    });
    if plain.trim().is_empty() {
        let field = |key| fields.get(key).and_then(parse_string).unwrap_or_default();
        plain = format!("{}: {}", field("ename"), field("evalue"));
    }
    if plain.len() > MAX_OUTPUT_BYTES {
        plain.truncate(plain.floor_char_boundary(MAX_OUTPUT_BYTES));
        truncated = true;
    }
    (plain, truncated)
}

/// The plain text of a bundle of data, and the names of what else is in it.
fn data_text(bundle: &str) -> (String, bool) {
    let (mut plain, mut truncated) = (None, false);
    let mut others = String::new();
    let _no_object = for_each_entry(bundle, |part| {
        let Some(kind) = part.key.and_then(parse_string) else {
            return Ok(());
        };
        if kind == "text/plain" {
            let (text, cut) = parse_multiline_text(part.value, MAX_OUTPUT_BYTES);
            truncated |= cut;
            plain = Some(text);
        } else if others.len() < MAX_OUTPUT_BYTES / 2 {
            if !others.is_empty() {
                others.push('\n');
            }
            let size = data_size(&kind, part.value);
            others.push_str(&format!("[{}, {size} bytes]", truncate_str(&kind, MAX_NAME_BYTES)));
        }
        Ok(())
    });
    let mut text = plain.unwrap_or_default();
    if !others.is_empty() {
        // They are short, and say what the text alone may not.
        let most = MAX_OUTPUT_BYTES - others.len() - 1;
        truncated |= text.len() > most;
        text.truncate(text.floor_char_boundary(most));
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&others);
    }
    (text, truncated)
}

/// Bytes that some data has: those that Base64 stands for, or its text.
fn data_size(kind: &str, json: &str) -> usize {
    if json.starts_with('{') {
        return json.len();
    }
    let (text, _) = parse_multiline_text(json, usize::MAX);
    let is_text = kind.starts_with("text/")
        || kind.ends_with("xml")
        || kind.ends_with("json")
        || kind.ends_with("javascript");
    if is_text {
        return text.len();
    }
    let digits = text.bytes().filter(|byte| !byte.is_ascii_whitespace() && *byte != b'=');
    digits.count() * 3 / 4
}

/// Text without what terminals take as colours, titles and movements (ECMA-48).
fn strip_terminal_escapes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\u{1b}' => match characters.next() {
                // Parameters up to a final byte.
                Some('[') => {
                    while characters.next().is_some_and(|next| !('@'..='~').contains(&next)) {}
                }
                // A string up to BEL, or to ESC and a backslash.
                Some(']' | 'P' | 'X' | '^' | '_') => {
                    let mut before = ' ';
                    for next in characters.by_ref() {
                        if next == '\u{7}' || (before, next) == ('\u{1b}', '\\') {
                            break;
                        }
                        before = next;
                    }
                }
                // Intermediate bytes up to a final one.
                Some(' '..='/') => {
                    while characters.next().is_some_and(|next| (' '..='/').contains(&next)) {}
                }
                _ => {}
            },
            '\u{9b}' => while characters.next().is_some_and(|next| !('@'..='~').contains(&next)) {},
            other => plain.push(other),
        }
    }
    plain
}

fn truncate_str(text: &str, most: usize) -> &str {
    text.get(..text.floor_char_boundary(most)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_told_as_text() {
        for (output, expected) in [
            (r#"{"output_type": "stream", "text": ["a\n", "b"]}"#, "a\nb"),
            (r#"{"output_type": "stream"}"#, ""),
            (
                r#"{"output_type": "display_data", "data": {"text/plain": "<Figure>", "image/png": "iVBORw0K\nGgo=\n"}}"#,
                "<Figure>\n[image/png, 8 bytes]",
            ),
            (
                r#"{"output_type": "display_data", "data": {"image/svg+xml": ["<svg>", "</svg>"], "application/json": {"a":1}}}"#,
                "[image/svg+xml, 11 bytes]\n[application/json, 7 bytes]",
            ),
            (
                r#"{"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["\u001b[0;31mE\u001b[0m: v", "\u001b]0;title\u0007x\u001b(By"]}"#,
                "E: v\nxy",
            ),
            (r#"{"output_type": "error", "ename": "E", "evalue": "v", "traceback": []}"#, "E: v"),
            ("7", "[no output that nbformat knows]"),
            ("[]", ""),
        ] {
            let output = RenderedCellOutput::render(output);
            assert_eq!(output.text, expected);
            assert!(!output.truncated);
        }
    }

    #[test]
    fn long_outputs_are_cut() {
        let long = "\u{20ac}".repeat(5000);
        for output in [
            format!(r#"{{"output_type": "stream", "text": "{long}"}}"#),
            format!(r#"{{"output_type": "stream", "text": ["{long}", "{long}"]}}"#),
            format!(r#"{{"output_type": "error", "traceback": ["{long}"]}}"#),
            format!(r#"{{"output_type": "x", "data": {{"text/plain": "{long}", "{long}": "a"}}}}"#),
        ] {
            let output = RenderedCellOutput::render(&output);
            assert!(
                output.truncated
                    && output.text.len() > 9900
                    && output.text.len() <= MAX_OUTPUT_BYTES
            );
        }
        let mut left = usize::MAX;
        let outputs = render_outputs(&format!("[{}1]", "1,".repeat(999)), &mut left);
        assert_eq!(outputs.len(), MAX_OUTPUTS_PER_CELL + 1);
        assert_eq!(outputs[MAX_OUTPUTS_PER_CELL].text, "[800 more outputs]");
    }
}
