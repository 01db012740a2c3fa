//! Somebody who uses `jig` on a terminal.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    process::{Child, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};

use crate::support::{Daemon, eventually, minds_signals};

/// Somebody who sits at a terminal on which `jig` runs.
#[derive(Debug)]
pub(super) struct Person {
    screen: File,
    /// The side of the terminal on which `jig` runs.
    pub(super) behind: File,
    seen: Arc<Mutex<Vec<u8>>>,
    /// Whether nobody looks at it any more.
    gone: Arc<AtomicBool>,
    /// What runs there.
    pub(super) jig: Child,
}

impl Person {
    /// Runs `jig` on a terminal that controls it.
    pub(super) fn runs(daemon: &Daemon, arguments: &[&str]) -> Self {
        let words = [&[env!("CARGO_BIN_EXE_jig")], arguments].concat();
        Self::runs_program(daemon, &words)
    }

    /// Runs a program on a terminal that controls it.
    pub(super) fn runs_program(daemon: &Daemon, words: &[&str]) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let screen = openpt(flags).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let name = ptsname(&screen, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let behind = File::from(openat(CWD, name, flags, Mode::empty()).unwrap());
        let screen = File::from(screen);
        set_size(&behind, 100, 40);
        let jig = minds_signals("setsid")
            .args(["--ctty", "--wait"])
            .args(words)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("TERM", "vt100")
            .env("JIG_ADDRESS", format!("unix:{}", daemon.socket().display()))
            .stdin(Stdio::from(behind.try_clone().unwrap()))
            .stdout(Stdio::from(behind.try_clone().unwrap()))
            .stderr(Stdio::from(behind.try_clone().unwrap()))
            .spawn()
            .unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let gone = Arc::new(AtomicBool::new(false));
        let (mut reads, into) = (screen.try_clone().unwrap(), Arc::clone(&seen));
        let leaves = Arc::clone(&gone);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(bytes @ 1..) = reads.read(&mut buffer) {
                into.lock().unwrap().extend_from_slice(&buffer[..bytes]);
                if leaves.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        Self { screen, behind, seen, gone, jig }
    }

    /// Closes the window. What runs there must answer a key, so that this is noticed.
    pub(super) fn goes_away(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
        self.types("\r");
        self.screen = File::open("/dev/null").unwrap();
    }

    /// Presses keys.
    pub(super) fn types(&mut self, keys: &str) {
        self.screen.write_all(keys.as_bytes()).unwrap();
    }

    /// What was seen so far.
    pub(super) fn screen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    /// Waits until something is seen.
    pub(super) async fn sees(&self, text: &str) {
        eventually(&format!("{text:?} is seen"), async || self.screen().contains(text)).await;
    }

    /// Waits until `jig` has ended; answers its exit code. The terminal must be as it was.
    pub(super) async fn ends(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("jig ends", async || {
            status = self.jig.try_wait().unwrap();
            status.is_some()
        })
        .await;
        assert!(!self.is_handed_over(), "the terminal is as it was");
        status.unwrap().code()
    }

    /// Whether keys go through one by one.
    pub(super) fn is_handed_over(&self) -> bool {
        let modes = tcgetattr(&self.behind).unwrap().local_modes;
        !modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    /// Waits until keys go through one by one, or no more.
    pub(super) async fn hands_over(&self, wanted: bool) {
        eventually("the terminal is handed over, or taken back", async || {
            self.is_handed_over() == wanted
        })
        .await;
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        // It may have ended.
        let _ended = self.jig.kill();
        let _reaped = self.jig.wait();
    }
}

/// Makes the window larger or smaller.
pub(super) fn set_size(terminal: &File, columns: u16, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}
