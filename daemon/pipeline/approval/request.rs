//! What is known of a call that waits, or has waited, and how that is recorded in its session.

use std::{
    sync::Arc,
    time::{Instant, SystemTime},
};

use serde_json::{Map, Value};

use super::preview::ApprovalPreview;
use crate::daemon::{
    error::Error,
    pipeline::policy::{
        decision::PolicySnapshot, pattern::RulePattern, request::PolicyRequest, rule::Rule,
    },
    store::{
        approvals::{ApprovalEnd, ApprovalEndState, ApprovalParameter, ApprovalRecord},
        session::Session,
        unix_millis,
    },
    telemetry::logs::rfc3339_micros,
};

/// An approval, as it is shown.
#[derive(Debug, Clone)]
pub(crate) struct Approval {
    /// What was asked, and how it ended.
    pub(crate) record: ApprovalRecord,
    /// A pattern for this call and its like, while it waits.
    pub(crate) suggested_pattern: Option<String>,
}

/// A call that is to be asked about.
#[derive(Debug)]
pub(crate) struct ApprovalRequest {
    /// What is asked.
    pub(crate) approval: Approval,
    /// What rules look at: a pattern for the call must match it.
    pub(crate) policy_request: Arc<PolicyRequest>,
    /// What people are shown who ask for all.
    pub(crate) preview: ApprovalPreview,
    /// Bytes that it holds, about.
    pub(crate) held_bytes: usize,
    /// Its session.
    pub(crate) session: Arc<Session>,
    /// What each record of the call says.
    pub(crate) common_record_fields: Map<String, Value>,
    /// When nobody waits any more.
    pub(crate) expires_at: Instant,
    /// Most that may wait in the workspace at one time.
    pub(crate) max_pending: usize,
    /// What has decided that it is asked about.
    pub(crate) policy_snapshot: Arc<PolicySnapshot>,
}

/// What somebody decides.
#[derive(Debug)]
pub(crate) enum ApprovalDecision {
    /// The call may be made.
    Allow,
    /// It may not.
    Deny,
    /// It may be made, and those like it.
    Always {
        /// Which are like it; without, those that the suggested pattern matches.
        pattern: Option<RulePattern>,
        /// When the rule ends.
        expires: SystemTime,
    },
}

/// What those who end a wait are called that are rules: their ids follow.
const RULE_PREFIX: &str = "rule ";

/// How a wait is to end.
#[derive(Debug)]
pub(super) struct ApprovalResolution {
    pub(super) state: ApprovalEndState,
    pub(super) by: String,
    pub(super) comment: String,
    /// The rule that is made with it.
    pub(super) rule: Option<Rule>,
}

/// What became of an attempt to end a wait.
#[derive(Debug)]
pub(super) enum ResolveOutcome {
    /// It has ended so.
    Resolved(Arc<Approval>, Option<Arc<Rule>>),
    /// It had ended otherwise before.
    AlreadyResolved(Arc<Approval>),
}

impl ApprovalResolution {
    /// One that nobody has decided.
    pub(super) fn undecided(state: ApprovalEndState) -> Self {
        Self { state, by: "daemon".to_owned(), comment: String::new(), rule: None }
    }

    /// A rule lets the call in that was made while it waited.
    pub(super) fn by_rule(id: &str) -> Self {
        Self {
            state: ApprovalEndState::Allowed,
            by: format!("{RULE_PREFIX}{id}"),
            comment: String::new(),
            rule: None,
        }
    }

    /// As it is kept.
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

/// The record of a call that is asked about.
pub(super) fn requested_record(
    record: &ApprovalRecord,
    about: &Map<String, Value>,
) -> Map<String, Value> {
    let mut fields = approval_fields("approval_requested", record, about);
    let parameters = record.parameters.iter();
    let parameters: Map<String, Value> = parameters
        .map(|parameter| (parameter.name.clone(), single_line_value(parameter).into()))
        .collect();
    fields.insert("params".to_owned(), parameters.into());
    fields.insert("files_affected".to_owned(), record.files.clone().into());
    if record.more_files > 0 {
        fields.insert("more_files".to_owned(), record.more_files.into());
    }
    fields.insert("asked_by".to_owned(), record.asked_by.as_str().into());
    fields
}

fn single_line_value(parameter: &ApprovalParameter) -> String {
    let ApprovalParameter { value, omitted_bytes, ending, .. } = parameter;
    match omitted_bytes {
        0 => value.clone(),
        _ => format!("{value} … ({omitted_bytes} bytes left out) … {ending}"),
    }
}

/// What has let in a call that was allowed.
pub(crate) fn allowed_by(record: &ApprovalRecord, end: &ApprovalEnd) -> String {
    match end.ended_by.starts_with(RULE_PREFIX) {
        true => end.ended_by.clone(),
        false => format!("approval {}", record.id),
    }
}

/// The record of how that ended.
pub(super) fn decided_record(
    record: &ApprovalRecord,
    about: &Map<String, Value>,
) -> Map<String, Value> {
    let mut fields = approval_fields("approval_decided", record, about);
    let Some(end) = &record.end else {
        return fields;
    };
    fields.insert("state".to_owned(), end.state.name().into());
    fields.insert("decided_by".to_owned(), end.ended_by.as_str().into());
    fields.insert("asked_by".to_owned(), record.asked_by.as_str().into());
    for (name, text) in [("comment", &end.comment), ("rule_id", &end.rule_id)] {
        if !text.is_empty() {
            fields.insert(name.to_owned(), text.as_str().into());
        }
    }
    fields
}

/// What is known of a call whose daemon has died.
pub(super) fn lost_call_fields(record: &ApprovalRecord) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("call_id".to_owned(), record.call_id.as_str().into());
    fields.insert("tool".to_owned(), record.tool.as_str().into());
    fields
}

fn approval_fields(
    event: &str,
    record: &ApprovalRecord,
    about: &Map<String, Value>,
) -> Map<String, Value> {
    let mut fields = about.clone();
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

/// The pattern that a rule for this call and its like gets: the one that was given, if it matches the call,
/// else the suggested one.
pub(super) fn rule_pattern_for(
    question: &Approval,
    call: &PolicyRequest,
    given: Option<RulePattern>,
) -> Result<RulePattern, Error> {
    let Some(given) = given else {
        let suggested = question.suggested_pattern.as_deref().ok_or_else(|| {
            let text = "must be given: none is made of a call that is too large, that names files by a path that leads back (..), or that has an environment or a standard input, which nobody is shown";
            Error::invalid_field("pattern", text)
        })?;
        return RulePattern::parse(suggested).map_err(Error::internal);
    };
    let mut texts = call.texts.iter().filter(|text| text.may_allow);
    if texts.any(|text| given.is_match(&text.text)) {
        return Ok(given);
    }
    let text = "does not match this call: its rule would not have let it in";
    Err(Error::invalid_field("pattern", text))
}
