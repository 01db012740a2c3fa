//! Formats the question about a pending call, and parses the answers.

use std::io;

use jig::api::v1::{Approval, Decision, Risk};
use rustix::termios::tcgetwinsize;

use super::fold_blanks::fold_blanks;
use crate::escape;

/// Indent of continuation lines, so that no value can start a line like a heading of jig.
const CONTINUATION_INDENT: &str = "    ";
/// Assumed width of a terminal that reports none.
const DEFAULT_COLUMNS: usize = 80;
/// Minimum width for which lines are wrapped.
const MIN_COLUMNS: usize = 40;
/// Assumed height of a terminal that reports none.
const DEFAULT_LINES: usize = 24;
/// Minimum height that is assumed.
const MIN_LINES: usize = 8;

/// Answer of the user to the question about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PromptAnswer {
    Decided(Decision),
    /// Show the omitted parts of the call.
    ShowAll,
    /// Not a valid answer.
    Unknown,
}

/// Formats the question for a terminal of `width` columns, without [`DECISION_PROMPT`].
pub(super) fn format_question(approval: &Approval, width: usize) -> String {
    // The name that the agent uses.
    let dialect_tool = approval.called_name.rsplit('/').next().filter(|tool| !tool.is_empty());
    let tool = dialect_tool.unwrap_or(&approval.tool);

    let mut text = wrap_line(&format!("Tool: {tool}"), width);
    text += "Parameters:\n";
    for parameter in &approval.parameters {
        let value = fold_blanks(&parameter.value);
        text += &wrap_line(&format!("  {}: {value}", parameter.name), width);
        if parameter.omitted_bytes > 0 {
            let omitted = parameter.omitted_bytes;
            text += &format!("  … {omitted} bytes of {} are not shown …\n", parameter.name);
            text += &wrap_line(
                &format!("{CONTINUATION_INDENT}{}", fold_blanks(&parameter.ending)),
                width,
            );
        }
    }

    let files: Vec<_> = approval
        .files_affected
        .iter()
        .map(|file| escape::name(&fold_blanks(file)).into_owned())
        .collect();
    let files = if files.is_empty() { "-".to_owned() } else { files.join(", ") };
    text += &wrap_line(&format!("Files affected: {files}"), width);
    if approval.more_files > 0 {
        text += &format!("  … and {} more\n", approval.more_files);
    }

    text += &format!("Risk level: {}\n\n", risk_text(approval));
    text
}

/// Returns the width of the terminal.
pub(super) fn terminal_columns() -> usize {
    let size = tcgetwinsize(io::stdout()).ok();
    let columns = size.map(|size| usize::from(size.ws_col));
    columns.filter(|columns| *columns > 0).unwrap_or(DEFAULT_COLUMNS)
}

/// Returns the height of the terminal.
pub(super) fn terminal_lines() -> usize {
    let size = tcgetwinsize(io::stdout()).ok();
    let lines = size.map(|size| usize::from(size.ws_row));
    lines.filter(|lines| *lines > 0).unwrap_or(DEFAULT_LINES).max(MIN_LINES)
}

/// Prompt of the question about a call. The specification of `cli_agent` fixes the text.
pub(super) const DECISION_PROMPT: &str = "Approve? (y/n/always): ";

/// Returns whether the daemon omitted a part of the call.
pub(super) fn is_truncated(approval: &Approval) -> bool {
    let mut parameters = approval.parameters.iter();
    approval.more_files > 0 || parameters.any(|parameter| parameter.omitted_bytes > 0)
}

/// Formats the rule that `always` creates, for a terminal of `width` columns.
///
/// The prompt is in [`rule_prompt`]. If `pattern` is empty, the user has to type one.
pub(super) fn format_rule(approval: &Approval, pattern: &str, width: usize) -> String {
    let Approval { tool, workspace, .. } = approval;
    let about = format!("Rule for 30 days: allow {tool} in workspace {workspace}, where");
    if pattern.is_empty() {
        let text = format!(
            "{about} a pattern matches. Type one: jig suggests no pattern for this call, because you could not see what else it allows"
        );
        return wrap_line(&text, width);
    }
    wrap_line(&about, width) + &wrap_line(&format!("  {}", fold_blanks(pattern)), width)
}

/// Returns the prompt of the question about a rule.
pub(super) fn rule_prompt(pattern: &str) -> &'static str {
    if pattern.is_empty() {
        "Pattern (n for no rule): "
    } else {
        "Create this rule? (y/n, or another pattern): "
    }
}

/// Answer of the user to the question about a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RulePromptAnswer {
    /// Create the rule as shown.
    Create,
    /// Show the rule with this pattern, and ask again. A typing mistake is a pattern too, and `m`
    /// matches every call.
    Show(String),
    /// Create no rule.
    No,
}

/// Parses the answer about a rule that was shown with `pattern`.
pub(super) fn parse_rule_answer(pattern: &str, line: &str) -> RulePromptAnswer {
    match parse_answer(line) {
        PromptAnswer::Decided(Decision::Allow) if !pattern.is_empty() => RulePromptAnswer::Create,
        PromptAnswer::Unknown if !line.trim().is_empty() => {
            RulePromptAnswer::Show(line.trim().to_owned())
        }
        PromptAnswer::Decided(_) | PromptAnswer::Unknown | PromptAnswer::ShowAll => {
            RulePromptAnswer::No
        }
    }
}

/// Parses the answer about a call.
pub(super) fn parse_answer(line: &str) -> PromptAnswer {
    match line.trim().to_lowercase().as_str() {
        "y" | "yes" => PromptAnswer::Decided(Decision::Allow),
        "n" | "no" => PromptAnswer::Decided(Decision::Deny),
        "always" => PromptAnswer::Decided(Decision::Always),
        "all" => PromptAnswer::ShowAll,
        _ => PromptAnswer::Unknown,
    }
}

