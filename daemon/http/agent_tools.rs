//! Document E, "Agent Tools API": `GET /v1/agent-tools` and `POST /v1/agent-tools/invoke-batch`.

use axum::{
    Json, Router,
    extract::State,
    routing::{get, post},
};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tonic::{Code, Status};

use super::{
    grpc_caller::{GrpcCaller, HttpService},
    json_body::{JsonObject, read_request},
    rest_error::RestError,
    rest_extract::{RestQuery, set_workspace},
};
use crate::{
    api::{
        json_struct::struct_to_json,
        v1::{
            BatchResult, InvokeBatchRequest, InvokeBatchResponse, ListToolsRequest, ToolFormat,
            catalog_service_client::CatalogServiceClient,
            invoke_service_client::InvokeServiceClient,
        },
    },
    daemon::{
        catalog::suggest::unknown_parameter_message,
        error::{Reason, Violation},
        grpc::status::has_reason,
    },
};

/// Fields of the body of a batch.
const BODY_FIELDS: [&str; 4] = ["calls", "mode", "wait_ms", "queue"];
/// The dialect of the document.
const DEFAULT_DIALECT: &str = "rauskuclaw";

pub(super) fn routes() -> Router<HttpService> {
    Router::new()
        .route("/v1/agent-tools", get(list_tools))
        .route("/v1/agent-tools/invoke-batch", post(invoke_batch))
}

/// The query of both routes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolsQuery {
    #[serde(default = "default_dialect")]
    dialect: String,
    workspace: Option<String>,
}

fn default_dialect() -> String {
    DEFAULT_DIALECT.to_owned()
}

async fn list_tools(
    State(grpc): State<HttpService>,
    caller: GrpcCaller,
    RestQuery(query): RestQuery<ToolsQuery>,
) -> Result<Json<Value>, RestError> {
    let mut request = caller.request(ListToolsRequest {
        dialect: query.dialect,
        format: Some(ToolFormat::OpenaiChat.into()),
        ..ListToolsRequest::default()
    });
    set_workspace(&mut request, query.workspace)?;
    let mut client = CatalogServiceClient::with_origin(grpc, caller.origin.clone())
        .max_decoding_message_size(usize::MAX);
    let response = client.list_tools(request).await?.into_inner();
    let tools: Value = serde_json::from_str(&response.tools_json).unwrap_or_default();
    Ok(Json(json!({ "ok": true, "tools": tools, "count": response.names.len() })))
}

async fn invoke_batch(
    State(grpc): State<HttpService>,
    caller: GrpcCaller,
    RestQuery(query): RestQuery<ToolsQuery>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, RestError> {
    let mut request = caller.request(parse_batch(body, query.dialect)?);
    set_workspace(&mut request, query.workspace)?;
    let mut client = InvokeServiceClient::with_origin(grpc, caller.origin.clone())
        .max_decoding_message_size(usize::MAX);
    let response = client.invoke_batch(request).await.map_err(batch_error)?;
    Ok(Json(batch_json(response.into_inner())))
}

/// Reads the body of a batch. Reports every field that does not fit.
fn parse_batch(
    mut body: Map<String, Value>,
    dialect: String,
) -> Result<InvokeBatchRequest, RestError> {
    if !body.get("calls").is_some_and(Value::is_array) {
        return Err(RestError::invalid("'calls' must be an array", Map::new()));
    }

    let mut violations = Vec::new();
    body.retain(|name, value| match body_field_problem(name, value) {
        Some(problem) => {
            violations.push(Violation::new(name, problem));
            false
        }
        None => true,
    });
    let request: InvokeBatchRequest = read_request("jig.v1.InvokeBatchRequest", &body, violations)?;
    Ok(InvokeBatchRequest { dialect, ..request })
}

/// Why a field of the body is none of the document. The contract has other fields and spellings.
fn body_field_problem(name: &str, value: &Value) -> Option<String> {
    match (name, value) {
        ("calls" | "queue", _) | ("mode" | "wait_ms", Value::Null) => None,
        ("mode", Value::String(mode)) if mode == "sync" || mode == "async" => None,
        ("mode", Value::String(_) | Value::Number(_)) => {
            Some(format!("is {value}; it must be \"sync\" or \"async\""))
        }
        ("mode", _) => Some("must be \"sync\" or \"async\"".to_owned()),
        ("wait_ms", Value::Number(_)) => None,
        ("wait_ms", _) => Some("must be a number of milliseconds".to_owned()),
        ("dialect", _) => Some("is no field: give the query ?dialect=NAME".to_owned()),
        _ => Some(unknown_parameter_message(name, &BODY_FIELDS)),
    }
}

/// The error of a batch. A key without the role for it is the document's `FORBIDDEN`.
fn batch_error(status: Status) -> RestError {
    if has_reason(&status, Reason::Forbidden) && status.code() == Code::PermissionDenied {
        let text = "This operation requires an admin API key.";
        return RestError::new(StatusCode::FORBIDDEN, "FORBIDDEN", text);
    }
    status.into()
}

/// The response to a batch, with the fields of the document only.
fn batch_json(response: InvokeBatchResponse) -> Value {
    let results: Vec<_> = response.results.into_iter().map(result_json).collect();
    let messages: Vec<_> = response
        .tool_messages
        .into_iter()
        .map(|message| {
            json!({
                "role": message.role,
                "tool_call_id": message.tool_call_id,
                "name": message.name,
                "content": message.content,
            })
        })
        .collect();
    json!({ "ok": true, "results": results, "tool_messages": messages, "mode": response.mode })
}

fn result_json(result: BatchResult) -> Value {
    let mut json = json!({ "call_id": result.call_id, "name": result.name, "ok": result.ok });
    if result.pending {
        json["pending"] = true.into();
    }
    for (name, value) in [("job_id", result.job_id), ("job_type", result.job_type)] {
        if !value.is_empty() {
            json[name] = value.into();
        }
    }
    if let Some(output) = result.output {
        json["output"] = struct_to_json(output).into();
    }
    if let Some(error) = result.error {
        // The document has no details here: the message names the parameters.
        json["error"] = json!({ "code": error.code, "message": error.message });
    }
    json
}
