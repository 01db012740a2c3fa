//! The policy for the members of a tree, which one call transfers.
//!
//! A call is decided once, by its own parameters. For each member, rules also see the parameters
//! `{"path":"…"}`, as of a call for that file alone. A rule that denies such a call rejects the
//! member, and so does a rule that asks, unless it has decided the call. Rules that allow the call
//! and its approval hold for all members.

use std::{sync::Arc, time::SystemTime};

use serde_json::json;

use super::{
    Pipeline,
    authorization::denied_error,
    context::CallContext,
    policy::{
        decision::{DecidedBy, PolicyDecision, PolicySnapshot},
        request::PolicyRequestRef,
    },
};
use crate::{
    api::v1::Risk,
    daemon::{
        catalog::PolicyText,
        config::policy::PolicyAction,
        error::{Error, Reason},
        telemetry::metrics::Metrics,
    },
};

/// Decides about the members of a tree, by the policy at the start of the call.
#[derive(Debug)]
pub(crate) struct MemberPolicy {
    /// `None` if no rule depends on parameters.
    snapshot: Option<Arc<PolicySnapshot>>,
    tool: &'static str,
    risk: Risk,
    workspace: String,
    /// Id of the rule that has asked for approval of the call.
    asking_rule: Option<String>,
    metrics: Metrics,
}

impl Pipeline {
    /// Returns the policy for the members of the tree at `path`, of a call of `tool` that is
    /// authorized.
    pub(crate) fn member_policy(
        &self,
        tool: &'static str,
        context: &CallContext,
        path: &str,
    ) -> Result<MemberPolicy, Error> {
        let workspace = self.resolve_workspace(context)?.workspace.name().to_owned();
        let risk = self.catalog.tool(tool).map_or(Risk::Dangerous, |spec| spec.options.risk());
        let snapshot = self.policy.snapshot();
        let needs_params = snapshot.needs_params(tool, None, risk, &workspace);
        let mut policy = MemberPolicy {
            snapshot: needs_params.then_some(snapshot),
            tool,
            risk,
            workspace,
            asking_rule: None,
            metrics: self.telemetry.metrics().clone(),
        };
        if let Some(PolicyDecision {
            action: PolicyAction::Ask,
            decided_by: DecidedBy::Rule(rule),
        }) = policy.decide(path)
        {
            policy.asking_rule = Some(rule.id.clone());
        }
        Ok(policy)
    }
}

impl MemberPolicy {
    /// Rejects the member at this path of the workspace if a rule denies it, or asks for approval.
    pub(crate) fn check(&self, path: &str) -> Result<(), Error> {
        let Some(PolicyDecision { action, decided_by }) = self.decide(path) else {
            return Ok(());
        };
        let error = match (action, &decided_by) {
            (PolicyAction::Deny, DecidedBy::Rule(_) | DecidedBy::ToolLists) => {
                denied_error(self.tool, &decided_by)
            }
            (PolicyAction::Ask, DecidedBy::Rule(rule))
                if self.asking_rule.as_ref() != Some(&rule.id) =>
            {
                let text = format!(
                    "the operator's rule {:?} requires an approval for {path:?}: transfer it in a call of its own",
                    rule.name
                );
                Error::new(Reason::PolicyDenied, text).with_metadata("rule_id", rule.id.clone())
            }
            _ => return Ok(()),
        };
        self.metrics.count_policy_denial(&decided_by.label());
        Err(error.with_metadata("path", path))
    }

    fn decide(&self, path: &str) -> Option<PolicyDecision> {
        let snapshot = self.snapshot.as_ref()?;
        let text = json!({ "path": path }).to_string();
        let texts = [PolicyText { text, may_allow: true }];
        let request = PolicyRequestRef {
            tool: self.tool,
            risk: self.risk,
            workspace: &self.workspace,
            texts: &texts,
            dialect_call: None,
        };
        Some(snapshot.decide(request, SystemTime::now()))
    }
}
