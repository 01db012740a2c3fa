//! `jig.v1.ApprovalService`: deciding about the calls of others, and the rules that decide without anybody.

mod message;
mod page;
mod scope;
mod stream;

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use prost::Message;
use tonic::{Request, Response, Status};

use self::{
    message::{action, approval, rule},
    page::Page,
    scope::Scope,
    stream::Sending,
};
use super::{answered, once, outlet::Answers};
use crate::{
    api::v1::{
        self, CreateRuleRequest, CreateRuleResponse, DecideApprovalRequest, DecideApprovalResponse,
        DeleteRuleRequest, DeleteRuleResponse, GetApprovalRequest, GetApprovalResponse,
        ListApprovalsRequest, ListApprovalsResponse, ListRulesRequest, ListRulesResponse,
        UpdateRuleRequest, UpdateRuleResponse, WatchApprovalsRequest, WatchApprovalsResponse,
        approval_service_server::ApprovalService,
    },
    daemon::{
        call::{
            Pipeline,
            approval::asked::Decision,
            context::Incoming,
            policy::{
                book::ending,
                decision::is_tool,
                pattern::Pattern,
                rule::{Made, Rule},
            },
        },
        config::policy::Action,
        error::{Error, Reason, Violation},
        store::approvals::ApprovalRecord,
        task,
    },
};

/// How long the rule of "always" lasts where nothing is said: long enough not to be asked each day, short
/// enough not to be forgotten for good.
const RULE_LIFETIME_SEC: u32 = 30 * 24 * 3600;

/// The service.
#[derive(Debug)]
pub(crate) struct Approvals(pub(crate) Arc<Pipeline>);

#[tonic::async_trait]
impl ApprovalService for Approvals {
    type WatchApprovalsStream = Answers<WatchApprovalsResponse>;

    async fn list_approvals(
        &self,
        request: Request<ListApprovalsRequest>,
    ) -> Result<Response<ListApprovalsResponse>, Status> {
        answered(request, |incoming, request| self.list(incoming, request)).await
    }

    async fn get_approval(
        &self,
        request: Request<GetApprovalRequest>,
    ) -> Result<Response<GetApprovalResponse>, Status> {
        answered(request, async |incoming, request| {
            let request = self.check("GetApprovalRequest", request)?;
            let scope = Scope::of(&self.0, &incoming)?;
            let sees = |record: &ApprovalRecord| scope.has(record);
            let found = self.0.approvals.get(&request.approval_id, sees).await?;
            Ok(GetApprovalResponse { approval: Some(approval(&found, &self.0.catalog)) })
        })
        .await
    }

    async fn watch_approvals(
        &self,
        request: Request<WatchApprovalsRequest>,
    ) -> Result<Response<Self::WatchApprovalsStream>, Status> {
        answered(request, async |incoming, request| {
            let request = self.check("WatchApprovalsRequest", request)?;
            let sending = Sending {
                watch: self.0.approvals.watch(incoming.principal.lane())?,
                scope: Scope::of(&self.0, &incoming)?,
                pipeline: Arc::clone(&self.0),
                silence: Duration::from_secs(request.keep_alive_sec.unwrap_or(30).into()),
                deadline: incoming.deadline,
                draining: self.0.drain.begun_token(),
                call_id: incoming.call_id,
            };
            Ok(sending.begin())
        })
        .await
    }

    async fn decide_approval(
        &self,
        request: Request<DecideApprovalRequest>,
    ) -> Result<Response<DecideApprovalResponse>, Status> {
        self.once("DecideApproval", request, |door, incoming, request| {
            door.decide(incoming, request)
        })
        .await
    }

    async fn list_rules(
        &self,
        request: Request<ListRulesRequest>,
    ) -> Result<Response<ListRulesResponse>, Status> {
        answered(request, async |incoming, request| self.rules(&incoming, request)).await
    }

    async fn create_rule(
        &self,
        request: Request<CreateRuleRequest>,
    ) -> Result<Response<CreateRuleResponse>, Status> {
        self.once("CreateRule", request, |door, incoming, request| door.create(incoming, request))
            .await
    }

    async fn update_rule(
        &self,
        request: Request<UpdateRuleRequest>,
    ) -> Result<Response<UpdateRuleResponse>, Status> {
        self.once("UpdateRule", request, |door, incoming, request| door.update(incoming, request))
            .await
    }

    async fn delete_rule(
        &self,
        request: Request<DeleteRuleRequest>,
    ) -> Result<Response<DeleteRuleResponse>, Status> {
        self.once("DeleteRule", request, |door, incoming, request| door.delete(incoming, request))
            .await
    }
}

