//! The state directory: one daemon at a time holds it.

use std::{
    collections::HashMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use super::{
    job_params::JobParams,
    session::{Session, SessionId},
    session_folders::SessionFolders,
    uploads::UploadRecords,
};

/// Sessions held open beyond those in use; each costs a descriptor.
const OPEN_SESSIONS: usize = 256;

/// A state directory that this daemon holds, until it is dropped.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    sessions: Mutex<Sessions>,
    uploads: UploadRecords,
    _lock: File,
}

/// Sessions that are open.
#[derive(Debug)]
struct Sessions {
    folders: SessionFolders,
    /// By workspace and id.
    open: HashMap<(String, SessionId), Arc<Session>>,
}

/// Why a state directory cannot be held.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// Another daemon holds it.
    #[error(
        "{path} is held by another daemon (process {pid}): stop it, or give this one a state directory of its own with --state-dir"
    )]
    Held {
        /// The directory.
        path: String,
        /// Who holds it, as it says itself.
        pid: String,
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
    pub(crate) fn database(&self) -> PathBuf {
        self.path.join("jig.db")
    }

    /// What jobs that wait are to do.
    pub(crate) fn job_params(&self) -> JobParams {
        JobParams::new(self.path.join("jobs"))
    }

    /// Folder for what changes of files are about to do.
    pub(crate) fn changes(&self) -> PathBuf {
        self.path.join("changes")
    }

    /// Makes a folder in a state directory that somebody else may hold. Answers its path, without
    /// links.
    pub(crate) fn folder_in(path: &Path, name: &str) -> io::Result<PathBuf> {
        let folder = path.join(name);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)?;
        std::fs::canonicalize(folder)
    }

    /// Takes hold of the directory at `path`, making it where it is missing.
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        let unusable = |source| OpenError::Unusable {
            path: path.display().to_string(),
            source,
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(unusable)?;
        let path = fs::canonicalize(path).map_err(unusable)?;
        let options = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .clone();
        let mut lock = options.open(path.join("lock")).map_err(unusable)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                lock.read_to_string(&mut pid).map_err(unusable)?;
                return Err(OpenError::Held {
                    path: path.display().to_string(),
                    pid: pid.trim().to_owned(),
                });
            }
            Err(errno) => return Err(unusable(errno.into())),
        }
        lock.set_len(0)
            .and_then(|()| writeln!(lock, "{}", std::process::id()))
            .map_err(unusable)?;
        Ok(Self {
            uploads: UploadRecords::new(path.join("uploads")),
            sessions: Mutex::new(Sessions {
                folders: SessionFolders::new(path.join("sessions")),
                open: HashMap::new(),
            }),
            path,
            _lock: lock,
        })
    }

    /// The session of this id in a workspace, if it was asked for before.
    pub(crate) fn open_session(&self, workspace: &str, id: &SessionId) -> Option<Arc<Session>> {
        let sessions = self.sessions();
        let key = (workspace.to_owned(), id.clone());
        sessions.open.get(&key).map(Arc::clone)
    }

    /// The session of this id in a workspace, made where it is new. Blocks.
    pub(crate) fn session(&self, workspace: &str, id: &SessionId) -> io::Result<Arc<Session>> {
        let mut sessions = self.sessions();
        let folder = sessions.folders.claim(workspace, id)?;
        sessions.open(workspace, id, folder)
    }

    /// The session of this id in a workspace, if there is one. Blocks.
    pub(crate) fn existing_session(
        &self,
        workspace: &str,
        id: &SessionId,
    ) -> io::Result<Option<Arc<Session>>> {
        let mut sessions = self.sessions();
        match sessions.folders.find(workspace, id)? {
            Some(folder) => sessions.open(workspace, id, folder).map(Some),
            None => Ok(None),
        }
    }

    /// The records of uploads.
    pub(crate) fn uploads(&self) -> UploadRecords {
        self.uploads.clone()
    }

    /// Has the records of uploads be in a folder that daemons share; without one, be of no use when
    /// this daemon has ended, as the directory is removed then.
    pub(crate) fn keep_uploads_in(&mut self, shared: Option<PathBuf>) {
        self.uploads = match shared {
            Some(folder) => UploadRecords::shared(folder),
            None => UploadRecords::for_one_call(self.path.join("uploads")),
        };
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sessions {
    fn open(
        &mut self,
        workspace: &str,
        id: &SessionId,
        folder: PathBuf,
    ) -> io::Result<Arc<Session>> {
        let key = (workspace.to_owned(), id.clone());
        if let Some(session) = self.open.get(&key) {
            return Ok(Arc::clone(session));
        }
        if self.open.len() >= OPEN_SESSIONS {
            // Whoever holds one keeps it; the others are found again by their files.
            self.open
                .retain(|_, session| Arc::strong_count(session) > 1);
        }
        let session = Arc::new(Session::open(folder)?);
        self.open.insert(key, Arc::clone(&session));
        Ok(session)
    }
}
