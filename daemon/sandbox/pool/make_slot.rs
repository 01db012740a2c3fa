//! Makes the slots of a pool, and starts the template that makes them.

use std::sync::Arc;

use super::{NewSlot, PoolTemplate, SandboxPool, build::io_failure, pool_closed_failure};
use crate::daemon::sandbox::{
    channel::Channel,
    proxy_listener::ProxyListener,
    stage::{Stage, StageFailure},
    wire::{KeeperRequest, MakeSlotRequest, TemplateSpec},
};

impl SandboxPool {
    /// Requests a slot from the template. First has the keeper start the template if none runs or
    /// the protected files have changed.
    pub(super) async fn make_slot(&self) -> Result<NewSlot, StageFailure> {
        let mut template = self.template.lock().await;
        let current = self.protected_files.generation();
        if template.as_ref().is_some_and(|template| template.generation != current) {
            *template = None;
        }

        let mut started_here = false;
        loop {
            if template.is_none() {
                *template = Some(self.start_template().await?);
                started_here = true;
            }
            let Some(PoolTemplate { channel, generation, .. }) = template.as_ref() else {
                continue;
            };

            match channel.request(&MakeSlotRequest, self.workspace, Stage::SlotNamespace).await {
                Ok([socket]) => {
                    let slot = Channel::new(socket).map_err(|error| io_failure(&error))?;
                    let (_, fds) = slot.receive_reply(self.workspace, Stage::SlotNamespace).await?;
                    let listener = fds
                        .into_iter()
                        .next()
                        .map(ProxyListener::new)
                        .transpose()
                        .map_err(|error| io_failure(&error))?;
                    return Ok((slot, listener.map(Arc::new), *generation));
                }
                // The template had died, perhaps long ago. Retried once with a new one.
                Err(failure) if !started_here && failure.is_disconnection() => *template = None,
                Err(failure) => {
                    if failure.is_disconnection() {
                        *template = None;
                    }
                    return Err(failure);
                }
            }
        }
    }

    async fn start_template(&self) -> Result<PoolTemplate, StageFailure> {
        if self.state().is_closed {
            return Err(pool_closed_failure());
        }
        let files_before = self.protected_files.find();

        let keeper = self.context.keeper.lock().await;
        let spec = TemplateSpec {
            workspace: self.workspace,
            created: self.created.clone(),
            level: self.state().level,
        };
        let [socket, pidfd] = keeper
            .request(&KeeperRequest::StartTemplate(spec), self.workspace, Stage::Launcher)
            .await?;
        drop(keeper);

        let channel = Channel::new(socket).map_err(|error| io_failure(&error))?;
        let (identity, _) = channel.receive_reply(self.workspace, Stage::BuildRoot).await?;
        self.state().identity = Some(identity);

        // The template has created missing files by now. A file replaced in between is found by the
        // next check.
        let generation = self.protected_files.record(files_before);
        Ok(PoolTemplate { channel, generation, pidfd })
    }
}
