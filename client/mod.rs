//! Rust client for the daemon's gRPC API.
//!
//! [`Client`] connects over TCP or a Unix socket and has one method per RPC. It adds the context of
//! a call (API key, workspace, session, deadline, trace) as metadata, and turns a failed status
//! into a [`CallError`] with the daemon's reason. The command `jig` (`main.rs`) is built on it and
//! is not part of the library.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use jig::{api::v1::RunRequest, client::{Client, Options}};
//!
//! let client = Client::connect("127.0.0.1:50051", Options::default()).await?;
//! let response = client
//!     .run(RunRequest { command: Some("make test".into()), ..Default::default() })
//!     .await?;
//! println!("{}", response.stdout);
//! # Ok(())
//! # }
//! ```

mod address;
mod approval;
mod artifact_parts;
mod call;
mod connect;
mod connector;
mod content;
mod deadline;
mod error;
mod events;
mod health;
mod invoke;
mod job;
mod methods;
mod pages;
mod process;
#[cfg(feature = "daemon")]
#[cfg(test)]
mod process_tests;
mod transfer;
#[cfg(feature = "daemon")]
#[cfg(test)]
mod wire_tests;

pub use address::{DaemonAddress, InvalidAddress};
pub use approval::ApprovalEvents;
pub use artifact_parts::{ArtifactParts, CopyError};
pub use call::Client;
pub use connect::{ConnectError, Options};
pub use content::{BytePages, LinePages};
pub use error::{CallError, FieldViolation};
pub use events::SessionEvents;
pub use health::ServingStatus;
pub use job::JobEvents;
pub use pages::FilePages;
pub use process::{ProcessEvent, ProcessEvents};
pub use tonic::Code;
pub use transfer::{DownloadParts, DownloadSummary, TransferError, sha256_of};
