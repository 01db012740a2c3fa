//! The end of the work of a request id: stores its reply, or frees the id.

use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::{sleep, timeout};

use super::{Claim, Idempotency, claim_state::ClaimState, waiters::InFlightRequest};
use crate::daemon::{
    store::{database::DatabaseError, failure::STORE_RETRY_INTERVAL, requests::RequestKey},
    task,
};

/// How long waiters wait for their reply to be stored first: some hundred times the usual time.
const STORE_REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// [`STORE_RETRY_INTERVAL`] while the daemon drains: it may be waiting for nothing else.
const DRAINING_STORE_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Limit on replies that are not stored yet: some thousands of usual ones. A reply beyond it is
/// lost.
pub(super) const MAX_UNSTORED_REPLY_BYTES: usize = 64 << 20;
/// What each unstored reply counts in addition to its own bytes.
const UNSTORED_REPLY_OVERHEAD_BYTES: usize = 1024;

impl Idempotency {
    /// Stores how work has ended, and notifies the waiters: after the database has stored it, or
    /// before if the database cannot store it now.
    ///
    /// `reply` is the reply to every duplicate. Without it, the next call may claim the id.
    pub(super) async fn finish(
        self: Arc<Self>,
        key: RequestKey,
        in_flight: Arc<InFlightRequest<Claim>>,
        state: ClaimState,
        reply: Option<Bytes>,
    ) {
        let stored = timeout(STORE_REPLY_TIMEOUT, self.store_end(&key, &in_flight, reply.as_ref()))
            .await
            .unwrap_or(Err(DatabaseError::Busy));
        let Err(error) = stored else {
            return self.close(&key, &in_flight, state);
        };

        let bytes = reply.as_ref().map_or(0, Bytes::len) + UNSTORED_REPLY_OVERHEAD_BYTES;
        if self.unstored_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes
            > MAX_UNSTORED_REPLY_BYTES
        {
            self.unstored_bytes.fetch_sub(bytes, Ordering::Relaxed);
            // A later call with this id gets DAEMON_LOST.
            tracing::error!(%error, "lost the reply to a request id: cannot store it");
            return self.close(&key, &in_flight, state);
        }

        tracing::warn!(%error, "cannot store the reply to a request id yet");
        if reply.is_none() {
            let _was_unset = in_flight.release_error.set(error);
        }
        in_flight.state.send_replace(state);

        task::spawn_tracked("reply to a request id", async move {
            self.store_end_later(&key, &in_flight, reply.as_ref()).await;
            self.unstored_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.in_flight.lock().remove(&key);
        });
    }

    /// Retries to store how work has ended, until the daemon terminates.
    async fn store_end_later(
        &self,
        key: &RequestKey,
        in_flight: &InFlightRequest<Claim>,
        reply: Option<&Bytes>,
    ) {
        let draining = self.shutdown.draining_token();
        let terminate = self.shutdown.terminate_token();
        let mut last_attempt = pin!(async {
            terminate.cancelled().await;
            sleep(STORE_REPLY_TIMEOUT).await;
        });

        loop {
            let is_draining = draining.is_cancelled();
            let interval =
                if is_draining { DRAINING_STORE_RETRY_INTERVAL } else { STORE_RETRY_INTERVAL };
            let is_last = tokio::select! {
                biased;
                () = &mut last_attempt => true,
                () = draining.cancelled(), if !is_draining => false,
                () = sleep(interval) => false,
            };

            match self.store_end(key, in_flight, reply).await {
                Ok(()) => return,
                Err(error) if is_last => {
                    tracing::error!(%error, "lost the reply to a request id: cannot store it");
                    return;
                }
                Err(_) => {}
            }
        }
    }

    async fn store_end(
        &self,
        key: &RequestKey,
        in_flight: &InFlightRequest<Claim>,
        reply: Option<&Bytes>,
    ) -> Result<(), DatabaseError> {
        match reply {
            Some(reply) => {
                if !in_flight.is_stored() {
                    self.table.claim(key.clone(), in_flight.request.clone()).await?;
                }
                self.table.complete(key.clone(), reply.clone()).await
            }
            None if in_flight.is_stored() => self.table.release(key.clone()).await,
            None => Ok(()),
        }
    }
}
