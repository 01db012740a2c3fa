//! Request ids of keys that are revoked: who gets the name next gets no answer of the one before.

use std::sync::Arc;

use jig::api::v1::RunResponse;
use tonic::Request;

use super::{counted, runs};
use crate::support::{Daemon, KeyFile, Setup, eventually, with_key};

async fn daemon(keys: &Arc<KeyFile>) -> Daemon {
    let path = keys.path();
    let arguments = ["--keys", path.to_str().unwrap()];
    let setup = Setup::new().keeping(keys.clone());
    setup.arguments(&arguments).start().await
}

fn request(key: &str, rest: &str) -> Request<jig::api::v1::RunRequest> {
    let mut request = with_key(key, counted(rest));
    let id = "id".parse().unwrap();
    request.metadata_mut().insert("jig-request-id", id);
    request
}

/// Runs a command of [`counted`] with the same request id as all others.
async fn run(daemon: &Daemon, key: &str) -> RunResponse {
    daemon.run(request(key, "true")).await
}

/// Revokes the key of this name, and makes another.
fn renew(keys: &KeyFile, name: &str) -> String {
    assert!(keys.jig(&["revoke", name]).status.success());
    keys.add(name, "invoke", &[])
}

#[tokio::test]
async fn the_next_holder_of_a_name_gets_no_answer_of_the_one_before() {
    let keys = Arc::new(KeyFile::new());
    let first = keys.add("name", "invoke", &[]);
    let other = keys.add("other", "invoke", &[]);
    let daemon = daemon(&keys).await;
    let answer = run(&daemon, &first).await;
    let of_other = run(&daemon, &other).await;
    assert_eq!(run(&daemon, &first).await, answer);
    assert_eq!(runs(&daemon), 2);
    // At a reload.
    let second = renew(&keys, "name");
    daemon.reload(Daemon::READ_AGAIN).await;
    let answer_of_second = run(&daemon, &second).await;
    assert_ne!(answer_of_second.stdout, answer.stdout);
    assert_eq!(runs(&daemon), 3);
    assert_eq!(run(&daemon, &second).await, answer_of_second);
    // At a start, which keeps those of keys that stay.
    let daemon = daemon.restart().await;
    assert_eq!(run(&daemon, &second).await, answer_of_second);
    let third = renew(&keys, "name");
    let daemon = daemon.restart().await;
    let answer_of_third = run(&daemon, &third).await;
    assert_ne!(answer_of_third.stdout, answer_of_second.stdout);
    assert_eq!(run(&daemon, &other).await, of_other);
    assert_eq!(runs(&daemon), 4);
}

#[tokio::test]
async fn what_runs_when_its_key_is_revoked_is_answered_to_its_caller_alone() {
    let keys = Arc::new(KeyFile::new());
    let first = keys.add("name", "invoke", &[]);
    let daemon = daemon(&keys).await;
    let wait = "while [ ! -e end ]; do sleep 0.1; done";
    let running = daemon.begin(request(&first, wait));
    eventually("the command runs", async || runs(&daemon) == 1).await;
    let second = renew(&keys, "name");
    daemon.reload(Daemon::READ_AGAIN).await;
    // The same request under the same id, by another holder, is another call.
    let own = daemon.begin(request(&second, wait));
    eventually("it runs, too", async || runs(&daemon) == 2).await;
    std::fs::write(daemon.file("end"), "").unwrap();
    let (first, own) = (running.await.unwrap().unwrap(), own.await.unwrap().unwrap());
    assert_ne!(first.stdout, own.stdout);
    assert_eq!(daemon.run(request(&second, wait)).await, own);
    assert_eq!(runs(&daemon), 2);
}
