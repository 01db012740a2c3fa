//! Rust client for the daemon's gRPC API.
//!
//! [`Client`] connects over TCP, TLS or a Unix socket and has one method per RPC. It adds the context of
//! a call (API key, workspace, session, deadline, trace) as metadata, and turns a failed status
//! into a [`CallError`] with the daemon's reason. The command `jig` (`main.rs`) is built on it and
//! is not part of the library.
//!
//! # Running a command
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
//!
//! # Streaming the output of a command
//!
//! [`Client::start`] returns a stream of events. After a lost connection, [`Client::attach`] resumes
//! at [`ProcessEvents::position`].
//!
//! ```no_run
//! # use jig::{api::v1::StartRequest, client::{Client, ProcessEvent}};
//! # async fn example(client: Client) -> Result<(), Box<dyn std::error::Error>> {
//! let request = StartRequest { command: Some("make".into()), ..Default::default() };
//! let mut events = client.start(request).await?;
//! while let Some(event) = events.next().await? {
//!     match event {
//!         ProcessEvent::Stdout(output) => print!("{}", String::from_utf8_lossy(&output.data)),
//!         ProcessEvent::Exited(exited) => println!("exit code: {:?}", exited.exit_code),
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Handling errors
//!
//! A command that ran is a normal response, whatever its exit code. A call that failed is a
//! [`CallError`]; its reason is one that the contract lists.
//!
//! ```no_run
//! # use jig::{api::v1::ReadFileRequest, client::Client};
//! # async fn example(client: Client) -> Result<(), Box<dyn std::error::Error>> {
//! let request = ReadFileRequest { path: "notes.md".into(), ..Default::default() };
//! match client.read_file(request).await {
//!     Ok(response) => println!("{}", response.content),
//!     Err(error) if error.name() == "FILE_NOT_FOUND" => println!("no notes yet"),
//!     Err(error) => return Err(error.into()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Copying files
//!
//! [`Client::send_file`] and [`Client::receive_file`] copy files of any size. They resume after a
//! lost connection. [`Client::upload_tree`] and [`Client::download_tree`] transfer a whole directory
//! as a tar archive, which [`crate::archive`] writes and reads.
//!
//! ```no_run
//! # use jig::client::Client;
//! # async fn example(client: Client) -> Result<(), Box<dyn std::error::Error>> {
//! use std::fs::File;
//!
//! let mut file = File::options().read(true).write(true).create_new(true).open("result.tar")?;
//! let summary = client
//!     .receive_file("out/result.tar", &mut file, |received, size| eprintln!("{received}/{size}"))
//!     .await?;
//! println!("{} bytes, SHA-256 {}", summary.size_bytes, summary.sha256);
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
mod port;
mod process;
#[cfg(feature = "daemon")]
#[cfg(test)]
mod process_tests;
mod tls;
mod transfer;
mod tree;
mod watch;
#[cfg(feature = "daemon")]
#[cfg(test)]
mod wire_tests;
mod workspaces;

pub use address::{DaemonAddress, InvalidAddress};
pub use approval::ApprovalEvents;
pub use artifact_parts::{ArtifactParts, CopyError};
pub use call::Client;
pub use connect::{ConnectError, Options};
pub use content::{BytePages, LinePages};
pub use error::{CallError, FieldViolation};
pub use events::SessionEvents;
pub use health::ServingStatus;
pub use invoke::InvokeEvents;
pub use job::JobEvents;
pub use pages::FilePages;
pub use port::{PortReader, PortWriter};
pub use process::{ProcessEvent, ProcessEvents};
pub use tls::{InvalidTlsOption, TlsOptions};
pub use tonic::Code;
pub use transfer::{DownloadParts, DownloadSummary, Sha256Sum, TransferError, sha256_of};
pub use tree::TreeParts;
pub use watch::FileChanges;

/// The former name of [`DaemonAddress`].
#[deprecated(note = "renamed to `DaemonAddress`")]
pub type Address = DaemonAddress;
/// The former name of [`DownloadSummary`].
#[deprecated(note = "renamed to `DownloadSummary`")]
pub type Downloaded = DownloadSummary;
