//! The sessions of all workspaces: open sessions, and an index of the directories of all others.
//!
//! Each session has a lock of its own, which is held while the session is opened or removed. The
//! locks that all sessions share are never held during disk access.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    ops::Bound,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    session::{Session, SessionCounters, SessionId},
    session_directories::{SessionDirectories, SessionLocation},
    session_usage::SessionUsage,
    tombstones::SessionTombstones,
};

/// Sessions that stay open although no call uses them. Each costs a file descriptor.
const MAX_IDLE_OPEN_SESSIONS: usize = 256;

#[derive(Debug)]
pub(crate) struct SessionStore {
    directories: SessionDirectories,
    entries: Mutex<HashMap<SessionKey, Arc<SessionEntry>>>,
    index: Mutex<SessionIndex>,
    /// Held while the directories are listed for the index.
    index_scan: Mutex<()>,
    /// Loaded at first use.
    tombstones: Mutex<Option<SessionTombstones>>,
    /// Number of sessions opened so far.
    opened_count: watch::Sender<u64>,
    usage: Arc<SessionUsage>,
}

/// Workspace and session id.
type SessionKey = (String, SessionId);

/// The session, if it is open.
type SessionEntry = Mutex<Option<Arc<Session>>>;

/// Known session directories, per workspace and in listing order.
#[derive(Debug, Default)]
struct SessionIndex {
    workspaces: BTreeMap<String, BTreeMap<SessionId, IndexedSession>>,
    /// True once the sessions of earlier daemons are included.
    is_complete: bool,
}

#[derive(Debug)]
struct IndexedSession {
    directory: PathBuf,
    /// Whether this daemon has opened the session.
    was_opened: bool,
}

