//! The pool of idle sandboxes of each workspace.
//!
//! One task owns one slot: it requests a sandbox from the slot keeper, waits until the sandbox is
//! built, offers it, and waits until the sandbox has been used. The pool adds slots while calls
//! wait and its limit allows more. A slot ends when enough sandboxes are idle.

mod acquire;
mod build;
pub(crate) mod command_pipes;
mod make_slot;
mod serve_slot;
mod warm_shell_check;

use std::{
    collections::VecDeque,
    io,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::unix::AsyncFd,
    sync::{Mutex as AsyncMutex, Notify, oneshot},
    time::sleep,
};

use self::{build::BuildCounts, command_pipes::CommandPipes};
use super::{
    cgroup::Cgroups,
    channel::Channel,
    level::IsolationLevel,
    limits::RunLimits,
    plan::CreatedWorkspace,
    protected_files::ProtectedFiles,
    proxy_listener::ProxyListener,
    recycle::WarmShellSwitch,
    running::IdleSandbox,
    stage::{Stage, StageFailure},
    wire::SandboxIdentity,
};
use crate::daemon::{
    queue::{Limiter, Sharing},
    sys::readiness,
    task,
};

/// Idle sandboxes per workspace at the start: one to take while the other is being built.
const INITIAL_IDLE_SANDBOXES: usize = 2;
/// Maximum of idle sandboxes per workspace when calls become fewer. Each costs the kernel 0.4 MB.
const MAX_IDLE_SANDBOXES: usize = 8;
/// Pause before a workspace that got no sandbox makes another attempt without a call.
const BUILD_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Slots that may die in a row before a caller gets an error: as many as die with one launcher.
const MAX_UNREPORTED_SLOT_DEATHS: u32 = 64;

#[derive(Debug)]
pub(crate) struct SandboxPool {
    /// Number of the workspace in messages.
    workspace: usize,
    /// Set for a workspace that was created while the daemon runs.
    created: Option<CreatedWorkspace>,
    max_slots: usize,
    /// Permits to hold a sandbox: one per slot, granted fairly.
    limiter: Arc<Limiter>,
    context: PoolContext,
    template: AsyncMutex<Option<PoolTemplate>>,
    protected_files: ProtectedFiles,
    state: Mutex<PoolState>,
    pipes: CommandPipes,
    quarantined: AtomicU32,
}

/// The process that makes slots. Its end is the end of everything made from it.
#[derive(Debug)]
struct PoolTemplate {
    channel: Channel,
    /// The generation of protected files that it has mounted.
    generation: u64,
    pidfd: OwnedFd,
}

/// What all pools have in common.
#[derive(Debug, Clone)]
pub(super) struct PoolContext {
    /// Default limits of runs, for which idle sandboxes are built.
    pub(super) limits: RunLimits,
    /// Whether consecutive runs of one caller may use one sandbox.
    pub(super) recycle: bool,
    /// Whether commands of recycled sandboxes may start in a warm shell.
    pub(super) warm_shells: Arc<WarmShellSwitch>,
    /// Where runs get cgroups, if the host has them.
    pub(super) cgroups: Option<Arc<Cgroups>>,
    pub(super) keeper: Arc<AsyncMutex<Channel>>,
    /// The pools can build no sandbox once the keeper has died.
    pub(super) keeper_died: Arc<AtomicBool>,
    pub(super) failing_changed: Arc<Notify>,
    pub(super) build_counts: Arc<BuildCounts>,
}

#[derive(Debug, Default)]
struct PoolState {
    idle: Vec<IdleSandbox>,
    waiters: VecDeque<oneshot::Sender<Result<IdleSandbox, StageFailure>>>,
    /// Slots that exist or are being made.
    slot_count: usize,
    /// Slots whose sandbox has been acquired.
    in_use: usize,
    identity: Option<SandboxIdentity>,
    /// The isolation level of the sandboxes, decided before the first call.
    level: IsolationLevel,
    /// Slots that died since a slot last made a sandbox.
    consecutive_deaths: u32,
    /// Whether the level is decided. The pool has idle sandboxes only then.
    is_level_decided: bool,
    /// Whether the pool has no slot because none could be made.
    is_failing: bool,
    is_retrying: bool,
    is_closed: bool,
}

/// A slot, its proxy listener if it has one, and the generation of its template.
type NewSlot = (Channel, Option<Arc<ProxyListener>>, u64);

// === impl SandboxPool ===

impl SandboxPool {
    pub(super) fn new(
        workspace: usize,
        created: Option<CreatedWorkspace>,
        max_slots: usize,
        protected_files: ProtectedFiles,
        context: PoolContext,
    ) -> Self {
        Self {
            workspace,
            created,
            max_slots,
            limiter: Limiter::new(max_slots, Sharing::Unlimited, usize::MAX),
            context,
            template: AsyncMutex::new(None),
            protected_files,
            state: Mutex::default(),
            pipes: CommandPipes::default(),
            quarantined: AtomicU32::new(0),
        }
    }

