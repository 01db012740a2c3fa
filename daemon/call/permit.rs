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
        asked::{Approval, Question, let_in_by},
        shown::Shown,
    },
    context::Incoming,
    policy::{
        decision::{By, Snapshot},
        judged::Judged,
    },
    record,
    subject::{Judgement, Permitted, Said, Subject, told},
};
use crate::{
    api::v1::Risk,
    daemon::{
        catalog::Reading,
        config::policy::Action,
        error::{Error, Reason},
        store::{
            approvals::{ApprovalEnd, ApprovalRecord, EndState},
            milliseconds,
        },
        task,
        telemetry::semconv,
        tool::{Approved, replaced_while_asked},
        workspace::{RelativePath, Workspace, path_identities::PathIdentities},
    },
};

/// What part of the time to its deadline a call does not wait to be approved, and how much at most: in it, the
/// end of the wait is written down, and the caller is told what it was, instead of nothing but that its time
/// is up.
const FOR_ANSWER: u32 = 4;
const MOST_FOR_ANSWER: Duration = Duration::from_secs(1);
/// What records say of a call that was denied for the sake of its key.
const BY_KEY: &str = "key";
/// And of one about which there was something else to decide than before.
const BY_CHANGE: &str = "policy that was changed";
/// And of one that would have been made elsewhere than it was approved for.
const BY_MOVE: &str = "directories that were replaced";

impl Pipeline {
    /// Refuses a tool that the operator has switched off, whatever it is called with: by its name, or by the one
    /// that it is `said` by in a dialect.
    pub(super) fn is_switched_on(&self, tool: &str, said: Option<&str>) -> Result<(), Error> {
        match self.policy.snapshot().settings.has_tool(tool, said) {
            true => Ok(()),
            // Who knows it by another name is told that.
            false => Err(denied(said.unwrap_or(tool), &By::Lists)),
        }
    }

    /// Lets a call in that is no tool's, but does what `tool` does; `message` is the full name of what it
    /// says, as it was given. Waits until somebody has decided, where the policy says so.
    pub(crate) async fn permit_as<M: Message>(
        self: &Arc<Self>,
        tool: &'static str,
        incoming: &Incoming,
        message: &str,
        said: &M,
        file: &str,
    ) -> Result<Permitted, Error> {
        incoming.principal.may_call(tool)?;
        let scene = self.scene(incoming)?;
        let workspace = scene.workspace.name().to_owned();
        let spec = self.catalog.tool(tool);
        let risk = spec.map_or(Risk::Dangerous, |spec| spec.options.risk());
        let snapshot = self.policy.snapshot();
        let is_looked_at = snapshot.looks_at(tool, None, risk, &workspace);
        let subject = Subject::new(tool, risk, workspace, snapshot);
        let subject = match is_looked_at {
            true => {
                let given = self.catalog.given(message, said)?;
                let told = told(&given, scene, None);
                subject.with(told, vec![file.to_owned()], given.size())
            }
            false => subject,
        };
        self.permit(incoming, subject).await
    }

    /// Lets a call in, or says why not. Waits until somebody has decided, where the policy says so.
    pub(super) async fn permit(
        self: &Arc<Self>,
        incoming: &Incoming,
        subject: Subject,
    ) -> Result<Permitted, Error> {
        let (snapshot, call) = (Arc::clone(&subject.snapshot), Arc::clone(&subject.call));
        let verdict = self.policy.decide(snapshot, call).await?;
        match (verdict.action, &verdict.by) {
            (Action::Allow, By::Rule(_)) => {
                Ok(Permitted { by: Some(verdict.by.text()), ..Permitted::default() })
            }
            (Action::Allow, By::Lists | By::Risk(_)) => Ok(Permitted::default()),
            (Action::Deny, by) => Err(self.deny(incoming, &subject.call, by).await),
            (Action::Ask, by) => {
                let job = incoming.job.as_ref();
                if let Some(before) = job.and_then(|job| job.approved.clone()) {
                    let wait = subject.snapshot.settings.approvals.wait;
                    return Ok(permitted(incoming, wait, before));
                }
                let tool = subject.call.tool;
                let by = by.text();
                let asked = self.ask(incoming, subject, by.clone()).await;
                if let Err(error) = &asked {
                    self.leave_span(incoming, tool, error, &by);
                }
                asked
            }
        }
    }

