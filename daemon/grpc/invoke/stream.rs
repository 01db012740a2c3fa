//! The stream of `InvokeStream`: the output of the call's command, its approval, and its result.

use std::{
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::mpsc::Sender, time::sleep};

use crate::{
    api::v1::{
        InvokeApproval, InvokeKeepAlive, InvokeOutput, InvokeResponse, InvokeStreamResponse,
        invoke_stream_response::Event,
    },
    daemon::{
        error::Error,
        grpc::response_stream::{
            CLIENT_READ_TIMEOUT, StreamItem, StreamTerminator, send_or_timeout,
        },
        pipeline::{
            self, Pipeline,
            command_output::OutputCursor,
            context::CallContext,
            invoke::Invocation,
            observer::{CallObserver, CallProgressReceiver},
            once::IdempotentCall,
        },
        store::session::StepId,
        task,
    },
};

/// What a client can do after it read too slowly.
const SLOW_CLIENT_HINT: &str = "the call was cancelled; call again when the client can keep up";

/// Runs a call and streams its progress.
pub(super) struct InvokeStream {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) context: CallContext,
    pub(super) keep_alive_interval: Duration,
}

/// The part of the progress that the client has received.
#[derive(Debug, Default)]
struct SentProgress {
    approval_id: Option<String>,
    /// The step whose output is sent.
    step: Option<u64>,
    /// Standard output and standard error of that step.
    cursors: [OutputCursor; 2],
}

/// Why the stream ends.
enum InvokeStreamEnd {
    /// The client has received the result, or has disconnected.
    Closed,
    /// The client gets this error.
    Failed(Error),
}

impl InvokeStream {
    /// Runs the call to its end. Cancels it if the client disconnects.
    pub(super) async fn run(
        self,
        invocation: Invocation,
        call: Option<IdempotentCall>,
        sender: Sender<StreamItem<InvokeStreamResponse>>,
        terminator: StreamTerminator<InvokeStreamResponse>,
    ) {
        let (observer, progress) = CallObserver::new();
        let context = CallContext { observer: Some(observer), ..self.context.clone() };
        // Dropping the future of the call cancels it.
        let work = pin!(self.pipeline.invoke(context, invocation, call));

        let end = tokio::select! {
            biased;
            end = self.forward_progress(work, progress, &sender) => end,
            () = task::sleep_until(self.context.deadline) => {
                InvokeStreamEnd::Failed(pipeline::stream_deadline_error("InvokeStream"))
            }
        };
        if let InvokeStreamEnd::Failed(error) = end {
            terminator.fail(&error);
        }
    }

    async fn forward_progress(
        &self,
        mut work: Pin<&mut impl Future<Output = Result<InvokeResponse, Error>>>,
        mut receiver: CallProgressReceiver,
        sender: &Sender<StreamItem<InvokeStreamResponse>>,
    ) -> InvokeStreamEnd {
        let mut sent = SentProgress::default();
        loop {
            tokio::select! {
                biased;
                result = &mut work => {
                    return match self.send_end(result, &mut receiver, &mut sent, sender).await {
                        Ok(()) => InvokeStreamEnd::Closed,
                        Err(end) => end,
                    };
                }
                // A repeated call has no progress: the first call holds the senders, or none does.
                Ok(()) = receiver.progress.changed() => {}
                Ok(()) = receiver.output_written.changed() => {}
                () = sleep(self.keep_alive_interval) => {
                    if let Err(end) = send(sender, Event::KeepAlive(InvokeKeepAlive {})).await {
                        return end;
                    }
                }
                () = sender.closed() => return InvokeStreamEnd::Closed,
            }
            if let Err(end) = self.send_progress(&mut receiver, &mut sent, sender).await {
                return end;
            }
        }
    }

    /// Sends the rest of the output, and the result.
    async fn send_end(
        &self,
        result: Result<InvokeResponse, Error>,
        receiver: &mut CallProgressReceiver,
        sent: &mut SentProgress,
        sender: &Sender<StreamItem<InvokeStreamResponse>>,
    ) -> Result<(), InvokeStreamEnd> {
        let result = result.map_err(InvokeStreamEnd::Failed)?;
        self.send_progress(receiver, sent, sender).await?;
        send(sender, Event::Result(result)).await
    }

    /// Sends a new pending approval, and the output written since the last call.
    async fn send_progress(
        &self,
        receiver: &mut CallProgressReceiver,
        sent: &mut SentProgress,
        sender: &Sender<StreamItem<InvokeStreamResponse>>,
    ) -> Result<(), InvokeStreamEnd> {
        let progress = receiver.progress.borrow_and_update().clone();
        receiver.output_written.mark_unchanged();

        if sent.approval_id != progress.approval_id {
            sent.approval_id.clone_from(&progress.approval_id);
            let approval_id = progress.approval_id.unwrap_or_default();
            send(sender, Event::PendingApproval(InvokeApproval { approval_id })).await?;
        }

        let Some(step) = progress.step else { return Ok(()) };
        if sent.step != Some(step) {
            sent.step = Some(step);
            sent.cursors = Default::default();
        }
        let [stdout_path, stderr_path] = StepId::stream_paths(step);
        let [stdout, stderr] = &mut sent.cursors;
        self.send_output(stdout, &stdout_path, Event::Stdout, sender).await?;
        self.send_output(stderr, &stderr_path, Event::Stderr, sender).await
    }

    async fn send_output(
        &self,
        cursor: &mut OutputCursor,
        path: &str,
        event: fn(InvokeOutput) -> Event,
        sender: &Sender<StreamItem<InvokeStreamResponse>>,
    ) -> Result<(), InvokeStreamEnd> {
        loop {
            let read = cursor.read(&self.pipeline, &self.context, path).await;
            let Some(chunk) = read.map_err(InvokeStreamEnd::Failed)? else { return Ok(()) };
            let output = InvokeOutput { offset: chunk.offset, data: chunk.data.into() };
            send(sender, event(output)).await?;
        }
    }
}

async fn send(
    sender: &Sender<StreamItem<InvokeStreamResponse>>,
    event: Event,
) -> Result<(), InvokeStreamEnd> {
    let message = InvokeStreamResponse { event: Some(event) };
    send_or_timeout(sender, message, CLIENT_READ_TIMEOUT, SLOW_CLIENT_HINT)
        .await
        .map_err(|error| error.map_or(InvokeStreamEnd::Closed, InvokeStreamEnd::Failed))
}
