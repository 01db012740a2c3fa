//! Batches, with requests and responses in the form of their document.

use std::collections::BTreeMap;

use jig::api::v1::{
    BatchCall, BatchMode, InvokeBatchRequest, InvokeBatchResponse,
    invoke_service_client::InvokeServiceClient,
};
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::{
    fixture::{DaemonVariant, Fixture, structure_of},
    matching::difference,
    scenario::{dialect_of, parse},
};
use crate::{invoke::batch::batch_result_json, support::Refusal};

/// A batch and its expected response.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchScenario {
    #[serde(default)]
    pub(super) start: DaemonVariant,
    #[serde(default)]
    files: BTreeMap<String, Json>,
    /// The request as JSON text.
    request: String,
    /// `ok`, `mode`, `results` and `tool_messages` as JSON text. The content of messages is written
    /// as JSON, not as a string.
    response: Option<String>,
    /// The invalid fields that a rejection names.
    #[serde(default)]
    refused: Vec<String>,
}

impl BatchScenario {
    /// Runs the batch. Returns the first mismatch.
    pub(super) async fn mismatch(&self, fixture: &Fixture, document: &str) -> Option<String> {
        fixture.reset_workspace(&self.files);
        let request = batch_request(document, &parse(&self.request));
        let mut client = InvokeServiceClient::new(fixture.daemon().channel());
        match (client.invoke_batch(request).await, &self.response) {
            (Ok(response), Some(expected)) => {
                difference(&parse(expected), &response_json(response.into_inner()), "response")
            }
            (Ok(response), None) => Some(format!("the batch was not rejected: {response:?}")),
            (Err(status), _) => {
                let refusal = Refusal::from_status(&status);
                let mut fields = refusal.invalid_fields();
                fields.sort_unstable();
                let is_expected = refusal.reason == "INVALID_PARAMS" && fields == self.refused;
                (!is_expected).then(|| format!("{refusal:?}"))
            }
        }
    }
}

fn batch_request(document: &str, json: &Json) -> InvokeBatchRequest {
    let calls = json["calls"].as_array().unwrap().iter();
    let calls = calls.map(|call| BatchCall {
        call_id: text(&call["call_id"]),
        name: text(&call["name"]),
        arguments: call.get("arguments").cloned().map(structure_of),
        ..BatchCall::default()
    });
    let mode = json.get("mode").map(|mode| {
        let name = format!("BATCH_MODE_{}", text(mode).to_uppercase());
        BatchMode::from_str_name(&name).unwrap().into()
    });
    InvokeBatchRequest {
        calls: calls.collect(),
        mode,
        wait_ms: json["wait_ms"].as_u64().map(|wait| wait.try_into().unwrap()),
        queue: json.get("queue").map(text),
        dialect: dialect_of(document).to_owned(),
        ..InvokeBatchRequest::default()
    }
}

fn text(json: &Json) -> String {
    json.as_str().unwrap().to_owned()
}

/// A response in the form of a document: absent fields are omitted.
fn response_json(response: InvokeBatchResponse) -> Json {
    let messages = response.tool_messages.iter().map(|message| {
        let content: Json = serde_json::from_str(&message.content).unwrap();
        json!({
            "role": message.role,
            "tool_call_id": message.tool_call_id,
            "name": message.name,
            "content": content,
        })
    });
    let messages: Json = messages.collect();
    let results: Json = response.results.iter().map(batch_result_json).collect();
    json!({
        "ok": response.ok,
        "mode": response.mode,
        "results": results,
        "tool_messages": messages,
    })
}
