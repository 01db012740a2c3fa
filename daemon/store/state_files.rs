//! Whether the state directory is still where the daemon opened it. One that was removed or replaced
//! takes what is written to it along, and the next daemon would repeat what this one has done.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, time::sleep};

use crate::daemon::task;

/// Time between looks that no change of the database asks for.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Files that must stay: the daemon has them open, so that no other file can get their inodes.
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
    /// Those of `paths` that exist now.
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

    /// Whether any of them was removed or replaced. The first look that finds so is logged, and the
    /// first that finds them in place again. Blocks for as long as stat(2) does.
    pub(crate) fn check_lost(&self) -> bool {
        let lost = self.files.iter().find(|(path, opened)| {
            let found = file_identity(path);
            found.map_or(true, |found| found != *opened)
        });
        let changed = self.lost.send_if_modified(|are_lost| {
            std::mem::replace(are_lost, lost.is_some()) != lost.is_some()
        });
        match lost {
            Some((path, _)) if changed => tracing::error!(
                file = %path.display(),
                remedy = "put it back where it was, or restart the daemon, which begins with what is there then",
                "the state directory was removed or replaced: calls that need it are refused, and health is NOT_SERVING"
            ),
            None if changed => tracing::info!("the state directory is in place again"),
            Some(_) | None => {}
        }
        lost.is_some()
    }

    /// Whether they are lost, as of the last look.
    pub(crate) fn subscribe_lost(&self) -> watch::Receiver<bool> {
        self.lost.subscribe()
    }

    /// Checks them from time to time.
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
    fn files_that_are_removed_or_replaced_are_lost_until_they_are_back() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        fs::create_dir(&state).unwrap();
        let [lock, missing] = ["lock", "missing"].map(|name| state.join(name));
        let _open = File::create(&lock).unwrap();
        let files = StateFiles::new([lock.clone(), missing]).unwrap();
        let are_lost = files.subscribe_lost();
        assert!(!files.check_lost());
        let aside = folder.path().join("aside");
        fs::rename(&state, &aside).unwrap();
        assert!(files.check_lost());
        assert!(*are_lost.borrow());
        fs::create_dir(&state).unwrap();
        fs::copy(aside.join("lock"), &lock).unwrap();
        assert!(files.check_lost());
        fs::remove_dir_all(&state).unwrap();
        fs::rename(&aside, &state).unwrap();
        assert!(!files.check_lost());
        assert!(!*are_lost.borrow());
        fs::remove_file(&lock).unwrap();
        assert!(files.check_lost());
    }
}
