//! Sessions of MCP clients before revision 2026-07-28: a bounded number, each bound to its caller.
//!
//! A session receives messages of its client outside of the request that they concern, such as the
//! answer to a question. So the id of a session must not let another caller in.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rmcp::{
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::{
        WorkerTransport,
        streamable_http_server::session::{
            ServerSseMessage, SessionId, SessionManager,
            local::{LocalSessionManager, LocalSessionManagerError, LocalSessionWorker},
        },
    },
};
use tokio_stream::Stream;

/// Maximum number of sessions of all callers.
const MAX_SESSIONS: usize = 1024;
/// Maximum number of sessions of one caller.
const MAX_SESSIONS_PER_CALLER: usize = 256;
/// Time without a message after which a session ends. A command may run that long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

tokio::task_local! {
    /// Principal of the request that this task handles.
    static CALLER: String;
}

/// The sessions of the daemon.
#[derive(Debug)]
pub(super) struct McpSessions {
    sessions: LocalSessionManager,
    /// The principal of each session.
    owners: Mutex<HashMap<SessionId, String>>,
}

/// Why a session cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionFailure {
    #[error(transparent)]
    Session(#[from] LocalSessionManagerError),
    #[error("{MAX_SESSIONS} MCP sessions are open, the maximum: retry when one has ended")]
    TooMany,
    #[error(
        "this caller has {MAX_SESSIONS_PER_CALLER} MCP sessions, the maximum: end some with DELETE"
    )]
    TooManyOfCaller,
    #[error("a session was opened outside of a request")]
    NoCaller,
}

impl McpSessions {
    pub(super) fn new() -> Self {
        let mut sessions = LocalSessionManager::default();
        sessions.session_config.keep_alive = Some(IDLE_TIMEOUT);
        Self { sessions, owners: Mutex::default() }
    }

    /// Returns whether a session belongs to a principal.
    pub(super) fn is_owner(&self, id: &str, principal: &str) -> bool {
        let owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        owners.get(id).is_some_and(|owner| owner == principal)
    }

    /// Returns whether a principal may open another session.
    pub(super) async fn may_open(&self, principal: &str) -> bool {
        self.owned_sessions(principal).await < MAX_SESSIONS_PER_CALLER
    }

    /// Handles a request of a principal. The session that it opens belongs to the principal.
    ///
    /// The library decides by the body whether a request opens one, so headers are no basis for
    /// the limit.
    pub(super) async fn handle<F: Future>(principal: String, handling: F) -> F::Output {
        CALLER.scope(principal, handling).await
    }

    async fn owned_sessions(&self, principal: &str) -> usize {
        let open = self.sessions.sessions.read().await;
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        // Sessions also end by themselves.
        owners.retain(|id, _| open.contains_key(id));
        owners.values().filter(|owner| *owner == principal).count()
    }
}

impl SessionManager for McpSessions {
    type Error = SessionFailure;
    type Transport = WorkerTransport<LocalSessionWorker>;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), SessionFailure> {
        if self.sessions.sessions.read().await.len() >= MAX_SESSIONS {
            return Err(SessionFailure::TooMany);
        }
        let principal = CALLER.try_with(String::clone).map_err(|_| SessionFailure::NoCaller)?;
        let (id, transport) = self.sessions.create_session().await?;
        {
            let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
            owners.insert(id.clone(), principal.clone());
        }
        // After the insertion, so that concurrent requests cannot exceed the limit.
        if self.owned_sessions(&principal).await > MAX_SESSIONS_PER_CALLER {
            self.close_session(&id).await?;
            return Err(SessionFailure::TooManyOfCaller);
        }
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, SessionFailure> {
        Ok(self.sessions.initialize_session(id, message).await?)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, SessionFailure> {
        Ok(self.sessions.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), SessionFailure> {
        Ok(self.sessions.close_session(id).await?)
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionFailure> {
        Ok(self.sessions.create_stream(id, message).await?)
    }

    async fn accept_message(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<(), SessionFailure> {
        Ok(self.sessions.accept_message(id, message).await?)
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionFailure> {
        Ok(self.sessions.create_standalone_stream(id).await?)
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionFailure> {
        Ok(self.sessions.resume(id, last_event_id).await?)
    }
}
