//! `GET /openapi.json`: an OpenAPI 3.1 document of every path (<https://spec.openapis.org/oas/v3.1>).
//!
//! The paths of RPCs and their schemas come from the descriptors of the contract; the others are in
//! `paths.json`, which `tests/http/openapi.rs` compares with the routes.

use std::sync::LazyLock;

use axum::{
    Router,
    response::{IntoResponse as _, Response},
    routing::get,
};
use http::{StatusCode, header::CONTENT_TYPE};
use prost_reflect::{DescriptorPool, MethodDescriptor, ServiceDescriptor};
use serde_json::{Map, Value as Json, json};

use super::{connect::may_get, grpc_caller::HttpService};
use crate::{api, daemon::catalog::proto_json_schema::MessageSchemas};

/// The paths that are no RPCs, and what the paths of RPCs share.
const PATHS: &str = include_str!("paths.json");

/// The document. It is the same for all callers.
static DOCUMENT: LazyLock<Option<String>> = LazyLock::new(|| Some(document()?.to_string()));

pub(super) fn routes() -> Router<HttpService> {
    Router::new().route("/openapi.json", get(send))
}

async fn send() -> Response {
    document_response(DOCUMENT.as_deref())
}

/// The response with a document, which is absent if it cannot be built.
pub(crate) fn document_response(document: Option<&'static str>) -> Response {
    match document {
        Some(document) => ([(CONTENT_TYPE, "application/json")], document).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn document() -> Option<Json> {
    let contract = DescriptorPool::decode(api::FILE_DESCRIPTOR_SET).ok()?;
    let mut document: Json = serde_json::from_str(PATHS).ok()?;
    let mut schemas = MessageSchemas::new(&contract);
    let mut tags = Vec::new();
    for service in contract.services() {
        let description = schemas.service_comment(&service);
        tags.push(json!({ "name": service.full_name(), "description": description }));
        for method in service.methods() {
            let path = format!("/{}/{}", service.full_name(), method.name());
            document["paths"][path] = operations(&service, &method, &mut schemas);
        }
    }

    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    document["tags"].as_array_mut()?.extend(tags);
    document["components"]["schemas"].as_object_mut()?.extend(schemas.into_schemas());
    Some(document)
}

/// The operations of a method: POST, and GET if it changes nothing.
fn operations(
    service: &ServiceDescriptor,
    method: &MethodDescriptor,
    schemas: &mut MessageSchemas<'_>,
) -> Json {
    let is_stream = method.is_client_streaming() || method.is_server_streaming();
    let content = |schema: Json| {
        let encodings = if is_stream {
            ["application/connect+json", "application/connect+proto"]
        } else {
            ["application/json", "application/proto"]
        };
        let [json, proto] = encodings.map(str::to_owned);
        Json::Object(Map::from_iter([(json, json!({ "schema": schema })), (proto, json!({}))]))
    };
    let request = schemas.reference(&method.input());
    let response = schemas.reference(&method.output());
    let id = format!("{}_{}", service.name(), method.name());
    let post = json!({
        "operationId": id,
        "tags": [service.full_name()],
        "description": schemas.method_comment(method),
        "parameters": call_parameters(),
        "requestBody": { "required": true, "content": content(request.clone()) },
        "responses": {
            "200": { "description": "The response", "content": content(response) },
            "default": { "$ref": "#/components/responses/ConnectError" },
        },
    });
    let mut operations = json!({});
    if may_get(method) {
        let mut get = post.clone();
        get["operationId"] = format!("{id}_get").into();
        if let Some(get) = get.as_object_mut() {
            get.remove("requestBody");
        }
        if let Some(parameters) = get["parameters"].as_array_mut() {
            parameters.extend(query_parameters(&request));
        }
        operations["get"] = get;
    }
    operations["post"] = post;
    operations
}

/// Headers of every call.
fn call_parameters() -> Vec<Json> {
    ["Session", "Workspace", "RequestId", "ConnectTimeout"]
        .map(|name| json!({ "$ref": format!("#/components/parameters/{name}") }))
        .into()
}

/// The query of a call by GET: the request and its encoding.
fn query_parameters(request: &Json) -> [Json; 2] {
    [
        json!({ "$ref": "#/components/parameters/Encoding" }),
        json!({
            "name": "message", "in": "query", "required": true,
            "content": { "application/json": { "schema": request } },
        }),
    ]
}
