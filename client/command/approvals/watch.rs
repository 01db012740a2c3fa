//! Asking about each call that waits, one after the other, for as long as somebody is there to answer.
//!
//! An answer counts for the question that it was typed at: what was typed before is thrown away, and where
//! a call has ceased to wait while it was asked about, a line is read before the next question.

use std::{
    collections::BTreeMap,
    io,
    time::{Duration, SystemTime},
};

use jig::{
    api::v1::{
        Approval, ApprovalState, DecideApprovalRequest, Decision, WatchApprovalsRequest,
        watch_approvals_response::Event,
    },
    client::{ApprovalEvents, CallError, Client},
};
use rustix::termios::tcgetwinsize;

use super::{
    keyboard::Keyboard,
    prompt::{ASK, Answer, answer, question, state},
};
use crate::{
    connection::{self, Connecting},
    escape,
    failure::Failure,
    global::Global,
    output,
};

/// Columns of a terminal that does not say.
const COLUMNS: usize = 80;
/// Rest between two attempts to watch, where the daemon does not say how long.
const REST: Duration = Duration::from_secs(1);

/// Asks until somebody has had enough.
pub(super) fn watch(global: &Global) -> Result<(), Failure> {
    global.refuse_request_id("each answer is a call")?;
    connection::call_minding_signals(global, |connecting, mut signals| async move {
        let mut session = Session::default();
        let result = tokio::select! {
            biased;
            code = signals.next() => Err(Failure::Interrupted(code)),
            result = session.ask_all(connecting) => result,
        };
        session.leave();
        (result, signals)
    })?
}

/// What goes on at the terminal.
#[derive(Debug, Default)]
struct Session {
    waiting: BTreeMap<String, Approval>,
    /// The call that is asked about.
    asked: Option<String>,
    /// Whether a line is to be read before the next question.
    is_held: bool,
}

