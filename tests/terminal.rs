//! The command `jig` with and without a terminal: colours and progress appear only on terminals.

use std::{
    fs::{self, File},
    io::Read as _,
    path::Path,
    process::{Command, Stdio},
    thread,
};

use rustix::{
    io::Errno,
    termios::{Winsize, tcsetwinsize},
};

use crate::support::{Daemon, open_pseudo_terminal};

const TERMINAL_COLUMNS: u16 = 80;

/// The stream of a command that is a terminal. The others are pipes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TerminalStream {
    Output,
    Errors,
    None,
}

/// Runs `jig`, which must succeed. Returns what it wrote to both streams, with the line endings of
/// the terminal.
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
        let (screen, program_end) = open_pseudo_terminal();
        let size = Winsize { ws_row: 24, ws_col: TERMINAL_COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&program_end, size).unwrap();
        match terminal {
            TerminalStream::Output => command.stdout(program_end),
            TerminalStream::Errors | TerminalStream::None => command.stderr(program_end),
        };
        thread::spawn(move || read_screen(screen))
    });

    let child = command.spawn().unwrap();

    // The command holds the terminal too. Reading ends once every holder has closed it.
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

fn read_screen(mut screen: File) -> Vec<u8> {
    let mut screen_text = Vec::new();
    let ended = screen.read_to_end(&mut screen_text).unwrap_err();
    // The error of Linux once every program has closed the terminal.
    assert_eq!(Errno::from_io_error(&ended), Some(Errno::IO));
    screen_text
}

#[tokio::test]
async fn colours_need_a_terminal_and_respect_no_color() {
    let daemon = Daemon::start().await;
    let directory = tempfile::tempdir().unwrap();
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
        let jig = |arguments: &[&str]| {
            run_jig(&daemon, directory.path(), arguments, terminal, environment)
        };
        let diff = jig(&edit);
        assert!(diff.contains("-two") && diff.contains("+2"), "{diff:?}");
        assert_eq!(diff.contains("\x1b[31m-two\x1b[0m"), coloured, "{diff:?}");
        let found = jig(&["search", "two"]);
        assert_eq!(found.contains("\x1b[35mf\x1b[0m"), coloured, "{found:?}");
        for written in [diff, found] {
            assert_eq!(written.contains('\x1b'), coloured, "{written:?}");
        }
        let json = jig(&["--json", "search", "two"]);
        assert!(!json.contains('\x1b'), "JSON output has no colours: {json:?}");
    }
}

#[tokio::test]
async fn progress_is_shown_only_on_a_terminal() {
    let daemon = Daemon::start().await;
    let directory = tempfile::tempdir().unwrap();

    let jig = |arguments: &[&str], terminal, environment: &[(&str, &str)]| {
        run_jig(&daemon, directory.path(), arguments, terminal, environment)
    };

    // Of a name that is too long for the line, only the end is shown.
    let large = "long-".repeat(20) + "large";
    let large = large.as_str();
    let remote_path = format!(":{large}");
    let remote_path = remote_path.as_str();

    for arguments in [["cp", large, remote_path], ["cp", remote_path, "back"]] {
        // Progress is drawn only if a transfer takes some time.
        let mut mebibytes = 32;
        let screen_text = loop {
            for path in [directory.path().join(large), daemon.file(large)] {
                File::create(path).unwrap().set_len(mebibytes << 20).unwrap();
            }
            let screen_text = jig(&arguments, TerminalStream::Errors, &[]);
            if screen_text.contains('%') || mebibytes >= 2048 {
                break screen_text;
            }
            mebibytes *= 2;
        };
        assert!(
            screen_text.contains("-large [") && screen_text.contains("MiB/s)"),
            "{screen_text:?}"
        );

        for line in screen_text.split(['\r', '\n']).filter(|line| line.contains('%')) {
            let width = line.trim_end_matches("\x1b[2K").trim_end().chars().count();
            assert!(
                width < usize::from(TERMINAL_COLUMNS),
                "the progress line would wrap: {line:?}"
            );
        }
        assert!(
            screen_text.trim_end().ends_with("\r\x1b[2K"),
            "the progress line is removed: {screen_text:?}"
        );
    }

    let to_daemon = ["cp", large, remote_path];
    let dumb: &[(&str, &str)] = &[("TERM", "dumb")];
    for (arguments, terminal, environment) in [
        (&to_daemon[..], TerminalStream::None, &[][..]),
        (&to_daemon, TerminalStream::Output, &[]),
        (&to_daemon, TerminalStream::Errors, dumb),
        (&["--json", "cp", large, remote_path], TerminalStream::Errors, &[]),
    ] {
        let screen_text = jig(arguments, terminal, environment);
        assert!(!screen_text.contains(['\x1b', '%']), "{arguments:?}: {screen_text:?}");
    }
}
