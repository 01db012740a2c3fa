//! `jig rules`: manages the policy rules of a workspace.

use std::{process::ExitCode, time::SystemTime};

use clap::{Args, Subcommand, ValueEnum};
use jig::{
    api::v1::{
        self, CreateRuleRequest, DeleteRuleRequest, ListRulesRequest, Rule, RuleOrigin,
        UpdateRuleRequest,
    },
    client::Client,
};
use serde_json::{Value, json};

use super::{columns::align_columns, report_and_exit, try_each};
use crate::{cli_error::CliError, connection, escape, global::GlobalArgs, json::enum_name, output};

const SECONDS_PER_DAY: u32 = 24 * 3600;

/// List, create, delete, enable and disable policy rules.
///
/// A rule allows or denies calls automatically, or requires approval by an administrator.
#[derive(Debug, Args)]
pub(crate) struct RulesArgs {
    #[command(subcommand)]
    action: RulesCommand,
}

#[derive(Debug, Subcommand)]
enum RulesCommand {
    /// List the rules in the order in which the daemon evaluates them.
    #[command(visible_alias = "ls")]
    List,
    Add(AddArgs),
    /// Delete rules.
    Rm {
        /// Ids of the rules.
        #[arg(value_name = "RULE", required = true)]
        rules: Vec<String>,
    },
    /// Enable a rule.
    #[command(alias = "on")]
    Enable {
        /// Id of the rule.
        rule: String,
    },
    /// Disable a rule.
    #[command(alias = "off")]
    Disable {
        /// Id of the rule.
        rule: String,
    },
}

/// Create a rule for the workspace.
///
/// Example: `jig rules add deny run --pattern 'rm -rf' --name 'no rm'`.
#[derive(Debug, Args)]
struct AddArgs {
    /// Decision for calls that match.
    action: RuleActionArg,
    /// Name of the tool: one of jig's own, of the configuration or of a dialect.
    tool: String,
    /// Regular expression to search for in the compact JSON of the parameters. Default: the rule
    /// matches all calls of the tool.
    #[arg(long, value_name = "REGEX")]
    pattern: Option<String>,
    /// Description of the rule.
    #[arg(long, value_name = "TEXT", default_value = "")]
    name: String,
    /// Lifetime in days, 1 to 3650. Default: unlimited.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: Option<u32>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum RuleActionArg {
    Allow,
    Ask,
    Deny,
}

pub(crate) fn rules(global: &GlobalArgs, args: RulesArgs) -> ExitCode {
    let result = global.require_address().and_then(|address| match args.action {
        RulesCommand::List => list(address, global),
        RulesCommand::Add(args) => add(address, global, args),
        RulesCommand::Rm { rules } => remove(address, global, rules),
        RulesCommand::Enable { rule } => set_enabled(address, global, rule, true),
        RulesCommand::Disable { rule } => set_enabled(address, global, rule, false),
    });
    report_and_exit(result, global.json)
}

fn list(address: &str, global: &GlobalArgs) -> Result<(), CliError> {
    let listed = connection::call_address(address, global, async |client: Client| {
        let mut rules = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = ListRulesRequest { page_token, ..ListRulesRequest::default() };
            let page = client.list_rules(request).await?;
            rules.extend(page.rules);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(rules);
            }
        }
    })?;

    if global.json {
        let rules: Vec<Value> = listed.iter().map(rule_json).collect();
        return output::write_json(&json!({ "rules": rules }));
    }

    if listed.is_empty() {
        output::note("there are no rules");
        return Ok(());
    }
    output::write_stdout(rules_table(&listed, SystemTime::now()).as_bytes())
}

fn add(address: &str, global: &GlobalArgs, args: AddArgs) -> Result<(), CliError> {
    let action = match args.action {
        RuleActionArg::Allow => v1::Action::Allow,
        RuleActionArg::Ask => v1::Action::Ask,
        RuleActionArg::Deny => v1::Action::Deny,
    };

    let request = CreateRuleRequest {
        name: args.name,
        tool: args.tool,
        pattern: args.pattern,
        action: action.into(),
        lifetime_sec: args.days.map(|days| days * SECONDS_PER_DAY),
    };

    let response = connection::call_address(address, global, async |client: Client| {
        Ok(client.create_rule(request).await?)
    })?;
    print(&response.rule.unwrap_or_default(), global.json)
}

