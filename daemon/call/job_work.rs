//! The work of jobs: each is a call like any other, made when its turn comes.

use std::{
    io,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use prost::Message;
use serde_json::{Map, Value};
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

use super::{
    InPlace, Pipeline,
    access::principal::Principal,
    any_tool::{self, Going},
    approval::places::are_full,
    context::{ByName, Incoming},
    drain::Drain,
    envelope::{self, Call},
    job_tools::{Given, JobTools},
    jobs::{Live, RETRY},
    order::Order,
    state_error::of_database,
};
use crate::daemon::{
    descriptors::Attempts,
    dialect,
    error::{Error, Reason},
    store::{
        jobs::{Job, JobState},
        session::SessionId,
    },
    task,
    telemetry::{
        calls::{CallEnd, CallFacts, Facts},
        propagation::{read_parent, write_parent},
    },
    tool::{Approved, JobContext},
};

/// How long a job waits for room on a disk: somebody must make some first.
const NO_SPACE: Duration = Duration::from_secs(5);
/// How long the turn of a job is kept while the log takes that it runs, which is a hundred times what that takes.
const TURN: Duration = Duration::from_millis(100);

/// How the work of a job has ended.
enum End {
    /// So, and with this result, where it was begun.
    Done(JobState, Option<Bytes>),
    /// Nothing was done, as the daemon is shutting down.
    NotBegun,
}

/// What keeps a job from beginning.
enum Hindrance {
    /// As many calls as may wait to be approved.
    Approvals,
    /// Something else, which there may not be any more after this time.
    Passing(Duration),
    /// It will not begin.
    Lasting(Error),
}

/// That somebody was asked, and has allowed a job.
pub(super) struct Approval {
    /// Whose call it is, with the rights that he had.
    to: Arc<Principal>,
    approved: Approved,
}

impl From<Error> for Hindrance {
    fn from(error: Error) -> Self {
        match (error.reason, error.retry_after) {
            _ if are_full(&error) => Self::Approvals,
            (Reason::ResourceExhausted, Some(wait)) => Self::Passing(wait),
            (Reason::NoSpace, _) => {
                tracing::warn!(%error, "a job that cannot begin yet waits");
                Self::Passing(NO_SPACE)
            }
            _ => Self::Lasting(error),
        }
    }
}

impl Pipeline {
    /// Takes on a job. Once this is answered, the job will be done. `is_unfinished`: whether a daemon
    /// died that was asked the same under this request id.
    pub(crate) async fn submit_job(
        self: &Arc<Self>,
        incoming: &Incoming,
        order: Order,
        is_unfinished: bool,
    ) -> Result<Job, Error> {
        let workspace = self.scene(incoming)?.workspace.name().to_owned();
        let request = incoming.request_id.clone();
        if let Some(request) = request.clone().filter(|_| is_unfinished) {
            let principal = incoming.principal.name();
            let submitted = self.jobs.submitted(principal, &workspace, request).await?;
            if let Some(job) = submitted {
                return Ok(job);
            }
        }
        self.drain.refuse_new()?;
        let Order { dialect, tool, params, queue, priority, is_open } = order;
        is_open?;
        let id = self.jobs.new_id();
        let job = Job {
            id: id.to_string(),
            workspace,
            session: incoming.session.as_str().to_owned(),
            principal: incoming.principal.name().to_owned(),
            request,
            dialect: dialect.map_or("", |dialect| dialect.name).to_owned(),
            given_id: incoming.by_name.as_ref().map(|call| call.id.clone()).unwrap_or_default(),
            tool,
            queue,
            priority,
            state: JobState::Queued,
            trace: write_parent(&incoming.parent),
            submitted: id.datetime(),
            started: None,
            ended: None,
            step: None,
        };
        let until = incoming.deadline;
        self.jobs.submit(job.clone(), params, until).await?;
        self.do_jobs();
        Ok(job)
    }

    /// Starts the jobs whose turn it is.
    pub(crate) fn do_jobs(self: &Arc<Self>) {
        let most = |caller: &str| {
            let principal = self.access.named(caller);
            // One who may not call any more is told so, each of his jobs.
            principal.map_or(usize::MAX, |principal| principal.concurrent_calls())
        };
        while !self.drain.has_begun()
            && let Some(live) = self.jobs.next(most)
        {
            let pipeline = Arc::clone(self);
            task::spawn_tracked("job", async move {
                match pipeline.do_job(&live).await {
                    End::Done(state, result) => pipeline.jobs.end(&live, state, result).await,
                    End::NotBegun => pipeline.jobs.requeue(&live).await,
                }
                pipeline.do_jobs();
            });
        }
    }

    async fn do_job(self: &Arc<Self>, live: &Live) -> End {
        let job = live.seen().job;
        let mut tools = JobTools::new(self, live, &job);
        let (result, said) = tools.perform().await;
        let JobTools { has_begun, ran, .. } = tools;
        let was_cancelled = live.cancelled().is_cancelled();
        let state = match &result {
            Err(error) if !has_begun && error.reason == Reason::Draining => return End::NotBegun,
            _ if !has_begun && was_cancelled => return End::Done(JobState::Cancelled, None),
            Err(error) if !has_begun && error.reason == Reason::DaemonLost => JobState::Lost,
            Err(_) if has_begun && was_cancelled => JobState::Cancelled,
            Ok(_) if ran.was_cancelled() => JobState::Cancelled,
            Ok(answer) if answer.is_success() => JobState::Succeeded,
            Ok(_) | Err(_) => JobState::Failed,
        };
        let call = Call {
            tool: &job.tool,
            started: live.seen().job.started.unwrap_or(job.submitted),
            ended: SystemTime::now(),
        };
        let dialect = dialect::find(&job.dialect).ok();
        if self.telemetry.logs_calls() {
            log_job(&job, dialect.map(|dialect| dialect.name), state, &call);
        }
        let envelope = envelope::of(&call, dialect, &said, result, &ran);
        if self.results.is_watched()
            && let Ok(incoming) = self.incoming_of(live, &job, &None)
        {
            self.publish_result(&incoming, dialect, &envelope);
        }
        End::Done(state, Some(envelope.encode_to_vec().into()))
    }

    /// Begins the call of a job once nothing is in its way. What is short for now is waited for, and nothing of
    /// the job is done until then: it waits as though its turn had not come. May be cancelled.
    pub(super) async fn begin_job(
        self: &Arc<Self>,
        live: &Live,
        job: &Job,
        given: Option<&Given>,
    ) -> Result<Going, Error> {
        let mut approval = None;
        loop {
            // Before it asks: what becomes free from then on is not missed.
            let freed = self.approvals.freed();
            match self.try_to_begin(live, job, given, &mut approval).await {
                Ok(going) => return Ok(going),
                Err(Hindrance::Lasting(error)) => return Err(error),
                Err(Hindrance::Passing(pause)) => self.try_later(live, pause).await?,
                Err(Hindrance::Approvals) => self.wait_to_ask(live, job, freed).await?,
            }
        }
    }

    /// Begins the call of a job, as whoever submitted it. It is known to run before it does, and not before
    /// it may: until then, a daemon that dies has done nothing of it. May be cancelled.
    async fn try_to_begin(
        self: &Arc<Self>,
        live: &Live,
        job: &Job,
        given: Option<&Given>,
        approval: &mut Option<Approval>,
    ) -> Result<Going, Hindrance> {
        let (name, params) = match given {
            Some(call) => (call.tool, call.params.clone()),
            None => (job.tool.as_str(), self.job_params(live, job).await?),
        };
        let incoming = Incoming {
            limit: given.and_then(|call| call.limit),
            artifact_bytes: given.and_then(|call| call.artifact_bytes),
            in_default_shell: given.is_some_and(|call| call.in_default_shell),
            ..self.incoming_of(live, job, approval)?
        };
        let incoming = match given.and_then(|call| call.by_name.clone()) {
            Some(by_name) => Incoming { by_name: Some(by_name), ..incoming },
            None => incoming,
        };
        let principal = Arc::clone(&incoming.principal);
        let tool = any_tool::find(name, self, &principal)?;
        // Much may have changed since it was submitted.
        let said = incoming.said();
        tool.is_open(self, &principal, said.as_deref().map(|said| said.tool))?;
        let is_asked_about =
            incoming.job.as_ref().map(|job| job.is_asked_about.clone()).unwrap_or_default();
        let checked = {
            let (pipeline, id) = (Arc::clone(self), job.id.clone());
            let bytes = params.len();
            let check = move |incoming: &Incoming| {
                let params = serde_json::from_slice(&params);
                let params = params.map_err(|error| gone(&id, &error.into()))?;
                tool.check(&pipeline, incoming.clone(), &params)
            };
            let cost = bytes.saturating_mul(tool.cost());
            self.look_into(&incoming, (bytes, cost), check).await?
        };
        let mut let_in = checked.let_in(self);
        let let_in = tokio::select! {
            biased;
            let_in = &mut let_in => let_in?,
            () = is_asked_about.cancelled() => {
                self.step_aside(live).await;
                let let_in = let_in.await?;
                self.wait_again(live).await?;
                let_in
            }
        };
        if let Some(approved) = let_in.approved() {
            let to = Arc::clone(&principal);
            *approval = Some(Approval { to, approved });
        }
        // Its caller may have as many calls going on as he may have: others have their turn meanwhile.
        let place = self.admit_job(let_in.applicant(&principal)).await?;
        // All that may have taken hours.
        if !let_in.stands(self).await? {
            return Err(Hindrance::Passing(Duration::ZERO));
        }
        self.start_job(live, &place).await?;
        Ok(let_in.begin(self, place).await?)
    }

    /// Keeps that a job runs. Its turn is for others where that takes long.
    async fn start_job(&self, live: &Live, place: &InPlace) -> Result<(), Hindrance> {
        let mut start = pin!(self.jobs.start(live));
        let started = match timeout(TURN, &mut start).await {
            Ok(started) => started,
            Err(_) => {
                place.admitted.turn.end();
                start.await
            }
        };
        started.map_err(|error| {
            tracing::error!(%error, "that a job starts could not be kept");
            match of_database(&error).into() {
                // Its end could be kept as little.
                Hindrance::Lasting(_) => Hindrance::Passing(RETRY),
                passing @ (Hindrance::Approvals | Hindrance::Passing(_)) => passing,
            }
        })
    }

    /// What a job is to do. As long as it cannot be read, and is not known to be gone, the job waits.
    async fn job_params(&self, live: &Live, job: &Job) -> Result<Bytes, Hindrance> {
        let mut attempts = Attempts::until(None);
        loop {
            match self.jobs.params(live).await {
                Ok(params) => return Ok(params.into()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(gone(&job.id, &error).into());
                }
                Err(error) if attempts.another_of_kernel(&error).await => {}
                Err(error) => {
                    tracing::error!(%error, job_id = job.id, "the parameters of a job cannot be read now");
                    return Err(Hindrance::Passing(RETRY));
                }
            }
        }
    }

    /// What a job is to do, once it can be read.
    pub(super) async fn params_in_time(
        self: &Arc<Self>,
        live: &Live,
        job: &Job,
    ) -> Result<Map<String, Value>, Error> {
        loop {
            match self.job_params(live, job).await {
                Ok(params) => {
                    let params = serde_json::from_slice(&params);
                    return params.map_err(|error| gone(&job.id, &error.into()));
                }
                Err(Hindrance::Lasting(error)) => return Err(error),
                Err(Hindrance::Passing(pause)) => self.try_later(live, pause).await?,
                Err(Hindrance::Approvals) => self.try_later(live, RETRY).await?,
            }
        }
    }

    /// Lets others have their turn before a job that cannot begin yet.
    async fn step_aside(self: &Arc<Self>, live: &Live) {
        self.jobs.step_aside(live);
        self.do_jobs();
        self.jobs.take_back(live).await;
    }

    /// Waits until it is a job's turn again.
    async fn wait_again(self: &Arc<Self>, live: &Live) -> Result<(), Error> {
        let turn = self.jobs.wait_again(live);
        self.do_jobs();
        tokio::select! {
            turn = turn => turn.map_err(Error::internal),
            () = self.drain.begun_token().cancelled_owned() => Err(Drain::refusal()),
        }
    }

    /// Has a job wait for so long, and then for its turn.
    async fn try_later(self: &Arc<Self>, live: &Live, pause: Duration) -> Result<(), Error> {
        self.step_aside(live).await;
        tokio::select! {
            () = task::until(Some(Instant::now() + pause)) => self.wait_again(live).await,
            () = self.drain.begun_token().cancelled_owned() => Err(Drain::refusal()),
        }
    }

    /// Has a job wait until it may be asked about, and it is its turn: so those that wait for that are asked
    /// about in the order of their queues. There is an end to that, as what waits to be approved has one.
    async fn wait_to_ask(
        self: &Arc<Self>,
        live: &Live,
        job: &Job,
        mut freed: watch::Receiver<()>,
    ) -> Result<(), Error> {
        let has_room = || self.approvals.has_room(&job.workspace, &job.principal);
        loop {
            self.step_aside(live).await;
            tokio::select! {
                freed = freed.changed() => freed.map_err(Error::internal)?,
                () = self.drain.begun_token().cancelled_owned() => return Err(Drain::refusal()),
            }
            if !has_room() {
                continue;
            }
            self.wait_again(live).await?;
            // Those before it may have taken it.
            if has_room() {
                return Ok(());
            }
        }
    }

    /// The call that a job makes. An `approval` is good for whom it was given to, with the rights that he had.
    pub(super) fn incoming_of(
        &self,
        live: &Live,
        job: &Job,
        approval: &Option<Approval>,
    ) -> Result<Incoming, Error> {
        let principal = self.access.named(&job.principal).ok_or_else(|| {
            let text =
                format!("{} has submitted this job, and may not call any more", job.principal);
            Error::new(Reason::Forbidden, text)
        })?;
        let session = SessionId::parse(&job.session)
            .ok_or_else(|| Error::internal("a job has no session"))?;
        let approval = approval.as_ref();
        let approval = approval.filter(|approval| Arc::ptr_eq(&approval.to, &principal));
        Ok(Incoming {
            call_id: Ulid::generate().to_string(),
            principal,
            deadline: None,
            workspace: Some(job.workspace.clone()),
            session,
            request_id: None,
            job: Some(JobContext {
                id: job.id.clone(),
                written: live.written().clone(),
                is_asked_about: CancellationToken::new(),
                approved: approval.map(|approval| approval.approved.clone()),
            }),
            by_name: (!job.given_id.is_empty())
                .then(|| Arc::new(ByName { id: job.given_id.clone(), said: None, dialect: None })),
            alias: None,
            limit: None,
            artifact_bytes: None,
            in_default_shell: false,
            parent: read_parent(&job.trace),
            facts: CallFacts::default(),
        })
    }
}

/// Writes the line of a job that has ended.
fn log_job(job: &Job, dialect: Option<&'static str>, state: JobState, call: &Call<'_>) {
    let facts = Facts {
        caller: Some(job.principal.clone()),
        workspace: Some(job.workspace.clone()),
        session: Some(job.session.clone()),
        request_id: job.request.clone(),
        job_id: Some(job.id.clone()),
        model_call_id: Some(job.given_id.clone()).filter(|id| !id.is_empty()),
        tool: dialect.is_none().then(|| job.tool.clone()),
        called_name: dialect.is_some().then(|| job.tool.clone()),
        dialect,
        outcome: Some(state.name().to_owned()),
    };
    let duration = call.ended.duration_since(call.started);
    facts.log(CallEnd {
        method: None,
        call_id: None,
        trace_id: None,
        status: None,
        reason: None,
        duration: duration.unwrap_or_default(),
    });
}

/// What a job is told that cannot know any more what it was to do.
fn gone(id: &str, error: &io::Error) -> Error {
    tracing::error!(%error, job_id = id, "the parameters of a job are gone");
    let text =
        "what this job was to do is not in the daemon's state directory any more: submit it again";
    Error::new(Reason::DaemonLost, text)
}