impl SessionStore {
    /// Creates a store of the sessions in the directory `path`.
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            directories: SessionDirectories::new(path),
            entries: Mutex::default(),
            index: Mutex::default(),
            index_scan: Mutex::default(),
            tombstones: Mutex::default(),
            opened_count: watch::Sender::new(0),
            usage: Arc::default(),
        }
    }

    /// Returns the session if it is open and no caller is opening or removing it.
    pub(crate) fn get_open(&self, workspace: &str, id: &SessionId) -> Option<Arc<Session>> {
        let key = (workspace.to_owned(), id.clone());
        let entry = Arc::clone(lock(&self.entries).get(&key)?);
        let open = entry.try_lock().ok()?;
        open.as_ref().map(Arc::clone)
    }

    /// Returns the session, creating it if it does not exist. Blocks.
    pub(crate) fn open_or_create(
        &self,
        workspace: &str,
        id: &SessionId,
    ) -> io::Result<Arc<Session>> {
        self.with_entry(workspace, id, |entry| {
            if let Some(session) = entry {
                return Ok(Arc::clone(session));
            }

            let directory = match self.directories.find(workspace, id)? {
                Some(directory) => directory,
                None => {
                    let counters = self.tombstone_counters(workspace, id)?;
                    let fill = |directory: &Path| Session::create_in(directory, counters.as_ref());
                    self.directories.create(workspace, id, fill)?
                }
            };
            self.open_in_entry(entry, workspace, id, directory)
        })
    }

    /// Returns the session if it exists. Blocks.
    pub(crate) fn open_existing(
        &self,
        workspace: &str,
        id: &SessionId,
    ) -> io::Result<Option<Arc<Session>>> {
        self.with_entry(workspace, id, |entry| {
            if let Some(session) = entry {
                return Ok(Some(Arc::clone(session)));
            }
            match self.directories.find(workspace, id)? {
                Some(directory) => self.open_in_entry(entry, workspace, id, directory).map(Some),
                None => Ok(None),
            }
        })
    }

    /// Whether the index has the session: every session that was opened or listed.
    pub(crate) fn is_indexed(&self, workspace: &str, id: &SessionId) -> bool {
        let index = lock(&self.index);
        index.workspaces.get(workspace).is_some_and(|sessions| sessions.contains_key(id))
    }

    /// Returns the counters of a removed session. A new session of its id continues them. Blocks.
    pub(crate) fn tombstone_counters(
        &self,
        workspace: &str,
        id: &SessionId,
    ) -> io::Result<Option<SessionCounters>> {
        self.with_tombstones(|tombstones| Ok(tombstones.counters(workspace, id).cloned()))
    }

    /// Returns a receiver that changes whenever a session is opened.
    pub(crate) fn subscribe_opened(&self) -> watch::Receiver<u64> {
        self.opened_count.subscribe()
    }

    /// Lists at most `limit` sessions of a workspace by id, those after `after` if it is given.
    /// Skips sessions with unreadable files. Blocks.
    pub(crate) fn list(
        &self,
        workspace: &str,
        after: Option<&SessionId>,
        limit: usize,
    ) -> io::Result<Vec<(SessionId, SessionCounters)>> {
        self.complete_index()?;

        let mut sessions = Vec::new();
        let mut after = after.cloned();
        while sessions.len() < limit {
            let next = self.next_indexed(workspace, after.as_ref(), limit - sessions.len());
            let Some((last, _)) = next.last() else { break };
            after = Some(last.clone());

            for (id, directory) in next {
                match Session::read_counters(&directory) {
                    Ok(counters) => sessions.push((id, counters)),
                    // Removed since it was indexed.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    // Retention warns of it at each pass.
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                        tracing::debug!(session = id.as_str(), %error, "cannot list a session: its files are invalid");
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(sessions)
    }

    fn next_indexed(
        &self,
        workspace: &str,
        after: Option<&SessionId>,
        limit: usize,
    ) -> Vec<(SessionId, PathBuf)> {
        let index = lock(&self.index);
        let Some(sessions) = index.workspaces.get(workspace) else {
            return Vec::new();
        };

        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        sessions
            .range::<SessionId, _>((start, Bound::Unbounded))
            .take(limit)
            .map(|(id, session)| (id.clone(), session.directory.clone()))
            .collect()
    }

    /// Returns the number of sessions with open files.
    pub(crate) fn open_count(&self) -> usize {
        let entries: Vec<_> = lock(&self.entries).values().map(Arc::clone).collect();
        // An entry that is locked is being opened or removed.
        let open =
            entries.iter().filter(|entry| entry.try_lock().is_ok_and(|session| session.is_some()));
        open.count()
    }

    /// Returns the bytes of records and artifacts: those of the last retention pass, and those
    /// written since.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.usage.counted_bytes()
    }

    // === Retention ===

    /// Signals when a limit of the retention is exceeded.
    pub(super) fn usage(&self) -> &Arc<SessionUsage> {
        &self.usage
    }

    /// Returns the locations of all sessions. Blocks.
    pub(super) fn all_locations(&self) -> io::Result<Vec<SessionLocation>> {
        self.complete_index()?;

        let index = lock(&self.index);
        let mut locations = Vec::new();
        for (workspace, sessions) in &index.workspaces {
            locations.extend(sessions.iter().map(|(id, session)| SessionLocation {
                workspace: workspace.clone(),
                id: id.clone(),
                directory: session.directory.clone(),
            }));
        }
        Ok(locations)
    }

    /// Returns the sessions that are open. Blocks.
    pub(super) fn open_sessions(&self) -> Vec<Arc<Session>> {
        let entries: Vec<_> = lock(&self.entries).values().map(Arc::clone).collect();
        entries.iter().filter_map(|entry| lock(entry).clone()).collect()
    }

    /// Removes a session with its directory, unless it is in use or `is_unused` returns false for
    /// the time of its last use. Returns whether it was removed. Blocks.
    pub(super) fn remove(
        &self,
        location: &SessionLocation,
        is_unused: impl FnOnce(SystemTime) -> bool,
        shutdown: &CancellationToken,
    ) -> io::Result<bool> {
        let SessionLocation { workspace, id, directory } = location;
        let removed_directory = self.with_entry(workspace, id, |entry| {
            let in_use = entry.as_ref().is_some_and(|session| Arc::strong_count(session) > 1);
            if in_use || !is_unused(Session::last_used(directory)?) {
                return Ok(None);
            }

            let counters = Session::read_counters(directory)?;
            self.with_tombstones(|tombstones| {
                tombstones.insert(workspace, id, counters);
                Ok(())
            })?;

            let removed_directory = self.directories.mark_removed(directory)?;
            *entry = None;
            if let Some(sessions) = lock(&self.index).workspaces.get_mut(workspace) {
                sessions.remove(id);
            }
            Ok::<_, io::Error>(Some(removed_directory))
        })?;

        let Some(removed_directory) = removed_directory else {
            return Ok(false);
        };
        self.finish_removal(location, &removed_directory, shutdown)?;
        Ok(true)
    }

    /// Removes all sessions of a workspace that is deleted, even if an event stream holds one. Blocks.
    ///
    /// They leave no tombstones: a new workspace of this name has nothing of the old one.
    pub(crate) fn remove_all_in(&self, workspace: &str) -> io::Result<()> {
        let token = CancellationToken::new();
        for location in self.all_locations()?.into_iter().filter(|it| it.workspace == workspace) {
            let SessionLocation { workspace, id, directory } = &location;
            let removed_directory = self.with_entry(workspace, id, |entry| {
                let removed_directory = self.directories.mark_removed(directory)?;
                *entry = None;
                if let Some(sessions) = lock(&self.index).workspaces.get_mut(workspace) {
                    sessions.remove(id);
                }
                Ok::<_, io::Error>(removed_directory)
            })?;
            Session::delete_artifacts(&removed_directory, &token)?;
            self.directories.delete(&removed_directory, &token)?;
        }
        self.with_tombstones(|tombstones| tombstones.remove_all_in(workspace))
    }

    /// Completes removals that an earlier daemon did not finish. Blocks.
    pub(super) fn finish_removals(&self, shutdown: &CancellationToken) -> io::Result<()> {
        // Loads the tombstones, which include these sessions from here on.
        self.with_tombstones(|_| Ok(()))?;

        for (session, directory) in self.directories.list_removed()? {
            match session {
                Some(session) => self.finish_removal(&session, &directory, shutdown)?,
                None => self.directories.delete(&directory, shutdown)?,
            }
        }
        Ok(())
    }

    /// Removes the tombstones of sessions that were removed more than `age` ago. Blocks.
    pub(super) fn prune_tombstones(&self, age: Duration) -> io::Result<()> {
        self.with_tombstones(|tombstones| tombstones.prune(age))
    }

    /// Deletes a session that is marked as removed. Artifacts go first: on a full disk, that frees
    /// the space to write the tombstone.
    fn finish_removal(
        &self,
        session: &SessionLocation,
        directory: &Path,
        shutdown: &CancellationToken,
    ) -> io::Result<()> {
        Session::delete_artifacts(directory, shutdown)?;
        self.with_tombstones(|tombstones| tombstones.persist(&session.workspace, &session.id))?;
        self.directories.delete(directory, shutdown)
    }

    /// Adds the sessions of earlier daemons to the index. Blocks.
    fn complete_index(&self) -> io::Result<()> {
        let _scan = lock(&self.index_scan);
        if lock(&self.index).is_complete {
            return Ok(());
        }

        // No session is removed during the scan: removal completes the index first.
        let locations = self.directories.list()?;
        let mut index = lock(&self.index);
        for location in locations {
            let sessions = index.workspaces.entry(location.workspace).or_default();
            sessions
                .entry(location.id)
                .or_insert(IndexedSession { directory: location.directory, was_opened: false });
        }
        index.is_complete = true;
        Ok(())
    }

    /// Calls `f` with the tombstones, loading them at first use.
    fn with_tombstones<T>(
        &self,
        f: impl FnOnce(&mut SessionTombstones) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut tombstones = lock(&self.tombstones);
        let tombstones = match &mut *tombstones {
            Some(loaded) => loaded,
            empty => empty.insert(self.load_tombstones()?),
        };
        f(tombstones)
    }

    fn load_tombstones(&self) -> io::Result<SessionTombstones> {
        // Creating a session loads the tombstones first, so none of these is in progress.
        self.directories.delete_unfinished()?;

        let mut tombstones = SessionTombstones::load(self.directories.tombstones_path())?;
        // An earlier daemon may have died between marking a session as removed and writing its
        // tombstone.
        for (session, directory) in self.directories.list_removed()? {
            if let Some(session) = session
                && let Ok(counters) = Session::read_counters(&directory)
                && tombstones
                    .counters(&session.workspace, &session.id)
                    .is_none_or(|known| known.sequence < counters.sequence)
            {
                tombstones.insert(&session.workspace, &session.id, counters);
            }
        }
        Ok(tombstones)
    }

    /// Calls `f` with the session's lock held.
    fn with_entry<T>(
        &self,
        workspace: &str,
        id: &SessionId,
        f: impl FnOnce(&mut Option<Arc<Session>>) -> T,
    ) -> T {
        let key = (workspace.to_owned(), id.clone());
        let entry = {
            let mut entries = lock(&self.entries);
            if entries.len() >= MAX_IDLE_OPEN_SESSIONS && !entries.contains_key(&key) {
                // Closes idle sessions; they are found again by their files.
                entries.retain(|_, entry| Arc::strong_count(entry) > 1 || is_in_use(entry));
            }
            Arc::clone(entries.entry(key.clone()).or_default())
        };

        let mut session = lock(&entry);
        let result = f(&mut session);
        let is_open = session.is_some();
        drop(session);

        if !is_open {
            let mut entries = lock(&self.entries);
            // Two references, this one and the map's: no other caller is about to use the entry.
            if Arc::strong_count(&entry) == 2 && lock(&entry).is_none() {
                entries.remove(&key);
            }
        }
        result
    }

    fn open_in_entry(
        &self,
        entry: &mut Option<Arc<Session>>,
        workspace: &str,
        id: &SessionId,
        directory: PathBuf,
    ) -> io::Result<Arc<Session>> {
        let was_opened = {
            let index = lock(&self.index);
            let sessions = index.workspaces.get(workspace);
            sessions.and_then(|sessions| sessions.get(id)).is_some_and(|known| known.was_opened)
        };

        let session = Session::open(directory.clone(), Arc::clone(&self.usage))?;
        if !was_opened {
            // Steps without an end record were in progress when an earlier daemon died.
            session.end_lost_steps();
        }
        let session = Arc::new(session);
        *entry = Some(Arc::clone(&session));

        let count = {
            let mut index = lock(&self.index);
            let sessions = index.workspaces.entry(workspace.to_owned()).or_default();
            let is_new = !sessions.contains_key(id);
            sessions.insert(id.clone(), IndexedSession { directory, was_opened: true });
            if is_new { sessions.len() as u64 } else { 0 }
        };
        self.usage.check_session_count(count);
        self.opened_count.send_modify(|opened| *opened += 1);
        Ok(session)
    }
}

/// Whether the entry's session is open and referenced outside the entry.
fn is_in_use(entry: &SessionEntry) -> bool {
    lock(entry).as_ref().is_some_and(|session| Arc::strong_count(session) > 1)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
