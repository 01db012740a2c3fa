//! Whether a call may be made: by the operator's policy and, where that says to ask, by somebody who is.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use prost::Message;
use serde_json::{Map, Value};

use super::{
    Pipeline,
    access::principal::Principal,
    approval::{
        preview::ApprovalPreview,
        request::{Approval, ApprovalRequest, allowed_by},
    },
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
        store::{
            approvals::{ApprovalEnd, ApprovalEndState, ApprovalRecord},
            unix_millis,
        },
        task,
        telemetry::semconv,
        tool::{CallApproval, replaced_while_pending},
        workspace::{RelativePath, Workspace, path_identities::PathIdentities},
    },
};

/// What part of the time to its deadline a call does not wait to be approved, and how much at most: in it, the
/// end of the wait is written down, and the caller is told what it was, instead of nothing but that its time
/// is up.
const REPLY_MARGIN_DIVISOR: u32 = 4;
const MAX_REPLY_MARGIN: Duration = Duration::from_secs(1);
/// What records say of a call that was denied for the sake of its key.
const DENIED_BY_KEY: &str = "key";
/// And of one about which there was something else to decide than before.
const DENIED_BY_POLICY_CHANGE: &str = "policy that was changed";
/// And of one that would have been made elsewhere than it was approved for.
const DENIED_BY_REPLACED_DIRECTORY: &str = "directories that were replaced";

impl Pipeline {
    /// Refuses a tool that the operator has switched off, whatever it is called with: by its name, or by the one
    /// that it is `said` by in a dialect.
    pub(super) fn require_enabled_tool(
        &self,
        tool: &str,
        dialect_tool: Option<&str>,
    ) -> Result<(), Error> {
        match self.policy.snapshot().policy.is_tool_enabled(tool, dialect_tool) {
            true => Ok(()),
            // Who knows it by another name is told that.
            false => Err(denied_error(dialect_tool.unwrap_or(tool), &DecidedBy::ToolLists)),
        }
    }

    /// Lets a call in that is no tool's, but does what `tool` does; `message` is the full name of what it
    /// says, as it was given. Waits until somebody has decided, where the policy says so.
    pub(crate) async fn authorize_as<M: Message>(
        self: &Arc<Self>,
        tool: &'static str,
        context: &CallContext,
        message: &str,
        said: &M,
        file: &str,
    ) -> Result<Authorization, Error> {
        context.principal.require_tool(tool)?;
        let workspace_context = self.workspace_context(context)?;
        let workspace = workspace_context.workspace.name().to_owned();
        let spec = self.catalog.tool(tool);
        let risk = spec.map_or(Risk::Dangerous, |spec| spec.options.risk());
        let snapshot = self.policy.snapshot();
        let is_looked_at = snapshot.needs_params(tool, None, risk, &workspace);
        let policy_input = PolicyInput::new(tool, risk, workspace, snapshot);
        let policy_input = match is_looked_at {
            true => {
                let given = self.catalog.explicit_params(message, said)?;
                let told = policy_view(&given, workspace_context, None);
                policy_input.with_params(told, vec![file.to_owned()], given.encoded_len())
            }
            false => policy_input,
        };
        self.authorize(context, policy_input).await
    }

