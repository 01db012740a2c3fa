//! `jig.v1.InvokeService`: calls by the names of their tools.

mod results;

use std::{collections::HashMap, mem::take, sync::Arc, time::Duration};

use prost::Message as _;
use tonic::{Request, Response, Status};

use self::results::BatchResultOptions;
use super::{catalog::render_format, handle, parse_dialect, validate_queue_name};
use crate::{
    api::v1::{
        BatchCall as WireCall, BatchMode, InvokeBatchRequest, InvokeBatchResponse, InvokeRequest,
        InvokeResponse, ToolFormat, invoke_service_server::InvokeService,
    },
    daemon::{
        error::{Error, Violation},
        pipeline::{
            Pipeline,
            context::{CallContext, MAX_REQUEST_ID_CHARS},
            invoke::{
                INVOKE_METHOD, Invocation,
                batch::{Batch, BatchCall},
            },
            job_submission::json_validation_cost,
            params::{self, PARAMS_FIELDS, ParamsFieldNames, RawParams},
        },
    },
};

/// What a request id was used for that made a batch of calls.
const BATCH_METHOD: &str = "jig.v1.InvokeService/InvokeBatch";
/// Where a call of a batch has its parameters.
const ARGUMENT_FIELDS: ParamsFieldNames =
    ParamsFieldNames { message: "arguments", json_text: "arguments_json" };

/// The service.
#[derive(Debug)]
pub(crate) struct InvokeServiceHandler(pub(crate) Arc<Pipeline>);

#[tonic::async_trait]
impl InvokeService for InvokeServiceHandler {
    async fn invoke(
        &self,
        request: Request<InvokeRequest>,
    ) -> Result<Response<InvokeResponse>, Status> {
        handle(request, async |incoming, request| {
            let bytes = request.encoded_len();
            let held = bytes + request.params.as_ref().map_or(0, params::struct_overhead_bytes);
            let read = {
                let pipeline = Arc::clone(&self.0);
                move |incoming: &CallContext| {
                    let call = pipeline.idempotent_call(incoming, INVOKE_METHOD, &request)?;
                    Ok((call, parse_invocation(&pipeline, request)?))
                }
            };
            let sizes = (held, json_validation_cost(bytes));
            let (call, invocation) =
                self.0.validate_maybe_offloaded(&incoming, sizes, read).await?;
            self.0.invoke(incoming, invocation, call).await
        })
        .await
    }

    async fn invoke_batch(
        &self,
        request: Request<InvokeBatchRequest>,
    ) -> Result<Response<InvokeBatchResponse>, Status> {
        handle(request, async |incoming, request| {
            let bytes = request.encoded_len();
            let arguments = request.calls.iter().filter_map(|call| call.arguments.as_ref());
            let held = bytes + arguments.map(params::struct_overhead_bytes).sum::<usize>();
            let format = request.result_format();
            let read = {
                let pipeline = Arc::clone(&self.0);
                move |incoming: &CallContext| {
                    let call = pipeline.idempotent_call(incoming, BATCH_METHOD, &request)?;
                    Ok((call, parse_batch(&pipeline, request)?))
                }
            };
            let sizes = (held, json_validation_cost(bytes));
            let (call, batch) = self.0.validate_maybe_offloaded(&incoming, sizes, read).await?;
            // Where nobody says, the messages are for OpenAI and those who imitate it.
            let format = match format == ToolFormat::Unspecified {
                true => ToolFormat::OpenaiChat,
                false => format,
            };
            let dialect = batch.dialect;
            let terms = BatchResultOptions {
                format: render_format(format),
                marks_errors: dialect.is_none_or(|dialect| dialect.marks_errors),
                has_previews: dialect.is_some_and(|dialect| dialect.has_previews),
                has_uuids: dialect.is_some_and(|dialect| dialect.uuid_job_ids),
                is_sync: batch.wait.is_some(),
                output_reader_tool: self.0.artifact_reader_in(&incoming, dialect),
                can_await_jobs: self.0.may_await_jobs(&incoming, dialect),
            };
            let pipeline = Arc::clone(&self.0);
            let work = async move |is_unfinished: bool| {
                let answers = pipeline.run_batch(incoming, batch, is_unfinished).await?;
                results::render_response(answers, terms)
            };
            // In a task of its own: a caller who goes away does not leave half a batch.
            self.0.run_once_detached(call, work).await
        })
        .await
    }
}

