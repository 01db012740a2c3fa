//! Folds runs of blanks and empty lines in untrusted text, which could hide a part of it.

/// Maximum number of consecutive empty lines that are not folded.
const MAX_EMPTY_LINES: usize = 3;
/// Maximum number of consecutive blanks that are not folded.
const MAX_BLANKS: usize = 40;

/// Replaces long runs with marks: `⟨60 empty lines⟩`, `⟨3000 blanks⟩`. A line of blanks counts as
/// empty.
pub(super) fn fold_blanks(text: &str) -> String {
    let mut folded = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let start = rest.find(is_blank).unwrap_or(rest.len());
        let (visible, after) = rest.split_at(start);
        let end = after.find(|c| !is_blank(c)).unwrap_or(after.len());
        let (run, after) = after.split_at(end);
        folded.push_str(visible);
        push_run(&mut folded, run);
        rest = after;
    }
    folded
}

/// Appends a run of blanks and line endings, folded if it is long.
fn push_run(folded: &mut String, run: &str) {
    let lines: Vec<&str> = run.split('\n').collect();
    // The first part ends the previous line, if there is one. The last part starts the next line.
    let empty_lines = lines.len().saturating_sub(if folded.is_empty() { 1 } else { 2 });
    if empty_lines <= MAX_EMPTY_LINES {
        let lines = lines.into_iter().map(blanks_mark);
        folded.push_str(&lines.collect::<Vec<_>>().join("\n"));
        return;
    }

    if !folded.is_empty() {
        folded.push('\n');
    }
    folded.push_str(&format!("⟨{empty_lines} empty lines⟩\n"));
    folded.push_str(&blanks_mark(lines.last().unwrap_or(&"")));
}

fn blanks_mark(blanks: &str) -> String {
    match blanks.chars().count() {
        count if count > MAX_BLANKS => format!("⟨{count} blanks⟩"),
        _ => blanks.to_owned(),
    }
}

/// Returns whether a character is invisible: white space, characters that fonts draw as such, and
/// characters without width that are not escaped.
fn is_blank(character: char) -> bool {
    character.is_whitespace()
        || matches!(
            character,
            '\u{34f}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2060}'..='\u{206f}'
                | '\u{2800}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{e0100}'..='\u{e01ef}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_runs_are_folded() {
        for (text, expected) in [
            ("", ""),
            ("a b\n\n\n\nc", "a b\n\n\n\nc"),
            ("a\n\n\n\n\nb", "a\n⟨4 empty lines⟩\nb"),
            ("a\n \n\t\n\u{3000}\n\u{2800}\r\n  b", "a\n⟨4 empty lines⟩\n  b"),
            ("\n\n\n\n\na", "⟨5 empty lines⟩\na"),
            ("a\n\n\n\n\n", "a\n⟨4 empty lines⟩\n"),
        ] {
            assert_eq!(fold_blanks(text), expected, "{text:?}");
        }
        let blanks = |count| " ".repeat(count);
        assert_eq!(fold_blanks(&blanks(40)), blanks(40));
        assert_eq!(fold_blanks(&blanks(41)), "⟨41 blanks⟩");
        let joiners = "\u{200d}".repeat(3000);
        assert_eq!(fold_blanks(&format!("a{joiners}b")), "a⟨3000 blanks⟩b");
        let attack =
            format!("echo EVIL{}rm -rf ~{}{}#fine", "\n".repeat(61), blanks(3000), "\n".repeat(61));
        assert_eq!(
            fold_blanks(&attack),
            "echo EVIL\n⟨60 empty lines⟩\nrm -rf ~\n⟨60 empty lines⟩\n#fine"
        );
    }
}
