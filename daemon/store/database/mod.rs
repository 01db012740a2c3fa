//! The database of a state directory: SQLite in WAL mode with synchronous=NORMAL.
//!
//! Acknowledged changes survive the death of the daemon. A power failure may lose the last moments
//! (<https://sqlite.org/wal.html>, "Performance Considerations").

mod connection;
mod integrity;
mod open;

pub(crate) use self::{
    connection::{Database, DatabaseError},
    open::DatabaseOpenError,
};
