//! Asking about each call that waits, one after the other, for as long as somebody is there to answer.
//!
//! An answer counts for the question that it was typed at: what was typed before is thrown away, and where
//! a call has ceased to wait while it was asked about, a line is read before the next question.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use super::{
    prompt::{
        DECISION_PROMPT, PromptAnswer, RulePromptAnswer, format_question, format_rule,
        is_truncated, parse_answer, parse_rule_answer, rule_prompt, state_name, terminal_columns,
        terminal_lines,
    },
    terminal_input::TerminalInput,
};
use crate::{
    cli_error::CliError,
    connection::{self, PendingClient},
    escape,
    global::GlobalArgs,
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
const RESERVED_TERMINAL_LINES: usize = 5;

/// Rest between two attempts to watch, where the daemon does not say how long.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// What a decision can be refused with that leaves its call waiting, and another answer possible.
const RETRYABLE_REASONS: [&str; 4] =
    ["INVALID_PARAMS", "INVALID_REGEX", "RESOURCE_EXHAUSTED", "NO_SPACE"];

/// Asks until somebody has had enough.
pub(super) fn watch(global: &GlobalArgs) -> Result<(), CliError> {
    global.reject_request_id("each answer is a call")?;
    connection::call_with_signals(global, |connecting, mut signals| async move {
        let mut session = ApprovalSession::default();
        let result = tokio::select! {
            biased;
            code = signals.next() => Err(CliError::Interrupted(code)),
            result = session.ask_all(connecting) => result,
        };
        session.note_unanswered();
        (result, signals)
    })?
}

/// What goes on at the terminal.
#[derive(Debug, Default)]
struct ApprovalSession {
    waiting: BTreeMap<String, Approval>,
    /// The call that is asked about.
    current: Option<String>,
    /// Pattern of the rule of `always` that is asked about; empty where one must be typed.
    rule_pattern: Option<String>,
    /// Whether all of the call that is asked about was shown: only then it can be allowed.
    fully_shown: bool,
    /// Whether a line is to be read before the next question.
    discards_next_line: bool,
}

impl ApprovalSession {
    async fn ask_all(&mut self, connecting: PendingClient) -> Result<(), CliError> {
        let client = connecting.await?;
        let mut keyboard = TerminalInput::open();
        let mut events = client.watch_approvals(WatchApprovalsRequest::default()).await?;
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Ok(Some(event)) => self.apply_event(event)?,
                    Ok(None) => return Err(CliError::Daemon("the daemon has ended the stream of approvals".to_owned())),
                    Err(error) => {
                        events = self.watch_again(&client, error).await?;
                    }
                },
                line = keyboard.next_line() => match line? {
                    Some(line) => self.handle_line(&client, &mut keyboard, &line).await?,
                    None => return Ok(()),
                },
            }
            self.ask_next(&mut keyboard)?;
        }
    }

    /// Notes what has happened.
    fn apply_event(&mut self, event: Event) -> Result<(), CliError> {
        match event {
            Event::Approval(approval) if approval.state() == ApprovalState::Pending => {
                self.waiting.insert(approval.approval_id.clone(), approval);
            }
            Event::Approval(approval) => {
                self.waiting.remove(&approval.approval_id);
                if self.current.as_ref() == Some(&approval.approval_id) {
                    self.withdraw_question(&approval)?;
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
    fn withdraw_question(&mut self, approval: &Approval) -> Result<(), CliError> {
        self.current = None;
        self.rule_pattern = None;
        self.discards_next_line = true;
        output::write_stdout(b"\n")?;
        output::note(&format!(
            "this call does not wait any more: {} by {}. Press Enter to go on",
            state_name(approval),
            approval.decided_by
        ));
        Ok(())
    }

    /// Asks about the call that has waited longest, where none is asked about.
    fn ask_next(&mut self, keyboard: &mut TerminalInput) -> Result<(), CliError> {
        if self.current.is_some() || self.discards_next_line {
            return Ok(());
        }
        let Some((id, approval)) = self.waiting.first_key_value() else {
            return Ok(());
        };
        self.current = Some(id.clone());
        self.rule_pattern = None;
        output::note(&approval_header(approval, SystemTime::now()));
        let text = format_question(approval, terminal_columns());
        output::write_stdout(text.as_bytes())?;
        let (lines, room) = (text.lines().count() + RESERVED_TERMINAL_LINES, terminal_lines());
        self.fully_shown = lines <= room && !is_truncated(approval);
        if is_truncated(approval) {
            output::note("not all of this call is shown: answer all to see the rest");
        } else if !self.fully_shown {
            output::note(&format!(
                "this call has {lines} lines and the terminal {room}: answer all, and read from \"Tool:\" on"
            ));
        }
        ask_question(keyboard, DECISION_PROMPT)
    }

    /// Takes a line that was typed.
    async fn handle_line(
        &mut self,
        client: &Client,
        keyboard: &mut TerminalInput,
        line: &str,
    ) -> Result<(), CliError> {
        if self.discards_next_line {
            self.discards_next_line = false;
            return Ok(());
        }
        let asked = self.current.as_ref().and_then(|id| self.waiting.get(id));
        let Some(approval) = asked.cloned() else {
            return Ok(());
        };
        if let Some(pattern) = self.rule_pattern.take() {
            return match parse_rule_answer(&pattern, line) {
                RulePromptAnswer::Make => {
                    let other = (pattern != approval.suggested_pattern).then_some(pattern);
                    let request = decision_request(&approval, Decision::Always, other);
                    self.decide(client, keyboard, request).await
                }
                RulePromptAnswer::Show(other) => self.ask_about_rule(keyboard, &approval, other),
                RulePromptAnswer::No => ask_question(keyboard, DECISION_PROMPT),
            };
        }
        let answer = parse_answer(line);
        match answer {
            PromptAnswer::Decided(Decision::Allow | Decision::Always) if !self.fully_shown => {
                output::note(
                    "not allowed yet, as not all of this call was shown: answer all first",
                );
                ask_question(keyboard, DECISION_PROMPT)
            }
            // The document of this vocabulary asks once. What the rule is, is said when it is made.
            PromptAnswer::Decided(Decision::Always)
                if approval.said_as.starts_with("cli_agent/")
                    && !approval.suggested_pattern.is_empty() =>
            {
                let text = format_rule(&approval, &approval.suggested_pattern, terminal_columns());
                output::write_stdout(text.as_bytes())?;
                let request = decision_request(&approval, Decision::Always, None);
                self.decide(client, keyboard, request).await
            }
            PromptAnswer::Decided(Decision::Always) => {
                let suggested = approval.suggested_pattern.clone();
                self.ask_about_rule(keyboard, &approval, suggested)
            }
            PromptAnswer::Decided(decided) => {
                let request = decision_request(&approval, decided, None);
                self.decide(client, keyboard, request).await
            }
            PromptAnswer::ShowAll => self.show_all(client, keyboard, approval.approval_id).await,
            PromptAnswer::Unknown => {
                output::note("answer y (this call), n (not), or always (this call and its like)");
                ask_question(keyboard, DECISION_PROMPT)
            }
        }
    }

    /// Shows the rule that `always` makes with this pattern, and asks whether to.
    fn ask_about_rule(
        &mut self,
        keyboard: &mut TerminalInput,
        approval: &Approval,
        pattern: String,
    ) -> Result<(), CliError> {
        output::write_stdout(format_rule(approval, &pattern, terminal_columns()).as_bytes())?;
        ask_question(keyboard, rule_prompt(&pattern))?;
        self.rule_pattern = Some(pattern);
        Ok(())
    }

    /// Shows the whole of a call, and asks about it again.
    async fn show_all(
        &mut self,
        client: &Client,
        keyboard: &mut TerminalInput,
        approval_id: String,
    ) -> Result<(), CliError> {
        match client.get_approval(GetApprovalRequest { approval_id }).await {
            Ok(found) => {
                let whole = found.approval.unwrap_or_default();
                output::write_stdout(format_question(&whole, terminal_columns()).as_bytes())?;
                self.fully_shown = !is_truncated(&whole);
            }
            Err(error) => output::note(&error.message),
        }
        ask_question(keyboard, DECISION_PROMPT)
    }

    /// Decides about the call that is asked about.
    async fn decide(
        &mut self,
        client: &Client,
        keyboard: &mut TerminalInput,
        request: DecideApprovalRequest,
    ) -> Result<(), CliError> {
        let id = request.approval_id.clone();
        let decision = request.decision();
        self.current = None;
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
            Err(error) if RETRYABLE_REASONS.contains(&error.name()) => {
                output::note(&error.message);
                self.current = Some(id);
                ask_question(keyboard, DECISION_PROMPT)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Goes on watching where the daemon has let us fall behind.
    async fn watch_again(
        &mut self,
        client: &Client,
        error: CallError,
    ) -> Result<ApprovalEvents, CliError> {
        if error.name() != "RESOURCE_EXHAUSTED" {
            return Err(error.into());
        }
        tokio::time::sleep(error.retry_after.unwrap_or(RECONNECT_DELAY)).await;
        let request = WatchApprovalsRequest::default();
        let mut events = client.watch_approvals(request).await?;
        self.waiting.clear();
        // Those that wait come first: what is asked about may not be among them any more.
        while let Some(event) = events.next().await? {
            if matches!(event, Event::Listed(_)) {
                break;
            }
            self.apply_event(event)?;
        }
        if let Some(id) = self.current.take()
            && self.waiting.contains_key(&id)
        {
            self.current = Some(id);
        }
        Ok(events)
    }

    /// Says what becomes of the call that is asked about when nobody answers.
    fn note_unanswered(&self) {
        if self.current.is_some() {
            output::write_stderr(b"\n");
            output::note("nothing was decided about this call: it waits on");
        }
    }
}

/// Asks for an answer: what was typed before was not typed at this question.
fn ask_question(keyboard: &mut TerminalInput, question: &str) -> Result<(), CliError> {
    keyboard.discard_typed();
    output::write_stdout(question.as_bytes())
}

fn decision_request(
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
fn approval_header(approval: &Approval, now: SystemTime) -> String {
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
