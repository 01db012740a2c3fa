//! `jig mcp`: serves the tools to an MCP client over standard input and output.

use std::process::ExitCode;

use clap::Args;
use jig::{
    api::v1::ListToolsRequest,
    client::Client,
    mcp::{self, McpServer},
};
use rustix::rand::{GetRandomFlags, getrandom};

use super::report_and_exit;
use crate::{cli_error::CliError, connection, global::GlobalArgs, local_error::LocalError};

/// Serve the tools to an MCP client (Model Context Protocol) over standard input and output.
///
/// An MCP client starts this command itself, such as Claude Code or Claude Desktop. Without
/// --address, the tools work in the current directory, and end with the client.
#[derive(Debug, Args)]
pub(crate) struct McpArgs {
    /// Dialect of the tools: `agentbench`, `anthropic`, `claude`, `cli_agent`, `dracode`,
    /// `openai` or `rauskuclaw`. Default: jig's own names.
    #[arg(long, value_name = "NAME")]
    dialect: Option<String>,
}

pub(crate) fn mcp(global: &GlobalArgs, args: McpArgs) -> ExitCode {
    let served = serve(global, args.dialect.unwrap_or_default());
    report_and_exit(served, global.json)
}

fn serve(global: &GlobalArgs, dialect: String) -> Result<(), CliError> {
    global.reject_request_id("each MCP request has its own: `jig-request-id` in `_meta`")?;
    connection::call(global, async move |client: Client| {
        // An unknown dialect, or a missing key, fails here, where the user sees it.
        let request = ListToolsRequest { dialect: dialect.clone(), ..ListToolsRequest::default() };
        client.list_tools(request).await?;

        let server = McpServer::new(client.grpc_backend(), dialect, state_key()?);
        mcp::serve_stdio(server).await.map_err(CliError::system)
    })
}

/// Creates the key that seals the state of calls. The state ends with this process.
fn state_key() -> Result<[u8; 32], CliError> {
    let mut key = [0; 32];
    let filled = getrandom(&mut key, GetRandomFlags::empty());
    filled.map_err(|error| LocalError::new("cannot read random bytes", &error.into()))?;
    Ok(key)
}
