//! `jig.v1.ApprovalService`: deciding about the calls of others, and the rules that decide without anybody.

mod page_builder;
mod scope;
mod stream;
mod wire;

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use prost::Message;
use tonic::{Request, Response, Status};

use self::{
    page_builder::PageBuilder,
    scope::CallerScope,
    stream::ApprovalStream,
    wire::{parse_action, wire_approval, wire_rule},
};
use super::{handle, handle_once, response_stream::ResponseStream};
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
            approval::request::ApprovalDecision,
            context::CallContext,
            policy::{
                decision::is_known_tool,
                pattern::RulePattern,
                rule::{Rule, RuleProvenance},
                store::expiry_after,
            },
        },
        store::approvals::ApprovalRecord,
        task,
    },
};

/// How long the rule of "always" lasts where nothing is said: long enough not to be asked each day, short
/// enough not to be forgotten for good.
const DEFAULT_RULE_LIFETIME_SEC: u32 = 30 * 24 * 3600;

/// The service.
#[derive(Debug)]
pub(crate) struct ApprovalServiceHandler(pub(crate) Arc<Pipeline>);

#[tonic::async_trait]
impl ApprovalService for ApprovalServiceHandler {
    type WatchApprovalsStream = ResponseStream<WatchApprovalsResponse>;

    async fn list_approvals(
        &self,
        request: Request<ListApprovalsRequest>,
    ) -> Result<Response<ListApprovalsResponse>, Status> {
        handle(request, |incoming, request| self.list_page(incoming, request)).await
    }

    async fn get_approval(
        &self,
        request: Request<GetApprovalRequest>,
    ) -> Result<Response<GetApprovalResponse>, Status> {
        handle(request, async |incoming, request| {
            let request = self.validate("GetApprovalRequest", request)?;
            let scope = CallerScope::for_call(&self.0, &incoming)?;
            let sees = |record: &ApprovalRecord| scope.contains_approval(record);
            let found = self.0.approvals.get(&request.approval_id, sees).await?;
            Ok(GetApprovalResponse { approval: Some(wire_approval(&found, &self.0.catalog)) })
        })
        .await
    }

    async fn watch_approvals(
        &self,
        request: Request<WatchApprovalsRequest>,
    ) -> Result<Response<Self::WatchApprovalsStream>, Status> {
        handle(request, async |incoming, request| {
            let request = self.validate("WatchApprovalsRequest", request)?;
            let sending = ApprovalStream {
                watch: self.0.approvals.watch(incoming.principal.key())?,
                scope: CallerScope::for_call(&self.0, &incoming)?,
                pipeline: Arc::clone(&self.0),
                keep_alive_interval: Duration::from_secs(
                    request.keep_alive_sec.unwrap_or(30).into(),
                ),
                deadline: incoming.deadline,
                draining: self.0.shutdown.draining_token(),
                call_id: incoming.call_id,
            };
            Ok(sending.spawn())
        })
        .await
    }

    async fn decide_approval(
        &self,
        request: Request<DecideApprovalRequest>,
    ) -> Result<Response<DecideApprovalResponse>, Status> {
        self.handle_once("DecideApproval", request, |door, incoming, request| {
            door.decide(incoming, request)
        })
        .await
    }

    async fn list_rules(
        &self,
        request: Request<ListRulesRequest>,
    ) -> Result<Response<ListRulesResponse>, Status> {
        handle(request, async |incoming, request| self.list_matching_rules(&incoming, request))
            .await
    }

    async fn create_rule(
        &self,
        request: Request<CreateRuleRequest>,
    ) -> Result<Response<CreateRuleResponse>, Status> {
        self.handle_once("CreateRule", request, |door, incoming, request| {
            door.create(incoming, request)
        })
        .await
    }

    async fn update_rule(
        &self,
        request: Request<UpdateRuleRequest>,
    ) -> Result<Response<UpdateRuleResponse>, Status> {
        self.handle_once("UpdateRule", request, |door, incoming, request| {
            door.update(incoming, request)
        })
        .await
    }

    async fn delete_rule(
        &self,
        request: Request<DeleteRuleRequest>,
    ) -> Result<Response<DeleteRuleResponse>, Status> {
        self.handle_once("DeleteRule", request, |door, incoming, request| {
            door.delete(incoming, request)
        })
        .await
    }
}

