//! Asking about each call that waits, one after the other, for as long as somebody is there to answer.
//!
//! An answer counts for the question that it was typed at: what was typed before is thrown away, and where
//! a call has ceased to wait while it was asked about, a line is read before the next question.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use super::{
    keyboard::Keyboard,
    prompt::{
        ASK, Answer, RuleAnswer, answer, ask_rule, columns_of_terminal, is_cut, lines_of_terminal,
        question, rule, rule_answer, state,
    },
};
use crate::{
    connection::{self, Connecting},
    escape,
    failure::Failure,
    global::Global,
    output,
};
use jig::{
    api::v1::{
        Approval, ApprovalState, DecideApprovalRequest, Decision, GetApprovalRequest,
        WatchApprovalsRequest, watch_approvals_response::Event,
    },
    client::{ApprovalEvents, CallError, Client},
};

/// Lines of the terminal beside those of a call: who asks, a note, and what asks for the answer.
const LINES_BESIDE: usize = 5;

/// Rest between two attempts to watch, where the daemon does not say how long.
const REST: Duration = Duration::from_secs(1);

/// What a decision can be refused with that leaves its call waiting, and another answer possible.
const UNDECIDED: [&str; 4] = ["INVALID_PARAMS", "INVALID_REGEX", "RESOURCE_EXHAUSTED", "NO_SPACE"];

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
    /// Pattern of the rule of `always` that is asked about; empty where one must be typed.
    rule: Option<String>,
    /// Whether all of the call that is asked about was shown: only then it can be allowed.
    is_shown: bool,
    /// Whether a line is to be read before the next question.
    is_held: bool,
}

impl Session {
    async fn ask_all(&mut self, connecting: Connecting) -> Result<(), Failure> {
        let client = connecting.await?;
        let mut keyboard = Keyboard::open();
        let mut events = client.watch_approvals(WatchApprovalsRequest::default()).await?;
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
                    Some(line) => self.take(&client, &mut keyboard, &line).await?,
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
        self.rule = None;
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
        self.rule = None;
        output::note(&about(approval, SystemTime::now()));
        let text = question(approval, columns_of_terminal());
        output::stdout(text.as_bytes())?;
        let (lines, room) = (text.lines().count() + LINES_BESIDE, lines_of_terminal());
        self.is_shown = lines <= room && !is_cut(approval);
        if is_cut(approval) {
            output::note("not all of this call is shown: answer all to see the rest");
        } else if !self.is_shown {
            output::note(&format!(
                "this call has {lines} lines and the terminal {room}: answer all, and read from \"Tool:\" on"
            ));
        }
        ask(keyboard, ASK)
    }

    /// Takes a line that was typed.
    async fn take(
        &mut self,
        client: &Client,
        keyboard: &mut Keyboard,
        line: &str,
    ) -> Result<(), Failure> {
        if self.is_held {
            self.is_held = false;
            return Ok(());
        }
        let asked = self.asked.as_ref().and_then(|id| self.waiting.get(id));
        let Some(approval) = asked.cloned() else {
            return Ok(());
        };
        if let Some(pattern) = self.rule.take() {
            return match rule_answer(&pattern, line) {
                RuleAnswer::Make => {
                    let other = (pattern != approval.suggested_pattern).then_some(pattern);
                    let request = decision(&approval, Decision::Always, other);
                    self.decide(client, keyboard, request).await
                }
                RuleAnswer::Show(other) => self.ask_about_rule(keyboard, &approval, other),
                RuleAnswer::No => ask(keyboard, ASK),
            };
        }
        let answer = answer(line);
        match answer {
            Answer::Decided(Decision::Allow | Decision::Always) if !self.is_shown => {
                output::note(
                    "not allowed yet, as not all of this call was shown: answer all first",
                );
                ask(keyboard, ASK)
            }
            // The document of this vocabulary asks once. What the rule is, is said when it is made.
            Answer::Decided(Decision::Always)
                if approval.said_as.starts_with("cli_agent/")
                    && !approval.suggested_pattern.is_empty() =>
            {
                let text = rule(&approval, &approval.suggested_pattern, columns_of_terminal());
                output::stdout(text.as_bytes())?;
                let request = decision(&approval, Decision::Always, None);
                self.decide(client, keyboard, request).await
            }
            Answer::Decided(Decision::Always) => {
                let suggested = approval.suggested_pattern.clone();
                self.ask_about_rule(keyboard, &approval, suggested)
            }
            Answer::Decided(decided) => {
                let request = decision(&approval, decided, None);
                self.decide(client, keyboard, request).await
            }
            Answer::All => self.show_all(client, keyboard, approval.approval_id).await,
            Answer::Unknown => {
                output::note("answer y (this call), n (not), or always (this call and its like)");
                ask(keyboard, ASK)
            }
        }
    }

    /// Shows the rule that `always` makes with this pattern, and asks whether to.
    fn ask_about_rule(
        &mut self,
        keyboard: &mut Keyboard,
        approval: &Approval,
        pattern: String,
    ) -> Result<(), Failure> {
        output::stdout(rule(approval, &pattern, columns_of_terminal()).as_bytes())?;
        ask(keyboard, ask_rule(&pattern))?;
        self.rule = Some(pattern);
        Ok(())
    }

    /// Shows the whole of a call, and asks about it again.
    async fn show_all(
        &mut self,
        client: &Client,
        keyboard: &mut Keyboard,
        approval_id: String,
    ) -> Result<(), Failure> {
        match client.get_approval(GetApprovalRequest { approval_id }).await {
            Ok(found) => {
                let whole = found.approval.unwrap_or_default();
                output::stdout(question(&whole, columns_of_terminal()).as_bytes())?;
                self.is_shown = !is_cut(&whole);
            }
            Err(error) => output::note(&error.message),
        }
        ask(keyboard, ASK)
    }

    /// Decides about the call that is asked about.
    async fn decide(
        &mut self,
        client: &Client,
        keyboard: &mut Keyboard,
        request: DecideApprovalRequest,
    ) -> Result<(), Failure> {
        let id = request.approval_id.clone();
        let decision = request.decision();
        self.asked = None;
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
            Err(error) if UNDECIDED.contains(&error.name()) => {
                output::note(&error.message);
                self.asked = Some(id);
                ask(keyboard, ASK)
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

/// Asks for an answer: what was typed before was not typed at this question.
fn ask(keyboard: &mut Keyboard, question: &str) -> Result<(), Failure> {
    keyboard.forget();
    output::stdout(question.as_bytes())
}

fn decision(
    approval: &Approval,
    decision: Decision,
    pattern: Option<String>,
) -> DecideApprovalRequest {
    DecideApprovalRequest {
        approval_id: approval.approval_id.clone(),
        decision: decision.into(),
        pattern,
        ..DecideApprovalRequest::default()
    }
}

/// Who asks, and for how long.
fn about(approval: &Approval, now: SystemTime) -> String {
    let end = approval.expire_time.and_then(|time| SystemTime::try_from(time).ok());
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
