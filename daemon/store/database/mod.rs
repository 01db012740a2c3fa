//! The database of a state directory: SQLite in WAL mode, synchronous=NORMAL. What was answered survives
//! the death of the daemon, and that of the machine but for the last moments
//! (<https://sqlite.org/wal.html>, "Performance Considerations").

mod connection;
mod integrity;
mod open;

pub(crate) use self::{
    connection::{Database, DatabaseError},
    open::DatabaseOpenError,
};
