//! The pool of warm sandboxes of each workspace.
//!
//! One task owns one slot: it asks the slot's keeper for a sandbox, waits until it is built, offers
//! it, and waits until whoever took it is done. Slots are added while calls wait and more are
//! allowed, and end when more than enough are idle.

mod make_slot;

use std::{
    collections::VecDeque,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::unix::AsyncFd,
    sync::{Mutex as AsyncMutex, Notify, mpsc, oneshot},
    time::{sleep, timeout},
};

use super::{
    build::{BUILD_TIMEOUT, SlotBuilder, build_sandbox, build_timed_out, measure_sandbox},
    cgroup::Cgroups,
    channel::Channel,
    kill::SlotOutcome,
    level::IsolationLevel,
    limits::RunLimits,
    protected_files::ProtectedFiles,
    proxy_listener::ProxyListener,
    running::{IdleSandbox, SlotRequest},
    stage::{Stage, StageFailure},
    wire::SandboxIdentity,
};
use crate::daemon::{
    queue::{Limiter, Sharing},
    task,
};

/// Sandboxes kept warm for each workspace from the start: one to take while the other is being
/// made.
const INITIAL_IDLE_SANDBOXES: usize = 2;
/// Most sandboxes kept warm for each workspace when calls become fewer; each costs the kernel 0.4 MB.
const MAX_IDLE_SANDBOXES: usize = 8;
/// Pause until a slot in whose network something is left is looked at again.
const NETNS_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Pause until a workspace for which no sandbox could be made gets another attempt without a call.
const BUILD_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Slots that may die in a row before a caller is told: as many as die with one launcher.
const MAX_UNREPORTED_SLOT_DEATHS: u32 = 64;

/// The sandboxes of one workspace.
#[derive(Debug)]
pub(crate) struct SandboxPool {
    workspace: usize,
    max_slots: usize,
    /// Who may have one: as many as there may be slots, in turn.
    pub(super) limiter: Arc<Limiter>,
    pub(super) context: PoolContext,
    /// What slots are made from, and the generation of the protected files that it has mounted.
    template: AsyncMutex<Option<(Channel, u64)>>,
    pub(super) protected_files: ProtectedFiles,
    state: Mutex<PoolState>,
    quarantined: AtomicU32,
}

/// What all pools have in common.
#[derive(Debug, Clone)]
pub(super) struct PoolContext {
    /// What sandboxes are built for.
    pub(super) limits: RunLimits,
    /// Where each run gets a cgroup.
    pub(super) cgroups: Option<Arc<Cgroups>>,
    pub(super) keeper: Arc<AsyncMutex<Channel>>,
    /// Whether the keeper has died, so that nothing can be made any more.
    pub(super) keeper_died: Arc<AtomicBool>,
    /// Notified when a pool begins or ceases to fail.
    pub(super) failing_changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct PoolState {
    idle: Vec<IdleSandbox>,
    waiters: VecDeque<oneshot::Sender<Result<IdleSandbox, StageFailure>>>,
    /// Slots that exist or are being made.
    slot_count: usize,
    /// Slots whose sandbox was given away.
    in_use: usize,
    identity: Option<SandboxIdentity>,
    /// The isolation that sandboxes give; decided before the first call.
    level: IsolationLevel,
    /// Slots that died since one last made a sandbox.
    consecutive_deaths: u32,
    /// Whether the level is decided, and sandboxes of it are to be kept.
    is_level_settled: bool,
    /// Whether there is no slot because none could be made.
    is_failing: bool,
    /// Whether a task waits to try again.
    is_retrying: bool,
    closed: bool,
}

/// A slot, its listener where it has one, and the generation of its template.
type NewSlot = (Channel, Option<Arc<ProxyListener>>, u64);

// === impl Pool ===

impl SandboxPool {
    pub(super) fn new(
        workspace: usize,
        slots_at_most: usize,
        protected_files: ProtectedFiles,
        context: PoolContext,
    ) -> Self {
        Self {
            workspace,
            max_slots: slots_at_most,
            limiter: Limiter::new(slots_at_most, Sharing::Unlimited, usize::MAX),
            context,
            template: AsyncMutex::new(None),
            protected_files,
            state: Mutex::default(),
            quarantined: AtomicU32::new(0),
        }
    }

