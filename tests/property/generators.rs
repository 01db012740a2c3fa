//! Random texts, paths and commands, with the characters that are hard to handle.

use fastrand::Rng;
use serde_json::{Map, Value as Json};

use super::fixture::{EMPTY_DIRECTORY, FILES};

/// Parts of random texts.
const TEXT_PARTS: [&str; 40] = [
    "two",
    "one",
    "\"",
    "'",
    "\\",
    "\\\"",
    "\n",
    "\r\n",
    "\t",
    "\u{1}",
    "\u{7f}",
    "\\u0000",
    "\\0",
    "%00",
    "\u{feff}",
    "\u{202e}",
    "é",
    "e\u{301}",
    "漢字",
    "🦀",
    "\u{10ffff}",
    " ",
    "  ",
    "-",
    "--help",
    "$(false)",
    "`false`",
    "${HOME}",
    "%s",
    "{}",
    "{\"a\": 1}",
    "[]",
    "null",
    "true",
    "0",
    "-1.5e3",
    "<x>",
    "*",
    "..",
    "/",
];
/// Globs, of which the last is invalid.
const GLOBS: [&str; 10] =
    ["*", "**/*.rs", "*.{txt,md}", "src/**", "!a.txt", "[a-c]*", "ü*", "**", "a.txt", "{"];
/// Harmless commands.
const COMMANDS: [&str; 10] = [
    "true",
    "exit 3",
    "cat",
    "pwd",
    "printf '%s|' \"$A\" \"$b_2\" 'é \"\\' -n",
    "printf two >&2; cat a.txt",
    "cat; printf '\\377\\0'",
    "kill -9 $$",
    "# 🦀 -- nothing\ntrue",
    "no-such-program --two",
];

/// A random element.
pub(super) fn pick<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.usize(..choices.len())]
}

/// A text without NUL characters, which may be empty.
pub(super) fn text(rng: &mut Rng) -> String {
    let count = match rng.u8(..8) {
        0 => 0,
        1 => rng.usize(30..60),
        _ => rng.usize(1..6),
    };
    (0..count).map(|_| pick(rng, &TEXT_PARTS)).collect()
}

/// As [`text`], but not empty.
pub(super) fn non_empty_text(rng: &mut Rng) -> String {
    let text = text(rng);
    if text.is_empty() { "two".to_owned() } else { text }
}

/// A path of the workspace, which may not exist.
pub(super) fn path(rng: &mut Rng) -> String {
    let existing = pick(rng, &FILES).0;
    match rng.u8(..12) {
        0..5 => existing.to_owned(),
        5 => pick(rng, &["src", "src/deep", EMPTY_DIRECTORY, "."]).to_owned(),
        6 => format!("/workspace/{existing}"),
        7 => format!("./src/../{existing}"),
        8 => format!("{EMPTY_DIRECTORY}/new/{}", name(rng)),
        9 => format!("{existing}/"),
        10 => vec!["long"; 800].join("/"),
        _ => name(rng),
    }
}

/// A file name.
pub(super) fn name(rng: &mut Rng) -> String {
    let name = non_empty_text(rng).replace(['/', '.'], "_");
    match name.char_indices().nth(40) {
        Some((end, _)) => name[..end].to_owned(),
        None => name,
    }
}

/// A glob, which may be invalid.
pub(super) fn glob(rng: &mut Rng) -> String {
    match rng.u8(..4) {
        0 => non_empty_text(rng),
        _ => pick(rng, &GLOBS).to_owned(),
    }
}

/// A shell command.
pub(super) fn command(rng: &mut Rng) -> String {
    match rng.u8(..6) {
        0 => format!("printf %s {}", shell_quote(&text(rng))),
        1 => format!("true # {}", "é".repeat(rng.usize(..3000))),
        _ => pick(rng, &COMMANDS).to_owned(),
    }
}

/// A program and its arguments.
pub(super) fn argv(rng: &mut Rng) -> Vec<String> {
    let strings = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
    match rng.u8(..6) {
        0 => strings(&["true"]),
        1 => strings(&["cat"]),
        // All variables but the trace context, which differs for each call.
        2 | 3 => strings(&["env", "-u", "TRACEPARENT", "-0"]),
        4 => strings(&["/workspace/a.txt"]),
        _ => {
            let mut argv: Vec<String> = strings(&["printf", "<%s>"]);
            argv.extend((0..rng.usize(1..4)).map(|_| text(rng)));
            argv
        }
    }
}

/// A variable name.
pub(super) fn variable(rng: &mut Rng) -> String {
    match rng.u8(..6) {
        0 => non_empty_text(rng).replace('=', "_"),
        _ => pick(rng, &["A", "b_2", "X", "Y"]).to_owned(),
    }
}

/// Quotes a text for a shell.
fn shell_quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Whether the last line is before the first. The daemon then reads the file only to report its
/// line count.
pub(super) fn has_reversed_line_range(params: &Map<String, Json>) -> bool {
    let line = |name: &str| params.get(name).and_then(Json::as_u64);
    line("end_line") < line("start_line") && line("end_line").is_some()
}
