//! Waiting: for conditions, never for time to pass. Nothing else in the tests sleeps.

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

/// "At once", told apart from waiting for a command that sleeps 100 s or 1,000 s, on a machine that
/// is busy with other tests.
pub(crate) const PROMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a condition is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A test's right to the machine. Those that load it take it alone, so that none of the others
/// fails for want of CPU time.
#[derive(Debug)]
#[expect(dead_code, reason = "the guards are held for what dropping them does")]
pub(super) enum MachineLock {
    /// Beside others.
    Shared(OwnedRwLockReadGuard<()>),
    /// Alone.
    Exclusive(OwnedRwLockWriteGuard<()>),
}

impl MachineLock {
    /// Waits for a turn. A test must not wait for a second one while it holds the first.
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

/// How long to wait for what must happen.
pub(crate) fn wait_timeout() -> Duration {
    let seconds = env::var("JIG_TEST_PATIENCE_SEC").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(20))
}

/// Waits until `condition` holds. `what` says what is being waited for.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !condition().await {
        assert!(began.elapsed() < wait_timeout(), "{what}: not within {:?}", wait_timeout());
        sleep(POLL_INTERVAL).await;
    }
}

/// Waits for `future`, which must end within the patience.
pub(crate) async fn promptly<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(wait_timeout(), future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {:?}", wait_timeout()),
    }
}

/// Waits for `future` and calls `probe` again and again meanwhile.
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
