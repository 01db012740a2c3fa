//! The sessions of all workspaces: those that are open, and where the others lie.
//!
//! Each session has a lock of its own, which is held while it is opened or taken away. What is common to
//! all of them is never locked while the disk is read or written.

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
    session_folders::{SessionFolders, SessionLocation},
    session_usage::SessionUsage,
    tombstones::SessionTombstones,
};

/// Sessions held open beyond those in use; each costs a descriptor.
const MAX_IDLE_OPEN_SESSIONS: usize = 256;

/// All of them.
#[derive(Debug)]
pub(crate) struct SessionStore {
    folders: SessionFolders,
    slots: Mutex<HashMap<SessionKey, Arc<SessionSlot>>>,
    index: Mutex<SessionIndex>,
    /// Held while the folders are looked through for the index.
    index_scan: Mutex<()>,
    /// None before it was first asked for.
    tombstones: Mutex<Option<SessionTombstones>>,
    /// How many have been opened, for those who wait for one that is not there yet.
    opened_count: watch::Sender<u64>,
    usage: Arc<SessionUsage>,
}

/// Workspace and id.
type SessionKey = (String, SessionId);

/// A session that is open, if it is.
type SessionSlot = Mutex<Option<Arc<Session>>>;

/// What is known of where sessions lie: of each workspace, and in the order in which they are listed.
#[derive(Debug, Default)]
struct SessionIndex {
    workspaces: BTreeMap<String, BTreeMap<SessionId, IndexedSession>>,
    /// Whether it has those, too, that other daemons have made.
    is_complete: bool,
}

#[derive(Debug)]
struct IndexedSession {
    folder: PathBuf,
    /// Whether this daemon has opened it.
    was_opened: bool,
}

