//! Ways to break one rule of a request, and nothing else.

use fastrand::Rng;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage as _, Value};
use serde_json::{Map, Value as Json, json};

use super::{
    contract::Contract,
    fixture::OUTSIDE_LINK,
    validity::{has_field, set_field},
};
use crate::support::full_size;

/// A request with something wrong.
#[derive(Debug)]
pub(super) struct FaultyRequest<T> {
    /// What is wrong.
    pub(super) what: String,
    /// The reason that is to be told.
    pub(super) reason: &'static str,
    /// The field that is to be told, if one is.
    pub(super) field: Option<String>,
    /// The request.
    pub(super) request: T,
}

const INVALID_PARAMS: &str = "INVALID_PARAMS";
/// Fields of which one is given: with both, two rules are broken.
const EXCLUSIVE_FIELDS: [(&str, &str); 2] = [("command", "argv"), ("cell_id", "cell_index")];

/// All ways to break what the descriptors say of the fields of a message.
pub(super) fn rule_faults(
    contract: &Contract,
    message: &DynamicMessage,
) -> Vec<FaultyRequest<DynamicMessage>> {
    let mut faults = Vec::new();
    for field in message.descriptor().fields() {
        let mut add = |what: &str, place: String, value: Option<Value>| {
            let mut request = message.clone();
            for (one, other) in EXCLUSIVE_FIELDS {
                let away = match field.name() {
                    name if name == one => other,
                    name if name == other => one,
                    _ => continue,
                };
                request.clear_field_by_name(away);
            }
            match value {
                Some(value) => request.set_field(&field, value),
                None => request.clear_field(&field),
            }
            faults.push(FaultyRequest {
                what: format!("{what} {place}"),
                reason: INVALID_PARAMS,
                field: Some(place),
                request,
            });
        };
        let (name, rules) = (field.name().to_owned(), contract.rules(&field));
        if rules.required {
            add("no", name.clone(), None);
        }
        for number in [
            rules.minimum.filter(|least| *least > 0).map(|least| least - 1),
            rules.maximum.map(|most| most + 1),
        ] {
            let value = number.and_then(|number| match field.kind() {
                Kind::Uint32 => u32::try_from(number).ok().map(Value::U32),
                Kind::Uint64 => u64::try_from(number).ok().map(Value::U64),
                other => panic!("{other:?}"),
            });
            if value.is_some() {
                add("a number beyond the range of", name.clone(), value);
            }
        }
        if let Kind::Enum(_) = field.kind() {
            add("no value of", name.clone(), Some(Value::EnumNumber(99)));
        }
        let place = match (field.is_map(), field.is_list()) {
            (true, _) => format!("{name}[\"K\"]"),
            (_, true) => format!("{name}[0]"),
            (_, _) => name.clone(),
        };
        // What is large takes its time, and a request has no more than 16 MiB.
        let longest = full_size(10 << 20, 128 << 10);
        if let Some(most) =
            rules.max_bytes.map(|most| most as usize).filter(|most| *most <= longest)
        {
            let long = "l".repeat(most + 1);
            add("too much in", place.clone(), Some(wrap_value(&field, &long)));
        }
        if rules.no_nul {
            add("a NUL character in", place.clone(), Some(wrap_value(&field, "a\0b")));
        }
        if let Some(most) = rules.max_items {
            let value = match field.is_map() {
                true => Value::Map(
                    (0..=most)
                        .map(|number| {
                            (MapKey::String(format!("K{number}")), Value::String(String::new()))
                        })
                        .collect(),
                ),
                false => {
                    let item = match message.get_field(&field).as_list().unwrap().first() {
                        Some(item) => item.clone(),
                        None => Value::String("l".to_owned()),
                    };
                    Value::List(vec![item; most as usize + 1])
                }
            };
            add("too many of", name.clone(), Some(value));
        }
        nested_faults(contract, message, &field, &mut faults);
    }
    faults
}

/// What can be wrong with a message within a message.
fn nested_faults(
    contract: &Contract,
    message: &DynamicMessage,
    field: &FieldDescriptor,
    faults: &mut Vec<FaultyRequest<DynamicMessage>>,
) {
    let value = message.get_field(field);
    let (within, prefix) = match value.as_ref() {
        Value::Message(within) => (within, format!("{}.", field.name())),
        Value::List(items) => match items.first() {
            Some(Value::Message(within)) => (within, format!("{}[0].", field.name())),
            _ => return,
        },
        _ => return,
    };
    for fault in rule_faults(contract, within) {
        let mut request = message.clone();
        let broken = Value::Message(fault.request);
        let value = match value.as_ref() {
            Value::List(items) => {
                let mut items = items.clone();
                items[0] = broken;
                Value::List(items)
            }
            _ => broken,
        };
        request.set_field(field, value);
        faults.push(FaultyRequest {
            field: fault.field.map(|name| format!("{prefix}{name}")),
            request,
            ..fault
        });
    }
}

