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
    any_tool::{Answered, Going},
    context::{ByName, Incoming},
    envelope::Ran,
    invoke::Canonical,
    jobs::Live,
};
use crate::daemon::{
    dialect::{self, Answer, Boxed, Call, Data, Said, Tools},
    error::{Error, Reason},
    store::jobs::Job,
    task,
};

/// The call that a job begins with, where it is not the one that was submitted.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) tool: &'static str,
    /// JSON.
    pub(super) params: Bytes,
    pub(super) limit: Option<Duration>,
    pub(super) artifact_bytes: Option<u64>,
    pub(super) in_default_shell: bool,
    /// What makes it.
    pub(super) by_name: Option<Arc<ByName>>,
}

/// The tools, as one job calls them.
pub(super) struct JobTools<'a> {
    pipeline: &'a Arc<Pipeline>,
    live: &'a Live,
    job: &'a Job,
    /// What makes its calls, where that is a tool of a dialect.
    by_name: Option<Arc<ByName>>,
    /// Whether anything of it was done.
    pub(super) has_begun: bool,
    /// What its last command has left.
    pub(super) ran: Ran,
}

impl<'a> JobTools<'a> {
    /// For this job.
    pub(super) fn new(pipeline: &'a Arc<Pipeline>, live: &'a Live, job: &'a Job) -> Self {
        Self { pipeline, live, job, by_name: None, has_begun: false, ran: Ran::default() }
    }

    /// Does all that the job is to do. Answers also what it was called as.
    pub(super) async fn perform(&mut self) -> (Result<Answer, Error>, Said) {
        let mut said = Said::new(&self.job.tool, &Map::new(), "");
        let result = match self.job.dialect.is_empty() {
            true => {
                let data = self.begin(None).await;
                data.map(|data| self.pipeline.answer_of(&self.job.tool, data))
            }
            false => self.in_dialect(&mut said).await,
        };
        (result, said)
    }

    async fn in_dialect(&mut self, said: &mut Said) -> Result<Answer, Error> {
        let dialect = dialect::find(&self.job.dialect)?;
        let incoming = self.pipeline.incoming_of(self.live, self.job, &None)?;
        let mount_path = self.pipeline.mount_path(&incoming)?;
        let cancelled = self.live.cancelled().clone();
        let params = tokio::select! {
            params = self.pipeline.params_in_time(self.live, self.job) => params?,
            () = cancelled.cancelled() => return Err(cancelled_before()),
        };
        *said = Said::new(&self.job.tool, &params, &mount_path);
        let by_name = |said| {
            Some(Arc::new(ByName { id: self.job.given_id.clone(), said, dialect: Some(dialect) }))
        };
        if let Some(custom) = self.pipeline.catalog.custom(&self.job.tool) {
            self.by_name = by_name(None);
            let ran = self.call(Call::new(custom.name(), params.into())).await?;
            return Ok(dialect.custom(ran));
        }
        let tool = dialect.tool(&self.job.tool, |_| false)?;
        let spoken = self.pipeline.spoken(&incoming, dialect, tool, &params)?;
        self.by_name = by_name(Some(spoken));
        tool.call(dialect.read(tool, params)?, self).await
    }

    /// The first call: that of the job itself, or the one that is given.
    async fn begin(&mut self, given: Option<&Given>) -> Result<Map<String, Value>, Error> {
        let cancelled = self.live.cancelled().clone();
        let going = tokio::select! {
            going = self.pipeline.begin_job(self.live, self.job, given) => going?,
            () = cancelled.cancelled() => return Err(cancelled_before()),
        };
        self.has_begun = true;
        self.pipeline.jobs.begin(self.live, going.step).await;
        self.answer(going, &cancelled).await
    }

    async fn answer(
        &mut self,
        mut going: Going,
        cancelled: &CancellationToken,
    ) -> Result<Map<String, Value>, Error> {
        let result = tokio::select! {
            result = &mut going.answer => result,
            () = cancelled.cancelled() => {
                going.abandon.cancel();
                going.answer.await
            }
        };
        let Answered { data, ran } = result?;
        self.ran = ran;
        Ok(data)
    }

    /// A call behind the first. It waits for what is short for now: what was done is not to be for nothing.
    async fn go_on(&mut self, call: Call) -> Result<Data, Error> {
        let incoming = Incoming {
            by_name: self.by_name.clone(),
            ..self.pipeline.incoming_of(self.live, self.job, &None)?
        };
        let cancelled = self.live.cancelled().clone();
        loop {
            let mut tools = Canonical::new(self.pipeline, incoming.clone(), None, &cancelled);
            let result = tools.call(call.clone()).await;
            (_, self.ran) = tools.into_parts();
            let wait = match &result {
                Err(error) if error.reason == Reason::ResourceExhausted => error.retry_after,
                Ok(_) | Err(_) => None,
            };
            let Some(wait) = wait else { return result };
            tokio::select! {
                () = task::until(Some(Instant::now() + wait)) => {}
                () = cancelled.cancelled() => return result,
                () = self.pipeline.drain.begun_token().cancelled_owned() => return result,
            }
        }
    }
}

impl Tools for JobTools<'_> {
    fn call(&mut self, call: Call) -> Boxed<'_, Result<Data, Error>> {
        Box::pin(async move {
            if self.has_begun {
                return self.go_on(call).await;
            }
            let params = serde_json::to_vec(&call.params).map_err(Error::internal)?;
            let given = Given {
                tool: call.tool,
                params: params.into(),
                limit: call.limit,
                artifact_bytes: call.artifact_bytes,
                in_default_shell: call.in_default_shell,
                by_name: self.by_name.clone(),
            };
            drop(call);
            self.begin(Some(&given)).await.map(Data::new)
        })
    }

    fn submit(&mut self, call: Call) -> Boxed<'_, Result<String, Error>> {
        Box::pin(async move {
            let incoming = self.pipeline.incoming_of(self.live, self.job, &None)?;
            self.pipeline.submit_call(&incoming, call).await
        })
    }
}

/// What a job is told that is cancelled before anything of it was done: nobody hears it.
fn cancelled_before() -> Error {
    Error::new(Reason::Timeout, "the job was cancelled before it began")
}
