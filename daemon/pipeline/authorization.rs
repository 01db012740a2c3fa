//! Authorization of calls by the operator's policy: before admission, and again after a wait.
//!
//! Where the policy asks for approval, [`super::await_approval`] waits for a person's decision.

use std::{sync::Arc, time::Instant};

use prost::Message;
use serde_json::{Map, Value};

use super::{
    Pipeline,
    access::principal::Principal,
    audit::audit_denial,
    await_approval::approved_authorization,
    context::CallContext,
    policy::{
        decision::{DecidedBy, PolicySnapshot},
        request::PolicyRequest,
    },
    policy_input::{Authorization, EncodedRequest, PolicyInput, ReauthorizationInput, policy_view},
    records,
};
use crate::{
    api::v1::Risk,
    daemon::{
        catalog::CanonicalText,
        config::policy::PolicyAction,
        error::{Error, Reason},
        task,
        telemetry::semconv,
    },
};

/// `denied_by` of a call whose key was revoked while it waited.
const DENIED_BY_KEY: &str = "key:revoked";
/// `denied_by` of a call that a changed policy would have to decide anew.
const DENIED_BY_POLICY_CHANGE: &str = "policy:changed";

impl Pipeline {
    /// Rejects a disabled tool. The operator may have disabled its own name or its dialect name.
    pub(super) fn require_enabled_tool(
        &self,
        tool: &str,
        dialect_tool: Option<&str>,
    ) -> Result<(), Error> {
        if self.policy.snapshot().policy.is_tool_enabled(tool, dialect_tool) {
            return Ok(());
        }

        // The error names the tool as the caller knows it.
        Err(denied_error(dialect_tool.unwrap_or(tool), &DecidedBy::ToolLists))
    }

    /// Authorizes an RPC that does the work of `tool`, but is no call of it (an upload, for
    /// example). Waits for a decision where approval is needed.
    ///
    /// `message_name` is the full name of the message `request`; `file` is the file that it names.
    pub(crate) async fn authorize_as<M: Message>(
        self: &Arc<Self>,
        tool: &'static str,
        context: &CallContext,
        message_name: &str,
        request: &M,
        file: &str,
    ) -> Result<Authorization, Error> {
        context.principal.require_tool(tool)?;
        let workspace_context = self.resolve_workspace(context)?;
        let workspace = workspace_context.workspace.name().to_owned();
        let risk = self.catalog.tool(tool).map_or(Risk::Dangerous, |spec| spec.options.risk());

        let snapshot = self.policy.snapshot();
        let needs_params = snapshot.needs_params(tool, None, risk, &workspace);
        let mut policy_input = PolicyInput::new(tool, risk, workspace, snapshot);
        if needs_params {
            let params = self.catalog.explicit_params(message_name, request)?;
            let view = policy_view(&params, &workspace_context, None);
            policy_input =
                policy_input.with_params(view, vec![file.to_owned()], params.encoded_len());
        }

        self.authorize(context, policy_input).await
    }

    /// Authorizes a call. Waits for a decision where approval is needed.
    pub(super) async fn authorize(
        self: &Arc<Self>,
        context: &CallContext,
        policy_input: PolicyInput,
    ) -> Result<Authorization, Error> {
        let snapshot = Arc::clone(&policy_input.snapshot);
        let request = Arc::clone(&policy_input.request);
        let decision = self.policy.decide(snapshot, request).await?;

        match (decision.action, &decision.decided_by) {
            (PolicyAction::Allow, DecidedBy::Rule(_)) => Ok(Authorization {
                allowed_by: Some(decision.decided_by.label()),
                ..Authorization::default()
            }),
            (PolicyAction::Allow, DecidedBy::ToolLists | DecidedBy::Risk(_)) => {
                Ok(Authorization::default())
            }
            (PolicyAction::Deny, by) => Err(self.deny(context, &policy_input.request, by).await),
            (PolicyAction::Ask, by) => {
                // A job may have been approved by an earlier attempt to start it.
                let job = context.job.as_ref();
                if let Some(approval) = job.and_then(|job| job.approval.clone()) {
                    let wait = policy_input.snapshot.policy.approvals.timeout;
                    return Ok(approved_authorization(context, wait, approval));
                }

                let tool = policy_input.request.tool;
                let required_by = by.label();
                let approved =
                    self.request_approval(context, policy_input, required_by.clone()).await;
                if let Err(error) = &approved {
                    self.emit_rejected_span(context, tool, error, &required_by);
                }
                approved
            }
        }
    }

