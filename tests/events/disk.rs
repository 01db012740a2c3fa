//! A disk that is full.

use std::fs;

use jig::api::v1::{LastCommandRequest, Outcome};

use super::{Watching, make, request, sequences, so_far};
use crate::support::{Mark, Refusal, Setup, eventually, shell};

#[tokio::test]
async fn a_full_disk_leaves_whole_records_and_who_watches_goes_on() {
    let daemon = Setup::new().state_on_small_disk("").start().await;
    let mut watching = Watching::from(&daemon, 0).await;
    make(&daemon, "before").await;
    let state = format!("/proc/{}/root{}", daemon.pid(), daemon.state().display());
    let filler = std::path::Path::new(&state).join("filler");
    let filled = fs::write(&filler, vec![0; 8 << 20]);
    assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    // What fits into what is left of a page fits.
    let mut whole = 2;
    let mut refused = 0;
    while refused < 3 {
        match daemon.try_run(shell("true")).await {
            Ok(_) => whole += 2,
            Err(status) => {
                assert_eq!(Refusal::of(&status).reason, "NO_SPACE");
                refused += 1;
            }
        }
    }
    let told = Watching::of(&daemon, so_far(0)).await.rest().await;
    let last = told.len() as u64;
    assert_eq!(last, whole, "each that has begun has ended");
    assert_eq!(sequences(&told), (1..=last).collect::<Vec<_>>());
    fs::remove_file(&filler).unwrap();
    eventually("there is room again", async || daemon.try_run(shell("true")).await.is_ok()).await;
    for expected in 1..=last + 2 {
        assert_eq!(watching.event().await.sequence, expected);
    }
    let refusal = Watching::try_of(&daemon, request(last + 9)).await;
    assert_eq!(refusal.err().unwrap().reason, "INVALID_PARAMS");
}

#[tokio::test]
async fn a_command_that_ends_on_a_full_disk_is_told_to_have_ended() {
    let daemon = Setup::new().state_on_small_disk("").start().await;
    let mark = Mark::new();
    let call = daemon.begin(mark.on(shell("until [ -e end ]; do sleep 0.05; done; exit 3")));
    mark.appears(1).await;
    let state = format!("/proc/{}/root{}", daemon.pid(), daemon.state().display());
    let filler = std::path::Path::new(&state).join("filler");
    let filled = fs::write(&filler, vec![0; 8 << 20]);
    assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    // Until not even the record of a call fits.
    eventually("no call begins", async || daemon.try_run(shell("true")).await.is_err()).await;
    fs::write(daemon.file("end"), "").unwrap();
    let response = call.await.unwrap().unwrap();
    assert_eq!(response.exit_code, Some(3));
    let events = Watching::of(&daemon, so_far(0)).await.rest().await;
    let ended = events.iter().filter(|it| it.r#type == "tool_call_finished");
    assert!(ended.map(|it| it.step).any(|step| step == 1), "{events:?}");
    fs::remove_file(&filler).unwrap();
    let last = daemon.tools().last_command(LastCommandRequest {}).await;
    assert_ne!(last.unwrap().into_inner().outcome(), Outcome::DaemonLost);
}