impl ApprovalServiceHandler {
    /// Answers a request that changes something with what `work` makes of it; a repeated one, with what
    /// came of the first. The work goes on when its caller has gone: what is on disk must be what counts.
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
        handle_once(&self.0, &method, request, |incoming, request| {
            let work = work(Self(Arc::clone(&self.0)), incoming, request);
            async move {
                let done = task::spawn_tracked("approval service", work).await;
                done.map_err(Error::internal)?
            }
        })
        .await
    }

    fn validate<Q: Message + Default>(&self, message: &str, request: Q) -> Result<Q, Error> {
        let message = format!("jig.v1.{message}");
        self.0.catalog.check(&message, request)
    }

    /// As [`Self::check`], where more may be wrong with it.
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
        incoming: CallContext,
        request: ListApprovalsRequest,
    ) -> Result<ListApprovalsResponse, Error> {
        let request = self.validate("ListApprovalsRequest", request)?;
        let scope = CallerScope::for_call(&self.0, &incoming)?;
        let token = request.page_token;
        if !token.is_empty() && ulid::Ulid::from_string(&token).is_err() {
            return Err(invalid_page_token());
        }
        let last = (!token.is_empty()).then_some(token);
        let size = request.page_size.unwrap_or(100);
        // One more tells whether there is another page.
        let most = size.saturating_add(1);
        let found = if request.decided {
            let names = scope.workspaces().iter().cloned().collect();
            self.0.approvals.list(names, last, most).await?
        } else {
            let waiting = self.0.approvals.list_pending().into_iter();
            let waiting = waiting.filter(|approval| {
                let record = &approval.record;
                scope.contains_approval(record)
                    && last.as_ref().is_none_or(|last| record.id > *last)
            });
            waiting.take(most as usize).collect()
        };
        let mut page = PageBuilder::new();
        let mut is_more = found.len() > size as usize;
        for found in found.iter().take(size as usize) {
            let id = &found.record.id;
            if !scope.contains_approval(&found.record) {
                page.skip(id);
            } else if !page.try_push(id, wire_approval(found, &self.0.catalog)) {
                is_more = true;
                break;
            }
        }
        let (approvals, next_page_token) = page.finish(is_more);
        Ok(ListApprovalsResponse { next_page_token, approvals })
    }

    fn list_matching_rules(
        &self,
        incoming: &CallContext,
        request: ListRulesRequest,
    ) -> Result<ListRulesResponse, Error> {
        let request = self.validate("ListRulesRequest", request)?;
        let scope = CallerScope::for_call(&self.0, incoming)?;
        let snapshot = self.0.policy.snapshot();
        let stored = snapshot.stored_rules().iter();
        let all = stored.chain(snapshot.policy.rules());
        let mut rules = all.filter(|rule| scope.overlaps_rule(rule)).peekable();
        let token = request.page_token;
        if !token.is_empty() && !rules.any(|rule| rule.id == token) {
            return Err(invalid_page_token());
        }
        let size = request.page_size.unwrap_or(100);
        let mut page = PageBuilder::new();
        for _ in 0..size {
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
        incoming: CallContext,
        request: DecideApprovalRequest,
    ) -> Result<DecideApprovalResponse, Error> {
        let (request, mut violations) =
            self.validate_with_violations("DecideApprovalRequest", request)?;
        let wish = request.decision();
        if wish == v1::Decision::Unspecified {
            let text = "must be DECISION_ALLOW, DECISION_DENY or DECISION_ALWAYS";
            violations.push(Violation::new("decision", text));
        }
        if wish != v1::Decision::Always {
            let text = "is of the rule that DECISION_ALWAYS makes, and says nothing here";
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
        let decision = match wish {
            v1::Decision::Allow => ApprovalDecision::Allow,
            v1::Decision::Always => ApprovalDecision::Always {
                pattern: parse_pattern(request.pattern).await?,
                expires: expiry_after(
                    request.rule_lifetime_sec.unwrap_or(DEFAULT_RULE_LIFETIME_SEC),
                ),
            },
            v1::Decision::Deny | v1::Decision::Unspecified => ApprovalDecision::Deny,
        };
        let scope = CallerScope::for_call(&self.0, &incoming)?;
        let by = incoming.principal.name();
        let sees = |record: &ApprovalRecord| scope.contains_approval(record);
        let decided =
            self.0.approvals.decide(&request.approval_id, sees, by, decision, request.comment);
        let (decided, made) = decided.await?;
        Ok(DecideApprovalResponse {
            approval: Some(wire_approval(&decided, &self.0.catalog)),
            rule: made.map(|made| wire_rule(&made, scope.workspaces())),
        })
    }

    async fn create(
        self,
        incoming: CallContext,
        request: CreateRuleRequest,
    ) -> Result<CreateRuleResponse, Error> {
        let (request, mut violations) =
            self.validate_with_violations("CreateRuleRequest", request)?;
        let wish = parse_action(request.action());
        if wish.is_none() {
            let text = "must be ACTION_ALLOW, ACTION_ASK or ACTION_DENY";
            violations.push(Violation::new("action", text));
        }
        if !is_known_tool(&self.0.catalog, &request.tool) && !request.tool.is_empty() {
            let text = self.0.catalog.unknown_tool_message(&request.tool);
            violations.push(Violation::new("tool", text));
        }
        let (Some(action), []) = (wish, violations.as_slice()) else {
            return Err(Error::invalid(violations));
        };
        incoming.principal.require_tool(&request.tool)?;
        let pattern = parse_pattern(request.pattern).await?;
        let verb = match action {
            PolicyAction::Allow => "allow",
            PolicyAction::Ask => "ask",
            PolicyAction::Deny => "deny",
        };
        let name = match request.name.is_empty() {
            true => format!("{verb} {}", request.tool),
            false => request.name,
        };
        let workspace = self.0.workspace_context(&incoming)?.workspace.name().to_owned();
        let scope = BTreeSet::from([workspace]);
        let made = self.0.policy.add(Rule {
            id: ulid::Ulid::generate().to_string(),
            name,
            tool: request.tool,
            pattern,
            action,
            workspaces: Some(scope.clone()),
            expires: request.lifetime_sec.map(expiry_after),
            enabled: true,
            provenance: Some(RuleProvenance {
                by: incoming.principal.name().to_owned(),
                at: SystemTime::now(),
                approval_id: None,
            }),
        });
        let made = made.await?;
        self.0.approvals.resolve_allowed_by(&made).await;
        Ok(CreateRuleResponse { rule: Some(wire_rule(&made, &scope)) })
    }

    async fn update(
        self,
        incoming: CallContext,
        request: UpdateRuleRequest,
    ) -> Result<UpdateRuleResponse, Error> {
        let (request, mut violations) =
            self.validate_with_violations("UpdateRuleRequest", request)?;
        if request.enabled.is_none() && request.lifetime_sec.is_none() {
            let text = "must be given, or lifetime_sec: there is nothing to change";
            violations.push(Violation::new("enabled", text));
        }
        if !violations.is_empty() {
            return Err(Error::invalid(violations));
        }
        let scope = CallerScope::for_call(&self.0, &incoming)?;
        let expires = request.lifetime_sec.map(|seconds| match seconds {
            0 => None,
            seconds => Some(expiry_after(seconds)),
        });
        let sees = |rule: &Rule| scope.contains_rule(rule);
        let changed = self.0.policy.change(&request.rule_id, sees, request.enabled, expires);
        let changed = changed.await?;
        self.0.approvals.resolve_allowed_by(&changed).await;
        Ok(UpdateRuleResponse { rule: Some(wire_rule(&changed, scope.workspaces())) })
    }

    async fn delete(
        self,
        incoming: CallContext,
        request: DeleteRuleRequest,
    ) -> Result<DeleteRuleResponse, Error> {
        let request = self.validate("DeleteRuleRequest", request)?;
        let scope = CallerScope::for_call(&self.0, &incoming)?;
        let sees = |rule: &Rule| scope.contains_rule(rule);
        self.0.policy.remove(&request.rule_id, sees).await?;
        Ok(DeleteRuleResponse {})
    }
}

/// The pattern that was given. It is read on a thread that may block: that may take a while.
async fn parse_pattern(written: Option<String>) -> Result<Option<RulePattern>, Error> {
    let Some(written) = written else {
        return Ok(None);
    };
    if written.is_empty() {
        let text = "matches everything where it is empty: leave it out, if that is meant";
        return Err(Error::invalid_field("pattern", text));
    }
    let parsed = task::spawn_blocking(move || RulePattern::parse(&written)).await;
    let parsed = parsed.map_err(Error::internal)?.map_err(|problem| Error {
        violations: vec![Violation::new("pattern", problem.clone())],
        ..Error::new(Reason::InvalidRegex, format!("pattern {problem}"))
    });
    parsed.map(Some)
}

fn invalid_page_token() -> Error {
    let text = "is not the next_page_token of a page, or of one that is gone: leave it out to start with the first page";
    Error::invalid_field("page_token", text)
}
