//! Commands on a terminal.

use jig::api::v1::{Outcome, ResizeTerminalRequest, StartRequest, TerminalSize};

use crate::support::{
    Daemon, Mark, Refusal, argv, compile_in_workspace, eventually, shell, start_request,
    status_field,
};

fn with_terminal(request: StartRequest) -> StartRequest {
    StartRequest { pty: Some(TerminalSize { cols: 90, rows: 30 }), ..request }
}

async fn resize(daemon: &Daemon, id: &str, cols: u32, rows: u32) -> Result<(), Refusal> {
    let request = ResizeTerminalRequest { process_id: id.to_owned(), cols, rows };
    let response = daemon.processes().resize_terminal(request).await;
    response.map(drop).map_err(|status| Refusal::from_status(&status))
}

#[tokio::test]
async fn command_has_its_own_terminal() {
    let daemon = Daemon::start().await;
    let script = "tty; stty size; echo $TERM; test -t 0 && test -t 1 && test -t 2 && echo all; \
        echo to the terminal > /dev/tty; stty -a | grep -o ' iutf8'; ls /dev/pts";
    let mut watch = daemon.start_process(with_terminal(start_request(shell(script)))).await;
    let exited = watch.wait_for_exit().await;
    assert_eq!(
        watch.stdout_text(),
        "/dev/pts/0\r\n30 90\r\nxterm-256color\r\nall\r\nto the terminal\r\n iutf8\r\n0  ptmx\r\n"
    );
    assert_eq!((exited.exit_code, exited.stderr_bytes), (Some(0), 0));
}

#[tokio::test]
async fn two_runs_use_the_same_path_for_different_terminals() {
    let daemon = Daemon::start().await;
    let request = || with_terminal(start_request(shell("tty; read word; echo got $word")));
    let (mut first, mut second) =
        (daemon.start_process(request()).await, daemon.start_process(request()).await);
    for watch in [&mut first, &mut second] {
        watch.read_until("/dev/pts/0").await;
    }

    daemon.send_stdin(&first.id, b"first\n").await.unwrap();
    first.wait_for_exit().await;
    assert!(first.stdout_text().ends_with("got first\r\n"), "{}", first.stdout_text());
    assert!(!second.stdout_text().contains("first"));

    daemon.send_stdin(&second.id, b"second\n").await.unwrap();
    second.wait_for_exit().await;
    assert!(second.stdout_text().ends_with("got second\r\n"));
}

#[tokio::test]
async fn control_keys_act_as_on_a_terminal() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let mut watch = daemon
        .start_process(mark.on_start(with_terminal(start_request(argv(&["bash", "--norc", "-i"])))))
        .await;
    let id = watch.id.clone();

    // Ctrl-C ends the foreground process but not the shell.
    daemon.send_stdin(&id, b"sleep 1000\n").await.unwrap();
    mark.wait_for_processes(2).await;
    let sleep_runs = async || {
        let is_sleep = |pid: &i32| status_field(*pid, "Name").is_some_and(|name| name == "sleep");
        mark.processes().iter().any(is_sleep)
    };
    eventually("the foreground process runs", sleep_runs).await;
    daemon.send_stdin(&id, &[3]).await.unwrap();
    daemon.send_stdin(&id, b"echo status $?\n").await.unwrap();
    watch.read_until("status 130\r\n").await;

    // Ctrl-Z stops the process; the shell's job control continues it.
    daemon.send_stdin(&id, b"sleep 1001\n").await.unwrap();
    eventually("the foreground process runs", sleep_runs).await;
    daemon.send_stdin(&id, &[26]).await.unwrap();
    watch.read_until("Stopped").await;
    daemon.send_stdin(&id, b"bg; jobs; kill %1; wait; echo jobs d''one\n").await.unwrap();
    watch.read_until("jobs done\r\n").await;

    // Ctrl-U and backspace edit the line.
    daemon.send_stdin(&id, b"echo wrong\x15echo rigg\x7fht; PS1='pro''mpt> '\n").await.unwrap();
    watch.read_until("right\r\n").await;

    // Ctrl-D ends the shell once the prompt is back. Before that, bash has not set its modes of the
    // terminal again, and loses the key.
    watch.read_until("prompt> ").await;
    daemon.close_stdin(&id).await.unwrap();
    assert_eq!(watch.wait_for_exit().await.outcome(), Outcome::Exited);

    mark.assert_gone();
}

