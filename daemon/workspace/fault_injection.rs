//! Places at which a test has the daemon die, to see that the next one mends what was left.

/// A step of a change of files. In a debug build whose environment has `JIG_DIE_AT_STEP=N`, the
/// process is killed at the Nth step; a release build has nothing here.
#[cfg(debug_assertions)]
pub(super) fn step() {
    use std::sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    };

    static AT: OnceLock<Option<u64>> = OnceLock::new();
    static STEPS: AtomicU64 = AtomicU64::new(0);
    let at = AT.get_or_init(|| std::env::var("JIG_DIE_AT_STEP").ok()?.parse().ok());
    if let Some(at) = at
        && STEPS.fetch_add(1, Ordering::Relaxed) + 1 == *at
    {
        let _dead =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        // The signal may come to another thread a moment later: nothing more is done here.
        loop {
            std::thread::park();
        }
    }
}

/// A step of a change of files.
#[cfg(not(debug_assertions))]
pub(super) fn step() {}
