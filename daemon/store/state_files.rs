//! Detects that the state directory was removed or replaced while the daemon runs.
//!
//! Writes to a removed file are lost with the daemon, and the next daemon would repeat completed
//! calls.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, time::sleep};

use crate::daemon::task;

/// Time between two checks without a database change.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Files that must stay in place. The daemon has them open, so no other file can get their inodes.
#[derive(Debug)]
pub(crate) struct StateFiles {
    files: Vec<(PathBuf, FileIdentity)>,
    lost: watch::Sender<bool>,
}

#[derive(Debug, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl StateFiles {
    /// Watches those of `paths` that exist.
    pub(super) fn new(paths: impl IntoIterator<Item = PathBuf>) -> io::Result<Self> {
        let mut files = Vec::new();
        for path in paths {
            match file_identity(&path) {
                Ok(identity) => files.push((path, identity)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { files, lost: watch::Sender::new(false) })
    }

    /// Whether any file was removed or replaced. Logs each change of the result. Blocks for
    /// as long as stat(2) does.
    pub(crate) fn check_lost(&self) -> bool {
        let lost_file = self.files.iter().find(|(path, opened)| {
            file_identity(path).map_or(true, |identity| identity != *opened)
        });
        let is_lost = lost_file.is_some();
        let changed =
            self.lost.send_if_modified(|lost| std::mem::replace(lost, is_lost) != is_lost);

        match lost_file {
            Some((path, _)) if changed => tracing::error!(
                file = %path.display(),
                remedy = "put it back in place, or restart the daemon, which then starts with the present content",
                "the state directory was removed or replaced: rejecting calls that need it; health is NOT_SERVING"
            ),
            None if changed => tracing::info!("the state directory is in place again"),
            Some(_) | None => {}
        }
        is_lost
    }

    /// Returns a receiver of the last check's result.
    pub(crate) fn subscribe_lost(&self) -> watch::Receiver<bool> {
        self.lost.subscribe()
    }

    /// Spawns a task that checks the files periodically.
    pub(crate) fn spawn_watch(self: Arc<Self>) {
        task::spawn("state files", async move {
            loop {
                sleep(CHECK_INTERVAL).await;
                let files = Arc::clone(&self);
                let checked = task::spawn_blocking(move || files.check_lost()).await;
                if checked.is_err() {
                    return;
                }
            }
        });
    }
}

fn file_identity(path: &Path) -> io::Result<FileIdentity> {
    let metadata = fs::symlink_metadata(path)?;
    Ok(FileIdentity { device: metadata.dev(), inode: metadata.ino() })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn removed_or_replaced_files_are_lost_until_they_are_back() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        fs::create_dir(&state).unwrap();
        let [lock, missing] = ["lock", "missing"].map(|name| state.join(name));
        let _open = File::create(&lock).unwrap();
        let files = StateFiles::new([lock.clone(), missing]).unwrap();
        let lost = files.subscribe_lost();
        assert!(!files.check_lost());
        let aside = directory.path().join("aside");
        fs::rename(&state, &aside).unwrap();
        assert!(files.check_lost());
        assert!(*lost.borrow());
        fs::create_dir(&state).unwrap();
        fs::copy(aside.join("lock"), &lock).unwrap();
        assert!(files.check_lost());
        fs::remove_dir_all(&state).unwrap();
        fs::rename(&aside, &state).unwrap();
        assert!(!files.check_lost());
        assert!(!*lost.borrow());
        fs::remove_file(&lock).unwrap();
        assert!(files.check_lost());
    }
}
