//! Values in scenarios: generators of long values, and patterns that responses must match.

use serde_json::{Map, Value as Json};
use sha2::{Digest as _, Sha256};

/// Expands a value of a scenario. `{"$repeat": [TEXT, TIMES]}` repeats a text,
/// `{"$lines": [FIRST, LAST, "line {}"]}` makes numbered lines, `{"$join": [...]}` joins several of
/// these, and `{"$sha256": TEXT}` is the digest of one.
pub(super) fn expand(json: Json) -> Json {
    match json {
        Json::Array(items) => items.into_iter().map(expand).collect(),
        Json::Object(fields) => match single_field(&fields) {
            Some(("$repeat", Json::Array(argument))) => {
                let [Json::String(text), times] = &argument[..] else {
                    panic!("{argument:?}");
                };
                let times = usize::try_from(times.as_u64().unwrap()).unwrap();
                text.repeat(times).into()
            }
            Some(("$lines", Json::Array(argument))) => {
                let [first, last, Json::String(text)] = &argument[..] else {
                    panic!("{argument:?}");
                };
                let numbers = first.as_u64().unwrap()..=last.as_u64().unwrap();
                let lines = numbers.map(|number| text.replace("{}", &number.to_string()) + "\n");
                lines.collect::<String>().into()
            }
            Some(("$join", Json::Array(parts))) => {
                let parts = parts.iter().cloned().map(expand);
                let texts = parts.map(|part| part.as_str().unwrap().to_owned());
                texts.collect::<String>().into()
            }
            Some(("$sha256", argument)) => {
                let text = expand(argument.clone());
                let digest = Sha256::digest(text.as_str().unwrap());
                let digits = digest.iter().map(|byte| format!("{byte:02x}"));
                digits.collect::<String>().into()
            }
            _ => {
                let fields = fields.into_iter();
                Json::Object(fields.map(|(name, json)| (name, expand(json))).collect())
            }
        },
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => json,
    }
}

/// The first difference between `found` and `wanted`. Numbers are compared by value. In `wanted`,
/// `{"$any": "number"}` (or another type) matches any value of that type, `{"$has": [...]}` a text
/// that contains all of these, `{"$with": {...}}` an object that has these fields among others, and
/// `{"$count": N}` a list of N items.
pub(super) fn difference(wanted: &Json, found: &Json, path: &str) -> Option<String> {
    let differs =
        || Some(format!("{path}: {}, expected {}", abbreviate(found), abbreviate(wanted)));
    match (wanted, found) {
        (Json::Object(fields), _)
            if single_field(fields).is_some_and(|(name, _)| name.starts_with('$')) =>
        {
            let (name, argument) = single_field(fields).unwrap();
            let is_match = match (name, argument, found) {
                ("$any", Json::String(kind), found) => kind == json_type(found),
                ("$has", Json::Array(parts), Json::String(text)) => {
                    let mut parts = parts.iter().map(|part| part.as_str().unwrap());
                    parts.all(|part| text.contains(part))
                }
                ("$count", argument, Json::Array(items)) => {
                    argument.as_u64() == Some(items.len() as u64)
                }
                ("$with", Json::Object(some), Json::Object(all)) => {
                    return some.iter().find_map(|(name, wanted)| {
                        let found = all.get(name).unwrap_or(&Json::Null);
                        difference(wanted, found, &format!("{path}.{name}"))
                    });
                }
                _ => false,
            };
            if is_match { None } else { differs() }
        }
        (Json::Object(wanted), Json::Object(found)) => {
            if let Some(name) = found.keys().find(|name| !wanted.contains_key(*name)) {
                return Some(format!("{path}.{name} is unexpected: {}", abbreviate(&found[name])));
            }
            wanted.iter().find_map(|(name, wanted)| match found.get(name) {
                Some(found) => difference(wanted, found, &format!("{path}.{name}")),
                None => Some(format!("{path}.{name} is missing: {}", abbreviate(wanted))),
            })
        }
        (Json::Array(wanted), Json::Array(found)) => {
            if wanted.len() != found.len() {
                return differs();
            }
            let mut pairs = wanted.iter().zip(found).enumerate();
            pairs.find_map(|(index, (wanted, found))| {
                difference(wanted, found, &format!("{path}[{index}]"))
            })
        }
        (Json::Number(wanted), Json::Number(found)) if wanted.as_f64() == found.as_f64() => None,
        (wanted, found) if wanted == found => None,
        _ => differs(),
    }
}

/// A value as JSON text, shortened for messages.
pub(super) fn abbreviate(json: &Json) -> String {
    let text = json.to_string();
    match text.char_indices().nth(1500) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
        None => text,
    }
}

fn single_field(fields: &Map<String, Json>) -> Option<(&str, &Json)> {
    let mut entries = fields.iter();
    let (name, json) = entries.next()?;
    entries.next().is_none().then_some((name.as_str(), json))
}

fn json_type(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "boolean",
        Json::Number(_) => "number",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn difference_finds_mismatches() {
        for (wanted, found, is_match) in [
            (json!({"a": 1}), json!({"a": 1.0}), true),
            (json!({"a": 1}), json!({"a": 1, "b": 2}), false),
            (json!({"a": 1, "b": 2}), json!({"a": 1}), false),
            (json!({"$with": {"a": 1}}), json!({"a": 1, "b": 2}), true),
            (json!({"$with": {"a": 2}}), json!({"a": 1, "b": 2}), false),
            (json!({"a": {"$any": "number"}}), json!({"a": 7}), true),
            (json!({"a": {"$any": "number"}}), json!({"a": "7"}), false),
            (json!({"$has": ["a", "c"]}), json!("abc"), true),
            (json!({"$has": ["a", "d"]}), json!("abc"), false),
            (json!([1, 2]), json!([2, 1]), false),
            (json!({"$count": 2}), json!([2, 1]), true),
        ] {
            let difference = difference(&wanted, &found, "");
            assert_eq!(difference.is_none(), is_match, "{wanted} {found} {difference:?}");
        }

        let generator = json!({"$join": [{"$lines": [9, 10, "l{}"]}, {"$repeat": ["x", 3]}]});
        assert_eq!(expand(generator), json!("l9\nl10\nxxx"));

        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(expand(json!({"$sha256": "abc"})), json!(digest));
    }
}
