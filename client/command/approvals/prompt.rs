//! The question about one call.

use std::io;

use jig::api::v1::{Approval, Decision, Risk};
use rustix::termios::tcgetwinsize;

use super::fold_blanks::fold_blanks;
use crate::escape;

/// What stands before lines that go on from the one above: no value can begin a line as ours do.
const CONTINUATION_INDENT: &str = "    ";
/// Columns of a terminal that does not say.
const DEFAULT_COLUMNS: usize = 80;
/// Least columns that are made use of.
const MIN_COLUMNS: usize = 40;
/// Lines of a terminal that does not say.
const DEFAULT_LINES: usize = 24;
/// Least lines that are made use of.
const MIN_LINES: usize = 8;

/// What somebody has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PromptAnswer {
    /// A decision.
    Decided(Decision),
    /// Show what is not shown.
    ShowAll,
    /// Nothing that is known.
    Unknown,
}

/// The question, for a terminal of so many columns, up to what asks for the answer.
pub(super) fn format_question(approval: &Approval, width: usize) -> String {
    // As the agent knows it.
    let said = approval.said_as.rsplit('/').next();
    let tool = said.filter(|tool| !tool.is_empty());
    let tool = tool.unwrap_or(&approval.tool);
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
    let files =
        approval.files_affected.iter().map(|file| escape::name(&fold_blanks(file)).into_owned());
    let files = files.collect::<Vec<_>>().join(", ");
    let files = if files.is_empty() { "-" } else { &files };
    text += &wrap_line(&format!("Files affected: {files}"), width);
    if approval.more_files > 0 {
        text += &format!("  … and {} more\n", approval.more_files);
    }
    text += &format!("Risk level: {}\n\n", risk_text(approval));
    text
}

/// Columns of the terminal.
pub(super) fn terminal_columns() -> usize {
    let size = tcgetwinsize(io::stdout()).ok();
    let columns = size.map(|size| usize::from(size.ws_col));
    columns.filter(|columns| *columns > 0).unwrap_or(DEFAULT_COLUMNS)
}

/// Lines of the terminal.
pub(super) fn terminal_lines() -> usize {
    let size = tcgetwinsize(io::stdout()).ok();
    let lines = size.map(|size| usize::from(size.ws_row));
    lines.filter(|lines| *lines > 0).unwrap_or(DEFAULT_LINES).max(MIN_LINES)
}

/// What asks for the answer.
pub(super) const DECISION_PROMPT: &str = "Approve? (y/n/always): ";

/// Whether there is more of a call than is shown.
pub(super) fn is_truncated(approval: &Approval) -> bool {
    let mut parameters = approval.parameters.iter();
    approval.more_files > 0 || parameters.any(|parameter| parameter.omitted_bytes > 0)
}

/// The rule that `always` makes of a call with this pattern, for a terminal of so many columns, up to what
/// asks for the answer. Without a pattern, that one is to be typed.
pub(super) fn format_rule(approval: &Approval, pattern: &str, width: usize) -> String {
    let Approval { tool, workspace, .. } = approval;
    let about = format!("Rule for 30 days: allow {tool} in workspace {workspace}, where");
    match pattern {
        "" => wrap_line(
            &format!(
                "{about} a pattern matches: none is made of a call like this one, as no one would see what else it lets in"
            ),
            width,
        ),
        pattern => {
            wrap_line(&about, width) + &wrap_line(&format!("  {}", fold_blanks(pattern)), width)
        }
    }
}

/// What asks for the answer about a rule.
pub(super) fn rule_prompt(pattern: &str) -> &'static str {
    match pattern.is_empty() {
        true => "Pattern (n for no rule): ",
        false => "Make this rule? (y/n, or another pattern): ",
    }
}

/// What somebody has answered about a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RulePromptAnswer {
    /// Make it as it was shown.
    Make,
    /// Show it with this pattern, and ask again: a slip of a finger is a pattern, too, and `m` is in every
    /// call.
    Show(String),
    /// Make none.
    No,
}

/// Understands an answer about the rule that `always` makes, which was shown with this pattern.
pub(super) fn parse_rule_answer(pattern: &str, line: &str) -> RulePromptAnswer {
    match parse_answer(line) {
        PromptAnswer::Decided(Decision::Allow) if !pattern.is_empty() => RulePromptAnswer::Make,
        PromptAnswer::Unknown if !line.trim().is_empty() => {
            RulePromptAnswer::Show(line.trim().to_owned())
        }
        PromptAnswer::Decided(_) | PromptAnswer::Unknown | PromptAnswer::ShowAll => {
            RulePromptAnswer::No
        }
    }
}

/// Understands an answer.
pub(super) fn parse_answer(line: &str) -> PromptAnswer {
    match line.trim().to_lowercase().as_str() {
        "y" | "yes" => PromptAnswer::Decided(Decision::Allow),
        "n" | "no" => PromptAnswer::Decided(Decision::Deny),
        "always" => PromptAnswer::Decided(Decision::Always),
        "all" => PromptAnswer::ShowAll,
        _ => PromptAnswer::Unknown,
    }
}

/// In which state it is, in a word.
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

/// A line, and those that it needs below it, broken here and not by the terminal: what a caller chose cannot
/// reach the beginning of a line.
fn wrap_line(text: &str, width: usize) -> String {
    let width = width.max(MIN_COLUMNS);
    let mut lines = String::new();
    let mut column = 0;
    for character in escape::text(text).chars() {
        let character = if matches!(character, '\t' | '\r') { ' ' } else { character };
        // Others than these may take two columns.
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
    fn the_question_is_as_the_document_has_it() {
        let approval = approval(&[("path", "hello.py"), ("content", "<20 bytes>")]);
        assert_eq!(
            format_question(&approval, 80),
            "Tool: write_file\nParameters:\n  path: hello.py\n  content: <20 bytes>\nFiles affected: hello.py\nRisk level: safe_write\n\n"
        );
    }

    #[test]
    fn what_is_not_shown_is_told() {
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
    fn a_rule_is_shown_before_it_is_made() {
        let mut approval = approval(&[("command", "cat")]);
        let show = |pattern: &str| RulePromptAnswer::Show(pattern.to_owned());
        let text = format_rule(&approval, "", 80).replace("\n    ", "");
        assert!(text.contains("none is made"), "{text}");
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
            ("y\n", RulePromptAnswer::Make),
            ("n", RulePromptAnswer::No),
            ("", RulePromptAnswer::No),
            ("m", show("m")),
            ("^c", show("^c")),
        ] {
            assert_eq!(parse_rule_answer("^cat$", line), expected, "{line}");
        }
    }

    #[test]
    fn what_a_caller_chose_cannot_look_like_ours() {
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
    fn only_what_was_asked_for_is_an_answer() {
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
