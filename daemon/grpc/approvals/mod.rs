//! `jig.v1.ApprovalService`: decides pending approvals, and manages the rules that decide calls.

mod page_builder;
mod scope;
mod stream;
mod wire;

use std::{collections::BTreeSet, sync::Arc, time::SystemTime};

use prost::Message;
use tonic::{Request, Response, Status};

use self::{
    page_builder::PageBuilder,
    scope::CallerScope,
    stream::ApprovalStream,
    wire::{parse_action, wire_approval, wire_rule},
};
use super::{
    handle, handle_stream,
    response_stream::{WorkspaceStream, keep_alive_interval},
};
use crate::{
    api::v1::{
        self, CreateRuleRequest, CreateRuleResponse, DecideApprovalRequest, DecideApprovalResponse,
        DeleteRuleRequest, DeleteRuleResponse, GetApprovalRequest, GetApprovalResponse,
        ListApprovalsRequest, ListApprovalsResponse, ListRulesRequest, ListRulesResponse,
        UpdateRuleRequest, UpdateRuleResponse, WatchApprovalsRequest, WatchApprovalsResponse,
        approval_service_server::ApprovalService,
    },
    daemon::{
        config::policy::PolicyAction,
        error::{Error, Reason, Violation},
        pipeline::{
            Pipeline,
            approval::request::{Approval, ApprovalDecision},
            context::CallContext,
            policy::{
                decision::is_known_tool,
                pattern::RulePattern,
                rule::{Rule, RuleProvenance},
                store::expiry_after,
            },
        },
        task,
    },
};

/// Lifetime of a rule created by DECISION_ALWAYS: operators are not asked each day, and a forgotten
/// rule expires.
const DEFAULT_RULE_LIFETIME_SEC: u32 = 30 * 24 * 3600;

#[derive(Debug)]
pub(crate) struct ApprovalServiceHandler(pub(crate) Arc<Pipeline>);

#[tonic::async_trait]
impl ApprovalService for ApprovalServiceHandler {
    type WatchApprovalsStream = WorkspaceStream<WatchApprovalsResponse>;

    async fn list_approvals(
        &self,
        request: Request<ListApprovalsRequest>,
    ) -> Result<Response<ListApprovalsResponse>, Status> {
        handle(request, |context, request| self.list_page(context, request)).await
    }

    async fn get_approval(
        &self,
        request: Request<GetApprovalRequest>,
    ) -> Result<Response<GetApprovalResponse>, Status> {
        handle(request, async |context, request| {
            let request = self.validate("GetApprovalRequest", request)?;
            let scope = CallerScope::for_call(&self.0, &context)?;
            let is_visible = |approval: &Approval| scope.contains_approval(approval);
            let approval = self.0.approvals.get(&request.approval_id, is_visible).await?;
            Ok(GetApprovalResponse { approval: Some(wire_approval(&approval, &self.0.catalog)) })
        })
        .await
    }

    async fn watch_approvals(
        &self,
        request: Request<WatchApprovalsRequest>,
    ) -> Result<Response<Self::WatchApprovalsStream>, Status> {
        handle_stream(request, async |context, request| {
            let request = self.validate("WatchApprovalsRequest", request)?;
            let stream = ApprovalStream {
                watch: self.0.approvals.watch(context.principal.shared_name())?,
                scope: CallerScope::for_call(&self.0, &context)?,
                pipeline: Arc::clone(&self.0),
                keep_alive_interval: keep_alive_interval(request.keep_alive_sec),
                deadline: context.deadline,
                draining: self.0.shutdown.draining_token(),
                call_id: context.call_id,
            };
            Ok(stream.spawn())
        })
        .await
    }

    async fn decide_approval(
        &self,
        request: Request<DecideApprovalRequest>,
    ) -> Result<Response<DecideApprovalResponse>, Status> {
        self.handle_once("DecideApproval", request, |service, context, request| {
            service.decide(context, request)
        })
        .await
    }

