//! The data of an approval, and its records in the session.

use std::{
    io,
    sync::{Arc, Weak},
    time::{Instant, SystemTime},
};

use serde_json::{Map, Value};

use super::preview::ApprovalPreview;
use crate::daemon::{
    error::Error,
    pipeline::{
        observer::CallObserver,
        policy::{
            decision::PolicySnapshot, pattern::RulePattern, request::PolicyRequest, rule::Rule,
        },
    },
    store::{
        approvals::{ApprovalEnd, ApprovalEndState, ApprovalParameter, ApprovalRecord},
        session::Session,
        unix_millis,
    },
    telemetry::{
        access_log::CallRecord,
        audit::{AuditEvent, AuditLog},
        logs::rfc3339_micros,
    },
    tool::WorkspaceContext,
    workspace::Workspace,
};

/// An approval, as clients see it.
#[derive(Debug, Clone)]
pub(crate) struct Approval {
    /// The call, and how the wait ended.
    pub(crate) record: ApprovalRecord,
    /// A rule pattern that matches similar calls, while the approval is pending.
    pub(crate) suggested_pattern: Option<String>,
    /// The workspace of the call: another one may have its name later. `None` if read from the
    /// database, which has only approvals of existing workspaces.
    pub(crate) workspace: Option<Weak<Workspace>>,
}

impl Approval {
    /// An approval from the database.
    pub(super) fn stored(record: ApprovalRecord) -> Self {
        Self { record, suggested_pattern: None, workspace: None }
    }
}

/// A call that needs approval.
#[derive(Debug)]
pub(crate) struct ApprovalRequest {
    pub(crate) approval: Approval,
    /// The texts of the call: the pattern of an "always" rule must match one.
    pub(crate) policy_request: Arc<PolicyRequest>,
    /// The full parameters, for clients that get one approval.
    pub(crate) preview: ApprovalPreview,
    /// Approximate memory that the call holds.
    pub(crate) held_bytes: usize,
    pub(crate) session: Arc<Session>,
    pub(crate) recorder: ApprovalRecorder,
    /// When the wait expires.
    pub(crate) expires_at: Instant,
    /// Limit on pending approvals in the workspace.
    pub(crate) max_pending: usize,
    /// The policy that asked for the approval.
    pub(crate) policy_snapshot: Arc<PolicySnapshot>,
    /// Follows the progress of the call.
    pub(crate) observer: Option<CallObserver>,
    /// The workspace of the call. Its deletion ends the wait.
    pub(crate) workspace: Arc<WorkspaceContext>,
}

/// Writes the records of an approval, and its lines in the audit log.
#[derive(Debug)]
pub(crate) struct ApprovalRecorder {
    pub(crate) common_record_fields: Map<String, Value>,
    pub(crate) audit: AuditLog,
    /// The call that waits.
    pub(crate) call: CallRecord,
}

#[derive(Debug)]
pub(crate) enum ApprovalDecision {
    Allow,
    Deny,
    /// Allows the call, and adds a rule that allows similar calls.
    Always {
        /// The pattern of the rule. Without it, the suggested pattern.
        pattern: Option<RulePattern>,
        /// When the rule expires.
        expires: SystemTime,
    },
}

/// Prefix of the decider's name if a rule decided; the id of the rule follows.
const RULE_PREFIX: &str = "rule:";

/// How an approval ends, and the principal that ends it.
#[derive(Debug)]
pub(super) struct ApprovalResolution {
    pub(super) state: ApprovalEndState,
    pub(super) by: String,
    pub(super) comment: String,
    /// The rule that the decision adds.
    pub(super) rule: Option<Rule>,
}

/// The outcome of an attempt to end an approval.
#[derive(Debug)]
pub(super) enum ResolveOutcome {
    Resolved(Arc<Approval>, Option<Arc<Rule>>),
    /// It had ended before; holds that end.
    AlreadyResolved(Arc<Approval>),
}

impl ApprovalResolution {
    /// An end without a decision, by the daemon.
    pub(super) fn undecided(state: ApprovalEndState) -> Self {
        Self { state, by: "daemon".to_owned(), comment: String::new(), rule: None }
    }

    /// An end by a rule that was added while the call waited.
    pub(super) fn by_rule(id: &str) -> Self {
        Self {
            state: ApprovalEndState::Allowed,
            by: format!("{RULE_PREFIX}{id}"),
            comment: String::new(),
            rule: None,
        }
    }

    /// Returns the end as the database stores it.
    pub(super) fn to_approval_end(&self) -> ApprovalEnd {
        let rule_id = match &self.rule {
            Some(rule) => Some(rule.id.clone()),
            None => self.by.strip_prefix(RULE_PREFIX).map(str::to_owned),
        };
        ApprovalEnd {
            state: self.state,
            ended_ms: unix_millis::from_time(SystemTime::now()),
            ended_by: self.by.clone(),
            comment: self.comment.clone(),
            rule_id: rule_id.unwrap_or_default(),
        }
    }
}