    /// Lets a call in, or says why not. Waits until somebody has decided, where the policy says so.
    pub(super) async fn authorize(
        self: &Arc<Self>,
        context: &CallContext,
        policy_input: PolicyInput,
    ) -> Result<Authorization, Error> {
        let (snapshot, call) =
            (Arc::clone(&policy_input.snapshot), Arc::clone(&policy_input.request));
        let decision = self.policy.decide(snapshot, call).await?;
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
                let job = context.job.as_ref();
                if let Some(before) = job.and_then(|job| job.approval.clone()) {
                    let wait = policy_input.snapshot.policy.approvals.wait;
                    return Ok(approved_authorization(context, wait, before));
                }
                let tool = policy_input.request.tool;
                let by = by.label();
                let asked = self.request_approval(context, policy_input, by.clone()).await;
                if let Err(error) = &asked {
                    self.emit_rejected_span(context, tool, error, &by);
                }
                asked
            }
        }
    }

    /// Waits until somebody has decided.
    async fn request_approval(
        self: &Arc<Self>,
        context: &CallContext,
        policy_input: PolicyInput,
        asked_by: String,
    ) -> Result<Authorization, Error> {
        let settings = policy_input.snapshot.policy.approvals;
        if self.shutdown.is_draining() {
            return Err(draining_error());
        }
        let session = self.session(context).await?;
        let (now, clock) = (Instant::now(), SystemTime::now());
        let until = match context.deadline {
            Some(deadline) => {
                let left = deadline.saturating_duration_since(now);
                deadline - (left / REPLY_MARGIN_DIVISOR).min(MAX_REPLY_MARGIN)
            }
            None => now + settings.wait,
        };
        let workspace = Arc::clone(&self.workspace_context(context)?.workspace);
        let identities = path_identities(&workspace, &policy_input).await?;
        let call = policy_input.request;
        let dialect_call = call.dialect_call.as_deref();
        let shown = ApprovalPreview {
            // As who is asked knows it from what the agent was told.
            parameters: dialect_call
                .map_or(policy_input.preview_params, |said| said.preview_params.clone()),
            files: policy_input.files,
        };
        let kept = shown.to_stored();
        let record = ApprovalRecord {
            id: ulid::Ulid::generate().to_string(),
            workspace: call.workspace.clone(),
            session: context.session.as_str().to_owned(),
            principal: context.principal.name().to_owned(),
            call_id: context.call_id.clone(),
            tool: call.tool.to_owned(),
            said_as: dialect_call
                .map_or_else(String::new, |said| format!("{}/{}", said.dialect.name, said.tool)),
            parameters: kept.parameters,
            files: kept.files,
            more_files: kept.more_files,
            asked_by,
            requested_ms: unix_millis::from_time(clock),
            expires_ms: unix_millis::from_time(clock + until.saturating_duration_since(now)),
            end: None,
        };
        let request = ApprovalRequest {
            approval: Approval { record, suggested_pattern: policy_input.suggested_pattern },
            policy_request: Arc::clone(&call),
            preview: shown,
            held_bytes: policy_input.held_bytes,
            session,
            common_record_fields: records::common_record_fields(
                call.tool,
                context,
                &call.workspace,
            ),
            expires_at: until,
            max_pending: settings.max_pending,
            policy_snapshot: Arc::clone(&policy_input.snapshot),
        };
        if let Some(job) = &context.job {
            job.pending_approval.cancel();
        }
        let draining_begins = self.shutdown.draining_token();
        let ended = self.approvals.request(request, draining_begins).await?;
        let end = ended.record.end.as_ref();
        let end = end.ok_or_else(|| Error::internal("a wait ended without an end"))?;
        match end.state {
            ApprovalEndState::Allowed => {
                let judged = ReauthorizationInput {
                    request: call,
                    snapshot: policy_input.snapshot,
                    encoded_request: None,
                };
                let cwd = identities.cwd();
                if let Some(path) = changed_path(workspace, identities).await? {
                    let error = replaced_while_pending(path.as_str());
                    return Err(self
                        .reject(context, &judged.request, DENIED_BY_REPLACED_DIRECTORY, error)
                        .await);
                }
                let now = self.policy.snapshot();
                self.reauthorize(context, &judged, true, now, None).await?;
                let by = allowed_by(&ended.record, end);
                Ok(approved_authorization(
                    context,
                    settings.wait,
                    CallApproval { approved_by: by, cwd },
                ))
            }
            ApprovalEndState::Withdrawn if self.shutdown.is_draining() => Err(draining_error()),
            ApprovalEndState::Expired if context.deadline.is_some() => {
                Err(approval_deadline_error(&ended.record, end))
            }
            ApprovalEndState::Denied
            | ApprovalEndState::Expired
            | ApprovalEndState::Withdrawn
            | ApprovalEndState::Lost => Err(not_approved_error(&ended.record, end)),
        }
    }

    /// Refuses a call that was let in and has waited since, to be approved or for a place, but may not be made
    /// any more: what has let it in did not know that. `now` decides; `reading` is how its tool reads it.
    pub(super) async fn reauthorize(
        self: &Arc<Self>,
        context: &CallContext,
        reauthorization: &ReauthorizationInput,
        is_approved: bool,
        now: Arc<PolicySnapshot>,
        reading: Option<CanonicalText>,
    ) -> Result<(), Error> {
        let call = &reauthorization.request;
        if context.principal.is_revoked() {
            let text = "the key of this call was taken away, has expired, or was given other rights while the call waited: call again with one that is right";
            let error = Error::new(Reason::Unauthenticated, text);
            return Err(self.reject(context, call, DENIED_BY_KEY, error).await);
        }
        if Arc::ptr_eq(&reauthorization.snapshot, &now) {
            return Ok(());
        }
        let dialect_call = call.dialect_call.as_deref();
        let name = dialect_call.map(|said| said.tool);
        let is_unknown =
            call.texts.is_empty() && now.needs_params(call.tool, name, call.risk, &call.workspace);
        let is_unheard = dialect_call.is_some_and(|said| {
            said.texts.is_empty() && now.needs_dialect_params(said.tool, &call.workspace)
        });
        if is_unheard {
            return Err(self.reject_for_policy_change(context, call).await);
        }
        let call = match reauthorization.encoded_request.as_deref() {
            Some(EncodedRequest { message_name: message, encoded }) if is_unknown => {
                let given = self.catalog.decode_explicit_params(call.tool, *message, encoded)?;
                let told = policy_view(&given, self.workspace_context(context)?, reading);
                &Arc::new(call.with_parameters(told.texts))
            }
            Some(_) | None => call,
        };
        // What lets it in now must have seen as much of it as it wants to.
        let is_unseen = is_unknown && call.texts.is_empty();
        let decision = self.policy.decide(now, Arc::clone(call)).await?;
        match decision.action {
            PolicyAction::Deny => Err(self.deny(context, call, &decision.decided_by).await),
            PolicyAction::Ask if !is_approved => {
                Err(self.reject_for_policy_change(context, call).await)
            }
            PolicyAction::Allow | PolicyAction::Ask if is_unseen => {
                Err(self.reject_for_policy_change(context, call).await)
            }
            PolicyAction::Allow | PolicyAction::Ask => Ok(()),
        }
    }

    /// Refuses a call about which it would have to be decided from the beginning.
    async fn reject_for_policy_change(
        self: &Arc<Self>,
        context: &CallContext,
        call: &PolicyRequest,
    ) -> Error {
        let tool = call.tool;
        let text = format!(
            "the operator's policy was changed while this call of {tool} waited for its place, and now wants to know more about it: call again"
        );
        let error = Error::new(Reason::PolicyDenied, text).with_metadata("tool", tool);
        self.reject(context, call, DENIED_BY_POLICY_CHANGE, error).await
    }

    /// Whether a call that was let in would be now, too: its caller has the same rights, and the policy, which
    /// may have become another or some rules of which may have ended, says the same.
    pub(super) async fn still_authorized(
        &self,
        principal: &Principal,
        reauthorization: ReauthorizationInput,
        is_approved: bool,
    ) -> Result<bool, Error> {
        let now = self.policy.snapshot();
        if principal.is_revoked() || !Arc::ptr_eq(&reauthorization.snapshot, &now) {
            return Ok(false);
        }
        let decision = self.policy.decide(now, reauthorization.request).await?;
        Ok(match decision.action {
            PolicyAction::Allow => true,
            PolicyAction::Ask => is_approved,
            PolicyAction::Deny => false,
        })
    }

    async fn deny(
        self: &Arc<Self>,
        context: &CallContext,
        call: &PolicyRequest,
        by: &DecidedBy,
    ) -> Error {
        let error = denied_error(call.tool, by);
        self.reject(context, call, &by.label(), error).await
    }

    /// Leaves a record and a span of a call that is not let in; answers what it is told.
    async fn reject(
        self: &Arc<Self>,
        context: &CallContext,
        call: &PolicyRequest,
        by: &str,
        error: Error,
    ) -> Error {
        self.record_denial(context, call, by).await;
        self.emit_rejected_span(context, call.tool, &error, by);
        error
    }

    /// Leaves the span of a call that was not let in.
    fn emit_rejected_span(
        &self,
        context: &CallContext,
        tool: &'static str,
        error: &Error,
        by: &str,
    ) {
        let Ok(scene) = self.workspace_context(context) else {
            return;
        };
        let span = self.start_span(tool, context, scene);
        span.set_text(semconv::DENIED_BY, by);
        let mut metadata = error.metadata.iter();
        if let Some((_, id)) = metadata.find(|(name, _)| name == "approval_id") {
            span.set(semconv::APPROVAL_ID, id.clone());
        }
        span.fail(error.reason.name());
        span.end();
    }

    /// Whether a call for which there was no place is to try again; then it is time to. Who has approved it
    /// is not to be asked again for want of a place.
    pub(super) async fn await_admission_retry(
        &self,
        authorization: &Authorization,
        error: &Error,
    ) -> bool {
        let again = error.retry_after.map(|wait| Instant::now() + wait);
        if error.reason != Reason::ResourceExhausted
            || again.is_none()
            || again > authorization.admission_deadline
        {
            return false;
        }
        tokio::select! {
            () = task::sleep_until(again) => true,
            () = self.shutdown.draining_token().cancelled_owned() => false,
        }
    }

    /// Leaves a record of a call that was denied. Where there is no room for it, it is denied all the same.
    async fn record_denial(
        self: &Arc<Self>,
        context: &CallContext,
        call: &PolicyRequest,
        by: &str,
    ) {
        let about = records::common_record_fields(call.tool, context, &call.workspace);
        self.append_record(context, records::denied_record(&about, by)).await;
    }

    /// Leaves a record and a span of a call that somebody has approved, and that could not begin all the same.
    pub(super) async fn record_approved_but_rejected(
        self: &Arc<Self>,
        context: &CallContext,
        tool: &'static str,
        error: &Error,
    ) {
        let by = error.reason.name();
        if let Ok(scene) = self.workspace_context(context) {
            let about = records::common_record_fields(tool, context, scene.workspace.name());
            self.append_record(context, records::denied_record(&about, by)).await;
        }
        self.emit_rejected_span(context, tool, error, by);
    }

    pub(super) async fn append_record(
        self: &Arc<Self>,
        context: &CallContext,
        fields: Map<String, Value>,
    ) {
        let noted = match self.session(context).await {
            Ok(session) => session.record_without_step(fields).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = noted {
            tracing::error!(error, "the record of a call that was denied could not be kept");
        }
    }
}

