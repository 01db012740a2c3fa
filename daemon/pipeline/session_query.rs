//! Queries of stored sessions, on blocking threads, with retries when file descriptors run out.

use std::{io, sync::Arc, time::Instant};

use super::{Pipeline, context::CallContext};
use crate::daemon::{
    error::Error,
    fd_exhaustion::FdRetry,
    store::{failure::state_failure, session::SessionId, sessions::SessionStore},
    task,
};

impl Pipeline {
    /// Runs `query` on the workspace and the session of a call. Keeps `held` alive until the query
    /// has ended, even if the client has disconnected.
    pub(crate) async fn query_session<H, T>(
        &self,
        context: &CallContext,
        held: &Arc<H>,
        query: impl Fn(&SessionStore, &str, &SessionId) -> io::Result<T> + Clone + Send + 'static,
    ) -> Result<T, Error>
    where
        H: Send + Sync + 'static,
        T: Send + 'static,
    {
        let workspace_context = self.resolve_workspace(context)?;
        let session = (workspace_context.workspace.name(), &context.session);
        let result = self.query_stored_session(session, context.deadline, held, query).await;
        workspace_context.require_undeleted()?;
        result
    }

    /// Runs `query` on a session of a workspace, as [`Self::query_session`] does.
    pub(crate) async fn query_stored_session<H, T>(
        &self,
        (workspace, session): (&str, &SessionId),
        deadline: Option<Instant>,
        held: &Arc<H>,
        query: impl Fn(&SessionStore, &str, &SessionId) -> io::Result<T> + Clone + Send + 'static,
    ) -> Result<T, Error>
    where
        H: Send + Sync + 'static,
        T: Send + 'static,
    {
        let mut attempts = FdRetry::with_deadline(deadline);
        loop {
            let (workspace, session) = (workspace.to_owned(), session.clone());
            let sessions = Arc::clone(self.state_dir.sessions());
            let (held, query) = (Arc::clone(held), query.clone());
            let queried = task::spawn_blocking(move || {
                let _held = held;
                query(&sessions, &workspace, &session)
            });

            let result = queried.await.map_err(Error::internal)?;
            match result.map_err(|error| state_failure(&error)) {
                Err(error) if attempts.should_retry(&error).await => {}
                result => return result,
            }
        }
    }
}
