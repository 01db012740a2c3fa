//! The question about one call.

use jig::api::v1::{Approval, Decision, Risk};

use crate::escape;

/// What stands before lines that go on from the one above: no value can begin a line as ours do.
const INDENT: &str = "    ";
/// Least columns that are made use of.
const NARROW: usize = 40;

/// What somebody has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// A decision.
    Decided(Decision),
    /// Nothing that is known.
    Unknown,
}

/// The question, for a terminal of so many columns, up to what asks for the answer.
pub(super) fn question(approval: &Approval, width: usize) -> String {
    let mut text = line(&format!("Tool: {}", approval.tool), width);
    text += "Parameters:\n";
    for parameter in &approval.parameters {
        text += &line(&format!("  {}: {}", parameter.name, parameter.value), width);
    }
    let files = approval
        .files_affected
        .iter()
        .map(|file| escape::name(file));
    let files = files.collect::<Vec<_>>().join(", ");
    let files = if files.is_empty() { "-" } else { &files };
    text += &line(&format!("Files affected: {files}"), width);
    text += &format!("Risk level: {}\n\n", risk(approval));
    text
}

/// What asks for the answer.
pub(super) const ASK: &str = "Approve? (y/n/always): ";

/// Understands an answer.
pub(super) fn answer(line: &str) -> Answer {
    match line.trim().to_lowercase().as_str() {
        "y" | "yes" => Answer::Decided(Decision::Allow),
        "n" | "no" => Answer::Decided(Decision::Deny),
        "always" => Answer::Decided(Decision::Always),
        _ => Answer::Unknown,
    }
}

/// In which state it is, in a word.
pub(super) fn state(approval: &Approval) -> String {
    let name = approval.state().as_str_name();
    name.trim_start_matches("APPROVAL_STATE_").to_lowercase()
}

fn risk(approval: &Approval) -> String {
    match Risk::try_from(approval.risk) {
        Ok(risk) => risk
            .as_str_name()
            .trim_start_matches("RISK_")
            .to_lowercase(),
        Err(_) => approval.risk.to_string(),
    }
}

/// A line, and those that it needs below it, broken here and not by the terminal: what a caller chose cannot
/// reach the beginning of a line.
fn line(text: &str, width: usize) -> String {
    let width = width.max(NARROW);
    let mut lines = String::new();
    let mut column = 0;
    for character in escape::text(text).chars() {
        let character = if matches!(character, '\t' | '\r') {
            ' '
        } else {
            character
        };
        // Others than these may take two columns.
        let columns = if character.is_ascii() { 1 } else { 2 };
        if character == '\n' || column + columns >= width {
            lines.push('\n');
            lines.push_str(INDENT);
            column = INDENT.len();
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
            question(&approval, 80),
            "Tool: write_file\nParameters:\n  path: hello.py\n  content: <20 bytes>\nFiles affected: hello.py\nRisk level: safe_write\n\n"
        );
    }

    #[test]
    fn what_a_caller_chose_cannot_look_like_ours() {
        let lie = "ls\nFiles affected: none\r\nRisk level: read_only\x1b[1A\u{202e}";
        let long = "x".repeat(200) + "Risk level: read_only";
        let wide = "日本語".repeat(40) + "Tool: stat";
        let mut approval = approval(&[("command", lie), ("cwd", &long), ("stdin", &wide)]);
        approval.files_affected = vec!["a\nRisk level: none, b".to_owned()];
        let text = question(&approval, 80);
        for heading in ["Tool: ", "Parameters:", "Files affected: ", "Risk level: "] {
            let count = text
                .lines()
                .filter(|line| line.starts_with(heading))
                .count();
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
            ("y\n", Answer::Decided(Decision::Allow)),
            (" Yes ", Answer::Decided(Decision::Allow)),
            ("n", Answer::Decided(Decision::Deny)),
            ("NO\n", Answer::Decided(Decision::Deny)),
            ("always", Answer::Decided(Decision::Always)),
            ("", Answer::Unknown),
            ("yy", Answer::Unknown),
            ("a", Answer::Unknown),
        ] {
            assert_eq!(answer(line), expected, "{line:?}");
        }
    }
}
