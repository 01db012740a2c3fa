//! `jig approvals`: lists and decides calls that are pending approval.

mod fold_blanks;
mod prompt;
mod terminal_input;
mod watch;

use std::{io, process::ExitCode, time::SystemTime};

use clap::{Args, Subcommand, ValueEnum};
use jig::{
    api::v1::{
        Approval, ApprovalState, DecideApprovalRequest, Decision, GetApprovalRequest,
        ListApprovalsRequest, Risk,
    },
    client::Client,
};
use rustix::termios::isatty;
use serde_json::{Value, json};

use self::{
    fold_blanks::fold_blanks,
    prompt::{format_question, state_name, terminal_columns},
};
use super::{columns::align_columns, report_and_exit, rules::rule_json};
use crate::{cli_error::CliError, connection, escape, global::GlobalArgs, json::enum_name, output};

/// Maximum length of a call's parameters in a list, in characters.
const MAX_PARAMETER_CHARS: usize = 100;
const SECONDS_PER_DAY: u32 = 24 * 3600;

/// Approve or deny calls of other clients.
///
/// On a terminal, asks about each pending call and about each new one. Otherwise, lists the pending
/// calls.
#[derive(Debug, Args)]
pub(crate) struct ApprovalsArgs {
    #[command(subcommand)]
    action: Option<ApprovalsCommand>,
}

#[derive(Debug, Subcommand)]
enum ApprovalsCommand {
    /// List pending calls, oldest first.
    #[command(visible_alias = "ls")]
    List {
        /// Also list calls that are no longer pending, newest first.
        #[arg(long)]
        all: bool,
    },
    /// Show all parameters of one call.
    Show {
        /// Id of the approval.
        id: String,
    },
    Decide(DecideArgs),
}

/// Decide about one call.
///
/// Example: `jig approvals decide ID y`.
#[derive(Debug, Args)]
struct DecideArgs {
    /// Id of the approval.
    id: String,
    /// Decision; `y` and `n` for short. `always` allows the call and creates a rule that allows
    /// similar calls.
    decision: DecisionArg,
    /// Reason, for the record. If the call is denied, also for the caller.
    #[arg(long, value_name = "TEXT", default_value = "")]
    comment: String,
    /// Regular expression for the rule of `always`. Default: one that matches this call, with any
    /// file content. Required if the call has environment variables or standard input.
    #[arg(long, value_name = "REGEX")]
    pattern: Option<String>,
    /// Lifetime of the rule of `always`, in days. Default: 30.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: Option<u32>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum DecisionArg {
    #[value(alias = "y", alias = "yes")]
    Allow,
    #[value(alias = "n", alias = "no")]
    Deny,
    Always,
}

pub(crate) fn approvals(global: &GlobalArgs, args: ApprovalsArgs) -> ExitCode {
    let is_terminal = isatty(io::stdin()) && isatty(io::stdout());
    let result = global.require_address().and_then(|address| match args.action {
        Some(ApprovalsCommand::List { all }) => list(address, global, all),
        Some(ApprovalsCommand::Show { id }) => show(address, global, id),
        Some(ApprovalsCommand::Decide(args)) => decide(address, global, args),
        None if is_terminal && !global.json => watch::watch(global),
        None => list(address, global, false),
    });
    report_and_exit(result, global.json)
}

fn list(address: &str, global: &GlobalArgs, all: bool) -> Result<(), CliError> {
    let listed = connection::call_address(address, global, async |client: Client| {
        let mut approvals = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = ListApprovalsRequest {
                decided: all,
                page_token,
                ..ListApprovalsRequest::default()
            };
            let page = client.list_approvals(request).await?;
            approvals.extend(page.approvals);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(approvals);
            }
        }
    })?;

    if global.json {
        let list: Vec<Value> = listed.iter().map(approval_json).collect();
        return output::write_json(&json!({ "approvals": list }));
    }

    if listed.is_empty() {
        output::note("no calls are pending approval");
        return Ok(());
    }
    output::write_stdout(approvals_table(&listed, SystemTime::now()).as_bytes())
}

fn show(address: &str, global: &GlobalArgs, approval_id: String) -> Result<(), CliError> {
    let request = GetApprovalRequest { approval_id };
    let response = connection::call_address(address, global, async |client: Client| {
        Ok(client.get_approval(request).await?)
    })?;
    let approval = response.approval.unwrap_or_default();

    if global.json {
        return output::write_json(&approval_json(&approval));
    }
    output::write_stdout(format_question(&approval, terminal_columns()).as_bytes())
}

