//! How calls use what is admitted: let in to a place when they may be made.
//! Why one was not is in its RPC's span, and, where somebody had approved it, in the records of its session.

use std::{sync::Arc, time::Instant};

use opentelemetry::{KeyValue, trace::TraceContextExt as _};

use super::{
    AdmittedCall, AuthorizedCall, Pipeline, StartedCall, ValidatedCall,
    access::principal::Principal,
    admission::{Admission, AdmissionRequest, WaitDeadline},
    context::CallContext,
    idempotency::Claim,
};
use crate::daemon::{error::Error, task, telemetry::semconv, tool::Tool};

impl Pipeline {
    /// Waits for a place for a call that is no tool's.
    pub(crate) async fn admit_rpc(&self, context: &CallContext) -> Result<Admission, Error> {
        let request = AdmissionRequest {
            deadline: WaitDeadline::At(context.deadline),
            ..AdmissionRequest::from(&*context.principal)
        };
        let since = Instant::now();
        let admitted = self.admission.admit(request, &self.shutdown).await;
        admitted.inspect_err(|error| record_rejection_in_span(context, error, since))
    }

    /// Lets a call of the tool `T` in, waits for a place for it, and records that it starts. Whoever has the
    /// request id of its `ticket` waits for it.
    pub(super) async fn start_call<T: Tool>(
        self: &Arc<Self>,
        context: CallContext,
        checked: ValidatedCall<T>,
        claim: Option<&Claim>,
    ) -> Result<StartedCall<T>, Error> {
        let mut authorized = self.authorize_call(context, checked).await?;
        // Who has approved it has seen all of it, and such are few.
        if authorized.authorization.approval().is_none() {
            authorized.held_bytes += authorized.reauthorization.drop_large_params();
        }
        let incoming = &authorized.context;
        let callers = claim.map(Claim::waiters);
        let request = AdmissionRequest {
            deadline: match &callers {
                Some(callers) => WaitDeadline::OfLastWaiter(callers),
                None => WaitDeadline::At(incoming.deadline),
            },
            ..authorized.admission_request(&incoming.principal)
        };
        let since = Instant::now();
        let admitted = loop {
            match self.admit_tool_call::<T>(request).await {
                Err(error)
                    if self.await_admission_retry(&authorized.authorization, &error).await => {}
                admitted => break admitted,
            }
        };
        if let Err(error) = &admitted {
            record_rejection_in_span(incoming, error, since);
            if authorized.authorization.approval().is_some() {
                let tool = incoming.effective_tool(T::NAME);
                self.record_approved_but_rejected(incoming, tool, error).await;
            }
        }
        self.record_start(authorized, admitted?).await
    }

    /// Leaves something for others, of all that is had in turn, from now on, if there are others: callers are
    /// told apart by keys, and of these there are several.
    pub(crate) fn keep_headroom(&self) {
        if !self.access.has_several_key_holders() {
            return;
        }
        self.jobs.keep_headroom();
        self.admission.keep_headroom();
        for scene in &self.workspaces {
            scene.file_limiters.keep_headroom();
            scene.sandbox_pool.keep_headroom();
        }
    }

    /// Waits for a place for a call of the tool `T`.
    pub(super) async fn admit_tool_call<T: Tool>(
        &self,
        request: AdmissionRequest<'_>,
    ) -> Result<AdmittedCall, Error> {
        // Taken before the drain is looked at: whoever is let in is waited for.
        let waited_for = task::delay_shutdown();
        let admitted = match T::CALLER_WAITS {
            true => self.admission.admit(request, &self.shutdown).await,
            false => self.admission.admit_process(request, &self.shutdown).await,
        };
        Ok(AdmittedCall { admission: admitted?, task_token: waited_for })
    }

    /// Waits for a place for the call of a job.
    pub(super) async fn admit_job(
        &self,
        request: AdmissionRequest<'_>,
    ) -> Result<AdmittedCall, Error> {
        let waited_for = task::delay_shutdown();
        let admitted = self.admission.admit(request, &self.shutdown).await?;
        Ok(AdmittedCall { admission: admitted, task_token: waited_for })
    }
}

impl<T: Tool> AuthorizedCall<T> {
    /// What it wants, as a call of `principal`, who waits as long as it takes.
    pub(super) fn admission_request<'a>(
        &'a self,
        principal: &'a Principal,
    ) -> AdmissionRequest<'a> {
        AdmissionRequest {
            principal,
            deadline: WaitDeadline::At(None),
            held_bytes: self.held_bytes,
            sandbox_limiter: T::NEEDS_SANDBOX
                .then(|| self.workspace_context.sandbox_pool.limiter()),
        }
    }
}

/// Says in the span of a call's RPC why it found no room, and for how long it has waited.
pub(super) fn record_rejection_in_span(context: &CallContext, error: &Error, since: Instant) {
    let mut metadata = error.metadata.iter();
    let full = metadata.find(|(name, _)| name == "full");
    let by = full.map_or_else(|| error.reason.name().to_owned(), |(_, full)| full.clone());
    let context = context.parent_span.span();
    context.set_attribute(KeyValue::new(semconv::DENIED_BY, by));
    let waited = since.elapsed().as_secs_f64();
    context.set_attribute(KeyValue::new(semconv::QUEUE_WAIT_DURATION, waited));
}