    /// Waits until somebody has decided.
    async fn ask(
        self: &Arc<Self>,
        incoming: &Incoming,
        subject: Subject,
        asked_by: String,
    ) -> Result<Permitted, Error> {
        let settings = subject.snapshot.settings.approvals;
        if self.drain.has_begun() {
            return Err(draining());
        }
        let session = self.session(incoming).await?;
        let (now, clock) = (Instant::now(), SystemTime::now());
        let until = match incoming.deadline {
            Some(deadline) => {
                let left = deadline.saturating_duration_since(now);
                deadline - (left / FOR_ANSWER).min(MOST_FOR_ANSWER)
            }
            None => now + settings.wait,
        };
        let workspace = Arc::clone(&self.scene(incoming)?.workspace);
        let identities = path_identities(&workspace, &subject).await?;
        let call = subject.call;
        let said = call.said.as_deref();
        let shown = Shown {
            // As who is asked knows it from what the agent was told.
            parameters: said.map_or(subject.shown, |said| said.shown.clone()),
            files: subject.files,
        };
        let kept = shown.kept();
        let record = ApprovalRecord {
            id: ulid::Ulid::generate().to_string(),
            workspace: call.workspace.clone(),
            session: incoming.session.as_str().to_owned(),
            principal: incoming.principal.name().to_owned(),
            call_id: incoming.call_id.clone(),
            tool: call.tool.to_owned(),
            said_as: said
                .map_or_else(String::new, |said| format!("{}/{}", said.dialect.name, said.tool)),
            parameters: kept.parameters,
            files: kept.files,
            more_files: kept.more_files,
            asked_by,
            asked_ms: milliseconds::of(clock),
            expires_ms: milliseconds::of(clock + until.saturating_duration_since(now)),
            end: None,
        };
        let question = Question {
            approval: Approval { record, suggested_pattern: subject.pattern },
            call: Arc::clone(&call),
            shown,
            size: subject.size,
            session,
            about: record::about(call.tool, incoming, &call.workspace),
            until,
            at_most: settings.pending,
            before: Arc::clone(&subject.snapshot),
        };
        if let Some(job) = &incoming.job {
            job.is_asked_about.cancel();
        }
        let draining_begins = self.drain.begun_token();
        let ended = self.approvals.ask(question, draining_begins).await?;
        let end = ended.record.end.as_ref();
        let end = end.ok_or_else(|| Error::internal("a wait ended without an end"))?;
        match end.state {
            EndState::Allowed => {
                let judged = Judgement { call, snapshot: subject.snapshot, said: None };
                let cwd = identities.cwd();
                if let Some(path) = changed(workspace, identities).await? {
                    let error = replaced_while_asked(path.as_str());
                    return Err(self.refuse(incoming, &judged.call, BY_MOVE, error).await);
                }
                let now = self.policy.snapshot();
                self.may_still(incoming, &judged, true, now, None).await?;
                let by = let_in_by(&ended.record, end);
                Ok(permitted(incoming, settings.wait, Approved { by, cwd }))
            }
            EndState::Withdrawn if self.drain.has_begun() => Err(draining()),
            EndState::Expired if incoming.deadline.is_some() => Err(too_late(&ended.record, end)),
            EndState::Denied | EndState::Expired | EndState::Withdrawn | EndState::Lost => {
                Err(not_allowed(&ended.record, end))
            }
        }
    }

