//! Calls that are answered while the database cannot be used.

use std::{fs, path::PathBuf};

use rusqlite::Connection;

use super::{counted, run, runs, under};
use crate::support::{Daemon, Setup, eventually, promptly};

/// The database, as the daemon sees it.
fn database(daemon: &Daemon) -> PathBuf {
    let state = daemon.state();
    format!("/proc/{}/root{}/jig.db", daemon.pid(), state.display()).into()
}

/// Whether the answer to an id is in the database.
fn is_kept(daemon: &Daemon, id: &str) -> bool {
    // SQLite itself would not go through the link that leads to what the daemon sees.
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().join("jig.db");
    for end in ["", "-wal"] {
        let name = format!("jig.db{end}");
        let from = database(daemon).with_file_name(&name);
        fs::copy(from, path.with_file_name(name)).unwrap();
    }
    // It may be written meanwhile.
    let kept = Connection::open(path).unwrap().query_row(
        "SELECT answer IS NOT NULL FROM request WHERE id = ?1",
        [id],
        |row| row.get(0),
    );
    kept.unwrap_or(false)
}

/// That a call which ends while the database cannot be used is answered, and so is whoever repeats it; and
/// that the answer is kept once it can be used.
async fn is_answered(daemon: &Daemon, spoil: impl AsyncFnOnce(), mend: impl AsyncFnOnce()) {
    run(daemon, "before").await;
    let request = || under("id", counted("until [ -e go ]; do sleep 0.01; done; exit 3"));
    let call = daemon.begin(request());
    eventually("it runs", async || runs(daemon) == 2).await;
    spoil().await;
    fs::write(daemon.file("go"), "").unwrap();
    let answer = promptly("it is answered", call).await.unwrap().unwrap();
    assert_eq!(answer.exit_code, Some(3));
    for _ in 0..3 {
        let again = promptly("it is answered again", daemon.run(request())).await;
        assert_eq!(again, answer);
    }
    assert!(!is_kept(daemon, "id"));
    mend().await;
    eventually("it is kept", async || is_kept(daemon, "id")).await;
    assert_eq!(daemon.run(request()).await, answer);
    assert_eq!(runs(daemon), 2);
}

#[tokio::test]
async fn another_program_holds_it_for_a_while() {
    let daemon = Daemon::start().await;
    let other = Connection::open(daemon.state().join("jig.db")).unwrap();
    let hold = async || other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let let_go = async || other.execute_batch("COMMIT").unwrap();
    is_answered(&daemon, hold, let_go).await;
    let answer = run(&daemon, "before").await;
    let daemon = daemon.restart().await;
    assert_eq!(run(&daemon, "before").await, answer);
}

#[tokio::test]
async fn its_disk_is_full_when_the_call_ends() {
    let daemon = Setup::new().state_on_small_disk("").start().await;
    let filler = database(&daemon).with_file_name("filler");
    let fill = async || {
        let filled = fs::write(&filler, vec![0; 8 << 20]);
        assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    };
    let make_room = async || fs::remove_file(&filler).unwrap();
    is_answered(&daemon, fill, make_room).await;
}

#[tokio::test]
async fn a_daemon_that_ends_keeps_what_it_could_not_keep_before() {
    let mut daemon = Daemon::start().await;
    let other = Connection::open(daemon.state().join("jig.db")).unwrap();
    let request = || under("id", counted("until [ -e go ]; do sleep 0.01; done"));
    let call = daemon.begin(request());
    eventually("it runs", async || runs(&daemon) == 1).await;
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    fs::write(daemon.file("go"), "").unwrap();
    let answer = promptly("it is answered", call).await.unwrap().unwrap();
    daemon.signal(rustix::process::Signal::TERM);
    other.execute_batch("COMMIT").unwrap();
    assert!(daemon.exit().await.success());
    let daemon = daemon.restart().await;
    assert_eq!(daemon.run(request()).await, answer);
    assert_eq!(runs(&daemon), 1);
}
