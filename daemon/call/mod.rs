//! The one way that every call goes, whichever door it came through.
//!
//! ```text
//! validate ─▶ request id ─▶ permit ─▶ admit ─▶ record that it starts ─▶ execute ─▶ record how it ended ─▶ answer
//!    │           │            │         │           │
//!    ▼           ▼            ▼         ▼           ▼
//! INVALID_   REQUEST_ID_  TOOL_      RESOURCE_   NO_SPACE      nothing was started in any of these cases
//! PARAMS …   REUSED       DISABLED,  EXHAUSTED,
//!                         POLICY_    DRAINING
//!                         DENIED, APPROVAL_DENIED
//! ```
//!
//! Once it has its place, a call that waited for it is looked at again, as *permit* did: meanwhile, its key
//! may have been taken away, or the policy changed.
//!
//! From *admit* on, the work belongs to a task of its own, which holds the permit and is polled to
//! its end: a caller that goes away ends its wait, and the task is told to stop.

pub(crate) mod access;
pub(crate) mod admission;
mod admit;
mod any_tool;
pub(crate) mod approval;
mod await_job;
mod check;
pub(crate) mod context;
pub(crate) mod drain;
mod ended;
pub(crate) mod envelope;
pub(crate) mod idempotency;
pub(crate) mod invoke;
mod job_tools;
pub(crate) mod job_work;
pub(crate) mod jobs;
mod kept;
mod listing;
pub(crate) mod order;
pub(crate) mod params;
mod permit;
pub(crate) mod policy;
mod publish;
mod record;
pub(crate) mod recorded;
mod refusal;
mod repeatable;
mod repeats;
pub(crate) mod results;
mod rights;
pub(crate) mod sent;
mod span;
pub(crate) mod start;
mod state_error;
pub(crate) mod structure;
pub(crate) mod subject;

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use prost::Message;
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::task_tracker::TaskTrackerToken,
};
use tracing::Instrument as _;

use self::{
    access::{Access, principal::Principal},
    admission::{Admission, Admitted},
    approval::pending::Approvals,
    context::Incoming,
    drain::Drain,
    ended::{end_span, log_end},
    idempotency::Idempotency,
    jobs::Jobs,
    policy::{book::RuleBook, judged::Spoken},
    results::Results,
    subject::{Judgement, Permitted, Subject},
};
use crate::daemon::{
    catalog::Catalog,
    descriptors::Attempts,
    error::{Error, LEADS_OUT, Reason},
    process::{registry::Registry, supervise::Stop},
    queue::Turn,
    store::{failure::state_failure, session::Session, state_dir::StateDir},
    task,
    telemetry::{Telemetry, calls::CallFacts, semconv},
    tool::{Scene, Tool, Work},
    workspace::Workspace,
};

/// How long work whose time is up may take to say how it ended.
const LAST_WORD: Duration = Duration::from_millis(50);

/// Everything that calls need.
#[derive(Debug)]
pub(crate) struct Pipeline {
    /// Who may call.
    pub(crate) access: Access,
    /// The tools.
    pub(crate) catalog: Catalog,
    /// What the operator lets in.
    pub(crate) policy: Arc<RuleBook>,
    /// The calls that wait to be approved.
    pub(crate) approvals: Arc<Approvals>,
    /// The workspaces by name, the default one first.
    pub(crate) scenes: Vec<Scene>,
    /// The state directory.
    pub(crate) store: StateDir,
    /// The request ids.
    pub(crate) requests: Arc<Idempotency>,
    /// Spans.
    pub(crate) telemetry: Telemetry,
    /// How much may go on at once.
    pub(crate) admission: Admission,
    /// Whether the daemon is shutting down.
    pub(crate) drain: Drain,
    /// Time between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
    /// The commands that were started and are watched.
    pub(crate) processes: Arc<Registry>,
    /// Calls that nobody waits for.
    pub(crate) jobs: Arc<Jobs>,
    /// The results that are watched.
    pub(crate) results: Arc<Results>,
}