    /// Refuses a call that was let in and has waited since, to be approved or for a place, but may not be made
    /// any more: what has let it in did not know that. `now` decides; `reading` is how its tool reads it.
    pub(super) async fn may_still(
        self: &Arc<Self>,
        incoming: &Incoming,
        judged: &Judgement,
        is_approved: bool,
        now: Arc<Snapshot>,
        reading: Option<Reading>,
    ) -> Result<(), Error> {
        let call = &judged.call;
        if incoming.principal.is_dismissed() {
            let text = "the key of this call was taken away, has expired, or was given other rights while the call waited: call again with one that is right";
            let error = Error::new(Reason::Unauthenticated, text);
            return Err(self.refuse(incoming, call, BY_KEY, error).await);
        }
        if Arc::ptr_eq(&judged.snapshot, &now) {
            return Ok(());
        }
        let said = call.said.as_deref();
        let name = said.map(|said| said.tool);
        let is_unknown =
            call.texts.is_empty() && now.looks_at(call.tool, name, call.risk, &call.workspace);
        let is_unheard = said.is_some_and(|said| {
            said.texts.is_empty() && now.looks_at_said(said.tool, &call.workspace)
        });
        if is_unheard {
            return Err(self.refuse_for_change(incoming, call).await);
        }
        let call = match judged.said.as_deref() {
            Some(Said { message, encoded }) if is_unknown => {
                let given = self.catalog.given_before(call.tool, *message, encoded)?;
                let told = told(&given, self.scene(incoming)?, reading);
                &Arc::new(call.with_parameters(told.texts))
            }
            Some(_) | None => call,
        };
        // What lets it in now must have seen as much of it as it wants to.
        let is_unseen = is_unknown && call.texts.is_empty();
        let verdict = self.policy.decide(now, Arc::clone(call)).await?;
        match verdict.action {
            Action::Deny => Err(self.deny(incoming, call, &verdict.by).await),
            Action::Ask if !is_approved => Err(self.refuse_for_change(incoming, call).await),
            Action::Allow | Action::Ask if is_unseen => {
                Err(self.refuse_for_change(incoming, call).await)
            }
            Action::Allow | Action::Ask => Ok(()),
        }
    }

    /// Refuses a call about which it would have to be decided from the beginning.
    async fn refuse_for_change(self: &Arc<Self>, incoming: &Incoming, call: &Judged) -> Error {
        let tool = call.tool;
        let text = format!(
            "the operator's policy was changed while this call of {tool} waited for its place, and now wants to know more about it: call again"
        );
        let error = Error::new(Reason::PolicyDenied, text).with("tool", tool);
        self.refuse(incoming, call, BY_CHANGE, error).await
    }

    /// Whether a call that was let in would be now, too: its caller has the same rights, and the policy, which
    /// may have become another or some rules of which may have ended, says the same.
    pub(super) async fn stands(
        &self,
        principal: &Principal,
        judged: Judgement,
        is_approved: bool,
    ) -> Result<bool, Error> {
        let now = self.policy.snapshot();
        if principal.is_dismissed() || !Arc::ptr_eq(&judged.snapshot, &now) {
            return Ok(false);
        }
        let verdict = self.policy.decide(now, judged.call).await?;
        Ok(match verdict.action {
            Action::Allow => true,
            Action::Ask => is_approved,
            Action::Deny => false,
        })
    }

    async fn deny(self: &Arc<Self>, incoming: &Incoming, call: &Judged, by: &By) -> Error {
        let error = denied(call.tool, by);
        self.refuse(incoming, call, &by.text(), error).await
    }

    /// Leaves a record and a span of a call that is not let in; answers what it is told.
    async fn refuse(
        self: &Arc<Self>,
        incoming: &Incoming,
        call: &Judged,
        by: &str,
        error: Error,
    ) -> Error {
        self.note_denial(incoming, call, by).await;
        self.leave_span(incoming, call.tool, &error, by);
        error
    }

    /// Leaves the span of a call that was not let in.
    fn leave_span(&self, incoming: &Incoming, tool: &'static str, error: &Error, by: &str) {
        let Ok(scene) = self.scene(incoming) else {
            return;
        };
        let span = self.start_span(tool, incoming, scene);
        span.set_text(semconv::REFUSED_BY, by);
        let mut metadata = error.metadata.iter();
        if let Some((_, id)) = metadata.find(|(name, _)| name == "approval_id") {
            span.set(semconv::APPROVAL_ID, id.clone());
        }
        span.fail(error.reason.name());
        span.end();
    }

    /// Whether a call for which there was no place is to try again; then it is time to. Who has approved it
    /// is not to be asked again for want of a place.
    pub(super) async fn waits_on(&self, permitted: &Permitted, error: &Error) -> bool {
        let again = error.retry_after.map(|wait| Instant::now() + wait);
        if error.reason != Reason::ResourceExhausted || again.is_none() || again > permitted.until {
            return false;
        }
        tokio::select! {
            () = task::until(again) => true,
            () = self.drain.begun_token().cancelled_owned() => false,
        }
    }

    /// Leaves a record of a call that was denied. Where there is no room for it, it is denied all the same.
    async fn note_denial(self: &Arc<Self>, incoming: &Incoming, call: &Judged, by: &str) {
        let about = record::about(call.tool, incoming, &call.workspace);
        self.note(incoming, record::denied(&about, by)).await;
    }

