//! `jig events`, `jig sessions`, `jig last-command` and `jig artifacts`.

use std::io::{BufRead as _, BufReader};

use serde_json::Value;

use super::{in_session, records};
use crate::{
    processes::command_line::{jig_command, run_jig},
    support::{Daemon, promptly, shell},
};

#[tokio::test]
async fn cli_prints_events_sessions_and_artifacts() {
    let daemon = Daemon::start().await;

    let hostile = "printf 'a\\033[2J'; exit 3 # \u{1b}[31m";
    daemon.run(in_session("s", shell(hostile))).await;
    let jig = async |arguments: &[&str]| {
        let arguments = [&["--session", "s"], arguments].concat();
        let (code, stdout, stderr) = run_jig(&daemon, &arguments, "").await;
        assert_eq!((code, &*stderr), (0, ""), "{arguments:?}");
        assert!(!stdout.contains('\u{1b}'), "{stdout:?}");
        stdout
    };

    let json = |text: String| -> Vec<Value> {
        let lines = text.lines();
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let file = records(&daemon, "s");
    assert_eq!(json(jig(&["events", "--json"]).await), file);
    assert_eq!(json(jig(&["events", "--json", "--after", "1"]).await), file[1..]);

    let ended = ["events", "--json", "--type", "tool_call_finished"];
    assert_eq!(json(jig(&ended).await), file[1..]);

    let text = jig(&["events"]).await;
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].contains("started") && lines[0].contains("exit 3 #"), "{text}");
    assert!(lines[1].contains("success") && lines[1].ends_with("exit 3"), "{text}");

    let sessions = json(jig(&["sessions", "--json"]).await);
    assert_eq!(sessions[0]["session"], "s");
    assert_eq!(sessions[0]["last_sequence"], 2);
    assert!(jig(&["sessions"]).await.ends_with("  s\n"));

    let artifacts = json(jig(&["artifacts", "--json"]).await);
    assert_eq!(artifacts[0]["path"], "logs/tool_step_0001_stdout.txt");
    assert_eq!(artifacts[0]["size_bytes"], 5);
    assert_eq!(jig(&["artifacts", "--step", "2"]).await, "");

    let last = json(jig(&["last-command", "--json"]).await);
    assert_eq!(last[0]["exit_code"], 3);
    assert_eq!(last[0]["command"], hostile);

    let text = jig(&["last-command"]).await;
    assert!(text.contains("\nexit 3, step 1\n--- stdout\na\\033[2J\n"), "{text}");

    let (code, _, stderr) = run_jig(&daemon, &["--session", "none", "last-command"], "").await;
    assert_eq!(code, 1);
    assert!(stderr.contains("has run no command"), "{stderr}");
}

#[tokio::test]
async fn follow_resumes_after_daemon_restart() {
    let daemon = Daemon::start().await;

    super::make_directory(&daemon, "before").await;
    let arguments = ["events", "--follow", "--json", "--tail", "1"];
    let mut jig = jig_command(&daemon.socket(), &arguments).spawn().unwrap();
    let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
    let stdout = jig.stdout.take().unwrap();
    let reading = tokio::task::spawn_blocking(move || {
        for line in BufReader::new(stdout).lines() {
            let record: Value = serde_json::from_str(&line.unwrap()).unwrap();
            sender.send(record["sequence"].clone()).unwrap();
        }
    });

    assert_eq!(promptly("the last event is printed", lines.recv()).await.unwrap(), 2);

    let daemon = daemon.restart().await;
    super::make_directory(&daemon, "after").await;
    for expected in [3, 4] {
        let sequence = promptly("the next event is printed", lines.recv()).await;
        assert_eq!(sequence.unwrap(), expected);
    }

    jig.kill().unwrap();
    jig.wait().unwrap();
    reading.await.unwrap();
}
