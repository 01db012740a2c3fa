//! What is typed on a terminal that was handed over, and is meant for this side: `~.` and its like at
//! the beginning of a line, as in ssh(1).

/// What `~?` tells.
pub(super) const ESCAPE_HELP: &str = "\
~.   leave the command
~^Z  suspend jig
~?   this list
~~   a tilde
(only at the beginning of a line)";

/// Where in a line the keys are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EscapeParser {
    /// At its beginning.
    LineStart,
    /// Behind a tilde at its beginning, which was held back.
    Tilde,
    /// Further on.
    Line,
}

/// What is for this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EscapeCommand {
    /// Leave. Nothing behind it is looked at.
    Leave,
    /// Suspend this side.
    Suspend,
    /// Tell what there is.
    Help,
    /// Give up what has not started yet; to a command that has, it is a key as any other.
    CancelStart,
}

/// What keys come to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ParsedKeys {
    /// What goes to the command.
    pub(super) bytes: Vec<u8>,
    /// What is for this side.
    pub(super) commands: Vec<EscapeCommand>,
}

impl EscapeParser {
    /// Takes what was typed. `~~` at the beginning of a line is a tilde.
    pub(super) fn parse(&mut self, typed: &[u8]) -> ParsedKeys {
        let mut passed = ParsedKeys::default();
        for byte in typed {
            if *byte == CTRL_C {
                passed.commands.push(EscapeCommand::CancelStart);
            }
            let command = match byte {
                b'.' => Some(EscapeCommand::Leave),
                b'?' => Some(EscapeCommand::Help),
                &CTRL_Z => Some(EscapeCommand::Suspend),
                _ => None,
            };
            *self = match (*self, byte, command) {
                (Self::LineStart, b'~', _) => Self::Tilde,
                (Self::Tilde, _, Some(command)) => {
                    passed.commands.push(command);
                    if command == EscapeCommand::Leave {
                        return passed;
                    }
                    Self::LineStart
                }
                (before, byte, _) => {
                    if before == Self::Tilde && *byte != b'~' {
                        passed.bytes.push(b'~');
                    }
                    passed.bytes.push(*byte);
                    match byte {
                        b'\r' | b'\n' => Self::LineStart,
                        _ => Self::Line,
                    }
                }
            };
        }
        passed
    }
}

const CTRL_C: u8 = 0x03;
const CTRL_Z: u8 = 0x1a;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_this_side_is_at_the_beginning_of_a_line_only() {
        use EscapeCommand::{CancelStart, Help, Leave, Suspend};
        for (typed, expected, commands) in [
            ("ls\r", "ls\r", &[][..]),
            ("~.", "", &[Leave]),
            ("ls\r~.x", "ls\r", &[Leave]),
            ("a~.", "a~.", &[]),
            ("~~.\r", "~.\r", &[]),
            ("~x", "~x", &[]),
            ("~\r~.", "~\r", &[Leave]),
            ("~?~.", "", &[Help, Leave]),
            ("a\r~\x1ab", "a\rb", &[Suspend]),
            ("a\x1a", "a\x1a", &[]),
            ("\x03~.", "\x03~.", &[CancelStart]),
        ] {
            let mut keys = EscapeParser::LineStart;
            let mut whole = ParsedKeys::default();
            // However the keys are cut into parts.
            for byte in typed.as_bytes() {
                let passed = keys.parse(&[*byte]);
                whole.bytes.extend(passed.bytes);
                whole.commands.extend(passed.commands);
                if whole.commands.contains(&Leave) {
                    break;
                }
            }
            let at_once = EscapeParser::LineStart.parse(typed.as_bytes());
            assert_eq!(at_once, whole, "{typed:?}");
            assert_eq!(at_once.bytes, expected.as_bytes(), "{typed:?}");
            assert_eq!(at_once.commands, commands, "{typed:?}");
        }
    }
}
