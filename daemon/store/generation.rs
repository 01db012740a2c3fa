//! Which daemon used the state directory last: as a file of its says, and as the database says. One of the
//! two that lags behind has lost what was written to it.

use std::{fs, io, path::Path};

use rusqlite::{Connection, OptionalExtension as _};
use ulid::Ulid;

use super::database::{Database, DatabaseError};

/// Looks whether the database has what the daemon before this one wrote to it, and says in the log where it
/// does not: SQLite itself takes frames of its log that are damaged, or a log that is missing, for the end of
/// what was written (<https://sqlite.org/walformat.html>). From here on, this daemon is the last one. Blocks for
/// a moment.
pub(crate) async fn advance(database: &Database, file: &Path) -> Result<(), DatabaseError> {
    let said = match fs::read_to_string(file) {
        Ok(said) => said,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(%error, "it cannot be told whether the database has lost anything");
            }
            String::new()
        }
    };
    // The later one is the greater one.
    let life = Ulid::generate().to_string();
    let change = {
        let life = life.clone();
        move |connection: &Connection| swap_generation(connection, &life)
    };
    match database.apply(change).await {
        Ok(before) => {
            if before.as_str() < said.trim() {
                tracing::error!(
                    "the database lacks what the daemon before this one wrote to it last, as jig.db-wal is damaged or missing: jobs and request ids of then are forgotten, so that a repeated call may be done again"
                );
            }
            // After the database has it: a daemon that dies between the two has lost nothing.
            if let Err(error) = fs::write(file, life) {
                tracing::warn!(%error, "it will not be told whether the database loses anything");
            }
            Ok(())
        }
        // Nothing is lost for that.
        Err(DatabaseError::Full) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Notes which daemon uses the database; answers which did before.
fn swap_generation(connection: &Connection, life: &str) -> rusqlite::Result<String> {
    let sql = "SELECT CAST(value AS TEXT) FROM fact WHERE name = 'life'";
    let before = connection.query_row(sql, [], |row| row.get(0)).optional()?;
    let sql = "INSERT OR REPLACE INTO fact VALUES ('life', CAST(?1 AS BLOB))";
    connection.execute(sql, [life])?;
    Ok(before.unwrap_or_default())
}
