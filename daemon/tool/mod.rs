//! The tools: each file turns one typed request into one typed response, and does nothing else.

pub(crate) mod activity;
pub(crate) mod apply_patch;
pub(crate) mod await_job;
pub(crate) mod create_directory;
pub(crate) mod delete_path;
pub(crate) mod edit_file;
pub(crate) mod edit_notebook;
pub(crate) mod fetch_url;
pub(crate) mod last_command;
pub(crate) mod list_directory;
pub(crate) mod list_files;
pub(crate) mod move_path;
pub(crate) mod page_token;
pub(crate) mod read_file;
pub(crate) mod read_notebook;
pub(crate) mod run;
pub(crate) mod search;
pub(crate) mod start;
pub(crate) mod stat_path;
pub(crate) mod write_file;

mod artifacts;
mod description;
mod egress;
pub(crate) mod jobs;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use prost::Message;
use tokio::{sync::watch, time::timeout_at};
use tokio_util::sync::CancellationToken;

use self::{activity::Activity, jobs::Jobs};
use crate::daemon::{
    catalog::Reading,
    descriptors::Attempts,
    egress::proxy::Proxy,
    error::{Error, Reason, Violation},
    fetch::Fetcher,
    process::supervise::Stop,
    queue::{Entry, Full, Name, Place, Queue, Seat, Share, Turn},
    sandbox::{level::Isolation, limits::Limits, plan::Network, pool::Pool},
    store::session::{Session, Step},
    task,
    telemetry::{Telemetry, spans::Span},
    workspace::{Occupied, RelativePath, Stop as FileStop, Workspace, cores},
};

/// Most time that is left before the caller's deadline for an answer to reach it.
const WAY_BACK: Duration = Duration::from_millis(100);

/// How long work may take to notice that its time is up. A search for something complicated in a
/// long line notices it behind that line; the answer does not wait so long.
const NOTICE: Duration = Duration::from_millis(20);

/// Searches at once, for each core; others wait for their turn. Each keeps every core busy, and takes some
/// MiB for each of its threads. One caller has half of them.
const SEARCHES: usize = 2;
const SEARCHES_OF_ONE: Share = Share::OfFree(1);

/// Fetches at once; others wait for their turn. Each takes up to some times 4 MiB, and a thread while a name is
/// looked up. One caller leaves as many as he has.
const FETCHES: usize = 32;
const FETCHES_OF_ONE: Share = Share::OfFree(1);

/// How long work with files keeps its turn. It wants a core as long as it lasts; but it may as well wait
/// for a disk, and others must not wait for that.
const TURN_OF_FILES: Duration = Duration::from_millis(100);

/// What it costs to look at a byte of a request with globs, which are compiled then.
const COST_OF_GLOBS: usize = 256;

/// A tool.
pub(crate) trait Tool: Send + 'static {
    /// Its name in the contract.
    const NAME: &'static str;
    /// Full name of its request where that is not the one of the tool's own RPC.
    const MESSAGE: Option<&'static str> = None;
    /// Whether it takes place in a sandbox of its own.
    const NEEDS_SANDBOX: bool = false;
    /// Whether its caller waits for its end.
    const IS_WAITED_FOR: bool = true;
    /// Whether it takes its time limit from the request and enforces it itself.
    const LIMITS_ITSELF: bool = false;
    /// What it costs to look at a byte of its request, as so many of plain text.
    const COST: usize = 1;
    /// Whether it waits for jobs.
    const WAITS_FOR_JOBS: bool = false;
    /// How long it keeps its turn, if it lasts so long.
    const TURN: Duration = TURN_OF_FILES;
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

    /// The files that a call is about, as far as it names them, relative to the workspace: for who is
    /// asked whether it may be made.
    fn files(_params: &Self::Params, _scene: &Scene) -> Vec<String> {
        Vec::new()
    }

    /// The working directory of the command that a call runs, relative to the workspace.
    fn cwd(_params: &Self::Params) -> Option<&RelativePath> {
        None
    }

    /// A text of the request as it reads once it is understood, where that is not as it is given: for rules.
    fn reading(_params: &Self::Params, _scene: &Scene) -> Option<Reading> {
        None
    }

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
            "the daemon died while it did {what} for this request id, or has no room for the answer, so that it is not known how far it came: look what there is, then call again with another id"
        ),
    )
}