    async fn list_rules(
        &self,
        request: Request<ListRulesRequest>,
    ) -> Result<Response<ListRulesResponse>, Status> {
        handle(request, async |context, request| self.list_matching_rules(&context, request)).await
    }

    async fn create_rule(
        &self,
        request: Request<CreateRuleRequest>,
    ) -> Result<Response<CreateRuleResponse>, Status> {
        self.handle_once("CreateRule", request, |service, context, request| {
            service.create(context, request)
        })
        .await
    }

    async fn update_rule(
        &self,
        request: Request<UpdateRuleRequest>,
    ) -> Result<Response<UpdateRuleResponse>, Status> {
        self.handle_once("UpdateRule", request, |service, context, request| {
            service.update(context, request)
        })
        .await
    }

    async fn delete_rule(
        &self,
        request: Request<DeleteRuleRequest>,
    ) -> Result<Response<DeleteRuleResponse>, Status> {
        self.handle_once("DeleteRule", request, |service, context, request| {
            service.delete(context, request)
        })
        .await
    }
}

impl ApprovalServiceHandler {
    /// Handles a request with side effects. A repeat with the same request id gets the first
    /// result.
    ///
    /// `work` completes even if its caller disconnects, so that memory and disk stay consistent.
    async fn handle_once<Q, A, F>(
        &self,
        method: &str,
        request: Request<Q>,
        work: impl FnOnce(Self, CallContext, Q) -> F,
    ) -> Result<Response<A>, Status>
    where
        Q: Message,
        A: Message + Default + 'static,
        F: Future<Output = Result<A, Error>> + Send + 'static,
    {
        let method = format!("jig.v1.ApprovalService/{method}");
        handle(request, async |context, request| {
            let call = self.0.identify_call(&context, &method, &request)?;
            let work = work(Self(Arc::clone(&self.0)), context, request);
            self.0.run_once_to_end(call, &method, work).await
        })
        .await
    }

    fn validate<Q: Message + Default>(&self, message: &str, request: Q) -> Result<Q, Error> {
        let message = format!("jig.v1.{message}");
        self.0.catalog.check(&message, request)
    }

    /// Validates a request, and returns the violations so that the caller can add its own.
    fn validate_with_violations<Q: Message + Default>(
        &self,
        message: &str,
        request: Q,
    ) -> Result<(Q, Vec<Violation>), Error> {
        let message = format!("jig.v1.{message}");
        let checked = self.0.catalog.validate(&message, request, false)?;
        Ok((checked.request, checked.violations))
    }

    async fn list_page(
        &self,
        context: CallContext,
        request: ListApprovalsRequest,
    ) -> Result<ListApprovalsResponse, Error> {
        let request = self.validate("ListApprovalsRequest", request)?;
        let scope = CallerScope::for_call(&self.0, &context)?;
        let token = request.page_token;
        if !token.is_empty() && ulid::Ulid::from_string(&token).is_err() {
            return Err(invalid_page_token());
        }
        let last = (!token.is_empty()).then_some(token);

        let page_size = request.page_size.unwrap_or(100);
        // One extra entry shows whether another page follows.
        let limit = page_size.saturating_add(1);
        let candidates = if request.decided {
            let names = scope.workspaces().iter().cloned().collect();
            self.0.approvals.list(names, last, limit).await?
        } else {
            let pending = self.0.approvals.list_pending().into_iter();
            let pending = pending.filter(|approval| {
                scope.contains_approval(approval)
                    && last.as_ref().is_none_or(|last| approval.record.id > *last)
            });
            pending.take(limit as usize).collect()
        };

        let mut page = PageBuilder::new();
        let mut has_more = candidates.len() > page_size as usize;
        for approval in candidates.iter().take(page_size as usize) {
            let id = &approval.record.id;
            if !scope.contains_approval(approval) {
                page.skip(id);
            } else if !page.try_push(id, wire_approval(approval, &self.0.catalog)) {
                has_more = true;
                break;
            }
        }
        let (approvals, next_page_token) = page.finish(has_more);
        Ok(ListApprovalsResponse { next_page_token, approvals })
    }

