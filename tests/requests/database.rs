//! The database behind request ids: its limits, damage, and lost writes.

use std::{fs, path::Path, process::Output};

use rustix::process::Signal;

use super::{counted_command, run_count, run_counted, with_request_id};
use crate::support::{Daemon, Refusal, Setup, eventually, run_jigd, shell};

#[tokio::test]
async fn request_ids_are_limited_by_max_entries() {
    let table = "[requests]\nmax_entries = 3";
    let daemon = Setup::new().workspace_table(table).start().await;
    let first = run_counted(&daemon, "first").await;
    for number in 0..3 {
        run_counted(&daemon, &format!("later {number}")).await;
    }
    eventually("the first answer is evicted", async || {
        run_counted(&daemon, "first").await != first
    })
    .await;
}

#[tokio::test]
async fn request_ids_expire_after_retention() {
    let table = "[requests]\nretention = \"1ms\"\nmax_entries = 100";
    let daemon = Setup::new().workspace_table(table).start().await;
    let first = run_counted(&daemon, "first").await;

    let mut number = 0;
    eventually("the first answer is evicted", async || {
        number += 1;
        run_counted(&daemon, &format!("later {number}")).await;
        run_counted(&daemon, "first").await != first
    })
    .await;
}

#[tokio::test]
async fn full_disk_rejects_only_calls_that_need_space() {
    let daemon = Setup::new().state_on_small_disk("").start().await;

    run_counted(&daemon, "before").await;
    fs::write(daemon.file("full"), "").unwrap();
    let filler = daemon.fill_state_disk();

    let refused = daemon.try_run(with_request_id("during", counted_command(""))).await;
    let refusal = Refusal::from_status(&refused.unwrap_err());
    assert_eq!(refusal.reason, "NO_SPACE");
    assert_eq!(run_count(&daemon), 1);

    fs::remove_file(&filler).unwrap();
    eventually("the disk has space again", async || {
        daemon.try_run(with_request_id("during", counted_command(""))).await.is_ok()
    })
    .await;
    assert_eq!(run_count(&daemon), 2);

    daemon.run(with_request_id("before", counted_command("exit 3"))).await;
    assert_eq!(run_count(&daemon), 2);
}

fn start_jigd(workspace: &Path, state: &Path) -> Output {
    let (workspace, state) = (workspace.display(), state.display());
    run_jigd(&[
        "--listen",
        "127.0.0.1:0",
        "--workspace",
        &workspace.to_string(),
        "--state-dir",
        &state.to_string(),
    ])
}

#[tokio::test]
async fn damaged_database_is_rejected_and_unchanged() {
    let directory = tempfile::tempdir().unwrap();

    let [workspace, state] = ["workspace", "state"].map(|name| directory.path().join(name));
    for path in [&workspace, &state] {
        fs::create_dir(path).unwrap();
    }

    let path = state.join("jig.db");
    fs::write(&path, "no database at all".repeat(1000)).unwrap();
    let before = fs::read(&path).unwrap();
    let output = start_jigd(&workspace, &state);

    assert_eq!(output.status.code(), Some(78));

    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("jig.db is damaged"), "{stderr}");
    assert!(stderr.contains("move it"), "{stderr}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn database_holds_no_request_content() {
    let daemon = Daemon::start().await;

    let mut request = shell("true SECRET_IN_THE_COMMAND");
    request.env.insert("TOKEN".to_owned(), "SECRET_IN_THE_ENVIRONMENT".to_owned());
    request.stdin = b"SECRET_IN_THE_INPUT".to_vec().into();
    daemon.run(with_request_id("id", request)).await;

    for name in ["jig.db", "jig.db-wal"] {
        let bytes = fs::read(daemon.state_dir().join(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("SECRET_IN"), "{name}");
    }
    assert!(fs::read(daemon.state_dir().join("jig.db-wal")).is_ok());
}

#[tokio::test]
async fn lost_database_writes_are_logged_at_start() {
    let mut daemon = Daemon::start().await;
    let loss_log = "the database lacks the last writes of the previous daemon";
    let damages: [fn(&Path); 3] = [
        |_| {},
        |path| fs::remove_file(path).unwrap(),
        |path| {
            let mut bytes = fs::read(path).unwrap();
            // The first frame.
            bytes[100..200].fill(0x5a);
            fs::write(path, bytes).unwrap();
        },
    ];

    for (number, damage) in damages.into_iter().enumerate() {
        run_counted(&daemon, &format!("id {number}")).await;
        daemon.signal(Signal::KILL);
        daemon.wait_for_exit().await;
        damage(&daemon.state_dir().join("jig.db-wal"));
        daemon = daemon.restart().await;
        assert_eq!(daemon.log().contains(loss_log), number > 0);
    }
}
