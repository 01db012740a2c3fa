//! Calls answered while the database is locked or its disk is full.

use std::fs;

use rusqlite::Connection;

use super::{WAIT_FOR_GO_FILE, counted_command, run_count, run_counted, with_request_id};
use crate::support::{Daemon, Setup, eventually, promptly};

/// Whether the database holds the answer to a request id.
fn is_stored(daemon: &Daemon, id: &str) -> bool {
    // SQLite itself does not open a path through `/proc/PID/root`.
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().join("jig.db");
    for end in ["", "-wal"] {
        let name = format!("jig.db{end}");
        let from = daemon.own_state_file(&name);
        fs::copy(from, path.with_file_name(name)).unwrap();
    }

    // The daemon may write while the files are copied.
    let stored = Connection::open(path).unwrap().query_row(
        "SELECT answer IS NOT NULL FROM request WHERE id = ?1",
        [id],
        |row| row.get(0),
    );
    stored.unwrap_or(false)
}

/// Checks that a call that ends during the outage is answered, repeated calls too, and that the
/// answer is stored once the outage is over.
async fn check_answer_during_outage(
    daemon: &Daemon,
    begin_outage: impl AsyncFnOnce(),
    end_outage: impl AsyncFnOnce(),
) {
    run_counted(daemon, "before").await;
    let request =
        || with_request_id("id", counted_command("until [ -e go ]; do sleep 0.01; done; exit 3"));
    let call = daemon.spawn_run(request());
    eventually("the command runs", async || run_count(daemon) == 2).await;

    begin_outage().await;
    fs::write(daemon.file("go"), "").unwrap();
    let answer = promptly("the daemon answers", call).await.unwrap().unwrap();
    assert_eq!(answer.exit_code, Some(3));

    for _ in 0..3 {
        let repeated =
            promptly("the daemon answers the repeated call", daemon.run(request())).await;
        assert_eq!(repeated, answer);
    }
    assert!(!is_stored(daemon, "id"));

    end_outage().await;
    eventually("the answer is stored", async || is_stored(daemon, "id")).await;
    assert_eq!(daemon.run(request()).await, answer);
    assert_eq!(run_count(daemon), 2);
}

#[tokio::test]
async fn locked_database_delays_storage_but_not_answers() {
    let daemon = Daemon::start().await;
    let database = Connection::open(daemon.state_dir().join("jig.db")).unwrap();
    let hold = async || database.execute_batch("BEGIN IMMEDIATE").unwrap();
    let release = async || database.execute_batch("COMMIT").unwrap();
    check_answer_during_outage(&daemon, hold, release).await;
    let answer = run_counted(&daemon, "before").await;
    let daemon = daemon.restart().await;
    assert_eq!(run_counted(&daemon, "before").await, answer);
}

#[tokio::test]
async fn full_disk_delays_storage_but_not_answers() {
    let daemon = Setup::new().state_on_small_disk("").start().await;
    let fill = async || {
        daemon.fill_state_disk();
    };
    let make_room = async || fs::remove_file(daemon.own_state_file("filler")).unwrap();
    check_answer_during_outage(&daemon, fill, make_room).await;
}

#[tokio::test]
async fn shutdown_stores_answers_that_were_delayed() {
    let mut daemon = Daemon::start().await;

    let database = Connection::open(daemon.state_dir().join("jig.db")).unwrap();
    let request = || with_request_id("id", counted_command(WAIT_FOR_GO_FILE));
    let call = daemon.spawn_run(request());
    eventually("the command runs", async || run_count(&daemon) == 1).await;

    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    fs::write(daemon.file("go"), "").unwrap();
    let answer = promptly("the daemon answers", call).await.unwrap().unwrap();

    daemon.signal(rustix::process::Signal::TERM);
    database.execute_batch("COMMIT").unwrap();
    assert!(daemon.wait_for_exit().await.success());

    let daemon = daemon.restart().await;
    assert_eq!(daemon.run(request()).await, answer);
    assert_eq!(run_count(&daemon), 1);
}