    fn list_matching_rules(
        &self,
        context: &CallContext,
        request: ListRulesRequest,
    ) -> Result<ListRulesResponse, Error> {
        let request = self.validate("ListRulesRequest", request)?;
        let scope = CallerScope::for_call(&self.0, context)?;
        let snapshot = self.0.policy.snapshot();
        let all = snapshot.runtime_rules().iter().chain(snapshot.policy.rules());
        let mut rules = all.filter(|rule| scope.overlaps_rule(rule)).peekable();
        // Advances to the rule after the previous page.
        let token = request.page_token;
        if !token.is_empty() && !rules.any(|rule| rule.id == token) {
            return Err(invalid_page_token());
        }

        let mut page = PageBuilder::new();
        for _ in 0..request.page_size.unwrap_or(100) {
            let Some(next) = rules.peek() else { break };
            if !page.try_push(&next.id, wire_rule(next, scope.workspaces())) {
                break;
            }
            rules.next();
        }
        let (rules, next_page_token) = page.finish(rules.peek().is_some());
        Ok(ListRulesResponse { rules, next_page_token })
    }

    async fn decide(
        self,
        context: CallContext,
        request: DecideApprovalRequest,
    ) -> Result<DecideApprovalResponse, Error> {
        let (request, mut violations) =
            self.validate_with_violations("DecideApprovalRequest", request)?;
        let requested = request.decision();
        if requested == v1::Decision::Unspecified {
            let text = "must be DECISION_ALLOW, DECISION_DENY or DECISION_ALWAYS";
            violations.push(Violation::new("decision", text));
        }
        if requested != v1::Decision::Always {
            let text = "is only for the rule that DECISION_ALWAYS creates: leave it out";
            for (field, is_given) in [
                ("rule_lifetime_sec", request.rule_lifetime_sec.is_some()),
                ("pattern", request.pattern.is_some()),
            ] {
                if is_given {
                    violations.push(Violation::new(field, text));
                }
            }
        }
        if !violations.is_empty() {
            return Err(Error::invalid(violations));
        }

        let decision = match requested {
            v1::Decision::Allow => ApprovalDecision::Allow,
            v1::Decision::Always => ApprovalDecision::Always {
                pattern: parse_pattern(request.pattern).await?,
                expires: expiry_after(
                    request.rule_lifetime_sec.unwrap_or(DEFAULT_RULE_LIFETIME_SEC),
                ),
            },
            v1::Decision::Deny | v1::Decision::Unspecified => ApprovalDecision::Deny,
        };
        let scope = CallerScope::for_call(&self.0, &context)?;
        let decider = context.principal.name();
        let is_visible = |approval: &Approval| scope.contains_approval(approval);
        let (id, comment) = (&request.approval_id, request.comment);
        context.access_log_entry.update(|fields| fields.approval_id = Some(id.clone()));
        let (approval, rule) =
            self.0.approvals.decide(id, is_visible, decider, decision, comment).await?;
        Ok(DecideApprovalResponse {
            approval: Some(wire_approval(&approval, &self.0.catalog)),
            rule: rule.map(|rule| wire_rule(&rule, scope.workspaces())),
        })
    }

