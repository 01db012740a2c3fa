//! What a command writes, and what it finds to read: nothing is lost, nothing grows without bound,
//! nothing is the daemon's.

use std::{fs, time::Instant};

use jig::api::v1::{Outcome, RunRequest};

use crate::support::{
    DAEMON_INPUT, Daemon, Mark, PROMPT, Setup, argv, compile, promptly, shell, while_waiting,
};

/// Bytes that are kept of each stream.
const ARTIFACT_CAP: u64 = 64 << 20;
/// Bytes of each stream that are answered when the request does not say.
const INLINE_CAP: usize = 102_400;
/// Room for the line between head and tail.
const NOTICE: usize = 200;
/// Most memory that the daemon may need for a run, whatever it writes: less than its artifact.
const FLAT: u64 = 24 << 20;

/// Runs a command and answers how much the daemon grew meanwhile.
async fn run_and_weigh(daemon: &Daemon, request: RunRequest) -> (jig::api::v1::RunResponse, u64) {
    daemon.output(shell("echo warm")).await;
    let before = daemon.resident_bytes();
    let mut most = before;
    let response = while_waiting(daemon.run(request), || {
        most = most.max(daemon.resident_bytes());
    })
    .await;
    (response, most - before)
}

#[tokio::test]
async fn case_18_yes_without_end_is_counted_kept_to_the_cap_and_leaves_memory_flat() {
    let daemon = Setup::new().alone().start().await;
    let mark = Mark::new();
    let (response, grown) =
        run_and_weigh(&daemon, mark.on(RunRequest { timeout_sec: Some(5), ..shell("yes") })).await;
    mark.assert_gone();
    assert_eq!(response.outcome(), Outcome::TimedOut);
    assert!(grown < FLAT, "the daemon grew by {grown} bytes");
    assert!(response.stdout_bytes > ARTIFACT_CAP, "{}", response.stdout_bytes);
    assert!(response.stdout_truncated && !response.stderr_truncated);
    assert_eq!(response.stderr_bytes, 0);
    assert!(response.stdout.len() <= INLINE_CAP + NOTICE, "{}", response.stdout.len());
    assert!(response.stdout.len() > INLINE_CAP / 2, "{}", response.stdout.len());
    assert!(response.stdout.starts_with("y\ny\n"), "the head is there");
    assert!(response.stdout.ends_with("y\n") || response.stdout.ends_with("\ny"));
    let notices: Vec<&str> = response.stdout.lines().filter(|line| *line != "y").collect();
    let [notice] = notices.as_slice() else {
        panic!("one line says what was left out: {notices:?}");
    };
    let kept = response.stdout.len() - notice.len();
    let numbers = notice.split(|letter: char| !letter.is_ascii_digit());
    // Give or take the notice's own line endings.
    let says_it = numbers
        .filter_map(|number| number.parse::<u64>().ok())
        .any(|left_out| (left_out + kept as u64).abs_diff(response.stdout_bytes) <= 2);
    assert!(says_it, "{notice}: {kept} of {} are there", response.stdout_bytes);
    assert_eq!(response.artifact_error, "");
    let (artifact, size) = daemon.artifact(&response.stdout_path).await;
    assert_eq!((artifact.len() as u64, size), (ARTIFACT_CAP, ARTIFACT_CAP));
    assert!(artifact.chunks(2).all(|line| line == b"y\n"));
    let (nothing, size) = daemon.artifact(&response.stderr_path).await;
    assert_eq!((nothing.len(), size), (0, 0));
}

#[tokio::test]
async fn case_19_a_hundred_megabytes_without_a_line_are_counted_to_the_byte() {
    let daemon = Setup::new().alone().start().await;
    let (response, grown) =
        run_and_weigh(&daemon, shell("head -c 100000000 /dev/zero | tr '\\0' x; exit 2")).await;
    assert!(grown < FLAT, "the daemon grew by {grown} bytes");
    assert_eq!(response.exit_code, Some(2), "{response:.300?}");
    assert_eq!(response.stdout_bytes, 100_000_000);
    assert!(response.stdout_truncated);
    assert!(response.stdout.len() <= INLINE_CAP + NOTICE);
    assert!(response.stdout.starts_with("xxxx") && response.stdout.ends_with("xxxx"));
    let (artifact, _) = daemon.artifact(&response.stdout_path).await;
    assert_eq!(artifact.len() as u64, ARTIFACT_CAP);
    assert!(artifact.iter().all(|byte| *byte == b'x'));
}

