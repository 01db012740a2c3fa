//! `jig approvals`: calls that wait to be approved.

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

/// Most characters of a call's parameters in a list.
const MAX_PARAMETER_CHARS: usize = 100;
/// Seconds of a day.
const SECONDS_PER_DAY: u32 = 24 * 3600;

/// Approve the calls of others: on a terminal, asks about each that waits and each that comes; elsewhere,
/// lists those that wait.
#[derive(Debug, Args)]
pub(crate) struct ApprovalsArgs {
    #[command(subcommand)]
    action: Option<ApprovalsCommand>,
}

/// What to do with approvals.
#[derive(Debug, Subcommand)]
enum ApprovalsCommand {
    /// List the calls that wait, oldest first.
    #[command(visible_alias = "ls")]
    List {
        /// Also those that do not wait any more, newest first.
        #[arg(long)]
        all: bool,
    },
    /// Show one call whole, as it was asked about.
    Show {
        /// The approval, by its id.
        id: String,
    },
    Decide(DecideArgs),
}

/// Decide about one call.
#[derive(Debug, Args)]
struct DecideArgs {
    /// The approval, by its id.
    id: String,
    /// What is decided, `y` and `n` for short; `always` allows the call and makes a rule that allows its like.
    decision: DecisionArg,
    /// Why, for the record and, where it is denied, for the caller.
    #[arg(long, value_name = "TEXT", default_value = "")]
    comment: String,
    /// Regular expression of the rule of `always`; without it, one for this call, whatever is to be in a
    /// file. Where the call has an environment or a standard input, it must be given.
    #[arg(long, value_name = "REGEX")]
    pattern: Option<String>,
    /// Days that the rule of `always` lasts: 30 by default.
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
        output::note("nothing waits to be approved");
        return Ok(());
    }
    output::write_stdout(approvals_table(&listed, SystemTime::now()).as_bytes())
}

fn show(address: &str, global: &GlobalArgs, approval_id: String) -> Result<(), CliError> {
    let request = GetApprovalRequest { approval_id };
    let found = connection::call_address(address, global, async |client: Client| {
        Ok(client.get_approval(request).await?)
    })?;
    let approval = found.approval.unwrap_or_default();
    match global.json {
        true => output::write_json(&approval_json(&approval)),
        false => output::write_stdout(format_question(&approval, terminal_columns()).as_bytes()),
    }
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
        text += &format!(", and its like by the rule {}", rule.rule_id);
    }
    output::write_stdout((escape::text(&text).replace('\n', " ") + "\n").as_bytes())
}

/// A line for each, below one that names the columns.
fn approvals_table(approvals: &[Approval], now: SystemTime) -> String {
    let header = ["APPROVAL", "STATE", "AGE", "WORKSPACE", "CALLER", "TOOL", "PARAMETERS"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(approvals.iter().map(|approval| {
        let parameters = approval.parameters.iter();
        let parameters =
            parameters.map(|parameter| format!("{}={}", parameter.name, parameter.value));
        let parameters = parameters.collect::<Vec<_>>().join(" ");
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

/// How long ago it was asked: `12s`, `3m`, `2h`, `4d`.
fn format_age(approval: &Approval, now: SystemTime) -> String {
    let asked = approval.request_time.and_then(|time| SystemTime::try_from(time).ok());
    let Some(age) = asked.and_then(|asked| now.duration_since(asked).ok()) else {
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
    let parameters = approval.parameters.iter();
    let parameters: Vec<Value> = parameters
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
        "said_as": approval.said_as,
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
        "asked_by": approval.asked_by,
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
    fn a_list_holds_nothing_that_a_terminal_obeys() {
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