/// A text as the value of a field, or in it.
fn wrap_value(field: &FieldDescriptor, text: &str) -> Value {
    let text = match field.kind() {
        Kind::Bytes => return Value::Bytes(text.as_bytes().to_vec().into()),
        _ => Value::String(text.to_owned()),
    };
    match (field.is_map(), field.is_list()) {
        (true, _) => Value::Map([(MapKey::String("K".to_owned()), text)].into()),
        (_, true) => Value::List(vec![text]),
        (_, _) => text,
    }
}

/// Ways to break what only the tool knows.
pub(super) fn tool_faults(
    contract: &Contract,
    tool: &str,
    message: &DynamicMessage,
) -> Vec<FaultyRequest<DynamicMessage>> {
    let mut faults = Vec::new();
    let mut add = |what: &str, reason, field: Option<&str>, changes: &[(&str, Value)]| {
        let mut request = message.clone();
        for (name, value) in changes {
            set_field(&mut request, name, value.clone());
        }
        faults.push(FaultyRequest {
            what: what.to_owned(),
            reason,
            field: field.map(str::to_owned),
            request,
        });
    };
    let text = |text: &str| Value::String(text.to_owned());
    for field in message.descriptor().fields() {
        if !contract.rules(&field).path {
            continue;
        }
        for outside in ["..", "../x", "/etc/passwd", "src/../../x", "/workspace/../x", "/"] {
            add(outside, "PATH_ESCAPE", None, &[(field.name(), text(outside))]);
        }
    }
    let linked = format!("{OUTSIDE_LINK}/etc/passwd");
    match tool {
        "list_files" | "list_dir" => {
            let token = [("page_token", text("no token"))];
            add("no token", INVALID_PARAMS, Some("page_token"), &token);
        }
        "read_file" => {
            let lines = [("start_line", Value::U32(5)), ("end_line", Value::U32(4))];
            add("backwards", INVALID_PARAMS, Some("end_line"), &lines);
            add("a link", "SYMLINK_BLOCKED", None, &[("path", text(&linked))]);
        }
        "write_file" => {
            let content = [("content", text("?")), ("encoding", Value::EnumNumber(2))];
            add("no base64", INVALID_PARAMS, Some("content"), &content);
            let sum = [("expected_sha256", text("ABC"))];
            add("no sum", INVALID_PARAMS, Some("expected_sha256"), &sum);
            let sum = text(&"0".repeat(64));
            let new = [("expected_sha256", sum), ("mode", Value::EnumNumber(2))];
            add("a new one's sum", INVALID_PARAMS, Some("expected_sha256"), &new);
        }
        "edit_file" => {
            let sum = [("expected_sha256", text("0"))];
            add("no sum", INVALID_PARAMS, Some("expected_sha256"), &sum);
            let mut edits = message.get_field_by_name("edits").unwrap().into_owned();
            let edit = edits.as_list_mut().unwrap()[0].as_message_mut().unwrap();
            let old = edit.get_field_by_name("old_string").unwrap().into_owned();
            set_field(edit, "new_string", old);
            add("no change", INVALID_PARAMS, Some("edits[0].new_string"), &[("edits", edits)]);
        }
        "search" => {
            let none = || Value::List(Vec::new());
            let query = [
                ("query", text("(")),
                ("is_regex", Value::Bool(true)),
                ("globs", none()),
                ("exclude_globs", none()),
            ];
            add("no expression", "INVALID_REGEX", None, &query);
            let globs = Value::List(vec![text("{")]);
            add("no glob", "INVALID_GLOB", None, &[("globs", globs)]);
        }
        "read_notebook" | "edit_notebook" => {
            let cell = [("cell_id", text("two")), ("cell_index", Value::U32(1))];
            add("two cells", INVALID_PARAMS, Some("cell_index"), &cell);
        }
        "run" => {
            let program = [("command", text("true")), ("argv", Value::List(vec![text("true")]))];
            add("two programs", INVALID_PARAMS, Some("command"), &program);
            let none = [("command", text(" ")), ("argv", Value::List(Vec::new()))];
            add("no program", INVALID_PARAMS, Some("command"), &none);
            for (name, place) in [("A=B", "env[\"A=B\"]"), ("", "env[\"\"]")] {
                let env = Value::Map([(MapKey::String(name.to_owned()), text("x"))].into());
                add("no name", INVALID_PARAMS, Some(place), &[("env", env)]);
            }
        }
        "fetch_url" => {
            for url in
                ["ftp://127.0.0.1/", "http://a:b@127.0.0.1/", "http://a b/", "two", "http://"]
            {
                add(url, INVALID_PARAMS, Some("url"), &[("url", text(url))]);
            }
        }
        _ => {}
    }
    faults
}

