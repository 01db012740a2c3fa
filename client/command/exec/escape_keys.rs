//! Parses escape keys on a raw terminal: `~.` and others at the start of a line, as in ssh(1).

/// Text that `~?` prints.
pub(super) const ESCAPE_HELP: &str = "\
~.   detach from the command
~^Z  suspend jig
~?   this list
~~   a tilde
(only at the start of a line)";

/// Parser state: the position in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EscapeParser {
    /// At the start of a line.
    LineStart,
    /// After a tilde at the start of a line. The tilde is held back.
    Tilde,
    /// Elsewhere in a line.
    Line,
}

/// Command to jig itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EscapeCommand {
    /// Detach from the process. The keys after it are ignored.
    Detach,
    /// Suspend jig.
    Suspend,
    /// Print the list of escape keys.
    Help,
    /// Cancel a command that has not started. A running command gets the key like any other.
    CancelStart,
}

/// Result of parsing keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ParsedKeys {
    /// Bytes for the command.
    pub(super) bytes: Vec<u8>,
    /// Commands to jig itself.
    pub(super) commands: Vec<EscapeCommand>,
}

impl EscapeParser {
    /// Parses typed keys. `~~` at the start of a line is a tilde.
    pub(super) fn parse(&mut self, typed: &[u8]) -> ParsedKeys {
        let mut parsed = ParsedKeys::default();
        for byte in typed {
            if *byte == CTRL_C {
                parsed.commands.push(EscapeCommand::CancelStart);
            }

            let command = match byte {
                b'.' => Some(EscapeCommand::Detach),
                b'?' => Some(EscapeCommand::Help),
                &CTRL_Z => Some(EscapeCommand::Suspend),
                _ => None,
            };

            *self = match (*self, byte, command) {
                (Self::LineStart, b'~', _) => Self::Tilde,
                (Self::Tilde, _, Some(command)) => {
                    parsed.commands.push(command);
                    if command == EscapeCommand::Detach {
                        return parsed;
                    }
                    Self::LineStart
                }
                (before, byte, _) => {
                    if before == Self::Tilde && *byte != b'~' {
                        parsed.bytes.push(b'~');
                    }
                    parsed.bytes.push(*byte);
                    match byte {
                        b'\r' | b'\n' => Self::LineStart,
                        _ => Self::Line,
                    }
                }
            };
        }
        parsed
    }
}

const CTRL_C: u8 = 0x03;
const CTRL_Z: u8 = 0x1a;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_count_only_at_the_start_of_a_line() {
        use EscapeCommand::{CancelStart, Detach, Help, Suspend};
        for (typed, expected, commands) in [
            ("ls\r", "ls\r", &[][..]),
            ("~.", "", &[Detach]),
            ("ls\r~.x", "ls\r", &[Detach]),
            ("a~.", "a~.", &[]),
            ("~~.\r", "~.\r", &[]),
            ("~x", "~x", &[]),
            ("~\r~.", "~\r", &[Detach]),
            ("~?~.", "", &[Help, Detach]),
            ("a\r~\x1ab", "a\rb", &[Suspend]),
            ("a\x1a", "a\x1a", &[]),
            ("\x03~.", "\x03~.", &[CancelStart]),
        ] {
            let mut keys = EscapeParser::LineStart;
            let mut by_byte = ParsedKeys::default();
            // The result must not depend on how the keys are split.
            for byte in typed.as_bytes() {
                let parsed = keys.parse(&[*byte]);
                by_byte.bytes.extend(parsed.bytes);
                by_byte.commands.extend(parsed.commands);
                if by_byte.commands.contains(&Detach) {
                    break;
                }
            }
            let at_once = EscapeParser::LineStart.parse(typed.as_bytes());
            assert_eq!(at_once, by_byte, "{typed:?}");
            assert_eq!(at_once.bytes, expected.as_bytes(), "{typed:?}");
            assert_eq!(at_once.commands, commands, "{typed:?}");
        }
    }
}
