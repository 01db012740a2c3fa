//! Looking at what is kept of sessions: on threads that may block, and again where descriptors ran out.

use std::{io, sync::Arc};

use super::{Pipeline, context::Incoming};
use crate::daemon::{
    descriptors::Attempts,
    error::Error,
    store::{failure::state_failure, session::SessionId, sessions::Sessions},
    task,
};

impl Pipeline {
    /// What `look` finds of the workspace and the session that a call is about. `held` is held until it has
    /// ended, also where its caller has gone.
    pub(crate) async fn look<H, T>(
        &self,
        incoming: &Incoming,
        held: &Arc<H>,
        look: impl Fn(&Sessions, &str, &SessionId) -> io::Result<T> + Clone + Send + 'static,
    ) -> Result<T, Error>
    where
        H: Send + Sync + 'static,
        T: Send + 'static,
    {
        let workspace = self.scene(incoming)?.workspace.name();
        let mut attempts = Attempts::until(incoming.deadline);
        loop {
            let (workspace, id) = (workspace.to_owned(), incoming.session.clone());
            let sessions = Arc::clone(self.store.sessions());
            let (held, look) = (Arc::clone(held), look.clone());
            let looked = task::blocking(move || {
                let _held = held;
                look(&sessions, &workspace, &id)
            });
            let looked = looked.await.map_err(Error::internal)?;
            match looked.map_err(|error| state_failure(&error)) {
                Err(error) if attempts.another(&error).await => {}
                result => return result,
            }
        }
    }
}
