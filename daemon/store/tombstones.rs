//! What numbers those sessions had got to that were removed: one of the same id goes on counting, so that
//! no path and no number of the old one ever names something of the new one. They are kept in one file,
//! until nothing is left that could name them.

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

/// Most of them: some 10 MiB of a file. Beyond that the oldest are forgotten.
const MAX_TOMBSTONES: usize = 50_000;

/// Those that were removed.
#[derive(Debug)]
pub(super) struct SessionTombstones {
    path: PathBuf,
    tombstones: HashMap<(String, SessionId), Tombstone>,
}

/// One of them.
#[derive(Debug, Clone)]
struct Tombstone {
    counters: SessionCounters,
    /// Seconds from the epoch to its removal.
    removed: u64,
}

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
struct TombstoneLine {
    workspace: String,
    session: String,
    removed: u64,
    #[serde(flatten)]
    numbers: SessionCounters,
}

impl SessionTombstones {
    /// Those that the file at `path` tells of. A line that is none is left out.
    pub(super) fn load(path: PathBuf) -> io::Result<Self> {
        let mut known = HashMap::new();
        match File::open(&path) {
            Ok(file) => {
                for line in BufReader::new(file).split(b'\n') {
                    let Ok(line) = serde_json::from_slice::<TombstoneLine>(&line?) else {
                        continue;
                    };
                    if let Some(id) = SessionId::parse(&line.session) {
                        let past = Tombstone { counters: line.numbers, removed: line.removed };
                        known.insert((line.workspace, id), past); // the last one of an id is right
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(Self { path, tombstones: known })
    }

    /// What numbers a session had got to when it was removed.
    pub(super) fn counters(&self, workspace: &str, id: &SessionId) -> Option<&SessionCounters> {
        let key = (workspace.to_owned(), id.clone());
        self.tombstones.get(&key).map(|past| &past.counters)
    }

    /// A session is removed. [`Self::keep`] writes it down.
    pub(super) fn insert(&mut self, workspace: &str, id: &SessionId, numbers: SessionCounters) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let removed = now.unwrap_or_default().as_secs();
        let key = (workspace.to_owned(), id.clone());
        self.tombstones.insert(key, Tombstone { counters: numbers, removed });
    }

    /// Writes down what is known of a session.
    pub(super) fn persist(&self, workspace: &str, id: &SessionId) -> io::Result<()> {
        let key = (workspace.to_owned(), id.clone());
        let Some(past) = self.tombstones.get(&key) else {
            return Ok(());
        };
        let mut file = File::options().append(true).create(true).mode(0o600).open(&self.path)?;
        // One that was cut off before is no part of this one.
        let mut line = b"\n".to_vec();
        line.append(&mut encode_line(&key, past)?);
        file.write_all(&line)?;
        file.sync_data()
    }

    /// Forgets those that were removed longer ago, and the oldest where there are too many.
    pub(super) fn prune(&mut self, age: Duration) -> io::Result<()> {
        let since = SystemTime::now().checked_sub(age).unwrap_or(UNIX_EPOCH);
        let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut times: Vec<_> = self.tombstones.values().map(|past| past.removed).collect();
        times.sort_unstable_by(|one, other| other.cmp(one));
        let too_many = times.get(MAX_TOMBSTONES).map_or(0, |time| time + 1);
        let since = since.as_secs().max(too_many);
        if times.last().is_none_or(|oldest| *oldest >= since) {
            return Ok(());
        }
        let mut kept = self.tombstones.clone();
        kept.retain(|_, past| past.removed >= since);
        let new = self.path.with_extension("new");
        let file =
            File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        let mut writer = BufWriter::new(&file);
        for (key, past) in &kept {
            writer.write_all(&encode_line(key, past)?)?;
        }
        writer.flush()?;
        drop(writer);
        file.sync_data()?;
        fs::rename(new, &self.path)?;
        self.tombstones = kept;
        Ok(())
    }
}

fn encode_line((workspace, id): &(String, SessionId), past: &Tombstone) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&TombstoneLine {
        workspace: workspace.clone(),
        session: id.as_str().to_owned(),
        removed: past.removed,
        numbers: past.counters.clone(),
    })?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(step: u64) -> SessionCounters {
        SessionCounters { step, sequence: step * 2, time: String::new() }
    }

    #[test]
    fn they_are_known_again_and_forgotten_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("past");
        let read = || SessionTombstones::load(path.clone()).unwrap();
        let step = |past: &SessionTombstones, workspace: &str| {
            let found = past.counters(workspace, &SessionId::default());
            found.map(|numbers| numbers.step)
        };
        let mut past = read();
        for (workspace, steps) in [("a", 3), ("b", 4), ("a", 5)] {
            past.insert(workspace, &SessionId::default(), numbers(steps));
            past.persist(workspace, &SessionId::default()).unwrap();
        }
        // One that a crash has cut off.
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str("{\"workspace\":\"a\",\"ses");
        fs::write(&path, text).unwrap();
        past.insert("c", &SessionId::default(), numbers(6));
        past.persist("c", &SessionId::default()).unwrap();
        for past in [&past, &read()] {
            let found = ["a", "b", "c", "d"].map(|workspace| step(past, workspace));
            assert_eq!(found, [Some(5), Some(4), Some(6), None]);
        }
        past.prune(Duration::from_secs(1000)).unwrap();
        assert_eq!(step(&read(), "a"), Some(5));
        past.tombstones.values_mut().for_each(|past| past.removed -= 2000);
        past.prune(Duration::from_secs(1000)).unwrap();
        for past in [&past, &read()] {
            assert_eq!(step(past, "a"), None);
        }
    }

    #[test]
    fn there_are_no_more_than_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let mut past = SessionTombstones::load(folder.path().join("past")).unwrap();
        for number in 0..=MAX_TOMBSTONES as u64 {
            past.insert(&format!("{number}"), &SessionId::default(), numbers(1));
            let key = (format!("{number}"), SessionId::default());
            past.tombstones.get_mut(&key).unwrap().removed += number;
        }
        past.prune(Duration::from_secs(1000)).unwrap();
        assert_eq!(past.tombstones.len(), MAX_TOMBSTONES);
        assert!(past.counters("0", &SessionId::default()).is_none());
    }
}
