//! `jig.v1.InvokeService`: calls tools by name, one by one or in batches.

mod results;
mod stream;

use std::{collections::HashMap, mem::take, sync::Arc, time::Duration};

use prost::Message as _;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use self::{results::BatchResultOptions, stream::InvokeStream};
use super::{
    catalog::render_format,
    handle, handle_stream,
    response_stream::{WorkspaceStream, keep_alive_interval, response_channel},
};
use crate::{
    api::v1::{
        self, BatchMode, InvokeBatchRequest, InvokeBatchResponse, InvokeRequest, InvokeResponse,
        InvokeStreamRequest, InvokeStreamResponse, ToolFormat,
        invoke_service_server::InvokeService,
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
            once::IdempotentCall,
            params::{self, PARAMS_FIELDS, ParamsFieldNames, RawParams},
            request_fields::{parse_dialect, validate_queue_name},
        },
        task,
    },
};

const BATCH_METHOD: &str = "jig.v1.InvokeService/InvokeBatch";
/// Messages buffered for a slow client.
const STREAM_BUFFER_MESSAGES: usize = 4;
/// Fields with the parameters of a call in a batch.
const ARGUMENT_FIELDS: ParamsFieldNames =
    ParamsFieldNames { structure: "arguments", json_text: "arguments_json" };

#[derive(Debug)]
pub(crate) struct InvokeServiceHandler(pub(crate) Arc<Pipeline>);

#[tonic::async_trait]
impl InvokeService for InvokeServiceHandler {
    type InvokeStreamStream = WorkspaceStream<InvokeStreamResponse>;

    async fn invoke(
        &self,
        request: Request<InvokeRequest>,
    ) -> Result<Response<InvokeResponse>, Status> {
        handle(request, async |context, request| {
            let (call, invocation) = self.validate_invocation(&context, request).await?;
            self.0.invoke(context, invocation, call).await
        })
        .await
    }

    async fn invoke_stream(
        &self,
        request: Request<InvokeStreamRequest>,
    ) -> Result<Response<Self::InvokeStreamStream>, Status> {
        handle_stream(request, async |context, request| {
            let (request, keep_alive_sec) = split_stream_request(&self.0, request)?;
            let (call, invocation) = self.validate_invocation(&context, request).await?;

            let (sender, terminator, responses) =
                response_channel(STREAM_BUFFER_MESSAGES, &context.call_id);
            let stream = InvokeStream {
                pipeline: Arc::clone(&self.0),
                context,
                keep_alive_interval: keep_alive_interval(keep_alive_sec),
            };
            let run = stream.run(invocation, call, sender, terminator);
            task::spawn_tracked("stream of a call", run);
            Ok(responses)
        })
        .await
    }

    async fn invoke_batch(
        &self,
        request: Request<InvokeBatchRequest>,
    ) -> Result<Response<InvokeBatchResponse>, Status> {
        handle(request, async |context, request| {
            let bytes = request.encoded_len();
            let arguments = request.calls.iter().filter_map(|call| call.arguments.as_ref());
            let memory = bytes + arguments.map(params::struct_overhead_bytes).sum::<usize>();
            // OpenAI's format is the default, because many clients use it.
            let mut format = request.result_format();
            if format == ToolFormat::Unspecified {
                format = ToolFormat::OpenaiChat;
            }

            let validate = {
                let pipeline = Arc::clone(&self.0);
                move |context: &CallContext| {
                    let call = pipeline.identify_call(context, BATCH_METHOD, &request)?;
                    Ok((call, parse_batch(&pipeline, request)?))
                }
            };
            let cost = json_validation_cost(bytes);
            let (call, batch) =
                self.0.validate_maybe_offloaded(&context, (memory, cost), validate).await?;

            let dialect = batch.dialect;
            let options = BatchResultOptions {
                format: render_format(format),
                marks_errors: dialect.is_none_or(|dialect| dialect.marks_errors),
                has_previews: dialect.is_some_and(|dialect| dialect.has_previews),
                has_uuids: dialect.is_some_and(|dialect| dialect.uuid_job_ids),
                is_sync: batch.wait.is_some(),
                output_reader_tool: self.0.artifact_reader_in(&context, dialect),
                can_await_jobs: self.0.may_await_jobs(&context, dialect),
            };

            // With a request id, the caller can repeat the batch, and then gets the ids of its jobs.
            let abandoned = CancellationToken::new();
            let _abandon = call.is_none().then(|| abandoned.clone().drop_guard());
            let pipeline = Arc::clone(&self.0);
            let work = async move |is_unfinished: bool| {
                let results = pipeline.run_batch(context, batch, is_unfinished, &abandoned).await?;
                results::render_response(results, options)
            };
            // Detached: a client that disconnects must not leave a batch half submitted.
            self.0.run_once_detached(call, work).await
        })
        .await
    }
}