/// A call of the tool `T` of which nothing is known to be wrong.
struct Checked<T: Tool> {
    scene: Scene,
    params: T::Params,
    /// What a record shows of them.
    shown: serde_json::Value,
    /// What is to be decided about.
    subject: Subject,
    default_timeout: Duration,
    /// How long its request is.
    bytes: usize,
}

/// A call of the tool `T` that may be made.
struct LetIn<T: Tool> {
    incoming: Incoming,
    scene: Scene,
    params: T::Params,
    /// What a record shows of them.
    shown: serde_json::Value,
    permitted: Permitted,
    judged: Judgement,
    default_timeout: Duration,
    /// How long its request is.
    bytes: usize,
}

/// Room for a call.
struct InPlace {
    admitted: Admitted,
    waited_for: TaskTrackerToken,
}

/// A call of the tool `T` that has its place, and whose start is recorded.
struct Begun<T: Tool> {
    incoming: Incoming,
    params: T::Params,
    work: Work,
    /// When its time is up, unless it limits itself.
    until: Instant,
    /// Tells the work to end at once.
    abandon: CancellationToken,
    waited_for: TaskTrackerToken,
}

impl<T: Tool> Begun<T> {
    /// Starts the work, in a task that goes on whatever becomes of the caller. Answers what tells it
    /// to end.
    fn spawn(
        self,
        pipeline: &Arc<Pipeline>,
    ) -> (JoinHandle<Result<T::Response, Error>>, CancellationToken) {
        let incoming = self.incoming;
        let log = tracing::info_span!("call", call_id = %incoming.call_id, trace_id = %incoming.trace_id(), span_id = %incoming.span_id(), tool = incoming.tool(T::NAME));
        let work = Arc::clone(pipeline).execute::<T>(
            self.params,
            self.work,
            incoming.said(),
            incoming.facts,
        );
        let task = task::spawn_tracked(T::NAME, work.instrument(log));
        drop(self.waited_for);
        (task, self.abandon)
    }
}

impl Pipeline {
    /// The workspaces that are there for `principal`, its default one first.
    pub(crate) fn scenes_of(&self, principal: &Principal) -> impl Iterator<Item = &Scene> {
        self.scenes.iter().filter(|scene| principal.sees(scene.workspace.name()))
    }

    /// The workspace that a call chose.
    pub(crate) fn scene(&self, incoming: &Incoming) -> Result<&Scene, Error> {
        let mut seen = self.scenes_of(&incoming.principal);
        let found = match &incoming.workspace {
            None => seen.next(),
            Some(name) => seen.find(|scene| scene.workspace.name() == name),
        };
        found.ok_or_else(|| {
            let name = incoming.workspace.clone().unwrap_or_default();
            // Of the others not even their names.
            let known: Vec<_> =
                self.scenes_of(&incoming.principal).map(|scene| scene.workspace.name()).collect();
            let text = format!(
                "there is no workspace {name:?}; jig-workspace can be one of: {}",
                known.join(", ")
            );
            Error::new(Reason::UnknownWorkspace, text).with("workspace", name)
        })
    }

    /// The session that a call belongs to, made where it is new.
    pub(crate) async fn session(
        self: &Arc<Self>,
        incoming: &Incoming,
    ) -> Result<Arc<Session>, Error> {
        self.session_while(incoming, None).await
    }

    /// As [`Self::session`], for a call whose turn it is, until it has to be waited for.
    async fn session_while(
        self: &Arc<Self>,
        incoming: &Incoming,
        turn: Option<&Turn>,
    ) -> Result<Arc<Session>, Error> {
        let workspace = self.scene(incoming)?.workspace.name();
        if let Some(session) = self.store.sessions().open(workspace, &incoming.session) {
            return Ok(session);
        }
        let mut attempts = Attempts::until(incoming.deadline);
        loop {
            let (pipeline, workspace) = (Arc::clone(self), workspace.to_owned());
            let id = incoming.session.clone();
            let opened = task::blocking(move || pipeline.store.sessions().make(&workspace, &id));
            let opened = opened.await.map_err(Error::internal)?;
            let opened = opened.map_err(|error| state_failure(&error));
            if let (Err(_), Some(turn)) = (&opened, turn) {
                turn.end();
            }
            match opened {
                Err(error) if attempts.another(&error).await => {}
                result => return result,
            }
        }
    }

