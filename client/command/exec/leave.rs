//! `~.` at the beginning of a line: the way out of a terminal that was handed over, as in ssh(1).

/// Where in a line the keys are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    /// At its beginning.
    LineStart,
    /// Behind a tilde at its beginning, which was held back.
    Tilde,
    /// Further on.
    Line,
}

/// What keys come to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Passed {
    /// What goes to the command.
    pub(super) bytes: Vec<u8>,
    /// Whether they ended with the way out.
    pub(super) leaves: bool,
}

impl Keys {
    /// Takes what was typed. `~~` at the beginning of a line is a tilde.
    pub(super) fn pass(&mut self, typed: &[u8]) -> Passed {
        let mut bytes = Vec::with_capacity(typed.len() + 1);
        for byte in typed {
            *self = match (*self, byte) {
                (Self::LineStart, b'~') => Self::Tilde,
                (Self::Tilde, b'.') => {
                    return Passed {
                        bytes,
                        leaves: true,
                    };
                }
                (before, byte) => {
                    if before == Self::Tilde && *byte != b'~' {
                        bytes.push(b'~');
                    }
                    bytes.push(*byte);
                    match byte {
                        b'\r' | b'\n' => Self::LineStart,
                        _ => Self::Line,
                    }
                }
            };
        }
        Passed {
            bytes,
            leaves: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_out_is_at_the_beginning_of_a_line_only() {
        for (typed, expected, leaves) in [
            ("ls\r", "ls\r", false),
            ("~.", "", true),
            ("ls\r~.x", "ls\r", true),
            ("a~.", "a~.", false),
            ("~~.\r", "~.\r", false),
            ("~x", "~x", false),
            ("~\r~.", "~\r", true),
        ] {
            let mut keys = Keys::LineStart;
            let mut whole = (Vec::new(), false);
            // However the keys are cut into parts.
            for byte in typed.as_bytes() {
                let passed = keys.pass(&[*byte]);
                whole.0.extend(passed.bytes);
                whole.1 = passed.leaves;
                if passed.leaves {
                    break;
                }
            }
            let at_once = Keys::LineStart.pass(typed.as_bytes());
            assert_eq!(
                (&at_once.bytes, at_once.leaves),
                (&whole.0, whole.1),
                "{typed:?}"
            );
            assert_eq!(at_once.bytes, expected.as_bytes(), "{typed:?}");
            assert_eq!(at_once.leaves, leaves, "{typed:?}");
        }
    }
}