impl Approvals {
    /// Answers a request that changes something with what `work` makes of it; a repeated one, with what
    /// came of the first. The work goes on when its caller has gone: what is on disk must be what counts.
    async fn once<Q, A, F>(
        &self,
        method: &str,
        request: Request<Q>,
        work: impl FnOnce(Self, Incoming, Q) -> F,
    ) -> Result<Response<A>, Status>
    where
        Q: Message,
        A: Message + Default + 'static,
        F: Future<Output = Result<A, Error>> + Send + 'static,
    {
        let method = format!("jig.v1.ApprovalService/{method}");
        once(&self.0, &method, request, |incoming, request| {
            let work = work(Self(Arc::clone(&self.0)), incoming, request);
            async move {
                let done = task::spawn_tracked("approval service", work).await;
                done.map_err(Error::internal)?
            }
        })
        .await
    }

    fn check<Q: Message + Default>(&self, message: &str, request: Q) -> Result<Q, Error> {
        let message = format!("jig.v1.{message}");
        self.0.catalog.check(&message, request)
    }

    /// As [`Self::check`], where more may be wrong with it.
    fn look_at<Q: Message + Default>(
        &self,
        message: &str,
        request: Q,
    ) -> Result<(Q, Vec<Violation>), Error> {
        let message = format!("jig.v1.{message}");
        let checked = self.0.catalog.look_at(&message, request, false)?;
        Ok((checked.request, checked.violations))
    }

    async fn list(
        &self,
        incoming: Incoming,
        request: ListApprovalsRequest,
    ) -> Result<ListApprovalsResponse, Error> {
        let request = self.check("ListApprovalsRequest", request)?;
        let scope = Scope::of(&self.0, &incoming)?;
        let token = request.page_token;
        if !token.is_empty() && ulid::Ulid::from_string(&token).is_err() {
            return Err(no_token());
        }
        let last = (!token.is_empty()).then_some(token);
        let size = request.page_size.unwrap_or(100);
        // One more tells whether there is another page.
        let most = size.saturating_add(1);
        let found = if request.decided {
            let names = scope.workspaces().iter().cloned().collect();
            self.0.approvals.list(names, last, most).await?
        } else {
            let waiting = self.0.approvals.waiting().into_iter();
            let waiting = waiting.filter(|approval| {
                let record = &approval.record;
                scope.has(record) && last.as_ref().is_none_or(|last| record.id > *last)
            });
            waiting.take(most as usize).collect()
        };
        let mut page = Page::new();
        let mut is_more = found.len() > size as usize;
        for found in found.iter().take(size as usize) {
            let id = &found.record.id;
            if !scope.has(&found.record) {
                page.pass(id);
            } else if !page.add(id, approval(found, &self.0.catalog)) {
                is_more = true;
                break;
            }
        }
        let (approvals, next_page_token) = page.end(is_more);
        Ok(ListApprovalsResponse { next_page_token, approvals })
    }

    fn rules(
        &self,
        incoming: &Incoming,
        request: ListRulesRequest,
    ) -> Result<ListRulesResponse, Error> {
        let request = self.check("ListRulesRequest", request)?;
        let scope = Scope::of(&self.0, incoming)?;
        let snapshot = self.0.policy.snapshot();
        let stored = snapshot.stored().iter();
        let all = stored.chain(snapshot.settings.rules());
        let mut rules = all.filter(|rule| scope.touches(rule)).peekable();
        let token = request.page_token;
        if !token.is_empty() && !rules.any(|rule| rule.id == token) {
            return Err(no_token());
        }
        let size = request.page_size.unwrap_or(100);
        let mut page = Page::new();
        for _ in 0..size {
            let Some(next) = rules.peek() else { break };
            if !page.add(&next.id, rule(next, scope.workspaces())) {
                break;
            }
            rules.next();
        }
        let (rules, next_page_token) = page.end(rules.peek().is_some());
        Ok(ListRulesResponse { rules, next_page_token })
    }

