//! Whether a call may be made: by the operator's policy and, where that says to ask, by somebody who is.

use std::{
    sync::Arc,
    time::{Instant, SystemTime},
};

use prost::Message;

use super::{
    Pipeline,
    approval::asked::{Approval, Question},
    context::Incoming,
    policy::decision::{Asked, By, Snapshot, Verdict},
    record,
    subject::Subject,
    timed_out,
};
use crate::{
    api::v1::Risk,
    daemon::{
        config::policy::Action,
        error::{Error, Reason},
        store::{
            approvals::{ApprovalEnd, ApprovalRecord, EndState},
            milliseconds,
        },
        task,
    },
};

/// Parameters that are compared with rules at once; longer ones are on a thread that may block.
const LARGE: usize = 64 << 10;
/// Most files that who is asked is told of.
const MOST_FILES: usize = 100;
/// Longest parameters that are held while a call waits, to see whether a pattern for it matches it.
const HELD: usize = 64 << 10;

/// A call that may be made.
#[derive(Debug, Default)]
pub(crate) struct Permitted {
    /// What has let it in, where that is not the risk of its tool.
    pub(crate) by: Option<String>,
}

impl Pipeline {
    /// Whether the parameters of a call of this tool can matter to what is decided about it.
    pub(super) fn looks_at(&self, tool: &str, risk: Risk, workspace: &str) -> bool {
        self.policy.snapshot().looks_at(tool, risk, workspace)
    }

    /// Refuses a tool that the operator has switched off, whatever it is called with.
    pub(super) fn is_switched_on(&self, tool: &str) -> Result<(), Error> {
        match self.policy.snapshot().settings.has_tool(tool) {
            true => Ok(()),
            false => Err(denied(tool, &By::Lists)),
        }
    }

    /// Lets a call in that is no tool's, but does what `tool` does; `message` is the full name of what it
    /// says. Waits until somebody has decided, where the policy says so.
    pub(crate) async fn permit_as<M: Message>(
        self: &Arc<Self>,
        tool: &'static str,
        incoming: &Incoming,
        message: &str,
        said: &M,
        file: &str,
    ) -> Result<Permitted, Error> {
        incoming.principal.may_call(tool)?;
        let workspace = self.scene(incoming)?.workspace.name().to_owned();
        let spec = self.catalog.tool(tool);
        let risk = spec.map_or(Risk::Dangerous, |spec| spec.options.risk());
        let told = match self.looks_at(tool, risk, &workspace) {
            true => Some(self.catalog.tell(message, said)?),
            false => None,
        };
        let subject = Subject {
            tool,
            risk,
            workspace,
            told,
            files: vec![file.to_owned()],
        };
        self.permit(incoming, subject).await
    }

    /// Lets a call in, or says why not. Waits until somebody has decided, where the policy says so.
    pub(super) async fn permit(
        self: &Arc<Self>,
        incoming: &Incoming,
        subject: Subject,
    ) -> Result<Permitted, Error> {
        let snapshot = self.policy.snapshot();
        let (subject, verdict) = decide(Arc::clone(&snapshot), subject).await?;
        match (verdict.action, &verdict.by) {
            (Action::Allow, By::Rule(_)) => Ok(Permitted {
                by: Some(verdict.by.text()),
            }),
            (Action::Allow, By::Lists | By::Risk(_)) => Ok(Permitted::default()),
            (Action::Deny, by) => {
                self.note_denial(incoming, &subject, &by.text()).await;
                Err(denied(subject.tool, by))
            }
            (Action::Ask, by) => self.ask(incoming, subject, &snapshot, by.text()).await,
        }
    }