/// The refusal of an approved call that would use another directory than the one that was approved.
pub(crate) fn replaced_while_asked(path: &str) -> Error {
    let text = format!(
        "this call was approved, but a directory on the way to {path:?} was replaced while it waited; nothing was done: look at what is there now, and call again"
    );
    Error::new(Reason::ApprovalDenied, text).with("path", path)
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
    /// Where work with files takes place.
    pub(crate) files: FilePlaces,
    /// What fetches from the web, where anything may be fetched.
    pub(crate) fetches: Option<Fetches>,
    /// What goes on there.
    pub(crate) activity: Arc<Activity>,
}

/// Bounds on work with files, in all workspaces.
#[derive(Debug, Clone)]
pub(crate) struct FilePlaces {
    /// For what opens files.
    pub(crate) operations: Arc<Queue>,
    /// For searches, beside that.
    pub(crate) searches: Arc<Queue>,
}

impl FilePlaces {
    /// So many of them.
    pub(crate) fn new(operations: usize) -> Self {
        // Who waits has a place among the calls, so that they are bounded.
        Self {
            operations: Queue::new(operations, Share::All, usize::MAX),
            searches: Queue::new(SEARCHES * cores(), SEARCHES_OF_ONE, usize::MAX),
        }
    }

    /// Leaves some for others from now on: callers are told apart.
    pub(crate) fn share(&self) {
        self.operations.share(Share::Reserve);
    }

    /// Waits for a place among the work with files that is no tool's.
    pub(crate) async fn occupy(&self, caller: &Name) -> Result<Occupied, Error> {
        let place = match self.operations.enter(caller, usize::MAX) {
            Ok(Entry::Place(place)) => place,
            Ok(Entry::Wait(mut waiting)) => waiting.place().await,
            Err(full) => return Err(too_busy(full)),
        };
        let (operations, caller) = (Arc::clone(&self.operations), Arc::clone(caller));
        Ok(Occupied::new(operations, caller, place, None))
    }
}

/// What fetches from the web, for all workspaces.
#[derive(Debug, Clone)]
pub(crate) struct Fetches {
    /// What fetches.
    fetcher: Arc<Fetcher>,
    /// Those that go on.
    places: Arc<Queue>,
}

impl Fetches {
    /// Those of `fetcher`.
    pub(crate) fn new(fetcher: Arc<Fetcher>) -> Self {
        Self {
            fetcher,
            // Who waits has a place among the calls, so that they are bounded.
            places: Queue::new(FETCHES, FETCHES_OF_ONE, usize::MAX),
        }
    }
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
    /// Its time where the call does not say, and the contract's is not meant.
    pub(crate) timeout: Option<Duration>,
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
    /// Whose it is.
    pub(crate) caller: Name,
    /// Tools that its key is for; without, all tools.
    pub(crate) tools_of_caller: Option<Arc<[String]>>,
    /// Tool that reads artifacts, as the caller's vocabulary names it, where the caller may call it.
    pub(crate) reader: Option<&'static str>,
    /// Its place among the calls that may go on at once: free again when the last of the work is
    /// done.
    pub(crate) place: Arc<Place>,
    /// Its place among those who have sandboxes, where it needs one.
    pub(crate) seat: Option<Seat>,
    /// Its turn, while it costs the daemon the most.
    pub(crate) turn: Turn,
    /// How long a call may take that names no limit of its own.
    pub(crate) default_timeout: Duration,
    /// How long this one may take, where its caller has said so beside its request.
    pub(crate) limit: Option<Duration>,
    /// Bytes that its artifacts keep of a stream, where that is not the operator's limit. They exist even if empty.
    pub(crate) artifact_bytes: Option<u64>,
    /// Whether its command is for the shell that users log in with.
    pub(crate) in_default_shell: bool,
    /// Device and inode of the directory that its command was approved to start in.
    pub(crate) approved_cwd: Option<(u64, u64)>,
    /// The job that makes the call, where one does.
    pub(crate) job: Option<JobContext>,
    /// The jobs that the caller may look at, where the tool waits for one.
    pub(crate) jobs: Option<Box<dyn Jobs>>,
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
    /// Cancelled when it begins to wait to be approved.
    pub(crate) is_asked_about: CancellationToken,
    /// The approval of an earlier attempt: nobody is asked twice.
    pub(crate) approved: Option<Approved>,
}

