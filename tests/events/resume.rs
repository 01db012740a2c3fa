//! Watches that resume after a record.

use jig::api::v1::{WatchEventsRequest, watch_events_response::Item};
use rustix::process::Signal;
use tonic::Code;

use super::{
    EventWatch, event_record, in_session, make_directory, records, sequences, snapshot_request,
    watch_request,
};
use crate::support::{Daemon, Mark, Refusal, shell};

#[tokio::test]
async fn watch_resumes_after_any_record() {
    let daemon = Daemon::start().await;

    daemon.run(shell("echo text; exit 3")).await;
    for number in 0..8 {
        make_directory(&daemon, &format!("d{number}")).await;
    }

    let file = records(&daemon, "default");
    assert_eq!(file.len(), 18);

    for after in 0..=18 {
        let events =
            EventWatch::of(&daemon, snapshot_request(after)).await.remaining_events().await;
        let found: Vec<_> = events.iter().map(event_record).collect();
        assert_eq!(found, file[usize::try_from(after).unwrap()..], "{after}");
    }

    for record in &file {
        assert_eq!(record["workspace"], "workspace", "{record}");
        assert_eq!(record["principal"], "uid:0", "{record}");
    }

    let refusal = EventWatch::try_of(&daemon, snapshot_request(19)).await.err().unwrap();
    assert_eq!(refusal.reason, "INVALID_PARAMS");
    assert_eq!(refusal.invalid_fields(), ["after_sequence"]);

    let of_types =
        WatchEventsRequest { types: vec!["tool_call_finished".to_owned()], ..snapshot_request(3) };
    let finished = EventWatch::of(&daemon, of_types).await.remaining_events().await;
    assert_eq!(sequences(&finished), [4, 6, 8, 10, 12, 14, 16, 18]);
}

#[tokio::test]
async fn watch_resumes_after_daemon_is_killed() {
    let mut daemon = Daemon::start().await;

    let mut seen = Vec::new();
    for round in 0..4 {
        let mut watching = EventWatch::from(&daemon, seen.last().copied().unwrap_or(0)).await;
        for number in 0..5 {
            make_directory(&daemon, &format!("d{round}-{number}")).await;
        }

        // The daemon is killed when some events were sent and some not.
        for _ in 0..7 {
            seen.push(watching.next_event().await.sequence);
        }

        daemon = daemon.restart().await;
    }

    let rest = EventWatch::of(&daemon, snapshot_request(28)).await.remaining_events().await;
    seen.extend(sequences(&rest));
    assert_eq!(seen, (1..=40).collect::<Vec<u64>>());
}

#[tokio::test]
async fn watch_waits_for_missing_session_without_creating_it() {
    let daemon = Daemon::start().await;

    let mut watching = EventWatch::of(&daemon, in_session("later", watch_request(0))).await;
    let snapshot = EventWatch::of(&daemon, in_session("later", snapshot_request(0))).await;
    assert_eq!({ snapshot }.remaining_events().await, []);

    let refusal = EventWatch::try_of(&daemon, in_session("later", watch_request(1))).await;
    assert_eq!(refusal.err().unwrap().reason, "INVALID_PARAMS");

    make_directory(&daemon, "in another session").await;
    assert!(!daemon.state_dir().join("sessions/later").exists());

    daemon.run(in_session("later", shell("true"))).await;
    for expected in ["tool_call_started", "tool_call_finished"] {
        assert_eq!(watching.next_event().await.r#type, expected);
    }
}

#[tokio::test]
async fn idle_watch_sends_keep_alives() {
    let daemon = Daemon::start().await;

    make_directory(&daemon, "d").await;
    let request = |after_sequence| WatchEventsRequest {
        keep_alive_sec: Some(1),
        ..watch_request(after_sequence)
    };
    let mut watching = EventWatch::of(&daemon, request(2)).await;
    let mut waiting = EventWatch::of(&daemon, in_session("none", request(0))).await;

    for (watching, last) in [(&mut watching, 2), (&mut waiting, 0)] {
        match watching.next().await {
            Some(Item::KeepAlive(keep_alive)) => assert_eq!(keep_alive.last_sequence, last),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn draining_daemon_streams_last_events_then_ends_watches() {
    let mut daemon = Daemon::start().await;

    let mut watching = EventWatch::from(&daemon, 0).await;
    let mut waiting = EventWatch::of(&daemon, in_session("none", watch_request(0))).await;
    let call = daemon.spawn_run(shell("touch runs; until [ -e end ]; do sleep 0.05; done"));
    assert_eq!(watching.next_event().await.r#type, "tool_call_started");

    crate::support::eventually("the command runs", async || daemon.file("runs").exists()).await;
    daemon.signal(Signal::TERM);
    crate::support::eventually("the daemon drains", async || daemon.log().contains("draining"))
        .await;
    std::fs::write(daemon.file("end"), "").unwrap();
    call.await.unwrap().unwrap();

    assert_eq!(watching.next_event().await.r#type, "tool_call_finished");

    for watching in [&mut watching, &mut waiting] {
        let status = watching.try_next().await.unwrap_err();
        assert_eq!(Refusal::from_status(&status).reason, "DRAINING");
        assert_eq!(status.code(), Code::Unavailable);
    }
    assert!(daemon.wait_for_exit().await.success());
    assert!(!daemon.log().contains("closed connections that"), "{}", daemon.log());
}

#[tokio::test]
async fn deadline_ends_watch() {
    let daemon = Daemon::start().await;
    let mut request = tonic::Request::new(watch_request(0));
    request.set_timeout(std::time::Duration::from_millis(300));
    let mut watching = EventWatch::of(&daemon, request).await;
    let status = watching.try_next().await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
}

#[tokio::test]
async fn call_killed_with_daemon_is_recorded_as_finished() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();

    let call = daemon.spawn_run(mark.on(shell("sleep 1000")));
    mark.wait_for_processes(1).await;

    let daemon = daemon.restart().await;
    assert!(call.await.unwrap().is_err());

    for _ in 0..2 {
        let events = EventWatch::of(&daemon, snapshot_request(0)).await.remaining_events().await;
        assert_eq!(sequences(&events), [1, 2]);
        let [started, ended] = [&events[0], &events[1]];
        assert_eq!((&*ended.r#type, ended.step), ("tool_call_finished", 1));
        assert_eq!(ended.call_id, started.call_id);
        assert_eq!(event_record(ended)["error_type"], "daemon_lost");
    }
}

#[tokio::test]
async fn duplicate_session_header_is_rejected() {
    let daemon = Daemon::start().await;
    let mut request = in_session("one", snapshot_request(0));
    let other = "other".parse().unwrap();
    request.metadata_mut().append("jig-session", other);
    let refusal = EventWatch::try_of(&daemon, request).await.err().unwrap();
    assert_eq!(refusal.reason, "INVALID_PARAMS");
    assert_eq!(refusal.invalid_fields(), ["jig-session"]);
}
