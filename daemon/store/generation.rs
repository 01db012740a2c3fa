//! Generation check: detects that the database lost what the previous daemon wrote to it.
//!
//! Each daemon stores a ULID, its generation, in the database and in a file. If the two differ, the
//! one with the lower value has lost writes.

use std::{fs, io, path::Path};

use rusqlite::{Connection, OptionalExtension as _};
use ulid::Ulid;

use super::{
    database::{Database, DatabaseError},
    fleet_starts,
};

/// Logs an error if the database is older than the file, then stores a new generation in both.
/// Blocks for a moment.
///
/// SQLite does not report such a loss: it takes damaged frames of its WAL, or a missing WAL, for the
/// end of what was written (<https://sqlite.org/walformat.html>).
pub(crate) async fn advance(database: &Database, file: &Path) -> Result<(), DatabaseError> {
    let in_file = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(%error, "cannot check whether the database has lost writes");
            }
            String::new()
        }
    };

    // ULIDs sort by time.
    let generation = Ulid::generate().to_string();
    let swap = {
        let (generation, in_file) = (generation.clone(), in_file.clone());
        move |connection: &Connection| {
            let previous = swap_generation(connection, &generation)?;
            if previous.as_str() < in_file.trim() {
                fleet_starts::forget(connection)?;
            }
            Ok(previous)
        }
    };
    match database.apply(swap).await {
        Ok(in_database) => {
            if in_database.as_str() < in_file.trim() {
                tracing::error!(
                    "the database lacks the last writes of the previous daemon, because jig.db-wal is damaged or missing: their jobs and request ids are lost, so a repeated call may be executed again"
                );
            }
            // Written after the database: a daemon that dies in between has lost nothing.
            if let Err(error) = fs::write(file, generation) {
                tracing::warn!(%error, "the next start cannot check whether the database has lost writes");
            }
            Ok(())
        }
        // A full disk loses nothing.
        Err(DatabaseError::Full) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Stores the generation in the database and returns the previous one.
fn swap_generation(connection: &Connection, generation: &str) -> rusqlite::Result<String> {
    let select = "SELECT CAST(value AS TEXT) FROM fact WHERE name = 'life'";
    let previous = connection.query_row(select, [], |row| row.get(0)).optional()?;
    let replace = "INSERT OR REPLACE INTO fact VALUES ('life', CAST(?1 AS BLOB))";
    connection.execute(replace, [generation])?;
    Ok(previous.unwrap_or_default())
}
