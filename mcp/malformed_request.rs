//! Requests whose parameters are not those of their method.
//!
//! `rmcp` takes such a request for one of an unknown method. The client needs the field to fix.

use rmcp::{ErrorData, model::CustomRequest};
use serde_json::{Value, json};

/// Type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldType {
    Text,
    Object,
}

/// A field of the parameters of a method.
struct Field {
    name: &'static str,
    field_type: FieldType,
    is_required: bool,
}

const fn required(name: &'static str, field_type: FieldType) -> Field {
    Field { name, field_type, is_required: true }
}

const fn optional(name: &'static str, field_type: FieldType) -> Field {
    Field { name, field_type, is_required: false }
}

/// Methods with required parameters.
const METHODS: [(&str, &[Field]); 5] = [
    (
        "tools/call",
        &[
            required("name", FieldType::Text),
            optional("arguments", FieldType::Object),
            optional("requestState", FieldType::Text),
            optional("inputResponses", FieldType::Object),
        ],
    ),
    ("resources/read", &[required("uri", FieldType::Text)]),
    ("tasks/get", &[required("taskId", FieldType::Text)]),
    (
        "tasks/update",
        &[required("taskId", FieldType::Text), required("inputResponses", FieldType::Object)],
    ),
    ("tasks/cancel", &[required("taskId", FieldType::Text)]),
];

/// Returns the error of a request that `rmcp` could not assign to a method.
pub(super) fn malformed_request_error(request: CustomRequest) -> ErrorData {
    let CustomRequest { method, params, .. } = request;
    let Some((_, fields)) = METHODS.iter().find(|(name, _)| *name == method) else {
        return ErrorData::new(rmcp::model::ErrorCode::METHOD_NOT_FOUND, method, None);
    };

    let params = params.unwrap_or_default();
    let problems = fields.iter().filter_map(|field| {
        let problem = field_problem(field, params.get(field.name))?;
        Some((format!("params.{}", field.name), problem))
    });
    let problems: Vec<_> = problems.collect();
    let texts = problems.iter().map(|(field, problem)| format!("{field} {problem}"));
    let mut text = texts.collect::<Vec<_>>().join("; ");
    if text.is_empty() {
        text = format!("params are not those of {method}");
    }
    let fields =
        problems.iter().map(|(field, problem)| json!({"field": field, "problem": problem}));
    let data = json!({"fields": fields.collect::<Value>()});
    ErrorData::invalid_params(text, Some(data))
}

fn field_problem(field: &Field, value: Option<&Value>) -> Option<&'static str> {
    match (field.field_type, value) {
        (_, None | Some(Value::Null)) if field.is_required => Some("is required"),
        (_, None | Some(Value::Null)) => None,
        (FieldType::Text, Some(Value::String(_))) | (FieldType::Object, Some(Value::Object(_))) => {
            None
        }
        (FieldType::Text, _) => Some("must be a string"),
        (FieldType::Object, _) => Some("must be an object"),
    }
}
