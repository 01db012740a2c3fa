//! Output and input of commands. Output is counted, truncated and stored in bounded memory; no
//! command reads the daemon's input.

use std::{fs, time::Instant};

use jig::api::v1::{Outcome, RunRequest};

use crate::support::{
    DAEMON_STDIN, Daemon, MAX_REACTION_TIME, Mark, Setup, argv, compile_in_workspace,
    probe_while_waiting, promptly, shell,
};

/// The daemon stores at most this much of each stream as an artifact.
const MAX_ARTIFACT_BYTES: u64 = 64 << 20;
/// The daemon returns at most this much of each stream unless the request sets another limit.
const DEFAULT_INLINE_BYTES: usize = 102_400;
/// Upper bound on the length of the notice between head and tail.
const MAX_NOTICE_BYTES: usize = 200;
/// The most that the daemon's memory may grow during a run: less than an artifact.
const MAX_GROWTH_BYTES: u64 = 24 << 20;

/// Runs a command and returns how much the daemon's memory grew during the run.
async fn run_measuring_growth(
    daemon: &Daemon,
    request: RunRequest,
) -> (jig::api::v1::RunResponse, u64) {
    daemon.output(shell("echo warm")).await;
    let before = daemon.resident_bytes();
    let mut peak_bytes = before;
    let response = probe_while_waiting(daemon.run(request), || {
        peak_bytes = peak_bytes.max(daemon.resident_bytes());
    })
    .await;
    (response, peak_bytes - before)
}

#[tokio::test]
async fn case_18_endless_output_is_counted_and_truncated_in_flat_memory() {
    let daemon = Setup::new().exclusive().start().await;
    let mark = Mark::new();
    let (response, grown) =
        run_measuring_growth(&daemon, mark.on(RunRequest { timeout_sec: Some(5), ..shell("yes") }))
            .await;
    mark.assert_gone();

    assert_eq!(response.outcome(), Outcome::TimedOut);
    assert!(grown < MAX_GROWTH_BYTES, "the daemon grew by {grown} bytes");
    assert!(response.stdout_bytes > MAX_ARTIFACT_BYTES, "{}", response.stdout_bytes);
    assert!(response.stdout_truncated && !response.stderr_truncated);
    assert_eq!(response.stderr_bytes, 0);
    assert!(
        response.stdout.len() <= DEFAULT_INLINE_BYTES + MAX_NOTICE_BYTES,
        "{}",
        response.stdout.len()
    );
    assert!(response.stdout.len() > DEFAULT_INLINE_BYTES / 2, "{}", response.stdout.len());
    assert!(response.stdout.starts_with("y\ny\n"), "the head is returned");
    assert!(response.stdout.ends_with("y\n") || response.stdout.ends_with("\ny"));

    let notices: Vec<&str> = response.stdout.lines().filter(|line| *line != "y").collect();
    let [notice] = notices.as_slice() else {
        panic!("expected one truncation notice: {notices:?}");
    };
    let returned_bytes = response.stdout.len() - notice.len();
    let numbers = notice.split(|letter: char| !letter.is_ascii_digit());

    // The notice's own line endings may or may not count.
    let is_exact = numbers
        .filter_map(|number| number.parse::<u64>().ok())
        .any(|omitted| (omitted + returned_bytes as u64).abs_diff(response.stdout_bytes) <= 2);
    assert!(is_exact, "{notice}: {returned_bytes} of {} bytes are returned", response.stdout_bytes);
    assert_eq!(response.artifact_error, "");

    let (artifact, size) = daemon.artifact(&response.stdout_path).await;
    assert_eq!((artifact.len() as u64, size), (MAX_ARTIFACT_BYTES, MAX_ARTIFACT_BYTES));
    assert!(artifact.chunks(2).all(|line| line == b"y\n"));

    let (stderr, size) = daemon.artifact(&response.stderr_path).await;
    assert_eq!((stderr.len(), size), (0, 0));
}