fn remove(address: &str, global: &GlobalArgs, rules: Vec<String>) -> Result<(), CliError> {
    if rules.len() > 1 {
        global.reject_request_id("each rule is a call of its own")?;
    }
    connection::call_address(address, global, async |client: Client| {
        try_each(rules, global.json, async |rule_id| {
            Ok(client.delete_rule(DeleteRuleRequest { rule_id }).await.map(drop)?)
        })
        .await
    })
}

fn set_enabled(
    address: &str,
    global: &GlobalArgs,
    rule_id: String,
    enabled: bool,
) -> Result<(), CliError> {
    let request =
        UpdateRuleRequest { rule_id, enabled: Some(enabled), ..UpdateRuleRequest::default() };
    let changed = connection::call_address(address, global, async |client: Client| {
        Ok(client.update_rule(request).await?)
    })?;
    print(&changed.rule.unwrap_or_default(), global.json)
}

fn print(rule: &Rule, as_json: bool) -> Result<(), CliError> {
    if as_json {
        return output::write_json(&rule_json(rule));
    }
    let rules = std::slice::from_ref(rule);
    output::write_stdout(rules_table(rules, SystemTime::now()).as_bytes())
}

/// Formats a header and a line per rule.
fn rules_table(rules: &[Rule], now: SystemTime) -> String {
    let header = ["RULE", "STATE", "ACTION", "TOOL", "WORKSPACES", "ENDS", "NAME", "PATTERN"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(rules.iter().map(|rule| {
        let ends = rule.expire_time.map(|time| time.to_string());
        let workspaces = match rule.workspaces.as_slice() {
            [] => "all".to_owned(),
            names => names.join(","),
        };
        let row = [
            rule.rule_id.clone(),
            state_text(rule, now).to_owned(),
            strip_enum_prefix(rule.action().as_str_name(), "ACTION_"),
            rule.tool.clone(),
            workspaces,
            ends.unwrap_or_else(|| "never".to_owned()),
            rule.name.clone(),
            rule.pattern.clone(),
        ];
        row.map(|cell| escape::text(&cell).replace(['\n', '\t'], " ")).to_vec()
    }));
    align_columns(&rows)
}

/// Returns whether a rule is in force, as one word.
fn state_text(rule: &Rule, now: SystemTime) -> &'static str {
    let ends = rule.expire_time.and_then(|time| SystemTime::try_from(time).ok());
    match (rule.enabled, ends) {
        (_, Some(end)) if end <= now => "expired",
        (true, _) => "enabled",
        (false, _) => "disabled",
    }
}

fn strip_enum_prefix(name: &str, prefix: &str) -> String {
    name.trim_start_matches(prefix).to_lowercase()
}

pub(super) fn rule_json(rule: &Rule) -> Value {
    let time = |stamp: Option<prost_types::Timestamp>| stamp.map(|stamp| stamp.to_string());
    let action = v1::Action::try_from(rule.action).map(|action| action.as_str_name());
    let origin = RuleOrigin::try_from(rule.origin).map(|origin| origin.as_str_name());
    json!({
        "rule_id": rule.rule_id,
        "name": rule.name,
        "tool": rule.tool,
        "pattern": rule.pattern,
        "action": enum_name(action, rule.action),
        "workspaces": rule.workspaces,
        "expire_time": time(rule.expire_time),
        "enabled": rule.enabled,
        "origin": enum_name(origin, rule.origin),
        "created_by": rule.created_by,
        "create_time": time(rule.create_time),
        "approval_id": rule.approval_id,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn expired_rule_is_not_enabled() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let rule = |enabled, ends: Option<u64>| Rule {
            rule_id: "01A".to_owned(),
            enabled,
            expire_time: ends
                .map(|ends| (SystemTime::UNIX_EPOCH + Duration::from_secs(ends)).into()),
            ..Rule::default()
        };
        for (enabled, ends, expected) in [
            (true, None, "enabled"),
            (true, Some(101), "enabled"),
            (true, Some(100), "expired"),
            (false, None, "disabled"),
            (false, Some(99), "expired"),
        ] {
            let table = rules_table(&[rule(enabled, ends)], now);
            let words: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().collect();
            assert_eq!(words[1], expected, "{table}");
        }
    }
}
