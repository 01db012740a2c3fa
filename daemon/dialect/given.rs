//! Parameters of a call as they were given: for people who decide about it, and for records.

use serde_json::{Map, Value as Json};

use super::parameter::{Kind, LONGEST_TOLD, Parameter};
use crate::daemon::catalog::shortened;

/// Characters of the name of a parameter that is not known.
const MAX_NAME_CHARS: usize = 64;
/// Names of parameters that the tool does not have, of one call.
const MAX_UNKNOWN_RECORDED: usize = 16;

/// The parameters that were given, for a record. Has the size in place of what is hidden, and of parameters that are
/// not known.
pub(super) fn recorded(parameters: &[Parameter], given: &Map<String, Json>) -> Json {
    let known = |name: &String| parameters.iter().find(|known| known.name == name);
    let given = given.iter().filter(|(_, value)| !value.is_null());
    let (of_tool, unknown): (Vec<_>, Vec<_>) = given.partition(|(name, _)| known(name).is_some());
    let of_tool = of_tool.into_iter().map(|(name, value)| {
        let value = match known(name) {
            Some(parameter) if !parameter.is_hidden => recorded_value(parameter.kind, value),
            Some(_) | None => size_of(value),
        };
        (name.clone(), value)
    });
    let unknown = unknown.into_iter().take(MAX_UNKNOWN_RECORDED);
    let unknown = unknown.map(|(name, value)| {
        let name: String = name.chars().take(MAX_NAME_CHARS).collect();
        (name, size_of(value))
    });
    shortened(of_tool.chain(unknown).collect::<Map<_, _>>().into())
}

fn size_of(value: &Json) -> Json {
    let bytes = value.as_str().map_or_else(|| value.to_string().len(), str::len);
    format!("<{bytes} bytes>").into()
}

/// A value for a record: of objects, without what is hidden.
fn recorded_value(kind: Kind, value: &Json) -> Json {
    match (kind, value) {
        (Kind::Objects(of), Json::Array(items)) => {
            items.iter().map(|item| recorded_value(Kind::Object(of), item)).collect()
        }
        (Kind::Object(of), Json::Object(fields)) => recorded(of, fields),
        (Kind::Objects(_) | Kind::Object(_), _) => size_of(value),
        _ => value.clone(),
    }
}

/// What people are told of parameters: in their order, what is long or hidden by its size.
pub(super) fn shown(parameters: &[Parameter], given: &Map<String, Json>) -> Vec<(String, String)> {
    let given = parameters.iter().filter_map(|parameter| {
        let value = given.get(parameter.name).filter(|value| !value.is_null())?;
        let text = match value {
            Json::String(text) => text.clone(),
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_) => {
                value.to_string()
            }
        };
        let told = match parameter.is_hidden || text.len() > LONGEST_TOLD {
            true => format!("<{} bytes>", text.len()),
            false => text,
        };
        Some((parameter.name.to_owned(), told))
    });
    given.collect()
}
