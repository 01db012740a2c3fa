//! Puts the terminal into raw mode, in which keys reach the command one by one, and restores it.

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

/// Assumed size of an unknown terminal.
const DEFAULT_SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };
/// Maximum wait for the stop signal to take effect. It has no effect on an orphaned process group.
const MAX_STOP_TIME: Duration = Duration::from_millis(200);

/// The raw terminal and its original attributes. Static, so that the panic hook can restore it.
static SAVED_TERMINAL: Mutex<Option<(OwnedFd, Termios)>> = Mutex::new(None);

/// A terminal in raw mode. Dropping it restores the original mode.
#[derive(Debug)]
pub(super) struct RawTerminal {
    raw: Termios,
}

impl RawTerminal {
    /// Puts standard input into raw mode, if it is a terminal.
    pub(super) fn enter() -> Result<Option<Self>, CliError> {
        Self::enter_on(io::stdin())
    }

    fn enter_on(stdin: impl AsFd) -> Result<Option<Self>, CliError> {
        if !isatty(&stdin) {
            return Ok(None);
        }

        let to_error =
            |error: io::Error| LocalError::new("cannot set the terminal to raw mode", &error);
        let original = tcgetattr(&stdin).map_err(|errno| to_error(errno.into()))?;
        let mut raw = original.clone();
        raw.make_raw();
        let terminal = stdin.as_fd().try_clone_to_owned().map_err(to_error)?;

        restore_on_panic();
        // Saved before the change, so that a panic in between restores it too.
        *saved_terminal() = Some((terminal, original));
        let raw_terminal = Self { raw };
        raw_terminal.make_raw().map_err(to_error)?;
        Ok(Some(raw_terminal))
    }

    /// Suspends jig like Ctrl-Z on a normal terminal. Restores the terminal until jig continues.
    pub(super) async fn suspend(&self) -> io::Result<()> {
        let mut continued = signal(SignalKind::from_raw(Signal::CONT.as_raw()))?;
        if let Some((terminal, original)) = &*saved_terminal() {
            tcsetattr(terminal, OptionalActions::Now, original)?;
        }

        // Stops the whole process group, because the shell waits for all processes of a job.
        kill_current_process_group(Signal::TSTP)?;

        // Not before SIGCONT: until then the terminal belongs to the shell.
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

/// Returns whether the terminal is in raw mode.
pub(super) fn is_terminal_raw() -> bool {
    saved_terminal().is_some()
}

fn saved_terminal() -> MutexGuard<'static, Option<(OwnedFd, Termios)>> {
    SAVED_TERMINAL.lock().unwrap_or_else(PoisonError::into_inner)
}

fn restore() {
    if let Some((terminal, original)) = saved_terminal().take() {
        // `Now`, because pending output may block for ever on a stopped terminal. Ignores errors: a
        // terminal that has gone needs no restoring.
        tcsetattr(&terminal, OptionalActions::Now, &original).ok();
    }
}

/// Installs a panic hook that restores the terminal before the panic is printed.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print_panic = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            print_panic(info);
        }));
    });
}

/// Returns the size of this terminal.
pub(super) fn terminal_size() -> TerminalSize {
    let sizes = [tcgetwinsize(io::stdin()), tcgetwinsize(io::stdout()), tcgetwinsize(io::stderr())];
    sizes
        .into_iter()
        .flatten()
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
    fn panic_restores_the_terminal() {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let name = ptsname(&screen, Vec::new()).unwrap();
        let terminal = openat(CWD, name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let is_raw = || {
            let modes = tcgetattr(&terminal).unwrap().local_modes;
            !modes.contains(LocalModes::ICANON)
        };
        let raw_terminal = RawTerminal::enter_on(&terminal).unwrap();
        assert!(raw_terminal.is_some() && is_raw());
        // In another thread, which does not drop the guard.
        std::thread::spawn(|| panic!("as is wanted")).join().unwrap_err();
        assert!(!is_raw());
        drop(raw_terminal);
    }
}
