//! The ways in, and what comes of a call by each, so that it can be compared.

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
    contract::{Contract, Tool},
    spelling::as_doubles,
    stage::Stage,
};
use crate::{
    invoke::json_of,
    support::{Daemon, Raw, Refusal, with},
};

/// Milliseconds that a batch waits: longer than any call takes.
const LONG: u32 = 60_000;

/// A way in for calls by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    /// `Invoke`, with a message.
    Message,
    /// `Invoke`, with a text.
    Text,
    /// `InvokeBatch`.
    Batch,
    /// `SubmitJob`.
    Job,
}

impl Door {
    /// All of them.
    pub(super) const ALL: [Self; 4] = [Self::Message, Self::Text, Self::Batch, Self::Job];
}

/// Why a call came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Why {
    /// The reason, in upper case.
    pub(super) reason: String,
    /// Which fields break their rules, and how.
    pub(super) fields: BTreeMap<String, String>,
}

/// What came of a call by name.
pub(super) type Came = Result<Data, Why>;

/// What a tool has answered.
#[derive(Debug)]
pub(super) enum Data {
    /// All of it.
    Whole(Map<String, Json>),
    /// Some of it, as there was too much.
    Part,
}

/// Calls the RPC of a tool.
pub(super) async fn typed(
    stage: &Stage,
    tool: &Tool,
    session: &str,
    message: &DynamicMessage,
) -> Result<DynamicMessage, Why> {
    let mut grpc = Grpc::new(stage.daemon.channel()).max_decoding_message_size(64 << 20);
    grpc.ready().await.unwrap();
    let service = tool.method.parent_service();
    let path = format!("/{}/{}", service.full_name(), tool.method.name());
    let request = with("jig-session", session, message.encode_to_vec());
    match grpc.unary(request, path.parse().unwrap(), Raw).await {
        Ok(response) => {
            let bytes = response.into_inner();
            Ok(DynamicMessage::decode(tool.method.output(), &*bytes).unwrap())
        }
        Err(status) => Err(Why::of(Refusal::of(&status), "")),
    }
}

/// Calls a tool by its name.
pub(super) async fn by_name(
    stage: &Stage,
    contract: &Contract,
    door: Door,
    (dialect, tool): (&str, &str),
    session: &str,
    params: &Map<String, Json>,
) -> Came {
    let daemon = &stage.daemon;
    let text = Json::Object(params.clone()).to_string();
    let request = InvokeRequest {
        tool: tool.to_owned(),
        dialect: dialect.to_owned(),
        ..InvokeRequest::default()
    };
    match door {
        Door::Message => {
            let request = InvokeRequest { params: Some(structure(contract, params)), ..request };
            invoked(daemon, session, request).await
        }
        Door::Text => {
            let request = InvokeRequest { params_json: text, ..request };
            invoked(daemon, session, request).await
        }
        Door::Batch => batched(daemon, session, dialect, tool, text).await,
        Door::Job => {
            let request = SubmitJobRequest {
                tool: tool.to_owned(),
                dialect: dialect.to_owned(),
                params_json: text,
                ..SubmitJobRequest::default()
            };
            submitted(daemon, session, request).await
        }
    }
}

async fn invoked(daemon: &Daemon, session: &str, request: InvokeRequest) -> Came {
    let mut client = InvokeServiceClient::new(daemon.channel()).max_decoding_message_size(64 << 20);
    match client.invoke(with("jig-session", session, request)).await {
        Ok(response) => told(response.into_inner()),
        Err(status) => Err(Why::of(Refusal::of(&status), "")),
    }
}

