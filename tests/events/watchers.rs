//! Many concurrent watches.

use jig::api::v1::{WatchEventsRequest, watch_events_response::Item};
use tokio::task::JoinSet;

use super::{EventWatch, event_record, in_session, make_directory, records, watch_request};
use crate::support::{Daemon, Setup, eventually, full_size};

#[tokio::test]
async fn every_watcher_sees_calls_of_every_client() {
    let daemon = Setup::new().exclusive().start().await;

    let (clients, calls) = (8_usize, full_size(500, 40));
    let event_count = u64::try_from(clients * calls * 2).unwrap();
    let mut watchers = JoinSet::new();
    for number in 0..20 {
        let mut watching = EventWatch::from(&daemon, 0).await;
        watchers.spawn(async move {
            let mut events = Vec::new();
            while events.len() < clients * calls * 2 {
                events.push(watching.next_event().await);
            }
            (number, events)
        });
    }

    let mut callers = JoinSet::new();
    for client in 0..clients {
        let mut tools = daemon.tools_on_new_connection();
        callers.spawn(async move {
            for call in 0..calls {
                let path = format!("d{client}/{call}");
                let request = jig::api::v1::CreateDirectoryRequest { path };
                tools.create_directory(request).await.unwrap();
            }
        });
    }

    callers.join_all().await;
    let file = records(&daemon, "default");
    assert_eq!(u64::try_from(file.len()).unwrap(), event_count);

    for (number, events) in watchers.join_all().await {
        let seen: Vec<_> = events.iter().map(event_record).collect();
        assert_eq!(seen, file, "watcher {number}");
    }
}

#[tokio::test]
async fn stalled_watcher_costs_no_memory_and_misses_nothing() {
    let daemon = Daemon::start().await;

    let mut slow = Vec::new();
    for _ in 0..10 {
        slow.push(EventWatch::from(&daemon, 0).await);
    }

    let calls = full_size(20_000, 1_000);
    make_directory(&daemon, "before").await;
    let before = daemon.resident_bytes();

    for number in 0..calls {
        make_directory(&daemon, &format!("d{}", number % 100)).await;
    }

    let after = daemon.resident_bytes();
    assert!(after < before + (16 << 20), "{before} to {after}");

    let mut last = slow.pop().unwrap();
    drop(slow);
    let event_count = u64::try_from(calls + 1).unwrap() * 2;

    for expected in 1..=event_count {
        assert_eq!(last.next_event().await.sequence, expected);
    }
}

#[tokio::test]
async fn watchers_are_limited_per_session_and_caller() {
    let daemon = Daemon::start().await;

    let mut watching = Vec::new();
    for _ in 0..64 {
        watching.push(EventWatch::from(&daemon, 0).await);
    }

    let refusal = EventWatch::try_of(&daemon, watch_request(0)).await.err().unwrap();
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");

    // The limit per caller also counts watches of sessions that do not exist.
    let mut other_watches = Vec::new();
    for number in 0..64 {
        let session = format!("none-{number}");
        other_watches.push(EventWatch::of(&daemon, in_session(&session, watch_request(0))).await);
    }

    let another = in_session("another", watch_request(0));
    let refusal = EventWatch::try_of(&daemon, another).await.err().unwrap();
    assert_eq!(refusal.metadata["limit"], "128", "{refusal:?}");

    drop(other_watches);
    eventually("a watch of another session is accepted", async || {
        let another = in_session("another", watch_request(0));
        EventWatch::try_of(&daemon, another).await.is_ok()
    })
    .await;

    drop(watching);
    eventually("a watch is accepted again", async || {
        EventWatch::try_of(&daemon, watch_request(0)).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn type_filter_omits_other_events() {
    let daemon = Daemon::start().await;
    let of_types = WatchEventsRequest {
        types: vec!["patch_applied".to_owned()],
        keep_alive_sec: Some(1),
        ..watch_request(0)
    };
    let mut watching = EventWatch::of(&daemon, of_types).await;
    make_directory(&daemon, "d").await;

    match watching.next().await {
        Some(Item::KeepAlive(_)) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn watch_can_start_at_the_tail() {
    let daemon = Daemon::start().await;

    let tail = |tail| WatchEventsRequest { tail: Some(tail), ..watch_request(0) };
    let keep_alive_sequence = async |watching: &mut EventWatch| match watching.next().await {
        Some(Item::KeepAlive(keep_alive)) => keep_alive.last_sequence,
        other => panic!("{other:?}"),
    };
    let mut empty_watch = EventWatch::of(&daemon, tail(0)).await;
    assert_eq!(keep_alive_sequence(&mut empty_watch).await, 0);

    make_directory(&daemon, "one").await;
    assert_eq!(empty_watch.next_event().await.sequence, 1);

    let mut tail_0 = EventWatch::of(&daemon, tail(0)).await;
    let mut tail_1 = EventWatch::of(&daemon, tail(1)).await;
    let mut tail_9 = EventWatch::of(&daemon, tail(9)).await;
    let positions = [
        keep_alive_sequence(&mut tail_0).await,
        keep_alive_sequence(&mut tail_1).await,
        keep_alive_sequence(&mut tail_9).await,
    ];

    assert_eq!(positions, [2, 1, 0]);

    make_directory(&daemon, "two").await;
    for (watching, first) in [(&mut tail_0, 3), (&mut tail_1, 2), (&mut tail_9, 1)] {
        assert_eq!(watching.next_event().await.sequence, first);
    }

    let both = WatchEventsRequest {
        after_sequence: 1,
        types: vec!["patch_applied".to_owned(), "tool_call_ended".to_owned()],
        ..tail(1)
    };
    let refusal = EventWatch::try_of(&daemon, both).await.err().unwrap();
    assert_eq!(refusal.reason, "INVALID_PARAMS");
    assert_eq!(refusal.invalid_fields(), ["tail", "types[1]"]);
}
