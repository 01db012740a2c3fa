//! State of other versions: a newer database is rejected, and backups can be restored.

use std::{fs, path::Path, process::Command};

use jig::api::v1::{ReadFileRequest, RunResponse};
use rusqlite::Connection;
use rustix::process::Signal;

use crate::support::{Daemon, Setup, run_jigd, shell, with_metadata};

/// The version of the schema that docs/operate/upgrade.md names.
fn documented_schema() -> i64 {
    let page = include_str!("../docs/operate/upgrade.md");
    let (_, rest) = page.split_once("`PRAGMA user_version` of `jig.db`, now ").unwrap();
    rest.split(' ').next().unwrap().parse().unwrap()
}

fn schema(database: &Path) -> i64 {
    let connection = Connection::open(database).unwrap();
    connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
}

/// Makes a call that must not be made twice.
async fn call_once(daemon: &Daemon) -> RunResponse {
    daemon.run(with_metadata("jig-request-id", "upgrade-1", shell("echo ran | tee -a runs"))).await
}

fn run_count(daemon: &Daemon) -> usize {
    fs::read_to_string(daemon.file("runs")).unwrap().lines().count()
}

#[tokio::test]
async fn older_daemon_rejects_a_newer_database_and_changes_nothing() {
    let mut daemon = Setup::new().start().await;
    let response = call_once(&daemon).await;
    daemon.signal(Signal::TERM);
    assert!(daemon.wait_for_exit().await.success());

    let database = daemon.state_dir().join("jig.db");
    let version = documented_schema();
    assert_eq!(schema(&database), version, "the page names the version of the schema");

    let set_version = |version: i64| {
        let connection = Connection::open(&database).unwrap();
        connection.pragma_update(None, "user_version", version).unwrap();
    };
    set_version(version + 1);
    let before = fs::read(&database).unwrap();
    let [state, workspace] = [daemon.state_dir(), daemon.workspace()];
    let rejected = run_jigd(&[
        "--listen",
        "127.0.0.1:0",
        "--state-dir",
        state.to_str().unwrap(),
        "--workspace",
        workspace.to_str().unwrap(),
    ]);

    let error = String::from_utf8(rejected.stderr).unwrap();
    assert_eq!(rejected.status.code(), Some(78), "{error}");
    for text in [
        format!("schema version {}, this one supports up to {version}", version + 1),
        "use the newer one".to_owned(),
        "--state-dir".to_owned(),
    ] {
        assert!(error.contains(&text), "{text} is missing in: {error}");
    }
    assert_eq!(fs::read(&database).unwrap(), before);

    set_version(version);
    let daemon = daemon.restart().await;
    assert_eq!(call_once(&daemon).await, response);
    assert_eq!(run_count(&daemon), 1);
}

#[tokio::test]
async fn backup_of_a_running_daemon_can_be_restored() {
    let mut daemon = Setup::new().start().await;
    let response = call_once(&daemon).await;
    let backup = daemon.sibling_path("backup");
    fs::create_dir(&backup).unwrap();

    // As docs/operate/upgrade.md says: the database by SQLite, then the rest.
    let connection = Connection::open(daemon.state_dir().join("jig.db")).unwrap();
    let copy = backup.join("jig.db").to_str().unwrap().to_owned();
    connection.execute("VACUUM INTO ?1", [copy]).unwrap();
    drop(connection);
    let copied = Command::new("tar")
        .args(["-c", "--exclude=./jig.db*", "--exclude=./lock", "-C"])
        .arg(daemon.state_dir())
        .args([".", "-f"])
        .arg(backup.join("rest.tar"))
        .status()
        .unwrap();
    assert!(copied.success());

    daemon.signal(Signal::TERM);
    daemon.wait_for_exit().await;
    fs::remove_dir_all(daemon.state_dir()).unwrap();
    fs::create_dir(daemon.state_dir()).unwrap();
    let restored = Command::new("tar")
        .arg("-xf")
        .arg(backup.join("rest.tar"))
        .arg("-C")
        .arg(daemon.state_dir())
        .status()
        .unwrap();
    assert!(restored.success());
    fs::copy(backup.join("jig.db"), daemon.state_dir().join("jig.db")).unwrap();

    let daemon = daemon.restart().await;
    assert_eq!(call_once(&daemon).await, response);
    assert_eq!(run_count(&daemon), 1);
    let (stdout, _) = daemon.artifact("logs/tool_step_0001_stdout.txt").await;
    assert_eq!(stdout, b"ran\n");
    assert!(!daemon.log().contains("lacks the last writes"), "{}", daemon.log());
    let read = ReadFileRequest { path: "runs".to_owned(), ..ReadFileRequest::default() };
    assert_eq!(daemon.tools().read_file(read).await.unwrap().into_inner().content, "ran\n");
}
