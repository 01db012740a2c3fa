//! Tombstones: the counters of removed sessions.
//!
//! A new session of the same id continues counting. No path and no number of the old session ever
//! names anything of the new one. Tombstones are stored in one file until nothing is left
//! that could refer to the removed session.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, BufRead as _, BufReader, BufWriter, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use super::session::{SessionCounters, SessionId};

/// About 10 MiB of a file. The oldest beyond that are dropped.
const MAX_TOMBSTONES: usize = 50_000;

#[derive(Debug)]
pub(super) struct SessionTombstones {
    path: PathBuf,
    tombstones: HashMap<(String, SessionId), Tombstone>,
}

#[derive(Debug, Clone)]
struct Tombstone {
    counters: SessionCounters,
    /// Time of the removal, in seconds since the Unix epoch.
    removed: u64,
}

/// A line of the file, as JSON.
#[derive(Debug, Serialize, Deserialize)]
struct TombstoneLine {
    workspace: String,
    session: String,
    removed: u64,
    #[serde(flatten)]
    counters: SessionCounters,
}

impl SessionTombstones {
    /// Loads the tombstones from the file at `path`. Ignores invalid lines.
    pub(super) fn load(path: PathBuf) -> io::Result<Self> {
        let mut tombstones = HashMap::new();
        match File::open(&path) {
            Ok(file) => {
                for line in BufReader::new(file).split(b'\n') {
                    let Ok(line) = serde_json::from_slice::<TombstoneLine>(&line?) else {
                        continue;
                    };
                    if let Some(id) = SessionId::parse(&line.session) {
                        // The last line of an id is the valid one.
                        let tombstone =
                            Tombstone { counters: line.counters, removed: line.removed };
                        tombstones.insert((line.workspace, id), tombstone);
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(Self { path, tombstones })
    }

    /// Returns the counters that a session had when it was removed.
    pub(super) fn counters(&self, workspace: &str, id: &SessionId) -> Option<&SessionCounters> {
        let key = (workspace.to_owned(), id.clone());
        self.tombstones.get(&key).map(|tombstone| &tombstone.counters)
    }

    /// Adds a tombstone in memory. [`Self::persist`] writes it to the file.
    pub(super) fn insert(&mut self, workspace: &str, id: &SessionId, counters: SessionCounters) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let removed = now.unwrap_or_default().as_secs();
        let key = (workspace.to_owned(), id.clone());
        self.tombstones.insert(key, Tombstone { counters, removed });
    }

    /// Appends the tombstone of a session to the file and syncs it.
    pub(super) fn persist(&self, workspace: &str, id: &SessionId) -> io::Result<()> {
        let key = (workspace.to_owned(), id.clone());
        let Some(tombstone) = self.tombstones.get(&key) else {
            return Ok(());
        };

        let mut file = File::options().append(true).create(true).mode(0o600).open(&self.path)?;
        // The leading newline ends a line that a crash cut off.
        let mut line = b"\n".to_vec();
        line.append(&mut encode_line(&key, tombstone)?);
        file.write_all(&line)?;
        file.sync_data()
    }

    /// Drops sessions removed more than `age` ago, and the oldest beyond [`MAX_TOMBSTONES`].
    pub(super) fn prune(&mut self, age: Duration) -> io::Result<()> {
        let oldest_kept = SystemTime::now().checked_sub(age).unwrap_or(UNIX_EPOCH);
        let by_age = oldest_kept.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();

        let mut times: Vec<_> =
            self.tombstones.values().map(|tombstone| tombstone.removed).collect();
        times.sort_unstable_by(|one, other| other.cmp(one));
        let by_count = times.get(MAX_TOMBSTONES).map_or(0, |time| time + 1);

        let since = by_age.max(by_count);
        if times.last().is_none_or(|oldest| *oldest >= since) {
            return Ok(());
        }

        let mut remaining = self.tombstones.clone();
        remaining.retain(|_, tombstone| tombstone.removed >= since);
        self.rewrite_file(&remaining)?;
        self.tombstones = remaining;
        Ok(())
    }

    /// Drops those of the sessions of a workspace.
    pub(super) fn remove_all_in(&mut self, workspace: &str) -> io::Result<()> {
        let mut remaining = self.tombstones.clone();
        remaining.retain(|(of, _), _| of != workspace);
        if remaining.len() < self.tombstones.len() {
            self.rewrite_file(&remaining)?;
            self.tombstones = remaining;
        }
        Ok(())
    }

    /// Replaces the file atomically.
    fn rewrite_file(&self, tombstones: &HashMap<(String, SessionId), Tombstone>) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let file =
            File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;

        let mut writer = BufWriter::new(&file);
        for (key, tombstone) in tombstones {
            writer.write_all(&encode_line(key, tombstone)?)?;
        }
        writer.flush()?;
        drop(writer);

        file.sync_data()?;
        fs::rename(new, &self.path)
    }
}

fn encode_line(
    (workspace, id): &(String, SessionId),
    tombstone: &Tombstone,
) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&TombstoneLine {
        workspace: workspace.clone(),
        session: id.as_str().to_owned(),
        removed: tombstone.removed,
        counters: tombstone.counters.clone(),
    })?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(step: u64) -> SessionCounters {
        SessionCounters { step, sequence: step * 2, time: String::new() }
    }

    #[test]
    fn tombstones_survive_a_restart_and_expire() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tombstones");
        let read = || SessionTombstones::load(path.clone()).unwrap();
        let step = |tombstones: &SessionTombstones, workspace: &str| {
            let counters = tombstones.counters(workspace, &SessionId::default());
            counters.map(|counters| counters.step)
        };
        let mut tombstones = read();
        for (workspace, steps) in [("a", 3), ("b", 4), ("a", 5)] {
            tombstones.insert(workspace, &SessionId::default(), counters(steps));
            tombstones.persist(workspace, &SessionId::default()).unwrap();
        }
        // A line cut off by a crash.
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str("{\"workspace\":\"a\",\"ses");
        fs::write(&path, text).unwrap();
        tombstones.insert("c", &SessionId::default(), counters(6));
        tombstones.persist("c", &SessionId::default()).unwrap();
        for tombstones in [&tombstones, &read()] {
            let found = ["a", "b", "c", "d"].map(|workspace| step(tombstones, workspace));
            assert_eq!(found, [Some(5), Some(4), Some(6), None]);
        }
        tombstones.prune(Duration::from_secs(1000)).unwrap();
        assert_eq!(step(&read(), "a"), Some(5));
        tombstones.tombstones.values_mut().for_each(|tombstone| tombstone.removed -= 2000);
        tombstones.prune(Duration::from_secs(1000)).unwrap();
        for tombstones in [&tombstones, &read()] {
            assert_eq!(step(tombstones, "a"), None);
        }
    }

    #[test]
    fn oldest_tombstones_beyond_the_limit_are_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let mut tombstones = SessionTombstones::load(directory.path().join("tombstones")).unwrap();
        for number in 0..=MAX_TOMBSTONES as u64 {
            tombstones.insert(&format!("{number}"), &SessionId::default(), counters(1));
            let key = (format!("{number}"), SessionId::default());
            tombstones.tombstones.get_mut(&key).unwrap().removed += number;
        }
        tombstones.prune(Duration::from_secs(1000)).unwrap();
        assert_eq!(tombstones.tombstones.len(), MAX_TOMBSTONES);
        assert!(tombstones.counters("0", &SessionId::default()).is_none());
    }
}
