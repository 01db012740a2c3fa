//! The state directory: one daemon at a time holds it.

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

/// A state directory that this daemon holds, until it is dropped.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    sessions: Arc<SessionStore>,
    uploads: UploadRecords,
    _lock: File,
}

/// Why a state directory cannot be held.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateDirError {
    /// Another daemon holds it.
    #[error(
        "{path} is held by another daemon (process {pid}): stop it, or give this one a state directory of its own with --state-dir"
    )]
    InUse {
        /// The directory.
        path: String,
        /// Who holds it, as it says itself.
        pid: String,
    },
    /// There is no room on its disk.
    #[error("{path} cannot be used as state directory: its disk is full: make room there")]
    Full {
        /// The directory.
        path: String,
    },
    /// Another user may have put something into it.
    #[error("{path} cannot be trusted as state directory")]
    Untrusted {
        /// The directory.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It cannot be made or written to.
    #[error(
        "{path} cannot be used as state directory: make it writable for this user, or choose another with --state-dir"
    )]
    Unusable {
        /// The directory.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl StateDir {
    /// The file of the database.
    pub(crate) fn database_path(&self) -> PathBuf {
        self.path.join("jig.db")
    }

    /// The file that says which daemon wrote to the database last.
    pub(crate) fn generation_path(&self) -> PathBuf {
        self.path.join("life")
    }

    /// The files that must stay where they are now, once the database is open.
    pub(crate) fn state_files(&self) -> io::Result<StateFiles> {
        let names = ["lock", "jig.db", "jig.db-wal"];
        StateFiles::new(names.map(|name| self.path.join(name)))
    }

    /// Whether daemons have left jobs or sessions here. What cannot be looked at counts for nothing.
    pub(crate) fn has_records(&self) -> bool {
        ["jobs", "sessions"].iter().any(|name| {
            let entries = fs::read_dir(self.path.join(name));
            entries.is_ok_and(|mut entries| entries.next().is_some())
        })
    }

    /// What jobs that wait are to do.
    pub(crate) fn job_params(&self) -> JobParamFiles {
        JobParamFiles::new(self.path.join("jobs"))
    }

    /// Folder for what changes of files are about to do.
    pub(crate) fn change_journals_dir(&self) -> PathBuf {
        self.path.join("changes")
    }

    /// Makes a folder in a state directory that somebody else may hold. Answers its path, without
    /// links.
    pub(crate) fn create_folder_in(path: &Path, name: &str) -> io::Result<PathBuf> {
        let folder = path.join(name);
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        std::fs::canonicalize(folder)
    }

    /// Takes hold of the directory at `path`, making it where it is missing.
    pub(crate) fn open(path: &Path) -> Result<Self, StateDirError> {
        let named = path.display().to_string();
        let unusable = |source: io::Error| match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => StateDirError::Full { path: named.clone() },
            _ => StateDirError::Unusable { path: named.clone(), source },
        };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(unusable)?;
        let path = fs::canonicalize(path).map_err(unusable)?;
        ownership::check_ownership(&path)
            .map_err(|source| StateDirError::Untrusted { path: named.clone(), source })?;
        let options = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .clone();
        let mut lock = options.open(path.join("lock")).map_err(unusable)?;
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
        // Over what is there: a daemon that is started again needs no room for it.
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

    /// The sessions.
    pub(crate) fn sessions(&self) -> &Arc<SessionStore> {
        &self.sessions
    }

    /// The records of uploads.
    pub(crate) fn uploads(&self) -> UploadRecords {
        self.uploads.clone()
    }

    /// Has the records of uploads be in a folder that daemons share; without one, be of no use when
    /// this daemon has ended, as the directory is removed then.
    pub(crate) fn set_uploads_folder(&mut self, shared: Option<PathBuf>) {
        self.uploads = match shared {
            Some(folder) => UploadRecords::shared(folder),
            None => UploadRecords::ephemeral(self.path.join("uploads")),
        };
    }
}
