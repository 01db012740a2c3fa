//! The terminal of this side, while it is another's: keys go through one by one, and nothing of them
//! is taken for a command to this side.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    panic,
    sync::{Mutex, MutexGuard, Once, PoisonError},
    time::Duration,
};

use jig::api::v1::TerminalSize;
use rustix::{
    process::{Signal, kill_current_process_group},
    termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::timeout,
};

use crate::{cli_error::CliError, local_error::LocalError};

/// Size of a terminal that nobody knows.
const DEFAULT_SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };
/// How long a stop that was asked for may take to happen. In a process group that nobody could
/// continue it never does.
const MAX_STOP_TIME: Duration = Duration::from_millis(200);

/// The terminal that was handed over, and how it was before. Here, where a panic finds it.
static SAVED_TERMINAL: Mutex<Option<(OwnedFd, Termios)>> = Mutex::new(None);

/// A terminal that was handed over. Dropping it takes it back.
#[derive(Debug)]
pub(super) struct RawTerminal {
    raw: Termios,
}

impl RawTerminal {
    /// Hands standard input over, where it is a terminal.
    pub(super) fn enter() -> Result<Option<Self>, CliError> {
        Self::enter_on(io::stdin())
    }

    fn enter_on(stdin: impl AsFd) -> Result<Option<Self>, CliError> {
        if !isatty(&stdin) {
            return Ok(None);
        }
        let fails =
            |error: io::Error| LocalError::new("the terminal cannot be handed over", &error);
        let before = tcgetattr(&stdin).map_err(|errno| fails(errno.into()))?;
        let mut raw = before.clone();
        raw.make_raw();
        let terminal = stdin.as_fd().try_clone_to_owned().map_err(fails)?;
        restore_on_panic();
        // Known before it is done, so that nothing can come between.
        *saved_terminal() = Some((terminal, before));
        let handed = Self { raw };
        handed.make_raw().map_err(fails)?;
        Ok(Some(handed))
    }

    /// Suspends this side as Ctrl-Z does a program on a terminal: the terminal is as it was until
    /// somebody continues it.
    pub(super) async fn suspend(&self) -> io::Result<()> {
        let mut continued = signal(SignalKind::from_raw(Signal::CONT.as_raw()))?;
        if let Some((terminal, before)) = &*saved_terminal() {
            tcsetattr(terminal, OptionalActions::Now, before)?;
        }
        // All that the shell takes for one job, or it would go on waiting for the rest of it.
        kill_current_process_group(Signal::TSTP)?;
        // Not before it was continued: the terminal must not become ours while it is the shell's.
        timeout(MAX_STOP_TIME, continued.recv()).await.ok();
        self.make_raw()
    }

    fn make_raw(&self) -> io::Result<()> {
        match &*saved_terminal() {
            Some((terminal, _)) => Ok(tcsetattr(terminal, OptionalActions::Now, &self.raw)?),
            None => Ok(()),
        }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Whether a terminal is handed over.
pub(super) fn is_terminal_raw() -> bool {
    saved_terminal().is_some()
}

fn saved_terminal() -> MutexGuard<'static, Option<(OwnedFd, Termios)>> {
    SAVED_TERMINAL.lock().unwrap_or_else(PoisonError::into_inner)
}

fn restore() {
    if let Some((terminal, before)) = saved_terminal().take() {
        // At once: what was written may wait for a terminal that is held up, for ever. One that is
        // gone needs nothing more.
        tcsetattr(&terminal, OptionalActions::Now, &before).ok();
    }
}

/// Has a panic take the terminal back before it is told.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let tell = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            tell(info);
        }));
    });
}

/// Size of this side's terminal.
pub(super) fn terminal_size() -> TerminalSize {
    let sizes = [tcgetwinsize(io::stdin()), tcgetwinsize(io::stdout()), tcgetwinsize(io::stderr())];
    let known = sizes.into_iter().flatten();
    known
        .map(|size| TerminalSize { cols: size.ws_col.into(), rows: size.ws_row.into() })
        .find(|size| size.cols > 0 && size.rows > 0)
        .unwrap_or(DEFAULT_SIZE)
}

#[cfg(test)]
mod tests {
    use rustix::{
        fs::{CWD, Mode, OFlags, openat},
        pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
        termios::LocalModes,
    };

    use super::*;

    #[test]
    fn a_panic_takes_the_terminal_back() {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let name = ptsname(&screen, Vec::new()).unwrap();
        let terminal = openat(CWD, name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let is_raw = || {
            let modes = tcgetattr(&terminal).unwrap().local_modes;
            !modes.contains(LocalModes::ICANON)
        };
        let handed = RawTerminal::enter_on(&terminal).unwrap();
        assert!(handed.is_some() && is_raw());
        // By another thread, which drops nothing of ours.
        std::thread::spawn(|| panic!("as is wanted")).join().unwrap_err();
        assert!(!is_raw());
        drop(handed);
    }
}