    /// Makes a call of the tool `T`.
    pub(crate) async fn call<T: Tool>(
        self: &Arc<Self>,
        incoming: Incoming,
        request: T::Request,
    ) -> Result<T::Response, Error>
    where
        T::Response: Message + Default,
    {
        let method = self.changes_something::<T>().then_some(T::NAME);
        let (repeatable, checked) = self.look_at::<T>(&incoming, request, method).await?;
        if let Some(call) = repeatable {
            return self.call_once::<T>(incoming, checked, call).await;
        }
        let begun = self.begin::<T>(incoming, checked, None).await?;
        let until = begun.until;
        let (task, abandon) = begun.spawn(self);
        // Dropped with the caller: then nobody waits for the work any more.
        until_its_time_is_up::<T>(task, until, abandon.drop_guard()).await
    }

    /// Whether a repeated call of the tool `T` would do something a second time.
    fn changes_something<T: Tool>(&self) -> bool {
        let spec = self.catalog.tool(T::NAME);
        spec.is_none_or(|spec| !spec.options.read_only)
    }

    /// Looks whether a call of the tool `T` may be made, and waits until somebody has decided, where the
    /// policy says so.
    async fn let_in<T: Tool>(
        self: &Arc<Self>,
        incoming: Incoming,
        checked: Checked<T>,
    ) -> Result<LetIn<T>, Error> {
        let judged = checked.subject.judgement();
        let permitted = self.permit(&incoming, checked.subject).await?;
        Ok(LetIn {
            incoming,
            scene: checked.scene,
            params: checked.params,
            shown: checked.shown,
            permitted,
            judged,
            default_timeout: checked.default_timeout,
            bytes: checked.bytes,
        })
    }

    /// Records that a call starts, if it may still be made now that it has its place.
    async fn record_start<T: Tool>(
        self: &Arc<Self>,
        let_in: LetIn<T>,
        place: InPlace,
    ) -> Result<Begun<T>, Error> {
        let now = self.policy.snapshot();
        let reading = match Arc::ptr_eq(&let_in.judged.snapshot, &now) {
            true => None,
            false => T::reading(&let_in.params, &let_in.scene),
        };
        let is_approved = let_in.permitted.approved().is_some();
        self.may_still(&let_in.incoming, &let_in.judged, is_approved, now, reading).await?;
        let LetIn {
            incoming,
            scene,
            params,
            shown,
            permitted: Permitted { by, cwd, .. },
            default_timeout,
            ..
        } = let_in;
        let InPlace { admitted: Admitted { place, seat, turn }, waited_for } = place;
        let session = self.session_while(&incoming, Some(&turn)).await?;
        let tool = incoming.tool(T::NAME);
        let about = record::about(tool, &incoming, scene.workspace.name());
        let begun = record::started(&about, &incoming, shown, by.clone());
        let step = session.begin_step(begun).map_err(|error| state_failure(&error))?;

        let span = self.start_span(tool, &incoming, &scene);
        if let Some(by) = by {
            span.set_text(semconv::ALLOWED_BY, &by);
        }
        let abandon = self.drain.kill_token().child_token();
        let work = Work {
            session,
            step,
            about,
            stop: Stop {
                abandon: abandon.clone(),
                draining: self.drain.begun_token(),
                drain: self.drain.end_token(),
                grace: self.grace,
            },
            caller: Arc::clone(incoming.principal.lane()),
            tools_of_caller: incoming.principal.tools().map(Iterator::collect),
            reader: self.reader(&incoming),
            place: Arc::new(place),
            seat,
            turn,
            default_timeout,
            limit: incoming.limit,
            artifact_bytes: incoming.artifact_bytes,
            in_default_shell: incoming.in_default_shell,
            approved_cwd: cwd,
            job: incoming.job.clone(),
            jobs: T::WAITS_FOR_JOBS.then(|| self.jobs_of(&incoming)),
            deadline: incoming.deadline,
            span: Arc::new(span),
            telemetry: self.telemetry.clone(),
            scene,
        };
        Ok(Begun {
            until: Instant::now() + default_timeout,
            incoming,
            params,
            work,
            abandon,
            waited_for,
        })
    }

