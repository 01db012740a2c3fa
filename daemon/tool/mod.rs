//! The tools: each file turns one typed request into one typed response, and does nothing else.

pub(crate) mod apply_patch;
pub(crate) mod create_directory;
pub(crate) mod delete_path;
pub(crate) mod edit_file;
pub(crate) mod edit_notebook;
pub(crate) mod list_directory;
pub(crate) mod list_files;
pub(crate) mod move_path;
pub(crate) mod read_file;
pub(crate) mod read_notebook;
pub(crate) mod run;
pub(crate) mod search;
pub(crate) mod start;
pub(crate) mod stat_path;
pub(crate) mod write_file;

mod description;
mod egress;
mod page_token;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use prost::Message;
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::timeout_at,
};

use crate::daemon::{
    egress::proxy::Proxy,
    error::{Error, Reason, Violation},
    process::supervise::Stop,
    sandbox::{level::Isolation, limits::Limits, plan::Network, pool::Pool},
    store::session::{Session, Step},
    telemetry::{Telemetry, spans::Span},
    workspace::{Stop as FileStop, Workspace},
};

/// Most time that is left before the caller's deadline for an answer to reach it.
const WAY_BACK: Duration = Duration::from_millis(100);

/// How long work may take to notice that its time is up. A search for something complicated in a
/// long line notices it behind that line; the answer does not wait so long.
const NOTICE: Duration = Duration::from_millis(20);

/// A tool.
pub(crate) trait Tool: Send + 'static {
    /// Its name in the contract.
    const NAME: &'static str;
    /// Full name of its request where that is not the one of the tool's own RPC.
    const MESSAGE: Option<&'static str> = None;
    /// Whether its caller waits for its end.
    const IS_WAITED_FOR: bool = true;
    /// Whether it takes its time limit from the request and enforces it itself.
    const LIMITS_ITSELF: bool = false;
    /// What is asked.
    type Request: Message + Default + Send + 'static;
    /// What is answered.
    type Response: Send + 'static;
    /// The request, checked.
    type Params: Send + 'static;

    /// Checks what cannot be seen from one field alone. `request` has its defaults, and
    /// `violations` the fields that are known to break their rules. Answers nothing when there is a
    /// violation.
    fn check(
        request: Self::Request,
        scene: &Scene,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Self::Params>, Error>;

    /// Does the work. It is polled to its end whatever becomes of the caller: `work.stop` tells
    /// when nobody waits any more.
    fn execute(
        params: Self::Params,
        work: Work,
    ) -> impl Future<Output = Result<Done<Self::Response>, Error>> + Send;

    /// The answer to a repeated call whose first one the daemon died under, as this step of its
    /// session, if it had got so far.
    fn lost(_step: Option<u64>) -> Result<Self::Response, Error> {
        Err(lost(Self::NAME))
    }
}

/// What a repeated call is told whose first one the daemon died under.
pub(crate) fn lost(what: &str) -> Error {
    Error::new(
        Reason::DaemonLost,
        format!(
            "the daemon died while it did {what} for this request id, or had no room for the answer, so that it is not known how far it came: look what there is, then call again with another id"
        ),
    )
}

/// Where a call takes place.
#[derive(Debug, Clone)]
pub(crate) struct Scene {
    /// The workspace.
    pub(crate) workspace: Arc<Workspace>,
    /// Its sandboxes.
    pub(crate) sandboxes: Arc<Pool>,
    /// Whether and how commands are isolated.
    pub(crate) isolation: Arc<Isolation>,
    /// What every run gets.
    pub(crate) settings: Arc<RunSettings>,
}

/// What every run gets from the configuration.
#[derive(Debug, Clone)]
pub(crate) struct RunSettings {
    /// Directories that programs are looked up in before the usual ones.
    pub(crate) path: Vec<String>,
    /// Bytes of each stream that its artifact keeps.
    pub(crate) artifact_bytes: u64,
    /// Bytes that are kept in memory of what a started command wrote.
    pub(crate) replay_bytes: usize,
    /// Its limits, as far as its request does not lower them.
    pub(crate) limits: Limits,
    /// Network of its command.
    pub(crate) network: Network,
    /// What connects it to the world, where that is the network.
    pub(crate) proxy: Option<Arc<Proxy>>,
}

