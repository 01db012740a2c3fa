//! Conversion of approvals and rules to protobuf messages.

use std::collections::BTreeSet;

use prost_types::Timestamp;

use crate::{
    api::v1,
    daemon::{
        catalog::Catalog,
        config::policy::PolicyAction,
        pipeline::{approval::request::Approval, policy::rule::Rule},
        store::{approvals::ApprovalEndState, unix_millis},
    },
};

pub(super) fn wire_approval(approval: &Approval, catalog: &Catalog) -> v1::Approval {
    let record = &approval.record;
    let options = catalog.tool(&record.tool).map(|spec| &spec.options);
    let end = record.end.as_ref();
    let state = match end.map(|end| end.state) {
        None => v1::ApprovalState::Pending,
        Some(ApprovalEndState::Allowed) => v1::ApprovalState::Allowed,
        Some(ApprovalEndState::Denied) => v1::ApprovalState::Denied,
        Some(ApprovalEndState::Expired) => v1::ApprovalState::Expired,
        Some(ApprovalEndState::Withdrawn) => v1::ApprovalState::Withdrawn,
        Some(ApprovalEndState::Lost) => v1::ApprovalState::Lost,
    };
    let parameters = record.parameters.iter();

    v1::Approval {
        approval_id: record.id.clone(),
        state: state.into(),
        tool: record.tool.clone(),
        called_name: record.called_name.clone(),
        title: options.map(|options| options.title.clone()).unwrap_or_default(),
        risk: catalog.risk(&record.tool).into(),
        parameters: parameters
            .map(|parameter| v1::ApprovalParameter {
                name: parameter.name.clone(),
                value: parameter.value.clone(),
                omitted_bytes: parameter.omitted_bytes,
                ending: parameter.ending.clone(),
            })
            .collect(),
        files_affected: record.files.clone(),
        more_files: record.more_files,
        workspace: record.workspace.clone(),
        session: record.session.clone(),
        principal: record.principal.clone(),
        call_id: record.call_id.clone(),
        request_time: Some(wire_time(record.requested_ms)),
        expire_time: Some(wire_time(record.expires_ms)),
        required_by: record.required_by.clone(),
        suggested_pattern: approval.suggested_pattern.clone().unwrap_or_default(),
        decide_time: end.map(|end| wire_time(end.ended_ms)),
        decided_by: end.map(|end| end.ended_by.clone()).unwrap_or_default(),
        comment: end.map(|end| end.comment.clone()).unwrap_or_default(),
        rule_id: end.map(|end| end.rule_id.clone()).unwrap_or_default(),
    }
}

/// Converts a rule. Omits workspaces outside of `scope`, whose names the caller must not learn.
pub(super) fn wire_rule(rule: &Rule, scope: &BTreeSet<String>) -> v1::Rule {
    let action = match rule.action {
        PolicyAction::Allow => v1::Action::Allow,
        PolicyAction::Ask => v1::Action::Ask,
        PolicyAction::Deny => v1::Action::Deny,
    };
    let provenance = rule.provenance.as_ref();
    let origin = match provenance {
        None => v1::RuleOrigin::File,
        Some(_) => v1::RuleOrigin::Service,
    };
    let is_limited = rule.workspaces.is_some() || rule.created_workspaces.is_some();
    let applies = |name: &&String| is_limited && rule.applies_in_workspace(name);

    v1::Rule {
        rule_id: rule.id.clone(),
        name: rule.name.clone(),
        tool: rule.tool.clone(),
        pattern: rule
            .pattern
            .as_ref()
            .map(|pattern| pattern.as_str().to_owned())
            .unwrap_or_default(),
        action: action.into(),
        workspaces: scope.iter().filter(applies).cloned().collect(),
        expire_time: rule.expires.map(Into::into),
        enabled: rule.enabled,
        origin: origin.into(),
        created_by: provenance.map(|created| created.by.clone()).unwrap_or_default(),
        create_time: provenance.map(|created| created.at.into()),
        approval_id: provenance.and_then(|created| created.approval_id.clone()).unwrap_or_default(),
    }
}

/// Converts an action; `None` if unspecified.
pub(super) fn parse_action(action: v1::Action) -> Option<PolicyAction> {
    match action {
        v1::Action::Allow => Some(PolicyAction::Allow),
        v1::Action::Ask => Some(PolicyAction::Ask),
        v1::Action::Deny => Some(PolicyAction::Deny),
        v1::Action::Unspecified => None,
    }
}

fn wire_time(milliseconds: i64) -> Timestamp {
    unix_millis::to_time(milliseconds).into()
}
