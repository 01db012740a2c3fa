//! How calls use what is admitted: let in to a place when they may be made.
//! Why one was not is in its RPC's span, and, where somebody had approved it, in the records of its session.

use std::{sync::Arc, time::Instant};

use opentelemetry::{KeyValue, trace::TraceContextExt as _};

use super::{
    Begun, Checked, InPlace, LetIn, Pipeline,
    access::principal::Principal,
    admission::{Admitted, Applicant, Deadline},
    context::Incoming,
    idempotency::Ticket,
};
use crate::daemon::{error::Error, task, telemetry::semconv, tool::Tool};

impl Pipeline {
    /// Waits for a place for a call that is no tool's.
    pub(crate) async fn enter(&self, incoming: &Incoming) -> Result<Admitted, Error> {
        let applicant = Applicant {
            deadline: Deadline::At(incoming.deadline),
            ..Applicant::from(&*incoming.principal)
        };
        let since = Instant::now();
        let admitted = self.admission.enter(applicant, &self.drain).await;
        admitted.inspect_err(|error| leave_in_span(incoming, error, since))
    }

    /// Lets a call of the tool `T` in, waits for a place for it, and records that it starts. Whoever has the
    /// request id of its `ticket` waits for it.
    pub(super) async fn begin<T: Tool>(
        self: &Arc<Self>,
        incoming: Incoming,
        checked: Checked<T>,
        ticket: Option<&Ticket>,
    ) -> Result<Begun<T>, Error> {
        let mut let_in = self.let_in(incoming, checked).await?;
        // Who has approved it has seen all of it, and such are few.
        if let_in.permitted.approved().is_none() {
            let_in.bytes += let_in.judged.shorten();
        }
        let incoming = &let_in.incoming;
        let callers = ticket.map(Ticket::callers);
        let applicant = Applicant {
            deadline: match &callers {
                Some(callers) => Deadline::OfCallers(callers),
                None => Deadline::At(incoming.deadline),
            },
            ..let_in.applicant(&incoming.principal)
        };
        let since = Instant::now();
        let admitted = loop {
            match self.admit::<T>(applicant).await {
                Err(error) if self.waits_on(&let_in.permitted, &error).await => {}
                admitted => break admitted,
            }
        };
        if let Err(error) = &admitted {
            leave_in_span(incoming, error, since);
            if let_in.permitted.approved().is_some() {
                let tool = incoming.tool(T::NAME);
                self.note_in_vain(incoming, tool, error).await;
            }
        }
        self.record_start(let_in, admitted?).await
    }

    /// Leaves something for others, of all that is had in turn, from now on, if there are others: callers are
    /// told apart by keys, and of these there are several.
    pub(crate) fn share(&self) {
        if !self.access.has_several() {
            return;
        }
        self.jobs.share();
        self.admission.share();
        for scene in &self.scenes {
            scene.files.share();
            scene.sandboxes.share();
        }
    }

    /// Waits for a place for a call of the tool `T`.
    pub(super) async fn admit<T: Tool>(&self, applicant: Applicant<'_>) -> Result<InPlace, Error> {
        // Taken before the drain is looked at: whoever is let in is waited for.
        let waited_for = task::hold();
        let admitted = match T::IS_WAITED_FOR {
            true => self.admission.enter(applicant, &self.drain).await,
            false => self.admission.enter_process(applicant, &self.drain).await,
        };
        Ok(InPlace { admitted: admitted?, waited_for })
    }

    /// Waits for a place for the call of a job.
    pub(super) async fn admit_job(&self, applicant: Applicant<'_>) -> Result<InPlace, Error> {
        let waited_for = task::hold();
        let admitted = self.admission.enter(applicant, &self.drain).await?;
        Ok(InPlace { admitted, waited_for })
    }
}

impl<T: Tool> LetIn<T> {
    /// What it wants, as a call of `principal`, who waits as long as it takes.
    pub(super) fn applicant<'a>(&'a self, principal: &'a Principal) -> Applicant<'a> {
        Applicant {
            principal,
            deadline: Deadline::At(None),
            bytes: self.bytes,
            seats: T::NEEDS_SANDBOX.then(|| self.scene.sandboxes.places()),
        }
    }
}

/// Says in the span of a call's RPC why it found no room, and for how long it has waited.
pub(super) fn leave_in_span(incoming: &Incoming, error: &Error, since: Instant) {
    let mut metadata = error.metadata.iter();
    let full = metadata.find(|(name, _)| name == "full");
    let by = full.map_or_else(|| error.reason.name().to_owned(), |(_, full)| full.clone());
    let context = incoming.parent.span();
    context.set_attribute(KeyValue::new(semconv::REFUSED_BY, by));
    let waited = since.elapsed().as_secs_f64();
    context.set_attribute(KeyValue::new(semconv::WAITED, waited));
}
