//! The command `jig` on a terminal, and where there is none: colours and progress are for people.

use std::{
    fs::{self, File},
    io::Read as _,
    os::fd::OwnedFd,
    path::Path,
    process::{Command, Stdio},
    thread,
};

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    io::Errno,
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use crate::support::Daemon;

/// Columns of the terminals.
const TERMINAL_COLUMNS: u16 = 80;

/// Which of its streams a command has on a terminal; the others go into a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TerminalStream {
    Output,
    Errors,
    None,
}

/// Runs `jig`, which must succeed; answers what it wrote to both streams, that on the terminal with
/// what the terminal makes of line endings.
fn run_jig(
    daemon: &Daemon,
    directory: &Path,
    arguments: &[&str],
    terminal: TerminalStream,
    environment: &[(&str, &str)],
) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_jig"));
    command
        .args(arguments)
        .current_dir(directory)
        .env_clear()
        .env("JIG_ADDRESS", format!("unix:{}", daemon.socket().display()))
        .env("TERM", "xterm")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let screen = (terminal != TerminalStream::None).then(|| {
        let (screen, behind) = open_terminal();
        match terminal {
            TerminalStream::Output => command.stdout(behind),
            TerminalStream::Errors | TerminalStream::None => command.stderr(behind),
        };
        thread::spawn(move || read_screen(screen))
    });
    let child = command.spawn().unwrap();
    // It holds the terminal too, and what is on it ends when nobody does.
    drop(command);
    let output = child.wait_with_output().unwrap();
    let mut written = [output.stdout, output.stderr].concat();
    if let Some(screen) = screen {
        written.extend(screen.join().unwrap());
    }
    let written = String::from_utf8(written).unwrap();
    assert!(output.status.success(), "{arguments:?}: {written}");
    written
}

/// A terminal: what is seen on it, and what programs have for it.
fn open_terminal() -> (OwnedFd, OwnedFd) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let screen = openpt(flags).unwrap();
    grantpt(&screen).unwrap();
    unlockpt(&screen).unwrap();
    let name = ptsname(&screen, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let behind = openat(CWD, name, flags, Mode::empty()).unwrap();
    let size = Winsize { ws_row: 24, ws_col: TERMINAL_COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&behind, size).unwrap();
    (screen, behind)
}

fn read_screen(screen: OwnedFd) -> Vec<u8> {
    let mut seen = Vec::new();
    let ended = File::from(screen).read_to_end(&mut seen).unwrap_err();
    // What Linux says when nobody has the terminal open any more.
    assert_eq!(Errno::from_io_error(&ended), Some(Errno::IO));
    seen
}

#[tokio::test]
async fn colours_need_a_terminal_and_respect_no_color() {
    let daemon = Daemon::start().await;
    let here = tempfile::tempdir().unwrap();
    fs::write(daemon.file("f"), "one\ntwo\n").unwrap();
    let edit = ["edit", "f", "--old", "two", "--new", "2", "--dry-run"];
    for (terminal, environment, coloured) in [
        (TerminalStream::Output, &[][..], true),
        (TerminalStream::Output, &[("NO_COLOR", "")], true),
        (TerminalStream::Output, &[("NO_COLOR", "1")], false),
        (TerminalStream::Output, &[("CLICOLOR", "0")], false),
        (TerminalStream::Output, &[("TERM", "dumb")], false),
        (TerminalStream::None, &[("CLICOLOR_FORCE", "1")], true),
        (TerminalStream::None, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], false),
        (TerminalStream::Errors, &[], false),
        (TerminalStream::None, &[], false),
    ] {
        let jig =
            |arguments: &[&str]| run_jig(&daemon, here.path(), arguments, terminal, environment);
        let diff = jig(&edit);
        assert!(diff.contains("-two") && diff.contains("+2"), "{diff:?}");
        assert_eq!(diff.contains("\x1b[31m-two\x1b[0m"), coloured, "{diff:?}");
        let found = jig(&["search", "two"]);
        assert_eq!(found.contains("\x1b[35mf\x1b[0m"), coloured, "{found:?}");
        for written in [diff, found] {
            assert_eq!(written.contains('\x1b'), coloured, "{written:?}");
        }
        let json = jig(&["--json", "search", "two"]);
        assert!(!json.contains('\x1b'), "programs read it: {json:?}");
    }
}

#[tokio::test]
async fn progress_is_shown_only_on_a_terminal() {
    let daemon = Daemon::start().await;
    let here = tempfile::tempdir().unwrap();
    let jig = |arguments: &[&str], terminal, environment: &[(&str, &str)]| {
        run_jig(&daemon, here.path(), arguments, terminal, environment)
    };
    // Of a name that is too long for the line, the end is shown.
    let large = "long-".repeat(20) + "large";
    let large = large.as_str();
    let there = format!(":{large}");
    let there = there.as_str();
    for arguments in [["cp", large, there], ["cp", there, "back"]] {
        // It is drawn where a transfer takes longer than a moment.
        let mut mebibytes = 32;
        let seen = loop {
            for path in [here.path().join(large), daemon.file(large)] {
                File::create(path).unwrap().set_len(mebibytes << 20).unwrap();
            }
            let seen = jig(&arguments, TerminalStream::Errors, &[]);
            if seen.contains('%') || mebibytes >= 2048 {
                break seen;
            }
            mebibytes *= 2;
        };
        assert!(seen.contains("-large [") && seen.contains("MiB/s)"), "{seen:?}");
        for line in seen.split(['\r', '\n']).filter(|line| line.contains('%')) {
            let width = line.trim_end_matches("\x1b[2K").trim_end().chars().count();
            assert!(width < usize::from(TERMINAL_COLUMNS), "it would wrap: {line:?}");
        }
        assert!(seen.trim_end().ends_with("\r\x1b[2K"), "it is removed: {seen:?}");
    }
    let to_daemon = ["cp", large, there];
    let dumb: &[(&str, &str)] = &[("TERM", "dumb")];
    for (arguments, terminal, environment) in [
        (&to_daemon[..], TerminalStream::None, &[][..]),
        (&to_daemon, TerminalStream::Output, &[]),
        (&to_daemon, TerminalStream::Errors, dumb),
        (&["--json", "cp", large, there], TerminalStream::Errors, &[]),
    ] {
        let seen = jig(arguments, terminal, environment);
        assert!(!seen.contains(['\x1b', '%']), "{arguments:?}: {seen:?}");
    }
}
