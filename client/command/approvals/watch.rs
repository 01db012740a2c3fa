//! Asks the user about each pending call, one after the other, until the end of input.
//!
//! An answer counts only for the question at which it was typed. Earlier input is discarded. If a
//! call stops being pending during its question, the next line is discarded too.

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

/// Lines of the terminal besides those of a call: header, note and prompt.
const RESERVED_TERMINAL_LINES: usize = 5;

/// Delay before watching again, if the daemon does not suggest one.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// Errors of a decision after which the call is still pending and another answer is possible.
const RETRYABLE_REASONS: [&str; 4] =
    ["INVALID_PARAMS", "INVALID_REGEX", "RESOURCE_EXHAUSTED", "NO_SPACE"];

/// Asks about calls until the user stops.
pub(super) fn watch(global: &GlobalArgs) -> Result<(), CliError> {
    global.reject_request_id("each answer is a call of its own")?;
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

/// State of the conversation with the user.
#[derive(Debug, Default)]
struct ApprovalSession {
    pending: BTreeMap<String, Approval>,
    /// Id of the call in question.
    current: Option<String>,
    /// Pattern of the rule in question. Empty if the user has to type one.
    rule_pattern: Option<String>,
    /// Whether the call in question was shown completely. Only then it can be allowed.
    fully_shown: bool,
    /// Whether to discard the next line.
    discards_next_line: bool,
}

impl ApprovalSession {
    async fn ask_all(&mut self, connecting: PendingClient) -> Result<(), CliError> {
        let client = connecting.await?;
        let mut input = TerminalInput::open();
        let mut events = client.watch_approvals(WatchApprovalsRequest::default()).await?;

        loop {
            tokio::select! {
                event = events.next() => match event {
                    Ok(Some(event)) => self.apply_event(event)?,
                    Ok(None) => return Err(CliError::Daemon("the daemon ended the stream of approvals: run `jig approvals` again".to_owned())),
                    Err(error) => {
                        events = self.watch_again(&client, error).await?;
                    }
                },
                line = input.next_line() => match line? {
                    Some(line) => self.handle_line(&client, &mut input, &line).await?,
                    None => return Ok(()),
                },
            }

            self.ask_next(&mut input)?;
        }
    }

    /// Applies an event to the pending calls.
    fn apply_event(&mut self, event: Event) -> Result<(), CliError> {
        match event {
            Event::Approval(approval) if approval.state() == ApprovalState::Pending => {
                self.pending.insert(approval.approval_id.clone(), approval);
            }
            Event::Approval(approval) => {
                self.pending.remove(&approval.approval_id);
                if self.current.as_ref() == Some(&approval.approval_id) {
                    self.withdraw_question(&approval)?;
                }
            }
            Event::Listed(listed) if listed.count == 0 => {
                output::note("no calls are pending approval; waiting for new ones (Ctrl-C stops)");
            }
            Event::Listed(_) | Event::KeepAlive(_) => {}
        }
        Ok(())
    }

    /// Reports that the call in question is no longer pending.
    fn withdraw_question(&mut self, approval: &Approval) -> Result<(), CliError> {
        self.current = None;
        self.rule_pattern = None;
        self.discards_next_line = true;
        output::write_stdout(b"\n")?;
        let state = state_name(approval);
        let end = match approval.decided_by.as_str() {
            "" | "daemon" => state,
            decided_by => format!("{state} by {decided_by}"),
        };
        output::note(&format!("this call is no longer pending: {end}. Press Enter to continue"));
        Ok(())
    }

    /// Asks about the oldest pending call, unless a question is open.
    fn ask_next(&mut self, input: &mut TerminalInput) -> Result<(), CliError> {
        if self.current.is_some() || self.discards_next_line {
            return Ok(());
        }
        let Some((id, approval)) = self.pending.first_key_value() else {
            return Ok(());
        };

        self.current = Some(id.clone());
        self.rule_pattern = None;

        output::note(&approval_header(approval, SystemTime::now()));
        let text = format_question(approval, terminal_columns());
        output::write_stdout(text.as_bytes())?;
        let lines = text.lines().count() + RESERVED_TERMINAL_LINES;
        let max_lines = terminal_lines();
        self.fully_shown = lines <= max_lines && !is_truncated(approval);
        if is_truncated(approval) {
            output::note("a part of this call is omitted: type all to print it");
        } else if !self.fully_shown {
            output::note(&format!(
                "this call has {lines} lines, and the terminal has {max_lines}: type all to print it, then scroll up to \"Tool:\""
            ));
        }

        ask_question(input, DECISION_PROMPT)
    }

    /// Handles a line that the user typed.
    async fn handle_line(
        &mut self,
        client: &Client,
        input: &mut TerminalInput,
        line: &str,
    ) -> Result<(), CliError> {
        if self.discards_next_line {
            self.discards_next_line = false;
            return Ok(());
        }
        let current = self.current.as_ref().and_then(|id| self.pending.get(id));
        let Some(approval) = current.cloned() else {
            return Ok(());
        };

        match self.rule_pattern.take() {
            Some(pattern) => self.handle_rule_answer(client, input, &approval, pattern, line).await,
            None => self.handle_call_answer(client, input, &approval, line).await,
        }
    }

    /// Handles an answer to the question about the rule with `pattern`.
    async fn handle_rule_answer(
        &mut self,
        client: &Client,
        input: &mut TerminalInput,
        approval: &Approval,
        pattern: String,
        line: &str,
    ) -> Result<(), CliError> {
        match parse_rule_answer(&pattern, line) {
            RulePromptAnswer::Create => {
                let other = (pattern != approval.suggested_pattern).then_some(pattern);
                let request = decision_request(approval, Decision::Always, other);
                self.decide(client, input, request).await
            }
            RulePromptAnswer::Show(other) => self.ask_about_rule(input, approval, other),
            RulePromptAnswer::No => ask_question(input, DECISION_PROMPT),
        }
    }

    /// Handles an answer to the question about a call.
    async fn handle_call_answer(
        &mut self,
        client: &Client,
        input: &mut TerminalInput,
        approval: &Approval,
        line: &str,
    ) -> Result<(), CliError> {
        match parse_answer(line) {
            PromptAnswer::Decided(Decision::Allow | Decision::Always) if !self.fully_shown => {
                output::note(
                    "not allowed yet, because a part of this call was not shown: type all first",
                );
                ask_question(input, DECISION_PROMPT)
            }
            // The specification of `cli_agent` asks once. The rule is only shown.
            PromptAnswer::Decided(Decision::Always)
                if approval.called_name.starts_with("cli_agent/")
                    && !approval.suggested_pattern.is_empty() =>
            {
                let text = format_rule(approval, &approval.suggested_pattern, terminal_columns());
                output::write_stdout(text.as_bytes())?;
                let request = decision_request(approval, Decision::Always, None);
                self.decide(client, input, request).await
            }
            PromptAnswer::Decided(Decision::Always) => {
                let suggested = approval.suggested_pattern.clone();
                self.ask_about_rule(input, approval, suggested)
            }
            PromptAnswer::Decided(decision) => {
                let request = decision_request(approval, decision, None);
                self.decide(client, input, request).await
            }
            PromptAnswer::ShowAll => {
                self.show_all(client, input, approval.approval_id.clone()).await
            }
            PromptAnswer::Unknown => {
                output::note(
                    "answer y (allow this call), n (deny it), always (allow it and similar calls), or all (print all of it)",
                );
                ask_question(input, DECISION_PROMPT)
            }
        }
    }

    /// Shows the rule that `always` creates with this pattern, and asks for confirmation.
    fn ask_about_rule(
        &mut self,
        input: &mut TerminalInput,
        approval: &Approval,
        pattern: String,
    ) -> Result<(), CliError> {
        output::write_stdout(format_rule(approval, &pattern, terminal_columns()).as_bytes())?;
        ask_question(input, rule_prompt(&pattern))?;
        self.rule_pattern = Some(pattern);
        Ok(())
    }

    /// Shows the complete call, and asks about it again.
    async fn show_all(
        &mut self,
        client: &Client,
        input: &mut TerminalInput,
        approval_id: String,
    ) -> Result<(), CliError> {
        match client.get_approval(GetApprovalRequest { approval_id }).await {
            Ok(response) => {
                let complete = response.approval.unwrap_or_default();
                output::write_stdout(format_question(&complete, terminal_columns()).as_bytes())?;
                self.fully_shown = !is_truncated(&complete);
            }
            Err(error) => output::note(&error.message),
        }
        ask_question(input, DECISION_PROMPT)
    }

    /// Sends the decision about the call in question.
    async fn decide(
        &mut self,
        client: &Client,
        input: &mut TerminalInput,
        request: DecideApprovalRequest,
    ) -> Result<(), CliError> {
        let id = request.approval_id.clone();
        let decision = request.decision();
        self.current = None;

        match client.decide_approval(request).await {
            Ok(response) => {
                self.pending.remove(&id);
                let rule = response.rule.map(|rule| rule.rule_id);
                output::note(&match (decision, rule) {
                    (Decision::Deny, _) => "denied".to_owned(),
                    (_, Some(rule)) => {
                        format!("allowed, and similar calls by the rule {rule} (jig rules list)")
                    }
                    (_, None) => "allowed".to_owned(),
                });
                Ok(())
            }
            Err(error) if ["APPROVAL_DECIDED", "APPROVAL_NOT_FOUND"].contains(&error.name()) => {
                self.pending.remove(&id);
                output::note(&format!("your answer came too late: {}", error.message));
                Ok(())
            }
            // The call is still pending, and another answer is possible.
            Err(error) if RETRYABLE_REASONS.contains(&error.name()) => {
                output::note(&error.message);
                self.current = Some(id);
                ask_question(input, DECISION_PROMPT)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Watches again after the daemon ended the stream of a slow reader.
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

        self.pending.clear();
        // Pending calls come first. The call in question may not be among them.
        while let Some(event) = events.next().await? {
            if matches!(event, Event::Listed(_)) {
                break;
            }
            self.apply_event(event)?;
        }

        if let Some(id) = self.current.take()
            && self.pending.contains_key(&id)
        {
            self.current = Some(id);
        }
        Ok(events)
    }

    /// Reports that the call in question is still pending.
    fn note_unanswered(&self) {
        if self.current.is_some() {
            output::write_stderr(b"\n");
            output::note("no decision about this call: it is still pending");
        }
    }
}

/// Prints a question. Earlier input was not typed at this question, so it is discarded.
fn ask_question(input: &mut TerminalInput, question: &str) -> Result<(), CliError> {
    input.discard_typed();
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

/// Formats caller, workspace, session and remaining time.
fn approval_header(approval: &Approval, now: SystemTime) -> String {
    let expiry = approval.expire_time.and_then(|time| SystemTime::try_from(time).ok());
    let remaining =
        expiry.and_then(|expiry| expiry.duration_since(now).ok()).unwrap_or_default().as_secs();
    let one_line = |text: &str| escape::text(text).replace('\n', " ");
    format!(
        "call by {} in workspace {}, session {}, pending for at most {remaining} s ({})",
        one_line(&approval.principal),
        one_line(&approval.workspace),
        one_line(&approval.session),
        one_line(&approval.approval_id)
    )
}
