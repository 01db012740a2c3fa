//! The terminal of this side, while it is another's: keys go through one by one, and nothing of them
//! is taken for a command to this side.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use jig::api::v1::TerminalSize;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

use crate::{failure::Failure, local::Local};

/// Size of a terminal that nobody knows.
const USUAL: TerminalSize = TerminalSize { cols: 80, rows: 24 };

/// A terminal that was handed over. Dropping it takes it back.
#[derive(Debug)]
pub(super) struct LocalTerminal {
    terminal: OwnedFd,
    before: Termios,
}

impl LocalTerminal {
    /// Hands standard input over, where it is a terminal.
    pub(super) fn hand_over() -> Result<Option<Self>, Failure> {
        let stdin = io::stdin();
        if !isatty(&stdin) {
            return Ok(None);
        }
        let fails = |error: io::Error| Local::new("the terminal cannot be handed over", &error);
        let before = tcgetattr(&stdin).map_err(|errno| fails(errno.into()))?;
        let mut raw = before.clone();
        raw.make_raw();
        let terminal = stdin.as_fd().try_clone_to_owned().map_err(fails)?;
        tcsetattr(&terminal, OptionalActions::Drain, &raw).map_err(|errno| fails(errno.into()))?;
        Ok(Some(Self { terminal, before }))
    }
}

impl Drop for LocalTerminal {
    fn drop(&mut self) {
        // One that is gone needs nothing more.
        tcsetattr(&self.terminal, OptionalActions::Drain, &self.before).ok();
    }
}

/// Size of this side's terminal.
pub(super) fn size_of_terminal() -> TerminalSize {
    let sizes = [
        tcgetwinsize(io::stdin()),
        tcgetwinsize(io::stdout()),
        tcgetwinsize(io::stderr()),
    ];
    let known = sizes.into_iter().flatten();
    known
        .map(|size| TerminalSize {
            cols: size.ws_col.into(),
            rows: size.ws_row.into(),
        })
        .find(|size| size.cols > 0 && size.rows > 0)
        .unwrap_or(USUAL)
}
