//! Calls that may be repeated: the work is done once for each `jig-request-id`, and every call with that
//! id gets its answer, also after a restart.
//!
//! ```text
//! claim ──▶ ours ──▶ work ──▶ answered ──▶ kept in the log, and told to all who wait
//!   │         └─────▶ released: nothing was done, so that the next one may claim it
//!   ├──▶ somebody else's, who works: wait with him
//!   ├──▶ answered: the answer again
//!   └──▶ lost: the daemon died while it worked, or had no room for the answer
//! ```
//!
//! Work with an id does not end with its caller: it goes on for a while when nobody waits any more, as
//! the caller may be on his way back.

pub(super) mod answer;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::watch, time::sleep};

use super::state_error::of_database;
use crate::daemon::{
    error::{Error, Reason},
    store::requests::{Asked, Found, Key, RequestLog, Retention},
    task,
};

/// Most claims after which it is looked whether too much is kept.
const CLAIMS_BETWEEN: u32 = 1000;
/// Time after which that is looked at all the same.
const TIME_BETWEEN: Duration = Duration::from_secs(600);

/// The request ids.
#[derive(Debug)]
pub(crate) struct Idempotency {
    log: RequestLog,
    retention: Retention,
    /// How long work goes on when nobody waits for it.
    linger: Duration,
    /// Those whose work goes on.
    going: Mutex<HashMap<Key, Arc<Shared>>>,
    claims: AtomicU32,
}

/// A call that goes on, for all who wait for it.
#[derive(Debug)]
struct Shared {
    asked: Asked,
    answer: watch::Sender<State>,
    /// How many wait.
    callers: watch::Sender<usize>,
}

#[derive(Debug, Clone)]
enum State {
    Going,
    /// Nothing was done.
    Released,
    Answered(Bytes),
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
    /// The daemon died while it was done, as this step of its session, or had no room for the answer.
    Lost(Option<u64>),
}

/// What became of a claim of work that can tell what was done of it.
#[derive(Debug)]
pub(super) enum Resumed {
    /// The work is to be done by who holds this.
    Ours {
        /// The right to.
        ticket: Ticket,
        /// Whether a daemon died while it did it.
        is_unfinished: bool,
    },
    /// It was done before, and answered so.
    Answered(Bytes),
}

/// The right and the duty to do the work of a request id. Dropped without an answer, it is given back.
#[derive(Debug)]
pub(super) struct Ticket {
    owner: Arc<Idempotency>,
    key: Key,
    shared: Arc<Shared>,
    is_open: bool,
}

/// Somebody who waits for an answer.
#[derive(Debug)]
pub(super) struct Caller {
    shared: Arc<Shared>,
    answer: watch::Receiver<State>,
}

