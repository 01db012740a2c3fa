//! `LastCommand`: how the last command of a session ended, and its output.

use std::{
    fs::File,
    io::{BufWriter, Write as _},
};

use jig::api::v1::{
    LastCommandRequest, LastCommandResponse, Outcome, RunRequest, StartRequest,
    process_service_client::ProcessServiceClient, start_response,
};

use super::in_session;
use crate::support::{Daemon, Mark, Refusal, Setup, argv, eventually, full_size, promptly, shell};

async fn last_command(daemon: &Daemon) -> LastCommandResponse {
    let answer = daemon.tools().last_command(LastCommandRequest {}).await;
    answer.unwrap().into_inner()
}

#[tokio::test]
async fn last_command_survives_restart() {
    let daemon = Daemon::start().await;
    let refused = daemon.tools().last_command(LastCommandRequest {}).await;
    assert_eq!(Refusal::from_status(&refused.unwrap_err()).reason, "NO_COMMAND_HISTORY");

    let long = "yes \u{e9} | head -c 9001; echo oops >&2; exit 3";
    let ran = daemon.run(shell(long)).await;
    let reported = last_command(&daemon).await;
    assert_eq!(reported.command, long);
    assert_eq!(reported.argv, [""; 0]);
    assert_eq!(reported.outcome(), Outcome::Exited);
    assert_eq!(reported.exit_code, Some(3));
    assert!(!reported.running);
    assert_eq!(reported.stdout, "\u{e9}\n".repeat(1365), "no character is split");
    assert_eq!(reported.stderr, "oops\n");
    assert_eq!((reported.stdout_truncated, reported.stderr_truncated), (true, false));
    assert_eq!(reported.stdout_path, ran.stdout_path);
    assert_eq!(reported.stderr_path, ran.stderr_path);
    assert_eq!(reported.step, 2, "each call is a step, LastCommand too");

    let [start, end] = [reported.start_time.unwrap(), reported.end_time.unwrap()];
    assert!((start.seconds, start.nanos) <= (end.seconds, end.nanos));

    // LastCommand is not a command itself.
    assert_eq!(last_command(&daemon).await, reported);

    let daemon = daemon.restart().await;
    assert_eq!(last_command(&daemon).await, reported);

    let other = in_session("other", LastCommandRequest {});
    let refused = daemon.tools().last_command(other).await;
    assert_eq!(Refusal::from_status(&refused.unwrap_err()).reason, "NO_COMMAND_HISTORY");
}

#[tokio::test]
async fn last_command_reports_how_it_ended() {
    let daemon = Daemon::start().await;

    daemon.run(argv(&["/bin/sh", "-c", "kill -9 $$"])).await;
    let reported = last_command(&daemon).await;
    assert_eq!(reported.command, "/bin/sh -c kill -9 $$");
    assert_eq!(reported.argv, ["/bin/sh", "-c", "kill -9 $$"]);
    assert_eq!(reported.outcome(), Outcome::Signaled);
    assert_eq!((&*reported.signal, reported.exit_code), ("SIGKILL", None));

    let request = RunRequest { timeout_sec: Some(1), ..shell("echo before; sleep 100") };
    daemon.run(request).await;
    let reported = last_command(&daemon).await;
    assert_eq!(reported.outcome(), Outcome::TimedOut);
    assert_eq!(reported.stdout, "before\n");

    daemon.run_failing(argv(&["no-such-program"]), "COMMAND_NOT_FOUND").await;
    let reported = last_command(&daemon).await;
    assert_eq!(reported.command, "no-such-program");
    assert_eq!(reported.outcome(), Outcome::Unspecified);
    assert_eq!(reported.error_type, "command_not_found");
    assert!(reported.error_message.contains("no-such-program"), "{reported:?}");

    let long = format!("true {}", "x".repeat(20_000));
    daemon.run(shell(&long)).await;
    assert_eq!(last_command(&daemon).await.command, "<20005 bytes>");
}

#[tokio::test]
async fn last_command_reports_running_and_lost_processes() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();

    let command = mark.on(shell("head -c 600000 /dev/zero | tr '\\0' x; sleep 1000")).command;
    let mut processes = ProcessServiceClient::new(daemon.channel());
    let request = StartRequest { command: command.clone(), ..StartRequest::default() };
    let mut stream = processes.start(request).await.unwrap().into_inner();
    loop {
        let next = promptly("output arrives", stream.message()).await.unwrap();
        if let Some(start_response::Event::Stdout(_)) = next.unwrap().event {
            break;
        }
    }

    let head = "x".repeat(4096);
    eventually("its output is stored", async || last_command(&daemon).await.stdout == head).await;

    let reported = last_command(&daemon).await;
    assert!(reported.running && reported.stdout_truncated);
    assert_eq!(reported.outcome(), Outcome::Unspecified);
    assert_eq!(Some(reported.command), command);
    assert_eq!(reported.end_time, None);

    let daemon = daemon.restart().await;
    let reported = last_command(&daemon).await;
    assert!(!reported.running);
    assert_eq!(reported.outcome(), Outcome::DaemonLost);
    assert_eq!((reported.stdout, reported.end_time), (head, None));
}

#[tokio::test]
async fn last_command_is_found_in_a_long_record_file() {
    let table = "[sessions]\nmax_record_bytes = 1073741824";
    let daemon = Setup::new().workspace_table(table).start().await;

    daemon.run(shell("echo text")).await;
    let path = daemon.state_dir().join("sessions/default/events.jsonl");

    // Followed by as many calls as a session has in weeks.
    let written = super::records(&daemon, "default");
    let time = written[0]["time"].as_str().unwrap();
    let records = full_size(1_000_000, 200_000);
    let mut file = BufWriter::new(File::options().append(true).open(&path).unwrap());
    for number in 3..=records {
        let event = ["tool_call_finished", "tool_call_started"][number % 2];
        let step = number.div_ceil(2);
        writeln!(
            file,
            r#"{{"call_id":"01KAP5Z4ZK1Y0Z7J4QZ3Q6X9M2","event":"{event}","principal":"uid:0","request_id":"01KAP5Z4ZK1Y0Z7J4QZ3Q6X9M2","sequence":{number},"step":{step},"time":"{time}","tool":"read_file","workspace":"workspace","params":{{"path":"src/some/where/file-{number}.rs"}}}}"#
        )
        .unwrap();
    }

    drop(file);
    let daemon = daemon.restart().await;

    // Within the five seconds of the tool, also the first time, when the daemon searches the file.
    let reported = last_command(&daemon).await;
    assert_eq!(reported.stdout, "text\n");
    assert_eq!(reported.step, 1);

    for _ in 0..20 {
        assert_eq!(last_command(&daemon).await, reported);
    }

    let request = super::snapshot_request(u64::try_from(records).unwrap() - 2);
    let events = super::EventWatch::of(&daemon, request).await.remaining_events().await;
    assert_eq!(events.len(), 2 + 2 * 21);
}
