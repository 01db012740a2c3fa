//! Faults that break exactly one rule of a request.

use fastrand::Rng;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage as _, Value};
use serde_json::{Map, Value as Json, json};

use super::{
    contract::Contract,
    fixture::OUTSIDE_LINK,
    validity::{has_field, set_field},
};
use crate::support::full_size;

/// A request with one fault.
#[derive(Debug)]
pub(super) struct FaultyRequest<T> {
    /// Description of the fault.
    pub(super) description: String,
    /// The expected reason.
    pub(super) reason: &'static str,
    /// The field that the error must name, if any.
    pub(super) field: Option<String>,
    pub(super) request: T,
}

const INVALID_PARAMS: &str = "INVALID_PARAMS";
/// Pairs of fields of which one may be set: both would break a second rule.
const EXCLUSIVE_FIELDS: [(&str, &str); 2] = [("command", "argv"), ("cell_id", "cell_index")];

/// All faults against the declared rules of a message's fields.
pub(super) fn rule_faults(
    contract: &Contract,
    message: &DynamicMessage,
) -> Vec<FaultyRequest<DynamicMessage>> {
    let mut faults = Vec::new();
    for field in message.descriptor().fields() {
        for (description, location, value) in field_faults(contract, message, &field) {
            let mut request = message.clone();
            clear_alternative(&mut request, field.name());
            match value {
                Some(value) => request.set_field(&field, value),
                None => request.clear_field(&field),
            }

            faults.push(FaultyRequest {
                description: format!("{description} {location}"),
                reason: INVALID_PARAMS,
                field: Some(location),
                request,
            });
        }

        nested_faults(contract, message, &field, &mut faults);
    }

    faults
}

/// All faults of a field: description, location, and the invalid value, or none to clear the field.
fn field_faults(
    contract: &Contract,
    message: &DynamicMessage,
    field: &FieldDescriptor,
) -> Vec<(&'static str, String, Option<Value>)> {
    let mut faults = Vec::new();
    let (name, rules) = (field.name().to_owned(), contract.rules(field));
    if rules.required {
        faults.push(("no", name.clone(), None));
    }

    for number in
        [rules.minimum.filter(|min| *min > 0).map(|min| min - 1), rules.maximum.map(|max| max + 1)]
    {
        let value = number.and_then(|number| match field.kind() {
            Kind::Uint32 => u32::try_from(number).ok().map(Value::U32),
            Kind::Uint64 => u64::try_from(number).ok().map(Value::U64),
            kind => panic!("{kind:?}"),
        });

        if value.is_some() {
            faults.push(("a number beyond the range of", name.clone(), value));
        }
    }

    if let Kind::Enum(_) = field.kind() {
        faults.push(("no value of", name.clone(), Some(Value::EnumNumber(99))));
    }

    let location = match (field.is_map(), field.is_list()) {
        (true, _) => format!("{name}[\"K\"]"),
        (_, true) => format!("{name}[0]"),
        (_, _) => name.clone(),
    };

    // Large values take time, and a request is limited to 16 MiB.
    let max_tested_bytes = full_size(10 << 20, 128 << 10);
    if let Some(max_bytes) = rules
        .max_bytes
        .map(|max_bytes| max_bytes as usize)
        .filter(|max_bytes| *max_bytes <= max_tested_bytes)
    {
        let long = "l".repeat(max_bytes + 1);
        faults.push(("too much in", location.clone(), Some(wrap_value(field, &long))));
    }

    if rules.no_nul {
        faults.push(("a NUL character in", location.clone(), Some(wrap_value(field, "a\0b"))));
    }

    if let Some(max_items) = rules.max_items {
        let value = excess_items(message, field, max_items);
        faults.push(("too many of", name.clone(), Some(value)));
    }

    faults
}

/// Clears the field that excludes `name`.
fn clear_alternative(message: &mut DynamicMessage, name: &str) {
    for (first, second) in EXCLUSIVE_FIELDS {
        if name == first {
            message.clear_field_by_name(second);
        } else if name == second {
            message.clear_field_by_name(first);
        }
    }
}

/// A list or map with one item more than `max_items`.
fn excess_items(message: &DynamicMessage, field: &FieldDescriptor, max_items: u32) -> Value {
    if field.is_map() {
        let entry = |number| (MapKey::String(format!("K{number}")), Value::String(String::new()));
        return Value::Map((0..=max_items).map(entry).collect());
    }

    let item = match message.get_field(field).as_list().unwrap().first() {
        Some(item) => item.clone(),
        None => Value::String("l".to_owned()),
    };
    Value::List(vec![item; max_items as usize + 1])
}

