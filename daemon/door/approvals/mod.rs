//! `jig.v1.ApprovalService`: deciding about the calls of others, and the rules that decide without anybody.

mod message;
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
    stream::Sending,
};
use super::{answered, cut_page, once, outlet::Answers};
use crate::{
    api::v1::{
        self, CreateRuleRequest, CreateRuleResponse, DecideApprovalRequest, DecideApprovalResponse,
        DeleteRuleRequest, DeleteRuleResponse, ListApprovalsRequest, ListApprovalsResponse,
        ListRulesRequest, ListRulesResponse, UpdateRuleRequest, UpdateRuleResponse,
        WatchApprovalsRequest, WatchApprovalsResponse, approval_service_server::ApprovalService,
    },
    daemon::{
        call::{
            Pipeline,
            approval::asked::Decision,
            context::Incoming,
            policy::{
                book::ending,
                pattern::Pattern,
                rule::{Made, Rule},
            },
        },
        config::policy::Action,
        error::{Error, Reason, Violation},
        task,
    },
};

/// How long the rule of "always" lasts where nothing is said: long enough not to be asked each day, short
/// enough not to be forgotten for good.
const RULE_LIFETIME_SEC: u32 = 30 * 24 * 3600;

/// The service.
#[derive(Debug)]
pub(crate) struct Approvals(pub(crate) Arc<Pipeline>);

/// The workspaces that a call is about.
#[derive(Debug, Clone)]
struct Scope(BTreeSet<String>);

impl Scope {
    fn has(&self, workspace: &str) -> bool {
        self.0.contains(workspace)
    }
}

#[tonic::async_trait]
impl ApprovalService for Approvals {
    type WatchApprovalsStream = Answers<WatchApprovalsResponse>;

    async fn list_approvals(
        &self,
        request: Request<ListApprovalsRequest>,
    ) -> Result<Response<ListApprovalsResponse>, Status> {
        answered(request, |incoming, request| self.list(incoming, request)).await
    }