/// Returns the state of an approval as one word.
pub(super) fn state_name(approval: &Approval) -> String {
    let name = approval.state().as_str_name();
    name.trim_start_matches("APPROVAL_STATE_").to_lowercase()
}

fn risk_text(approval: &Approval) -> String {
    match Risk::try_from(approval.risk) {
        Ok(risk) => risk.as_str_name().trim_start_matches("RISK_").to_lowercase(),
        Err(_) => approval.risk.to_string(),
    }
}

/// Wraps a line here instead of on the terminal, so that untrusted text cannot start a line.
fn wrap_line(text: &str, width: usize) -> String {
    let width = width.max(MIN_COLUMNS);
    let mut lines = String::new();
    let mut column = 0;
    for character in escape::text(text).chars() {
        let character = if matches!(character, '\t' | '\r') { ' ' } else { character };
        // Characters beyond ASCII may take two columns.
        let columns = if character.is_ascii() { 1 } else { 2 };
        if character == '\n' || column + columns >= width {
            lines.push('\n');
            lines.push_str(CONTINUATION_INDENT);
            column = CONTINUATION_INDENT.len();
        }
        if character != '\n' {
            lines.push(character);
            column += columns;
        }
    }
    lines.push('\n');
    lines
}

#[cfg(test)]
mod tests {
    use jig::api::v1::ApprovalParameter;

    use super::*;

    fn approval(parameters: &[(&str, &str)]) -> Approval {
        let parameters = parameters.iter().map(|(name, value)| ApprovalParameter {
            name: (*name).to_owned(),
            value: (*value).to_owned(),
            ..ApprovalParameter::default()
        });
        Approval {
            tool: "write_file".to_owned(),
            risk: Risk::SafeWrite.into(),
            parameters: parameters.collect(),
            files_affected: vec!["hello.py".to_owned()],
            ..Approval::default()
        }
    }

    #[test]
    fn question_matches_its_specification() {
        let approval = approval(&[("path", "hello.py"), ("content", "<20 bytes>")]);
        assert_eq!(
            format_question(&approval, 80),
            "Tool: write_file\nParameters:\n  path: hello.py\n  content: <20 bytes>\nFiles affected: hello.py\nRisk level: safe_write\n\n"
        );
    }

    #[test]
    fn omissions_are_visible() {
        let mut approval = approval(&[("command", "begins")]);
        assert!(!is_truncated(&approval));
        approval.parameters[0].omitted_bytes = 7;
        approval.parameters[0].ending = "ends".to_owned();
        approval.more_files = 3;
        assert!(is_truncated(&approval));
        let text = format_question(&approval, 80);
        let expected = "  command: begins\n  … 7 bytes of command are not shown …\n    ends\nFiles affected: hello.py\n  … and 3 more\n";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn rule_is_shown_before_it_is_created() {
        let mut approval = approval(&[("command", "cat")]);
        let show = |pattern: &str| RulePromptAnswer::Show(pattern.to_owned());
        let text = format_rule(&approval, "", 80).replace("\n    ", "");
        assert!(text.contains("suggests no pattern"), "{text}");
        for (line, expected) in
            [("y", RulePromptAnswer::No), ("", RulePromptAnswer::No), ("^x", show("^x"))]
        {
            assert_eq!(parse_rule_answer("", line), expected, "{line}");
        }
        approval.workspace = "w".to_owned();
        assert_eq!(
            format_rule(&approval, "^cat$", 80),
            "Rule for 30 days: allow write_file in workspace w, where\n  ^cat$\n"
        );
        for (line, expected) in [
            ("y\n", RulePromptAnswer::Create),
            ("n", RulePromptAnswer::No),
            ("", RulePromptAnswer::No),
            ("m", show("m")),
            ("^c", show("^c")),
        ] {
            assert_eq!(parse_rule_answer("^cat$", line), expected, "{line}");
        }
    }

    #[test]
    fn parameters_cannot_imitate_headings() {
        let lie = "ls\nFiles affected: none\r\nRisk level: read_only\x1b[1A\u{202e}";
        let long = "x".repeat(200) + "Risk level: read_only";
        let wide = "日本語".repeat(40) + "Tool: stat";
        let mut approval = approval(&[("command", lie), ("cwd", &long), ("stdin", &wide)]);
        approval.files_affected = vec!["a\nRisk level: none, b".to_owned()];
        let text = format_question(&approval, 80);
        for heading in ["Tool: ", "Parameters:", "Files affected: ", "Risk level: "] {
            let count = text.lines().filter(|line| line.starts_with(heading)).count();
            assert_eq!(count, 1, "{heading}: {text}");
        }
        for line in text.lines() {
            let columns: usize = line.chars().map(|c| if c.is_ascii() { 1 } else { 2 }).sum();
            assert!(columns < 80, "{line}");
        }
        assert!(!text.contains(['\x1b', '\u{202e}', '\r']), "{text}");
    }

    #[test]
    fn only_valid_answers_are_decisions() {
        for (line, expected) in [
            ("y\n", PromptAnswer::Decided(Decision::Allow)),
            (" Yes ", PromptAnswer::Decided(Decision::Allow)),
            ("n", PromptAnswer::Decided(Decision::Deny)),
            ("NO\n", PromptAnswer::Decided(Decision::Deny)),
            ("always", PromptAnswer::Decided(Decision::Always)),
            ("", PromptAnswer::Unknown),
            ("yy", PromptAnswer::Unknown),
            ("a", PromptAnswer::Unknown),
        ] {
            assert_eq!(parse_answer(line), expected, "{line:?}");
        }
    }
}
