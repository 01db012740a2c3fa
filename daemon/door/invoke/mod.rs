//! `jig.v1.InvokeService`: calls by the names of their tools.

mod results;

use std::{collections::HashMap, mem::take, sync::Arc, time::Duration};

use prost::Message as _;
use tonic::{Request, Response, Status};

use self::results::Terms;
use super::{answered, catalog::format_of, check_queue, dialect_of};
use crate::{
    api::v1::{
        BatchCall as WireCall, BatchMode, InvokeBatchRequest, InvokeBatchResponse, InvokeRequest,
        InvokeResponse, ToolFormat, invoke_service_server::InvokeService,
    },
    daemon::{
        call::{
            Pipeline,
            context::{Incoming, LONGEST_REQUEST_ID},
            invoke::{
                Invocation, METHOD,
                batch::{Batch, BatchCall},
            },
            order::cost_of_json,
            params::{self, Fields, PARAMS, Raw},
        },
        error::{Error, Violation},
    },
};

/// What a request id was used for that made a batch of calls.
const BATCH: &str = "jig.v1.InvokeService/InvokeBatch";
/// Where a call of a batch has its parameters.
const ARGUMENTS: Fields = Fields { structure: "arguments", text: "arguments_json" };

/// The service.
#[derive(Debug)]
pub(crate) struct Invoke(pub(crate) Arc<Pipeline>);

#[tonic::async_trait]
impl InvokeService for Invoke {
    async fn invoke(
        &self,
        request: Request<InvokeRequest>,
    ) -> Result<Response<InvokeResponse>, Status> {
        answered(request, async |incoming, request| {
            let bytes = request.encoded_len();
            let held = bytes + request.params.as_ref().map_or(0, params::overhead);
            let read = {
                let pipeline = Arc::clone(&self.0);
                move |incoming: &Incoming| {
                    let call = pipeline.repeatable(incoming, METHOD, &request)?;
                    Ok((call, invocation(&pipeline, request)?))
                }
            };
            let sizes = (held, cost_of_json(bytes));
            let (call, invocation) = self.0.look_into(&incoming, sizes, read).await?;
            self.0.invoke(incoming, invocation, call).await
        })
        .await
    }

    async fn invoke_batch(
        &self,
        request: Request<InvokeBatchRequest>,
    ) -> Result<Response<InvokeBatchResponse>, Status> {
        answered(request, async |incoming, request| {
            let bytes = request.encoded_len();
            let arguments = request.calls.iter().filter_map(|call| call.arguments.as_ref());
            let held = bytes + arguments.map(params::overhead).sum::<usize>();
            let format = request.result_format();
            let read = {
                let pipeline = Arc::clone(&self.0);
                move |incoming: &Incoming| {
                    let call = pipeline.repeatable(incoming, BATCH, &request)?;
                    Ok((call, batch(&pipeline, request)?))
                }
            };
            let sizes = (held, cost_of_json(bytes));
            let (call, batch) = self.0.look_into(&incoming, sizes, read).await?;
            // Where nobody says, the messages are for OpenAI and those who imitate it.
            let format = match format == ToolFormat::Unspecified {
                true => ToolFormat::OpenaiChat,
                false => format,
            };
            let dialect = batch.dialect;
            let terms = Terms {
                format: format_of(format),
                marks_errors: dialect.is_none_or(|dialect| dialect.marks_errors),
                has_previews: dialect.is_some_and(|dialect| dialect.has_previews),
                has_uuids: dialect.is_some_and(|dialect| dialect.has_uuids),
                is_waited_for: batch.wait.is_some(),
                reader: self.0.reader_in(&incoming, dialect),
                may_wait: self.0.may_wait(&incoming, dialect),
            };
            let pipeline = Arc::clone(&self.0);
            let work = async move |is_unfinished: bool| {
                let answers = pipeline.batch(incoming, batch, is_unfinished).await?;
                results::response(answers, terms)
            };
            // In a task of its own: a caller who goes away does not leave half a batch.
            self.0.once_whole(call, work).await
        })
        .await
    }
}

/// What is to be done, of a request.
fn batch(pipeline: &Pipeline, mut request: InvokeBatchRequest) -> Result<Batch, Error> {
    // The tools look at them.
    let arguments: Vec<_> = request
        .calls
        .iter_mut()
        .map(|call| {
            let json = take(&mut call.arguments_json);
            Raw::new(call.arguments.take(), json, ARGUMENTS)
        })
        .collect();
    let checked = pipeline.catalog.look_at("jig.v1.InvokeBatchRequest", request, false)?;
    let (request, mut violations) = (checked.request, checked.violations);
    let dialect = dialect_of(&request.dialect, &mut violations);
    let wait = u64::from(request.wait_ms.unwrap_or_default());
    let is_waited_for = request.mode() != BatchMode::Async;
    let queue = request.queue.unwrap_or_default();
    check_queue(&queue, &mut violations);
    for (number, (call, arguments)) in request.calls.iter().zip(&arguments).enumerate() {
        let place = |violation: Violation| Violation {
            field: format!("calls[{number}].{}", violation.field),
            ..violation
        };
        violations.extend(arguments.twice().into_iter().map(place));
        let field = format!("calls[{number}].call_id");
        check_length(field, &call.call_id, &mut violations);
    }
    check_ids(&request.calls, &mut violations);
    if !violations.is_empty() {
        return Err(Error::invalid(violations));
    }
    let calls = request.calls.into_iter().zip(arguments);
    let calls = calls.map(|(call, arguments)| BatchCall {
        id: call.call_id,
        name: call.name,
        params: arguments.read().map_err(Error::invalid),
    });
    Ok(Batch {
        dialect,
        calls: calls.collect(),
        wait: is_waited_for.then(|| Duration::from_millis(wait)),
        queue,
    })
}

/// What is to be called, of a request.
fn invocation(pipeline: &Pipeline, mut request: InvokeRequest) -> Result<Invocation, Error> {
    // The tool looks at them.
    let json = take(&mut request.params_json);
    let params = Raw::new(request.params.take(), json, PARAMS);
    let checked = pipeline.catalog.look_at("jig.v1.InvokeRequest", request, false)?;
    let (request, mut violations) = (checked.request, checked.violations);
    let dialect = dialect_of(&request.dialect, &mut violations);
    violations.extend(params.twice());
    let field = "request_id".to_owned();
    check_length(field, &request.request_id, &mut violations);
    if !violations.is_empty() {
        return Err(Error::invalid(violations));
    }
    Ok(Invocation {
        id: request.request_id,
        dialect,
        tool: request.tool,
        params: params.read().map_err(Error::invalid),
        with_result_json: request.with_result_json,
    })
}

fn check_length(field: String, id: &str, violations: &mut Vec<Violation>) {
    if id.chars().count() > LONGEST_REQUEST_ID {
        // One that has too many bytes, too, is told once.
        violations.retain(|violation| violation.field != field);
        let text = format!("must have at most {LONGEST_REQUEST_ID} characters");
        violations.push(Violation::new(field, text));
    }
}

/// Results are told apart by the ids of their calls.
fn check_ids(calls: &[WireCall], violations: &mut Vec<Violation>) {
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
