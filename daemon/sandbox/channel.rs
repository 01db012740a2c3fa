//! The daemon's ends of the sandboxes' sockets, driven by the runtime.

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

/// A socket that keeps messages apart.
#[derive(Debug)]
pub(super) struct Channel(AsyncFd<OwnedFd>);

impl Channel {
    /// Registers `socket` with the runtime.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        ioctl_fionbio(&socket, true)?;
        watch_readable(socket).map(Self)
    }

    /// Sends one message.
    ///
    /// Every message here is the only one in flight in its direction, so the socket's buffer has
    /// room; where it has not, the peer misbehaves.
    pub(super) fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        send_bytes(self.0.get_ref(), bytes, fds)
    }

    /// Receives one message, up to the length of `bytes`.
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

    /// Sends `message` about the workspace with this index and waits for the answer, with the
    /// socket that comes with it. Must not be cancelled: the answer would be taken for the next's.
    pub(super) async fn request<T: Serialize>(
        &self,
        message: &T,
        workspace: usize,
        stage: Stage,
    ) -> Result<(SandboxIdentity, OwnedFd), StageFailure> {
        let bytes = serde_json::to_vec(message)
            .map_err(|error| StageFailure::other(stage, error.to_string()))?;
        let (identity, fds) = match self.send(&bytes, &[]) {
            Ok(()) => self.receive_reply(workspace, stage).await?,
            Err(errno) => {
                // One that has failed says why before it ends: that is still to be read when it
                // cannot be asked any more.
                let failure = StageFailure::from_errno(stage, errno, "asking");
                if !failure.is_disconnection() {
                    return Err(failure); // it was not asked, and will not answer
                }
                return Err(match self.receive_reply(workspace, stage).await {
                    Err(why) if !why.is_disconnection() => why,
                    _ => failure,
                });
            }
        };
        let socket = fds
            .into_iter()
            .next()
            .ok_or_else(|| StageFailure::other(stage, "an answer came without its socket"))?;
        Ok((identity, socket))
    }

    /// Waits for an answer about the workspace with this index.
    pub(super) async fn receive_reply(
        &self,
        workspace: usize,
        stage: Stage,
    ) -> Result<(SandboxIdentity, Vec<OwnedFd>), StageFailure> {
        let mut bytes = [0; 4096];
        let (received, fds) = self
            .receive(&mut bytes)
            .await
            .map_err(|errno| StageFailure::from_errno(stage, errno, "answer"))?;
        let text = bytes.get(..received.length).unwrap_or_default();
        if text.is_empty() {
            return Err(StageFailure::from_errno(stage, Errno::CONNRESET, "its process died"));
        }
        match parse_message::<SetupReply>(text, stage)? {
            SetupReply::Done { workspace: answered, identity } if answered == workspace => {
                Ok((identity, fds))
            }
            // Never used: its sandboxes would hold somebody else's files.
            SetupReply::Done { .. } => {
                Err(StageFailure::other(stage, "an answer is about another workspace"))
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