/// What is to be done, of a request.
fn parse_batch(pipeline: &Pipeline, mut request: InvokeBatchRequest) -> Result<Batch, Error> {
    // The tools look at them.
    let arguments: Vec<_> = request
        .calls
        .iter_mut()
        .map(|call| {
            let json = take(&mut call.arguments_json);
            RawParams::new(call.arguments.take(), json, ARGUMENT_FIELDS)
        })
        .collect();
    let checked = pipeline.catalog.validate("jig.v1.InvokeBatchRequest", request, false)?;
    let (request, mut violations) = (checked.request, checked.violations);
    let dialect = parse_dialect(&request.dialect, &mut violations);
    let wait = u64::from(request.wait_ms.unwrap_or_default());
    let is_waited_for = request.mode() != BatchMode::Async;
    let queue = request.queue.unwrap_or_default();
    validate_queue_name(&queue, &mut violations);
    for (number, (call, arguments)) in request.calls.iter().zip(&arguments).enumerate() {
        let place = |violation: Violation| Violation {
            field: format!("calls[{number}].{}", violation.field),
            ..violation
        };
        violations.extend(arguments.conflict_violations().into_iter().map(place));
        let field = format!("calls[{number}].call_id");
        validate_id_length(field, &call.call_id, &mut violations);
    }
    validate_unique_ids(&request.calls, &mut violations);
    if !violations.is_empty() {
        return Err(Error::invalid(violations));
    }
    let calls = request.calls.into_iter().zip(arguments);
    let calls = calls.map(|(call, arguments)| BatchCall {
        id: call.call_id,
        name: call.name,
        params: arguments.parse().map_err(Error::invalid),
    });
    Ok(Batch {
        dialect,
        calls: calls.collect(),
        wait: is_waited_for.then(|| Duration::from_millis(wait)),
        queue,
    })
}

/// What is to be called, of a request.
fn parse_invocation(pipeline: &Pipeline, mut request: InvokeRequest) -> Result<Invocation, Error> {
    // The tool looks at them.
    let json = take(&mut request.params_json);
    let params = RawParams::new(request.params.take(), json, PARAMS_FIELDS);
    let checked = pipeline.catalog.validate("jig.v1.InvokeRequest", request, false)?;
    let (request, mut violations) = (checked.request, checked.violations);
    let dialect = parse_dialect(&request.dialect, &mut violations);
    violations.extend(params.conflict_violations());
    let field = "request_id".to_owned();
    validate_id_length(field, &request.request_id, &mut violations);
    if !violations.is_empty() {
        return Err(Error::invalid(violations));
    }
    Ok(Invocation {
        id: request.request_id,
        dialect,
        tool: request.tool,
        params: params.parse().map_err(Error::invalid),
        with_result_json: request.with_result_json,
    })
}

fn validate_id_length(field: String, id: &str, violations: &mut Vec<Violation>) {
    if id.chars().count() > MAX_REQUEST_ID_CHARS {
        // One that has too many bytes, too, is told once.
        violations.retain(|violation| violation.field != field);
        let text = format!("must have at most {MAX_REQUEST_ID_CHARS} characters");
        violations.push(Violation::new(field, text));
    }
}

/// Results are told apart by the ids of their calls.
fn validate_unique_ids(calls: &[WireCall], violations: &mut Vec<Violation>) {
    let mut first = HashMap::new();
    for (number, WireCall { call_id, .. }) in calls.iter().enumerate() {
        if call_id.is_empty() {
            continue;
        }
        let before = *first.entry(call_id.as_str()).or_insert(number);
        if before != number {
            let text = format!("is that of calls[{before}]: each call must have an id of its own");
            violations.push(Violation::new(format!("calls[{number}].call_id"), text));
        }
    }
}
