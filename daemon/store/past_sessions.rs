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

use super::session::{Numbers, SessionId};

/// Most of them: some 10 MiB of a file. Beyond that the oldest are forgotten.
const MOST: usize = 50_000;

/// Those that were removed.
#[derive(Debug)]
pub(super) struct PastSessions {
    path: PathBuf,
    known: HashMap<(String, SessionId), Past>,
}

/// One of them.
#[derive(Debug, Clone)]
struct Past {
    numbers: Numbers,
    /// Seconds from the epoch to its removal.
    removed: u64,
}

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    workspace: String,
    session: String,
    removed: u64,
    #[serde(flatten)]
    numbers: Numbers,
}

impl PastSessions {
    /// Those that the file at `path` tells of. A line that is none is left out.
    pub(super) fn read(path: PathBuf) -> io::Result<Self> {
        let mut known = HashMap::new();
        match File::open(&path) {
            Ok(file) => {
                for line in BufReader::new(file).split(b'\n') {
                    let Ok(line) = serde_json::from_slice::<Line>(&line?) else {
                        continue;
                    };
                    if let Some(id) = SessionId::parse(&line.session) {
                        let past = Past { numbers: line.numbers, removed: line.removed };
                        known.insert((line.workspace, id), past); // the last one of an id is right
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(Self { path, known })
    }

    /// What numbers a session had got to when it was removed.
    pub(super) fn numbers(&self, workspace: &str, id: &SessionId) -> Option<&Numbers> {
        let key = (workspace.to_owned(), id.clone());
        self.known.get(&key).map(|past| &past.numbers)
    }

    /// A session is removed. [`Self::keep`] writes it down.
    pub(super) fn add(&mut self, workspace: &str, id: &SessionId, numbers: Numbers) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let removed = now.unwrap_or_default().as_secs();
        let key = (workspace.to_owned(), id.clone());
        self.known.insert(key, Past { numbers, removed });
    }

    /// Writes down what is known of a session.
    pub(super) fn keep(&self, workspace: &str, id: &SessionId) -> io::Result<()> {
        let key = (workspace.to_owned(), id.clone());
        let Some(past) = self.known.get(&key) else {
            return Ok(());
        };
        let mut file = File::options().append(true).create(true).mode(0o600).open(&self.path)?;
        // One that was cut off before is no part of this one.
        let mut line = b"\n".to_vec();
        line.append(&mut written(&key, past)?);
        file.write_all(&line)?;
        file.sync_data()
    }

    /// Forgets those that were removed longer ago, and the oldest where there are too many.
    pub(super) fn forget(&mut self, age: Duration) -> io::Result<()> {
        let since = SystemTime::now().checked_sub(age).unwrap_or(UNIX_EPOCH);
        let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut times: Vec<_> = self.known.values().map(|past| past.removed).collect();
        times.sort_unstable_by(|one, other| other.cmp(one));
        let too_many = times.get(MOST).map_or(0, |time| time + 1);
        let since = since.as_secs().max(too_many);
        if times.last().is_none_or(|oldest| *oldest >= since) {
            return Ok(());
        }
        let mut kept = self.known.clone();
        kept.retain(|_, past| past.removed >= since);
        let new = self.path.with_extension("new");
        let file =
            File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        let mut writer = BufWriter::new(&file);
        for (key, past) in &kept {
            writer.write_all(&written(key, past)?)?;
        }
        writer.flush()?;
        drop(writer);
        file.sync_data()?;
        fs::rename(new, &self.path)?;
        self.known = kept;
        Ok(())
    }
}

fn written((workspace, id): &(String, SessionId), past: &Past) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&Line {
        workspace: workspace.clone(),
        session: id.as_str().to_owned(),
        removed: past.removed,
        numbers: past.numbers.clone(),
    })?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(step: u64) -> Numbers {
        Numbers { step, sequence: step * 2, time: String::new() }
    }

    #[test]
    fn they_are_known_again_and_forgotten_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("past");
        let read = || PastSessions::read(path.clone()).unwrap();
        let step = |past: &PastSessions, workspace: &str| {
            let found = past.numbers(workspace, &SessionId::default());
            found.map(|numbers| numbers.step)
        };
        let mut past = read();
        for (workspace, steps) in [("a", 3), ("b", 4), ("a", 5)] {
            past.add(workspace, &SessionId::default(), numbers(steps));
            past.keep(workspace, &SessionId::default()).unwrap();
        }
        // One that a crash has cut off.
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str("{\"workspace\":\"a\",\"ses");
        fs::write(&path, text).unwrap();
        past.add("c", &SessionId::default(), numbers(6));
        past.keep("c", &SessionId::default()).unwrap();
        for past in [&past, &read()] {
            let found = ["a", "b", "c", "d"].map(|workspace| step(past, workspace));
            assert_eq!(found, [Some(5), Some(4), Some(6), None]);
        }
        past.forget(Duration::from_secs(1000)).unwrap();
        assert_eq!(step(&read(), "a"), Some(5));
        past.known.values_mut().for_each(|past| past.removed -= 2000);
        past.forget(Duration::from_secs(1000)).unwrap();
        for past in [&past, &read()] {
            assert_eq!(step(past, "a"), None);
        }
    }

    #[test]
    fn there_are_no_more_than_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let mut past = PastSessions::read(folder.path().join("past")).unwrap();
        for number in 0..=MOST as u64 {
            past.add(&format!("{number}"), &SessionId::default(), numbers(1));
            let key = (format!("{number}"), SessionId::default());
            past.known.get_mut(&key).unwrap().removed += number;
        }
        past.forget(Duration::from_secs(1000)).unwrap();
        assert_eq!(past.known.len(), MOST);
        assert!(past.numbers("0", &SessionId::default()).is_none());
    }
}