    async fn create(
        self,
        context: CallContext,
        request: CreateRuleRequest,
    ) -> Result<CreateRuleResponse, Error> {
        let (request, mut violations) =
            self.validate_with_violations("CreateRuleRequest", request)?;
        let action = parse_action(request.action());
        if action.is_none() {
            let text = "must be ACTION_ALLOW, ACTION_ASK or ACTION_DENY";
            violations.push(Violation::new("action", text));
        }
        if !is_known_tool(&self.0.catalog, &request.tool) && !request.tool.is_empty() {
            let text = self.0.catalog.unknown_tool_message(&request.tool);
            violations.push(Violation::new("tool", text));
        }
        let (Some(action), []) = (action, violations.as_slice()) else {
            return Err(Error::invalid(violations));
        };

        context.principal.require_tool(&request.tool)?;
        let pattern_text = request.pattern.clone();
        let pattern = parse_pattern(request.pattern).await?;
        let verb = match action {
            PolicyAction::Allow => "allow",
            PolicyAction::Ask => "ask",
            PolicyAction::Deny => "deny",
        };
        let name =
            if request.name.is_empty() { format!("{verb} {}", request.tool) } else { request.name };

        context.note_params([
            ("name", Some(&name)),
            ("tool", Some(&request.tool)),
            ("action", Some(verb)),
            ("pattern", pattern_text.as_deref()),
        ]);
        let workspace_context = self.0.resolve_workspace(&context)?;
        let scope = BTreeSet::from([workspace_context.workspace.name().to_owned()]);
        let rule = Rule {
            id: ulid::Ulid::generate().to_string(),
            name,
            tool: request.tool,
            pattern,
            action,
            workspaces: Some(scope.clone()),
            created_workspaces: None,
            expires: request.lifetime_sec.map(expiry_after),
            enabled: true,
            provenance: Some(RuleProvenance {
                by: context.principal.name().to_owned(),
                at: SystemTime::now(),
                approval_id: None,
            }),
        };
        let rule = self.0.policy.add(rule, &workspace_context).await?;
        self.0.approvals.resolve_allowed_by(&rule).await;
        Ok(CreateRuleResponse { rule: Some(wire_rule(&rule, &scope)) })
    }

    async fn update(
        self,
        context: CallContext,
        request: UpdateRuleRequest,
    ) -> Result<UpdateRuleResponse, Error> {
        let (request, mut violations) =
            self.validate_with_violations("UpdateRuleRequest", request)?;
        if request.enabled.is_none() && request.lifetime_sec.is_none() {
            let text = "must be set if lifetime_sec is not: there is nothing to change";
            violations.push(Violation::new("enabled", text));
        }
        if !violations.is_empty() {
            return Err(Error::invalid(violations));
        }

        context.note_params([("rule_id", Some(&request.rule_id))]);
        let scope = CallerScope::for_call(&self.0, &context)?;
        let expires = request.lifetime_sec.map(|seconds| match seconds {
            0 => None,
            seconds => Some(expiry_after(seconds)),
        });
        let is_visible = |rule: &Rule| scope.contains_rule(rule);
        let rule =
            self.0.policy.change(&request.rule_id, is_visible, request.enabled, expires).await?;
        self.0.approvals.resolve_allowed_by(&rule).await;
        Ok(UpdateRuleResponse { rule: Some(wire_rule(&rule, scope.workspaces())) })
    }

    async fn delete(
        self,
        context: CallContext,
        request: DeleteRuleRequest,
    ) -> Result<DeleteRuleResponse, Error> {
        let request = self.validate("DeleteRuleRequest", request)?;
        context.note_params([("rule_id", Some(&request.rule_id))]);
        let scope = CallerScope::for_call(&self.0, &context)?;
        let is_visible = |rule: &Rule| scope.contains_rule(rule);
        self.0.policy.remove(&request.rule_id, is_visible).await?;
        Ok(DeleteRuleResponse {})
    }
}

/// Compiles a pattern, on a blocking thread because that may take a while.
async fn parse_pattern(pattern: Option<String>) -> Result<Option<RulePattern>, Error> {
    let Some(pattern) = pattern else {
        return Ok(None);
    };
    if pattern.is_empty() {
        let text = "is empty and would match everything: leave it out if that is intended";
        return Err(Error::invalid_field("pattern", text));
    }
    let parsed = task::spawn_blocking(move || RulePattern::parse(&pattern)).await;
    let parsed = parsed.map_err(Error::internal)?.map_err(|problem| Error {
        violations: vec![Violation::new("pattern", problem.clone())],
        ..Error::new(Reason::InvalidRegex, format!("pattern {problem}"))
    });
    parsed.map(Some)
}

fn invalid_page_token() -> Error {
    let text = "is not a valid next_page_token, or its entry was removed: leave it out to start with the first page";
    Error::invalid_field("page_token", text)
}
