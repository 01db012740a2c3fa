//! Calls that start a command and do not wait for it: the tool `run`, but its answer goes to whoever
//! watches.

use std::sync::Arc;

use super::{
    Pipeline, StartedCall, ValidatedCall,
    context::CallContext,
    idempotency::{Claim, OnCrash, reply::decode},
    once::{abandoned_error, complete_claim, complete_unstarted},
    once_claim::PayloadClaimOutcome,
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

/// What a request id was used for that started a process.
const START_METHOD: &str = "jig.v1.ProcessService/Start";

impl Pipeline {
    /// Starts a command; answers its first reader. That it was not started after all is what this
    /// one reads, too. Where it was started with this request id before, answers another reader of it,
    /// from the beginning.
    pub(crate) async fn start_process(
        self: &Arc<Self>,
        context: CallContext,
        request: <StartCommand as Tool>::Request,
    ) -> Result<OutputReader, Error> {
        let looked = self.validate::<StartCommand>(&context, request, Some(START_METHOD));
        let (repeatable, checked) = looked.await?;
        let Some(call) = repeatable else {
            let begun = self.start_call::<StartCommand>(context.clone(), checked, None).await?;
            return self.spawn_process(&context, begun, None);
        };
        match self.claim_call_with_payload(call, OnCrash::Report, checked).await? {
            PayloadClaimOutcome::Acquired(ticket, checked) => {
                // It may have to be approved first: that goes on for a while without this caller, too.
                let _caller = ticket.waiter();
                let starting = Arc::clone(self).start_process_once(context, checked, ticket);
                let started = task::spawn_tracked("start", starting);
                started.await.map_err(Error::internal)?
            }
            PayloadClaimOutcome::Completed { reply: started, is_recent } => {
                let started: v1::ProcessStarted = decode(&started)?;
                if !is_recent {
                    return Err(daemon_lost_error("Start"));
                }
                let workspace = self.workspace_context(&context)?.workspace.name();
                let found = self.processes.find(workspace, &started.process_id);
                let entry = found.ok_or_else(|| process_not_retained_error(&started.process_id))?;
                read_from_start(&entry.process, &context)
            }
            PayloadClaimOutcome::Lost(_) => Err(daemon_lost_error("Start")),
        }
    }

    /// Starts a command for all who ask with its request id.
    async fn start_process_once(
        self: Arc<Self>,
        context: CallContext,
        checked: ValidatedCall<StartCommand>,
        claim: Claim,
    ) -> Result<OutputReader, Error> {
        // Each caller's deadline ends its own wait, and not that for the approval; that of the last one, the
        // wait for a turn.
        let patient = CallContext { deadline: None, ..context.clone() };
        let begun = tokio::select! {
            begun = self.start_call::<StartCommand>(patient, checked, Some(&claim)) => begun,
            () = claim.abandoned() => Err(abandoned_error(StartCommand::NAME)),
        };
        match begun {
            Ok(begun) => self.spawn_process(&context, begun, Some(claim)),
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
            caller: Arc::clone(context.principal.key()),
            process: Arc::clone(&process),
        });
        let (task, abandon) = started.spawn(self);
        process.set_abandon_token(abandon);
        if let Some(ticket) = claim {
            task::spawn_tracked("request", complete_once_started(ticket, Arc::clone(&process)));
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

/// Answers a request id with the process that was started for it, or with why it was not.
async fn complete_once_started(claim: Claim, process: Arc<ProcessHandle>) {
    process.replay_buffer.wait_until_started().await;
    if process.replay_buffer.has_started() {
        let started = v1::ProcessStarted {
            process_id: process.info.id.clone(),
            ..v1::ProcessStarted::default()
        };
        complete_claim(claim, &Ok(started)).await;
    } else if let Some(Err(error)) = process.replay_buffer.end_value().as_deref() {
        let again = Error {
            metadata: error.metadata.clone(),
            violations: error.violations.clone(),
            retry_after: error.retry_after,
            ..Error::new(error.reason, error.message.clone())
        };
        complete_claim::<v1::ProcessStarted>(claim, &Err(again)).await;
    }
}

fn process_not_retained_error(id: &str) -> Error {
    let text = format!(
        "the process {id:?} that was started for this request id has ended, and is not kept any more: start another with another id"
    );
    Error::new(Reason::ProcessNotFound, text).with_metadata("process_id", id)
}

/// Reads a process from its beginning.
fn read_from_start(
    process: &Arc<ProcessHandle>,
    context: &CallContext,
) -> Result<OutputReader, Error> {
    let reader = process.attach(context.principal.key(), OutputPosition::default());
    reader.map_err(|refused| match refused {
        AttachError::TooManyReaders(full) => too_many_readers_error(full),
        AttachError::PositionBeyondEnd(_) => {
            Error::internal("the beginning of a process lies behind its end")
        }
    })
}

/// The answer to who would read from a process that too many read from.
pub(crate) fn too_many_readers_error(saturated: Saturated) -> Error {
    let text = format!(
        "{} streams of this caller read from this process already, and there is room for no more: end one of them, or retry after the time given",
        saturated.in_use
    );
    Error::new(Reason::ResourceExhausted, text).retry_after(saturated.retry_after)
}