    /// Sandboxes that wait for a request.
    pub(super) fn idle_count(&self) -> u32 {
        u32::try_from(self.state().idle.len()).unwrap_or(u32::MAX)
    }

    /// Sandboxes with a command in them.
    pub(super) fn in_use_count(&self) -> u32 {
        u32::try_from(self.state().in_use).unwrap_or(u32::MAX)
    }

    /// Sandboxes that are set aside.
    pub(super) fn quarantined_count(&self) -> u32 {
        self.quarantined.load(Ordering::Relaxed)
    }

    /// Ends all slots that wait for a request.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.idle.clear();
    }

    /// Starts over at another level: what was made until now is not used. Only before the first
    /// call, while the level is not decided yet.
    pub(super) async fn restart_at_level(&self, level: IsolationLevel) {
        {
            let mut state = self.state();
            state.level = level;
            // Their slots end, and count themselves out as those that were lent do.
            state.in_use += state.idle.len();
            state.idle.clear();
        }
        *self.template.lock().await = None;
    }

    /// Keeps sandboxes of the level that was found from now on.
    pub(super) fn settle_level(self: &Arc<Self>) {
        self.state().is_level_settled = true;
        self.start_initial_slots();
    }

    /// Starts the slots that are kept from the start.
    fn start_initial_slots(self: &Arc<Self>) {
        let missing = {
            let mut state = self.state();
            let wanted = INITIAL_IDLE_SANDBOXES.min(self.max_slots);
            let missing = wanted.saturating_sub(state.slot_count);
            state.slot_count += missing;
            missing
        };
        for _ in 0..missing {
            self.start_slot();
        }
    }

    /// Whether nothing can be made any more, because the keeper has died.
    pub(crate) fn is_keeper_dead(&self) -> bool {
        self.context.keeper_died.load(Ordering::Relaxed)
    }

    /// As whom the sandboxes run, once one was made.
    pub(crate) fn identity(&self) -> Option<SandboxIdentity> {
        self.state().identity
    }

    /// Takes a sandbox, waiting while all are in use. Fails when building one fails.
    pub(super) async fn take_idle(self: &Arc<Self>) -> Result<IdleSandbox, StageFailure> {
        let receiver = {
            let mut state = self.state();
            if let Some(warm) = state.idle.pop() {
                state.in_use += 1;
                return Ok(warm);
            }
            let (sender, receiver) = oneshot::channel();
            state.waiters.retain(|waiting| !waiting.is_closed());
            state.waiters.push_back(sender);
            if state.closed {
                return Err(pool_closed());
            }
            self.start_slot_if_needed(&mut state);
            receiver
        };
        receiver.await.unwrap_or_else(|_| Err(pool_closed()))
    }

    fn start_slot(self: &Arc<Self>) {
        let pool = Arc::clone(self);
        task::spawn("sandbox slot", async move {
            let kept = pool.serve_slot().await;
            if let Err(failure) = &kept {
                tracing::warn!(stage = failure.stage.name(), %failure, "sandbox slot lost");
                pool.fail_oldest_waiter(failure);
            }
            if let (0, Err(failure)) = (pool.on_slot_ended(), kept) {
                pool.retry_later(&failure);
            }
        });
    }

    /// Tells whoever waits longest why no sandbox could be made; each slot that fails tells one.
    /// That a process has died is told only when it goes on so: another slot may do better.
    fn fail_oldest_waiter(&self, failure: &StageFailure) {
        let mut state = self.state();
        if failure.is_disconnection() && !self.context.keeper_died.load(Ordering::Relaxed) {
            state.consecutive_deaths += 1;
            if state.consecutive_deaths <= MAX_UNREPORTED_SLOT_DEATHS {
                return;
            }
        }
        while let Some(waiting) = state.waiters.pop_front() {
            if waiting.send(Err(failure.clone())).is_ok() {
                break;
            }
        }
    }

