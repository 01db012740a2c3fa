//! Deletes the rows of jobs that ended long ago.

use std::{sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::session::PostgresSession;
use crate::daemon::fleet::work_source::SourceUnavailable;

/// How often a daemon deletes old rows.
const DELETION_INTERVAL: Duration = Duration::from_secs(600);
/// The same after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Rows that one statement deletes. Their results can be large, and calls wait meanwhile.
const MAX_DELETED_ROWS: i64 = 200;

/// `$1` seconds of the retention, `$2` count. Daemons that delete at the same time share the rows.
const DELETE_OLD: &str = "
    DELETE FROM jig_jobs WHERE id = ANY (ARRAY(
        SELECT id FROM jig_jobs
        WHERE state = 'ended' AND ended_at < now() - make_interval(secs => $1)
        LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING 1";

/// Deletes old rows every [`DELETION_INTERVAL`], until `stop` is cancelled.
pub(crate) async fn delete_old_rows(session: Arc<PostgresSession>, stop: CancellationToken) {
    let mut ticks = interval(DELETION_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let delete = async {
        loop {
            ticks.tick().await;
            if let Err(error) = delete_all(&session).await {
                tracing::warn!(%error, "cannot delete the old jobs of the fleet yet");
                ticks.reset_after(RETRY_INTERVAL);
            }
        }
    };
    stop.run_until_cancelled(delete).await;
}

/// Deletes all rows that are old now.
async fn delete_all(session: &PostgresSession) -> Result<(), SourceUnavailable> {
    let retention = session.result_retention.as_secs_f64();
    while !session.query(DELETE_OLD, &[&retention, &MAX_DELETED_ROWS]).await?.is_empty() {}
    Ok(())
}