#[tokio::test]
async fn case_20_bytes_that_are_no_text_are_kept_as_they_are() {
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
async fn case_20_a_character_at_the_cap_is_not_broken() {
    let daemon = Daemon::start().await;
    // Characters of one to four bytes, so that some limit falls into each of them.
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
async fn case_21_terminal_escapes_are_data() {
    for format in ["json", "text"] {
        let daemon = Setup::new().arguments(&["--log", format]).start().await;
        let escapes = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b]52;c;aGk=\x07\r\x08\u{9b}31m";
        fs::write(daemon.file("escapes"), escapes).unwrap();
        let response = daemon.run(argv(&["cat", "escapes"])).await;
        assert_eq!(response.stdout, escapes);
        // Words of a request must not reach a terminal through the log either.
        let odd = argv(&["\x1b[31mno-such\x1b]0;program\x07"]);
        daemon.refuses(odd, "COMMAND_NOT_FOUND").await;
        let odd = RunRequest { cwd: Some("\x1b[31mno-such".to_owned()), ..shell("true") };
        daemon.refuses(odd, "DIRECTORY_NOT_FOUND").await;
        let log = daemon.log();
        assert!(!log.contains('\x1b') && !log.contains('\u{9b}'), "{log:?}");
    }
}

#[tokio::test]
async fn case_22_two_streams_at_once_do_not_hold_each_other_up() {
    let daemon = Setup::new().alone().start().await;
    let (response, grown) = run_and_weigh(
        &daemon,
        shell(
            "i=0; while [ $i -lt 100 ]; do head -c 100000 /dev/zero; head -c 150000 /dev/zero >&2; \
             i=$((i + 1)); done; yes | head -c 10000000 & yes n | head -c 10000000 >&2; wait",
        ),
    )
    .await;
    assert!(grown < FLAT, "the daemon grew by {grown} bytes");
    assert_eq!(response.exit_code, Some(0), "{response:.300?}");
    assert_eq!(response.stdout_bytes, 20_000_000);
    assert_eq!(response.stderr_bytes, 25_000_000);
    for (path, size, end) in
        [(&response.stdout_path, 20_000_000, b"y\n"), (&response.stderr_path, 25_000_000, b"n\n")]
    {
        let (artifact, told) = daemon.artifact(path).await;
        assert_eq!((artifact.len(), told), (size, size as u64));
        assert!(artifact.iter().take(10_000_000).all(|byte| *byte == 0));
        assert!(artifact.ends_with(end));
    }
}

#[tokio::test]
async fn case_23_a_pipe_handed_to_another_run_does_not_hold_the_answer() {
    let daemon = Daemon::start().await;
    let program = compile(&daemon, "pass_stdout");
    let taker = Mark::new();
    let taking = daemon.begin(taker.on(argv(&[&program, "take", "/workspace/socket"])));
    taker.appears(1).await;
    let began = Instant::now();
    let giver = Mark::new();
    let response = daemon.run(giver.on(argv(&[&program, "give", "/workspace/socket"]))).await;
    giver.assert_gone();
    assert_eq!(response.exit_code, Some(0), "{response:?}");
    assert!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
    assert_eq!(taker.processes().len(), 1, "the other run goes on");
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
    taking.abort();
    taker.vanishes().await;
}

#[tokio::test]
async fn case_24_tricks_with_the_output_pipe_have_no_effect_on_the_daemon() {
    // As an ordinary user the command may open its pipe's other end, as root's daemon's command may
    // not.
    for setup in [Setup::new(), Setup::new().user(12345)] {
        let daemon = setup.start().await;
        let program = compile(&daemon, "pipe_tricks");
        for _ in 0..3 {
            let run = daemon.run(argv(&[&program]));
            let response = promptly("the answer", run).await;
            assert_eq!(response.exit_code, Some(0), "{response:.300?}");
            assert!(response.stdout.ends_with("the end\n"));
            assert!(response.stdout_bytes <= (8 << 20) + (1 << 16) + 100);
        }
        assert_eq!(daemon.output(shell("echo after")).await, "after\n");
    }
}

#[tokio::test]
async fn case_24_scripts_may_name_their_own_output() {
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
async fn case_25_without_input_there_is_an_end_of_file_and_never_the_daemons_own() {
    let daemon = Daemon::start().await;
    let began = Instant::now();
    for command in ["cat", "cat /dev/stdin", "read line; echo \"[$line]\""] {
        let response = daemon.run(shell(command)).await;
        assert!(!response.stdout.contains(DAEMON_INPUT.trim()), "{response:?}");
    }
    assert!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
    assert_eq!(daemon.output(shell("readlink /proc/self/fd/0")).await, "/dev/null\n");
    let empty = RunRequest { stdin: Vec::new().into(), ..shell("wc -c") };
    assert_eq!(daemon.output(empty).await, "0\n");
    let whole = RunRequest { stdin: vec![b'x'; 8 << 20].into(), ..shell("wc -c; cat | wc -c") };
    assert_eq!(daemon.output(whole).await, "8388608\n0\n");
    // What is not read is no failure.
    let unread = RunRequest { stdin: vec![b'x'; 8 << 20].into(), ..shell("echo done") };
    assert_eq!(daemon.output(unread).await, "done\n");
}