fn decide(address: &str, global: &GlobalArgs, args: DecideArgs) -> Result<(), CliError> {
    let decision = match args.decision {
        DecisionArg::Allow => Decision::Allow,
        DecisionArg::Deny => Decision::Deny,
        DecisionArg::Always => Decision::Always,
    };

    let request = DecideApprovalRequest {
        approval_id: args.id,
        decision: decision.into(),
        comment: args.comment,
        rule_lifetime_sec: args.days.map(|days| days * SECONDS_PER_DAY),
        pattern: args.pattern,
    };

    let decided = connection::call_address(address, global, async |client: Client| {
        Ok(client.decide_approval(request).await?)
    })?;

    let approval = decided.approval.unwrap_or_default();
    if global.json {
        return output::write_json(&json!({
            "approval": approval_json(&approval),
            "rule": decided.rule.as_ref().map(rule_json),
        }));
    }

    let mut text = format!("{} {}", state_name(&approval), approval.approval_id);
    if let Some(rule) = decided.rule {
        text += &format!(", and similar calls by the rule {}", rule.rule_id);
    }
    output::write_stdout((escape::text(&text).replace('\n', " ") + "\n").as_bytes())
}

/// Formats a header and a line per approval.
fn approvals_table(approvals: &[Approval], now: SystemTime) -> String {
    let header = ["APPROVAL", "STATE", "AGE", "WORKSPACE", "CALLER", "TOOL", "PARAMETERS"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(approvals.iter().map(|approval| {
        let parameters: Vec<_> = approval
            .parameters
            .iter()
            .map(|parameter| format!("{}={}", parameter.name, parameter.value))
            .collect();
        let parameters = parameters.join(" ");
        let row = [
            approval.approval_id.clone(),
            state_name(approval),
            format_age(approval, now),
            approval.workspace.clone(),
            approval.principal.clone(),
            approval.tool.clone(),
            shorten(&fold_blanks(&parameters)),
        ];
        row.map(|cell| escape::text(&cell).replace(['\n', '\t'], " ")).to_vec()
    }));
    align_columns(&rows)
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(MAX_PARAMETER_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Formats the time since the request: `12s`, `3m`, `2h`, `4d`.
fn format_age(approval: &Approval, now: SystemTime) -> String {
    let requested = approval.request_time.and_then(|time| SystemTime::try_from(time).ok());
    let Some(age) = requested.and_then(|requested| now.duration_since(requested).ok()) else {
        return "-".to_owned();
    };
    match age.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m", seconds / 60),
        seconds @ 3600..86_400 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

fn approval_json(approval: &Approval) -> Value {
    let time = |stamp: Option<prost_types::Timestamp>| stamp.map(|stamp| stamp.to_string());
    let state = ApprovalState::try_from(approval.state).map(|state| state.as_str_name());
    let risk = Risk::try_from(approval.risk).map(|risk| risk.as_str_name());
    let parameters: Vec<Value> = approval
        .parameters
        .iter()
        .map(|parameter| {
            json!({
                "name": parameter.name,
                "value": parameter.value,
                "omitted_bytes": parameter.omitted_bytes,
                "ending": parameter.ending,
            })
        })
        .collect();

    json!({
        "approval_id": approval.approval_id,
        "state": enum_name(state, approval.state),
        "tool": approval.tool,
        "called_name": approval.called_name,
        "title": approval.title,
        "risk": enum_name(risk, approval.risk),
        "parameters": parameters,
        "files_affected": approval.files_affected,
        "more_files": approval.more_files,
        "workspace": approval.workspace,
        "session": approval.session,
        "principal": approval.principal,
        "call_id": approval.call_id,
        "request_time": time(approval.request_time),
        "expire_time": time(approval.expire_time),
        "required_by": approval.required_by,
        "suggested_pattern": approval.suggested_pattern,
        "decide_time": time(approval.decide_time),
        "decided_by": approval.decided_by,
        "comment": approval.comment,
        "rule_id": approval.rule_id,
    })
}

#[cfg(test)]
mod tests {
    use jig::api::v1::ApprovalParameter;

    use super::*;

    #[test]
    fn list_escapes_untrusted_text() {
        let parameter = |name: &str, value: &str| ApprovalParameter {
            name: name.to_owned(),
            value: value.to_owned(),
            ..ApprovalParameter::default()
        };
        let approval = Approval {
            approval_id: "01A".to_owned(),
            state: ApprovalState::Pending.into(),
            tool: "run".to_owned(),
            principal: "key:a".to_owned(),
            workspace: "w".to_owned(),
            parameters: vec![
                parameter("command", "a\nb\x1b[2J"),
                parameter("cwd", &"é".repeat(200)),
            ],
            request_time: Some(SystemTime::UNIX_EPOCH.into()),
            ..Approval::default()
        };
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(200);
        let text = approvals_table(std::slice::from_ref(&approval), now);
        assert_eq!(text.lines().count(), 2, "{text}");
        let padded = format!("echo{}rm -rf{}#", "\n".repeat(61), " ".repeat(3000));
        let hidden =
            Approval { parameters: vec![parameter("command", &padded)], ..approval.clone() };
        let shown = approvals_table(&[hidden], now);
        let expected = "command=echo ⟨60 empty lines⟩ rm -rf⟨3000 blanks⟩#\n";
        assert!(shown.ends_with(expected), "{shown}");
        assert!(text.contains("01A       pending  3m   w"), "{text}");
        assert!(text.contains(r"command=a b\033[2J cwd=é") && text.ends_with("…\n"), "{text}");
    }
}
