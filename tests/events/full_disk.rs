//! A disk that is full.

use std::fs;

use jig::api::v1::{LastCommandRequest, Outcome};

use super::{EventWatch, make_directory, sequences, snapshot_request, watch_request};
use crate::support::{Mark, Refusal, Setup, eventually, shell};

#[tokio::test]
async fn full_disk_keeps_records_whole_and_watch_continues() {
    let daemon = Setup::new().state_on_small_disk("").start().await;
    let mut watching = EventWatch::from(&daemon, 0).await;
    make_directory(&daemon, "before").await;
    let state = format!("/proc/{}/root{}", daemon.pid(), daemon.state_dir().display());
    let filler = std::path::Path::new(&state).join("filler");
    let filled = fs::write(&filler, vec![0; 8 << 20]);
    assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    // What fits into what is left of a page fits.
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
    assert_eq!(last, record_count, "each that has begun has ended");
    assert_eq!(sequences(&events), (1..=last).collect::<Vec<_>>());
    fs::remove_file(&filler).unwrap();
    eventually("there is room again", async || daemon.try_run(shell("true")).await.is_ok()).await;
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
    let state = format!("/proc/{}/root{}", daemon.pid(), daemon.state_dir().display());
    let filler = std::path::Path::new(&state).join("filler");
    let filled = fs::write(&filler, vec![0; 8 << 20]);
    assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    // Until not even the record of a call fits.
    eventually("no call begins", async || daemon.try_run(shell("true")).await.is_err()).await;
    fs::write(daemon.file("end"), "").unwrap();
    let response = call.await.unwrap().unwrap();
    assert_eq!(response.exit_code, Some(3));
    let events = EventWatch::of(&daemon, snapshot_request(0)).await.remaining_events().await;
    let ended = events.iter().filter(|it| it.r#type == "tool_call_finished");
    assert!(ended.map(|it| it.step).any(|step| step == 1), "{events:?}");
    fs::remove_file(&filler).unwrap();
    let last = daemon.tools().last_command(LastCommandRequest {}).await;
    assert_ne!(last.unwrap().into_inner().outcome(), Outcome::DaemonLost);
}
