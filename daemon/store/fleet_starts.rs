//! The starts of the daemon whose fleet jobs are all in this database. A job of such a start that is
//! not there, or is queued there, has never begun: its row is committed before it begins.
//!
//! The database may lose the last rows when the machine fails (synchronous=NORMAL), a copy of the file
//! lacks those that were added later, and retention removes old ones. So a start does not count any
//! more when
//!
//! * the machine has booted again,
//! * the database is another file,
//! * the file has lost writes ([`super::generation`]), or
//! * a job was removed before the fleet had its end.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path};

use rusqlite::{Connection, OptionalExtension as _};

/// Prefix of the request ids of fleet jobs whose ends the fleet does not have.
pub(crate) const UNSETTLED_PREFIX: &str = "fleet\u{1f}";
/// Starts that are kept. An earlier one has settled its jobs, or does not count.
const MAX_STARTS: usize = 16;

/// Returns what identifies the database, as long as it cannot lose rows: the boot of the machine and
/// the file.
pub(crate) fn read_place(database: &Path) -> io::Result<String> {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let file = fs::metadata(database)?;
    Ok(format!("{}:{}:{}", boot_id.trim(), file.dev(), file.ino()))
}

/// Adds a start. Removes the others if the database was elsewhere before.
pub(super) fn record(connection: &Connection, place: &str, start: &str) -> rusqlite::Result<()> {
    let stored = read(connection)?;
    let mut words = stored.split(' ');
    let mut starts: Vec<&str> = match words.next() {
        Some(known) if known == place => words.collect(),
        Some(_) | None => Vec::new(),
    };
    starts.push(start);
    let kept = &starts[starts.len().saturating_sub(MAX_STARTS)..];

    let value = format!("{place} {}", kept.join(" "));
    let replace = "INSERT OR REPLACE INTO fact VALUES ('fleet_starts', CAST(?1 AS BLOB))";
    connection.execute(replace, [value]).map(drop)
}

/// Lists the starts whose jobs are all in the database. `current` is the start of this daemon: if it
/// does not count, none does.
pub(super) fn list(connection: &Connection, current: &str) -> rusqlite::Result<Vec<String>> {
    let stored = read(connection)?;
    let starts: Vec<String> = stored.split(' ').skip(1).map(str::to_owned).collect();
    let counts = starts.iter().any(|start| start == current);
    Ok(if counts { starts } else { Vec::new() })
}

/// Whether the database has all that the last start of the daemon wrote. `false` if no start is stored.
pub(super) fn has_all_writes(connection: &Connection) -> rusqlite::Result<bool> {
    let stored = read(connection)?;
    let place = connection.path().and_then(|path| read_place(Path::new(path)).ok());
    Ok(place.is_some_and(|place| stored.split(' ').next() == Some(&*place)))
}

/// Removes all starts: a job may have been lost.
pub(super) fn forget(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM fact WHERE name = 'fleet_starts'", []).map(drop)
}

fn read(connection: &Connection) -> rusqlite::Result<String> {
    let select = "SELECT CAST(value AS TEXT) FROM fact WHERE name = 'fleet_starts'";
    let found = connection.query_row(select, [], |row| row.get(0)).optional()?;
    Ok(found.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        let table = "CREATE TABLE fact (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT";
        connection.execute_batch(table).unwrap();
        connection
    }

    #[test]
    fn starts_count_at_their_place() {
        let database = database();
        assert_eq!(list(&database, "").unwrap(), [""; 0]);
        record(&database, "here", "1").unwrap();
        record(&database, "here", "2").unwrap();
        assert_eq!(list(&database, "2").unwrap(), ["1", "2"]);
        assert_eq!(list(&database, "3").unwrap(), [""; 0], "it could not be stored");

        // After a boot, or in a copy.
        record(&database, "elsewhere", "3").unwrap();
        assert_eq!(list(&database, "3").unwrap(), ["3"]);
        record(&database, "here", "4").unwrap();
        assert_eq!(list(&database, "4").unwrap(), ["4"]);

        forget(&database).unwrap();
        assert_eq!(list(&database, "4").unwrap(), [""; 0]);
        record(&database, "here", "5").unwrap();
        assert_eq!(list(&database, "5").unwrap(), ["5"]);
    }

    #[test]
    fn the_last_starts_are_kept() {
        let database = database();
        for start in 0..=MAX_STARTS {
            record(&database, "here", &start.to_string()).unwrap();
        }
        let starts = list(&database, &MAX_STARTS.to_string()).unwrap();
        assert_eq!((starts.len(), starts[0].as_str()), (MAX_STARTS, "1"));
    }

    #[test]
    fn a_copy_is_another_place() {
        let directory = tempfile::tempdir().unwrap();
        let [first, copy] = ["first", "copy"].map(|name| directory.path().join(name));
        fs::write(&first, "").unwrap();
        fs::copy(&first, &copy).unwrap();
        assert_eq!(read_place(&first).unwrap(), read_place(&first).unwrap());
        assert_ne!(read_place(&first).unwrap(), read_place(&copy).unwrap());
        assert!(!read_place(&first).unwrap().contains(' '));
    }
}
