//! Making the slots of a pool, and the template that they are made from.

use std::sync::Arc;

use super::{NewSlot, SandboxPool};
use crate::daemon::sandbox::{
    build::io_failure,
    channel::Channel,
    proxy_listener::ProxyListener,
    stage::{Stage, StageFailure},
    wire::{KeeperRequest, MakeSlotRequest, TemplateSpec},
};

impl SandboxPool {
    /// Has the template make a slot; has the keeper start the template where there is none, or it
    /// has died.
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
                    let entrance = fds.into_iter().next().map(ProxyListener::new).transpose();
                    let entrance = entrance.map_err(|error| io_failure(&error))?;
                    return Ok((slot, entrance.map(Arc::new), *generation));
                }
                // It died, perhaps long ago: its successor is asked, once.
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
        let found = self.protected_files.find();
        let keeper = self.context.keeper.lock().await;
        let order = TemplateSpec { workspace: self.workspace, level: self.state().level };
        let (_, socket) = keeper
            .request(&KeeperRequest::StartTemplate(order), self.workspace, Stage::Launcher)
            .await?;
        drop(keeper);
        let template = Channel::new(socket).map_err(|error| io_failure(&error))?;
        let (identity, _) = template.receive_reply(self.workspace, Stage::BuildRoot).await?;
        self.state().identity = Some(identity);
        // Missing files were made now. One that was replaced meanwhile is found by the next check.
        let generation = self.protected_files.record(found);
        Ok((template, generation))
    }
}