impl ApprovalRecorder {
    /// Records that a decision was requested.
    pub(super) fn record_requested(
        &self,
        session: &Session,
        record: &ApprovalRecord,
    ) -> io::Result<()> {
        self.audit_event(AuditEvent::ApprovalRequested, record);
        session.record_without_step(requested_record(record, &self.common_record_fields))
    }

    /// Records the end of an approval.
    pub(super) fn record_decided(
        &self,
        session: &Session,
        record: &ApprovalRecord,
    ) -> io::Result<()> {
        self.audit_event(AuditEvent::ApprovalDecided, record);
        session.record_without_step(decided_record(record, &self.common_record_fields))
    }

    fn audit_event(&self, event: AuditEvent, record: &ApprovalRecord) {
        self.audit.record_with(event, || {
            let end = record.end.as_ref();
            let call = CallRecord {
                approval_id: Some(record.id.clone()),
                outcome: end.map(|end| end.state.name().to_lowercase()),
                ..self.call.clone()
            };
            let details = [
                ("required_by", Some(record.required_by.as_str())),
                ("decided_by", end.map(|end| end.ended_by.as_str())),
                ("rule_id", end.map(|end| end.rule_id.as_str()).filter(|id| !id.is_empty())),
            ];
            let details = details
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?.into())));
            (call, details.collect())
        });
    }
}

/// The record `approval_requested`.
fn requested_record(
    record: &ApprovalRecord,
    common_fields: &Map<String, Value>,
) -> Map<String, Value> {
    let parameters: Map<String, Value> = record
        .parameters
        .iter()
        .map(|parameter| (parameter.name.clone(), single_line_value(parameter).into()))
        .collect();

    let mut fields = approval_fields("approval_requested", record, common_fields);
    fields.insert("params".to_owned(), parameters.into());
    fields.insert("files_affected".to_owned(), record.files.clone().into());
    if record.more_files > 0 {
        fields.insert("more_files".to_owned(), record.more_files.into());
    }

    fields.insert("required_by".to_owned(), record.required_by.as_str().into());

    fields
}

fn single_line_value(parameter: &ApprovalParameter) -> String {
    let ApprovalParameter { value, omitted_bytes, ending, .. } = parameter;
    if *omitted_bytes == 0 {
        value.clone()
    } else {
        format!("{value} … ({omitted_bytes} bytes left out) … {ending}")
    }
}

/// Returns `allowed_by` of an approved call: the rule or the approval.
pub(crate) fn allowed_by(record: &ApprovalRecord, end: &ApprovalEnd) -> String {
    if end.ended_by.starts_with(RULE_PREFIX) {
        end.ended_by.clone()
    } else {
        format!("approval:{}", record.id)
    }
}

/// The record `approval_decided`.
pub(super) fn decided_record(
    record: &ApprovalRecord,
    common_fields: &Map<String, Value>,
) -> Map<String, Value> {
    let mut fields = approval_fields("approval_decided", record, common_fields);
    let Some(end) = &record.end else {
        return fields;
    };

    fields.insert("state".to_owned(), end.state.name().into());
    fields.insert("decided_by".to_owned(), end.ended_by.as_str().into());
    fields.insert("required_by".to_owned(), record.required_by.as_str().into());
    for (name, text) in [("comment", &end.comment), ("rule_id", &end.rule_id)] {
        if !text.is_empty() {
            fields.insert(name.to_owned(), text.as_str().into());
        }
    }

    fields
}

/// Returns the common record fields of a call whose daemon died.
pub(super) fn lost_call_fields(record: &ApprovalRecord) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("call_id".to_owned(), record.call_id.as_str().into());
    fields.insert("tool".to_owned(), record.tool.as_str().into());
    fields
}

fn approval_fields(
    event: &str,
    record: &ApprovalRecord,
    common_fields: &Map<String, Value>,
) -> Map<String, Value> {
    let mut fields = common_fields.clone();
    for (name, text) in [
        ("event", event),
        ("time", &rfc3339_micros(SystemTime::now())),
        ("approval_id", &record.id),
        ("workspace", &record.workspace),
        ("principal", &record.principal),
    ] {
        fields.insert(name.to_owned(), text.into());
    }

    fields
}

/// Returns the pattern of an "always" rule: the given one if it matches the call, else the
/// suggested one.
pub(super) fn rule_pattern_for(
    approval: &Approval,
    call: &PolicyRequest,
    given: Option<RulePattern>,
) -> Result<RulePattern, Error> {
    let Some(pattern) = given else {
        let suggested = approval.suggested_pattern.as_deref().ok_or_else(|| {
            let text = "is required: the daemon suggests none for a call that is too large, that names files with .. in the path, or that has an environment or a standard input, which approvers do not see";
            Error::invalid_field("pattern", text)
        })?;
        return RulePattern::parse(suggested).map_err(Error::internal);
    };

    let mut texts = call.texts.iter().filter(|text| text.may_allow);
    if texts.any(|text| pattern.is_match(&text.text)) {
        return Ok(pattern);
    }

    let text = "does not match this call, so its rule would not allow the call";

    Err(Error::invalid_field("pattern", text))
}
