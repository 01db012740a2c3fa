//! Parameters of a call as they were given: for people who decide about it, and for records.

use serde_json::{Map, Value as Json};

use super::parameter::{MAX_DISPLAYED_BYTES, ParameterKind, ParameterSpec};
use crate::daemon::catalog::truncate_params;

/// Characters of the name of a parameter that is not known.
const MAX_NAME_CHARS: usize = 64;
/// Names of parameters that the tool does not have, of one call.
const MAX_RECORDED_UNKNOWN_PARAMS: usize = 16;

/// The parameters that were given, for a record. Has the size in place of what is hidden, and of parameters that are
/// not known.
pub(super) fn redact_params(parameters: &[ParameterSpec], given: &Map<String, Json>) -> Json {
    let known = |name: &String| parameters.iter().find(|known| known.name == name);
    let given = given.iter().filter(|(_, value)| !value.is_null());
    let (of_tool, unknown): (Vec<_>, Vec<_>) = given.partition(|(name, _)| known(name).is_some());
    let of_tool = of_tool.into_iter().map(|(name, value)| {
        let value = match known(name) {
            Some(parameter) if !parameter.is_redacted => redact_value(parameter.kind, value),
            Some(_) | None => size_placeholder(value),
        };
        (name.clone(), value)
    });
    let unknown = unknown.into_iter().take(MAX_RECORDED_UNKNOWN_PARAMS);
    let unknown = unknown.map(|(name, value)| {
        let name: String = name.chars().take(MAX_NAME_CHARS).collect();
        (name, size_placeholder(value))
    });
    truncate_params(of_tool.chain(unknown).collect::<Map<_, _>>().into())
}

fn size_placeholder(value: &Json) -> Json {
    let bytes = value.as_str().map_or_else(|| value.to_string().len(), str::len);
    format!("<{bytes} bytes>").into()
}

/// A value for a record: of objects, without what is hidden.
fn redact_value(kind: ParameterKind, value: &Json) -> Json {
    match (kind, value) {
        (ParameterKind::ObjectList(of), Json::Array(items)) => {
            items.iter().map(|item| redact_value(ParameterKind::Object(of), item)).collect()
        }
        (ParameterKind::Object(of), Json::Object(fields)) => redact_params(of, fields),
        (ParameterKind::ObjectList(_) | ParameterKind::Object(_), _) => size_placeholder(value),
        _ => value.clone(),
    }
}

/// What people are told of parameters: in their order, what is long or hidden by its size.
pub(super) fn display_params(
    parameters: &[ParameterSpec],
    given: &Map<String, Json>,
) -> Vec<(String, String)> {
    let given = parameters.iter().filter_map(|parameter| {
        let value = given.get(parameter.name).filter(|value| !value.is_null())?;
        let text = match value {
            Json::String(text) => text.clone(),
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_) => {
                value.to_string()
            }
        };
        let displayed = match parameter.is_redacted || text.len() > MAX_DISPLAYED_BYTES {
            true => format!("<{} bytes>", text.len()),
            false => text,
        };
        Some((parameter.name.to_owned(), displayed))
    });
    given.collect()
}
