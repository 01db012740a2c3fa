//! Watches the bounds of a workspace while commands write to it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{task::JoinHandle, time::sleep_until};

use crate::daemon::{
    error::Error,
    process::outcome::ResourceLimit,
    task,
    workspace::{CancelToken, FileBound, FileQuota, Workspace},
};

/// Watches one command.
pub(super) struct BoundsWatch {
    /// `None` without bounds, or if the kernel enforces them.
    quota: Option<Arc<FileQuota>>,
    next_measurement: Instant,
    /// The measurement in progress.
    pending: Option<JoinHandle<(Option<FileBound>, Duration)>>,
}

impl BoundsWatch {
    pub(super) fn new(workspace: &Workspace) -> Self {
        let quota = workspace.file_quota().filter(|quota| quota.is_watched()).cloned();
        let interval = quota.as_ref().map(|quota| quota.first_interval());
        Self {
            quota,
            next_measurement: Instant::now() + interval.unwrap_or_default(),
            pending: None,
        }
    }

    /// Waits until the workspace exceeds a bound. Cancel safe.
    pub(super) async fn wait_until_exceeded(&mut self) -> ResourceLimit {
        let Some(quota) = &self.quota else {
            return std::future::pending().await;
        };
        loop {
            let Some(pending) = &mut self.pending else {
                sleep_until(self.next_measurement.into()).await;
                let quota = Arc::clone(quota);
                let watch = move || quota.watch(&CancelToken::new());
                self.pending = Some(task::spawn_blocking(watch));
                continue;
            };
            let measured = pending.await;
            self.pending = None;
            let Ok((exceeded, interval)) = measured else {
                return std::future::pending().await; // the runtime ends
            };
            match exceeded {
                Some(FileBound::Bytes) => return ResourceLimit::WorkspaceBytes,
                Some(FileBound::Files) => return ResourceLimit::WorkspaceFiles,
                None => self.next_measurement = Instant::now() + interval,
            }
        }
    }
}

/// Fails with `NO_SPACE` if the workspace exceeds its bounds, so that no command may start.
pub(super) async fn check_bounds(workspace: &Workspace) -> Result<(), Error> {
    let Some(quota) = workspace.file_quota().filter(|quota| quota.is_watched()) else {
        return Ok(());
    };
    if quota.is_known_within_bounds() {
        return Ok(());
    }
    let quota = Arc::clone(quota);
    let check = task::spawn_blocking(move || quota.check_command(&CancelToken::new()));
    check.await.map_err(Error::internal)?
}

/// Measures the workspace in the background, after a command has ended. The next call then need not.
pub(super) fn measure_later(workspace: &Workspace) {
    if let Some(quota) = workspace.file_quota().filter(|quota| quota.is_watched()) {
        quota.note_ended_command();
        let quota = Arc::clone(quota);
        // An error is in the usage.
        task::spawn_blocking(move || quota.current_usage(&CancelToken::new()).map(drop));
    }
}
