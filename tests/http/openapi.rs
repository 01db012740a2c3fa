//! The OpenAPI document: it lists every path, and calls match its schemas.

use jig::api;
use prost_reflect::DescriptorPool;
use serde_json::{Value, json};

use crate::support::{Daemon, KeyFile, Setup, curl};

fn document(daemon: &Daemon) -> Value {
    let response = curl(daemon, &[], "/openapi.json");
    assert_eq!(response.status, 200, "{response:?}");
    assert_eq!(response.headers["content-type"], "application/json");
    serde_json::from_str(&response.body).unwrap()
}

/// Checks a value against a schema of the document.
pub(crate) fn assert_matches(document: &Value, schema: &Value, value: &Value) {
    let mut schema = schema.clone();
    schema["components"] = document["components"].clone();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let errors: Vec<_> = validator.iter_errors(value).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?} in {value}");
}

#[tokio::test]
async fn document_lists_every_path() {
    let daemon = Daemon::start().await;
    let document = document(&daemon);
    assert_eq!(document["openapi"], "3.1.1");
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));

    let contract = DescriptorPool::decode(api::FILE_DESCRIPTOR_SET).unwrap();
    let mut methods = 0;
    for service in contract.services() {
        for method in service.methods() {
            let path = format!("/{}/{}", service.full_name(), method.name());
            let post = &document["paths"][&path]["post"];
            assert_ne!(post["description"], "", "{path} has no description");
            assert!(post["requestBody"]["content"].is_object(), "{path}: {post}");
            methods += 1;
        }
    }
    for path in ["/mcp", "/mcp/{dialect}"] {
        let operations = document["paths"][path].as_object().unwrap().values();
        assert_eq!(operations.clone().count(), 3, "{path}");
        for operation in operations {
            assert!(operation["responses"]["default"].is_object(), "{path}: {operation}");
        }
    }
    let paths = document["paths"].as_object().unwrap();
    let others = paths.iter().filter(|(path, _)| !path.contains("jig.v1."));
    let others: Vec<_> = others.map(|(path, item)| (path.as_str(), item)).collect();
    assert_eq!(others.len() + methods, paths.len());

    for (path, item) in others {
        let url = path.replace("{dialect}", "claude").replace("{session}", "default");
        for operation in item.as_object().unwrap().keys() {
            let method = operation.to_ascii_uppercase();
            let arguments = ["--request", &method, "--max-time", "5"];
            let query = if url.ends_with("/events") { "?follow=false" } else { "" };
            let response = curl(&daemon, &arguments, &format!("{url}{query}"));
            let is_unknown = response.body.contains("there is no /");
            assert!(!is_unknown && response.status != 405, "{method} {path}: {response:?}");
        }
    }
}

#[tokio::test]
async fn calls_match_their_schemas() {
    let daemon = Setup::new().workspace_file("f", "one\ntwo\n").start().await;
    let document = document(&daemon);
    let calls = [
        ("ToolService/Run", json!({"command": "echo a; exit 3", "timeoutSec": 5}), 200),
        ("ToolService/ReadFile", json!({"path": "f", "endLine": 1}), 200),
        ("ToolService/ListDirectory", json!({"path": "."}), 200),
        ("DaemonService/GetInfo", json!({}), 200),
        ("CatalogService/ListTools", json!({}), 200),
        ("InvokeService/Invoke", json!({"tool": "run", "params": {"command": "true"}}), 200),
        ("JobService/ListJobs", json!({"pageSize": 5}), 200),
        ("EventService/ListSessions", json!({}), 200),
        ("ToolService/ReadFile", json!({"path": "none"}), 404),
    ];
    for (method, request, status) in calls {
        let operation = &document["paths"][format!("/jig.v1.{method}")]["post"];
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        assert_matches(&document, schema, &request);

        let arguments =
            ["--header", "content-type: application/json", "--data", &request.to_string()];
        let response = curl(&daemon, &arguments, &format!("/jig.v1.{method}"));
        assert_eq!(response.status, status, "{method}: {response:?}");
        let content = match status {
            200 => &operation["responses"]["200"]["content"],
            _ => &document["components"]["responses"]["ConnectError"]["content"],
        };
        let body = serde_json::from_str(&response.body).unwrap();
        assert_matches(&document, &content["application/json"]["schema"], &body);
    }

    let mut schema = json!({"$ref": "#/components/schemas/jig.v1.ReadFileRequest"});
    schema["components"] = document["components"].clone();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    for invalid in [json!({}), json!({"path": ""}), json!({"path": 1})] {
        assert!(!validator.is_valid(&invalid), "{invalid}");
    }
}

#[tokio::test]
async fn document_needs_a_key() {
    let keys = KeyFile::new();
    let key = keys.add_key("reader", "read", &[]);
    let path = keys.path();
    let daemon = Setup::new().arguments(&["--keys", path.to_str().unwrap()]).start().await;
    assert_eq!(curl(&daemon, &[], "/openapi.json").status, 401);
    let header = format!("authorization: Bearer {key}");
    assert_eq!(curl(&daemon, &["--header", &header], "/openapi.json").status, 200);
}
