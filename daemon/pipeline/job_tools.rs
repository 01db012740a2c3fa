//! The tools of the contract, for a job: its first call begins it, in its turn, and once nothing is in its way.

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
        self, CanonicalCall, CanonicalTools, DialectFuture, DialectInvocation, DialectResponse,
        ResponseData,
    },
    error::{Error, Reason},
    store::jobs::Job,
    task,
};

/// The call that a job begins with, where it is not the one that was submitted.
#[derive(Debug)]
pub(super) struct InitialCall {
    pub(super) tool: &'static str,
    /// JSON.
    pub(super) params: Bytes,
    pub(super) timeout: Option<Duration>,
    pub(super) max_artifact_bytes: Option<u64>,
    pub(super) in_default_shell: bool,
    /// What makes it.
    pub(super) invoke_origin: Option<Arc<InvokeOrigin>>,
}

/// The tools, as one job calls them.
pub(super) struct JobTools<'a> {
    pipeline: &'a Arc<Pipeline>,
    handle: &'a JobHandle,
    job: &'a Job,
    /// What makes its calls, where that is a tool of a dialect.
    invoke_origin: Option<Arc<InvokeOrigin>>,
    /// Whether anything of it was done.
    pub(super) has_started: bool,
    /// What its last command has left.
    pub(super) exit_info: CommandExitInfo,
}

impl<'a> JobTools<'a> {
    /// For this job.
    pub(super) fn new(pipeline: &'a Arc<Pipeline>, live: &'a JobHandle, job: &'a Job) -> Self {
        Self {
            pipeline,
            handle: live,
            job,
            invoke_origin: None,
            has_started: false,
            exit_info: CommandExitInfo::default(),
        }
    }

    /// Does all that the job is to do. Answers also what it was called as.
    pub(super) async fn run(&mut self) -> (Result<DialectResponse, Error>, DialectInvocation) {
        let mut said = DialectInvocation::new(&self.job.tool, &Map::new(), "");
        let result = match self.job.dialect.is_empty() {
            true => {
                let data = self.start_first_call(None).await;
                data.map(|data| self.pipeline.contract_answer(&self.job.tool, data))
            }
            false => self.run_dialect_tool(&mut said).await,
        };
        (result, said)
    }

    async fn run_dialect_tool(
        &mut self,
        dialect_invocation: &mut DialectInvocation,
    ) -> Result<DialectResponse, Error> {
        let dialect = dialect::find(&self.job.dialect)?;
        let incoming = self.pipeline.job_call_context(self.handle, self.job, &None)?;
        let mount_path = self.pipeline.mount_path(&incoming)?;
        let cancelled = self.handle.cancel_token().clone();
        let params = tokio::select! {
            params = self.pipeline.await_job_params(self.handle, self.job) => params?,
            () = cancelled.cancelled() => return Err(cancelled_before_start_error()),
        };
        *dialect_invocation = DialectInvocation::new(&self.job.tool, &params, &mount_path);
        let by_name = |said| {
            Some(Arc::new(InvokeOrigin {
                model_call_id: self.job.model_call_id.clone(),
                dialect_call: said,
                dialect: Some(dialect),
            }))
        };
        if let Some(custom) = self.pipeline.catalog.custom_tool(&self.job.tool) {
            self.invoke_origin = by_name(None);
            let ran = self.call(CanonicalCall::new(custom.name(), params.into())).await?;
            return Ok(dialect.render_custom_tool(ran));
        }
        let tool = dialect.tool(&self.job.tool, |_| false)?;
        let spoken = self.pipeline.dialect_call(&incoming, dialect, tool, &params)?;
        self.invoke_origin = by_name(Some(spoken));
        tool.call(dialect.read_params(tool, params)?, self).await
    }

    /// The first call: that of the job itself, or the one that is given.
    async fn start_first_call(
        &mut self,
        given: Option<&InitialCall>,
    ) -> Result<Map<String, Value>, Error> {
        let cancelled = self.handle.cancel_token().clone();
        let going = tokio::select! {
            going = self.pipeline.start_job_call(self.handle, self.job, given) => going?,
            () = cancelled.cancelled() => return Err(cancelled_before_start_error()),
        };
        self.has_started = true;
        self.pipeline.jobs.record_step(self.handle, going.step).await;
        self.await_output(going, &cancelled).await
    }

    async fn await_output(
        &mut self,
        mut going: RunningCall,
        cancelled: &CancellationToken,
    ) -> Result<Map<String, Value>, Error> {
        let result = tokio::select! {
            result = &mut going.output => result,
            () = cancelled.cancelled() => {
                going.abandon_token.cancel();
                going.output.await
            }
        };
        let JsonToolOutput { fields: data, exit_info: ran } = result?;
        self.exit_info = ran;
        Ok(data)
    }

    /// A call behind the first. It waits for what is short for now: what was done is not to be for nothing.
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
            let wait = match &result {
                Err(error) if error.reason == Reason::ResourceExhausted => error.retry_after,
                Ok(_) | Err(_) => None,
            };
            let Some(wait) = wait else { return result };
            tokio::select! {
                () = task::sleep_until(Some(Instant::now() + wait)) => {}
                () = cancelled.cancelled() => return result,
                () = self.pipeline.shutdown.draining_token().cancelled_owned() => return result,
            }
        }
    }
}

impl CanonicalTools for JobTools<'_> {
    fn call(&mut self, call: CanonicalCall) -> DialectFuture<'_, Result<ResponseData, Error>> {
        Box::pin(async move {
            if self.has_started {
                return self.call_after_first(call).await;
            }
            let params = serde_json::to_vec(&call.params).map_err(Error::internal)?;
            let given = InitialCall {
                tool: call.tool,
                params: params.into(),
                timeout: call.timeout,
                max_artifact_bytes: call.artifact_bytes,
                in_default_shell: call.in_default_shell,
                invoke_origin: self.invoke_origin.clone(),
            };
            drop(call);
            self.start_first_call(Some(&given)).await.map(ResponseData::new)
        })
    }

    fn submit(&mut self, call: CanonicalCall) -> DialectFuture<'_, Result<String, Error>> {
        Box::pin(async move {
            let incoming = self.pipeline.job_call_context(self.handle, self.job, &None)?;
            self.pipeline.submit_call_as_job(&incoming, call).await
        })
    }
}

/// What a job is told that is cancelled before anything of it was done: nobody hears it.
fn cancelled_before_start_error() -> Error {
    Error::new(Reason::Timeout, "the job was cancelled before it began")
}
