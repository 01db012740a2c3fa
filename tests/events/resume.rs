//! Going on from a record's number.

use jig::api::v1::{WatchEventsRequest, watch_events_response::Item};
use rustix::process::Signal;
use tonic::Code;

use super::{Watching, in_session, make, record, records, request, sequences, so_far};
use crate::support::{Daemon, Mark, Refusal, shell};

#[tokio::test]
async fn whoever_goes_on_from_a_record_gets_what_the_file_has_behind_it() {
    let daemon = Daemon::start().await;
    daemon.run(shell("echo text; exit 3")).await;
    for number in 0..8 {
        make(&daemon, &format!("d{number}")).await;
    }
    let file = records(&daemon, "default");
    assert_eq!(file.len(), 18);
    for after in 0..=18 {
        let events = Watching::of(&daemon, so_far(after)).await.rest().await;
        let found: Vec<_> = events.iter().map(record).collect();
        assert_eq!(found, file[usize::try_from(after).unwrap()..], "{after}");
    }
    for record in &file {
        assert_eq!(record["workspace"], "workspace", "{record}");
        assert_eq!(record["principal"], "uid:0", "{record}");
    }
    let refusal = Watching::try_of(&daemon, so_far(19)).await.err().unwrap();
    assert_eq!(refusal.reason, "INVALID_PARAMS");
    assert_eq!(refusal.fields(), ["after_sequence"]);
    let of_types = WatchEventsRequest { types: vec!["tool_call_finished".to_owned()], ..so_far(3) };
    let finished = Watching::of(&daemon, of_types).await.rest().await;
    assert_eq!(sequences(&finished), [4, 6, 8, 10, 12, 14, 16, 18]);
}

#[tokio::test]
async fn who_follows_goes_on_behind_a_daemon_that_was_killed() {
    let mut daemon = Daemon::start().await;
    let mut seen = Vec::new();
    for life in 0..4 {
        let mut watching = Watching::from(&daemon, seen.last().copied().unwrap_or(0)).await;
        for number in 0..5 {
            make(&daemon, &format!("d{life}-{number}")).await;
        }
        // Killed with some of them told, and some not.
        for _ in 0..7 {
            seen.push(watching.event().await.sequence);
        }
        daemon = daemon.restart().await;
    }
    let rest = Watching::of(&daemon, so_far(28)).await.rest().await;
    seen.extend(sequences(&rest));
    assert_eq!(seen, (1..=40).collect::<Vec<u64>>());
}

#[tokio::test]
async fn a_session_that_is_not_there_yet_is_waited_for_and_not_made() {
    let daemon = Daemon::start().await;
    let mut watching = Watching::of(&daemon, in_session("later", request(0))).await;
    let none = Watching::of(&daemon, in_session("later", so_far(0))).await;
    assert_eq!({ none }.rest().await, []);
    let refusal = Watching::try_of(&daemon, in_session("later", request(1))).await;
    assert_eq!(refusal.err().unwrap().reason, "INVALID_PARAMS");
    make(&daemon, "another session is made meanwhile").await;
    assert!(!daemon.state().join("sessions/later").exists());
    daemon.run(in_session("later", shell("true"))).await;
    for expected in ["tool_call_started", "tool_call_finished"] {
        assert_eq!(watching.event().await.r#type, expected);
    }
}

#[tokio::test]
async fn silence_is_told_of() {
    let daemon = Daemon::start().await;
    make(&daemon, "d").await;
    let request =
        |after_sequence| WatchEventsRequest { keep_alive_sec: Some(1), ..request(after_sequence) };
    let mut watching = Watching::of(&daemon, request(2)).await;
    let mut waiting = Watching::of(&daemon, in_session("none", request(0))).await;
    for (watching, last) in [(&mut watching, 2), (&mut waiting, 0)] {
        match watching.next().await {
            Some(Item::KeepAlive(keep_alive)) => assert_eq!(keep_alive.last_sequence, last),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_daemon_that_drains_tells_of_all_that_ends_and_then_that_it_ends() {
    let mut daemon = Daemon::start().await;
    let mut watching = Watching::from(&daemon, 0).await;
    let mut waiting = Watching::of(&daemon, in_session("none", request(0))).await;
    let call = daemon.begin(shell("touch runs; until [ -e end ]; do sleep 0.05; done"));
    assert_eq!(watching.event().await.r#type, "tool_call_started");
    crate::support::eventually("it runs", async || daemon.file("runs").exists()).await;
    daemon.signal(Signal::TERM);
    crate::support::eventually("it drains", async || daemon.log().contains("draining")).await;
    std::fs::write(daemon.file("end"), "").unwrap();
    call.await.unwrap().unwrap();
    assert_eq!(watching.event().await.r#type, "tool_call_finished");
    for watching in [&mut watching, &mut waiting] {
        let status = watching.try_next().await.unwrap_err();
        assert_eq!(Refusal::of(&status).reason, "DRAINING");
        assert_eq!(status.code(), Code::Unavailable);
    }
    assert!(daemon.exit().await.success());
    assert!(!daemon.log().contains("closed connections that"), "{}", daemon.log());
}

#[tokio::test]
async fn the_deadline_of_a_stream_ends_it() {
    let daemon = Daemon::start().await;
    let mut request = tonic::Request::new(request(0));
    request.set_timeout(std::time::Duration::from_millis(300));
    let mut watching = Watching::of(&daemon, request).await;
    let status = watching.try_next().await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
}

#[tokio::test]
async fn a_call_that_its_daemon_died_under_is_told_to_be_over() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let call = daemon.begin(mark.on(shell("sleep 1000")));
    mark.appears(1).await;
    let daemon = daemon.restart().await;
    assert!(call.await.unwrap().is_err());
    for _ in 0..2 {
        let told = Watching::of(&daemon, so_far(0)).await.rest().await;
        assert_eq!(sequences(&told), [1, 2]);
        let [started, ended] = [&told[0], &told[1]];
        assert_eq!((&*ended.r#type, ended.step), ("tool_call_finished", 1));
        assert_eq!(ended.call_id, started.call_id);
        assert_eq!(record(ended)["error_type"], "daemon_lost");
    }
}

#[tokio::test]
async fn a_session_must_be_named_once() {
    let daemon = Daemon::start().await;
    let mut twice = in_session("one", so_far(0));
    let other = "other".parse().unwrap();
    twice.metadata_mut().append("jig-session", other);
    let refusal = Watching::try_of(&daemon, twice).await.err().unwrap();
    assert_eq!(refusal.reason, "INVALID_PARAMS");
    assert_eq!(refusal.fields(), ["jig-session"]);
}
