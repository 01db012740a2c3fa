//! Waits for a person's decision on a call that needs approval.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use super::{
    Pipeline,
    approval::{
        preview::ApprovalPreview,
        request::{Approval, ApprovalRecorder, ApprovalRequest, allowed_by},
    },
    audit::{call_record, report_end},
    context::CallContext,
    policy_input::{Authorization, PolicyInput, ReauthorizationInput},
    records,
};
use crate::daemon::{
    error::{Error, Reason},
    fd_exhaustion::FdRetry,
    store::{
        approvals::{ApprovalEnd, ApprovalEndState, ApprovalRecord},
        session::Session,
        unix_millis,
    },
    task,
    tool::{CallApproval, WorkspaceContext, replaced_while_pending_error},
    workspace::{RelativePath, Workspace, path_identities::PathIdentities},
};

/// A call stops waiting this part of its remaining time before its deadline. In that time the
/// daemon stores how the wait ended, and the caller receives that instead of a bare timeout.
const REPLY_MARGIN_DIVISOR: u32 = 4;
const MAX_REPLY_MARGIN: Duration = Duration::from_secs(1);
/// `denied_by` of an approved call whose directories were replaced while it waited.
const DENIED_BY_REPLACED_DIRECTORY: &str = "policy:directory_replaced";

impl Pipeline {
    /// Asks for approval of a call, and waits for the decision. `required_by` is the rule or the risk
    /// that requires the approval.
    pub(super) async fn request_approval(
        self: &Arc<Self>,
        context: &CallContext,
        policy_input: PolicyInput,
        required_by: String,
    ) -> Result<Authorization, Error> {
        if self.shutdown.is_draining() {
            return Err(draining_error());
        }

        let snapshot = Arc::clone(&policy_input.snapshot);
        let workspace_context = self.resolve_workspace(context)?;
        let workspace = Arc::clone(&workspace_context.workspace);
        let session = self.open_session(context).await?;
        let identities = path_identities(&workspace, &policy_input, context.deadline).await?;
        let request =
            self.approval_request(context, policy_input, required_by, session, &workspace_context);
        let policy_request = Arc::clone(&request.policy_request);

        if let Some(job) = &context.job {
            job.pending_approval.cancel();
        }
        let ended = self.approvals.request(request, self.shutdown.draining_token()).await?;
        workspace_context.require_undeleted()?;
        let Some(end) = &ended.record.end else {
            return Err(Error::internal("an approval ended without a result"));
        };

        match end.state {
            ApprovalEndState::Allowed => {}
            ApprovalEndState::Withdrawn if self.shutdown.is_draining() => {
                return Err(draining_error());
            }
            ApprovalEndState::Expired if context.deadline.is_some() => {
                return Err(approval_deadline_error(&ended.record, end));
            }
            ApprovalEndState::Denied
            | ApprovalEndState::Expired
            | ApprovalEndState::Withdrawn
            | ApprovalEndState::Lost => {
                let error = not_approved_error(&ended.record, end);
                report_end(&context.access_log_entry, Some(error.reason.name()));
                return Err(error);
            }
        }

        let approved_cwd = identities.cwd();
        if let Some(path) = changed_path(workspace, identities, context.deadline).await? {
            let error = replaced_while_pending_error(path.as_str());
            return Err(self
                .reject(context, &policy_request, DENIED_BY_REPLACED_DIRECTORY, error)
                .await);
        }

        let wait = snapshot.policy.approvals.timeout;
        let reauthorization =
            ReauthorizationInput { request: policy_request, snapshot, encoded_request: None };
        self.reauthorize(context, &reauthorization, true, self.policy.snapshot(), None).await?;

        let approved_by = allowed_by(&ended.record, end);
        Ok(approved_authorization(context, wait, CallApproval { approved_by, cwd: approved_cwd }))
    }

    /// Describes a call for its approvers, and for the database.
    fn approval_request(
        &self,
        context: &CallContext,
        policy_input: PolicyInput,
        required_by: String,
        session: Arc<Session>,
        workspace: &Arc<WorkspaceContext>,
    ) -> ApprovalRequest {
        let settings = policy_input.snapshot.policy.approvals;
        let (now, requested_at) = (Instant::now(), SystemTime::now());
        let expires_at = approval_expiry(now, context.deadline, settings.timeout);

        let call = policy_input.request;
        let dialect_call = call.dialect_call.as_deref();
        let preview = ApprovalPreview {
            // An approver sees the parameters as the model gave them.
            parameters: dialect_call
                .map_or(policy_input.preview_params, |dialect| dialect.preview_params.clone()),
            files: policy_input.files,
        };
        let stored_preview = preview.to_stored();
        let record = ApprovalRecord {
            id: ulid::Ulid::generate().to_string(),
            workspace: call.workspace.clone(),
            session: context.session.as_str().to_owned(),
            principal: context.principal.name().to_owned(),
            call_id: context.call_id.clone(),
            tool: call.tool.to_owned(),
            called_name: dialect_call.map_or_else(String::new, |dialect_call| {
                format!("{}/{}", dialect_call.dialect.name, dialect_call.tool)
            }),
            parameters: stored_preview.parameters,
            files: stored_preview.files,
            more_files: stored_preview.more_files,
            required_by,
            requested_ms: unix_millis::from_time(requested_at),
            expires_ms: unix_millis::from_time(
                requested_at + expires_at.saturating_duration_since(now),
            ),
            end: None,
        };

        ApprovalRequest {
            approval: Approval {
                record,
                suggested_pattern: policy_input.suggested_pattern,
                workspace: Some(Arc::downgrade(&workspace.workspace)),
            },
            recorder: ApprovalRecorder {
                common_record_fields: records::common_record_fields(
                    call.tool,
                    context,
                    &call.workspace,
                ),
                audit: self.telemetry.audit().clone(),
                call: call_record(context, call.tool, &call.workspace),
            },
            policy_request: call,
            preview,
            held_bytes: policy_input.held_bytes,
            session,
            expires_at,
            max_pending: settings.max_pending,
            policy_snapshot: policy_input.snapshot,
            observer: context.observer.clone(),
            workspace: Arc::clone(workspace),
        }
    }
}