/// Looks at the directories of what a call names in the workspace.
async fn path_identities(
    workspace: &Arc<Workspace>,
    subject: &PolicyInput,
) -> Result<PathIdentities, Error> {
    let files = subject.files.iter();
    let files: Vec<_> = files.filter_map(|file| workspace.resolve(file).ok()).collect();
    let (workspace, cwd) = (Arc::clone(workspace), subject.cwd.clone());
    let looked =
        task::spawn_blocking(move || PathIdentities::capture(&workspace, cwd.as_ref(), &files));
    looked.await.map_err(Error::internal)?
}

/// A path whose directories are others than when somebody was asked.
async fn changed_path(
    workspace: Arc<Workspace>,
    before: PathIdentities,
) -> Result<Option<RelativePath>, Error> {
    let looked = task::spawn_blocking(move || before.first_changed(&workspace).cloned());
    looked.await.map_err(Error::internal)
}

/// A call that somebody has approved: it may `wait` for a place.
fn approved_authorization(
    context: &CallContext,
    wait: Duration,
    approved: CallApproval,
) -> Authorization {
    Authorization {
        allowed_by: Some(approved.approved_by),
        approved_cwd: approved.cwd,
        admission_deadline: Some(context.deadline.unwrap_or(Instant::now() + wait)),
    }
}