/// One call's work.
#[derive(Debug)]
pub(crate) struct Work {
    /// Where it takes place.
    pub(crate) scene: Scene,
    /// The session, and the call's step in it.
    pub(crate) session: Arc<Session>,
    /// The call's step.
    pub(crate) step: Step,
    /// What each of its records says: which call it is about.
    pub(crate) about: serde_json::Map<String, serde_json::Value>,
    /// How it may be ended early.
    pub(crate) stop: Stop,
    /// Its place among the calls that may go on at once: free again when the last of the work is
    /// done.
    pub(crate) place: Arc<OwnedSemaphorePermit>,
    /// How long a call may take that names no limit of its own.
    pub(crate) default_timeout: Duration,
    /// The job that makes the call, where one does.
    pub(crate) job: Option<JobContext>,
    /// When the caller stops waiting.
    pub(crate) deadline: Option<Instant>,
    /// The tool's span.
    pub(crate) span: Arc<Span>,
    /// What spans are made with.
    pub(crate) telemetry: Telemetry,
}

/// A job, for the call that it makes.
#[derive(Debug, Clone)]
pub(crate) struct JobContext {
    /// Its id.
    pub(crate) id: String,
    /// Told whenever its command has written something.
    pub(crate) written: watch::Sender<()>,
}

/// Work that was done.
#[derive(Debug)]
pub(crate) struct Done<R> {
    /// The answer.
    pub(crate) response: R,
    /// What the record of the call says beside its status.
    pub(crate) facts: serde_json::Map<String, serde_json::Value>,
    /// What has happened by it that is an event of its own; the facts say what.
    pub(crate) event: Option<&'static str>,
    /// Why the tool failed although the call did not: a command that ran out of time.
    pub(crate) error_type: Option<&'static str>,
}

impl<R> Done<R> {
    /// Work about which there is nothing more to say.
    pub(crate) fn plain(response: R) -> Self {
        Self {
            response,
            facts: serde_json::Map::new(),
            event: None,
            error_type: None,
        }
    }

    /// The same, with another answer.
    fn map<S>(self, answer: impl FnOnce(R) -> S) -> Done<S> {
        Done {
            response: answer(self.response),
            facts: self.facts,
            event: self.event,
            error_type: self.error_type,
        }
    }

    /// Work whose time was up: the answer is what it had by then.
    fn cut_short(response: R) -> Self {
        let mut done = Self::plain(response);
        done.facts.insert("timed_out".to_owned(), true.into());
        done.error_type = Some(Reason::Timeout.name());
        done
    }
}

/// Runs `function` on a thread that may block, and tells it to stop when nobody waits for it any
/// more.
async fn on_files<R: Send + 'static>(
    work: Work,
    function: impl FnOnce(&Workspace, &FileStop) -> Result<R, Error> + Send + 'static,
) -> Result<Done<R>, Error> {
    let workspace = Arc::clone(&work.scene.workspace);
    let end = work.stop.abandon.cancelled();
    let answer = FileStop::at(end, move |stop| function(&workspace, stop)).await?;
    answer.map(Done::plain)
}

impl Work {
    /// When work that ends with what it has when its time is up is to do so, if it begins now.
    fn until(&self) -> Instant {
        limit(Instant::now(), self.default_timeout, self.deadline)
    }
}

/// As [`on_files`], for work that ends with what it has when its time is up. Without an answer it
/// has not noticed soon enough: it goes on until it does, and keeps its place among the calls.
async fn in_time<R: Send + 'static>(
    work: Work,
    until: Instant,
    function: impl FnOnce(&Workspace, &FileStop) -> R + Send + 'static,
) -> Result<Option<R>, Error> {
    let end = async {
        // Whichever comes first.
        let _either = timeout_at(until.into(), work.stop.abandon.cancelled()).await;
    };
    let (workspace, place) = (Arc::clone(&work.scene.workspace), Arc::clone(&work.place));
    FileStop::soon_after(end, NOTICE, move |stop| {
        let _place = place;
        function(&workspace, stop)
    })
    .await
}

/// When work with a time limit of its own is to answer: early enough for whoever waits.
fn limit(now: Instant, timeout: Duration, deadline: Option<Instant>) -> Instant {
    let limit = now + timeout;
    match deadline {
        None => limit,
        Some(deadline) => {
            let left = deadline.saturating_duration_since(now);
            limit.min(now + (left - WAY_BACK.min(left / 4)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_has_time_to_reach_who_waits() {
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        for (timeout, deadline, expected) in [
            (60_000, None, 60_000),
            (60_000, Some(100_000), 60_000),
            (60_000, Some(60_000), 59_900),
            (60_000, Some(1_000), 900),
            (60_000, Some(100), 75),
            (60_000, Some(0), 0),
        ] {
            let limit = limit(now, Duration::from_millis(timeout), deadline.map(at));
            assert_eq!(limit, at(expected), "{timeout} {deadline:?}");
        }
    }
}
