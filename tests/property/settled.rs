//! What random requests still lack that the descriptors cannot say: which fields go together, and what does no
//! harm.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use fastrand::Rng;
use jig::api::v1::{CellEdit, Encoding, RunLimits, WriteMode};
use prost_reflect::{DynamicMessage, ReflectMessage as _, Value};

use super::{stage::NOBODY, words};

/// The hash of `a.txt`.
const SUM: &str = "2489db8f307afd0858669910ccf35efca86ff7bc2d47e93bde182ee2b5d04c4f";
/// Diffs: one that applies, and others.
const DIFFS: [&str; 5] = [
    "--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+zwei \"\\\u{1f980}\n",
    "--- /dev/null\n+++ b/hollow/made\n@@ -0,0 +1 @@\n+made\n",
    "--- a/empty\n+++ b/empty\n@@ -1 +1 @@\n-one\n+two\n",
    "--- a/missing\n+++ b/missing\n@@ -1 +1 @@\n-one\n+two\n",
    "diff --git a/-dash b/hollow/-dash\nrename from -dash\nrename to hollow/-dash\n",
];

/// Makes a request of this tool one that nothing is wrong with.
pub(super) fn settle(tool: &str, message: &mut DynamicMessage, limits: &RunLimits, rng: &mut Rng) {
    match tool {
        "list_files" | "list_dir" => forget_token(message),
        "read_file" => {
            let (first, last) = (number(message, "start_line"), number(message, "end_line"));
            if let Some(last) = last {
                // Without a first one, it is 1.
                let first = first.unwrap_or(1);
                put(message, "end_line", Value::U32(last.max(first)));
            }
        }
        "write_file" => write_file(message, rng),
        "edit_file" => edit_file(message, rng),
        "apply_patch" if rng.u8(..4) > 0 => {
            let diff = words::pick(rng, &DIFFS).to_owned();
            put(message, "unified_diff", Value::String(diff));
        }
        "read_notebook" => one_cell(message, rng),
        "edit_notebook" => edit_notebook(message, rng),
        "run" => run(message, limits, rng),
        "fetch_url" => {
            let rest = words::pick(rng, &["", "a?b=c#d", "%22", "%C3%A9", "é"]);
            let url = match rng.u8(..4) {
                0 => "https://example.com/".to_owned(),
                _ => format!("{NOBODY}{rest}"),
            };
            put(message, "url", Value::String(url));
        }
        _ => {}
    }
}

/// Tokens are made by answers.
fn forget_token(message: &mut DynamicMessage) {
    if has(message, "page_token") {
        put(message, "page_token", Value::String(String::new()));
    }
}

fn write_file(message: &mut DynamicMessage, rng: &mut Rng) {
    let is = |name: &str, number: i32| {
        let value = message.get_field_by_name(name).unwrap();
        value.as_enum_number() == Some(number)
    };
    let is_new = is("mode", WriteMode::CreateNew.into());
    if is("encoding", Encoding::Base64.into()) {
        let bytes: Vec<u8> = (0..rng.usize(..100)).map(|_| rng.u8(..)).collect();
        let content = BASE64_STANDARD.encode(bytes);
        put(message, "content", Value::String(content));
    }
    a_sum(message, rng);
    if is_new {
        message.clear_field_by_name("expected_sha256");
    }
}

fn edit_file(message: &mut DynamicMessage, rng: &mut Rng) {
    let mut edits = message.get_field_by_name("edits").unwrap().into_owned();
    for edit in edits.as_list_mut().unwrap() {
        let edit = edit.as_message_mut().unwrap();
        let old = match rng.u8(..3) {
            0 => words::some_text(rng),
            _ => words::pick(rng, &["one", "two", "\n", "t", "é", "--two"]).to_owned(),
        };
        let new = text(edit, "new_string");
        let new = if new == old { format!("{new}!") } else { new };
        put(edit, "old_string", Value::String(old));
        put(edit, "new_string", Value::String(new));
    }
    put(message, "edits", edits);
    a_sum(message, rng);
}

