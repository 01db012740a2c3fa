//! Makes the slots of a pool, and starts the template that makes them.

use std::sync::Arc;

use super::{NewSlot, SandboxPool, build::io_failure};
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
        if template.as_ref().is_some_and(|(_, generation)| *generation != current) {
            *template = None;
        }

        let mut started_here = false;
        loop {
            if template.is_none() {
                *template = Some(self.start_template().await?);
                started_here = true;
            }
            let Some((channel, generation)) = template.as_ref() else {
                continue;
            };

            match channel.request(&MakeSlotRequest, self.workspace, Stage::SlotNamespace).await {
                Ok((_, socket)) => {
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

    async fn start_template(&self) -> Result<(Channel, u64), StageFailure> {
        let files_before = self.protected_files.find();

        let keeper = self.context.keeper.lock().await;
        let spec = TemplateSpec { workspace: self.workspace, level: self.state().level };
        let (_, socket) = keeper
            .request(&KeeperRequest::StartTemplate(spec), self.workspace, Stage::Launcher)
            .await?;
        drop(keeper);

        let template = Channel::new(socket).map_err(|error| io_failure(&error))?;
        let (identity, _) = template.receive_reply(self.workspace, Stage::BuildRoot).await?;
        self.state().identity = Some(identity);

        // The template has created missing files by now. A file replaced in between is found by the
        // next check.
        let generation = self.protected_files.record(files_before);
        Ok((template, generation))
    }
}