/// Adds the faults of a message within a message.
fn nested_faults(
    contract: &Contract,
    message: &DynamicMessage,
    field: &FieldDescriptor,
    faults: &mut Vec<FaultyRequest<DynamicMessage>>,
) {
    let value = message.get_field(field);
    let (inner, prefix) = match value.as_ref() {
        Value::Message(inner) => (inner, format!("{}.", field.name())),
        Value::List(items) => match items.first() {
            Some(Value::Message(inner)) => (inner, format!("{}[0].", field.name())),
            _ => return,
        },
        _ => return,
    };

    for fault in rule_faults(contract, inner) {
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

/// A text as the value of a field, or as an item of the value.
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

/// Faults that only the tool itself can detect.
pub(super) fn tool_faults(
    contract: &Contract,
    tool: &str,
    message: &DynamicMessage,
) -> Vec<FaultyRequest<DynamicMessage>> {
    let mut faults = Vec::new();
    let mut add = |description: &str, reason, field: Option<&str>, changes: &[(&str, Value)]| {
        let mut request = message.clone();
        for (name, value) in changes {
            set_field(&mut request, name, value.clone());
        }
        faults.push(FaultyRequest {
            description: description.to_owned(),
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
            let hash = [("expected_sha256", text("ABC"))];
            add("no hash", INVALID_PARAMS, Some("expected_sha256"), &hash);
            let hash = text(&"0".repeat(64));
            let new = [("expected_sha256", hash), ("mode", Value::EnumNumber(2))];
            add("a hash for a new file", INVALID_PARAMS, Some("expected_sha256"), &new);
        }
        "edit_file" => {
            let hash = [("expected_sha256", text("0"))];
            add("no hash", INVALID_PARAMS, Some("expected_sha256"), &hash);
            let mut edits = message.get_field_by_name("edits").unwrap().into_owned();
            let edit = edits.as_list_mut().unwrap()[0].as_message_mut().unwrap();
            let old = edit.get_field_by_name("old_string").unwrap().into_owned();
            set_field(edit, "new_string", old);
            add("no change", INVALID_PARAMS, Some("edits[0].new_string"), &[("edits", edits)]);
        }
        "search" => {
            let empty = || Value::List(Vec::new());
            let query = [
                ("query", text("(")),
                ("is_regex", Value::Bool(true)),
                ("globs", empty()),
                ("exclude_globs", empty()),
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
            let blank = [("command", text(" ")), ("argv", Value::List(Vec::new()))];
            add("no program", INVALID_PARAMS, Some("command"), &blank);
            for (name, location) in [("A=B", "env[\"A=B\"]"), ("", "env[\"\"]")] {
                let env = Value::Map([(MapKey::String(name.to_owned()), text("x"))].into());
                add("no name", INVALID_PARAMS, Some(location), &[("env", env)]);
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

/// Faults against the JSON mapping.
pub(super) fn json_faults(
    message: &DynamicMessage,
    json: &Map<String, Json>,
    rng: &mut Rng,
) -> Vec<FaultyRequest<Map<String, Json>>> {
    let mut faults = Vec::new();
    let mut add = |description: String, field: String, name: &str, value: Json| {
        let mut request = json.clone();
        request.insert(name.to_owned(), value);
        faults.push(FaultyRequest {
            description,
            reason: INVALID_PARAMS,
            field: Some(field),
            request,
        });
    };

    for name in ["zulu", "Path", "", "a.b", "path "] {
        add("unknown".to_owned(), name.to_owned(), name, json!("x"));
    }

    for field in message.descriptor().fields() {
        // Under the name that the request uses already, if it does.
        let used_name =
            if json.contains_key(field.json_name()) { field.json_name() } else { field.name() };
        for (value, location) in wrong_values(&field, rng) {
            let description = format!("{value:.100} for {used_name}");
            add(description, format!("{used_name}{location}"), used_name, value);
        }
        if has_field(message, field.name()) && field.json_name() != field.name() {
            let other_name =
                if used_name == field.name() { field.json_name() } else { field.name() };
            let value = json[used_name].clone();

            // The daemon reports the second name in their order.
            let reported_field = used_name.max(other_name).to_owned();
            add(format!("{used_name} twice"), reported_field, other_name, value);
        }
    }

    faults
}

/// Values that a field cannot have, with the location of the error within it.
fn wrong_values(field: &FieldDescriptor, rng: &mut Rng) -> Vec<(Json, String)> {
    if field.is_map() {
        let entry = json!({"key": "A", "value": "1"});
        let mut values = with_location(
            &[json!(5), json!("A"), json!([{"key": "A"}]), json!([entry, entry])],
            "",
        );
        values.extend(with_location(&[json!({"A": 5}), json!({"A": null})], "[\"A\"]"));
        return values;
    }

    let single: Vec<Json> = match field.kind() {
        Kind::String => vec![json!(5), json!(true), json!(["a"]), json!({})],
        Kind::Bool => vec![json!("maybe"), json!(1), json!([true]), json!("TRUE")],
        Kind::Uint32 => {
            let too_large = rng.u64(1 << 32..1 << 40);
            vec![json!(-1), json!(1.5), json!(too_large), json!("two"), json!(true), json!("")]
        }
        Kind::Uint64 => vec![json!(-1), json!(1.5), json!(1e30), json!("two"), json!([1])],
        Kind::Enum(_) => vec![json!("NONSENSE"), json!(true), json!(-1), json!(1.5), json!("")],
        Kind::Bytes => vec![json!("?"), json!(5), json!([1, 2]), json!("ab=c")],
        Kind::Message(_) => {
            let mut values = with_location(&[json!("x"), json!(5), json!([[]])], "");
            if field.is_list() {
                values = with_location(&[json!(["x"]), json!([null]), json!([[]])], "[0]");
                values.extend(with_location(&[json!({}), json!("x")], ""));
                values.push((json!([{"zulu": 1}]), "[0].zulu".to_owned()));
            } else {
                values.push((json!({"zulu": 1}), ".zulu".to_owned()));
            }
            return values;
        }
        kind => panic!("{kind:?} has no invalid values here"),
    };

    if field.is_list() {
        let items = single.into_iter().chain([Json::Null]);
        let mut values: Vec<_> = items.map(|item| (json!([item]), "[0]".to_owned())).collect();
        values.extend(with_location(&[json!({}), json!("x"), json!(5)], ""));
        values
    } else {
        with_location(&single, "")
    }
}

fn with_location(values: &[Json], location: &str) -> Vec<(Json, String)> {
    values.iter().map(|value| (value.clone(), location.to_owned())).collect()
}
