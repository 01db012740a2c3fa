//! Ids of processes in the API, which are numbers, and the ids of these processes in the contract.
//!
//! An id is random, so that a caller learns nothing of the processes of others. It is known to the
//! caller that started the process, while that caller reads the output.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::rand::{GetRandomFlags, getrandom};

use crate::daemon::error::Error;

/// The processes of all callers.
#[derive(Debug, Default)]
pub(super) struct ProcessIds(Mutex<HashMap<i32, KnownProcess>>);

/// A process as it was started.
#[derive(Debug, Clone)]
pub(super) struct KnownProcess {
    /// Name of the principal that started the process.
    pub(super) owner: Arc<str>,
    /// Id in the contract.
    pub(super) process_id: String,
    pub(super) has_terminal: bool,
}

/// An id that is known until this is dropped.
#[derive(Debug)]
pub(super) struct RegisteredId {
    ids: Arc<ProcessIds>,
    pub(super) id: i32,
}

impl ProcessIds {
    /// Gives a process an id.
    ///
    /// # Errors
    ///
    /// Fails if the system has no random bytes.
    pub(super) fn register(self: &Arc<Self>, process: KnownProcess) -> Result<RegisteredId, Error> {
        loop {
            let id = random_id()?;
            if let Entry::Vacant(entry) = self.lock().entry(id) {
                entry.insert(process);
                return Ok(RegisteredId { ids: Arc::clone(self), id });
            }
        }
    }

    /// The process with an id, if `caller` has started it.
    pub(super) fn find(&self, id: i32, caller: &str) -> Option<KnownProcess> {
        self.lock().get(&id).filter(|process| &*process.owner == caller).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i32, KnownProcess>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RegisteredId {
    fn drop(&mut self) {
        self.ids.lock().remove(&self.id);
    }
}

/// A number from 1 to the largest. Clients may treat others as errors.
fn random_id() -> Result<i32, Error> {
    let mut bytes = [0; size_of::<i32>()];
    // Up to 256 bytes are always complete (getrandom(2)).
    getrandom(&mut bytes, GetRandomFlags::empty()).map_err(Error::internal)?;
    Ok((i32::from_ne_bytes(bytes) & i32::MAX).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_known_to_its_owner_until_its_id_is_dropped() {
        let ids = Arc::new(ProcessIds::default());
        let process = |process_id: &str| KnownProcess {
            owner: "a".into(),
            process_id: process_id.to_owned(),
            has_terminal: false,
        };
        let first = ids.register(process("1")).unwrap();
        let second = ids.register(process("2")).unwrap();
        assert!(first.id > 0 && second.id > 0 && first.id != second.id);
        assert_eq!(ids.find(first.id, "a").unwrap().process_id, "1");
        assert!(ids.find(first.id, "b").is_none());
        let free = (1..).find(|id| ![first.id, second.id].contains(id)).unwrap();
        assert!(ids.find(free, "a").is_none());

        drop(first);
        assert_eq!(ids.lock().len(), 1);
        assert_eq!(ids.find(second.id, "a").unwrap().process_id, "2");
    }
}
