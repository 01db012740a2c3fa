//! Retention of request ids: for how long, and which are evicted first.

use std::{fs, sync::Arc};

use jig::api::v1::RunResponse;

use super::{WAIT_FOR_GO_FILE, counted_command, run_count, run_counted, with_request_id};
use crate::{
    callers::start_daemon_with_keys,
    support::{Daemon, KeyFile, Setup, eventually, with_key},
};

#[tokio::test]
async fn retention_counts_from_the_end_of_a_call() {
    // Retention is applied after every call.
    let table = "[requests]\nretention = \"5s\"\nmax_entries = 10";
    let daemon = Setup::new().workspace_table(table).start().await;

    let long = || with_request_id("long", counted_command(WAIT_FOR_GO_FILE));
    let call = daemon.spawn_run(long());
    eventually("the command runs", async || run_count(&daemon) == 1).await;

    let first = run_counted(&daemon, "first").await;
    let mut number = 0;
    eventually("a call that started later is evicted", async || {
        number += 1;
        run_counted(&daemon, &format!("later {number}")).await;
        run_counted(&daemon, "first").await != first
    })
    .await;

    fs::write(daemon.file("go"), "").unwrap();
    let answer = call.await.unwrap().unwrap();
    run_counted(&daemon, "another").await;
    assert_eq!(daemon.run(long()).await, answer);
}

async fn run_as(daemon: &Daemon, key: &str, id: &str) -> RunResponse {
    let mut request = with_key(key, counted_command("exit 3"));
    request.metadata_mut().insert("jig-request-id", id.parse().unwrap());
    daemon.run(request).await
}

#[tokio::test]
async fn busy_caller_does_not_evict_answers_of_others() {
    let keys = Arc::new(KeyFile::new());
    let [quiet, busy] = ["quiet", "busy"].map(|name| keys.add_key(name, "invoke", &[]));
    let setup = Setup::new().workspace_table("[requests]\nmax_entries = 4");
    let daemon = start_daemon_with_keys(setup, &keys).await;

    let answer = run_as(&daemon, &quiet, "id").await;
    let first = run_as(&daemon, &busy, "first").await;
    let mut number = 0;
    eventually("the first call of the busy caller is evicted", async || {
        number += 1;
        run_as(&daemon, &busy, &format!("later {number}")).await;
        run_as(&daemon, &busy, "first").await != first
    })
    .await;

    for number in 0..10 {
        run_as(&daemon, &busy, &format!("last {number}")).await;
    }
    assert_eq!(run_as(&daemon, &quiet, "id").await, answer);
}

#[tokio::test]
async fn calls_with_evicted_answers_are_not_repeated() {
    let table = "[requests]\nmax_bytes = 300000";
    let daemon = Setup::new().workspace_table(table).start().await;

    let large = |number: u32| {
        let id = format!("id {number}");
        with_request_id(&id, counted_command("head -c 90000 /dev/zero | tr '\\0' x"))
    };
    for number in 0..10 {
        daemon.run(large(number)).await;
    }

    eventually("the first answer is evicted", async || {
        daemon.run(large(0)).await.stdout.is_empty()
    })
    .await;
    assert_eq!(daemon.run(large(9)).await.stdout.len(), 90_037);
    assert_eq!(run_count(&daemon), 10);
}