impl InvokeServiceHandler {
    /// Validates a request, except the parameters, and identifies a repeated one.
    async fn validate_invocation(
        &self,
        context: &CallContext,
        request: InvokeRequest,
    ) -> Result<(Option<IdempotentCall>, Invocation), Error> {
        let bytes = request.encoded_len();
        let memory = bytes + request.params.as_ref().map_or(0, params::struct_overhead_bytes);
        let pipeline = Arc::clone(&self.0);
        let validate = move |context: &CallContext| {
            let call = pipeline.identify_call(context, INVOKE_METHOD, &request)?;
            Ok((call, parse_invocation(&pipeline, request)?))
        };
        let cost = json_validation_cost(bytes);
        self.0.validate_maybe_offloaded(context, (memory, cost), validate).await
    }
}

/// Validates the fields that a streamed call has in addition. Returns the call without them, so that
/// it has the same identity as a call of `Invoke`.
fn split_stream_request(
    pipeline: &Pipeline,
    request: InvokeStreamRequest,
) -> Result<(InvokeRequest, Option<u32>), Error> {
    let keep_alive_sec = request.keep_alive_sec;
    let own_fields =
        InvokeStreamRequest { tool: request.tool.clone(), keep_alive_sec, ..Default::default() };
    pipeline.catalog.check("jig.v1.InvokeStreamRequest", own_fields)?;

    let InvokeStreamRequest {
        request_id,
        tool,
        params,
        params_json,
        dialect,
        with_result_json,
        ..
    } = request;
    let call = InvokeRequest { request_id, tool, params, params_json, dialect, with_result_json };
    Ok((call, keep_alive_sec))
}

/// Validates a batch, except the arguments, which the tools validate.
fn parse_batch(pipeline: &Pipeline, mut request: InvokeBatchRequest) -> Result<Batch, Error> {
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
    let is_sync = request.mode() != BatchMode::Async;
    let wait = Duration::from_millis(u64::from(request.wait_ms.unwrap_or_default()));
    let queue = request.queue.unwrap_or_default();
    validate_queue_name(&queue, &mut violations);

    for (index, (call, arguments)) in request.calls.iter().zip(&arguments).enumerate() {
        let prefix = |violation: Violation| Violation {
            field: format!("calls[{index}].{}", violation.field),
            ..violation
        };
        violations.extend(arguments.conflict_violations().into_iter().map(prefix));
        let field = format!("calls[{index}].call_id");
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
    Ok(Batch { dialect, calls: calls.collect(), wait: is_sync.then_some(wait), queue })
}

/// Validates a request, except the parameters, which the tool validates.
fn parse_invocation(pipeline: &Pipeline, mut request: InvokeRequest) -> Result<Invocation, Error> {
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
        // Replace the violation of the byte limit: report the field once.
        violations.retain(|violation| violation.field != field);
        let text = format!("must have at most {MAX_REQUEST_ID_CHARS} characters");
        violations.push(Violation::new(field, text));
    }
}

/// Adds a violation for each repeated id: clients match results to calls by their ids.
fn validate_unique_ids(calls: &[v1::BatchCall], violations: &mut Vec<Violation>) {
    let mut first_uses = HashMap::new();
    for (index, v1::BatchCall { call_id, .. }) in calls.iter().enumerate() {
        if call_id.is_empty() {
            continue;
        }
        let first = *first_uses.entry(call_id.as_str()).or_insert(index);
        if first != index {
            let text = format!("is that of calls[{first}]: each call must have an id of its own");
            violations.push(Violation::new(format!("calls[{index}].call_id"), text));
        }
    }
}
