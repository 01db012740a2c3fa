//! Adjusts random requests to rules that the descriptors cannot express: fields that belong
//! together, and harmless values.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use fastrand::Rng;
use jig::api::v1::{CellEdit, Encoding, RunLimits, WriteMode};
use prost_reflect::{DynamicMessage, ReflectMessage as _, Value};

use super::{fixture::UNREACHABLE_URL, generators};

/// SHA-256 of `a.txt`.
const A_TXT_SHA256: &str = "2489db8f307afd0858669910ccf35efca86ff7bc2d47e93bde182ee2b5d04c4f";
/// Diffs, of which only the first applies.
const DIFFS: [&str; 5] = [
    "--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+zwei \"\\\u{1f980}\n",
    "--- /dev/null\n+++ b/hollow/made\n@@ -0,0 +1 @@\n+made\n",
    "--- a/empty\n+++ b/empty\n@@ -1 +1 @@\n-one\n+two\n",
    "--- a/missing\n+++ b/missing\n@@ -1 +1 @@\n-one\n+two\n",
    "diff --git a/-dash b/hollow/-dash\nrename from -dash\nrename to hollow/-dash\n",
];

/// Makes a random request of a tool valid.
pub(super) fn make_valid(
    tool: &str,
    message: &mut DynamicMessage,
    limits: &RunLimits,
    rng: &mut Rng,
) {
    match tool {
        "list_files" | "list_dir" => clear_page_token(message),
        "read_file" => {
            let (first, last) =
                (number_field(message, "start_line"), number_field(message, "end_line"));
            if let Some(last) = last {
                // The first line defaults to 1.
                let first = first.unwrap_or(1);
                set_field(message, "end_line", Value::U32(last.max(first)));
            }
        }
        "write_file" => make_write_file_valid(message, rng),
        "edit_file" => make_edit_file_valid(message, rng),
        "apply_patch" if rng.u8(..4) > 0 => {
            let diff = generators::pick(rng, &DIFFS).to_owned();
            set_field(message, "unified_diff", Value::String(diff));
        }
        "read_notebook" => keep_one_cell_selector(message, rng),
        "edit_notebook" => make_edit_notebook_valid(message, rng),
        "run" => make_run_valid(message, limits, rng),
        "fetch_url" => {
            let rest = generators::pick(rng, &["", "a?b=c#d", "%22", "%C3%A9", "é"]);
            let url = match rng.u8(..4) {
                0 => "https://example.com/".to_owned(),
                _ => format!("{UNREACHABLE_URL}{rest}"),
            };
            set_field(message, "url", Value::String(url));
        }
        _ => {}
    }
}

/// Page tokens come from earlier responses.
fn clear_page_token(message: &mut DynamicMessage) {
    if has_field(message, "page_token") {
        set_field(message, "page_token", Value::String(String::new()));
    }
}

fn make_write_file_valid(message: &mut DynamicMessage, rng: &mut Rng) {
    let is_value = |name: &str, number: i32| {
        let value = message.get_field_by_name(name).unwrap();
        value.as_enum_number() == Some(number)
    };
    let is_new = is_value("mode", WriteMode::CreateNew.into());

    if is_value("encoding", Encoding::Base64.into()) {
        let bytes: Vec<u8> = (0..rng.usize(..100)).map(|_| rng.u8(..)).collect();
        let content = BASE64_STANDARD.encode(bytes);
        set_field(message, "content", Value::String(content));
    }

    make_expected_hash_valid(message, rng);
    if is_new {
        message.clear_field_by_name("expected_sha256");
    }
}

fn make_edit_file_valid(message: &mut DynamicMessage, rng: &mut Rng) {
    let mut edits = message.get_field_by_name("edits").unwrap().into_owned();
    for edit in edits.as_list_mut().unwrap() {
        let edit = edit.as_message_mut().unwrap();
        let old = match rng.u8(..3) {
            0 => generators::non_empty_text(rng),
            _ => generators::pick(rng, &["one", "two", "\n", "t", "é", "--two"]).to_owned(),
        };
        let new = string_field(edit, "new_string");
        let new = if new == old { format!("{new}!") } else { new };
        set_field(edit, "old_string", Value::String(old));
        set_field(edit, "new_string", Value::String(new));
    }

    set_field(message, "edits", edits);
    make_expected_hash_valid(message, rng);
}

