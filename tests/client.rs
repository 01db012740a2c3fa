//! The command `jig`, with an embedded daemon and with a running one.

use std::{
    fs,
    io::Read as _,
    path::Path,
    process::{Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{
    Daemon, Setup, command_with_default_signals, eventually, open_pseudo_terminal,
};

/// Runs `jig` in `directory`.
fn run_jig(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_jig"))
        .args(arguments)
        .current_dir(directory)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// The output of `jig` on a terminal, without colours and progress.
fn run_jig_on_terminal(directory: &Path, arguments: &[&str]) -> String {
    let (mut screen, terminal) = open_pseudo_terminal();
    let mut child = Command::new(env!("CARGO_BIN_EXE_jig"))
        .args(arguments)
        .current_dir(directory)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null())
        .stdout(terminal.try_clone().unwrap())
        .stderr(terminal)
        .spawn()
        .unwrap();

    // Reading fails once every program has closed the terminal.
    let mut screen_text = Vec::new();
    let _ended = screen.read_to_end(&mut screen_text);
    child.wait().unwrap();
    let mut screen_text = String::from_utf8(screen_text).unwrap();
    for sequence in ["\r", "\x1b[2K", "\x1b[31m", "\x1b[32m", "\x1b[35m", "\x1b[36m", "\x1b[0m"] {
        screen_text = screen_text.replace(sequence, "");
    }

    screen_text
}

fn utf8(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Runs `jig`, which must exit with `code`, and returns its standard output.
fn run_expecting_exit(directory: &Path, arguments: &[&str], code: i32) -> String {
    let output = run_jig(directory, arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
    utf8(&output.stdout).to_owned()
}

#[test]
fn embedded_daemon_lives_as_long_as_the_call() {
    let temp_dir = tempfile::tempdir().unwrap();
    let directory = temp_dir.path();
    let uname = run_expecting_exit(directory, &["run", "uname -a; echo made > file"], 0);
    assert!(uname.starts_with("Linux jig "), "{uname}");
    assert_eq!(std::fs::read_to_string(directory.join("file")).unwrap(), "made\n");
    assert_eq!(run_expecting_exit(directory, &["read", "file"], 0), "made\n");
    assert_eq!(run_expecting_exit(directory, &["ls"], 0), "file\n");
    assert!(run_expecting_exit(directory, &["info"], 0).contains("L3"));
}

#[test]
fn jig_run_exits_like_its_command() {
    let temp_dir = tempfile::tempdir().unwrap();

    let directory = temp_dir.path();

    // One argument is a command line, what follows `--` is a program and its arguments.
    assert_eq!(run_expecting_exit(directory, &["run", "echo $((1 + 1))"], 0), "2\n");
    assert_eq!(
        run_expecting_exit(directory, &["run", "--", "echo", "$((1 + 1))"], 0),
        "$((1 + 1))\n"
    );

    run_expecting_exit(directory, &["run", "exit 7"], 7);
    run_expecting_exit(directory, &["run", "kill -SEGV $$"], 128 + 11);
    run_expecting_exit(directory, &["run", "--timeout", "1", "sleep 100"], 124);
    let output = run_jig(directory, &["run", "--", "no-such-program"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(utf8(&output.stderr).contains("COMMAND_NOT_FOUND"), "{output:?}");

    let output = run_jig(directory, &["run", "echo out; echo err >&2"]);
    assert_eq!(
        (utf8(&output.stdout), utf8(&output.stderr)),
        (
            "out\n",
            "jig: no running daemon serves this directory: starting one for this call\nerr\n"
        )
    );
}

#[tokio::test]
async fn address_option_selects_the_daemon() {
    let daemon = Setup::new().listen_tcp().start().await;
    let unix = format!("unix:{}", daemon.socket().display());
    let tcp = format!("127.0.0.1:{}", daemon.port());
    let empty_directory = tempfile::tempdir().unwrap();

    for address in [&unix, &tcp] {
        let directory = empty_directory.path();
        let with_address =
            |arguments: &[&'static str]| [&["--address", address], arguments].concat();
        assert_eq!(
            run_expecting_exit(directory, &with_address(&["run", "pwd"]), 0),
            "/workspace\n"
        );

        run_expecting_exit(directory, &with_address(&["health"]), 0);
        run_expecting_exit(directory, &with_address(&["health", "jig.v1.ToolService"]), 0);
        let json =
            run_expecting_exit(directory, &with_address(&["--json", "run", "echo hi; exit 3"]), 3);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["outcome"], "OUTCOME_EXITED", "{json}");
        assert_eq!(json["exit_code"], 3, "{json}");
        assert_eq!(json["stdout"], "hi\n", "{json}");

        let path = json["stdout_path"].as_str().unwrap();
        let read = ["--address", address, "artifact", path];
        assert_eq!(run_expecting_exit(directory, &read, 0), "hi\n");
    }
}

#[tokio::test]
async fn signal_ends_jig_while_its_output_is_unread() {
    let daemon = Daemon::start().await;
    fs::write(daemon.file("big"), ("x".repeat(999) + "\n").repeat(1000)).unwrap();
    let address = format!("unix:{}", daemon.socket().display());
    let with_address = ["--address", &address];

    for (connection, workspace) in [(&with_address[..], Path::new("/")), (&[], &daemon.workspace())]
    {
        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
            for arguments in
                [&["--json", "read", "big"][..], &["run", "--max-output", "2000000", "cat big >&2"]]
            {
                let mut child = command_with_default_signals(env!("CARGO_BIN_EXE_jig"))
                    .args([connection, arguments].concat())
                    .current_dir(workspace)
                    .env_clear()
                    .stdin(Stdio::null())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap();
                let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());

                // `jig` has started to print, and the pipe is too small for the rest.
                let mut byte = [0];
                match arguments[0] {
                    // The output of the command, after the messages of jig.
                    "run" => {
                        while byte != *b"x" {
                            stderr.as_mut().unwrap().read_exact(&mut byte).unwrap();
                        }
                    }
                    _ => stdout.as_mut().unwrap().read_exact(&mut byte).unwrap(),
                }

                kill_process(Pid::from_child(&child), signal).unwrap();
                let mut status = None;
                eventually("the signal ends jig", async || {
                    status = child.try_wait().unwrap();
                    status.is_some()
                })
                .await;

                let ended = status.unwrap().code();
                assert_eq!(ended, Some(code), "{signal:?} {arguments:?}");
            }
        }
    }
}

#[test]
fn cli_errors_name_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    for (arguments, code, expected) in [
        (&["--address", "unix:/nowhere/jig.sock", "run", "true"][..], 125, "jig serve"),
        (&["--address", "nonsense", "health"], 1, "nonsense"),
        (&["--address", "nonsense", "ls"], 64, "nonsense"),
        (&["--address", "nonsense", "search", "x"], 2, "nonsense"),
        (&["--address", "nonsense", "run", "true"], 125, "nonsense"),
        (&["--session", "a\nb", "--address", "[::1]:1", "ls"], 64, "ASCII"),
        (&["run"], 125, "no command given"),
        (&["no-such-command"], 64, "no-such-command"),
        (&["serve", "--listen", "0.0.0.0:1"], 78, "loopback"),
        (&["serve", "--no-such-flag"], 64, "--no-such-flag"),
    ] {
        let output = run_jig(directory.path(), arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        assert!(utf8(&output.stderr).contains(expected), "{arguments:?}: {output:?}");
    }
}

#[tokio::test]
async fn bench_prints_its_ratios_beside_a_bare_process() {
    let _turn = Daemon::start().await;
    let directory = tempfile::tempdir().unwrap();

    let arguments = "bench run --count 40 --clients 2 --stream 8 --starts 2 --sleeping 20 --workspaces 3 --sequence 40";
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let report = run_expecting_exit(directory.path(), &arguments, 0);

    for part in [
        "bare posix_spawn",
        "jig run, sandboxed",
        "p50",
        "p99",
        "per s",
        "isolation level of jig: L3",
        "go-judge",
        "cat, streamed to one client",
        "each of 20 sleeping runs",
        "mounts before and after 40 runs",
        "start to SERVING",
        "workspace: creation to first command's answer, p99",
    ] {
        assert!(report.contains(part), "{part} in {report}");
    }
}

#[test]
fn terminal_output_escapes_control_characters() {
    const NAME: &str = "e\x1b[5mBLINK\n\u{9b}7m";
    const SHOWN: &str = r#""e\033[5mBLINK\n\302\2337m""#;

    let temp_dir = tempfile::tempdir().unwrap();
    let directory = temp_dir.path();
    fs::create_dir(directory.join("w")).unwrap();
    let directory = directory.join("w");
    fs::write(directory.join(NAME), "needle \x1b]0;title\x07\n").unwrap();
    let line = r"needle \033]0;title\a";

    for (arguments, shown) in [
        (&["ls"][..], format!("{SHOWN}\n")),
        (&["ls", "-l"], format!(" {SHOWN}\n")),
        (&["stat", NAME], format!("{SHOWN}\ntype    file\n")),
        (&["search", "needle"], format!("{SHOWN}:1:1:{line}\n")),
        (&["edit", NAME, "--old", "needle", "--new", "n", "--dry-run"], format!("-{line}\n")),
        (&["write", NAME, "--text", "needle"], format!("wrote {SHOWN} (6 bytes)\n")),
        (&["cp", "-n", &format!(":{NAME}"), "../out"], format!(":{}", &SHOWN[1..])),
        (&["mv", "none", &format!("{NAME}/x")], "\\u{1b}".to_owned()),
        (&["ls", "d", "\x1b[5m\u{9b}5m"], "'\\302\\2335m'".to_owned()),
        (&["mkdir", "d/\x1b[5m"], "created \"d/\\033[5m\"\n".to_owned()),
    ] {
        let output = run_jig_on_terminal(&directory, arguments);
        assert!(output.contains(&shown), "{arguments:?}: {output}");
        let is_control = |character: char| character.is_control() && character != '\n';
        assert!(!output.contains(is_control), "{arguments:?}: {output:?}");
    }

    // On a terminal, long files are shown in part.
    let lines = "x\n".repeat(12_000);
    fs::write(directory.join("long"), &lines).unwrap();
    let screen_text = run_jig_on_terminal(&directory, &["read", "long"]);
    assert!(screen_text.contains("2000 of 12000 lines in the middle are omitted"));
    assert!(run_expecting_exit(&directory, &["read", "long"], 0) == lines);

    fs::remove_file(directory.join("long")).unwrap();

    // In a pipe, names are not escaped.
    assert_eq!(run_expecting_exit(&directory, &["ls"], 0), format!("{NAME}\n"));
    assert_eq!(
        run_expecting_exit(&directory, &["search", "needle"], 0),
        format!("{NAME}:1:1:needle\n")
    );
}

#[test]
fn request_id_needs_one_call_of_a_running_daemon() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("d")).unwrap();
    let with_address = ["--address", "unix:nowhere", "--request-id", "id"];

    for arguments in [
        &["run", "--request-id", "id", "true"][..],
        &[&with_address[..], &["cp", "-r", "d", ":d"]].concat(),
        &[&with_address[..], &["rules", "rm", "a", "b"]].concat(),
    ] {
        let output = run_jig(directory.path(), arguments);
        let stderr = utf8(&output.stderr);
        assert!(!output.status.success(), "{output:?}");
        assert!(stderr.contains("--request-id cannot be given here"), "{stderr}");
    }
}

#[test]
fn completions_and_manual_pages_cover_the_arguments() {
    let temp_dir = tempfile::tempdir().unwrap();

    let directory = temp_dir.path();
    for shell in ["bash", "zsh", "fish"] {
        let script = run_expecting_exit(directory, &["completions", shell], 0);
        assert!(script.contains("approvals"), "{shell}: {script}");
    }

    let page = run_expecting_exit(directory, &["man"], 0);
    assert!(page.contains(".TH jig 1"), "{page}");

    run_expecting_exit(directory, &["man", "share/man1"], 0);
    let run = fs::read_to_string(directory.join("share/man1/jig-run.1")).unwrap();
    assert!(run.contains("minimum"), "{run}");
    let daemon = fs::read_to_string(directory.join("share/man1/jigd.1")).unwrap();
    assert!(daemon.contains(r"\-\-minimum\-level"), "{daemon}");
}