#[tokio::test]
async fn resize_reaches_the_command() {
    let daemon = Daemon::start().await;
    let script = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done";
    let mut watch = daemon.start_process(with_terminal(start_request(shell(script)))).await;
    watch.read_until("ready\r\n").await;
    resize(&daemon, &watch.id, 132, 43).await.unwrap();
    watch.read_until("43 132\r\n").await;
    let refusal = resize(&daemon, &watch.id, 0, 70_000).await.unwrap_err();
    assert_eq!(refusal.invalid_fields(), ["cols", "rows"]);

    daemon.send_signal(&watch.id, "KILL").await.unwrap();
    watch.wait_for_exit().await;
    let refusal = resize(&daemon, &watch.id, 1, 1).await.unwrap_err();
    assert_eq!(refusal.reason, "PROCESS_ENDED");

    let plain = daemon.start_process(start_request(argv(&["cat"]))).await;
    let refusal = resize(&daemon, &plain.id, 1, 1).await.unwrap_err();
    assert_eq!(refusal.invalid_fields(), ["process_id"]);
}

#[tokio::test]
async fn terminal_output_is_complete_at_exit() {
    let daemon = Daemon::start().await;
    for round in 0..20 {
        let request = with_terminal(start_request(shell("seq 20000; exec 2>&-; printf end")));
        let mut watch = daemon.start_process(request).await;
        let exited = watch.wait_for_exit().await;
        let expected = (1..=20_000).map(|number| format!("{number}\r\n"));
        let expected: String = expected.chain(["end".to_owned()]).collect();
        assert!(watch.stdout_text() == expected, "round {round}: {} bytes", watch.stdout.len());
        assert_eq!(exited.stdout_bytes, expected.len() as u64);
    }
}

#[tokio::test]
async fn start_stdin_is_typed_into_the_terminal_and_ended() {
    let daemon = Daemon::start().await;
    for typed in ["one line\n", "no line end"] {
        let request = StartRequest {
            stdin: typed.as_bytes().to_vec().into(),
            ..with_terminal(start_request(shell("stty -echo; echo ready; cat | wc -c")))
        };
        let mut watch = daemon.start_process(request).await;
        assert_eq!(watch.wait_for_exit().await.exit_code, Some(0));
        let count = format!("\n{}\r\n", typed.len());
        assert!(watch.stdout_text().ends_with(&count), "{typed:?}: {:?}", watch.stdout_text());
    }
}

#[tokio::test]
async fn programs_can_open_terminals_in_runs_without_one() {
    let daemon = Daemon::start().await;
    let output = daemon.output(shell("script -qec 'tty; echo inside' /dev/null < /dev/null")).await;
    assert_eq!(output, "/dev/pts/0\r\ninside\r\n");

    let python = "import os, pty; m, s = pty.openpty(); print(os.ttyname(s)); \
        os.write(m, b'x\\n'); print(os.read(s, 9))";
    let output = daemon.output(argv(&["/usr/bin/python3", "-c", python])).await;
    assert_eq!(output, "/dev/pts/0\nb'x\\n'\n");

    // A run can open 64 terminals.
    let open_all = "import os, pty\nn = 0\ntry:\n  while True: pty.openpty(); n += 1\nexcept OSError as e: print(n, e.strerror)";
    let output = daemon.output(argv(&["/usr/bin/python3", "-c", open_all])).await;
    assert!(output.starts_with("64 "), "{output}");
}

#[tokio::test]
async fn case_68_command_cannot_inject_input_into_its_terminal() {
    let daemon = Daemon::start().await;
    let program = compile_in_workspace(&daemon, "terminal");
    let mut watch = daemon.start_process(with_terminal(start_request(argv(&[&program])))).await;
    watch.wait_for_exit().await;

    let text = watch.stdout_text();
    for request in ["TIOCSTI", "TIOCLINUX"] {
        for file in 0..3 {
            assert!(text.contains(&format!("{request} on {file}: EPERM\r\n")), "{text}");
            assert!(text.contains(&format!("{request} on {file}, more bits: EPERM\r\n")), "{text}");
        }
    }

    assert!(text.contains("open /dev/tty: ok\r\n"), "{text}");
}
