//! Calls that are answered while the database cannot be used.

use std::{fs, path::PathBuf};

use rusqlite::Connection;

use super::{counted_command, run_count, run_counted, with_request_id};
use crate::support::{Daemon, Setup, eventually, promptly};

/// The database, as the daemon sees it.
fn database_path(daemon: &Daemon) -> PathBuf {
    let state = daemon.state_dir();
    format!("/proc/{}/root{}/jig.db", daemon.pid(), state.display()).into()
}

/// Whether the answer to an id is in the database.
fn is_stored(daemon: &Daemon, id: &str) -> bool {
    // SQLite itself would not go through the link that leads to what the daemon sees.
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().join("jig.db");
    for end in ["", "-wal"] {
        let name = format!("jig.db{end}");
        let from = database_path(daemon).with_file_name(&name);
        fs::copy(from, path.with_file_name(name)).unwrap();
    }
    // It may be written meanwhile.
    let stored = Connection::open(path).unwrap().query_row(
        "SELECT answer IS NOT NULL FROM request WHERE id = ?1",
        [id],
        |row| row.get(0),
    );
    stored.unwrap_or(false)
}

/// That a call which ends while the database cannot be used is answered, and so is whoever repeats it; and
/// that the answer is kept once it can be used.
async fn check_answer_during_outage(
    daemon: &Daemon,
    spoil: impl AsyncFnOnce(),
    mend: impl AsyncFnOnce(),
) {
    run_counted(daemon, "before").await;
    let request =
        || with_request_id("id", counted_command("until [ -e go ]; do sleep 0.01; done; exit 3"));
    let call = daemon.spawn_run(request());
    eventually("it runs", async || run_count(daemon) == 2).await;
    spoil().await;
    fs::write(daemon.file("go"), "").unwrap();
    let answer = promptly("it is answered", call).await.unwrap().unwrap();
    assert_eq!(answer.exit_code, Some(3));
    for _ in 0..3 {
        let again = promptly("it is answered again", daemon.run(request())).await;
        assert_eq!(again, answer);
    }
    assert!(!is_stored(daemon, "id"));
    mend().await;
    eventually("it is kept", async || is_stored(daemon, "id")).await;
    assert_eq!(daemon.run(request()).await, answer);
    assert_eq!(run_count(daemon), 2);
}

#[tokio::test]
async fn locked_database_delays_storage_but_not_answers() {
    let daemon = Daemon::start().await;
    let other = Connection::open(daemon.state_dir().join("jig.db")).unwrap();
    let hold = async || other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let let_go = async || other.execute_batch("COMMIT").unwrap();
    check_answer_during_outage(&daemon, hold, let_go).await;
    let answer = run_counted(&daemon, "before").await;
    let daemon = daemon.restart().await;
    assert_eq!(run_counted(&daemon, "before").await, answer);
}

#[tokio::test]
async fn full_disk_delays_storage_but_not_answers() {
    let daemon = Setup::new().state_on_small_disk("").start().await;
    let filler = database_path(&daemon).with_file_name("filler");
    let fill = async || {
        let filled = fs::write(&filler, vec![0; 8 << 20]);
        assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    };
    let make_room = async || fs::remove_file(&filler).unwrap();
    check_answer_during_outage(&daemon, fill, make_room).await;
}

#[tokio::test]
async fn shutdown_stores_answers_that_were_delayed() {
    let mut daemon = Daemon::start().await;
    let other = Connection::open(daemon.state_dir().join("jig.db")).unwrap();
    let request = || with_request_id("id", counted_command("until [ -e go ]; do sleep 0.01; done"));
    let call = daemon.spawn_run(request());
    eventually("it runs", async || run_count(&daemon) == 1).await;
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    fs::write(daemon.file("go"), "").unwrap();
    let answer = promptly("it is answered", call).await.unwrap().unwrap();
    daemon.signal(rustix::process::Signal::TERM);
    other.execute_batch("COMMIT").unwrap();
    assert!(daemon.wait_for_exit().await.success());
    let daemon = daemon.restart().await;
    assert_eq!(daemon.run(request()).await, answer);
    assert_eq!(run_count(&daemon), 1);
}