    /// Counts a slot out, and starts another for calls that would otherwise wait for nothing. Returns
    /// how many there are then.
    fn on_slot_ended(self: &Arc<Self>) -> usize {
        let mut state = self.state();
        state.slot_count -= 1;
        state.waiters.retain(|waiting| !waiting.is_closed());
        self.start_slot_if_needed(&mut state);
        state.slot_count
    }

    /// Whether it has no sandbox because none can be made.
    pub(super) fn is_failing(&self) -> bool {
        self.state().is_failing
    }

    pub(super) fn set_failing(&self, is_failing: bool) {
        self.set_failing_in(&mut self.state(), is_failing);
    }

    fn set_failing_in(&self, state: &mut PoolState, is_failing: bool) {
        if state.is_failing != is_failing {
            state.is_failing = is_failing;
            self.context.failing_changed.notify_one();
        }
    }

    /// Tries again after a pause: a daemon that is not ready is sent no call that would. That a process
    /// has died says nothing about the next one.
    fn retry_later(self: &Arc<Self>, failure: &StageFailure) {
        let may_be_chance = {
            let mut state = self.state();
            if !state.is_level_settled || state.is_retrying {
                return;
            }
            state.is_retrying = true;
            failure.is_disconnection() && state.consecutive_deaths <= MAX_UNREPORTED_SLOT_DEATHS
        };
        if !may_be_chance {
            self.set_failing(true);
        }
        let pool = Arc::clone(self);
        task::spawn("sandbox retry", async move {
            sleep(BUILD_RETRY_INTERVAL).await;
            let is_over = {
                let mut state = pool.state();
                state.is_retrying = false;
                state.closed || pool.is_keeper_dead()
            };
            if !is_over {
                pool.start_initial_slots();
            }
        });
    }

    /// Starts a slot if a call waits that no slot is coming for, and another slot may be made.
    fn start_slot_if_needed(self: &Arc<Self>, state: &mut PoolState) {
        let coming = state.slot_count.saturating_sub(state.in_use);
        if !state.closed && coming < state.waiters.len() && state.slot_count < self.max_slots {
            state.slot_count += 1;
            self.start_slot();
        }
    }

    /// Waits while another run holds a socket in a slot's network. The slot counts as lent: others
    /// take its place, but no more than there may be, so that nobody can have networks without end.
    async fn wait_for_netns(self: &Arc<Self>) {
        {
            let mut state = self.state();
            state.in_use += 1;
            self.start_slot_if_needed(&mut state);
        }
        sleep(NETNS_RETRY_INTERVAL).await;
        self.on_sandbox_returned();
    }

    /// Has a slot made, in a task of its own, which is polled to its end: were it cancelled between a
    /// question and its answer, the next question would get that answer.
    async fn make_slot_uncancelled(self: &Arc<Self>) -> Result<NewSlot, StageFailure> {
        let pool = Arc::clone(self);
        let made = task::spawn("make slot", async move { pool.make_slot().await });
        match timeout(BUILD_TIMEOUT, made).await {
            Ok(Ok(made)) => made,
            Ok(Err(_)) | Err(_) => Err(build_timed_out(Stage::SlotNamespace)),
        }
    }

