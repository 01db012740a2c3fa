//! The canonical tools as a job calls them. The first call waits for a slot and for all limits.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::{
    Pipeline,
    context::{CallContext, InvokeOrigin},
    dyn_tool::{JsonToolOutput, RunningCall},
    envelope::CommandExitInfo,
    invoke::InvocationTools,
    jobs::JobHandle,
};
use crate::daemon::{
    dialect::{
        self, CanonicalCall, CanonicalTools, DialectInvocation, DialectResponse, ResponseData,
    },
    error::{Error, Reason},
    store::jobs::Job,
    task,
    task::BoxFuture,
};

/// The first call of a job, if it differs from the submitted one (a tool of a dialect).
#[derive(Debug)]
pub(super) struct InitialCall {
    pub(super) tool: &'static str,
    /// The parameters as JSON.
    pub(super) params: Bytes,
    pub(super) timeout: Option<Duration>,
    pub(super) max_artifact_bytes: Option<u64>,
    pub(super) in_default_shell: bool,
    pub(super) invoke_origin: Option<Arc<InvokeOrigin>>,
}

/// The tools, bound to one job.
pub(super) struct JobTools<'a> {
    pipeline: &'a Arc<Pipeline>,
    handle: &'a JobHandle,
    job: &'a Job,
    /// The origin of the calls, for a tool of a dialect.
    invoke_origin: Option<Arc<InvokeOrigin>>,
    /// Whether the first call has started.
    pub(super) has_started: bool,
    /// Exit information of the last command.
    pub(super) exit_info: CommandExitInfo,
}

impl<'a> JobTools<'a> {
    pub(super) fn new(pipeline: &'a Arc<Pipeline>, handle: &'a JobHandle, job: &'a Job) -> Self {
        Self {
            pipeline,
            handle,
            job,
            invoke_origin: None,
            has_started: false,
            exit_info: CommandExitInfo::default(),
        }
    }

    /// Runs the job to its end. Returns its result, and the invocation as the dialect has it.
    pub(super) async fn run(&mut self) -> (Result<DialectResponse, Error>, DialectInvocation) {
        let mut invocation = DialectInvocation::new(&self.job.tool, &Map::new(), "");
        let result = if self.job.dialect.is_empty() {
            let data = self.start_first_call(None).await;
            data.map(|data| self.pipeline.contract_response(&self.job.tool, data))
        } else {
            self.run_dialect_tool(&mut invocation).await
        };
        (result, invocation)
    }

    async fn run_dialect_tool(
        &mut self,
        invocation: &mut DialectInvocation,
    ) -> Result<DialectResponse, Error> {
        let dialect = dialect::find(&self.job.dialect)?;
        let context = self.pipeline.job_call_context(self.handle, self.job, &None)?;
        let mount_path = self.pipeline.mount_path(&context)?;

        let cancelled = self.handle.cancel_token().clone();
        let params = tokio::select! {
            params = self.pipeline.await_job_params(self.handle, self.job) => params?,
            () = cancelled.cancelled() => return Err(cancelled_before_start_error()),
        };
        *invocation = DialectInvocation::new(&self.job.tool, &params, &mount_path);

        let origin = |dialect_call| {
            Some(Arc::new(InvokeOrigin {
                model_call_id: self.job.model_call_id.clone(),
                dialect_call,
                dialect: Some(dialect),
            }))
        };
        if let Some(custom) = self.pipeline.catalog.custom_tool(&self.job.tool) {
            self.invoke_origin = origin(None);
            let output = self.call(CanonicalCall::new(custom.name(), params.into())).await?;
            return Ok(dialect.render_custom_tool(output));
        }

        let tool = dialect.tool(&self.job.tool, |_| false)?;
        let dialect_call = self.pipeline.dialect_call(&context, dialect, tool, &params)?;
        self.invoke_origin = origin(Some(dialect_call));
        tool.call(dialect.read_params(tool, params)?, self).await
    }

    /// Starts the first call: the submitted one, or `initial_call`.
    async fn start_first_call(
        &mut self,
        initial_call: Option<&InitialCall>,
    ) -> Result<Map<String, Value>, Error> {
        let cancelled = self.handle.cancel_token().clone();
        let running = tokio::select! {
            running = self.pipeline.start_job_call(self.handle, self.job, initial_call) => running?,
            () = cancelled.cancelled() => return Err(cancelled_before_start_error()),
        };

        self.has_started = true;
        self.pipeline.jobs.record_step(self.handle, running.step).await;
        self.await_output(running, &cancelled).await
    }

    async fn await_output(
        &mut self,
        mut running: RunningCall,
        cancelled: &CancellationToken,
    ) -> Result<Map<String, Value>, Error> {
        let result = tokio::select! {
            result = &mut running.output => result,
            () = cancelled.cancelled() => {
                running.abandon_token.cancel();
                running.output.await
            }
        };

        let JsonToolOutput { fields, exit_info } = result?;
        self.exit_info = exit_info;
        Ok(fields)
    }

    /// Runs a later call. Waits while a limit is reached, so that the work so far is not wasted.
    async fn call_after_first(&mut self, call: CanonicalCall) -> Result<ResponseData, Error> {
        let context = CallContext {
            invoke_origin: self.invoke_origin.clone(),
            ..self.pipeline.job_call_context(self.handle, self.job, &None)?
        };

        let cancelled = self.handle.cancel_token().clone();
        loop {
            let mut tools = InvocationTools::new(self.pipeline, context.clone(), None, &cancelled);
            let result = tools.call(call.clone()).await;
            (_, self.exit_info) = tools.into_parts();

            let retry_after = match &result {
                Err(error) if error.reason == Reason::ResourceExhausted => error.retry_after,
                Ok(_) | Err(_) => None,
            };
            let Some(delay) = retry_after else { return result };
            tokio::select! {
                () = task::sleep_until(Some(Instant::now() + delay)) => {}
                () = cancelled.cancelled() => return result,
                () = self.pipeline.shutdown.draining_token().cancelled_owned() => return result,
            }
        }
    }
}

impl CanonicalTools for JobTools<'_> {
    fn call(&mut self, call: CanonicalCall) -> BoxFuture<'_, Result<ResponseData, Error>> {
        Box::pin(async move {
            if self.has_started {
                return self.call_after_first(call).await;
            }

            let params = serde_json::to_vec(&call.params).map_err(Error::internal)?;
            let initial_call = InitialCall {
                tool: call.tool,
                params: params.into(),
                timeout: call.timeout,
                max_artifact_bytes: call.artifact_bytes,
                in_default_shell: call.in_default_shell,
                invoke_origin: self.invoke_origin.clone(),
            };

            drop(call);
            self.start_first_call(Some(&initial_call)).await.map(ResponseData::new)
        })
    }

    fn submit(&mut self, call: CanonicalCall) -> BoxFuture<'_, Result<String, Error>> {
        Box::pin(async move {
            let context = self.pipeline.job_call_context(self.handle, self.job, &None)?;
            self.pipeline.submit_call_as_job(&context, call).await
        })
    }
}

/// Ends a job that was cancelled before its first call. No caller sees this error.
fn cancelled_before_start_error() -> Error {
    Error::new(Reason::Timeout, "the job was cancelled before it started")
}
