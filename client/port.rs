//! Connections to ports of processes.

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{Code, Streaming};

use super::{call::Client, deadline::CallDeadline, error::CallError};
use crate::api::v1::{
    EndOfPortData, ForwardPortRequest, ForwardPortResponse, ForwardPortStart, forward_port_request,
    forward_port_response::Part,
};

/// Messages that wait for the daemon.
const SEND_BUFFER_MESSAGES: usize = 2;
/// Largest message that the daemon accepts, in bytes.
const MAX_DATA_BYTES: usize = 1 << 20;

/// The sending half of a connection to a port. Dropping it without [`Self::finish`] resets the
/// connection.
#[derive(Debug)]
pub struct PortWriter {
    messages: mpsc::Sender<ForwardPortRequest>,
}

/// The receiving half of a connection to a port. Dropping it resets the connection.
#[derive(Debug)]
pub struct PortReader {
    messages: Streaming<ForwardPortResponse>,
    deadline: CallDeadline,
    address: String,
    has_ended: bool,
}

impl Client {
    /// Connects to a TCP port of a process, in the network of its run.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails: `PORT_REFUSED` if nothing listens there.
    pub async fn forward_port(
        &self,
        start: ForwardPortStart,
    ) -> Result<(PortReader, PortWriter), CallError> {
        let (messages, receiver) = mpsc::channel(SEND_BUFFER_MESSAGES);
        let first = ForwardPortRequest { part: Some(forward_port_request::Part::Start(start)) };
        let requests = tokio_stream::once(first).chain(ReceiverStream::new(receiver));

        let deadline = self.deadline();
        let mut processes = self.processes();
        let call = processes.forward_port(self.with_context(requests));
        let mut responses = deadline.enforce(call).await?.into_inner();
        let first = deadline.enforce(responses.message()).await?.and_then(|first| first.part);
        let Some(Part::Connected(connected)) = first else {
            let text = "the daemon did not report the connection";
            return Err(CallError::local(Code::DataLoss, text));
        };
        let reader = PortReader {
            messages: responses,
            deadline,
            address: connected.address,
            has_ended: false,
        };
        Ok((reader, PortWriter { messages }))
    }
}

impl PortWriter {
    /// Sends bytes to the server. Waits while earlier ones are on their way. Returns false if the
    /// call has ended: [`PortReader::next`] has its error.
    ///
    /// If the future is dropped, an unknown part of the bytes was sent.
    pub async fn send(&self, mut data: Bytes) -> bool {
        while !data.is_empty() {
            let part = data.split_to(data.len().min(MAX_DATA_BYTES));
            let part = Some(forward_port_request::Part::Data(part));
            if self.messages.send(ForwardPortRequest { part }).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Ends the input of the server, which reads an end of file.
    pub async fn finish(self) {
        let part = Some(forward_port_request::Part::EndOfData(EndOfPortData {}));
        // A call that has ended needs no end of data.
        let _ended = self.messages.send(ForwardPortRequest { part }).await;
    }

    /// Waits until the call has ended.
    pub async fn closed(&self) {
        self.messages.closed().await;
    }
}

impl PortReader {
    /// Returns the address of the server in the sandbox: `127.0.0.1` or `::1`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Waits for the next bytes of the server. Returns `None` when it has ended its output.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails. `CONNECTION_RESET` and `PROCESS_ENDED` mean that bytes may
    /// be lost.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        while !self.has_ended {
            match self.message().await? {
                Some(ForwardPortResponse { part: Some(Part::Data(data)) }) => {
                    return Ok(Some(data));
                }
                Some(ForwardPortResponse { part: Some(Part::EndOfData(_)) }) => {
                    self.has_ended = true;
                }
                // A newer daemon may send what this client does not know.
                Some(_) => {}
                None => {
                    let text = "the call ended before the output of the server";
                    return Err(CallError::local(Code::DataLoss, text));
                }
            }
        }
        Ok(None)
    }

    /// Waits until the call has ended: both sides have ended their output.
    ///
    /// # Errors
    ///
    /// As [`Self::next`].
    pub async fn finish(mut self) -> Result<(), CallError> {
        while self.message().await?.is_some() {}
        Ok(())
    }

    async fn message(&mut self) -> Result<Option<ForwardPortResponse>, CallError> {
        self.deadline.enforce(self.messages.message()).await
    }
}