impl SessionStore {
    /// Those below `path`.
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            folders: SessionFolders::new(path),
            slots: Mutex::default(),
            index: Mutex::default(),
            index_scan: Mutex::default(),
            tombstones: Mutex::default(),
            opened_count: watch::Sender::new(0),
            usage: Arc::default(),
        }
    }

    /// The session of this id in a workspace, if it is open, and nobody is opening it.
    pub(crate) fn get_open(&self, workspace: &str, id: &SessionId) -> Option<Arc<Session>> {
        let key = (workspace.to_owned(), id.clone());
        let slot = Arc::clone(lock(&self.slots).get(&key)?);
        let open = slot.try_lock().ok()?;
        open.as_ref().map(Arc::clone)
    }

    /// The session of this id in a workspace, made where it is new. Blocks.
    pub(crate) fn open_or_create(
        &self,
        workspace: &str,
        id: &SessionId,
    ) -> io::Result<Arc<Session>> {
        self.with_slot(workspace, id, |open| {
            if let Some(session) = open {
                return Ok(Arc::clone(session));
            }
            let folder = match self.folders.find(workspace, id)? {
                Some(folder) => folder,
                None => {
                    let past = self.tombstone_counters(workspace, id)?;
                    let make = |folder: &Path| Session::create_in(folder, past.as_ref());
                    self.folders.create(workspace, id, make)?
                }
            };
            self.open_in_slot(open, workspace, id, folder)
        })
    }

    /// The session of this id in a workspace, if there is one. Blocks.
    pub(crate) fn open_existing(
        &self,
        workspace: &str,
        id: &SessionId,
    ) -> io::Result<Option<Arc<Session>>> {
        self.with_slot(workspace, id, |open| {
            if let Some(session) = open {
                return Ok(Some(Arc::clone(session)));
            }
            match self.folders.find(workspace, id)? {
                Some(folder) => self.open_in_slot(open, workspace, id, folder).map(Some),
                None => Ok(None),
            }
        })
    }

    /// Whether a session is known to be there: each is that was opened or listed.
    pub(crate) fn is_indexed(&self, workspace: &str, id: &SessionId) -> bool {
        let index = lock(&self.index);
        let known = index.workspaces.get(workspace);
        known.is_some_and(|known| known.contains_key(id))
    }

    /// What numbers a session had got to that was removed: one of its id goes on behind them. Blocks.
    pub(crate) fn tombstone_counters(
        &self,
        workspace: &str,
        id: &SessionId,
    ) -> io::Result<Option<SessionCounters>> {
        self.with_tombstones(|past| Ok(past.counters(workspace, id).cloned()))
    }

    /// Waits for sessions that are not there yet: changes whenever one is opened.
    pub(crate) fn subscribe_opened(&self) -> watch::Receiver<u64> {
        self.opened_count.subscribe()
    }

    /// The sessions of a workspace by their ids, those behind `after` where it is given, and at most so
    /// many. One whose files cannot be understood is left out. Blocks.
    pub(crate) fn list(
        &self,
        workspace: &str,
        after: Option<&SessionId>,
        at_most: usize,
    ) -> io::Result<Vec<(SessionId, SessionCounters)>> {
        self.complete_index()?;
        let mut found = Vec::new();
        let mut after = after.cloned();
        while found.len() < at_most {
            let next = self.next_indexed(workspace, after.as_ref(), at_most - found.len());
            let Some((last, _)) = next.last() else { break };
            after = Some(last.clone());
            for (id, folder) in next {
                match Session::read_counters(&folder) {
                    Ok(numbers) => found.push((id, numbers)),
                    // Removed at this moment.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    // Whoever removes what is old warns of it, from time to time.
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                        tracing::debug!(session = id.as_str(), %error, "a session could not be listed");
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(found)
    }

    fn next_indexed(
        &self,
        workspace: &str,
        after: Option<&SessionId>,
        at_most: usize,
    ) -> Vec<(SessionId, PathBuf)> {
        let index = lock(&self.index);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let known = index.workspaces.get(workspace).into_iter();
        let next = known.flat_map(|known| known.range::<SessionId, _>((from, Bound::Unbounded)));
        let next = next.take(at_most);
        next.map(|(id, known)| (id.clone(), known.folder.clone())).collect()
    }

    // === What is to be kept ===

    /// Says when somebody is to look after what is kept of them.
    pub(super) fn usage(&self) -> &Arc<SessionUsage> {
        &self.usage
    }

    /// All sessions. Blocks.
    pub(super) fn all_locations(&self) -> io::Result<Vec<SessionLocation>> {
        self.complete_index()?;
        let index = lock(&self.index);
        let of_workspace = |(workspace, known): (&String, &BTreeMap<SessionId, IndexedSession>)| {
            let found = known.iter().map(|(id, known)| SessionLocation {
                workspace: workspace.clone(),
                id: id.clone(),
                folder: known.folder.clone(),
            });
            found.collect::<Vec<_>>()
        };
        Ok(index.workspaces.iter().flat_map(of_workspace).collect())
    }

    /// Those that are open. Blocks.
    pub(super) fn open_sessions(&self) -> Vec<Arc<Session>> {
        let slots: Vec<_> = lock(&self.slots).values().map(Arc::clone).collect();
        let open = slots.iter().filter_map(|slot| lock(slot).clone());
        open.collect()
    }

    /// Removes a session with its folder, unless somebody uses it, or has used it since it was found
    /// `unused` by when that was last. Answers whether it did. Blocks.
    pub(super) fn remove(
        &self,
        session: &SessionLocation,
        unused: impl FnOnce(SystemTime) -> bool,
        end: &CancellationToken,
    ) -> io::Result<bool> {
        let SessionLocation { workspace, id, folder } = session;
        let removed = self.with_slot(workspace, id, |open| {
            let is_used = open.as_ref().is_some_and(|session| Arc::strong_count(session) > 1);
            if is_used || !unused(Session::last_used(folder)?) {
                return Ok(None);
            }
            let numbers = Session::read_counters(folder)?;
            self.with_tombstones(|past| {
                past.insert(workspace, id, numbers);
                Ok(())
            })?;
            let removed = self.folders.mark_removed(folder)?;
            *open = None;
            if let Some(known) = lock(&self.index).workspaces.get_mut(workspace) {
                known.remove(id);
            }
            Ok::<_, io::Error>(Some(removed))
        })?;
        let Some(removed) = removed else {
            return Ok(false);
        };
        self.finish_removal(session, &removed, end)?;
        Ok(true)
    }

    /// Deletes what a daemon that died was deleting. Blocks.
    pub(super) fn finish_removals(&self, end: &CancellationToken) -> io::Result<()> {
        // Those who are removed are known from here on.
        self.with_tombstones(|_| Ok(()))?;
        for (session, folder) in self.folders.list_removed()? {
            match session {
                Some(session) => self.finish_removal(&session, &folder, end)?,
                None => self.folders.delete(&folder, end)?,
            }
        }
        Ok(())
    }

    /// Forgets what numbers sessions had got to that were removed longer ago. Blocks.
    pub(super) fn prune_tombstones(&self, age: Duration) -> io::Result<()> {
        self.with_tombstones(|past| past.prune(age))
    }

    /// Deletes a session that was taken away. What is large goes first: on a full disk there is room then
    /// to write down what is to be known of it.
    fn finish_removal(
        &self,
        session: &SessionLocation,
        folder: &Path,
        end: &CancellationToken,
    ) -> io::Result<()> {
        Session::delete_artifacts(folder, end)?;
        self.with_tombstones(|past| past.persist(&session.workspace, &session.id))?;
        self.folders.delete(folder, end)
    }

    /// Has the index be whole. Blocks.
    fn complete_index(&self) -> io::Result<()> {
        let _alone = lock(&self.index_scan);
        if lock(&self.index).is_complete {
            return Ok(());
        }
        // Nobody removes one meanwhile: who does has the index whole.
        let found = self.folders.list()?;
        let mut index = lock(&self.index);
        for found in found {
            let known = index.workspaces.entry(found.workspace).or_default();
            known
                .entry(found.id)
                .or_insert(IndexedSession { folder: found.folder, was_opened: false });
        }
        index.is_complete = true;
        Ok(())
    }

    fn with_tombstones<T>(
        &self,
        work: impl FnOnce(&mut SessionTombstones) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut past = lock(&self.tombstones);
        let past = match &mut *past {
            Some(past) => past,
            none => {
                // Nobody makes one before that was asked for.
                self.folders.delete_unfinished()?;
                let mut past = SessionTombstones::load(self.folders.tombstones_path())?;
                // Taken away by a daemon that died before it had written down what they had got to.
                for (session, folder) in self.folders.list_removed()? {
                    if let Some(session) = session
                        && let Ok(numbers) = Session::read_counters(&folder)
                        && past
                            .counters(&session.workspace, &session.id)
                            .is_none_or(|past| past.sequence < numbers.sequence)
                    {
                        past.insert(&session.workspace, &session.id, numbers);
                    }
                }
                none.insert(past)
            }
        };
        work(past)
    }

    /// Does something with a session's lock held.
    fn with_slot<T>(
        &self,
        workspace: &str,
        id: &SessionId,
        work: impl FnOnce(&mut Option<Arc<Session>>) -> T,
    ) -> T {
        let key = (workspace.to_owned(), id.clone());
        let slot = {
            let mut slots = lock(&self.slots);
            if slots.len() >= MAX_IDLE_OPEN_SESSIONS && !slots.contains_key(&key) {
                // Whoever holds one keeps it; the others are found again by their files.
                slots.retain(|_, slot| Arc::strong_count(slot) > 1 || is_in_use(slot));
            }
            Arc::clone(slots.entry(key.clone()).or_default())
        };
        let mut open = lock(&slot);
        let done = work(&mut open);
        let is_open = open.is_some();
        drop(open);
        if !is_open {
            let mut slots = lock(&self.slots);
            // This one's and the map's: nobody else is about to use it.
            if Arc::strong_count(&slot) == 2 && lock(&slot).is_none() {
                slots.remove(&key);
            }
        }
        done
    }

    fn open_in_slot(
        &self,
        open: &mut Option<Arc<Session>>,
        workspace: &str,
        id: &SessionId,
        folder: PathBuf,
    ) -> io::Result<Arc<Session>> {
        let was_opened = {
            let index = lock(&self.index);
            let known = index.workspaces.get(workspace).and_then(|known| known.get(id));
            known.is_some_and(|known| known.was_opened)
        };
        let session = Session::open(folder.clone(), Arc::clone(&self.usage))?;
        if !was_opened {
            // What it says to go on was another daemon's.
            session.end_lost_steps();
        }
        let session = Arc::new(session);
        *open = Some(Arc::clone(&session));
        let count = {
            let mut index = lock(&self.index);
            let known = index.workspaces.entry(workspace.to_owned()).or_default();
            let is_new = known.get(id).is_none();
            let was_opened = true;
            known.insert(id.clone(), IndexedSession { folder, was_opened });
            if is_new { known.len() as u64 } else { 0 }
        };
        self.usage.check_session_count(count);
        self.opened_count.send_modify(|opened| *opened += 1);
        Ok(session)
    }
}

/// Whether somebody holds the session of a slot.
fn is_in_use(slot: &SessionSlot) -> bool {
    let open = lock(slot);
    open.as_ref().is_some_and(|session| Arc::strong_count(session) > 1)
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
