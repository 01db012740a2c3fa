//! The daemon's ends of its sockets to the keeper, templates, slots and sandboxes, driven by the
//! runtime.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::io::ioctl_fionbio;
use serde::{Serialize, de::DeserializeOwned};
use tokio::io::unix::AsyncFd;

use super::{
    stage::{Stage, StageFailure},
    wire::{ReceivedMessage, SandboxIdentity, SetupReply, receive_bytes, send_bytes},
};
use crate::daemon::sys::{Errno, readiness::watch_readable};

/// A SOCK_SEQPACKET socket: it preserves message boundaries.
#[derive(Debug)]
pub(super) struct Channel(AsyncFd<OwnedFd>);

impl Channel {
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        ioctl_fionbio(&socket, true)?;
        watch_readable(socket).map(Self)
    }

    /// Sends one message, without waiting.
    ///
    /// Every message here is the only one in flight in its direction, so the socket's buffer has
    /// room. It fails if the peer misbehaves and the buffer is full.
    pub(super) fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        send_bytes(self.0.get_ref(), bytes, fds)
    }

    /// Receives one message of at most `bytes.len()` bytes, with its descriptors.
    pub(super) async fn receive(
        &self,
        bytes: &mut [u8],
    ) -> Result<(ReceivedMessage, Vec<OwnedFd>), Errno> {
        loop {
            let mut guard = self.0.readable().await.map_err(|_| Errno::IO)?;
            let mut fds = Vec::new();
            match receive_bytes(self.0.get_ref(), bytes, |fd| fds.push(fd)) {
                Err(Errno::AGAIN) => guard.clear_ready(),
                Ok(received) => return Ok((received, fds)),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Sends `message` about the workspace with this index. Waits for the reply and returns the
    /// `N` descriptors that come with it.
    ///
    /// Not cancel safe: the next request would receive this reply.
    pub(super) async fn request<T: Serialize, const N: usize>(
        &self,
        message: &T,
        workspace: usize,
        stage: Stage,
    ) -> Result<[OwnedFd; N], StageFailure> {
        let bytes = serde_json::to_vec(message)
            .map_err(|error| StageFailure::other(stage, error.to_string()))?;

        let (_, fds) = match self.send(&bytes, &[]) {
            Ok(()) => self.receive_reply(workspace, stage).await?,
            Err(errno) => {
                // A process that fails reports why before it ends. The report can still be read
                // after its end.
                let failure = StageFailure::from_errno(stage, errno, "sending a request");
                if !failure.is_disconnection() {
                    return Err(failure); // the request was not sent: there is no reply
                }
                return Err(match self.receive_reply(workspace, stage).await {
                    Err(why) if !why.is_disconnection() => why,
                    _ => failure,
                });
            }
        };

        fds.try_into()
            .map_err(|_| StageFailure::other(stage, "a reply came without its descriptors"))
    }

    /// Waits for a reply about the workspace with this index.
    pub(super) async fn receive_reply(
        &self,
        workspace: usize,
        stage: Stage,
    ) -> Result<(SandboxIdentity, Vec<OwnedFd>), StageFailure> {
        let mut bytes = [0; 4096];
        let (received, fds) = self
            .receive(&mut bytes)
            .await
            .map_err(|errno| StageFailure::from_errno(stage, errno, "receiving a reply"))?;

        let text = bytes.get(..received.length).unwrap_or_default();
        if text.is_empty() {
            return Err(StageFailure::from_errno(stage, Errno::CONNRESET, "the peer process died"));
        }

        match parse_message::<SetupReply>(text, stage)? {
            SetupReply::Done { workspace: replied, identity } if replied == workspace => {
                Ok((identity, fds))
            }
            // Never used: its sandboxes would hold the files of another workspace.
            SetupReply::Done { .. } => {
                Err(StageFailure::other(stage, "a reply is about another workspace"))
            }
            SetupReply::Failed(failure) => Err(failure),
        }
    }
}

fn parse_message<T: DeserializeOwned>(text: &[u8], stage: Stage) -> Result<T, StageFailure> {
    serde_json::from_slice(text).map_err(|error| StageFailure::other(stage, error.to_string()))
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}
