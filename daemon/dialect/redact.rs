//! Redacts the explicit parameters of a call, for approval requests and for records.

use serde_json::{Map, Value as Json};

use super::parameter::{MAX_DISPLAYED_BYTES, ParameterKind, ParameterSpec};
use crate::daemon::catalog::truncate_params;

/// Characters of an unknown parameter's name in a record.
const MAX_NAME_CHARS: usize = 64;
/// Unknown parameters in the record of one call.
const MAX_RECORDED_UNKNOWN_PARAMS: usize = 16;

/// The explicit parameters, for a record. Redacted and unknown parameters appear with their size
/// only.
pub(super) fn redact_params(parameters: &[ParameterSpec], explicit: &Map<String, Json>) -> Json {
    let find = |name: &String| parameters.iter().find(|parameter| parameter.name == name);
    let (known, unknown): (Vec<_>, Vec<_>) = explicit
        .iter()
        .filter(|(_, value)| !value.is_null())
        .partition(|(name, _)| find(name).is_some());

    let known = known.into_iter().map(|(name, value)| {
        let value = match find(name) {
            Some(parameter) if !parameter.is_redacted => redact_value(parameter.kind, value),
            Some(_) | None => size_placeholder(value),
        };
        (name.clone(), value)
    });
    let unknown = unknown.into_iter().take(MAX_RECORDED_UNKNOWN_PARAMS).map(|(name, value)| {
        let name: String = name.chars().take(MAX_NAME_CHARS).collect();
        (name, size_placeholder(value))
    });
    truncate_params(known.chain(unknown).collect::<Map<_, _>>().into())
}

fn size_placeholder(value: &Json) -> Json {
    let bytes = value.as_str().map_or_else(|| value.to_string().len(), str::len);
    format!("<{bytes} bytes>").into()
}

/// A value for a record: of objects, without redacted fields.
fn redact_value(kind: ParameterKind, value: &Json) -> Json {
    match (kind, value) {
        (ParameterKind::ObjectList(fields), Json::Array(items)) => {
            items.iter().map(|item| redact_value(ParameterKind::Object(fields), item)).collect()
        }
        (ParameterKind::Object(fields), Json::Object(values)) => redact_params(fields, values),
        (ParameterKind::ObjectList(_) | ParameterKind::Object(_), _) => size_placeholder(value),
        _ => value.clone(),
    }
}

/// The explicit parameters, for people: in the order of the tool's definition. Long and redacted
/// values appear with their size only.
pub(super) fn display_params(
    parameters: &[ParameterSpec],
    explicit: &Map<String, Json>,
) -> Vec<(String, String)> {
    parameters
        .iter()
        .filter_map(|parameter| {
            let value = explicit.get(parameter.name).filter(|value| !value.is_null())?;
            let text = match value {
                Json::String(text) => text.clone(),
                Json::Null | Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_) => {
                    value.to_string()
                }
            };

            let is_hidden = parameter.is_redacted || text.len() > MAX_DISPLAYED_BYTES;
            let displayed = if is_hidden { format!("<{} bytes>", text.len()) } else { text };
            Some((parameter.name.to_owned(), displayed))
        })
        .collect()
}
