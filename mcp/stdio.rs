//! MCP over standard input and output, for one client that starts this process.

use std::io;

use rmcp::{ServiceExt as _, service::ServerInitializeError, transport::stdio};

use super::server::McpServer;

/// Why the server over standard input and output ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StdioError {
    /// The client did not open the connection as the protocol requires.
    #[error("the MCP client sent no valid first request: {0}")]
    Handshake(String),
    /// The server failed.
    #[error("the MCP server failed: {0}")]
    Failed(#[from] io::Error),
}

/// Serves one client until it closes standard input. Standard output carries the protocol alone.
///
/// # Errors
///
/// Returns an error if the client opens the connection wrongly, or the server fails.
pub async fn serve_stdio(server: McpServer) -> Result<(), StdioError> {
    let service = match server.clone().serve(stdio()).await {
        Ok(service) => service,
        // A client that closes at once asked for nothing.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(StdioError::Handshake(error.to_string())),
    };
    service.waiting().await.map_err(io::Error::other)?;
    // Requests of a client that has gone are cancelled: they end their jobs.
    server.drain().await;
    Ok(())
}