fn denied_error(tool: &str, by: &DecidedBy) -> Error {
    match by {
        DecidedBy::ToolLists => Error::new(
            Reason::ToolDisabled,
            format!("the operator has switched {tool} off: use another tool, or ask the operator"),
        ),
        DecidedBy::Rule(rule) => Error::new(
            Reason::PolicyDenied,
            format!(
                "the operator's rule {:?} denies this call of {tool}: ask for something else, or ask the operator",
                rule.name
            ),
        )
        .with_metadata("rule_id", rule.id.clone()),
        DecidedBy::Risk(_) => Error::new(
            Reason::PolicyDenied,
            format!(
                "the operator lets no call of {tool} in, by its risk, but for what rules allow: ask for something else, or ask the operator"
            ),
        ),
    }
    .with_metadata("tool", tool)
}

/// What a call is told that was asked about and not allowed.
fn not_approved_error(record: &ApprovalRecord, end: &ApprovalEnd) -> Error {
    let tool = &record.tool;
    let text = match end.state {
        ApprovalEndState::Denied if end.comment.is_empty() => {
            format!(
                "{} has denied this call of {tool}: do something else, or ask why",
                end.ended_by
            )
        }
        ApprovalEndState::Denied => format!(
            "{} has denied this call of {tool}, and says {:?}: do something else",
            end.ended_by, end.comment
        ),
        ApprovalEndState::Expired => format!(
            "nobody has decided in time whether this call of {tool} may be made: try again when somebody watches (jig approvals), or give it a longer deadline"
        ),
        ApprovalEndState::Allowed | ApprovalEndState::Withdrawn | ApprovalEndState::Lost => {
            format!("nobody waited any more for this call of {tool} to be approved")
        }
    };
    approval_error(Reason::ApprovalDenied, text, record, end)
}

/// What a call is told about which nobody has decided before its deadline.
fn approval_deadline_error(record: &ApprovalRecord, end: &ApprovalEnd) -> Error {
    let text = format!(
        "nobody has decided before the deadline whether this call of {} may be made, and nothing of it was begun: try again when somebody watches (jig approvals), or give it a longer deadline",
        record.tool
    );
    approval_error(Reason::Timeout, text, record, end)
}

fn approval_error(
    reason: Reason,
    text: String,
    record: &ApprovalRecord,
    end: &ApprovalEnd,
) -> Error {
    Error::new(reason, text)
        .with_metadata("approval_id", record.id.clone())
        .with_metadata("state", end.state.name())
        .with_metadata("by", end.ended_by.clone())
}

fn draining_error() -> Error {
    let text = "the daemon is shutting down, and this call was not approved yet: retry elsewhere, or when it is back";
    Error::new(Reason::Draining, text).retry_after(Duration::from_secs(1))
}
