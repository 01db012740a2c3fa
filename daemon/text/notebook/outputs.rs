//! Renders outputs of cells as text. Images and other data become a placeholder with type and size.

use super::{
    super::truncate_str,
    document::MAX_FIELDS,
    json_span::{JsonContainer, for_each_entry, parse_multiline_text, parse_string},
};

/// Text of all outputs of a response together.
pub(super) const MAX_TOTAL_OUTPUT_BYTES: usize = 640 << 10;
/// Text of one output.
const MAX_OUTPUT_BYTES: usize = 10_000;
const MAX_OUTPUTS_PER_CELL: usize = 200;
/// Cost of an output in the response, in addition to its text.
const OUTPUT_OVERHEAD_BYTES: usize = 32;
/// Names that the file chooses, such as MIME types.
const MAX_NAME_BYTES: usize = 100;

/// An output of a code cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RenderedCellOutput {
    /// nbformat's `output_type`.
    pub(crate) kind: String,
    pub(crate) text: String,
    pub(crate) truncated: bool,
}

/// Renders the outputs of a cell, and subtracts their cost from `budget_bytes`. Outputs that do
/// not fit are replaced by a last one with their number.
pub(super) fn render_outputs(json: &str, budget_bytes: &mut usize) -> Vec<RenderedCellOutput> {
    let (mut outputs, mut omitted) = (Vec::new(), 0_usize);
    // Another value than an array holds no outputs. The caller has checked that it is JSON.
    let _no_array = for_each_entry(json, |part| {
        if omitted > 0 || outputs.len() == MAX_OUTPUTS_PER_CELL {
            omitted += 1;
            return Ok(());
        }
        let output = RenderedCellOutput::render(part.value);
        let cost = output.text.len() + output.kind.len() + OUTPUT_OVERHEAD_BYTES;
        match budget_bytes.checked_sub(cost) {
            Some(rest) => {
                *budget_bytes = rest;
                outputs.push(output);
            }
            None => omitted += 1,
        }
        Ok(())
    });

    if omitted > 0 {
        outputs.push(RenderedCellOutput {
            kind: String::new(),
            text: format!("[{omitted} more outputs]"),
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
        let kind = fields
            .get("output_type")
            .and_then(parse_string)
            .map_or(String::new(), |kind| truncate_str(&kind, MAX_NAME_BYTES).to_owned());
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

/// Returns an error's traceback, or its name and value if it has none.
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

/// Returns the plain text of a MIME bundle, followed by the types and sizes of its other data.
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
        // The names are short and may say more than the text: the text is cut, not they.
        let max_text = MAX_OUTPUT_BYTES - others.len() - 1;
        truncated |= text.len() > max_text;
        text.truncate(text.floor_char_boundary(max_text));
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&others);
    }
    (text, truncated)
}

/// Returns the size of some data: the decoded size of Base64, or the size of the text.
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

/// Removes escape sequences of terminals: colours, titles, cursor movements (ECMA-48).
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_rendered_as_text() {
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
    fn long_outputs_are_truncated() {
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
        let mut budget_bytes = usize::MAX;
        let outputs = render_outputs(&format!("[{}1]", "1,".repeat(999)), &mut budget_bytes);
        assert_eq!(outputs.len(), MAX_OUTPUTS_PER_CELL + 1);
        assert_eq!(outputs[MAX_OUTPUTS_PER_CELL].text, "[800 more outputs]");
    }
}
