//! Reloads the files of TLS when they change, and on SIGHUP.
//!
//! Certificates and their keys are separate files, so a pair is inconsistent while it is being
//! replaced. The daemon waits until the files are unchanged for a moment. Files that are invalid
//! then change nothing: the credentials in use stay.

use std::{
    collections::BTreeSet,
    io,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::{
    fs::inotify::{self, CreateFlags, WatchFlags},
    io::Errno,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::Mutex,
    time::{Instant, timeout_at},
};

use super::privileges::parent_dir;
use crate::daemon::{
    config::{WorkspaceConfig, exposure::symlink_chain, reload::read_tls_files},
    server::tls::ListenerTls,
    sys::readiness::watch_readable,
    task,
};

/// Time without a change after which a set of files counts as complete.
const SETTLE_TIME: Duration = Duration::from_millis(300);
/// Longest wait for [`SETTLE_TIME`], in a directory in which files change all the time.
const MAX_SETTLE_TIME: Duration = Duration::from_secs(5);
/// Buffer of inotify(7): some events with names of up to 255 bytes.
const EVENT_BUFFER_BYTES: usize = 4096;

/// Reloads the credentials of all TLS listeners.
#[derive(Debug, Clone)]
pub(super) struct TlsReloader {
    listeners: Arc<[Arc<ListenerTls>]>,
    workspaces: Arc<[WorkspaceConfig]>,
    /// The problems of the last reload, so that each is logged once.
    problems: Arc<Mutex<BTreeSet<String>>>,
}

impl TlsReloader {
    pub(super) fn new(listeners: &[Arc<ListenerTls>], workspaces: Arc<[WorkspaceConfig]>) -> Self {
        Self { listeners: listeners.into(), workspaces, problems: Arc::default() }
    }

    /// Reads all files again. Logs their problems, unless the last reload had the same, and returns
    /// them.
    pub(super) async fn reload(&self) -> BTreeSet<String> {
        // Held until the end: of two reloads at one time, the later one must win.
        let mut known_problems = self.problems.lock().await;
        let (listeners, workspaces) = (Arc::clone(&self.listeners), Arc::clone(&self.workspaces));
        let reloaded = task::spawn_blocking(move || {
            let mut problems = BTreeSet::new();
            for listener in listeners.iter() {
                match read_tls_files(listener.files(), &workspaces) {
                    Ok(credentials) => listener.replace(credentials),
                    Err(found) => problems.extend(found),
                }
            }
            problems
        });
        let problems = reloaded.await.unwrap_or_else(|panic| BTreeSet::from([panic.to_string()]));

        for problem in problems.difference(&known_problems) {
            tracing::error!(
                problem,
                "the TLS files cannot be reloaded: the certificate in use stays in effect"
            );
        }
        known_problems.clone_from(&problems);
        problems
    }

    /// Starts a task that reloads the files when they change. Does nothing without TLS.
    pub(super) fn spawn_watch(self) {
        if self.listeners.is_empty() {
            return;
        }
        task::spawn("TLS files", async move {
            if let Err(error) = self.watch().await {
                tracing::warn!(
                    %error,
                    remedy = "send SIGHUP after each change, or raise fs.inotify.max_user_instances",
                    "changes of the TLS files cannot be watched"
                );
            }
        });
    }

    async fn watch(&self) -> io::Result<()> {
        let watch = DirectoryWatch::new()?;
        loop {
            // A replaced link can lead to another directory.
            for directory in self.directories() {
                watch.add(&directory)?;
            }
            // The files may have changed before the watch began.
            self.reload().await;

            watch.wait().await?;
            let end = Instant::now() + MAX_SETTLE_TIME;
            while let Ok(changed) =
                timeout_at(end.min(Instant::now() + SETTLE_TIME), watch.wait()).await
            {
                changed?;
            }
        }
    }

    /// The directories of the files and of the links that lead to them.
    fn directories(&self) -> BTreeSet<PathBuf> {
        let paths = self.listeners.iter().flat_map(|listener| listener.files().paths());
        let chains = paths.flat_map(symlink_chain);
        chains.filter_map(|path| parent_dir(&path).map(Path::to_owned)).collect()
    }
}

/// Reports changes of the entries of directories (inotify(7)).
struct DirectoryWatch(AsyncFd<OwnedFd>);

impl DirectoryWatch {
    fn new() -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self(watch_readable(inotify)?))
    }

    /// Adds a directory, unless it is watched already or does not exist now.
    fn add(&self, directory: &Path) -> io::Result<()> {
        let events = WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::CREATE
            | WatchFlags::ATTRIB
            | WatchFlags::ONLYDIR;
        match inotify::add_watch(self.0.get_ref(), directory, events) {
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Waits for events, and discards them: the files are compared with their earlier content.
    async fn wait(&self) -> io::Result<()> {
        self.0
            .async_io(Interest::READABLE, |inotify| {
                let mut buffer = [MaybeUninit::uninit(); EVENT_BUFFER_BYTES];
                rustix::io::read(inotify, &mut buffer)?;
                Ok(())
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    async fn has_changed(watch: &DirectoryWatch) -> bool {
        tokio::time::timeout(Duration::from_secs(10), watch.wait()).await.is_ok()
    }

    #[tokio::test]
    async fn each_way_to_replace_a_file_is_a_change() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let watch = DirectoryWatch::new().unwrap();
        watch.add(directory.path()).unwrap();
        watch.add(directory.path()).unwrap();
        watch.add(&path("none")).unwrap();

        fs::write(path("cert.pem"), "1").unwrap();
        assert!(has_changed(&watch).await);
        fs::write(path("cert.pem"), "2").unwrap();
        assert!(has_changed(&watch).await);
        fs::rename(path("cert.pem"), path("key.pem")).unwrap();
        assert!(has_changed(&watch).await);
        symlink("key.pem", path("..data")).unwrap();
        assert!(has_changed(&watch).await);

        let silent = tokio::time::timeout(Duration::from_millis(20), watch.wait()).await;
        assert!(silent.is_err(), "all events were read");
    }
}
