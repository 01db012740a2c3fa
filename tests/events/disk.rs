//! A disk that is full.

use std::fs;

use super::{Watching, make, request, sequences, so_far};
use crate::support::{Refusal, Setup, eventually, shell};

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
    assert!((whole - 1..=whole).contains(&last), "{last} of {whole}");
    assert_eq!(sequences(&told), (1..=last).collect::<Vec<_>>());
    fs::remove_file(&filler).unwrap();
    eventually("there is room again", async || {
        daemon.try_run(shell("true")).await.is_ok()
    })
    .await;
    for expected in 1..=last + 2 {
        assert_eq!(watching.event().await.sequence, expected);
    }
    let refusal = Watching::try_of(&daemon, request(last + 9)).await;
    assert_eq!(refusal.err().unwrap().reason, "INVALID_PARAMS");
}