/// Sets the expected hash to that of `a.txt` or clears it.
fn make_expected_hash_valid(message: &mut DynamicMessage, rng: &mut Rng) {
    if has_field(message, "expected_sha256") {
        if rng.bool() {
            set_field(message, "expected_sha256", Value::String(A_TXT_SHA256.to_owned()));
        } else {
            message.clear_field_by_name("expected_sha256");
        }
    }
}

fn make_edit_notebook_valid(message: &mut DynamicMessage, rng: &mut Rng) {
    keep_one_cell_selector(message, rng);
    let mode = message.get_field_by_name("mode").unwrap().as_enum_number();
    if mode == Some(CellEdit::Insert.into()) && !has_field(message, "cell_type") {
        set_field(message, "cell_type", Value::EnumNumber(rng.i32(1..=3)));
    }

    if !has_field(message, "source") {
        set_field(message, "source", Value::String(generators::text(rng)));
    }

    if !has_field(message, "cell_id") && !has_field(message, "cell_index") {
        set_field(message, "cell_index", Value::U32(rng.u32(..3)));
    }

    if rng.u8(..4) > 0 {
        set_field(message, "path", Value::String("book.ipynb".to_owned()));
    }
}

fn keep_one_cell_selector(message: &mut DynamicMessage, rng: &mut Rng) {
    if has_field(message, "cell_id") {
        message.clear_field_by_name("cell_index");
        if rng.bool() {
            set_field(message, "cell_id", Value::String("two".to_owned()));
        }
    }

    if rng.bool() {
        set_field(message, "path", Value::String("book.ipynb".to_owned()));
    }
}

fn make_run_valid(message: &mut DynamicMessage, limits: &RunLimits, rng: &mut Rng) {
    message.clear_field_by_name("command");
    message.clear_field_by_name("argv");
    // The state of a shell would differ from one call to the next.
    message.clear_field_by_name("shell");
    message.clear_field_by_name("restart_shell");

    if rng.bool() {
        set_field(message, "command", Value::String(generators::command(rng)));
    } else {
        let argv = generators::argv(rng).into_iter().map(Value::String);
        set_field(message, "argv", Value::List(argv.collect()));
    }

    if rng.u8(..4) > 0 {
        message.clear_field_by_name("cwd");
    }

    if has_field(message, "timeout_sec") {
        // Long enough for a slow machine.
        let seconds = generators::pick(rng, &[60, 120, 86_399, 86_400]);
        set_field(message, "timeout_sec", Value::U32(seconds));
    }

    if has_field(message, "limits") && rng.bool() {
        message.clear_field_by_name("limits");
    }

    if has_field(message, "limits") {
        let mut lower = message.get_field_by_name("limits").unwrap().into_owned();
        let lower_limits = lower.as_message_mut().unwrap();
        for (name, limit) in [
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
                    Value::U32(number.min(u32::try_from(limit).unwrap_or(u32::MAX)))
                }
                Value::U64(number) => Value::U64(number.min(limit)),
                value => panic!("{value:?}"),
            };

            if has_field(lower_limits, name) {
                set_field(lower_limits, name, value);
            }
        }

        set_field(message, "limits", lower);
    }
}

pub(super) fn has_field(message: &DynamicMessage, name: &str) -> bool {
    let field = message.descriptor().get_field_by_name(name).unwrap();
    message.has_field(&field)
}

pub(super) fn set_field(message: &mut DynamicMessage, name: &str, value: Value) {
    message.set_field_by_name(name, value);
}

/// The value of a string field.
pub(super) fn string_field(message: &DynamicMessage, name: &str) -> String {
    let value = message.get_field_by_name(name).unwrap();
    value.as_str().unwrap().to_owned()
}

fn number_field(message: &DynamicMessage, name: &str) -> Option<u32> {
    let value = message.get_field_by_name(name).unwrap();
    has_field(message, name).then(|| value.as_u32().unwrap())
}
