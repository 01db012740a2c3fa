//! Looking at what is kept of sessions: on threads that may block, and again where descriptors ran out.

use std::{io, sync::Arc};

use super::{Pipeline, context::CallContext};
use crate::daemon::{
    error::Error,
    fd_exhaustion::FdRetry,
    store::{failure::state_failure, session::SessionId, sessions::SessionStore},
    task,
};

impl Pipeline {
    /// What `look` finds of the workspace and the session that a call is about. `held` is held until it has
    /// ended, also where its caller has gone.
    pub(crate) async fn query_session<H, T>(
        &self,
        context: &CallContext,
        held: &Arc<H>,
        look: impl Fn(&SessionStore, &str, &SessionId) -> io::Result<T> + Clone + Send + 'static,
    ) -> Result<T, Error>
    where
        H: Send + Sync + 'static,
        T: Send + 'static,
    {
        let workspace = self.workspace_context(context)?.workspace.name();
        let mut attempts = FdRetry::with_deadline(context.deadline);
        loop {
            let (workspace, id) = (workspace.to_owned(), context.session.clone());
            let sessions = Arc::clone(self.state_dir.sessions());
            let (held, look) = (Arc::clone(held), look.clone());
            let looked = task::spawn_blocking(move || {
                let _held = held;
                look(&sessions, &workspace, &id)
            });
            let looked = looked.await.map_err(Error::internal)?;
            match looked.map_err(|error| state_failure(&error)) {
                Err(error) if attempts.should_retry(&error).await => {}
                result => return result,
            }
        }
    }
}
