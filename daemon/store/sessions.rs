//! The sessions of all workspaces: those that are open, and where the others lie.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::{
    session::{Fullness, Glance, Numbers, Session, SessionId},
    session_folders::{Found, SessionFolders},
};

/// Sessions held open beyond those in use; each costs a descriptor.
const OPEN_SESSIONS: usize = 256;

/// All of them.
#[derive(Debug)]
pub(crate) struct Sessions {
    folders: SessionFolders,
    open: Mutex<HashMap<Key, Arc<Session>>>,
    /// How many have been opened, for those who wait for one that is not there yet.
    opened: watch::Sender<u64>,
    fullness: Arc<Fullness>,
}

/// Workspace and id.
type Key = (String, SessionId);

impl Sessions {
    /// Those below `path`.
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            folders: SessionFolders::new(path),
            open: Mutex::default(),
            opened: watch::Sender::new(0),
            fullness: Arc::default(),
        }
    }

    /// The session of this id in a workspace, if it was asked for before.
    pub(crate) fn open(&self, workspace: &str, id: &SessionId) -> Option<Arc<Session>> {
        let key = (workspace.to_owned(), id.clone());
        self.lock().get(&key).map(Arc::clone)
    }

    /// The session of this id in a workspace, made where it is new. Blocks.
    pub(crate) fn make(&self, workspace: &str, id: &SessionId) -> io::Result<Arc<Session>> {
        let mut open = self.lock();
        let folder = self.folders.claim(workspace, id)?;
        self.opened(&mut open, workspace, id, folder)
    }

    /// The session of this id in a workspace, if there is one. Blocks.
    pub(crate) fn existing(
        &self,
        workspace: &str,
        id: &SessionId,
    ) -> io::Result<Option<Arc<Session>>> {
        let mut open = self.lock();
        match self.folders.find(workspace, id)? {
            Some(folder) => self.opened(&mut open, workspace, id, folder).map(Some),
            None => Ok(None),
        }
    }

    /// Waits for sessions that are not there yet: changes whenever one is opened.
    pub(crate) fn wait_for_more(&self) -> watch::Receiver<u64> {
        self.opened.subscribe()
    }

    /// The sessions of a workspace by their ids, those behind `after` where it is given, and at most so
    /// many. Blocks.
    pub(crate) fn list(
        &self,
        workspace: &str,
        after: Option<&SessionId>,
        at_most: usize,
    ) -> io::Result<Vec<(SessionId, Numbers)>> {
        let mut found = BTreeMap::new();
        for session in self.folders.list()? {
            let is_wanted = after.is_none_or(|after| session.id > *after);
            if session.workspace == workspace && is_wanted {
                found.insert(session.id, session.folder);
                if found.len() > at_most {
                    found.pop_last();
                }
            }
        }
        let numbers = |(id, folder): (SessionId, PathBuf)| match Session::numbers_in(&folder) {
            // Removed at this moment.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            numbers => Some(numbers.map(|numbers| (id, numbers))),
        };
        found.into_iter().filter_map(numbers).collect()
    }

    // === What is to be kept ===

    /// Says when somebody is to look after the records of a session.
    pub(super) fn fullness(&self) -> &Fullness {
        &self.fullness
    }

    /// All sessions. Blocks.
    pub(super) fn all(&self) -> io::Result<Vec<Found>> {
        self.folders.list()
    }

    /// Those that are open.
    pub(super) fn all_open(&self) -> Vec<Arc<Session>> {
        self.lock().values().map(Arc::clone).collect()
    }

    /// Removes a session with its folder, unless somebody uses it, or it is not `unused` any more.
    /// Answers whether it did. Blocks.
    pub(super) fn remove(
        &self,
        session: &Found,
        unused: impl FnOnce(&Glance) -> bool,
    ) -> io::Result<bool> {
        {
            // Nobody opens it meanwhile.
            let mut open = self.lock();
            let key = (session.workspace.clone(), session.id.clone());
            let is_used = open
                .get(&key)
                .is_some_and(|session| Arc::strong_count(session) > 1);
            if is_used || !unused(&Session::glance_at(&session.folder)?) {
                return Ok(false);
            }
            self.folders.take_away(&session.folder)?;
            open.remove(&key);
        }
        self.folders.delete_removed()?;
        Ok(true)
    }

    /// Deletes what a daemon that died was deleting. Blocks.
    pub(super) fn finish_removals(&self) -> io::Result<()> {
        self.folders.delete_removed()
    }

    fn opened(
        &self,
        open: &mut HashMap<Key, Arc<Session>>,
        workspace: &str,
        id: &SessionId,
        folder: PathBuf,
    ) -> io::Result<Arc<Session>> {
        let key = (workspace.to_owned(), id.clone());
        if let Some(session) = open.get(&key) {
            return Ok(Arc::clone(session));
        }
        if open.len() >= OPEN_SESSIONS {
            // Whoever holds one keeps it; the others are found again by their files.
            open.retain(|_, session| Arc::strong_count(session) > 1);
        }
        let session = Arc::new(Session::open(folder, Arc::clone(&self.fullness))?);
        open.insert(key, Arc::clone(&session));
        self.opened.send_modify(|opened| *opened += 1);
        Ok(session)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Session>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