    /// Leaves a record and a span of a call that somebody has approved, and that could not begin all the same.
    pub(super) async fn note_in_vain(
        self: &Arc<Self>,
        incoming: &Incoming,
        tool: &'static str,
        error: &Error,
    ) {
        let by = error.reason.name();
        if let Ok(scene) = self.scene(incoming) {
            let about = record::about(tool, incoming, scene.workspace.name());
            self.note(incoming, record::denied(&about, by)).await;
        }
        self.leave_span(incoming, tool, error, by);
    }

    pub(super) async fn note(self: &Arc<Self>, incoming: &Incoming, fields: Map<String, Value>) {
        let noted = match self.session(incoming).await {
            Ok(session) => session.note(fields).map_err(|error| error.to_string()),
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
    subject: &Subject,
) -> Result<PathIdentities, Error> {
    let files = subject.files.iter();
    let files: Vec<_> = files.filter_map(|file| workspace.resolve(file).ok()).collect();
    let (workspace, cwd) = (Arc::clone(workspace), subject.cwd.clone());
    let looked = task::blocking(move || PathIdentities::of(&workspace, cwd.as_ref(), &files));
    looked.await.map_err(Error::internal)?
}

/// A path whose directories are others than when somebody was asked.
async fn changed(
    workspace: Arc<Workspace>,
    before: PathIdentities,
) -> Result<Option<RelativePath>, Error> {
    let looked = task::blocking(move || before.changed(&workspace).cloned());
    looked.await.map_err(Error::internal)
}

/// A call that somebody has approved: it may `wait` for a place.
fn permitted(incoming: &Incoming, wait: Duration, approved: Approved) -> Permitted {
    Permitted {
        by: Some(approved.by),
        cwd: approved.cwd,
        until: Some(incoming.deadline.unwrap_or(Instant::now() + wait)),
    }
}

fn denied(tool: &str, by: &By) -> Error {
    match by {
        By::Lists => Error::new(
            Reason::ToolDisabled,
            format!("the operator has switched {tool} off: use another tool, or ask the operator"),
        ),
        By::Rule(rule) => Error::new(
            Reason::PolicyDenied,
            format!(
                "the operator's rule {:?} denies this call of {tool}: ask for something else, or ask the operator",
                rule.name
            ),
        )
        .with("rule_id", rule.id.clone()),
        By::Risk(_) => Error::new(
            Reason::PolicyDenied,
            format!(
                "the operator lets no call of {tool} in, by its risk, but for what rules allow: ask for something else, or ask the operator"
            ),
        ),
    }
    .with("tool", tool)
}

/// What a call is told that was asked about and not allowed.
fn not_allowed(record: &ApprovalRecord, end: &ApprovalEnd) -> Error {
    let tool = &record.tool;
    let text = match end.state {
        EndState::Denied if end.comment.is_empty() => {
            format!("{} has denied this call of {tool}: do something else, or ask why", end.by)
        }
        EndState::Denied => format!(
            "{} has denied this call of {tool}, and says {:?}: do something else",
            end.by, end.comment
        ),
        EndState::Expired => format!(
            "nobody has decided in time whether this call of {tool} may be made: try again when somebody watches (jig approvals), or give it a longer deadline"
        ),
        EndState::Allowed | EndState::Withdrawn | EndState::Lost => {
            format!("nobody waited any more for this call of {tool} to be approved")
        }
    };
    of_approval(Reason::ApprovalDenied, text, record, end)
}

/// What a call is told about which nobody has decided before its deadline.
fn too_late(record: &ApprovalRecord, end: &ApprovalEnd) -> Error {
    let text = format!(
        "nobody has decided before the deadline whether this call of {} may be made, and nothing of it was begun: try again when somebody watches (jig approvals), or give it a longer deadline",
        record.tool
    );
    of_approval(Reason::Timeout, text, record, end)
}

fn of_approval(reason: Reason, text: String, record: &ApprovalRecord, end: &ApprovalEnd) -> Error {
    Error::new(reason, text)
        .with("approval_id", record.id.clone())
        .with("state", end.state.name())
        .with("by", end.by.clone())
}

fn draining() -> Error {
    let text = "the daemon is shutting down, and this call was not approved yet: retry elsewhere, or when it is back";
    Error::new(Reason::Draining, text).retry_after(Duration::from_secs(1))
}