    async fn decide(
        self,
        incoming: Incoming,
        request: DecideApprovalRequest,
    ) -> Result<DecideApprovalResponse, Error> {
        let (request, mut violations) = self.look_at("DecideApprovalRequest", request)?;
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
            v1::Decision::Allow => Decision::Allow,
            v1::Decision::Always => Decision::Always {
                pattern: pattern(request.pattern).await?,
                expires: ending(request.rule_lifetime_sec.unwrap_or(RULE_LIFETIME_SEC)),
            },
            v1::Decision::Deny | v1::Decision::Unspecified => Decision::Deny,
        };
        let scope = Scope::of(&self.0, &incoming)?;
        let by = incoming.principal.name();
        let sees = |record: &ApprovalRecord| scope.has(record);
        let decided =
            self.0.approvals.decide(&request.approval_id, sees, by, decision, request.comment);
        let (decided, made) = decided.await?;
        Ok(DecideApprovalResponse {
            approval: Some(approval(&decided, &self.0.catalog)),
            rule: made.map(|made| rule(&made, scope.workspaces())),
        })
    }

    async fn create(
        self,
        incoming: Incoming,
        request: CreateRuleRequest,
    ) -> Result<CreateRuleResponse, Error> {
        let (request, mut violations) = self.look_at("CreateRuleRequest", request)?;
        let wish = action(request.action());
        if wish.is_none() {
            let text = "must be ACTION_ALLOW, ACTION_ASK or ACTION_DENY";
            violations.push(Violation::new("action", text));
        }
        if !is_tool(&self.0.catalog, &request.tool) && !request.tool.is_empty() {
            let text = self.0.catalog.no_tool(&request.tool);
            violations.push(Violation::new("tool", text));
        }
        let (Some(action), []) = (wish, violations.as_slice()) else {
            return Err(Error::invalid(violations));
        };
        incoming.principal.may_call(&request.tool)?;
        let pattern = pattern(request.pattern).await?;
        let verb = match action {
            Action::Allow => "allow",
            Action::Ask => "ask",
            Action::Deny => "deny",
        };
        let name = match request.name.is_empty() {
            true => format!("{verb} {}", request.tool),
            false => request.name,
        };
        let workspace = self.0.scene(&incoming)?.workspace.name().to_owned();
        let scope = BTreeSet::from([workspace]);
        let made = self.0.policy.add(Rule {
            id: ulid::Ulid::generate().to_string(),
            name,
            tool: request.tool,
            pattern,
            action,
            workspaces: Some(scope.clone()),
            expires: request.lifetime_sec.map(ending),
            enabled: true,
            made: Some(Made {
                by: incoming.principal.name().to_owned(),
                at: SystemTime::now(),
                approval_id: None,
            }),
        });
        let made = made.await?;
        self.0.approvals.let_in_by(&made).await;
        Ok(CreateRuleResponse { rule: Some(rule(&made, &scope)) })
    }

    async fn update(
        self,
        incoming: Incoming,
        request: UpdateRuleRequest,
    ) -> Result<UpdateRuleResponse, Error> {
        let (request, mut violations) = self.look_at("UpdateRuleRequest", request)?;
        if request.enabled.is_none() && request.lifetime_sec.is_none() {
            let text = "must be given, or lifetime_sec: there is nothing to change";
            violations.push(Violation::new("enabled", text));
        }
        if !violations.is_empty() {
            return Err(Error::invalid(violations));
        }
        let scope = Scope::of(&self.0, &incoming)?;
        let expires = request.lifetime_sec.map(|seconds| match seconds {
            0 => None,
            seconds => Some(ending(seconds)),
        });
        let sees = |rule: &Rule| scope.holds(rule);
        let changed = self.0.policy.change(&request.rule_id, sees, request.enabled, expires);
        let changed = changed.await?;
        self.0.approvals.let_in_by(&changed).await;
        Ok(UpdateRuleResponse { rule: Some(rule(&changed, scope.workspaces())) })
    }

    async fn delete(
        self,
        incoming: Incoming,
        request: DeleteRuleRequest,
    ) -> Result<DeleteRuleResponse, Error> {
        let request = self.check("DeleteRuleRequest", request)?;
        let scope = Scope::of(&self.0, &incoming)?;
        let sees = |rule: &Rule| scope.holds(rule);
        self.0.policy.remove(&request.rule_id, sees).await?;
        Ok(DeleteRuleResponse {})
    }
}

/// The pattern that was given. It is read on a thread that may block: that may take a while.
async fn pattern(written: Option<String>) -> Result<Option<Pattern>, Error> {
    let Some(written) = written else {
        return Ok(None);
    };
    if written.is_empty() {
        let text = "matches everything where it is empty: leave it out, if that is meant";
        return Err(Error::invalid_field("pattern", text));
    }
    let parsed = task::blocking(move || Pattern::parse(&written)).await;
    let parsed = parsed.map_err(Error::internal)?.map_err(|problem| Error {
        violations: vec![Violation::new("pattern", problem.clone())],
        ..Error::new(Reason::InvalidRegex, format!("pattern {problem}"))
    });
    parsed.map(Some)
}

fn no_token() -> Error {
    let text = "is not the next_page_token of a page, or of one that is gone: leave it out to start with the first page";
    Error::invalid_field("page_token", text)
}
