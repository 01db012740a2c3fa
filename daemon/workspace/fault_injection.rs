//! Points at which a test kills the daemon, to check that the next daemon recovers.

/// Marks a step of a change of files or of workspaces. In a debug build with `JIG_DIE_AT_STEP=N` in the environment,
/// kills the process at the Nth step. A release build does nothing.
#[cfg(debug_assertions)]
pub(crate) fn step() {
    use std::sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    };

    static FATAL_STEP: OnceLock<Option<u64>> = OnceLock::new();
    static STEPS: AtomicU64 = AtomicU64::new(0);
    let fatal_step = FATAL_STEP.get_or_init(|| std::env::var("JIG_DIE_AT_STEP").ok()?.parse().ok());
    if let Some(fatal_step) = fatal_step
        && STEPS.fetch_add(1, Ordering::Relaxed) + 1 == *fatal_step
    {
        let _killed =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        // The signal may be delivered to another thread first: this one must do nothing more.
        loop {
            std::thread::park();
        }
    }
}

/// Does nothing in a release build.
#[cfg(not(debug_assertions))]
pub(crate) fn step() {}
