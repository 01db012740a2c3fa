//! Output style: escapes and colours on a terminal, plain data in pipes and files.
//!
//! `NO_COLOR` and `CLICOLOR` control colours (no-color.org, bixense.com/clicolors). On a terminal,
//! untrusted text is escaped.

use std::{
    borrow::Cow,
    io::{self, IsTerminal as _},
};

use anstream::{AutoStream, ColorChoice};
pub(crate) use anstyle::AnsiColor;

use crate::escape;

/// Style of standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style {
    escaped: bool,
    coloured: bool,
}

impl Style {
    /// Returns the style of this process's standard output.
    pub(crate) fn of_stdout() -> Self {
        let stdout = io::stdout();
        let coloured = AutoStream::choice(&stdout) != ColorChoice::Never;
        Self { escaped: coloured || stdout.is_terminal(), coloured }
    }

    /// Returns the style of a pipe or file.
    #[cfg(test)]
    pub(crate) fn plain() -> Self {
        Self { escaped: false, coloured: false }
    }

    /// Escapes an untrusted name.
    pub(crate) fn escape_name(self, name: &str) -> Cow<'_, str> {
        if self.escaped { escape::name(name) } else { Cow::Borrowed(name) }
    }

    /// Escapes untrusted lines.
    pub(crate) fn escape_text(self, text: &str) -> Cow<'_, str> {
        if self.escaped { escape::text(text) } else { Cow::Borrowed(text) }
    }

    /// Colours a text, which must be trusted or escaped.
    pub(crate) fn paint(self, colour: AnsiColor, text: &str) -> String {
        if !self.coloured {
            return text.to_owned();
        }
        let style = colour.on_default();
        format!("{style}{text}{style:#}")
    }

    /// Escapes a unified diff and colours its lines by their kind.
    pub(crate) fn paint_diff(self, diff: &str) -> String {
        let diff = self.escape_text(diff);
        if !self.coloured {
            return diff.into_owned();
        }

        let mut painted = String::new();
        for line in diff.split_inclusive('\n') {
            let text = line.trim_end_matches('\n');
            let colour = match text.as_bytes().first() {
                Some(b'+') => AnsiColor::Green,
                Some(b'-') => AnsiColor::Red,
                Some(b'@') => AnsiColor::Cyan,
                _ => {
                    painted.push_str(line);
                    continue;
                }
            };
            painted.push_str(&self.paint(colour, text));
            painted.push_str(&line[text.len()..]);
        }
        painted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_get_colours_and_escapes() {
        let diff = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\x1b[5m\n c";
        assert_eq!(Style::plain().paint_diff(diff), diff);
        let terminal = Style { escaped: true, coloured: true };
        let painted = terminal.paint_diff(diff);
        assert!(painted.contains("\x1b[31m-a\x1b[0m\n\x1b[32m+b\\033[5m\x1b[0m\n c"));
        assert_eq!(terminal.escape_name("a\n"), "\"a\\n\"");
    }
}
