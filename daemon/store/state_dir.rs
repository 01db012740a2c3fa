//! The state directory. One daemon at a time holds it, by a lock on its file `lock`.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use super::{
    job_params::JobParamFiles, ownership, sessions::SessionStore, state_files::StateFiles,
    uploads::UploadRecords,
};

/// A locked state directory. Unlocked when dropped.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    sessions: Arc<SessionStore>,
    uploads: UploadRecords,
    _lock: File,
}

/// Display says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateDirError {
    #[error(
        "{path} is in use by another daemon (process {pid}): stop it, or give this one a state directory of its own with --state-dir"
    )]
    InUse {
        path: String,
        /// As the other daemon wrote it into the lock file.
        pid: String,
    },
    #[error("{path} cannot be used as state directory: its disk is full: make room there")]
    Full { path: String },
    /// Another user may have put files into it.
    #[error("{path} cannot be trusted as state directory")]
    Untrusted {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "{path} cannot be used as state directory: make it writable for this user, or choose another with --state-dir"
    )]
    Unusable {
        path: String,
        #[source]
        source: io::Error,
    },
}

impl StateDir {
    pub(crate) fn database_path(&self) -> PathBuf {
        self.path.join("jig.db")
    }

    /// Path of the file that names the generation: see [`super::generation`]. The file has the name
    /// that earlier versions gave it.
    pub(crate) fn generation_path(&self) -> PathBuf {
        self.path.join("life")
    }

    /// Path of the file with the name of this daemon in its fleet: see [`super::fleet_id`].
    pub(crate) fn fleet_id_path(&self) -> PathBuf {
        self.path.join("fleet-id")
    }

    /// Returns the files to watch for removal. Call it once the database is open.
    pub(crate) fn state_files(&self) -> io::Result<StateFiles> {
        let names = ["lock", "jig.db", "jig.db-wal"];
        StateFiles::new(names.map(|name| self.path.join(name)))
    }

    /// Whether the directory has jobs or sessions. Unreadable directories count as empty.
    pub(crate) fn has_records(&self) -> bool {
        ["jobs", "sessions"].iter().any(|name| {
            let entries = fs::read_dir(self.path.join(name));
            entries.is_ok_and(|mut entries| entries.next().is_some())
        })
    }

    /// Returns the parameter files of queued jobs.
    pub(crate) fn job_params(&self) -> JobParamFiles {
        JobParamFiles::new(self.path.join("jobs"))
    }

    /// Path of the directory for the journals of file changes.
    pub(crate) fn change_journals_dir(&self) -> PathBuf {
        self.path.join("changes")
    }

    /// Creates a directory in a state directory that another daemon may hold. Returns its canonical
    /// path.
    pub(crate) fn create_directory_in(path: &Path, name: &str) -> io::Result<PathBuf> {
        let directory = path.join(name);
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        std::fs::canonicalize(directory)
    }

    /// Opens and locks the directory at `path`, creating it if it is missing.
    pub(crate) fn open(path: &Path) -> Result<Self, StateDirError> {
        let display_path = path.display().to_string();
        let unusable = |source: io::Error| match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => StateDirError::Full { path: display_path.clone() },
            _ => StateDirError::Unusable { path: display_path.clone(), source },
        };

        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(unusable)?;
        let path = fs::canonicalize(path).map_err(unusable)?;
        ownership::check_ownership(&path)
            .map_err(|source| StateDirError::Untrusted { path: display_path.clone(), source })?;

        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path.join("lock"))
            .map_err(unusable)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                lock.read_to_string(&mut pid).map_err(unusable)?;
                return Err(StateDirError::InUse {
                    path: path.display().to_string(),
                    pid: pid.trim().to_owned(),
                });
            }
            Err(errno) => return Err(unusable(errno.into())),
        }

        // Overwrites in place: a restarted daemon needs no disk space for it.
        let pid = format!("{}\n", std::process::id());
        lock.write_all(pid.as_bytes())
            .and_then(|()| lock.set_len(pid.len() as u64))
            .map_err(unusable)?;

        Ok(Self {
            uploads: UploadRecords::new(path.join("uploads")),
            sessions: Arc::new(SessionStore::new(path.join("sessions"))),
            path,
            _lock: lock,
        })
    }

    pub(crate) fn sessions(&self) -> &Arc<SessionStore> {
        &self.sessions
    }

    pub(crate) fn uploads(&self) -> UploadRecords {
        self.uploads.clone()
    }

    /// Moves the upload records to the shared directory. With `None`, they become ephemeral: the
    /// state directory is removed with this daemon.
    pub(crate) fn set_uploads_directory(&mut self, shared: Option<PathBuf>) {
        self.uploads = match shared {
            Some(directory) => UploadRecords::shared(directory),
            None => UploadRecords::ephemeral(self.path.join("uploads")),
        };
    }
}
