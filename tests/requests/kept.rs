//! How long request ids are kept, and whose go first.

use std::{fs, sync::Arc};

use jig::api::v1::RunResponse;

use super::{counted, run, runs, under};
use crate::{
    callers::with_keys,
    support::{Daemon, KeyFile, Setup, eventually, with_key},
};

#[tokio::test]
async fn a_call_is_kept_from_its_end_on_however_long_it_took() {
    // Retention looks after every call.
    let table = "[requests]\nretention = \"5s\"\nkept = 10";
    let daemon = Setup::new().workspace_table(table).start().await;
    let long = || under("long", counted("until [ -e go ]; do sleep 0.01; done"));
    let call = daemon.begin(long());
    eventually("it runs", async || runs(&daemon) == 1).await;
    let first = run(&daemon, "first").await;
    let mut number = 0;
    eventually("what began later is forgotten", async || {
        number += 1;
        run(&daemon, &format!("later {number}")).await;
        run(&daemon, "first").await != first
    })
    .await;
    fs::write(daemon.file("go"), "").unwrap();
    let answer = call.await.unwrap().unwrap();
    run(&daemon, "another").await;
    assert_eq!(daemon.run(long()).await, answer);
}

async fn run_as(daemon: &Daemon, key: &str, id: &str) -> RunResponse {
    let mut request = with_key(key, counted("exit 3"));
    request.metadata_mut().insert("jig-request-id", id.parse().unwrap());
    daemon.run(request).await
}

#[tokio::test]
async fn who_calls_much_takes_nothing_from_others() {
    let keys = Arc::new(KeyFile::new());
    let [few, many] = ["few", "many"].map(|name| keys.add(name, "invoke", &[]));
    let setup = Setup::new().workspace_table("[requests]\nmax_entries = 4");
    let daemon = with_keys(setup, &keys).await;
    let kept = run_as(&daemon, &few, "id").await;
    let first = run_as(&daemon, &many, "first").await;
    let mut number = 0;
    eventually("the first of many is forgotten", async || {
        number += 1;
        run_as(&daemon, &many, &format!("later {number}")).await;
        run_as(&daemon, &many, "first").await != first
    })
    .await;
    for number in 0..10 {
        run_as(&daemon, &many, &format!("last {number}")).await;
    }
    assert_eq!(run_as(&daemon, &few, "id").await, kept);
}

#[tokio::test]
async fn too_large_answers_go_as_they_come_and_are_not_done_again() {
    let table = "[requests]\nmax_bytes = 300000";
    let daemon = Setup::new().workspace_table(table).start().await;
    let large = |number: u32| {
        let id = format!("id {number}");
        under(&id, counted("head -c 90000 /dev/zero | tr '\\0' x"))
    };
    for number in 0..10 {
        daemon.run(large(number)).await;
    }
    eventually("the first answer is gone", async || daemon.run(large(0)).await.stdout.is_empty())
        .await;
    assert_eq!(daemon.run(large(9)).await.stdout.len(), 90_037);
    assert_eq!(runs(&daemon), 10);
}