#[tokio::test]
async fn case_19_daemon_counts_100_megabytes_without_a_newline() {
    let daemon = Setup::new().exclusive().start().await;
    let (response, grown) =
        run_measuring_growth(&daemon, shell("head -c 100000000 /dev/zero | tr '\\0' x; exit 2"))
            .await;
    assert!(grown < MAX_GROWTH_BYTES, "the daemon grew by {grown} bytes");
    assert_eq!(response.exit_code, Some(2), "{response:.300?}");
    assert_eq!(response.stdout_bytes, 100_000_000);
    assert!(response.stdout_truncated);
    assert!(response.stdout.len() <= DEFAULT_INLINE_BYTES + MAX_NOTICE_BYTES);
    assert!(response.stdout.starts_with("xxxx") && response.stdout.ends_with("xxxx"));

    let (artifact, _) = daemon.artifact(&response.stdout_path).await;
    assert_eq!(artifact.len() as u64, MAX_ARTIFACT_BYTES);
    assert!(artifact.iter().all(|byte| *byte == b'x'));
}

#[tokio::test]
async fn case_20_artifacts_preserve_binary_output() {
    let daemon = Daemon::start().await;
    let bytes = b"text \0 \xff\xfe \xc3( \xed\xa0\x80 \xf0\x9f\x92\n";
    fs::write(daemon.file("bytes"), bytes).unwrap();

    let response = daemon.run(shell("cat bytes; cat bytes >&2")).await;
    assert_eq!(response.stdout, String::from_utf8_lossy(bytes));
    assert_eq!(response.stderr, String::from_utf8_lossy(bytes));
    assert_eq!(response.stdout_bytes, bytes.len() as u64);
    assert!(!response.stdout_truncated && !response.stderr_truncated);

    for path in [&response.stdout_path, &response.stderr_path] {
        assert_eq!(daemon.artifact(path).await.0, bytes);
    }
}

#[tokio::test]
async fn case_20_truncation_does_not_split_characters() {
    let daemon = Daemon::start().await;

    // Characters of one to four bytes, so that some limit splits each of them.
    let text = "aé€🦀".repeat(40);
    fs::write(daemon.file("text"), &text).unwrap();
    for cap in 0..40 {
        let response =
            daemon.run(RunRequest { max_output_bytes: Some(cap), ..argv(&["cat", "text"]) }).await;
        assert!(response.stdout_truncated, "cap {cap}");
        assert!(!response.stdout.contains('\u{fffd}'), "cap {cap}: {}", response.stdout);
        assert_eq!(response.stdout_bytes, text.len() as u64);
        assert_eq!(daemon.artifact(&response.stdout_path).await.0, text.as_bytes());
    }

    for cap in [text.len(), text.len() + 1] {
        let response = daemon
            .run(RunRequest {
                max_output_bytes: Some(u32::try_from(cap).unwrap()),
                ..argv(&["cat", "text"])
            })
            .await;
        assert_eq!(response.stdout, text, "cap {cap}");
        assert!(!response.stdout_truncated, "cap {cap}");
    }
}

#[tokio::test]
async fn case_21_terminal_escapes_are_returned_and_never_logged() {
    for format in ["json", "text"] {
        let daemon = Setup::new().arguments(&["--log", format]).start().await;
        let escapes = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b]52;c;aGk=\x07\r\x08\u{9b}31m";
        fs::write(daemon.file("escapes"), escapes).unwrap();
        let response = daemon.run(argv(&["cat", "escapes"])).await;

        assert_eq!(response.stdout, escapes);

        // Control characters of a request must not reach a terminal through the log.
        let request = argv(&["\x1b[31mno-such\x1b]0;program\x07"]);
        daemon.run_failing(request, "COMMAND_NOT_FOUND").await;

        let request = RunRequest { cwd: Some("\x1b[31mno-such".to_owned()), ..shell("true") };
        daemon.run_failing(request, "DIRECTORY_NOT_FOUND").await;

        let log = daemon.log();
        assert!(!log.contains('\x1b') && !log.contains('\u{9b}'), "{log:?}");
    }
}

