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

use crate::{failure::Failure, local::Local};

/// Size of a terminal that nobody knows.
const USUAL: TerminalSize = TerminalSize { cols: 80, rows: 24 };
/// How long a stop that was asked for may take to happen. In a process group that nobody could
/// continue it never does.
const STOPPING: Duration = Duration::from_millis(200);

/// The terminal that was handed over, and how it was before. Here, where a panic finds it.
static HANDED_OVER: Mutex<Option<(OwnedFd, Termios)>> = Mutex::new(None);

/// A terminal that was handed over. Dropping it takes it back.
#[derive(Debug)]
pub(super) struct LocalTerminal {
    raw: Termios,
}

impl LocalTerminal {
    /// Hands standard input over, where it is a terminal.
    pub(super) fn hand_over() -> Result<Option<Self>, Failure> {
        Self::hand_over_of(io::stdin())
    }

    fn hand_over_of(stdin: impl AsFd) -> Result<Option<Self>, Failure> {
        if !isatty(&stdin) {
            return Ok(None);
        }
        let fails = |error: io::Error| Local::new("the terminal cannot be handed over", &error);
        let before = tcgetattr(&stdin).map_err(|errno| fails(errno.into()))?;
        let mut raw = before.clone();
        raw.make_raw();
        let terminal = stdin.as_fd().try_clone_to_owned().map_err(fails)?;
        take_back_when_panicking();
        // Known before it is done, so that nothing can come between.
        *handed_over() = Some((terminal, before));
        let handed = Self { raw };
        handed.make_raw().map_err(fails)?;
        Ok(Some(handed))
    }

    /// Suspends this side as Ctrl-Z does a program on a terminal: the terminal is as it was until
    /// somebody continues it.
    pub(super) async fn suspend(&self) -> io::Result<()> {
        let mut continued = signal(SignalKind::from_raw(Signal::CONT.as_raw()))?;
        if let Some((terminal, before)) = &*handed_over() {
            tcsetattr(terminal, OptionalActions::Now, before)?;
        }
        // All that the shell takes for one job, or it would go on waiting for the rest of it.
        kill_current_process_group(Signal::TSTP)?;
        // Not before it was continued: the terminal must not become ours while it is the shell's.
        timeout(STOPPING, continued.recv()).await.ok();
        self.make_raw()
    }

    fn make_raw(&self) -> io::Result<()> {
        match &*handed_over() {
            Some((terminal, _)) => Ok(tcsetattr(terminal, OptionalActions::Now, &self.raw)?),
            None => Ok(()),
        }
    }
}

impl Drop for LocalTerminal {
    fn drop(&mut self) {
        take_back();
    }
}

/// Whether a terminal is handed over.
pub(super) fn is_handed_over() -> bool {
    handed_over().is_some()
}

fn handed_over() -> MutexGuard<'static, Option<(OwnedFd, Termios)>> {
    HANDED_OVER.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take_back() {
    if let Some((terminal, before)) = handed_over().take() {
        // At once: what was written may wait for a terminal that is held up, for ever. One that is
        // gone needs nothing more.
        tcsetattr(&terminal, OptionalActions::Now, &before).ok();
    }
}

/// Has a panic take the terminal back before it is told.
fn take_back_when_panicking() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let tell = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            take_back();
            tell(info);
        }));
    });
}

/// Size of this side's terminal.
pub(super) fn size_of_terminal() -> TerminalSize {
    let sizes = [tcgetwinsize(io::stdin()), tcgetwinsize(io::stdout()), tcgetwinsize(io::stderr())];
    let known = sizes.into_iter().flatten();
    known
        .map(|size| TerminalSize { cols: size.ws_col.into(), rows: size.ws_row.into() })
        .find(|size| size.cols > 0 && size.rows > 0)
        .unwrap_or(USUAL)
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
        let handed = LocalTerminal::hand_over_of(&terminal).unwrap();
        assert!(handed.is_some() && is_raw());
        // By another thread, which drops nothing of ours.
        std::thread::spawn(|| panic!("as is wanted")).join().unwrap_err();
        assert!(!is_raw());
        drop(handed);
    }
}