/// Ways to break what JSON has to look like: of a request as JSON.
pub(super) fn json_faults(
    message: &DynamicMessage,
    spelled: &Map<String, Json>,
    rng: &mut Rng,
) -> Vec<FaultyRequest<Map<String, Json>>> {
    let mut faults = Vec::new();
    let mut add = |what: String, field: String, name: &str, value: Json| {
        let mut request = spelled.clone();
        request.insert(name.to_owned(), value);
        faults.push(FaultyRequest { what, reason: INVALID_PARAMS, field: Some(field), request });
    };
    for name in ["zulu", "Path", "", "a.b", "path "] {
        add("unknown".to_owned(), name.to_owned(), name, json!("x"));
    }
    for field in message.descriptor().fields() {
        // As it is written already, where it is.
        let written = match spelled.contains_key(field.json_name()) {
            true => field.json_name(),
            false => field.name(),
        };
        for (value, place) in wrong_values(&field, rng) {
            let what = format!("{value:.100} for {written}");
            add(what, format!("{written}{place}"), written, value);
        }
        if has_field(message, field.name()) && field.json_name() != field.name() {
            let other = match written == field.name() {
                true => field.json_name(),
                false => field.name(),
            };
            let value = spelled[written].clone();
            // Of two, the second in the order of their names is told.
            let reported_field = written.max(other).to_owned();
            add(format!("{written} twice"), reported_field, other, value);
        }
    }
    faults
}

/// Values that are none of a field's, and where in it that is told.
fn wrong_values(field: &FieldDescriptor, rng: &mut Rng) -> Vec<(Json, String)> {
    if field.is_map() {
        let twice = json!({"key": "A", "value": "1"});
        let mut wrong = with_location(
            &[json!(5), json!("A"), json!([{"key": "A"}]), json!([twice, twice])],
            "",
        );
        wrong.extend(with_location(&[json!({"A": 5}), json!({"A": null})], "[\"A\"]"));
        return wrong;
    }
    let single: Vec<Json> = match field.kind() {
        Kind::String => vec![json!(5), json!(true), json!(["a"]), json!({})],
        Kind::Bool => vec![json!("maybe"), json!(1), json!([true]), json!("TRUE")],
        Kind::Uint32 => {
            let beyond = rng.u64(1 << 32..1 << 40);
            vec![json!(-1), json!(1.5), json!(beyond), json!("two"), json!(true), json!("")]
        }
        Kind::Uint64 => vec![json!(-1), json!(1.5), json!(1e30), json!("two"), json!([1])],
        Kind::Enum(_) => vec![json!("NONSENSE"), json!(true), json!(-1), json!(1.5), json!("")],
        Kind::Bytes => vec![json!("?"), json!(5), json!([1, 2]), json!("ab=c")],
        Kind::Message(_) => {
            let mut wrong = with_location(&[json!("x"), json!(5), json!([[]])], "");
            if field.is_list() {
                wrong = with_location(&[json!(["x"]), json!([null]), json!([[]])], "[0]");
                wrong.extend(with_location(&[json!({}), json!("x")], ""));
                wrong.push((json!([{"zulu": 1}]), "[0].zulu".to_owned()));
            } else {
                wrong.push((json!({"zulu": 1}), ".zulu".to_owned()));
            }
            return wrong;
        }
        other => panic!("{other:?} is new: say what is none"),
    };
    match field.is_list() {
        true => {
            let items = single.into_iter().chain([Json::Null]);
            let mut wrong: Vec<_> = items.map(|item| (json!([item]), "[0]".to_owned())).collect();
            wrong.extend(with_location(&[json!({}), json!("x"), json!(5)], ""));
            wrong
        }
        false => with_location(&single, ""),
    }
}

fn with_location(values: &[Json], place: &str) -> Vec<(Json, String)> {
    values.iter().map(|value| (value.clone(), place.to_owned())).collect()
}
