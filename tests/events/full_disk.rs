//! Events on a full disk.

use std::fs;

use jig::api::v1::{LastCommandRequest, Outcome};

use super::{EventWatch, make_directory, sequences, snapshot_request, watch_request};
use crate::support::{Mark, Refusal, Setup, eventually, shell};

#[tokio::test]
async fn full_disk_keeps_records_whole_and_watch_continues() {
    let daemon = Setup::new().state_on_small_disk("").start().await;

    let mut watching = EventWatch::from(&daemon, 0).await;
    make_directory(&daemon, "before").await;
    let filler = daemon.fill_state_disk();

    // Records that fit into the rest of the last page are still stored.
    let mut record_count = 2;
    let mut refused = 0;
    while refused < 3 {
        match daemon.try_run(shell("true")).await {
            Ok(_) => record_count += 2,
            Err(status) => {
                assert_eq!(Refusal::from_status(&status).reason, "NO_SPACE");
                refused += 1;
            }
        }
    }

    let events = EventWatch::of(&daemon, snapshot_request(0)).await.remaining_events().await;
    let last = events.len() as u64;
    assert_eq!(last, record_count, "each started call has a record of its end");
    assert_eq!(sequences(&events), (1..=last).collect::<Vec<_>>());

    fs::remove_file(&filler).unwrap();
    eventually("the disk has space again", async || daemon.try_run(shell("true")).await.is_ok())
        .await;

    for expected in 1..=last + 2 {
        assert_eq!(watching.next_event().await.sequence, expected);
    }

    let refusal = EventWatch::try_of(&daemon, watch_request(last + 9)).await;
    assert_eq!(refusal.err().unwrap().reason, "INVALID_PARAMS");
}

#[tokio::test]
async fn command_end_on_full_disk_is_recorded() {
    let daemon = Setup::new().state_on_small_disk("").start().await;
    let mark = Mark::new();

    let call = daemon.spawn_run(mark.on(shell("until [ -e end ]; do sleep 0.05; done; exit 3")));
    mark.wait_for_processes(1).await;

    let filler = daemon.fill_state_disk();

    // Until no further record of a call fits.
    eventually("the daemon rejects new calls", async || {
        daemon.try_run(shell("true")).await.is_err()
    })
    .await;
    fs::write(daemon.file("end"), "").unwrap();
    let response = call.await.unwrap().unwrap();
    assert_eq!(response.exit_code, Some(3));

    let events = EventWatch::of(&daemon, snapshot_request(0)).await.remaining_events().await;
    let ended = events.iter().filter(|event| event.r#type == "tool_call_finished");
    assert!(ended.map(|event| event.step).any(|step| step == 1), "{events:?}");

    fs::remove_file(&filler).unwrap();
    let last = daemon.tools().last_command(LastCommandRequest {}).await;
    assert_ne!(last.unwrap().into_inner().outcome(), Outcome::DaemonLost);
}
