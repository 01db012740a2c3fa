//! Waits for conditions. Tests use these instead of `sleep`.
//!
//! A few tests must sleep, and say why: they check an advertised delay, act at a random moment,
//! pace a measurement, or let a time limit pass.

use std::{
    env,
    future::Future,
    pin::pin,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use tokio::{
    sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock},
    time::{sleep, timeout},
};

/// Maximum duration of a reaction that a test measures, on a machine that is busy with other tests.
/// Well below the 100 s or 1,000 s that a command sleeps. [`wait_timeout`] limits waits instead.
pub(crate) const MAX_REACTION_TIME: Duration = Duration::from_secs(5);
/// Interval between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A test's lock on the machine. A test that loads the machine holds it exclusively, so that no
/// other test fails for lack of CPU time.
#[derive(Debug)]
#[expect(dead_code, reason = "a guard releases its lock when it is dropped")]
pub(super) enum MachineLock {
    Shared(OwnedRwLockReadGuard<()>),
    Exclusive(OwnedRwLockWriteGuard<()>),
}

impl MachineLock {
    /// Waits for the lock. A test must not wait for a second lock while it holds the first.
    pub(super) async fn acquire(exclusive: bool) -> Self {
        static MACHINE_LOCK: OnceLock<Arc<RwLock<()>>> = OnceLock::new();
        let machine = Arc::clone(MACHINE_LOCK.get_or_init(Arc::default));
        if exclusive {
            Self::Exclusive(machine.write_owned().await)
        } else {
            Self::Shared(machine.read_owned().await)
        }
    }
}

/// Time limit of all waits: `JIG_TEST_TIMEOUT_SEC`, or 20 seconds.
pub(crate) fn wait_timeout() -> Duration {
    let seconds = env::var("JIG_TEST_TIMEOUT_SEC").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(20))
}

/// Waits until `condition` holds, for at most [`wait_timeout`]. `what` names the condition in the
/// failure message.
pub(crate) async fn eventually(what: &str, condition: impl AsyncFnMut() -> bool) {
    eventually_within(wait_timeout(), what, condition).await;
}

/// As [`eventually`], for at most `limit`.
pub(crate) async fn eventually_within(
    limit: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> bool,
) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        sleep(POLL_INTERVAL).await;
    }
}

/// Awaits `future`, for at most [`wait_timeout`]. `what` names the event in the failure message.
pub(crate) async fn promptly<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(wait_timeout(), future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {:?}", wait_timeout()),
    }
}

/// Awaits `future` and calls `probe` repeatedly until then.
pub(crate) async fn probe_while_waiting<T>(
    future: impl Future<Output = T>,
    mut probe: impl FnMut(),
) -> T {
    let mut future = pin!(future);
    loop {
        probe();
        if let Ok(value) = timeout(POLL_INTERVAL, &mut future).await {
            return value;
        }
    }
}
