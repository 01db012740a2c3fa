//! Validation of job submissions: a call is checked before the daemon accepts it as a job.

use std::{
    future,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use serde_json::{Map, Value};

use super::{Pipeline, context::CallContext, dyn_tool};
use crate::daemon::{
    catalog::Catalog,
    dialect::{CanonicalCall, CanonicalTools, Dialect, DialectParams, DialectTool, ResponseData},
    error::Error,
    task::BoxFuture,
};

/// The queue of jobs that name no queue.
pub(crate) const DEFAULT_QUEUE_NAME: &str = "default";

/// A call to run later, as a job.
#[derive(Debug)]
pub(crate) struct JobSubmission {
    /// The dialect. `None` for the names of the contract.
    pub(crate) dialect: Option<&'static Dialect>,
    pub(crate) tool: String,
    pub(crate) params: Map<String, Value>,
    pub(crate) queue: String,
    /// Jobs with a higher priority start first.
    pub(crate) priority: i32,
}

/// A submission that has passed validation.
#[derive(Debug)]
pub(crate) struct ValidatedSubmission {
    pub(super) dialect: Option<&'static Dialect>,
    pub(super) tool: String,
    /// The parameters as JSON, as the daemon stores them.
    pub(super) params: Vec<u8>,
    pub(super) queue: String,
    pub(super) priority: i32,
    /// Whether the caller may use the tool. Returned only if the call was not submitted before.
    pub(super) tool_access: Result<(), Error>,
}

impl ValidatedSubmission {
    /// Requires that the caller may use the tool, where another daemon will make the call.
    pub(crate) fn require_access(self) -> Result<(), Error> {
        self.tool_access
    }
}

impl Pipeline {
    /// Validates a submission. The result takes no more memory than the request.
    pub(crate) fn validate_submission(
        &self,
        context: &CallContext,
        submission: JobSubmission,
    ) -> Result<ValidatedSubmission, Error> {
        let JobSubmission { dialect, tool: name, mut params, queue, priority } = submission;
        let principal = &context.principal;
        let own_dialect = self.dialect_of_tool(dialect, &name);
        let dialect = self.answering_dialect(dialect, &name);

        let tool_access = match own_dialect {
            None => {
                self.drop_unknown_params(dialect, &name, &mut params);
                let tool = dyn_tool::find(&name, self, principal)?;
                let access = tool.require_access(self, principal, None);
                if access.is_ok() {
                    tool.validate(self, context.clone(), &params)?;
                }
                access
            }
            Some(dialect) => {
                let tool = dialect.tool(&name, |tool| {
                    self.require_dialect_tool_access(principal, tool).is_ok()
                })?;
                let access = self.require_dialect_tool_access(principal, tool);
                if access.is_ok() {
                    let params = dialect.read_params(tool, params.clone())?;
                    self.validate_first_call(context, tool, params)?;
                }
                access
            }
        };

        Ok(ValidatedSubmission {
            dialect,
            tool: name,
            params: serde_json::to_vec(&params).map_err(Error::internal)?,
            queue,
            priority,
            tool_access,
        })
    }

    /// Validates the first call that a tool of a dialect would make, without making it.
    fn validate_first_call(
        &self,
        context: &CallContext,
        tool: &DialectTool,
        params: DialectParams,
    ) -> Result<(), Error> {
        let mut probe = FirstCallProbe { pipeline: self, context, result: None };
        let polled = {
            let mut calls = tool.call(params, &mut probe);
            // One poll is enough: the probe answers the first call at once.
            calls.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        };

        match (probe.result, polled) {
            (Some(result), _) => result,
            (None, Poll::Ready(Err(error))) => Err(error),
            (None, Poll::Ready(Ok(_)) | Poll::Pending) => Ok(()),
        }
    }

    /// Submits a call of a contract tool as a job in the default queue. Returns the id of the job.
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
        let validated = self
            .validate_submission(&context, submission)
            .map_err(|error| call.translate_error(error))?;
        let job = self.submit_job(&context, validated, false).await?;

        Ok(job.id)
    }
}

/// Stands for the canonical tools, and only validates the first call.
struct FirstCallProbe<'a> {
    pipeline: &'a Pipeline,
    context: &'a CallContext,
    result: Option<Result<(), Error>>,
}

impl FirstCallProbe<'_> {
    fn probe(&mut self, call: &CanonicalCall) -> Error {
        if self.result.is_none() {
            let tool = dyn_tool::find(call.tool, self.pipeline, &self.context.principal);
            let validated = tool
                .and_then(|tool| tool.validate(self.pipeline, self.context.clone(), &call.params));
            self.result = Some(validated.map(drop).map_err(|error| call.translate_error(error)));
        }
        Error::internal("this call was only validated")
    }
}

impl CanonicalTools for FirstCallProbe<'_> {
    fn call(&mut self, call: CanonicalCall) -> BoxFuture<'_, Result<ResponseData, Error>> {
        let error = self.probe(&call);
        Box::pin(future::ready(Err(error)))
    }

    fn submit(&mut self, call: CanonicalCall) -> BoxFuture<'_, Result<String, Error>> {
        let error = self.probe(&call);
        Box::pin(future::ready(Err(error)))
    }
}

/// Returns the cost of parsing parameters, as a length of plain text.
pub(crate) fn json_validation_cost(bytes: usize) -> usize {
    dyn_tool::json_validation_cost(bytes)
}

/// Returns the cost of validating the parameters of a job, as a length of plain text.
pub(crate) fn job_validation_cost(tool: &str, catalog: &Catalog, bytes: usize) -> usize {
    dyn_tool::validation_cost(tool, catalog, bytes)
}