    /// The work of one call, to its end, with the place that it holds so long.
    async fn execute<T: Tool>(
        self: Arc<Self>,
        params: T::Params,
        work: Work,
        said: Option<Arc<Spoken>>,
        facts: CallFacts,
    ) -> Result<T::Response, Error> {
        let about = work.about.clone();
        let (session, step, span) = (Arc::clone(&work.session), work.step, Arc::clone(&work.span));
        let (place, turn) = (Arc::clone(&work.place), work.turn.clone());
        let workspace = Arc::clone(&work.scene.workspace);
        let going = work.scene.activity.begin();
        let begun = Instant::now();
        let mut done = pin!(T::execute(params, work));
        let result = match timeout(T::TURN, &mut done).await {
            Ok(result) => result,
            Err(_) => {
                turn.end();
                done.await
            }
        };
        let result = match result {
            Err(error) if error.reason == Reason::SymlinkBlocked => {
                Err(with_way_out(workspace, error).await)
            }
            result => result,
        };
        let said = said.as_deref();
        let happened = record::happened(&about, said, &result);
        let finished = record::finished(&about, said, begun.elapsed(), &result);
        facts.note(|facts| facts.outcome = Some(record::outcome(&result)));
        for fields in happened.into_iter().chain([finished]) {
            if let Err(error) = session.record(step, fields) {
                tracing::error!(%error, "the end of a call could not be recorded");
            }
        }
        end_span(span, &result);
        log_end(&result);
        drop(going);
        turn.end();
        drop(place);
        result.map(|done| done.response)
    }
}

/// Waits for work; where it does not limit itself, until its time is up. `abandoned` tells it to end
/// when nobody waits any more.
async fn until_its_time_is_up<T: Tool>(
    mut task: JoinHandle<Result<T::Response, Error>>,
    until: Instant,
    abandoned: DropGuard,
) -> Result<T::Response, Error> {
    let result = if T::LIMITS_ITSELF {
        task.await
    } else {
        match tokio::time::timeout_at(until.into(), &mut task).await {
            Ok(result) => result,
            Err(_) => {
                // Told to end, most do so at once: then it is known whether anything was done.
                drop(abandoned);
                let ended = tokio::time::timeout(LAST_WORD, task).await;
                let ended = ended.map_err(|_| timed_out(T::NAME))?;
                return ended.map_err(Error::internal)?;
            }
        }
    };
    drop(abandoned);
    result.map_err(Error::internal)?
}

/// The same error, which says that the links on the path lead out of the workspace, if they do.
async fn with_way_out(workspace: Arc<Workspace>, error: Error) -> Error {
    let mut metadata = error.metadata.iter();
    let Some((_, path)) = metadata.find(|(name, _)| name == "path") else {
        return error;
    };
    let path = path.clone();
    match task::blocking(move || workspace.leads_out(&path)).await {
        Ok(true) => error.with(LEADS_OUT, "true"),
        Ok(false) | Err(_) => error,
    }
}

/// The answer to a call that took longer than it may.
pub(crate) fn timed_out(tool: &str) -> Error {
    Error::new(
        Reason::Timeout,
        format!(
            "{tool} did not finish in the time that it has: if it changes anything, look whether it did before you repeat it; ask for less, or try again when the machine is less busy"
        ),
    )
}
