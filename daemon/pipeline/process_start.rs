//! Starts a command without waiting for its end (`ProcessService/Start`): the tool `run`, with its
//! result for the readers of the process.

use std::sync::Arc;

use super::{
    Pipeline, StartedCall, ValidatedCall,
    context::CallContext,
    idempotency::{Claim, OnCrash, reply::decode},
    once::PayloadClaimOutcome,
    once::{abandoned_error, complete_claim, complete_unstarted},
};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Reason},
        process::{
            handle::{AttachError, OutputReader, ProcessHandle},
            registry::ProcessEntry,
            replay_buffer::OutputPosition,
        },
        queue::Saturated,
        task,
        tool::{Tool, daemon_lost_error, start::StartCommand},
    },
};

/// The method that a request id of a started process is bound to.
const START_METHOD: &str = "jig.v1.ProcessService/Start";

impl Pipeline {
    /// Starts a command, and returns its first reader. The reader also reports a failed start.
    ///
    /// If a call with the same request id has started the command, returns another reader of it,
    /// from the beginning.
    pub(crate) async fn start_process(
        self: &Arc<Self>,
        context: CallContext,
        request: <StartCommand as Tool>::Request,
    ) -> Result<OutputReader, Error> {
        let (idempotent_call, validated) =
            self.validate::<StartCommand>(&context, request, Some(START_METHOD)).await?;
        let Some(call) = idempotent_call else {
            let started = self.start_call::<StartCommand>(context.clone(), validated, None).await?;
            return self.spawn_process(&context, started, None);
        };

        match self.claim_call_with_payload(call, OnCrash::Report, validated).await? {
            PayloadClaimOutcome::Acquired(claim, validated) => {
                // In a task of its own: a wait for approval outlives this caller for a while.
                let _waiter = claim.waiter();
                let start = Arc::clone(self).start_process_once(context, validated, claim);
                let started = task::spawn_tracked("start", start);
                started.await.map_err(Error::internal)?
            }
            PayloadClaimOutcome::Completed { reply, is_current_generation } => {
                let started: v1::ProcessStarted = decode(&reply)?;
                if !is_current_generation {
                    return Err(daemon_lost_error("Start"));
                }

                let workspace_context = self.resolve_workspace(&context)?;
                let workspace = workspace_context.workspace.name();
                let found = self.processes.find(workspace, &started.process_id);
                let entry = found.ok_or_else(|| process_not_retained_error(&started.process_id))?;
                read_from_start(&entry.process, &context)
            }
            PayloadClaimOutcome::Lost(_) => Err(daemon_lost_error("Start")),
        }
    }

    /// Starts a command for all callers with its request id.
    async fn start_process_once(
        self: Arc<Self>,
        context: CallContext,
        validated: ValidatedCall<StartCommand>,
        claim: Claim,
    ) -> Result<OutputReader, Error> {
        // A caller's deadline ends that caller's wait, not the wait for approval. The deadline of
        // the last caller ends the wait for permits.
        let shared_context = CallContext { deadline: None, ..context.clone() };
        let started = tokio::select! {
            started = self.start_call::<StartCommand>(shared_context, validated, Some(&claim)) => started,
            () = claim.abandoned() => Err(abandoned_error(StartCommand::NAME)),
        };
        match started {
            Ok(started) => self.spawn_process(&context, started, Some(claim)),
            Err(error) => {
                complete_unstarted(claim, &error).await;
                Err(error)
            }
        }
    }

    fn spawn_process(
        self: &Arc<Self>,
        context: &CallContext,
        started: StartedCall<StartCommand>,
        claim: Option<Claim>,
    ) -> Result<OutputReader, Error> {
        let workspace = started.tool_context.workspace_context.workspace.name().to_owned();
        let session = context.session.as_str().to_owned();
        let process = Arc::clone(started.params.process());
        if claim.is_some() {
            process.set_detached_timeout(self.idempotency.detached_timeout());
        }

        let reader = read_from_start(&process, context)?;
        self.processes.add(ProcessEntry {
            workspace,
            session,
            principal: Arc::clone(context.principal.shared_name()),
            process: Arc::clone(&process),
        });

        let (task, abandon_token) = started.spawn(self);
        process.set_abandon_token(abandon_token);
        if let Some(claim) = claim {
            task::spawn_tracked("request", complete_once_started(claim, Arc::clone(&process)));
        }

        let processes = Arc::clone(&self.processes);
        task::spawn_tracked("end of a process", async move {
            let result = task.await.map_err(Error::internal).and_then(|result| result);
            process.mark_ended(result);
            if process.replay_buffer.has_started() {
                processes.retire(&process);
            } else {
                processes.remove(&process);
            }
        });

        Ok(reader)
    }
}

/// Replies to a request id with its process, or with why it was not started.
async fn complete_once_started(claim: Claim, process: Arc<ProcessHandle>) {
    process.replay_buffer.wait_until_started().await;
    if process.replay_buffer.has_started() {
        let started = v1::ProcessStarted {
            process_id: process.info.id.clone(),
            ..v1::ProcessStarted::default()
        };
        complete_claim(claim, &Ok(started)).await;
    } else if let Some(Err(error)) = process.replay_buffer.end_value().as_deref() {
        let reply = Error {
            metadata: error.metadata.clone(),
            violations: error.violations.clone(),
            retry_after: error.retry_after,
            ..Error::new(error.reason, error.message.clone())
        };
        complete_claim::<v1::ProcessStarted>(claim, &Err(reply)).await;
    }
}

fn process_not_retained_error(id: &str) -> Error {
    let text = format!(
        "the process {id:?} of this request id has ended and was evicted: start another one with a new request id"
    );
    Error::new(Reason::ProcessNotFound, text).with_metadata("process_id", id)
}

/// Attaches to a process, from the beginning of its output.
fn read_from_start(
    process: &Arc<ProcessHandle>,
    context: &CallContext,
) -> Result<OutputReader, Error> {
    let reader = process.attach(context.principal.shared_name(), OutputPosition::default());
    reader.map_err(|error| match error {
        AttachError::TooManyReaders(saturated) => too_many_readers_error(saturated),
        AttachError::PositionBeyondEnd(_) => {
            Error::internal("the start of a process's output is after its end")
        }
    })
}

pub(crate) fn too_many_readers_error(saturated: Saturated) -> Error {
    let text = format!(
        "{} streams of this caller read from this process, and it accepts no more: end one of them, or retry after the delay in RetryInfo",
        saturated.in_use
    );
    Error::new(Reason::ResourceExhausted, text).with_retry_after(saturated.retry_after)
}
