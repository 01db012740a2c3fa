//! What is submitted to be done later: looked at before it is taken on.

use std::{
    future,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use serde_json::{Map, Value};

use super::{Pipeline, context::CallContext, dyn_tool};
use crate::daemon::{
    catalog::Catalog,
    dialect::{
        CanonicalCall, CanonicalTools, Dialect, DialectFuture, DialectParams, DialectTool,
        ResponseData,
    },
    error::Error,
};

/// The queue of jobs that name none.
const DEFAULT_QUEUE_NAME: &str = "default";

/// A call that is to be made when its turn comes.
#[derive(Debug)]
pub(crate) struct JobSubmission {
    /// The vocabulary, where it is not that of the contract.
    pub(crate) dialect: Option<&'static Dialect>,
    /// Name of the tool.
    pub(crate) tool: String,
    /// Its parameters.
    pub(crate) params: Map<String, Value>,
    /// The queue to wait in.
    pub(crate) queue: String,
    /// Who comes first: higher before lower.
    pub(crate) priority: i32,
}

/// A submission of which nothing is known to be wrong.
#[derive(Debug)]
pub(crate) struct ValidatedSubmission {
    pub(super) dialect: Option<&'static Dialect>,
    pub(super) tool: String,
    /// Its parameters, as they are kept.
    pub(super) params: Vec<u8>,
    pub(super) queue: String,
    pub(super) priority: i32,
    /// Whether its caller may call the tool at all: said only to who has not submitted it before.
    pub(super) tool_access: Result<(), Error>,
}

impl Pipeline {
    /// Looks whether what is submitted could be done. What comes of it takes no more memory than what was
    /// sent.
    pub(crate) fn validate_submission(
        &self,
        context: &CallContext,
        submission: JobSubmission,
    ) -> Result<ValidatedSubmission, Error> {
        let JobSubmission { dialect, tool: name, mut params, queue, priority } = submission;
        let principal = &context.principal;
        let own = self.dialect_of_tool(dialect, &name);
        let dialect = self.answering_dialect(dialect, &name);
        let is_open = match own {
            None => {
                self.drop_unknown_params(dialect, &name, &mut params);
                let tool = dyn_tool::find(&name, self, principal)?;
                let is_open = tool.require_access(self, principal, None);
                if is_open.is_ok() {
                    tool.validate(self, context.clone(), &params)?;
                }
                is_open
            }
            Some(dialect) => {
                let tool = dialect.tool(&name, |tool| {
                    self.require_dialect_tool_access(principal, tool).is_ok()
                })?;
                let is_open = self.require_dialect_tool_access(principal, tool);
                if is_open.is_ok() {
                    let params = dialect.read_params(tool, params.clone())?;
                    self.validate_first_call(context, tool, params)?;
                }
                is_open
            }
        };
        Ok(ValidatedSubmission {
            dialect,
            tool: name,
            params: serde_json::to_vec(&params).map_err(Error::internal)?,
            queue,
            priority,
            tool_access: is_open,
        })
    }

    /// Looks whether the first call that a tool of a dialect makes could be made, and makes none.
    fn validate_first_call(
        &self,
        context: &CallContext,
        tool: &DialectTool,
        params: DialectParams,
    ) -> Result<(), Error> {
        let mut first = FirstCallProbe { pipeline: self, context, result: None };
        let told = {
            let mut calls = tool.call(params, &mut first);
            // Nothing is waited for: the first call is answered at once.
            calls.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        };
        match (first.result, told) {
            (Some(found), _) => found,
            (None, Poll::Ready(Err(error))) => Err(error),
            (None, Poll::Ready(Ok(_)) | Poll::Pending) => Ok(()),
        }
    }

    /// Submits a call of a tool of the contract as a job, in the queue that is the default. Answers its id.
    pub(super) async fn submit_call_as_job(
        self: &Arc<Self>,
        context: &CallContext,
        call: CanonicalCall,
    ) -> Result<String, Error> {
        let submission = JobSubmission {
            dialect: None,
            tool: call.tool.to_owned(),
            params: call.params.clone(),
            queue: DEFAULT_QUEUE_NAME.to_owned(),
            priority: 0,
        };
        let context = CallContext { request_id: None, ..context.clone() };
        let order = self.validate_submission(&context, submission);
        let order = order.map_err(|error| call.translate_error(error))?;
        let job = self.submit_job(&context, order, false).await?;
        Ok(job.id)
    }
}

/// The tools of the contract, for who only wants to know whether the first call is right.
struct FirstCallProbe<'a> {
    pipeline: &'a Pipeline,
    context: &'a CallContext,
    result: Option<Result<(), Error>>,
}

impl FirstCallProbe<'_> {
    fn probe(&mut self, call: &CanonicalCall) -> Error {
        if self.result.is_none() {
            let tool = dyn_tool::find(call.tool, self.pipeline, &self.context.principal);
            let checked = tool
                .and_then(|tool| tool.validate(self.pipeline, self.context.clone(), &call.params));
            self.result = Some(checked.map(drop).map_err(|error| call.translate_error(error)));
        }
        Error::internal("this call was only looked at")
    }
}

impl CanonicalTools for FirstCallProbe<'_> {
    fn call(&mut self, call: CanonicalCall) -> DialectFuture<'_, Result<ResponseData, Error>> {
        let looked = self.probe(&call);
        Box::pin(future::ready(Err(looked)))
    }

    fn submit(&mut self, call: CanonicalCall) -> DialectFuture<'_, Result<String, Error>> {
        let looked = self.probe(&call);
        Box::pin(future::ready(Err(looked)))
    }
}

/// What it costs to read parameters, which are so many bytes, as so many of plain text.
pub(crate) fn json_validation_cost(bytes: usize) -> usize {
    dyn_tool::json_validation_cost(bytes)
}

/// What it costs to look at the parameters of a job, which are so many bytes, as so many of plain text.
pub(crate) fn job_validation_cost(tool: &str, catalog: &Catalog, bytes: usize) -> usize {
    dyn_tool::validation_cost(tool, catalog, bytes)
}