#[tokio::test]
async fn case_22_concurrent_output_streams_do_not_block_each_other() {
    let daemon = Setup::new().exclusive().start().await;
    let (response, grown) = run_measuring_growth(
        &daemon,
        shell(
            "i=0; while [ $i -lt 100 ]; do head -c 100000 /dev/zero; head -c 150000 /dev/zero >&2; \
             i=$((i + 1)); done; yes | head -c 10000000 & yes n | head -c 10000000 >&2; wait",
        ),
    )
    .await;

    assert!(grown < MAX_GROWTH_BYTES, "the daemon grew by {grown} bytes");
    assert_eq!(response.exit_code, Some(0), "{response:.300?}");
    assert_eq!(response.stdout_bytes, 20_000_000);
    assert_eq!(response.stderr_bytes, 25_000_000);

    for (path, size, end) in
        [(&response.stdout_path, 20_000_000, b"y\n"), (&response.stderr_path, 25_000_000, b"n\n")]
    {
        let (artifact, artifact_size) = daemon.artifact(path).await;
        assert_eq!((artifact.len(), artifact_size), (size, size as u64));
        assert!(artifact.iter().take(10_000_000).all(|byte| *byte == 0));
        assert!(artifact.ends_with(end));
    }
}

#[tokio::test]
async fn case_23_passed_stdout_does_not_delay_the_response() {
    let daemon = Daemon::start().await;
    let program = compile_in_workspace(&daemon, "pass_stdout");
    let taker = Mark::new();
    let taking = daemon.spawn_run(taker.on(argv(&[&program, "take", "/workspace/socket"])));
    taker.wait_for_processes(1).await;

    let start = Instant::now();
    let giver = Mark::new();
    let response = daemon.run(giver.on(argv(&[&program, "give", "/workspace/socket"]))).await;
    giver.assert_gone();

    assert_eq!(response.exit_code, Some(0), "{response:?}");
    assert!(start.elapsed() < MAX_REACTION_TIME, "{:?}", start.elapsed());
    assert_eq!(taker.processes().len(), 1, "the other run continues");
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");

    taking.abort();
    taker.wait_until_gone().await;
}

#[tokio::test]
async fn case_24_output_pipe_tricks_do_not_affect_the_daemon() {
    // Commands of an unprivileged daemon may open the other end of their pipes; commands of a root
    // daemon may not.
    for setup in [Setup::new(), Setup::new().user(12345)] {
        let daemon = setup.start().await;
        let program = compile_in_workspace(&daemon, "pipe_tricks");
        for _ in 0..3 {
            let run = daemon.run(argv(&[&program]));
            let response = promptly("the daemon responds", run).await;
            assert_eq!(response.exit_code, Some(0), "{response:.300?}");
            assert!(response.stdout.ends_with("the end\n"));
            assert!(response.stdout_bytes <= (8 << 20) + (1 << 16) + 100);
        }

        assert_eq!(daemon.output(shell("echo after")).await, "after\n");
    }
}

#[tokio::test]
async fn case_24_scripts_can_open_their_standard_streams_by_path() {
    for setup in [Setup::new(), Setup::new().user(12345)] {
        let daemon = setup.start().await;
        let response = daemon
            .run(shell("echo out > /dev/stdout; echo err > /dev/stderr; echo in | cat /dev/stdin"))
            .await;
        assert_eq!(response.stdout, "out\nin\n", "{response:?}");
        assert_eq!(response.stderr, "err\n", "{response:?}");

        let with_input =
            RunRequest { stdin: "input\n".into(), ..shell("cat /dev/stdin; cat <&0 > /dev/fd/1") };
        assert_eq!(daemon.output(with_input).await, "input\ninput\n");
    }
}

#[tokio::test]
async fn case_25_command_never_reads_the_daemons_stdin() {
    let daemon = Daemon::start().await;
    let start = Instant::now();
    for command in ["cat", "cat /dev/stdin", "read line; echo \"[$line]\""] {
        let response = daemon.run(shell(command)).await;
        assert!(!response.stdout.contains(DAEMON_STDIN.trim()), "{response:?}");
    }

    assert!(start.elapsed() < MAX_REACTION_TIME, "{:?}", start.elapsed());
    assert_eq!(daemon.output(shell("readlink /proc/self/fd/0")).await, "/dev/null\n");

    let empty = RunRequest { stdin: Vec::new().into(), ..shell("wc -c") };
    assert_eq!(daemon.output(empty).await, "0\n");

    let whole = RunRequest { stdin: vec![b'x'; 8 << 20].into(), ..shell("wc -c; cat | wc -c") };
    assert_eq!(daemon.output(whole).await, "8388608\n0\n");

    // Input that the command does not read is no error.
    let unread = RunRequest { stdin: vec![b'x'; 8 << 20].into(), ..shell("echo done") };
    assert_eq!(daemon.output(unread).await, "done\n");
}
