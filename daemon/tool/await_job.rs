//! `wait_job`: the result of a job, once it has one.

use std::time::{Duration, Instant};

use super::{Done, Scene, Tool, Work, limit};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Reason, Violation},
        workspace::Stop as FileStop,
    },
};

/// The tool.
#[derive(Debug)]
pub(crate) struct AwaitJob;

impl Tool for AwaitJob {
    const NAME: &'static str = "wait_job";
    // It answers that the job is pending when its time is up.
    const LIMITS_ITSELF: bool = true;
    const WAITS_FOR_JOBS: bool = true;
    type Request = v1::AwaitJobRequest;
    type Response = v1::AwaitJobResponse;
    type Params = v1::AwaitJobRequest;

    fn check(
        request: Self::Request,
        _scene: &Scene,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Self::Params>, Error> {
        Ok(violations.is_empty().then_some(request))
    }

    async fn execute(request: Self::Params, work: Work) -> Result<Done<Self::Response>, Error> {
        let Some(jobs) = &work.jobs else {
            return Err(Error::internal("a call that waits for a job sees no jobs"));
        };
        // It costs nothing from here on.
        work.turn.end();
        let wait = Duration::from_millis(request.wait_ms.unwrap_or_default().into());
        let until = limit(Instant::now(), wait, work.deadline);
        tokio::select! {
            response = jobs.wait(request.job_id, until) => response.map(Done::plain),
            () = work.stop.abandon.cancelled() => Err(FileStop::late()),
            () = work.stop.drain.cancelled() => {
                let text = "the daemon is shutting down, and the job has not ended: wait for it when the daemon is back";
                Err(Error::new(Reason::Draining, text))
            }
        }
    }
}
