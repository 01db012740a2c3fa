//! `fetch_webpage` of the CLI agent: names, values and texts as its document has them.

use jig::api::v1::{InvokeRequest, InvokeResponse, invoke_service_client::InvokeServiceClient};
use prost_types::{Struct, value::Kind};
use serde_json::{Value, json};

use super::{ALLOWED, Site, answer, fetching, world};
use crate::support::{Daemon, Setup, World};

async fn invoke(daemon: &Daemon, params: &Value) -> InvokeResponse {
    let mut client = InvokeServiceClient::new(daemon.channel());
    let request = InvokeRequest {
        tool: "fetch_webpage".to_owned(),
        params_json: params.to_string(),
        dialect: "cli_agent".to_owned(),
        ..InvokeRequest::default()
    };
    client.invoke(request).await.unwrap().into_inner()
}

/// What a model is told.
async fn told(daemon: &Daemon, params: Value) -> Value {
    let response = invoke(daemon, &params).await;
    let text = match response.text.as_str() {
        "" => panic!("{response:?}"),
        text => text,
    };
    serde_json::from_str(text).unwrap_or_else(|_| panic!("{response:?}"))
}

/// A structure without its numbers, which are others than JSON's.
fn as_json(structure: Struct) -> Value {
    let fields = structure.fields.into_iter();
    fields
        .map(|(name, value)| (name, value_as_json(value)))
        .collect()
}

fn value_as_json(value: prost_types::Value) -> Value {
    match value.kind {
        Some(Kind::BoolValue(flag)) => flag.into(),
        Some(Kind::StringValue(text)) => text.into(),
        Some(Kind::StructValue(inner)) => as_json(inner),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(value_as_json).collect(),
        Some(Kind::NumberValue(_) | Kind::NullValue(_)) | None => Value::Null,
    }
}

async fn daemon() -> (World, Daemon) {
    let world = world();
    let hosts = [ALLOWED.0, "site.jig.test:81"];
    let daemon = fetching(&world, &hosts, &[ALLOWED.1]).await;
    let _site = Site::at(&daemon, ALLOWED.1, 80, |path, stream| {
        let html = "Content-Type: text/html\r\n";
        match path {
            "/silent" => std::io::copy(stream, &mut std::io::sink()).map(drop),
            "/missing" => answer(stream, "404 Not Found", html, b"<h1>Missing</h1>"),
            "/large" => answer(stream, "200 OK", "", &vec![b'a'; (1 << 20) + 1]),
            _ => {
                let page = format!("<h1>Title</h1><!--{}-->", "x".repeat(5324 - 21));
                answer(stream, "200 OK", html, page.as_bytes())
            }
        }
    });
    (world, daemon)
}

#[tokio::test]
async fn a_page_is_fetched() {
    let (_world, daemon) = daemon().await;
    let told = told(&daemon, json!({ "url": "http://site.jig.test" })).await;
    assert_eq!(told["success"], true, "{told}");
    assert_eq!(
        told["output"],
        "Fetched content from http://site.jig.test (5.2 KB)"
    );
    assert_eq!(told["files_affected"], json!([]));
    assert!(told["execution_time_ms"].is_u64(), "{told}");
    assert_eq!(
        told["metadata"],
        json!({
            "url": "http://site.jig.test",
            "status_code": 200,
            "content_length": 5324,
            "content_type": "text/html",
            "content": "# Title",
        })
    );
}

#[tokio::test]
async fn a_page_that_is_missing_is_a_page() {
    let (_world, daemon) = daemon().await;
    let told = told(&daemon, json!({ "url": "http://site.jig.test/missing" })).await;
    assert_eq!(told["success"], true);
    assert_eq!(told["metadata"]["status_code"], 404);
    assert_eq!(told["metadata"]["content"], "# Missing");
}

#[tokio::test]
async fn what_is_too_large_is_cut_with_a_warning() {
    let (_world, daemon) = daemon().await;
    let response = invoke(&daemon, &json!({ "url": "http://site.jig.test/large" })).await;
    let told = as_json(response.data.unwrap());
    let warning = "Error: Response too large (>1MB), truncating";
    assert_eq!(told["success"], true);
    assert_eq!(
        told["output"],
        format!("Fetched content from http://site.jig.test/large (1.0 MB)\n{warning}")
    );
    assert_eq!(told["warnings"], json!([warning]));
    assert_eq!(told["metadata"]["content"].as_str().unwrap().len(), 1 << 20);
}

#[tokio::test]
async fn what_fails_is_told_as_documented() {
    let (_world, daemon) = daemon().await;
    for (params, code, output) in [
        (
            json!({ "url": "example" }),
            "invalid_url",
            "Error: Invalid URL format",
        ),
        (
            json!({ "url": "ftp://site.jig.test/" }),
            "invalid_url",
            "Error: Invalid URL format",
        ),
        (
            json!({ "url": "http://site.jig.test:81/" }),
            "fetch_error",
            "Error: Failed to fetch - connection refused",
        ),
        (
            json!({ "url": "http://site.jig.test/silent", "timeout_seconds": 1 }),
            "timeout",
            "Error: Request timed out after 1 seconds",
        ),
    ] {
        let told = told(&daemon, params.clone()).await;
        assert_eq!(told["success"], false, "{params}");
        assert_eq!(
            (&told["error"]["code"], &told["output"]),
            (&json!(code), &json!(output))
        );
        let message = output.trim_start_matches("Error: ");
        assert_eq!(told["error"]["message"], message);
    }
    let denied = told(&daemon, json!({ "url": "http://other.jig.test/" })).await;
    assert_eq!(denied["error"]["code"], "egress_denied");
    let output = denied["output"].as_str().unwrap();
    assert!(
        output.starts_with("Error: Failed to fetch - other.jig.test:80 is not"),
        "{output}"
    );
}

#[tokio::test]
async fn times_are_from_1_to_60_seconds() {
    let (_world, daemon) = daemon().await;
    for seconds in [0, 61] {
        let params = json!({ "url": "http://site.jig.test/", "timeout_seconds": seconds });
        let response = invoke(&daemon, &params).await;
        assert!(response.error.is_some(), "{response:?}");
    }
}

#[tokio::test]
async fn it_is_off_with_the_tool_that_it_uses() {
    let daemon = Setup::new().start().await;
    let response = invoke(&daemon, &json!({ "url": "http://site.jig.test/" })).await;
    let error = response.error.unwrap();
    assert!(
        error.error_type.eq_ignore_ascii_case("tool_disabled"),
        "{error:?}"
    );
}