    /// Waits until somebody has decided.
    async fn ask(
        self: &Arc<Self>,
        incoming: &Incoming,
        subject: Subject,
        snapshot: &Snapshot,
        asked_by: String,
    ) -> Result<Permitted, Error> {
        let settings = snapshot.settings.approvals;
        if self.drain.has_begun() {
            return Err(draining());
        }
        let session = self.session(incoming).await?;
        let (now, clock) = (Instant::now(), SystemTime::now());
        let until = incoming.deadline.unwrap_or(now + settings.wait);
        let told = subject.told.ok_or_else(changed)?;
        let record = ApprovalRecord {
            id: ulid::Ulid::generate().to_string(),
            workspace: subject.workspace.clone(),
            session: incoming.session.as_str().to_owned(),
            principal: incoming.principal.name().to_owned(),
            call_id: incoming.call_id.clone(),
            tool: subject.tool.to_owned(),
            parameters: told.shown,
            files: subject.files.into_iter().take(MOST_FILES).collect(),
            asked_by,
            asked_ms: milliseconds::of(clock),
            expires_ms: milliseconds::of(clock + until.saturating_duration_since(now)),
            end: None,
        };
        let question = Question {
            approval: Approval {
                record,
                suggested_pattern: told.pattern,
            },
            text: (told.text.len() <= HELD).then_some(told.text),
            session,
            about: record::about(subject.tool, incoming, &subject.workspace),
            until,
            at_most: settings.pending,
        };
        if let Some(job) = &incoming.job {
            job.is_asked_about.cancel();
        }
        let draining_begins = self.drain.begun_token();
        let ended = self.approvals.ask(question, draining_begins).await?;
        let end = ended.record.end.as_ref();
        let end = end.ok_or_else(|| Error::internal("a wait ended without an end"))?;
        match end.state {
            EndState::Allowed => Ok(Permitted {
                by: Some(format!("approval {}", ended.record.id)),
            }),
            EndState::Withdrawn if self.drain.has_begun() => Err(draining()),
            EndState::Expired if incoming.deadline.is_some() => Err(timed_out(subject.tool)),
            EndState::Denied | EndState::Expired | EndState::Withdrawn | EndState::Lost => {
                Err(not_allowed(&ended.record, end))
            }
        }
    }

    /// Leaves a record of a call that was denied. Where there is no room for it, it is denied all the same.
    async fn note_denial(self: &Arc<Self>, incoming: &Incoming, subject: &Subject, by: &str) {
        let noted = match self.session(incoming).await {
            Ok(session) => {
                let about = record::about(subject.tool, incoming, &subject.workspace);
                let fields = record::denied(&about, by);
                session.note(fields).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = noted {
            tracing::error!(
                error,
                "the record of a call that was denied could not be kept"
            );
        }
    }
}

/// Decides, without holding up others where there is much to look at.
async fn decide(snapshot: Arc<Snapshot>, subject: Subject) -> Result<(Subject, Verdict), Error> {
    let text = subject.told.as_ref().map(|told| told.text.as_str());
    if text.is_none() && snapshot.looks_at(subject.tool, subject.risk, &subject.workspace) {
        // The policy is another one than when the parameters were looked at.
        return Err(changed());
    }
    let is_large = text.is_some_and(|text| text.len() > LARGE);
    let decide = move || {
        let text = subject.told.as_ref().map(|told| told.text.as_str());
        let asked = Asked {
            tool: subject.tool,
            risk: subject.risk,
            workspace: &subject.workspace,
            texts: text.as_slice(),
        };
        let verdict = snapshot.decide(asked, SystemTime::now());
        (subject, verdict)
    };
    match is_large {
        true => task::blocking(decide).await.map_err(Error::internal),
        false => Ok(decide()),
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
            format!(
                "{} has denied this call of {tool}: do something else, or ask why",
                end.by
            )
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
    Error::new(Reason::ApprovalDenied, text)
        .with("approval_id", record.id.clone())
        .with("state", end.state.name())
        .with("by", end.by.clone())
}

fn draining() -> Error {
    let text = "the daemon is shutting down, and this call was not approved yet: retry elsewhere, or when it is back";
    Error::new(Reason::Draining, text).retry_after(std::time::Duration::from_secs(1))
}

fn changed() -> Error {
    let text = "the operator changed the policy while this call came in: try again";
    Error::new(Reason::PolicyDenied, text)
}
