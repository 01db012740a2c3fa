//! A user of `jig` on a pseudoterminal.

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

use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::support::{
    Daemon, command_with_default_signals, eventually, kill_and_reap, open_pseudo_terminal,
};

/// A user at a terminal on which `jig` or another program runs.
#[derive(Debug)]
pub(super) struct TerminalUser {
    controller: File,
    /// The side of the terminal on which the program runs.
    pub(super) terminal: File,
    output: Arc<Mutex<Vec<u8>>>,
    /// Set when the terminal's window is closed.
    closed: Arc<AtomicBool>,
    /// The program on the terminal.
    pub(super) jig: Child,
}

impl TerminalUser {
    /// Runs `jig` with the terminal as its controlling terminal.
    pub(super) fn run_jig(daemon: &Daemon, arguments: &[&str]) -> Self {
        let command_line = [&[env!("CARGO_BIN_EXE_jig")], arguments].concat();
        Self::run_program(daemon, &command_line)
    }

    /// Runs a program with the terminal as its controlling terminal.
    pub(super) fn run_program(daemon: &Daemon, command_line: &[&str]) -> Self {
        let (controller, terminal) = open_pseudo_terminal();
        set_size(&terminal, 100, 40);

        let jig = command_with_default_signals("setsid")
            .args(["--ctty", "--wait"])
            .args(command_line)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("TERM", "vt100")
            .env("JIG_ADDRESS", format!("unix:{}", daemon.socket().display()))
            .stdin(Stdio::from(terminal.try_clone().unwrap()))
            .stdout(Stdio::from(terminal.try_clone().unwrap()))
            .stderr(Stdio::from(terminal.try_clone().unwrap()))
            .spawn()
            .unwrap();

        let output = Arc::new(Mutex::new(Vec::new()));
        let closed = Arc::new(AtomicBool::new(false));
        let (mut reader, screen) = (controller.try_clone().unwrap(), Arc::clone(&output));
        let reader_closed = Arc::clone(&closed);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(bytes @ 1..) = reader.read(&mut buffer) {
                screen.lock().unwrap().extend_from_slice(&buffer[..bytes]);
                if reader_closed.load(Ordering::Relaxed) {
                    break;
                }
            }
        });

        Self { controller, terminal, output, closed, jig }
    }

    /// Closes the window. The program must respond to a key, which makes the reader thread notice.
    pub(super) fn close_terminal(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
        self.type_keys("\r");
        self.controller = File::open("/dev/null").unwrap();
    }

    /// Types keys.
    pub(super) fn type_keys(&mut self, keys: &str) {
        self.controller.write_all(keys.as_bytes()).unwrap();
    }

    /// The output so far.
    pub(super) fn screen_text(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().unwrap()).into_owned()
    }

    /// Waits until the output contains `text`.
    pub(super) async fn wait_for_text(&self, text: &str) {
        eventually(&format!("{text:?} is displayed"), async || self.screen_text().contains(text))
            .await;
    }

    /// Waits until `jig` has exited and returns its exit code. The terminal must have left raw
    /// mode.
    pub(super) async fn wait_for_exit(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("jig exits", async || {
            status = self.jig.try_wait().unwrap();
            status.is_some()
        })
        .await;
        assert!(!self.is_raw_mode(), "the terminal is still in raw mode");

        status.unwrap().code()
    }

    /// Whether the terminal is in raw mode: keys pass unprocessed.
    pub(super) fn is_raw_mode(&self) -> bool {
        let modes = tcgetattr(&self.terminal).unwrap().local_modes;
        !modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    /// Waits until the terminal enters or leaves raw mode.
    pub(super) async fn wait_for_raw_mode(&self, expected: bool) {
        eventually("the terminal enters or leaves raw mode", async || {
            self.is_raw_mode() == expected
        })
        .await;
    }
}

impl Drop for TerminalUser {
    fn drop(&mut self) {
        // The program may have exited already.
        kill_and_reap(&mut self.jig);
    }
}

/// Resizes the window.
pub(super) fn set_size(terminal: &File, columns: u16, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}
