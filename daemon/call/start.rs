//! Calls that start a command and do not wait for it: the tool `run`, but its answer goes to whoever
//! watches.

use std::sync::Arc;

use super::{Pipeline, context::Incoming};
use crate::daemon::{
    error::Error,
    process::{live::Reader, registry::Entry, transcript::Position},
    task,
    tool::{Tool, start::Start},
};

impl Pipeline {
    /// Starts a command; answers its first reader. That it was not started after all is what this
    /// one reads, too.
    pub(crate) async fn start(
        self: &Arc<Self>,
        incoming: Incoming,
        request: <Start as Tool>::Request,
    ) -> Result<Reader, Error> {
        let workspace = self.scene(&incoming)?.workspace.name().to_owned();
        let session = incoming.session.as_str().to_owned();
        let begun = self.begin::<Start>(incoming, request).await?;
        let process = Arc::clone(begun.params.process());
        let reader = process.read(Position::default()).map_err(Error::internal)?;
        self.processes.add(Entry {
            workspace,
            session,
            process: Arc::clone(&process),
        });
        let (task, abandon) = begun.spawn(self);
        process.set_abandon(abandon);
        let processes = Arc::clone(&self.processes);
        task::spawn_tracked("end of a process", async move {
            let result = task
                .await
                .map_err(Error::internal)
                .and_then(|result| result);
            process.end(result);
            if process.transcript.has_started() {
                processes.ended(&process);
            } else {
                processes.remove(&process);
            }
        });
        Ok(reader)
    }
}
