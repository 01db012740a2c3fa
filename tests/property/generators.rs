//! Texts, paths and the like: what callers send, and what they should not have to think about.

use fastrand::Rng;
use serde_json::{Map, Value as Json};

use super::fixture::{EMPTY_DIRECTORY, FILES};

/// What texts are put together from.
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
/// What globs are put together from.
const GLOBS: [&str; 10] =
    ["*", "**/*.rs", "*.{txt,md}", "src/**", "!a.txt", "[a-c]*", "ü*", "**", "a.txt", "{"];
/// Commands that do no harm.
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

/// One of several.
pub(super) fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(..of.len())]
}

/// Any text, but without a NUL character; perhaps empty.
pub(super) fn text(rng: &mut Rng) -> String {
    let count = match rng.u8(..8) {
        0 => 0,
        1 => rng.usize(30..60),
        _ => rng.usize(1..6),
    };
    (0..count).map(|_| pick(rng, &TEXT_PARTS)).collect()
}

/// The same, not empty.
pub(super) fn non_empty_text(rng: &mut Rng) -> String {
    let text = text(rng);
    match text.is_empty() {
        true => "two".to_owned(),
        false => text,
    }
}

/// A path of the workspace, where something is or nothing.
pub(super) fn path(rng: &mut Rng) -> String {
    let there = pick(rng, &FILES).0;
    match rng.u8(..12) {
        0..5 => there.to_owned(),
        5 => pick(rng, &["src", "src/deep", EMPTY_DIRECTORY, "."]).to_owned(),
        6 => format!("/workspace/{there}"),
        7 => format!("./src/../{there}"),
        8 => format!("{EMPTY_DIRECTORY}/new/{}", name(rng)),
        9 => format!("{there}/"),
        10 => vec!["long"; 800].join("/"),
        _ => name(rng),
    }
}

/// The name of a file.
pub(super) fn name(rng: &mut Rng) -> String {
    let name = non_empty_text(rng).replace(['/', '.'], "_");
    match name.char_indices().nth(40) {
        Some((end, _)) => name[..end].to_owned(),
        None => name,
    }
}

/// A glob, which need not be one.
pub(super) fn glob(rng: &mut Rng) -> String {
    match rng.u8(..4) {
        0 => non_empty_text(rng),
        _ => pick(rng, &GLOBS).to_owned(),
    }
}

/// A command for a shell.
pub(super) fn command(rng: &mut Rng) -> String {
    match rng.u8(..6) {
        0 => format!("printf %s {}", shell_quote(&text(rng))),
        1 => format!("true # {}", "é".repeat(rng.usize(..3000))),
        _ => pick(rng, &COMMANDS).to_owned(),
    }
}

/// A program and its arguments.
pub(super) fn argv(rng: &mut Rng) -> Vec<String> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    match rng.u8(..6) {
        0 => words(&["true"]),
        1 => words(&["cat"]),
        // All variables, but for that of the trace, which is another for each call.
        2 | 3 => words(&["env", "-u", "TRACEPARENT", "-0"]),
        4 => words(&["/workspace/a.txt"]),
        _ => {
            let mut argv: Vec<String> = words(&["printf", "<%s>"]);
            argv.extend((0..rng.usize(1..4)).map(|_| text(rng)));
            argv
        }
    }
}

/// The name of a variable.
pub(super) fn variable(rng: &mut Rng) -> String {
    match rng.u8(..6) {
        0 => non_empty_text(rng).replace('=', "_"),

        _ => pick(rng, &["A", "b_2", "X", "Y"]).to_owned(),
    }
}

/// A text as a word of a shell.
fn shell_quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Whether lines end before they begin: then it is only asked how many the file has, to say so.
pub(super) fn has_reversed_line_range(params: &Map<String, Json>) -> bool {
    let line = |name: &str| params.get(name).and_then(Json::as_u64);
    line("end_line") < line("start_line") && line("end_line").is_some()
}