    pub(super) fn idle_count(&self) -> u32 {
        u32::try_from(self.state().idle.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn in_use_count(&self) -> u32 {
        u32::try_from(self.state().in_use).unwrap_or(u32::MAX)
    }

    /// Number of quarantined sandboxes: killed, but not gone yet.
    pub(super) fn quarantined_count(&self) -> u32 {
        self.quarantined.load(Ordering::Relaxed)
    }

    /// Closes the pool: drops all idle sandboxes, which ends their slots.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.idle.clear();
    }

    /// Ends all processes of a pool that no call uses. The next call starts them again.
    pub(crate) async fn release_unused(&self) {
        // Held meanwhile: with the template, the slots end that it has made.
        let mut template = self.template.lock().await;
        {
            let mut state = self.state();
            if state.in_use > 0 || state.slot_count > state.idle.len() {
                return;
            }
            // Their slots end. Each decrements `in_use`, as slots of acquired sandboxes do.
            state.in_use += state.idle.len();
            state.idle.clear();
        }
        self.pipes.clear();
        *template = None;
    }

    /// Whether the pool has any process.
    pub(crate) fn has_slots(&self) -> bool {
        self.state().slot_count > 0
    }

    /// Closes the pool, kills all its processes, and waits until the last one is gone.
    pub(crate) async fn end(&self) -> io::Result<()> {
        self.close();
        self.pipes.clear();
        let Some(PoolTemplate { channel, pidfd, .. }) = self.template.lock().await.take() else {
            return Ok(());
        };
        drop(channel);
        // Its process namespace ends with it, before it is reported as ended.
        drop(readiness::watch_readable(pidfd)?.readable().await?);
        Ok(())
    }

    /// Starts over at another level and drops what was built before. Called only before the first
    /// call, while the level is not decided.
    pub(super) async fn restart_at_level(&self, level: IsolationLevel) {
        {
            let mut state = self.state();
            state.level = level;
            // Their slots end. Each decrements `in_use`, as slots of acquired sandboxes do.
            state.in_use += state.idle.len();
            state.idle.clear();
        }
        *self.template.lock().await = None;
    }

    /// Decides the level of this pool, which from then on has idle sandboxes.
    pub(super) fn decide_level(self: &Arc<Self>) {
        self.state().is_level_decided = true;
        self.start_initial_slots();
        self.start_warm_shell_check();
    }

    /// Takes over a level that another pool has proven. The pool has no sandbox before the first call,
    /// or before [`Self::start_initial_slots`].
    pub(crate) fn assume_level(&self, level: IsolationLevel) {
        let mut state = self.state();
        state.level = level;
        state.is_level_decided = true;
    }

    /// Starts slots until the pool has [`INITIAL_IDLE_SANDBOXES`].
    pub(crate) fn start_initial_slots(self: &Arc<Self>) {
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

    pub(crate) fn is_keeper_dead(&self) -> bool {
        self.context.keeper_died.load(Ordering::Relaxed)
    }

    /// The user that the sandboxes run as. Known once a template was started.
    pub(crate) fn identity(&self) -> Option<SandboxIdentity> {
        self.state().identity
    }

    /// Takes an idle sandbox, if possible one for which `fits` is true. Waits while all are in use, and
    /// fails when building one fails.
    pub(super) async fn take_idle(
        self: &Arc<Self>,
        fits: impl Fn(&IdleSandbox) -> bool,
    ) -> Result<IdleSandbox, StageFailure> {
        let receiver = {
            let mut state = self.state();
            let fitting = state.idle.iter().rposition(fits);
            if let Some(last) = state.idle.len().checked_sub(1) {
                state.in_use += 1;
                return Ok(state.idle.remove(fitting.unwrap_or(last)));
            }

            let (sender, receiver) = oneshot::channel();
            state.waiters.retain(|waiter| !waiter.is_closed());
            state.waiters.push_back(sender);
            if state.is_closed {
                return Err(pool_closed_failure());
            }

            self.start_slot_if_needed(&mut state);
            receiver
        };
        receiver.await.unwrap_or_else(|_| Err(pool_closed_failure()))
    }

    fn start_slot(self: &Arc<Self>) {
        let pool = Arc::clone(self);
        task::spawn("sandbox slot", async move {
            let served = pool.serve_slot().await;
            if let Err(failure) = &served
                && !pool.state().is_closed
            {
                tracing::warn!(stage = failure.stage.name(), %failure, "sandbox slot lost");
                pool.fail_oldest_waiter(failure);
            }
            if let (0, Err(failure)) = (pool.on_slot_ended(), served) {
                pool.retry_later(&failure);
            }
        });
    }

    /// Fails the oldest waiter. Each slot that fails fails one waiter.
    ///
    /// The death of a process is reported only after [`MAX_UNREPORTED_SLOT_DEATHS`] in a row:
    /// another slot may succeed.
    fn fail_oldest_waiter(&self, failure: &StageFailure) {
        let mut state = self.state();
        if failure.is_disconnection() && !self.context.keeper_died.load(Ordering::Relaxed) {
            state.consecutive_deaths += 1;
            if state.consecutive_deaths <= MAX_UNREPORTED_SLOT_DEATHS {
                return;
            }
        }

        while let Some(waiter) = state.waiters.pop_front() {
            if waiter.send(Err(failure.clone())).is_ok() {
                break;
            }
        }
    }

    /// Removes a slot from the count and starts another if a call needs it. Returns the number of
    /// slots after that.
    fn on_slot_ended(self: &Arc<Self>) -> usize {
        let mut state = self.state();
        state.slot_count -= 1;
        state.waiters.retain(|waiter| !waiter.is_closed());
        self.start_slot_if_needed(&mut state);
        state.slot_count
    }

    /// Whether the pool has no sandbox because none can be made.
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

    /// Retries after a pause, without waiting for a call: a daemon that is not ready receives none.
    ///
    /// Deaths of processes mark the pool as failing only after [`MAX_UNREPORTED_SLOT_DEATHS`] in a
    /// row, because the next process may live.
    fn retry_later(self: &Arc<Self>, failure: &StageFailure) {
        let may_be_transient = {
            let mut state = self.state();
            if !state.is_level_decided || state.is_retrying {
                return;
            }
            state.is_retrying = true;
            failure.is_disconnection() && state.consecutive_deaths <= MAX_UNREPORTED_SLOT_DEATHS
        };
        if !may_be_transient {
            self.set_failing(true);
        }

        let pool = Arc::clone(self);
        task::spawn("sandbox retry", async move {
            sleep(BUILD_RETRY_INTERVAL).await;
            let is_closed = {
                let mut state = pool.state();
                state.is_retrying = false;
                state.is_closed || pool.is_keeper_dead()
            };
            if !is_closed {
                pool.start_initial_slots();
            }
        });
    }

    /// Starts a slot if a call waits that no slot is being prepared for, and the limit allows
    /// another.
    fn start_slot_if_needed(self: &Arc<Self>, state: &mut PoolState) {
        let available = state.slot_count.saturating_sub(state.in_use);
        if !state.is_closed && available < state.waiters.len() && state.slot_count < self.max_slots
        {
            state.slot_count += 1;
            self.start_slot();
        }
    }

    /// Decrements the number of sandboxes in use, unless the pool is closed: then idle sandboxes
    /// were dropped, which were never counted.
    fn on_sandbox_returned(&self) {
        let mut state = self.state();
        if !state.is_closed {
            state.in_use -= 1;
        }
    }

    /// Counts a sandbox as quarantined until it is gone.
    fn quarantine(self: &Arc<Self>, sandbox: Option<AsyncFd<OwnedFd>>) {
        let workspace = self.workspace;
        self.quarantined.fetch_add(1, Ordering::Relaxed);
        tracing::error!(workspace, "a sandbox could not be killed and is quarantined");
        let Some(sandbox) = sandbox else {
            return;
        };

        let pool = Arc::clone(self);
        task::spawn("quarantined sandbox", async move {
            if sandbox.readable().await.is_ok() {
                pool.quarantined.fetch_sub(1, Ordering::Relaxed);
                tracing::info!(workspace, "a quarantined sandbox is gone");
            }
        });
    }

    /// Hands a sandbox to the oldest waiter, or keeps it idle. Returns whether the pool accepted
    /// it.
    fn offer(&self, mut sandbox: IdleSandbox) -> bool {
        let mut state = self.state();
        state.consecutive_deaths = 0;
        if state.is_closed || sandbox.level != state.level {
            return false;
        }

        self.set_failing_in(&mut state, false);
        if self.protected_files.generation() != sandbox.generation {
            return false;
        }

        while let Some(waiter) = state.waiters.pop_front() {
            match waiter.send(Ok(sandbox)) {
                Ok(()) => {
                    state.in_use += 1;
                    return true;
                }
                Err(Ok(rejected)) => sandbox = rejected,
                Err(Err(_)) => return false,
            }
        }

        if state.idle.len() >= MAX_IDLE_SANDBOXES {
            return false;
        }
        state.idle.push(sandbox);
        true
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn pool_closed_failure() -> StageFailure {
    StageFailure::other(Stage::Launcher, "the daemon is shutting down")
}