/// Returns when a call stops waiting for approval: before its deadline, or after `wait` without
/// one.
fn approval_expiry(now: Instant, deadline: Option<Instant>, wait: Duration) -> Instant {
    match deadline {
        Some(deadline) => {
            let remaining = deadline.saturating_duration_since(now);
            deadline - (remaining / REPLY_MARGIN_DIVISOR).min(MAX_REPLY_MARGIN)
        }
        None => now + wait,
    }
}

/// Returns the authorization of an approved call, which may wait up to `wait` for its permits.
pub(super) fn approved_authorization(
    context: &CallContext,
    wait: Duration,
    approval: CallApproval,
) -> Authorization {
    Authorization {
        allowed_by: Some(approval.approved_by),
        approved_cwd: approval.cwd,
        admission_deadline: Some(context.deadline.unwrap_or(Instant::now() + wait)),
    }
}

/// Captures the identities of the directories on the paths that a call names.
async fn path_identities(
    workspace: &Arc<Workspace>,
    policy_input: &PolicyInput,
    deadline: Option<Instant>,
) -> Result<PathIdentities, Error> {
    let files: Vec<_> =
        policy_input.files.iter().filter_map(|file| workspace.resolve(file).ok()).collect();
    let (workspace, cwd) = (Arc::clone(workspace), policy_input.cwd.clone());
    look_at_paths(deadline, move || PathIdentities::capture(&workspace, cwd.as_ref(), &files)).await
}

/// Returns a path on which a directory was replaced since `identities` were captured.
async fn changed_path(
    workspace: Arc<Workspace>,
    identities: PathIdentities,
    deadline: Option<Instant>,
) -> Result<Option<RelativePath>, Error> {
    look_at_paths(deadline, move || Ok(identities.first_changed(&workspace)?.cloned())).await
}

/// Runs `look` on a blocking thread. Retries while file descriptors are exhausted: a person has
/// decided, or will decide, on this call.
async fn look_at_paths<T: Send + 'static>(
    deadline: Option<Instant>,
    look: impl Fn() -> Result<T, Error> + Send + Sync + 'static,
) -> Result<T, Error> {
    let look = Arc::new(look);
    let mut attempts = FdRetry::with_deadline(deadline);
    loop {
        let look = Arc::clone(&look);
        match task::spawn_blocking(move || look()).await.map_err(Error::internal)? {
            Err(error) if attempts.should_retry(&error).await => {}
            result => return result,
        }
    }
}

fn not_approved_error(record: &ApprovalRecord, end: &ApprovalEnd) -> Error {
    let tool = &record.tool;
    let text = match end.state {
        ApprovalEndState::Denied if end.comment.is_empty() => {
            format!("{} denied this call of {tool}: do something else, or ask why", end.ended_by)
        }
        ApprovalEndState::Denied => format!(
            "{} denied this call of {tool}, with the comment {:?}: do something else",
            end.ended_by, end.comment
        ),
        ApprovalEndState::Expired => format!(
            "this call of {tool} was not approved in time: retry when an approver watches (jig approvals), or set a longer deadline"
        ),
        ApprovalEndState::Withdrawn => {
            format!("this call of {tool} was withdrawn before a decision: its client disconnected")
        }
        // An approved call proceeds, and the next daemon stores a lost one.
        ApprovalEndState::Allowed | ApprovalEndState::Lost => {
            format!(
                "internal error: approval {} of {tool} is in the state {}: report this with the daemon's log",
                record.id,
                end.state.name()
            )
        }
    };
    approval_error(Reason::ApprovalDenied, text, record, end)
}

fn approval_deadline_error(record: &ApprovalRecord, end: &ApprovalEnd) -> Error {
    let text = format!(
        "this call of {} was not approved before its deadline, and was not started: retry when an approver watches (jig approvals), or set a longer deadline",
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
        .with_metadata("decided_by", end.ended_by.clone())
}

fn draining_error() -> Error {
    let text = "the daemon is shutting down, and this call was not approved yet: retry on another daemon, or when this one is back";
    Error::new(Reason::Draining, text).with_retry_after(Duration::from_secs(1))
}
