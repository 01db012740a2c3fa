//! The database of a state directory: SQLite in WAL mode with synchronous=NORMAL.
//!
//! Acknowledged changes survive the death of the daemon. A power failure may lose the last moments
//! (<https://sqlite.org/wal.html>, "Performance Considerations").
//!
//! Some columns keep the names that earlier versions gave them:
//!
//! | column | name in the code |
//! |---|---|
//! | `request.life`; `fact`, name `life` | generation |
//! | `request.holder` | `key_fingerprint` |
//! | `request.answer`, `answer_bytes` | reply |
//! | `job.given_id` | `model_call_id` |
//! | `approval.asked_by`, `asked_ms` | `required_by`, `requested_ms` |
//! | `approval.decided_ms`, `decided_by` | `ended_ms`, `ended_by` |
//! | `approval.said_as` | `called_name` |
//!
//! The table `fact` holds facts about the file, such as the salt of fingerprints.

mod connection;
mod error;
mod integrity;
mod open;
mod shared_connection;

pub(crate) use self::{connection::Database, error::DatabaseError, open::DatabaseOpenError};
