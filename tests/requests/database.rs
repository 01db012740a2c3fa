//! The database behind request ids: that it is bounded, and what becomes of one that cannot be used.

use std::{fs, path::Path, process::Output};

use rustix::process::Signal;

use super::{counted, run, runs, under};
use crate::support::{Daemon, Refusal, Setup, eventually, jigd, shell};

#[tokio::test]
async fn no_more_are_kept_than_is_said() {
    let table = "[requests]\nmax_entries = 3";
    let daemon = Setup::new().workspace_table(table).start().await;
    let first = run(&daemon, "first").await;
    for number in 0..3 {
        run(&daemon, &format!("later {number}")).await;
    }
    eventually("the first is forgotten", async || run(&daemon, "first").await != first).await;
}

#[tokio::test]
async fn none_is_kept_for_longer_than_is_said() {
    let table = "[requests]\nretention = \"1ms\"\nkept = 100";
    let daemon = Setup::new().workspace_table(table).start().await;
    let first = run(&daemon, "first").await;
    let mut number = 0;
    eventually("the first is forgotten", async || {
        number += 1;
        run(&daemon, &format!("later {number}")).await;
        run(&daemon, "first").await != first
    })
    .await;
}

#[tokio::test]
async fn a_full_disk_fails_what_needs_room_and_nothing_else() {
    let daemon = Setup::new().state_on_small_disk("").start().await;
    run(&daemon, "before").await;
    // The daemon and its commands alone see that disk.
    let full = daemon.file("full");
    let state = format!("/proc/{}/root{}", daemon.pid(), daemon.state().display());
    fs::write(&full, "").unwrap();
    let filler = Path::new(&state).join("filler");
    let filled = fs::write(&filler, vec![0; 8 << 20]);
    assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    let refused = daemon.try_run(under("during", counted(""))).await;
    let refusal = Refusal::of(&refused.unwrap_err());
    assert_eq!(refusal.reason, "NO_SPACE");
    assert_eq!(runs(&daemon), 1);
    fs::remove_file(&filler).unwrap();
    eventually("there is room again", async || {
        daemon.try_run(under("during", counted(""))).await.is_ok()
    })
    .await;
    assert_eq!(runs(&daemon), 2);
    daemon.run(under("before", counted("exit 3"))).await;
    assert_eq!(runs(&daemon), 2);
}

fn start(workspace: &Path, state: &Path) -> Output {
    let (workspace, state) = (workspace.display(), state.display());
    jigd(&[
        "--listen",
        "127.0.0.1:0",
        "--workspace",
        &workspace.to_string(),
        "--state-dir",
        &state.to_string(),
    ])
}

#[tokio::test]
async fn a_database_that_cannot_be_used_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let [workspace, state] = ["workspace", "state"].map(|name| folder.path().join(name));
    for path in [&workspace, &state] {
        fs::create_dir(path).unwrap();
    }
    let path = state.join("jig.db");
    fs::write(&path, "no database at all".repeat(1000)).unwrap();
    let before = fs::read(&path).unwrap();
    let output = start(&workspace, &state);
    assert_eq!(output.status.code(), Some(78));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("jig.db is damaged"), "{told}");
    assert!(told.contains("move it"), "{told}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn what_was_asked_is_not_in_the_database() {
    let daemon = Daemon::start().await;
    let mut request = shell("true SECRET_IN_THE_COMMAND");
    request.env.insert("TOKEN".to_owned(), "SECRET_IN_THE_ENVIRONMENT".to_owned());
    request.stdin = b"SECRET_IN_THE_INPUT".to_vec().into();
    daemon.run(under("id", request)).await;
    for name in ["jig.db", "jig.db-wal"] {
        let bytes = fs::read(daemon.state().join(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("SECRET_IN"), "{name}");
    }
    assert!(fs::read(daemon.state().join("jig.db-wal")).is_ok());
}

#[tokio::test]
async fn it_is_told_when_what_was_written_last_is_lost() {
    let mut daemon = Daemon::start().await;
    let lacks = "the database lacks the last writes of the previous daemon";
    let spoilers: [fn(&Path); 3] = [
        |_| {},
        |path| fs::remove_file(path).unwrap(),
        |path| {
            let mut bytes = fs::read(path).unwrap();
            // Of the first frame.
            bytes[100..200].fill(0x5a);
            fs::write(path, bytes).unwrap();
        },
    ];
    for (number, spoil) in spoilers.into_iter().enumerate() {
        run(&daemon, &format!("id {number}")).await;
        daemon.signal(Signal::KILL);
        daemon.exit().await;
        spoil(&daemon.state().join("jig.db-wal"));
        daemon = daemon.restart().await;
        assert_eq!(daemon.log().contains(lacks), number > 0);
    }
}
