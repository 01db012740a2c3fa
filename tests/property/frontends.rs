//! The frontends of the daemon, and their results in a common form.

use std::collections::BTreeMap;

use jig::api::v1::{
    BatchCall, InvokeBatchRequest, InvokeRequest, InvokeResponse, InvokeStatus, JobState,
    SubmitJobRequest, WaitJobRequest, invoke_service_client::InvokeServiceClient,
    job_service_client::JobServiceClient,
};
use prost::Message as _;
use prost_reflect::{DynamicMessage, MessageDescriptor, ReflectMessage as _};
use prost_types::Struct;
use serde_json::{Map, Value as Json};
use tonic::client::Grpc;

use super::{
    contract::{Contract, ContractTool},
    fixture::PropertyFixture,
    json_variants::large_integers_as_text,
};
use crate::{
    invoke::json_of,
    support::{Daemon, RawCodec, Refusal, with_metadata},
};

/// Milliseconds that a batch waits: longer than any call takes.
const BATCH_WAIT_MS: u32 = 60_000;

/// A frontend for calls by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Frontend {
    /// `Invoke` with a `Struct`.
    Struct,
    /// `Invoke` with a JSON text.
    Json,
    /// `InvokeBatch`.
    Batch,
    /// `SubmitJob`.
    Job,
}

impl Frontend {
    pub(super) const ALL: [Self; 4] = [Self::Struct, Self::Json, Self::Batch, Self::Job];
}

/// The error of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ToolCallError {
    /// The reason, in upper case.
    pub(super) reason: String,
    /// The invalid fields with their descriptions.
    pub(super) fields: BTreeMap<String, String>,
}

/// The result of a call by name.
pub(super) type ToolCallOutcome = Result<ToolCallOutput, ToolCallError>;

/// The output of a tool.
#[derive(Debug)]
pub(super) enum ToolCallOutput {
    /// The complete output.
    Complete(Map<String, Json>),
    /// A part of the output, which was too large.
    Truncated,
}

/// Calls the typed RPC of a tool.
pub(super) async fn call_typed_rpc(
    fixture: &PropertyFixture,
    tool: &ContractTool,
    session: &str,
    message: &DynamicMessage,
) -> Result<DynamicMessage, ToolCallError> {
    let mut grpc = Grpc::new(fixture.daemon.channel()).max_decoding_message_size(64 << 20);
    grpc.ready().await.unwrap();
    let service = tool.method.parent_service();

    let path = format!("/{}/{}", service.full_name(), tool.method.name());
    let request = with_metadata("jig-session", session, message.encode_to_vec());
    match grpc.unary(request, path.parse().unwrap(), RawCodec).await {
        Ok(response) => {
            let bytes = response.into_inner();
            Ok(DynamicMessage::decode(tool.method.output(), &*bytes).unwrap())
        }
        Err(status) => Err(ToolCallError::from_refusal(Refusal::from_status(&status), "")),
    }
}

/// Calls a tool by its name.
pub(super) async fn call_by_name(
    fixture: &PropertyFixture,
    contract: &Contract,
    frontend: Frontend,
    (dialect, tool): (&str, &str),
    session: &str,
    params: &Map<String, Json>,
) -> ToolCallOutcome {
    let daemon = &fixture.daemon;
    let text = Json::Object(params.clone()).to_string();
    let request = InvokeRequest {
        tool: tool.to_owned(),
        dialect: dialect.to_owned(),
        ..InvokeRequest::default()
    };

    match frontend {
        Frontend::Struct => {
            let request = InvokeRequest { params: Some(to_struct(contract, params)), ..request };
            call_invoke(daemon, session, request).await
        }
        Frontend::Json => {
            let request = InvokeRequest { params_json: text, ..request };
            call_invoke(daemon, session, request).await
        }
        Frontend::Batch => call_invoke_batch(daemon, session, dialect, tool, text).await,
        Frontend::Job => {
            let request = SubmitJobRequest {
                tool: tool.to_owned(),
                dialect: dialect.to_owned(),
                params_json: text,
                ..SubmitJobRequest::default()
            };
            call_submit_job(daemon, session, request).await
        }
    }
}

async fn call_invoke(daemon: &Daemon, session: &str, request: InvokeRequest) -> ToolCallOutcome {
    let mut client = InvokeServiceClient::new(daemon.channel()).max_decoding_message_size(64 << 20);
    match client.invoke(with_metadata("jig-session", session, request)).await {
        Ok(response) => invoke_outcome(response.into_inner()),
        Err(status) => Err(ToolCallError::from_refusal(Refusal::from_status(&status), "")),
    }
}

