//! The OpenAPI document of the REST API.

use std::fs;

use serde_json::{Value, json};

use super::{rest, start_runtime};
use crate::{http::openapi::assert_matches, support::Daemon};

fn document(daemon: &Daemon) -> Value {
    let response = rest(daemon, &[], "/openapi.json");
    assert_eq!((response.status, &*response.headers["content-type"]), (200, "application/json"));
    response.json()
}

/// Asserts that each reference in a value of the document has a target.
fn assert_references(document: &Value, value: &Value) {
    match value {
        Value::Object(fields) => {
            if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                let target = document.pointer(reference.strip_prefix('#').unwrap());
                assert!(target.is_some(), "{reference}");
            }
            fields.values().for_each(|field| assert_references(document, field));
        }
        Value::Array(items) => items.iter().for_each(|item| assert_references(document, item)),
        _ => {}
    }
}

#[tokio::test]
async fn document_lists_every_path() {
    let daemon = start_runtime().await;
    let document = document(&daemon);
    assert_eq!(document["openapi"], "3.1.1");
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    assert_references(&document, &document);

    let paths = document["paths"].as_object().unwrap();
    let names: Vec<_> = paths.keys().map(String::as_str).collect();
    let expected = ["/openapi.json", "/v1/files", "/v1/files/{path}", "/v1/health", "/v1/metadata"];
    assert_eq!(names, expected);
    for (path, item) in paths {
        let operations = ["get", "head", "put", "delete"];
        for operation in operations.into_iter().filter(|name| item.get(name).is_some()) {
            let method = operation.to_ascii_uppercase();
            let arguments: &[&str] = match operation {
                "head" => &["--head"],
                "put" => &["--request", &method, "--data-binary", "x"],
                _ => &["--request", &method],
            };
            let response = rest(&daemon, arguments, &path.replace("{path}", "f"));
            let expected = match (operation, path.as_str()) {
                ("get" | "head", "/v1/files/{path}") => 404,
                ("put" | "delete", _) => 204,
                _ => 200,
            };
            assert_eq!(response.status, expected, "{method} {path}: {response:?}");
        }
    }
}

#[tokio::test]
async fn responses_match_their_schemas() {
    let daemon = start_runtime().await;
    let document = document(&daemon);
    fs::create_dir_all(daemon.file("d/below")).unwrap();
    fs::write(daemon.file("d/f"), "x").unwrap();
    for (path, schema, status) in [
        ("/v1/files", "Listing", 200),
        ("/v1/files/d", "Listing", 200),
        ("/v1/files/none", "Error", 404),
        ("/v1/files/d?mode=0644", "Error", 400),
        ("/v1/health", "Health", 200),
        ("/v1/metadata", "Metadata", 200),
    ] {
        let response = rest(&daemon, &[], path);
        assert_eq!(response.status, status, "{path}: {response:?}");
        let schema = json!({ "$ref": format!("#/components/schemas/{schema}") });
        assert_matches(&document, &schema, &response.json());
    }
}