    /// Keeps one slot until it is not wanted any more or is lost.
    async fn serve_slot(self: &Arc<Self>) -> Result<(), StageFailure> {
        let level = self.state().level;
        let (asks, mut asked) = mpsc::channel(1);
        let (mut slot, entrance, generation) = self.make_slot_uncancelled().await?;
        let mut lending = SlotBuilder {
            slot_requests: asks,
            proxy_listener: entrance,
            level,
            generation,
            cgroups: self.context.cgroups.clone(),
            keeper: Arc::clone(&self.context.keeper),
        };
        loop {
            let (warm, mut told) = match build_sandbox(&slot, &lending, &self.context.limits).await
            {
                Err(failure) if failure.is_netns_in_use() => {
                    self.wait_for_netns().await;
                    continue;
                }
                refilled => refilled?,
            };
            if !self.offer(warm) {
                return Ok(());
            }
            // The sender is dropped without a word when a warm sandbox is dropped: the pool is
            // closed.
            let fate = loop {
                tokio::select! {
                    biased;
                    fate = &mut told => break fate,
                    Some(ask) = asked.recv() => match ask {
                        SlotRequest::Measure { bounds, reply } => {
                            let measure = match measure_sandbox(&slot, bounds).await {
                                Ok(measure) => measure,
                                Err(failure) => {
                                    self.on_sandbox_returned();
                                    return Err(failure);
                                }
                            };
                            // Whoever asked may have what it wanted to know.
                            let _unheard = reply.send(measure);
                        }
                        SlotRequest::Rebuild { limits, reply } => {
                            match build_sandbox(&slot, &lending, &limits).await {
                                Ok((warm, new)) => {
                                    told = new;
                                    if reply.send(Ok(warm)).is_err() {
                                        tracing::debug!("a sandbox was built for nobody");
                                    }
                                }
                                Err(failure) => {
                                    let _unheard = reply.send(Err(failure.clone()));
                                    self.on_sandbox_returned();
                                    return Err(failure);
                                }
                            }
                        }
                    },
                }
            };
            self.on_sandbox_returned();
            match fate {
                Ok(SlotOutcome::Free) if level.reuses_network_namespaces() => {}
                Ok(SlotOutcome::Free) => {
                    (slot, lending.proxy_listener, lending.generation) =
                        self.make_slot_uncancelled().await?;
                }
                Ok(SlotOutcome::Quarantined(sandbox)) => {
                    self.quarantine(sandbox);
                    return Ok(());
                }
                Err(_) => return Ok(()),
            }
        }
    }

    /// Counts a sandbox in that was lent: one that was dropped without a word was lent too, unless it
    /// was still warm; then the pool is closed.
    fn on_sandbox_returned(&self) {
        let mut state = self.state();
        if !state.closed {
            state.in_use -= 1;
        }
    }

    /// Counts a sandbox that could not be killed, until it is gone.
    fn quarantine(self: &Arc<Self>, sandbox: Option<AsyncFd<OwnedFd>>) {
        let workspace = self.workspace;
        self.quarantined.fetch_add(1, Ordering::Relaxed);
        tracing::error!(workspace, "a sandbox could not be killed and is set aside");
        let Some(sandbox) = sandbox else {
            return;
        };
        let pool = Arc::clone(self);
        task::spawn("sandbox set aside", async move {
            if sandbox.readable().await.is_ok() {
                pool.quarantined.fetch_sub(1, Ordering::Relaxed);
                tracing::info!(workspace, "a sandbox that was set aside is gone");
            }
        });
    }

    /// Gives a sandbox to who waits longest, or keeps it warm. Answers whether it was wanted.
    fn offer(&self, mut warm: IdleSandbox) -> bool {
        let mut state = self.state();
        state.consecutive_deaths = 0;
        if state.closed || warm.level != state.level {
            return false;
        }
        self.set_failing_in(&mut state, false);
        if self.protected_files.generation() != warm.generation {
            return false;
        }
        while let Some(waiting) = state.waiters.pop_front() {
            match waiting.send(Ok(warm)) {
                Ok(()) => {
                    state.in_use += 1;
                    return true;
                }
                Err(Ok(unwanted)) => warm = unwanted,
                Err(Err(_)) => return false,
            }
        }
        if state.idle.len() >= MAX_IDLE_SANDBOXES {
            return false;
        }
        state.idle.push(warm);
        true
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn pool_closed() -> StageFailure {
    StageFailure::other(Stage::Launcher, "the daemon is shutting down")
}
