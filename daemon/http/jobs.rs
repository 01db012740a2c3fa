//! Jobs of batches: `GET /v1/jobs/{id}`, and `GET /v1/jobs/{id}/stream` as server-sent events.
//!
//! The events of a stream are `job` (whenever its state changes, and last its end), and `stdout` and
//! `stderr`. The id of each event has the offsets of both outputs after it. A client that reconnects
//! sends the last id as `Last-Event-ID`, and the stream continues there. After the last event of a
//! job that has ended, the response is 204: browsers then no longer reconnect.

use std::str::FromStr;

use axum::{
    Json, Router,
    extract::State,
    response::{IntoResponse as _, Response, sse::Event},
    routing::get,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_stream::StreamExt as _;
use tonic::Status;

use super::{
    event_stream::{event_stream, last_event_id},
    grpc_caller::{GrpcCaller, HttpService},
    json_body::write_message,
    rest_error::RestError,
    rest_extract::{RestPath, RestQuery, set_workspace},
};
use crate::{
    api::v1::{
        GetJobRequest, Job, JobOutput, WatchJobRequest, WatchJobResponse,
        job_service_client::JobServiceClient, watch_job_response::Event as JobEvent,
    },
    daemon::pipeline::jobs::id::{as_uuid, is_uuid},
};

/// End of the id of the last event.
const END_SUFFIX: &str = "-end";

pub(super) fn routes() -> Router<HttpService> {
    Router::new().route("/v1/jobs/{id}", get(get_job)).route("/v1/jobs/{id}/stream", get(stream))
}

/// The query of both routes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JobRouteQuery {
    workspace: Option<String>,
}

async fn get_job(
    State(grpc): State<HttpService>,
    caller: GrpcCaller,
    RestPath(job_id): RestPath<String>,
    RestQuery(query): RestQuery<JobRouteQuery>,
) -> Result<Json<Value>, RestError> {
    let mut client = JobServiceClient::with_origin(grpc, caller.origin.clone())
        .max_decoding_message_size(usize::MAX);
    let has_uuids = is_uuid(&job_id);
    let mut request = caller.request(GetJobRequest { job_id });
    set_workspace(&mut request, query.workspace)?;
    let response = client.get_job(request).await?;
    let job = response.into_inner().job.unwrap_or_default();
    Ok(Json(json!({ "ok": true, "job": job_json(job, has_uuids)? })))
}

async fn stream(
    State(grpc): State<HttpService>,
    caller: GrpcCaller,
    RestPath(job_id): RestPath<String>,
    RestQuery(query): RestQuery<JobRouteQuery>,
    headers: HeaderMap,
) -> Result<Response, RestError> {
    let mut position: StreamPosition = last_event_id(&headers, "0-0")?.unwrap_or_default();
    let has_uuids = is_uuid(&job_id);
    let mut request = caller.request(WatchJobRequest {
        job_id,
        stdout_offset: position.stdout,
        stderr_offset: position.stderr,
        ..WatchJobRequest::default()
    });
    set_workspace(&mut request, query.workspace)?;
    let mut client = JobServiceClient::with_origin(grpc, caller.origin.clone())
        .max_decoding_message_size(usize::MAX);
    let responses = client.watch_job(request).await?.into_inner();
    if position.has_end {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }

    let event = move |response| event(response, &mut position, has_uuids);
    Ok(event_stream(responses.filter_map(event)))
}

/// What a client has of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct StreamPosition {
    /// Bytes of each output.
    stdout: u64,
    stderr: u64,
    /// Whether the client has the end of the job.
    has_end: bool,
}

impl FromStr for StreamPosition {
    type Err = ();

    fn from_str(id: &str) -> Result<Self, ()> {
        let (offsets, has_end) = match id.strip_suffix(END_SUFFIX) {
            Some(offsets) => (offsets, true),
            None => (id, false),
        };
        let (stdout, stderr) = offsets.split_once('-').ok_or(())?;
        let offset = |text: &str| text.parse().map_err(|_| ());
        Ok(Self { stdout: offset(stdout)?, stderr: offset(stderr)?, has_end })
    }
}

impl StreamPosition {
    fn to_id(self) -> String {
        let end = if self.has_end { END_SUFFIX } else { "" };
        format!("{}-{}{end}", self.stdout, self.stderr)
    }
}

/// An event of the stream; `None` for a keep-alive of the contract.
fn event(
    response: Result<WatchJobResponse, Status>,
    position: &mut StreamPosition,
    has_uuids: bool,
) -> Option<Event> {
    let (name, data) = match response.map(|response| response.event) {
        Ok(Some(JobEvent::Job(job))) => {
            position.has_end = job.end_time.is_some();
            match job_json(job, has_uuids) {
                Ok(job) => ("job", job),
                Err(error) => ("error", error.to_json()),
            }
        }
        Ok(Some(JobEvent::Stdout(output))) => {
            position.stdout = output.offset + output.data.len() as u64;
            ("stdout", output_json(&output))
        }
        Ok(Some(JobEvent::Stderr(output))) => {
            position.stderr = output.offset + output.data.len() as u64;
            ("stderr", output_json(&output))
        }
        Ok(Some(JobEvent::KeepAlive(_)) | None) => return None,
        Err(status) => ("error", RestError::from(status).to_json()),
    };
    Some(Event::default().event(name).id(position.to_id()).data(data.to_string()))
}

/// Output as text, or as Base64 if it is not UTF-8.
fn output_json(output: &JobOutput) -> Value {
    match std::str::from_utf8(&output.data) {
        Ok(text) => json!({ "offset": output.offset, "text": text }),
        Err(_) => json!({ "offset": output.offset, "base64": STANDARD.encode(&output.data) }),
    }
}

/// The job as JSON, with the names of the contract. Its ids have the form that the caller used: those
/// of document E are UUIDs.
fn job_json(mut job: Job, has_uuids: bool) -> Result<Value, RestError> {
    if has_uuids {
        job.job_id = as_uuid(&job.job_id);
        if let Some(result) = &mut job.result {
            result.job_id = as_uuid(&result.job_id);
        }
    }
    write_message("jig.v1.Job", &job)
}