impl Session {
    async fn ask_all(&mut self, connecting: Connecting) -> Result<(), Failure> {
        let client = connecting.await?;
        let mut keyboard = Keyboard::open();
        let mut events = client
            .watch_approvals(WatchApprovalsRequest::default())
            .await?;
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Ok(Some(event)) => self.note(event)?,
                    Ok(None) => return Err(Failure::Daemon("the daemon has ended the stream of approvals".to_owned())),
                    Err(error) => {
                        events = self.watch_again(&client, error).await?;
                    }
                },
                line = keyboard.line() => match line? {
                    Some(line) => self.take(&client, &line).await?,
                    None => return Ok(()),
                },
            }
            self.ask_next(&mut keyboard)?;
        }
    }

    /// Notes what has happened.
    fn note(&mut self, event: Event) -> Result<(), Failure> {
        match event {
            Event::Approval(approval) if approval.state() == ApprovalState::Pending => {
                self.waiting.insert(approval.approval_id.clone(), approval);
            }
            Event::Approval(approval) => {
                self.waiting.remove(&approval.approval_id);
                if self.asked.as_ref() == Some(&approval.approval_id) {
                    self.give_up(&approval)?;
                }
            }
            Event::Listed(listed) if listed.count == 0 => {
                output::note(
                    "nothing waits to be approved; waiting for calls that do (Ctrl-C ends)",
                );
            }
            Event::Listed(_) | Event::KeepAlive(_) => {}
        }
        Ok(())
    }

    /// Says that the call that is asked about does not wait any more.
    fn give_up(&mut self, approval: &Approval) -> Result<(), Failure> {
        self.asked = None;
        self.is_held = true;
        output::stdout(b"\n")?;
        output::note(&format!(
            "this call does not wait any more: {} by {}. Press Enter to go on",
            state(approval),
            approval.decided_by
        ));
        Ok(())
    }

    /// Asks about the call that has waited longest, where none is asked about.
    fn ask_next(&mut self, keyboard: &mut Keyboard) -> Result<(), Failure> {
        if self.asked.is_some() || self.is_held {
            return Ok(());
        }
        let Some((id, approval)) = self.waiting.first_key_value() else {
            return Ok(());
        };
        self.asked = Some(id.clone());
        output::note(&about(approval, SystemTime::now()));
        let size = tcgetwinsize(io::stdout()).ok();
        let columns = size.map(|size| usize::from(size.ws_col));
        let columns = columns.filter(|columns| *columns > 0);
        output::stdout(question(approval, columns.unwrap_or(COLUMNS)).as_bytes())?;
        // What was typed so far was not typed at this question.
        keyboard.forget();
        output::stdout(ASK.as_bytes())
    }

    /// Takes a line that was typed.
    async fn take(&mut self, client: &Client, line: &str) -> Result<(), Failure> {
        if self.is_held {
            self.is_held = false;
            return Ok(());
        }
        let Some(id) = self.asked.clone() else {
            return Ok(());
        };
        let decision = match answer(line) {
            Answer::Decided(decision) => decision,
            Answer::Unknown => {
                output::note("answer y (this call), n (not), or always (this call and its like)");
                return output::stdout(ASK.as_bytes());
            }
        };
        self.asked = None;
        let request = DecideApprovalRequest {
            approval_id: id.clone(),
            decision: decision.into(),
            ..DecideApprovalRequest::default()
        };
        match client.decide_approval(request).await {
            Ok(decided) => {
                self.waiting.remove(&id);
                let rule = decided.rule.map(|rule| rule.rule_id);
                output::note(&match (decision, rule) {
                    (Decision::Deny, _) => "denied".to_owned(),
                    (_, Some(rule)) => {
                        format!("allowed, and its like by the rule {rule} (jig rules list)")
                    }
                    (_, None) => "allowed".to_owned(),
                });
                Ok(())
            }
            Err(error) if ["APPROVAL_DECIDED", "APPROVAL_NOT_FOUND"].contains(&error.name()) => {
                self.waiting.remove(&id);
                output::note(&format!("your answer came too late: {}", error.message));
                Ok(())
            }
            // It waits on, and can be answered otherwise.
            Err(error) if error.name() == "INVALID_PARAMS" => {
                output::note(&error.message);
                self.asked = Some(id);
                output::stdout(ASK.as_bytes())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Goes on watching where the daemon has let us fall behind.
    async fn watch_again(
        &mut self,
        client: &Client,
        error: CallError,
    ) -> Result<ApprovalEvents, Failure> {
        if error.name() != "RESOURCE_EXHAUSTED" {
            return Err(error.into());
        }
        tokio::time::sleep(error.retry_after.unwrap_or(REST)).await;
        let request = WatchApprovalsRequest::default();
        let mut events = client.watch_approvals(request).await?;
        self.waiting.clear();
        // Those that wait come first: what is asked about may not be among them any more.
        while let Some(event) = events.next().await? {
            if matches!(event, Event::Listed(_)) {
                break;
            }
            self.note(event)?;
        }
        if let Some(id) = self.asked.take()
            && self.waiting.contains_key(&id)
        {
            self.asked = Some(id);
        }
        Ok(events)
    }

    /// Says what becomes of the call that is asked about when nobody answers.
    fn leave(&self) {
        if self.asked.is_some() {
            output::stderr(b"\n");
            output::note("nothing was decided about this call: it waits on");
        }
    }
}

/// Who asks, and for how long.
fn about(approval: &Approval, now: SystemTime) -> String {
    let end = approval
        .expire_time
        .and_then(|time| SystemTime::try_from(time).ok());
    let left = end.and_then(|end| end.duration_since(now).ok());
    let left = left.unwrap_or_default().as_secs();
    let one_line = |text: &str| escape::text(text).replace('\n', " ");
    format!(
        "{} calls in workspace {}, session {}, and waits {left} s at most ({})",
        one_line(&approval.principal),
        one_line(&approval.workspace),
        one_line(&approval.session),
        one_line(&approval.approval_id)
    )
}