impl Idempotency {
    /// The request ids of `log`.
    pub(crate) fn new(log: RequestLog, retention: Retention, linger: Duration) -> Arc<Self> {
        let idempotency = Arc::new(Self {
            log,
            retention,
            linger,
            going: Mutex::default(),
            claims: AtomicU32::new(0),
        });
        let weak = Arc::downgrade(&idempotency);
        task::spawn("retention of request ids", async move {
            while let Some(idempotency) = weak.upgrade() {
                idempotency.retain().await;
                drop(idempotency);
                sleep(TIME_BETWEEN).await;
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
    pub(super) async fn claim(self: &Arc<Self>, key: Key, asked: Asked) -> Result<Claimed, Error> {
        loop {
            let shared = match self.join(&key, &asked)? {
                Joined::First(ticket) => {
                    // In a task of its own: a caller who goes away must not leave it unknown whether
                    // the log holds the claim.
                    let claim = task::spawn_tracked("claim", ticket.claim(asked));
                    return claim.await.map_err(Error::internal)?;
                }
                Joined::Going(caller) => caller,
            };
            if let Some(answer) = shared.wait().await {
                return Ok(Claimed::Answered {
                    answer,
                    is_recent: true,
                });
            }
        }
    }

    /// As [`Idempotency::claim`], for work that can tell what was done of it: it is nobody's loss when the
    /// daemon died meanwhile.
    pub(super) async fn resume(self: &Arc<Self>, key: Key, asked: Asked) -> Result<Resumed, Error> {
        loop {
            let shared = match self.join(&key, &asked)? {
                Joined::First(ticket) => {
                    let resume = task::spawn_tracked("claim", ticket.resume(asked));
                    return resume.await.map_err(Error::internal)?;
                }
                Joined::Going(caller) => caller,
            };
            if let Some(answer) = shared.wait().await {
                return Ok(Resumed::Answered(answer));
            }
        }
    }

    fn join(self: &Arc<Self>, key: &Key, asked: &Asked) -> Result<Joined, Error> {
        let mut going = self.going();
        if let Some(shared) = going.get(key) {
            same(key, asked, &shared.asked)?;
            return Ok(Joined::Going(Caller::new(shared)));
        }
        let shared = Arc::new(Shared {
            asked: asked.clone(),
            answer: watch::Sender::new(State::Going),
            callers: watch::Sender::new(0),
        });
        going.insert(key.clone(), Arc::clone(&shared));
        Ok(Joined::First(Ticket {
            owner: Arc::clone(self),
            key: key.clone(),
            shared,
            is_open: true,
        }))
    }

    /// Lets the next one claim it, and tells those who wait.
    fn close(&self, key: &Key, shared: &Shared, state: State) {
        self.going().remove(key);
        shared.answer.send_replace(state);
    }

    fn going(&self) -> MutexGuard<'_, HashMap<Key, Arc<Shared>>> {
        self.going.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks from time to time whether too much is kept.
    fn count_claim(self: &Arc<Self>) {
        let between = (self.retention.number / 10).clamp(1, CLAIMS_BETWEEN);
        if self.claims.fetch_add(1, Ordering::Relaxed) % between == between - 1 {
            let idempotency = Arc::clone(self);
            task::spawn("retention of request ids", async move {
                idempotency.retain().await;
            });
        }
    }

    async fn retain(&self) {
        if let Err(error) = self.log.retain(self.retention).await {
            tracing::warn!(%error, "old request ids could not be removed");
        }
    }
}

enum Joined {
    First(Ticket),
    Going(Caller),
}

impl Ticket {
    async fn find(&mut self, asked: &Asked) -> Result<Found, Error> {
        let found = self.owner.log.claim(self.key.clone(), asked.clone()).await;
        let found = found.inspect_err(|_| self.forget());
        found.map_err(|error| of_database(&error))
    }

    async fn resume(mut self, asked: Asked) -> Result<Resumed, Error> {
        let (before, answer) = match self.find(&asked).await? {
            Found::New => {
                self.owner.count_claim();
                return Ok(Resumed::Ours {
                    ticket: self,
                    is_unfinished: false,
                });
            }
            Found::Unanswered { asked: before, .. } => (before, None),
            Found::Answered {
                asked: before,
                answer,
                ..
            } => (before, Some(answer)),
        };
        // What is in the log already is not given back.
        let is_same = same(&self.key, &asked, &before);
        match answer {
            None if is_same.is_ok() => Ok(Resumed::Ours {
                ticket: self,
                is_unfinished: true,
            }),
            answer => {
                self.forget();
                is_same?;
                answer
                    .map(Resumed::Answered)
                    .ok_or_else(|| Error::internal("a request is neither answered nor another one"))
            }
        }
    }

    async fn claim(mut self, asked: Asked) -> Result<Claimed, Error> {
        match self.find(&asked).await? {
            Found::New => {
                self.owner.count_claim();
                Ok(Claimed::Ours(self))
            }
            // What is in the log already is none of this ticket's.
            Found::Answered {
                asked: before,
                answer,
                is_recent,
            } => {
                self.forget();
                same(&self.key, &asked, &before)?;
                Ok(Claimed::Answered { answer, is_recent })
            }
            Found::Unanswered {
                asked: before,
                step,
            } => {
                self.forget();
                same(&self.key, &asked, &before)?;
                Ok(Claimed::Lost(step))
            }
        }
    }

    /// Says which step of its session the work is.
    pub(super) async fn begin(&self, step: u64) -> Result<(), Error> {
        let begun = self.owner.log.begin(self.key.clone(), step).await;
        begun.map_err(|error| of_database(&error))
    }

    /// Somebody who waits for the answer.
    pub(super) fn caller(&self) -> Caller {
        Caller::new(&self.shared)
    }

    /// Waits until nobody has waited for a while. May be cancelled.
    pub(super) async fn left_alone(&self) {
        let mut callers = self.shared.callers.subscribe();
        loop {
            // It cannot close: this ticket holds the sender.
            drop(callers.wait_for(|callers| *callers == 0).await);
            tokio::select! {
                () = sleep(self.owner.linger) => return,
                _somebody = callers.wait_for(|callers| *callers > 0) => {}
            }
        }
    }

    /// Keeps the answer, if `keep`, and tells all who wait.
    pub(super) async fn answer(mut self, answer: Bytes, keep: bool) {
        self.is_open = false;
        let key = self.key.clone();
        let kept = match keep {
            true => self.owner.log.answer(key, answer.clone()).await,
            false => self.owner.log.release(key).await,
        };
        if let Err(error) = kept {
            // A repeat will learn that it is not known how it ended.
            tracing::error!(%error, "the answer to a request id could not be kept");
        }
        self.owner
            .close(&self.key, &self.shared, State::Answered(answer));
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
        let (owner, key, shared) = (
            Arc::clone(&self.owner),
            self.key.clone(),
            Arc::clone(&self.shared),
        );
        task::spawn_tracked("release of a request id", async move {
            if let Err(error) = owner.log.release(key.clone()).await {
                tracing::error!(%error, "a request id could not be given back");
            }
            owner.close(&key, &shared, State::Released);
        });
    }
}

impl Caller {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.callers.send_modify(|callers| *callers += 1);
        Self {
            answer: shared.answer.subscribe(),
            shared: Arc::clone(shared),
        }
    }

    /// Waits for the answer; none if nothing was done.
    pub(super) async fn wait(mut self) -> Option<Bytes> {
        let state = self
            .answer
            .wait_for(|state| !matches!(state, State::Going))
            .await;
        match state.as_deref() {
            Ok(State::Answered(answer)) => Some(answer.clone()),
            Ok(State::Going | State::Released) | Err(_) => None,
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.shared.callers.send_modify(|callers| *callers -= 1);
    }
}

/// Refuses a request id that was used for something else.
fn same(key: &Key, asked: &Asked, before: &Asked) -> Result<(), Error> {
    let mut differences = Vec::new();
    if asked.method != before.method {
        differences.push(format!("its method was {}", before.method));
    }
    if asked.session != before.session {
        differences.push("its session was another".to_owned());
    }
    if differences.is_empty() && asked.fingerprint != before.fingerprint {
        differences.push("its request message was another".to_owned());
    }
    if differences.is_empty() {
        return Ok(());
    }
    let text = format!(
        "jig-request-id {:?} was that of another call ({}): give each call an id of its own, and repeat it unchanged",
        key.id,
        differences.join(", ")
    );
    Err(Error::new(Reason::RequestIdReused, text).with("request_id", key.id.clone()))
}