/// The hash that a file is to have is one, be it of another.
fn a_sum(message: &mut DynamicMessage, rng: &mut Rng) {
    if has(message, "expected_sha256") {
        match rng.bool() {
            true => put(message, "expected_sha256", Value::String(SUM.to_owned())),
            false => message.clear_field_by_name("expected_sha256"),
        }
    }
}

fn edit_notebook(message: &mut DynamicMessage, rng: &mut Rng) {
    one_cell(message, rng);
    let mode = message.get_field_by_name("mode").unwrap().as_enum_number();
    if mode == Some(CellEdit::Insert.into()) && !has(message, "cell_type") {
        put(message, "cell_type", Value::EnumNumber(rng.i32(1..=3)));
    }
    if !has(message, "source") {
        put(message, "source", Value::String(words::text(rng)));
    }
    if !has(message, "cell_id") && !has(message, "cell_index") {
        put(message, "cell_index", Value::U32(rng.u32(..3)));
    }
    if rng.u8(..4) > 0 {
        put(message, "path", Value::String("book.ipynb".to_owned()));
    }
}

fn one_cell(message: &mut DynamicMessage, rng: &mut Rng) {
    if has(message, "cell_id") {
        message.clear_field_by_name("cell_index");
        if rng.bool() {
            put(message, "cell_id", Value::String("two".to_owned()));
        }
    }
    if rng.bool() {
        put(message, "path", Value::String("book.ipynb".to_owned()));
    }
}

fn run(message: &mut DynamicMessage, limits: &RunLimits, rng: &mut Rng) {
    message.clear_field_by_name("command");
    message.clear_field_by_name("argv");
    match rng.bool() {
        true => put(message, "command", Value::String(words::command(rng))),
        false => {
            let argv = words::argv(rng).into_iter().map(Value::String);
            put(message, "argv", Value::List(argv.collect()));
        }
    }
    if rng.u8(..4) > 0 {
        message.clear_field_by_name("cwd");
    }
    if has(message, "timeout_sec") {
        // Not less than the machine may need.
        let seconds = words::pick(rng, &[60, 120, 86_399, 86_400]);
        put(message, "timeout_sec", Value::U32(seconds));
    }
    if has(message, "limits") && rng.bool() {
        message.clear_field_by_name("limits");
    }
    if has(message, "limits") {
        let mut lower = message.get_field_by_name("limits").unwrap().into_owned();
        let lower_limits = lower.as_message_mut().unwrap();
        for (name, most) in [
            ("processes", limits.processes.into()),
            ("open_files", limits.open_files.into()),
            ("open_files_total", limits.open_files_total.into()),
            ("file_size_bytes", limits.file_size_bytes),
            ("memory_bytes", limits.memory_bytes),
            ("tmp_bytes", limits.tmp_bytes),
            ("tmp_inodes", limits.tmp_inodes.into()),
            ("cpu_sec", limits.cpu_sec.map_or(u64::MAX, u64::from)),
            ("output_bytes", limits.output_bytes.unwrap_or(u64::MAX)),
        ] {
            let value = lower_limits.get_field_by_name(name).unwrap().into_owned();
            let value = match value {
                Value::U32(number) => {
                    Value::U32(number.min(u32::try_from(most).unwrap_or(u32::MAX)))
                }
                Value::U64(number) => Value::U64(number.min(most)),
                other => panic!("{other:?}"),
            };
            if has(lower_limits, name) {
                put(lower_limits, name, value);
            }
        }
        put(message, "limits", lower);
    }
}

/// Whether a field is set.
pub(super) fn has(message: &DynamicMessage, name: &str) -> bool {
    let field = message.descriptor().get_field_by_name(name).unwrap();
    message.has_field(&field)
}

/// Sets a field.
pub(super) fn put(message: &mut DynamicMessage, name: &str, value: Value) {
    message.set_field_by_name(name, value);
}

/// A text.
pub(super) fn text(message: &DynamicMessage, name: &str) -> String {
    let value = message.get_field_by_name(name).unwrap();
    value.as_str().unwrap().to_owned()
}

fn number(message: &DynamicMessage, name: &str) -> Option<u32> {
    let value = message.get_field_by_name(name).unwrap();
    has(message, name).then(|| value.as_u32().unwrap())
}
