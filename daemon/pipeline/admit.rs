//! Admission of calls: the permits that calls, jobs and plain RPCs wait for.
//!
//! The span of the RPC says why a call was rejected. So do the session's records if a person had
//! approved the call.

use std::time::Instant;

use super::{
    AdmittedCall, Pipeline,
    admission::{Admission, AdmissionRequest, WaitDeadline, shell_leases::ShellKey},
    context::CallContext,
};
use crate::daemon::{error::Error, task, tool::Tool};

impl Pipeline {
    /// Waits for the permit of an RPC that calls no tool.
    pub(crate) async fn admit_rpc(&self, context: &CallContext) -> Result<Admission, Error> {
        let request = AdmissionRequest {
            deadline: WaitDeadline::At(context.deadline),
            ..AdmissionRequest::from(&*context.principal)
        };

        let queued_at = Instant::now();
        let admitted = self.admission.admit(request, &self.shutdown).await;
        self.record_admission(context, admitted.as_ref().err(), queued_at);
        admitted
    }

    /// Records how long a call was queued, and on its span why it was rejected.
    pub(super) fn record_admission(
        &self,
        context: &CallContext,
        rejection: Option<&Error>,
        queued_at: Instant,
    ) {
        let metrics = self.telemetry.metrics();
        match rejection {
            None => {
                // An earlier attempt of this call may have been rejected.
                context.access_log_entry.update(|fields| fields.denied_by = None);
                metrics.record_admission(queued_at.elapsed());
            }
            Some(error) => {
                let denied_by = context.record_rejection_in_span(error, queued_at);
                context
                    .access_log_entry
                    .update(|fields| fields.denied_by = Some(denied_by.clone()));
                metrics.count_admission_rejection(&denied_by);
            }
        }
    }

    /// Waits until no other call uses `shell`, and then for the permits of a call of the tool `T`.
    pub(super) async fn admit_in_shell<T: Tool>(
        &self,
        shell: Option<ShellKey>,
        request: AdmissionRequest<'_>,
    ) -> Result<AdmittedCall, Error> {
        let shell_lease = match shell {
            Some(shell) => Some(self.admission.lease_shell(shell, request, &self.shutdown).await?),
            None => None,
        };
        let admitted = self.admit_tool_call::<T>(request).await?;

        Ok(AdmittedCall { shell_lease, ..admitted })
    }

    /// Waits for the permits of a call of the tool `T`.
    pub(super) async fn admit_tool_call<T: Tool>(
        &self,
        request: AdmissionRequest<'_>,
    ) -> Result<AdmittedCall, Error> {
        // Taken before admission checks for draining: the shutdown waits for every admitted call.
        let task_token = task::delay_shutdown();
        let admission = if T::CALLER_WAITS {
            self.admission.admit(request, &self.shutdown).await?
        } else {
            self.admission.admit_process(request, &self.shutdown).await?
        };

        Ok(AdmittedCall { admission, shell_lease: None, task_token })
    }

    /// Waits for the permits of a job's call. A job has a copy of its shell, so it needs no lease.
    pub(super) async fn admit_job(
        &self,
        request: AdmissionRequest<'_>,
    ) -> Result<AdmittedCall, Error> {
        let task_token = task::delay_shutdown();
        let admission = self.admission.admit(request, &self.shutdown).await?;

        Ok(AdmittedCall { admission, shell_lease: None, task_token })
    }

    /// If several callers have keys: permanently reserves headroom in the limiters of calls,
    /// processes, files, sandboxes and jobs, for callers that use little.
    pub(crate) fn reserve_headroom(&self) {
        if !self.access.has_several_keys() {
            return;
        }

        self.jobs.reserve_headroom();
        self.admission.reserve_headroom();
        for workspace_context in self.workspaces.configured() {
            workspace_context.file_limiters.reserve_headroom();
            workspace_context.sandbox_pool.reserve_headroom();
        }
    }
}
