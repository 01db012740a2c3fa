//! What the table stores about jobs of the fleet.

use rusqlite::Connection;

use super::JobTable;
use crate::daemon::store::{database::DatabaseError, fleet_starts};

impl JobTable {
    /// Changes the request id of a job.
    pub(crate) async fn change_request_id(
        &self,
        from: String,
        to: String,
    ) -> Result<(), DatabaseError> {
        let change = move |connection: &Connection| {
            let update = "UPDATE job SET request = ?2 WHERE request = ?1";
            connection.prepare_cached(update)?.execute([&from, &to])
        };
        self.database.apply_briefly(change).await.map(drop)
    }

    /// Adds a start of this daemon to [`fleet_starts`].
    pub(crate) async fn record_fleet_start(
        &self,
        place: String,
        start: String,
    ) -> Result<(), DatabaseError> {
        let record =
            move |connection: &Connection| fleet_starts::record(connection, &place, &start);
        self.database.apply(record).await
    }

    /// Lists the starts whose fleet jobs are all in this table. `current` is that of this daemon.
    pub(crate) async fn list_fleet_starts(
        &self,
        current: String,
    ) -> Result<Vec<String>, DatabaseError> {
        let list = move |connection: &Connection| fleet_starts::list(connection, &current);
        self.database.read(list).await
    }
}
