//! Calls that may be repeated: the work is done once for each `jig-request-id`, and every call with that
//! id gets its answer, also after a restart.
//!
//! ```text
//! claim ──▶ ours ──▶ work ──▶ answered ──▶ kept in the log, and told to all who wait
//!   │         └─────▶ released: nothing was done, so that the next one may claim it
//!   ├──▶ somebody else's, who works: wait with him
//!   ├──▶ answered: the answer again
//!   └──▶ lost: the daemon died while it worked, or had no room for the answer, or not any more
//! ```
//!
//! What the log cannot take at the moment, for want of room or because another program holds it, is kept in
//! memory and told from there until the log has it.
//!
//! Work with an id does not end with its caller: it goes on for a while when nobody waits any more, as
//! the caller may be on his way back. What still waits for a place when the last one's deadline comes is not
//! begun: he is told so, and is not on his way back.

pub(super) mod answer;
mod callers;
mod heirs;
mod holders;
mod mark;
mod reused;
mod state;

use std::{
    collections::HashMap,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::{
    sync::{oneshot, watch},
    time::{sleep, timeout},
};

pub(crate) use self::callers::Callers;
pub(crate) use self::mark::Mark;
use self::{heirs::Heirs, reused::same, state::State};
pub(super) use self::{mark::Left, state::Lost};
use super::{drain::Drain, state_error::of_database, subject::Permitted};
use crate::daemon::{
    error::Error,
    store::{
        database::DatabaseError,
        requests::{Asked, Found, Key, RequestLog},
    },
    task,
};

/// How long those who wait for an answer wait until it is kept, too: some hundred times what that takes.
const KEPT_WITHIN: Duration = Duration::from_secs(1);
/// How long to wait before the log is asked again to take what it could not.
const RETRY: Duration = Duration::from_secs(2);
/// The same while the daemon waits for nothing else, maybe.
const RETRY_AT_END: Duration = Duration::from_millis(200);
/// Bytes of what waits for the log: as much as some thousands of usual answers, and little beside what the
/// daemon may need otherwise. More than that is told to be lost.
const WAITING_BYTES: usize = 64 << 20;
/// What it takes of them to know of an answer.
const WAITING_OVERHEAD: usize = 1024;

/// The request ids.
#[derive(Debug)]
pub(crate) struct Idempotency {
    log: RequestLog,
    /// How long work goes on when nobody waits for it.
    linger: Duration,
    drain: Drain,
    going: Arc<Going>,
    /// Bytes of what waits for the log.
    waiting: AtomicUsize,
}

/// Those whose work goes on, or of whom the log does not have yet how it ended.
#[derive(Debug, Default)]
struct Going(Mutex<HashMap<Key, Arc<Shared>>>);

/// A call that goes on, for all who wait for it.
#[derive(Debug)]
struct Shared {
    asked: Asked,
    answer: watch::Sender<State>,
    /// Who waits.
    callers: watch::Sender<Callers>,
    /// Who would go on with the work in place of the one who does it.
    heirs: Heirs<Ticket>,
    /// Why it cannot be claimed again, though nothing was done.
    unfree: OnceLock<DatabaseError>,
}

/// What became of a claim.
#[derive(Debug)]
pub(super) enum Claimed {
    /// The work is to be done by who holds this.
    Ours(Ticket),
    /// It was done before.
    Answered {
        /// How it was answered.
        answer: Bytes,
        /// Whether this life of the daemon did it.
        is_recent: bool,
    },
    /// The daemon died while it was done, as this step of its session, or had no room for the answer, or
    /// not any more.
    Lost(Option<u64>),
}

/// The right and the duty to do the work of a request id. Dropped without an answer, it is given back.
#[derive(Debug)]
pub(super) struct Ticket {
    owner: Arc<Idempotency>,
    key: Key,
    shared: Arc<Shared>,
    /// When who has claimed it stops waiting.
    deadline: Option<Instant>,
    is_open: bool,
    /// Where a daemon died that did it: how far it had come.
    left: Option<Left>,
    /// What has let the work in, where somebody was asked before it was handed over.
    permitted: Option<Permitted>,
}

/// Somebody who waits for an answer.
#[derive(Debug)]
pub(super) struct Caller {
    shared: Arc<Shared>,
    deadline: Option<Instant>,
    answer: watch::Receiver<State>,
}

impl Idempotency {
    /// The request ids of `log`.
    pub(crate) fn new(log: RequestLog, linger: Duration, drain: &Drain) -> Arc<Self> {
        let growth = log.growth();
        let idempotency = Arc::new(Self {
            log,
            linger,
            drain: drain.clone(),
            going: Arc::default(),
            waiting: AtomicUsize::new(0),
        });
        let weak = Arc::downgrade(&idempotency);
        task::spawn("retention of request ids", async move {
            while let Some(idempotency) = weak.upgrade() {
                idempotency.retain().await;
                drop(idempotency);
                growth.wait().await;
            }
        });
        idempotency
    }

    /// What tells a request message from another.
    pub(super) fn fingerprint(&self, message: &[u8]) -> [u8; 32] {
        self.log.fingerprint(message)
    }

    /// How long work goes on when nobody waits for it.
    pub(super) fn linger(&self) -> Duration {
        self.linger
    }

    /// Claims a request id. Where its work goes on already, waits for its answer.
    pub(super) async fn claim(
        self: &Arc<Self>,
        key: Key,
        asked: Asked,
        lost: Lost,
    ) -> Result<Claimed, Error> {
        loop {
            let shared = match self.claim_now(&key, &asked, lost, None).await? {
                Ok(claimed) => return Ok(claimed),
                Err(caller) => caller,
            };
            if let Some(answer) = shared.wait().await {
                return Ok(Claimed::Answered { answer, is_recent: true });
            }
        }
    }

    /// Claims a request id, unless its work goes on already: then answers somebody who waits for its
    /// answer until his `deadline`.
    pub(super) async fn claim_now(
        self: &Arc<Self>,
        key: &Key,
        asked: &Asked,
        lost: Lost,
        deadline: Option<Instant>,
    ) -> Result<Result<Claimed, Caller>, Error> {
        match self.join(key, asked, deadline)? {
            Joined::First(ticket) => {
                // In a task of its own: a caller who goes away must not leave it unknown whether the
                // log holds the claim.
                let claim = task::spawn_tracked("claim", ticket.claim(asked.clone(), lost));
                claim.await.map_err(Error::internal)?.map(Ok)
            }
            Joined::Going(caller) => Ok(Err(caller)),
        }
    }

    fn join(
        self: &Arc<Self>,
        key: &Key,
        asked: &Asked,
        deadline: Option<Instant>,
    ) -> Result<Joined, Error> {
        let mut going = self.going.lock();
        if let Some(shared) = going.get(key) {
            same(key, asked, &shared.asked)?;
            if let Some(error) = shared.unfree.get() {
                return Err(of_database(error));
            }
            return Ok(Joined::Going(Caller::new(shared, deadline)));
        }
        let shared = Arc::new(Shared {
            asked: asked.clone(),
            answer: watch::Sender::new(State::Going),
            callers: watch::Sender::default(),
            heirs: Heirs::default(),
            unfree: OnceLock::new(),
        });
        going.insert(key.clone(), Arc::clone(&shared));
        Ok(Joined::First(Ticket {
            owner: Arc::clone(self),
            key: key.clone(),
            shared,
            deadline,
            is_open: true,
            left: None,
            permitted: None,
        }))
    }

    /// Has the log take how work has ended, and tells those who wait: as soon as the log has it or, if it
    /// cannot take it at the moment, before that. `kept`: the answer to every repeat; without it, the next
    /// one may claim the id.
    async fn end(
        self: Arc<Self>,
        key: Key,
        shared: Arc<Shared>,
        state: State,
        kept: Option<Bytes>,
    ) {
        let taken = timeout(KEPT_WITHIN, self.take(&key, kept.as_ref()));
        let taken = taken.await.unwrap_or(Err(DatabaseError::Busy));
        let Err(error) = taken else {
            return self.close(&key, &shared, state);
        };
        let bytes = kept.as_ref().map_or(0, Bytes::len) + WAITING_OVERHEAD;
        if self.waiting.fetch_add(bytes, Ordering::Relaxed) + bytes > WAITING_BYTES {
            self.waiting.fetch_sub(bytes, Ordering::Relaxed);
            // A repeat will learn that it is not known how it ended.
            tracing::error!(%error, "the answer to a request id could not be kept");
            return self.close(&key, &shared, state);
        }
        tracing::warn!(%error, "the answer to a request id cannot be kept yet");
        if kept.is_none() {
            let _was_free = shared.unfree.set(error);
        }
        shared.answer.send_replace(state);
        task::spawn_tracked("answer to a request id", async move {
            self.take_later(&key, kept.as_ref()).await;
            self.waiting.fetch_sub(bytes, Ordering::Relaxed);
            self.going.lock().remove(&key);
        });
    }

    /// Has the log take how work has ended as soon as it can, as long as the daemon may wait for that.
    async fn take_later(&self, key: &Key, kept: Option<&Bytes>) {
        let (begun, end) = (self.drain.begun_token(), self.drain.end_token());
        let mut is_over = pin!(async {
            end.cancelled().await;
            sleep(KEPT_WITHIN).await;
        });
        loop {
            let is_draining = begun.is_cancelled();
            let pause = if is_draining { RETRY_AT_END } else { RETRY };
            let is_last = tokio::select! {
                biased;
                () = &mut is_over => true,
                () = begun.cancelled(), if !is_draining => false,
                () = sleep(pause) => false,
            };
            match self.take(key, kept).await {
                Ok(()) => return,
                Err(error) if is_last => {
                    tracing::error!(%error, "the answer to a request id could not be kept");
                    return;
                }
                Err(_) => {}
            }
        }
    }

    async fn take(&self, key: &Key, kept: Option<&Bytes>) -> Result<(), DatabaseError> {
        match kept {
            Some(answer) => self.log.answer(key.clone(), answer.clone()).await,
            None => self.log.release(key.clone()).await,
        }
    }

    /// Lets the next one claim it, and tells those who wait.
    fn close(&self, key: &Key, shared: &Shared, state: State) {
        self.going.lock().remove(key);
        shared.answer.send_replace(state);
    }

    async fn retain(&self) {
        let going = Arc::clone(&self.going);
        let goes_on = move |key: &Key| going.lock().contains_key(key);
        if let Err(error) = self.log.retain(goes_on).await {
            tracing::warn!(%error, "old request ids could not be removed");
        }
    }
}

impl Going {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Shared>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Joined {
    First(Ticket),
    Going(Caller),
}

impl Ticket {
    async fn claim(mut self, asked: Asked, lost: Lost) -> Result<Claimed, Error> {
        let found = self.owner.log.claim(self.key.clone(), asked.clone()).await;
        let found = found.inspect_err(|_| self.forget());
        match found.map_err(|error| of_database(&error))? {
            Found::New => Ok(Claimed::Ours(self)),
            // What is in the log already is none of this ticket's.
            Found::Answered { asked: before, answer, is_recent } => {
                self.forget();
                same(&self.key, &asked, &before)?;
                Ok(Claimed::Answered { answer, is_recent })
            }
            Found::Unanswered { asked: before, step } => {
                same(&self.key, &asked, &before).inspect_err(|_| self.forget())?;
                if lost == Lost::IsResumed {
                    let resumed = self.owner.log.resume(self.key.clone()).await;
                    let resumed = resumed.inspect_err(|_| self.forget());
                    resumed.map_err(|error| of_database(&error))?;
                    self.left = Some(step.map_or(Left::Unsaid, |_| Left::Begun));
                    return Ok(Claimed::Ours(self));
                }
                self.forget();
                Ok(Claimed::Lost(step))
            }
            // Whatever it was, it was done, and may have been undone by others since: it is not done again.
            Found::Forgotten { asked: before, step } => {
                self.forget();
                same(&self.key, &asked, &before)?;
                Ok(Claimed::Lost(step))
            }
        }
    }

    /// Where a daemon died that did the work: what it has left.
    pub(super) fn left(&self) -> Option<Left> {
        self.left
    }

    /// Where it is said how far the work has come.
    pub(super) fn mark(&self) -> Mark {
        Mark::new(self.owner.log.clone(), self.key.clone())
    }

    /// What has let the work in before, for who goes on with it.
    pub(super) fn take_permitted(&mut self) -> Option<Permitted> {
        self.permitted.take()
    }

    /// Somebody who waits for the answer.
    pub(super) fn caller(&self) -> Caller {
        Caller::new(&self.shared, self.deadline)
    }

    /// Those who wait for the answer, as they come and go.
    pub(super) fn callers(&self) -> watch::Receiver<Callers> {
        self.shared.callers.subscribe()
    }

    /// Waits until nobody has waited for a while. May be cancelled.
    pub(super) async fn left_alone(&self) {
        let mut callers = self.shared.callers.subscribe();
        loop {
            // It cannot close: this ticket holds the sender.
            drop(callers.wait_for(Callers::is_empty).await);
            tokio::select! {
                () = sleep(self.owner.linger) => return,
                _somebody = callers.wait_for(|callers| !callers.is_empty()) => {}
            }
        }
    }

    /// Waits until somebody would go on with the work. May be cancelled.
    pub(super) async fn has_heir(&self) {
        self.shared.heirs.any().await;
    }

    /// Gives the work, which this has let in, to the last who would go on with it and is there; to nobody
    /// else then. Answers itself where there is none.
    pub(super) fn hand_over(mut self, permitted: Permitted) -> Option<Self> {
        let heirs = self.shared.heirs.take();
        self.permitted = Some(permitted);
        for heir in heirs.into_iter().rev() {
            self = heir.send(self).err()?;
        }
        Some(self)
    }

    /// Keeps the answer, if `keep`, and tells all who wait.
    pub(super) async fn answer(mut self, answer: Bytes, keep: bool) {
        self.is_open = false;
        let kept = keep.then(|| answer.clone());
        self.end(State::Answered(answer), kept).await;
    }

    fn end(&self, state: State, kept: Option<Bytes>) -> impl Future<Output = ()> + use<> {
        let (owner, shared) = (Arc::clone(&self.owner), Arc::clone(&self.shared));
        owner.end(self.key.clone(), shared, state, kept)
    }

    fn forget(&mut self) {
        self.is_open = false;
        self.owner.close(&self.key, &self.shared, State::Released);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_open || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        task::spawn_tracked("release of a request id", self.end(State::Released, None));
    }
}

impl Caller {
    fn new(shared: &Arc<Shared>, deadline: Option<Instant>) -> Self {
        shared.callers.send_modify(|callers| callers.add(deadline));
        Self { deadline, answer: shared.answer.subscribe(), shared: Arc::clone(shared) }
    }

    /// Asks for the right to go on with the work. Who does it may give it, or not.
    pub(super) fn ask_to_inherit(&self) -> oneshot::Receiver<Ticket> {
        self.shared.heirs.ask()
    }

    /// Waits for the answer; none if nothing was done.
    pub(super) async fn wait(mut self) -> Option<Bytes> {
        let state = self.answer.wait_for(|state| !matches!(state, State::Going)).await;
        match state.as_deref() {
            Ok(State::Answered(answer)) => Some(answer.clone()),
            Ok(State::Going | State::Released) | Err(_) => None,
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let deadline = self.deadline;
        self.shared.callers.send_modify(|callers| callers.remove(deadline));
    }
}

#[cfg(test)]
mod tests;