/// An approval of a call.
#[derive(Debug, Clone)]
pub(crate) struct Approved {
    /// Who or what gave it.
    pub(crate) by: String,
    /// Device and inode of the directory that the command may start in.
    pub(crate) cwd: Option<(u64, u64)>,
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
        Self { response, facts: serde_json::Map::new(), event: None, error_type: None }
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
/// more. Where it fails for want of descriptors, which it has given back then, it is tried again.
async fn on_files<R: Send + 'static>(
    work: Work,
    function: impl Fn(&Workspace, &FileStop) -> Result<R, Error> + Send + Sync + 'static,
) -> Result<Done<R>, Error> {
    let function = Arc::new(function);
    let mut attempts = Attempts::until(work.deadline);
    loop {
        let occupied = work.occupy(None).await?;
        let (workspace, function) = (Arc::clone(&work.scene.workspace), Arc::clone(&function));
        let end = work.stop.abandon.cancelled();
        let function = move |stop: &FileStop| function(&workspace, stop);
        match FileStop::at(occupied, end, function).await? {
            Err(error) if work.again(&mut attempts, &error).await => {}
            answer => return answer.map(Done::plain),
        }
    }
}

impl Work {
    /// When work that ends with what it has when its time is up is to do so, if it begins now.
    fn until(&self) -> Instant {
        limit(Instant::now(), self.default_timeout, self.deadline)
    }

    /// Waits for a place among the work with files, until nobody waits for the work any more, or its time
    /// is up. Meanwhile it is others' turn.
    async fn occupy(&self, until: Option<Instant>) -> Result<Occupied, Error> {
        let operations = &self.scene.files.operations;
        let place = self.wait_for(operations, until).await?;
        let (operations, caller) = (Arc::clone(operations), Arc::clone(&self.caller));
        let turn = Some(self.turn.clone());
        Ok(Occupied::new(operations, caller, place, turn))
    }

    async fn wait_for(&self, queue: &Arc<Queue>, until: Option<Instant>) -> Result<Place, Error> {
        match queue.enter(&self.caller, usize::MAX) {
            Ok(Entry::Place(place)) => Ok(place),
            Ok(Entry::Wait(mut waiting)) => {
                self.turn.end();
                tokio::select! {
                    place = waiting.place() => Ok(place),
                    () = self.stop.abandon.cancelled() => Err(FileStop::late()),
                    () = task::until(until) => Err(too_busy(queue.fullness(&self.caller, usize::MAX))),
                }
            }
            Err(full) => Err(too_busy(full)),
        }
    }

    /// Whether what failed so is to be tried again; then it is time to.
    async fn again(&self, attempts: &mut Attempts, error: &Error) -> bool {
        tokio::select! {
            again = attempts.another(error) => again,
            () = self.stop.abandon.cancelled() => false,
        }
    }
}

fn too_busy(full: Full) -> Error {
    let text = format!(
        "the time for the call has passed while {} other calls of this caller worked with files: retry after the time given, with fewer at a time",
        full.held
    );
    Error::new(Reason::ResourceExhausted, text).retry_after(full.retry_after)
}

/// As [`on_files`], for work that ends with what it has when its time is up. Without an answer it
/// has not noticed soon enough: it goes on until it does, and keeps its place among the calls.
async fn in_time<R: Send + 'static>(
    work: &Work,
    until: Instant,
    function: impl FnOnce(&Workspace, &FileStop) -> R + Send + 'static,
) -> Result<Option<R>, Error> {
    let occupied = work.occupy(Some(until)).await?;
    let end = async {
        // Whichever comes first.
        let _either = timeout_at(until.into(), work.stop.abandon.cancelled()).await;
    };
    let (workspace, place) = (Arc::clone(&work.scene.workspace), Arc::clone(&work.place));
    FileStop::soon_after(occupied, end, NOTICE, move |stop| {
        let _place = place;
        function(&workspace, stop)
    })
    .await
}

/// When work with a time limit of its own is to answer: early enough for whoever waits.
pub(crate) fn limit(now: Instant, timeout: Duration, deadline: Option<Instant>) -> Instant {
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
