//! Request ids of revoked keys: a new key of the same name gets no answers of the old one.

use std::sync::Arc;

use jig::api::v1::RunResponse;
use tonic::Request;

use super::{counted_command, run_count};
use crate::{
    callers::start_daemon_with_keys,
    support::{Daemon, KeyFile, Setup, eventually, with_key},
};

fn counted_request(key: &str, rest: &str) -> Request<jig::api::v1::RunRequest> {
    let mut request = with_key(key, counted_command(rest));
    let id = "id".parse().unwrap();
    request.metadata_mut().insert("jig-request-id", id);
    request
}

/// Runs a counted command. All calls use one request id.
async fn run(daemon: &Daemon, key: &str) -> RunResponse {
    daemon.run(counted_request(key, "true")).await
}

/// Revokes the key of this name and adds a new one.
fn replace_key(keys: &KeyFile, name: &str) -> String {
    assert!(keys.run_jig_key(&["revoke", name]).status.success());
    keys.add_key(name, "invoke", &[])
}

#[tokio::test]
async fn new_key_of_same_name_gets_no_old_answers() {
    let keys = Arc::new(KeyFile::new());
    let first = keys.add_key("name", "invoke", &[]);
    let other = keys.add_key("other", "invoke", &[]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;

    let answer = run(&daemon, &first).await;
    let of_other = run(&daemon, &other).await;
    assert_eq!(run(&daemon, &first).await, answer);
    assert_eq!(run_count(&daemon), 2);

    // Replaced before a reload.
    let second = replace_key(&keys, "name");
    daemon.reload_config(Daemon::RELOADED).await;
    let answer_of_second = run(&daemon, &second).await;
    assert_ne!(answer_of_second.stdout, answer.stdout);
    assert_eq!(run_count(&daemon), 3);
    assert_eq!(run(&daemon, &second).await, answer_of_second);

    // Replaced before a restart. Answers of unchanged keys are retained.
    let daemon = daemon.restart().await;
    assert_eq!(run(&daemon, &second).await, answer_of_second);

    let third = replace_key(&keys, "name");
    let daemon = daemon.restart().await;
    let answer_of_third = run(&daemon, &third).await;
    assert_ne!(answer_of_third.stdout, answer_of_second.stdout);
    assert_eq!(run(&daemon, &other).await, of_other);
    assert_eq!(run_count(&daemon), 4);
}

#[tokio::test]
async fn running_call_of_revoked_key_answers_only_its_caller() {
    let keys = Arc::new(KeyFile::new());
    let first = keys.add_key("name", "invoke", &[]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;

    let wait = "while [ ! -e end ]; do sleep 0.1; done";
    let running = daemon.spawn_run(counted_request(&first, wait));
    eventually("the command runs", async || run_count(&daemon) == 1).await;

    let second = replace_key(&keys, "name");
    daemon.reload_config(Daemon::RELOADED).await;

    // The same request under the same id, with another key, is another call.
    let of_second_key = daemon.spawn_run(counted_request(&second, wait));
    eventually("the second command runs", async || run_count(&daemon) == 2).await;

    std::fs::write(daemon.file("end"), "").unwrap();
    let (first, of_second_key) =
        (running.await.unwrap().unwrap(), of_second_key.await.unwrap().unwrap());
    assert_ne!(first.stdout, of_second_key.stdout);
    assert_eq!(daemon.run(counted_request(&second, wait)).await, of_second_key);
    assert_eq!(run_count(&daemon), 2);
}
