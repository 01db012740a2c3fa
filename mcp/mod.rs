//! An MCP server (Model Context Protocol) in front of jig's gRPC contract.
//!
//! [`McpServer`] translates: it turns requests of MCP into calls of `jig.v1` and their results back.
//! It has no tools, policy or limits of its own, so that a call through it leaves the same records
//! and spans, under the same principal, as a call by gRPC.
//!
//! ```text
//! tools/list        CatalogService.ListTools
//! tools/call        InvokeService.InvokeStream; for clients with tasks, JobService.SubmitJob
//! tasks/*           JobService.GetJob, CancelJob
//! elicitation       ApprovalService.GetApproval, DecideApproval
//! resources/*       ArtifactService.ListArtifacts, ReadArtifact
//! ```
//!
//! The crate `rmcp` implements the protocol: revision 2026-07-28, which has no sessions, and the
//! revisions with `initialize` beside it. `jig mcp` serves one client over standard input and
//! output ([`serve_stdio`]). The daemon serves any number of clients over HTTP, at `/mcp`.

mod approval;
mod backend;
mod call;
mod call_error;
mod malformed_request;
mod progress;
mod resource;
mod result;
mod server;
mod stdio;
mod task;
mod tool_call;

pub use self::{
    backend::{CallerIdentity, GrpcBackend, GrpcTransport, TransportError},
    server::McpServer,
    stdio::{StdioError, serve_stdio},
};