    /// Repeats the authorization of a call that has waited for approval or for its permits.
    ///
    /// Rejects the call if its key was revoked. Also rejects it if `current`, the policy now,
    /// denies it, asks for an approval that it lacks, or needs parameters that were dropped.
    /// `canonical` is what [`Tool::canonical_text`](crate::daemon::tool::Tool::canonical_text) returned
    /// for the request.
    pub(super) async fn reauthorize(
        self: &Arc<Self>,
        context: &CallContext,
        reauthorization: &ReauthorizationInput,
        is_approved: bool,
        current: Arc<PolicySnapshot>,
        canonical: Option<CanonicalText>,
    ) -> Result<(), Error> {
        let request = &reauthorization.request;
        if context.principal.is_revoked() {
            let text = "the key of this call expired, or was revoked or changed while the call waited: repeat the call with a valid key";
            let error = Error::new(Reason::Unauthenticated, text);
            return Err(self.reject(context, request, DENIED_BY_KEY, error).await);
        }
        if Arc::ptr_eq(&reauthorization.snapshot, &current) {
            return Ok(());
        }

        let dialect_call = request.dialect_call.as_deref();
        let lacks_dialect_params = dialect_call.is_some_and(|call| {
            call.texts.is_empty() && current.needs_dialect_params(call.tool, &request.workspace)
        });
        if lacks_dialect_params {
            return Err(self.reject_for_policy_change(context, request).await);
        }

        let dialect_tool = dialect_call.map(|call| call.tool);
        let lacks_params = request.texts.is_empty()
            && current.needs_params(request.tool, dialect_tool, request.risk, &request.workspace);
        let request = match reauthorization.encoded_request.as_deref() {
            Some(EncodedRequest { message_name, encoded }) if lacks_params => {
                let params =
                    self.catalog.decode_explicit_params(request.tool, *message_name, encoded)?;
                let workspace_context = self.resolve_workspace(context)?;
                let view = policy_view(&params, &workspace_context, canonical);
                &Arc::new(request.with_parameters(view.texts))
            }
            Some(_) | None => request,
        };

        // The current policy may allow a call only if it has seen all the parameters it needs.
        let still_lacks_params = lacks_params && request.texts.is_empty();
        let decision = self.policy.decide(current, Arc::clone(request)).await?;
        match decision.action {
            PolicyAction::Deny => Err(self.deny(context, request, &decision.decided_by).await),
            PolicyAction::Ask if !is_approved => {
                Err(self.reject_for_policy_change(context, request).await)
            }
            PolicyAction::Allow | PolicyAction::Ask if still_lacks_params => {
                Err(self.reject_for_policy_change(context, request).await)
            }
            PolicyAction::Allow | PolicyAction::Ask => Ok(()),
        }
    }

    /// Rejects a call that the current policy would have to decide from the start.
    async fn reject_for_policy_change(
        self: &Arc<Self>,
        context: &CallContext,
        request: &PolicyRequest,
    ) -> Error {
        let tool = request.tool;
        let text = format!(
            "the operator changed the policy while this call of {tool} waited, and the call must be decided again: repeat it"
        );
        let error = Error::new(Reason::PolicyDenied, text).with_metadata("tool", tool);
        self.reject(context, request, DENIED_BY_POLICY_CHANGE, error).await
    }

    /// Whether an authorized call would be authorized now: its key is valid, the policy is the
    /// same, and the rules that allowed it have not expired.
    pub(super) async fn still_authorized(
        &self,
        principal: &Principal,
        reauthorization: ReauthorizationInput,
        is_approved: bool,
    ) -> Result<bool, Error> {
        let current = self.policy.snapshot();
        if principal.is_revoked() || !Arc::ptr_eq(&reauthorization.snapshot, &current) {
            return Ok(false);
        }

        let decision = self.policy.decide(current, reauthorization.request).await?;
        Ok(match decision.action {
            PolicyAction::Allow => true,
            PolicyAction::Ask => is_approved,
            PolicyAction::Deny => false,
        })
    }

    async fn deny(
        self: &Arc<Self>,
        context: &CallContext,
        request: &PolicyRequest,
        by: &DecidedBy,
    ) -> Error {
        let error = denied_error(request.tool, by);
        self.reject(context, request, &by.label(), error).await
    }