async fn call_invoke_batch(
    daemon: &Daemon,
    session: &str,
    dialect: &str,
    tool: &str,
    text: String,
) -> ToolCallOutcome {
    let request = InvokeBatchRequest {
        calls: vec![BatchCall {
            call_id: "call".to_owned(),
            name: tool.to_owned(),
            arguments: None,
            arguments_json: text,
        }],
        dialect: dialect.to_owned(),
        wait_ms: Some(BATCH_WAIT_MS),
        ..InvokeBatchRequest::default()
    };

    let mut client = InvokeServiceClient::new(daemon.channel());
    let request = with_metadata("jig-session", session, request);
    let response = client.invoke_batch(request).await.unwrap().into_inner();
    let [result] = response.results.as_slice() else {
        panic!("{response:?}");
    };
    assert!(!result.pending, "{result:?}");
    assert_eq!(result.ok, result.error.is_none(), "{result:?}");

    match &result.error {
        Some(error) => {
            let details = error.details.as_ref().map(json_of);
            Err(ToolCallError::from_details(&error.code, details))
        }
        None => {
            let Json::Object(output) = json_of(result.output.as_ref().unwrap()) else {
                panic!("{result:?}");
            };
            // A batch truncates long outputs.
            let is_truncated =
                output.contains_key("preview") || output.get("truncated") == Some(&true.into());
            if is_truncated {
                Ok(ToolCallOutput::Truncated)
            } else {
                Ok(ToolCallOutput::Complete(output))
            }
        }
    }
}

async fn call_submit_job(
    daemon: &Daemon,
    session: &str,
    request: SubmitJobRequest,
) -> ToolCallOutcome {
    let mut client = JobServiceClient::new(daemon.channel()).max_decoding_message_size(64 << 20);
    let job = match client.submit_job(with_metadata("jig-session", session, request)).await {
        Ok(response) => response.into_inner().job.unwrap(),
        Err(status) => {
            return Err(ToolCallError::from_refusal(Refusal::from_status(&status), "params."));
        }
    };

    let wait = WaitJobRequest { job_id: job.job_id, wait_ms: None };
    let job = client.wait_job(wait).await.unwrap().into_inner();
    let job = job.job.unwrap();
    let final_states = [JobState::Succeeded, JobState::Failed];
    assert!(final_states.contains(&job.state()), "{job:?}");

    invoke_outcome(job.result.unwrap())
}

fn invoke_outcome(response: InvokeResponse) -> ToolCallOutcome {
    match response.status() {
        InvokeStatus::Success => Ok(match (response.truncated, &response.data) {
            (false, Some(data)) => match json_of(data) {
                Json::Object(data) => ToolCallOutput::Complete(data),
                data => panic!("{data}"),
            },
            (_, _) => ToolCallOutput::Truncated,
        }),
        _ => {
            let error = response.error.unwrap();
            let details = error.details.as_ref().map(json_of);
            Err(ToolCallError::from_details(&error.error_type.to_uppercase(), details))
        }
    }
}

impl ToolCallError {
    fn from_refusal(refusal: Refusal, prefix: &str) -> Self {
        let fields = refusal.violations.into_iter();
        let fields = fields.map(|violation| {
            let field = violation.field.strip_prefix(prefix);
            let field = field.unwrap_or_else(|| panic!("{} without {prefix}", violation.field));
            (field.to_owned(), violation.description)
        });

        Self { reason: refusal.reason, fields: fields.collect() }
    }

    fn from_details(reason: &str, details: Option<Json>) -> Self {
        let fields = details.as_ref().and_then(|details| details["fields"].as_array());
        let fields = fields.into_iter().flatten().map(|field| {
            let text = |name: &str| field[name].as_str().unwrap().to_owned();
            (text("field"), text("description"))
        });
        Self { reason: reason.to_owned(), fields: fields.collect() }
    }
}

/// Decodes an output by protobuf's JSON mapping.
pub(super) fn decode_message(
    descriptor: &MessageDescriptor,
    data: Map<String, Json>,
) -> DynamicMessage {
    let data = Json::Object(data);
    DynamicMessage::deserialize(descriptor.clone(), &data)
        .unwrap_or_else(|error| panic!("{error}: {data}"))
}

/// Clears the fields that differ between calls: times and durations.
pub(super) fn clear_times(mut message: DynamicMessage) -> DynamicMessage {
    let descriptor = message.descriptor();
    for name in ["duration_ms", "usage", "modify_time", "start_time", "end_time"] {
        if descriptor.get_field_by_name(name).is_some() {
            message.clear_field_by_name(name);
        }
    }

    if let Some(mut entries) =
        message.get_field_by_name("entries").map(|entries| entries.into_owned())
    {
        for entry in entries.as_list_mut().unwrap() {
            entry.as_message_mut().unwrap().clear_field_by_name("modify_time");
        }
        message.set_field_by_name("entries", entries);
    }

    message
}

fn to_struct(contract: &Contract, params: &Map<String, Json>) -> Struct {
    let json = large_integers_as_text(Json::Object(params.clone()));
    let descriptor = contract.message_descriptor("google.protobuf.Struct");
    let message = DynamicMessage::deserialize(descriptor, json).unwrap();
    message.transcode_to().unwrap()
}