async fn batched(daemon: &Daemon, session: &str, dialect: &str, tool: &str, text: String) -> Came {
    let request = InvokeBatchRequest {
        calls: vec![BatchCall {
            call_id: "it".to_owned(),
            name: tool.to_owned(),
            arguments: None,
            arguments_json: text,
        }],
        dialect: dialect.to_owned(),
        wait_ms: Some(LONG),
        ..InvokeBatchRequest::default()
    };
    let mut client = InvokeServiceClient::new(daemon.channel());
    let request = with("jig-session", session, request);
    let response = client.invoke_batch(request).await.unwrap().into_inner();
    let [result] = response.results.as_slice() else {
        panic!("{response:?}");
    };
    assert!(!result.pending, "{result:?}");
    assert_eq!(result.ok, result.error.is_none(), "{result:?}");
    match &result.error {
        Some(error) => {
            let details = error.details.as_ref().map(json_of);
            Err(Why::told(&error.code, details))
        }
        None => {
            let Json::Object(output) = json_of(result.output.as_ref().unwrap()) else {
                panic!("{result:?}");
            };
            // Of what is long, a batch shows a part.
            let is_part =
                output.contains_key("preview") || output.get("truncated") == Some(&true.into());
            Ok(match is_part {
                true => Data::Part,
                false => Data::Whole(output),
            })
        }
    }
}

async fn submitted(daemon: &Daemon, session: &str, request: SubmitJobRequest) -> Came {
    let mut client = JobServiceClient::new(daemon.channel()).max_decoding_message_size(64 << 20);
    let job = match client.submit_job(with("jig-session", session, request)).await {
        Ok(response) => response.into_inner().job.unwrap(),
        Err(status) => return Err(Why::of(Refusal::of(&status), "params.")),
    };
    let wait = WaitJobRequest { job_id: job.job_id, wait_ms: None };
    let job = client.wait_job(wait).await.unwrap().into_inner();
    let job = job.job.unwrap();
    let ended = [JobState::Succeeded, JobState::Failed];
    assert!(ended.contains(&job.state()), "{job:?}");
    told(job.result.unwrap())
}

fn told(response: InvokeResponse) -> Came {
    match response.status() {
        InvokeStatus::Success => Ok(match (response.truncated, &response.data) {
            (false, Some(data)) => match json_of(data) {
                Json::Object(data) => Data::Whole(data),
                other => panic!("{other}"),
            },
            (_, _) => Data::Part,
        }),
        _ => {
            let error = response.error.unwrap();
            let details = error.details.as_ref().map(json_of);
            Err(Why::told(&error.error_type.to_uppercase(), details))
        }
    }
}

impl Why {
    fn of(refusal: Refusal, prefix: &str) -> Self {
        let fields = refusal.violations.into_iter();
        let fields = fields.map(|violation| {
            let field = violation.field.strip_prefix(prefix);
            let field = field.unwrap_or_else(|| panic!("{} without {prefix}", violation.field));
            (field.to_owned(), violation.description)
        });
        Self { reason: refusal.reason, fields: fields.collect() }
    }

    fn told(reason: &str, details: Option<Json>) -> Self {
        let fields = details.as_ref().and_then(|details| details["fields"].as_array());
        let fields = fields.into_iter().flatten().map(|field| {
            let text = |name: &str| field[name].as_str().unwrap().to_owned();
            (text("field"), text("description"))
        });
        Self { reason: reason.to_owned(), fields: fields.collect() }
    }
}

/// An answer as its message: what JSON says of it, by the mapping of protobuf.
pub(super) fn as_message(of: &MessageDescriptor, data: Map<String, Json>) -> DynamicMessage {
    let data = Json::Object(data);
    DynamicMessage::deserialize(of.clone(), &data).unwrap_or_else(|error| panic!("{error}: {data}"))
}

/// An answer without what is another each time: when and how long.
pub(super) fn without_times(mut message: DynamicMessage) -> DynamicMessage {
    let of = message.descriptor();
    for name in ["duration_ms", "usage", "modify_time", "start_time", "end_time"] {
        if of.get_field_by_name(name).is_some() {
            message.clear_field_by_name(name);
        }
    }
    if let Some(mut entries) = message.get_field_by_name("entries").map(|all| all.into_owned()) {
        for entry in entries.as_list_mut().unwrap() {
            entry.as_message_mut().unwrap().clear_field_by_name("modify_time");
        }
        message.set_field_by_name("entries", entries);
    }
    message
}

fn structure(contract: &Contract, params: &Map<String, Json>) -> Struct {
    let json = as_doubles(Json::Object(params.clone()));
    let descriptor = contract.message("google.protobuf.Struct");
    let message = DynamicMessage::deserialize(descriptor, json).unwrap();
    message.transcode_to().unwrap()
}