    /// Records that a call was denied, and emits its span. Returns the error for the caller.
    pub(super) async fn reject(
        self: &Arc<Self>,
        context: &CallContext,
        request: &PolicyRequest,
        denied_by: &str,
        error: Error,
    ) -> Error {
        self.telemetry.metrics().count_policy_denial(denied_by);
        let call = (request.tool, request.workspace.as_str());
        audit_denial(self.telemetry.audit(), context, call, denied_by, &error);
        self.record_denial(context, request, denied_by).await;
        self.emit_rejected_span(context, request.tool, &error, denied_by);
        error
    }

    /// Emits the span of a call that was not authorized.
    fn emit_rejected_span(
        &self,
        context: &CallContext,
        tool: &'static str,
        error: &Error,
        denied_by: &str,
    ) {
        let Ok(workspace_context) = self.resolve_workspace(context) else {
            return;
        };

        let span = self.start_span(tool, context, &workspace_context);
        span.set_text(semconv::DENIED_BY, denied_by);
        let approval_id = error.metadata.iter().find(|(name, _)| name == "approval_id");
        if let Some((_, id)) = approval_id {
            span.set(semconv::APPROVAL_ID, id.clone());
        }
        span.fail(error.reason.name());
        span.end();
    }

    /// Waits until an approved call that found no capacity may retry admission, so that the
    /// approval is not wasted. Returns whether it may retry.
    pub(super) async fn await_admission_retry(
        &self,
        authorization: &Authorization,
        error: &Error,
    ) -> bool {
        let retry_at = error.retry_after.map(|delay| Instant::now() + delay);
        if error.reason != Reason::ResourceExhausted
            || retry_at.is_none()
            || retry_at > authorization.admission_deadline
        {
            return false;
        }

        tokio::select! {
            () = task::sleep_until(retry_at) => true,
            () = self.shutdown.draining_token().cancelled_owned() => false,
        }
    }

    /// Records that a call was denied. If the record cannot be written, the call is denied anyway.
    async fn record_denial(
        self: &Arc<Self>,
        context: &CallContext,
        request: &PolicyRequest,
        denied_by: &str,
    ) {
        let fields = records::common_record_fields(request.tool, context, &request.workspace);
        self.append_record(context, records::denied_record(&fields, denied_by)).await;
    }

    /// Records that an approved call could not start, and emits its span.
    pub(super) async fn record_approved_but_rejected(
        self: &Arc<Self>,
        context: &CallContext,
        tool: &'static str,
        error: &Error,
    ) {
        let denied_by = error.reason.name();
        if let Ok(workspace_context) = self.resolve_workspace(context) {
            let workspace = workspace_context.workspace.name();
            let call = (tool, workspace);
            audit_denial(self.telemetry.audit(), context, call, denied_by, error);
            let fields = records::common_record_fields(tool, context, workspace);
            self.append_record(context, records::denied_record(&fields, denied_by)).await;
        }
        self.emit_rejected_span(context, tool, error, denied_by);
    }

    /// Appends a record to the session of a call. Logs an error if that fails.
    pub(super) async fn append_record(
        self: &Arc<Self>,
        context: &CallContext,
        record: Map<String, Value>,
    ) {
        let appended = match self.open_session(context).await {
            Ok(session) => session.record_without_step(record).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = appended {
            tracing::error!(error, "cannot record a call that was denied");
        }
    }
}

pub(super) fn denied_error(tool: &str, by: &DecidedBy) -> Error {
    let error = match by {
        DecidedBy::ToolLists => Error::new(
            Reason::ToolDisabled,
            format!("the operator has disabled {tool}: use another tool, or ask the operator"),
        ),
        DecidedBy::Rule(rule) => Error::new(
            Reason::PolicyDenied,
            format!(
                "the operator's rule {:?} denies this call of {tool}: do something else, or ask the operator",
                rule.name
            ),
        )
        .with_metadata("rule_id", rule.id.clone()),
        DecidedBy::Risk(_) => Error::new(
            Reason::PolicyDenied,
            format!(
                "the operator's policy denies calls of {tool} because of its risk, unless a rule allows them: do something else, or ask the operator"
            ),
        ),
    };
    error.with_metadata("tool", tool)
}