    async fn watch_approvals(
        &self,
        request: Request<WatchApprovalsRequest>,
    ) -> Result<Response<Self::WatchApprovalsStream>, Status> {
        answered(request, async |incoming, request| {
            let request = self.check("WatchApprovalsRequest", request)?;
            let scope = self.scope(&incoming)?;
            let sending = Sending {
                watch: self.0.approvals.watch()?,
                sees: Box::new(move |workspace: &str| scope.has(workspace)),
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
        answered(request, async |incoming, _| {
            let scope = self.scope(&incoming)?;
            let snapshot = self.0.policy.snapshot();
            let is_for_any = |rule: &&Arc<Rule>| scope.0.iter().any(|name| rule.is_for(name));
            let stored = snapshot.stored().iter().filter(is_for_any);
            let of_file = snapshot.settings.rules().iter().filter(is_for_any);
            let shown = |found: &Arc<Rule>| rule(found, &scope.0);
            Ok(ListRulesResponse {
                rules: stored.chain(of_file).map(shown).collect(),
            })
        })
        .await
    }

    async fn create_rule(
        &self,
        request: Request<CreateRuleRequest>,
    ) -> Result<Response<CreateRuleResponse>, Status> {
        self.once("CreateRule", request, |door, incoming, request| {
            door.create(incoming, request)
        })
        .await
    }

    async fn update_rule(
        &self,
        request: Request<UpdateRuleRequest>,
    ) -> Result<Response<UpdateRuleResponse>, Status> {
        self.once("UpdateRule", request, |door, incoming, request| {
            door.update(incoming, request)
        })
        .await
    }

    async fn delete_rule(
        &self,
        request: Request<DeleteRuleRequest>,
    ) -> Result<Response<DeleteRuleResponse>, Status> {
        self.once("DeleteRule", request, |door, incoming, request| {
            door.delete(incoming, request)
        })
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

    /// The workspace that a call names, or all that are there for its caller.
    fn scope(&self, incoming: &Incoming) -> Result<Scope, Error> {
        let name = |scene: &crate::daemon::tool::Scene| scene.workspace.name().to_owned();
        Ok(Scope(match incoming.workspace {
            Some(_) => [name(self.0.scene(incoming)?)].into(),
            None => self.0.scenes_of(&incoming.principal).map(name).collect(),
        }))
    }

    async fn list(
        &self,
        incoming: Incoming,
        request: ListApprovalsRequest,
    ) -> Result<ListApprovalsResponse, Error> {
        let request = self.check("ListApprovalsRequest", request)?;
        let scope = self.scope(&incoming)?;
        let token = request.page_token;
        if !token.is_empty() && ulid::Ulid::from_string(&token).is_err() {
            let text =
                "is not the next_page_token of a page: leave it out to start with the first page";
            return Err(Error::invalid_field("page_token", text));
        }
        let last = (!token.is_empty()).then_some(token);
        let size = request.page_size.unwrap_or(100);
        // One more tells whether there is another page.
        let most = size.saturating_add(1);
        let mut found = if request.decided {
            let names = scope.0.into_iter().collect();
            self.0.approvals.list(names, last, most).await?
        } else {
            let waiting = self.0.approvals.waiting().into_iter();
            let waiting = waiting.filter(|approval| {
                let record = &approval.record;
                scope.has(&record.workspace) && last.as_ref().is_none_or(|last| record.id > *last)
            });
            waiting.take(most as usize).collect()
        };
        let last = cut_page(&mut found, size as usize);
        Ok(ListApprovalsResponse {
            next_page_token: last.map(|last| last.record.id.clone()).unwrap_or_default(),
            approvals: found
                .iter()
                .map(|found| approval(found, &self.0.catalog))
                .collect(),
        })
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
                pattern: pattern(request.pattern.as_deref())?,
                expires: ending(request.rule_lifetime_sec.unwrap_or(RULE_LIFETIME_SEC)),
            },
            v1::Decision::Deny | v1::Decision::Unspecified => Decision::Deny,
        };
        let scope = self.scope(&incoming)?;
        let by = incoming.principal.name();
        let sees = |workspace: &str| scope.has(workspace);
        let decided =
            self.0
                .approvals
                .decide(&request.approval_id, sees, by, decision, request.comment);
        let (decided, made) = decided.await?;
        Ok(DecideApprovalResponse {
            approval: Some(approval(&decided, &self.0.catalog)),
            rule: made.map(|made| rule(&made, &scope.0)),
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
        if self.0.catalog.tool(&request.tool).is_none() && !request.tool.is_empty() {
            let text = format!("there is no tool {:?}", request.tool);
            violations.push(Violation::new("tool", text));
        }
        let (Some(action), []) = (wish, violations.as_slice()) else {
            return Err(Error::invalid(violations));
        };
        let pattern = pattern(request.pattern.as_deref())?;
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
        Ok(CreateRuleResponse {
            rule: Some(rule(&*made.await?, &scope)),
        })
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
        let scope = self.scope(&incoming)?;
        let expires = request.lifetime_sec.map(|seconds| match seconds {
            0 => None,
            seconds => Some(ending(seconds)),
        });
        let sees = |workspace: &str| scope.has(workspace);
        let changed = self
            .0
            .policy
            .change(&request.rule_id, sees, request.enabled, expires);
        Ok(UpdateRuleResponse {
            rule: Some(rule(&*changed.await?, &scope.0)),
        })
    }

    async fn delete(
        self,
        incoming: Incoming,
        request: DeleteRuleRequest,
    ) -> Result<DeleteRuleResponse, Error> {
        let request = self.check("DeleteRuleRequest", request)?;
        let scope = self.scope(&incoming)?;
        let sees = |workspace: &str| scope.has(workspace);
        self.0.policy.remove(&request.rule_id, sees).await?;
        Ok(DeleteRuleResponse {})
    }
}

/// The pattern that was given.
fn pattern(written: Option<&str>) -> Result<Option<Pattern>, Error> {
    let parsed = written.map(Pattern::parse).transpose();
    parsed.map_err(|problem| {
        let violation = Violation::new("pattern", problem.clone());
        Error {
            violations: vec![violation],
            ..Error::new(Reason::InvalidRegex, format!("pattern {problem}"))
        }
    })
}
