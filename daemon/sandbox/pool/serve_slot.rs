//! Serves one slot of a pool: makes its sandboxes ready, one after the other.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};

use super::{
    NewSlot, SandboxPool,
    build::{
        BUILD_TIMEOUT, SlotBuilder, build_sandbox, build_timeout_failure, measure_sandbox,
        recycle_sandbox, slot_keeper_failure,
    },
};
use crate::daemon::{
    sandbox::{
        channel::Channel,
        kill::SlotOutcome,
        loopback_connection::{ConnectRequest, MAX_PENDING_CONNECTS},
        running::HolderRequest,
        stage::{Stage, StageFailure},
    },
    task,
};

/// Pause before a slot whose network namespace holds sockets of an earlier run is checked again.
const NETNS_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The requests of a sandbox's holder, and of clients that connect to its ports.
pub(super) struct SlotRequests {
    of_holder: mpsc::Receiver<HolderRequest>,
    connects: mpsc::Receiver<ConnectRequest>,
}

impl SandboxPool {
    /// Serves one slot until the pool does not need it, or the slot is lost.
    pub(super) async fn serve_slot(self: &Arc<Self>) -> Result<(), StageFailure> {
        let (mut slot, mut builder, mut requests) = self.make_slot_with_builder().await?;
        let level = builder.level;

        let mut used = None;
        loop {
            let recycled = match used.take() {
                Some(used) => recycle_sandbox(used, &builder, &self.context.limits).await,
                None => None,
            };
            let built = match recycled {
                Some(recycled) => Ok(recycled),
                None => build_sandbox(&slot, &builder, &self.context.limits).await,
            };
            let (sandbox, outcome) = match built {
                Err(failure) if failure.is_netns_in_use() => {
                    self.wait_for_netns().await;
                    continue;
                }
                built => built?,
            };
            self.pipes.refill();
            if !self.offer(sandbox) {
                return Ok(());
            }

            let outcome = serve_requests(&slot, &builder, &mut requests, outcome).await;
            self.on_sandbox_returned();

            match outcome? {
                Some(SlotOutcome::Free(sandbox)) if level.reuses_network_namespaces() => {
                    used = sandbox;
                }
                Some(SlotOutcome::Free(_)) => {
                    (slot, builder.proxy_listener, builder.generation) =
                        self.make_slot_uncancelled().await?;
                    builder.is_new_slot = AtomicBool::new(true);
                }
                Some(SlotOutcome::Quarantined(sandbox)) => {
                    self.quarantine(sandbox);
                    return Ok(());
                }
                None => return Ok(()),
            }
        }
    }

    /// Makes a slot, and what its sandboxes have in common.
    pub(super) async fn make_slot_with_builder(
        self: &Arc<Self>,
    ) -> Result<(Channel, SlotBuilder, SlotRequests), StageFailure> {
        let level = self.state().level;
        let (holder_requests, of_holder) = mpsc::channel(1);
        let (connect_requests, connects) = mpsc::channel(MAX_PENDING_CONNECTS);
        let (slot, proxy_listener, generation) = self.make_slot_uncancelled().await?;
        let builder = SlotBuilder {
            holder_requests,
            connect_requests,
            proxy_listener,
            level,
            generation,
            cgroups: self.context.cgroups.clone(),
            keeper: Arc::clone(&self.context.keeper),
            is_new_slot: AtomicBool::new(true),
            recycled_limits: (self.context.recycle && level.recycles_sandboxes())
                .then_some(self.context.limits),
            warm_shells: Arc::clone(&self.context.warm_shells),
            counts: Arc::clone(&self.context.build_counts),
        };
        Ok((slot, builder, SlotRequests { of_holder, connects }))
    }

    /// Waits while a socket of an earlier run exists in a slot's network namespace.
    ///
    /// The slot counts as in use: another slot can replace it, but the limit on slots still bounds
    /// the number of network namespaces.
    async fn wait_for_netns(self: &Arc<Self>) {
        {
            let mut state = self.state();
            state.in_use += 1;
            self.start_slot_if_needed(&mut state);
        }
        sleep(NETNS_RETRY_INTERVAL).await;
        self.on_sandbox_returned();
    }

    /// Makes a slot in a task of its own, which always runs to its end. If it were cancelled
    /// between a request and its reply, the next request would receive that reply.
    async fn make_slot_uncancelled(self: &Arc<Self>) -> Result<NewSlot, StageFailure> {
        let pool = Arc::clone(self);
        let slot = task::spawn("make slot", async move { pool.make_slot().await });
        match timeout(BUILD_TIMEOUT, slot).await {
            Ok(Ok(slot)) => slot,
            Ok(Err(_)) | Err(_) => Err(build_timeout_failure(Stage::SlotNamespace)),
        }
    }
}

/// Handles the requests of a sandbox's holder until the sandbox has been used. Returns `None` if
/// the sandbox was dropped unused.
async fn serve_requests(
    slot: &Channel,
    builder: &SlotBuilder,
    requests: &mut SlotRequests,
    mut slot_outcome: oneshot::Receiver<SlotOutcome>,
) -> Result<Option<SlotOutcome>, StageFailure> {
    loop {
        tokio::select! {
            biased;
            outcome = &mut slot_outcome => return Ok(outcome.ok()),
            Some(request) = requests.of_holder.recv() => match request {
                HolderRequest::Measure { bounds, reply } => {
                    let measurement = measure_sandbox(slot, bounds).await?;
                    let _receiver_gone = reply.send(measurement);
                }
                HolderRequest::Rebuild { limits, reply } => {
                    match build_sandbox(slot, builder, &limits).await {
                        Ok((sandbox, new_outcome)) => {
                            slot_outcome = new_outcome;
                            if reply.send(Ok(sandbox)).is_err() {
                                tracing::debug!("a sandbox was rebuilt, but its client has disconnected");
                            }
                        }
                        Err(failure) => {
                            let _receiver_gone = reply.send(Err(failure.clone()));
                            return Err(failure);
                        }
                    }
                }
            },
            // Last, so that connections do not delay measurements.
            Some(request) = requests.connects.recv() => {
                request.serve(slot).await.map_err(slot_keeper_failure)?;
            }
        }
    }
}
