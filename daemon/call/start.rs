//! Calls that start a command and do not wait for it: the tool `run`, but its answer goes to whoever
//! watches.

use std::sync::Arc;

use super::{
    Begun, Checked, Pipeline,
    context::Incoming,
    idempotency::{Lost, Ticket, answer::decode},
    repeatable::{answer, left_alone, not_begun},
    repeats::Claim,
};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Reason},
        process::{
            live::{Process, Reader, Refused},
            registry::Entry,
            transcript::Position,
        },
        queue::Full,
        task,
        tool::{Tool, lost, start::Start},
    },
};

/// What a request id was used for that started a process.
const METHOD: &str = "jig.v1.ProcessService/Start";

impl Pipeline {
    /// Starts a command; answers its first reader. That it was not started after all is what this
    /// one reads, too. Where it was started with this request id before, answers another reader of it,
    /// from the beginning.
    pub(crate) async fn start(
        self: &Arc<Self>,
        incoming: Incoming,
        request: <Start as Tool>::Request,
    ) -> Result<Reader, Error> {
        let looked = self.look_at::<Start>(&incoming, request, Some(METHOD));
        let (repeatable, checked) = looked.await?;
        let Some(call) = repeatable else {
            let begun = self.begin::<Start>(incoming.clone(), checked, None).await?;
            return self.start_now(&incoming, begun, None);
        };
        match self.claim_for(call, Lost::IsTold, checked).await? {
            Claim::Ours(ticket, checked) => {
                // It may have to be approved first: that goes on for a while without this caller, too.
                let _caller = ticket.caller();
                let starting = Arc::clone(self).start_once(incoming, checked, ticket);
                let started = task::spawn_tracked("start", starting);
                started.await.map_err(Error::internal)?
            }
            Claim::Answered { answer: started, is_recent } => {
                let started: v1::ProcessStarted = decode(&started)?;
                if !is_recent {
                    return Err(lost("Start"));
                }
                let workspace = self.scene(&incoming)?.workspace.name();
                let found = self.processes.find(workspace, &started.process_id);
                let entry = found.ok_or_else(|| not_kept(&started.process_id))?;
                from_the_beginning(&entry.process, &incoming)
            }
            Claim::Lost(_) => Err(lost("Start")),
        }
    }

    /// Starts a command for all who ask with its request id.
    async fn start_once(
        self: Arc<Self>,
        incoming: Incoming,
        checked: Checked<Start>,
        ticket: Ticket,
    ) -> Result<Reader, Error> {
        // Each caller's deadline ends its own wait, and not that for the approval; that of the last one, the
        // wait for a turn.
        let patient = Incoming { deadline: None, ..incoming.clone() };
        let begun = tokio::select! {
            begun = self.begin::<Start>(patient, checked, Some(&ticket)) => begun,
            () = ticket.left_alone() => Err(left_alone(Start::NAME)),
        };
        match begun {
            Ok(begun) => self.start_now(&incoming, begun, Some(ticket)),
            Err(error) => {
                not_begun(ticket, &error).await;
                Err(error)
            }
        }
    }

    fn start_now(
        self: &Arc<Self>,
        incoming: &Incoming,
        begun: Begun<Start>,
        ticket: Option<Ticket>,
    ) -> Result<Reader, Error> {
        let workspace = begun.work.scene.workspace.name().to_owned();
        let session = incoming.session.as_str().to_owned();
        let process = Arc::clone(begun.params.process());
        if ticket.is_some() {
            process.linger(self.requests.linger());
        }
        let reader = from_the_beginning(&process, incoming)?;
        self.processes.add(Entry {
            workspace,
            session,
            caller: Arc::clone(incoming.principal.lane()),
            process: Arc::clone(&process),
        });
        let (task, abandon) = begun.spawn(self);
        process.set_abandon(abandon);
        if let Some(ticket) = ticket {
            task::spawn_tracked("request", tell_once_started(ticket, Arc::clone(&process)));
        }
        let processes = Arc::clone(&self.processes);
        task::spawn_tracked("end of a process", async move {
            let result = task.await.map_err(Error::internal).and_then(|result| result);
            process.end(result);
            if process.transcript.has_started() {
                processes.ended(&process);
            } else {
                processes.remove(&process);
            }
        });
        Ok(reader)
    }
}

/// Answers a request id with the process that was started for it, or with why it was not.
async fn tell_once_started(ticket: Ticket, process: Arc<Process>) {
    process.transcript.begun().await;
    if process.transcript.has_started() {
        let started = v1::ProcessStarted {
            process_id: process.about.id.clone(),
            ..v1::ProcessStarted::default()
        };
        answer(ticket, &Ok(started)).await;
    } else if let Some(Err(error)) = process.transcript.ending().as_deref() {
        let again = Error {
            metadata: error.metadata.clone(),
            violations: error.violations.clone(),
            retry_after: error.retry_after,
            ..Error::new(error.reason, error.message.clone())
        };
        answer::<v1::ProcessStarted>(ticket, &Err(again)).await;
    }
}

fn not_kept(id: &str) -> Error {
    let text = format!(
        "the process {id:?} that was started for this request id has ended, and is not kept any more: start another with another id"
    );
    Error::new(Reason::ProcessNotFound, text).with("process_id", id)
}

/// Reads a process from its beginning.
fn from_the_beginning(process: &Arc<Process>, incoming: &Incoming) -> Result<Reader, Error> {
    let reader = process.read(incoming.principal.lane(), Position::default());
    reader.map_err(|refused| match refused {
        Refused::TooMany(full) => too_many(full),
        Refused::Beyond(_) => Error::internal("the beginning of a process lies behind its end"),
    })
}

/// The answer to who would read from a process that too many read from.
pub(crate) fn too_many(full: Full) -> Error {
    let text = format!(
        "{} streams of this caller read from this process already, and there is room for no more: end one of them, or retry after the time given",
        full.held
    );
    Error::new(Reason::ResourceExhausted, text).retry_after(full.retry_after)
}
