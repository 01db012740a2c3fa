//! Many who watch at one time.

use jig::api::v1::{WatchEventsRequest, watch_events_response::Item};
use tokio::task::JoinSet;

use super::{Watching, in_session, make, record, records, request};
use crate::support::{Daemon, Setup, eventually, full_size};

#[tokio::test]
async fn each_of_many_watchers_sees_all_that_many_clients_do() {
    let daemon = Setup::new().alone().start().await;
    let (clients, calls) = (8_usize, full_size(500, 40));
    let all = u64::try_from(clients * calls * 2).unwrap();
    let mut watchers = JoinSet::new();
    for number in 0..20 {
        // Some from the beginning, some on the way.
        let mut watching = Watching::from(&daemon, 0).await;
        watchers.spawn(async move {
            let mut events = Vec::new();
            while events.len() < clients * calls * 2 {
                events.push(watching.event().await);
            }
            (number, events)
        });
    }
    let mut callers = JoinSet::new();
    for client in 0..clients {
        let mut tools = daemon.tools_on_a_new_connection();
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
    assert_eq!(u64::try_from(file.len()).unwrap(), all);
    for (number, events) in watchers.join_all().await {
        let seen: Vec<_> = events.iter().map(record).collect();
        assert_eq!(seen, file, "watcher {number}");
    }
}

#[tokio::test]
async fn who_takes_nothing_costs_no_memory_and_misses_nothing() {
    let daemon = Daemon::start().await;
    let mut slow = Vec::new();
    for _ in 0..10 {
        slow.push(Watching::from(&daemon, 0).await);
    }
    let calls = full_size(20_000, 1_000);
    make(&daemon, "before").await;
    let before = daemon.resident_bytes();
    for number in 0..calls {
        make(&daemon, &format!("d{}", number % 100)).await;
    }
    let after = daemon.resident_bytes();
    assert!(after < before + (16 << 20), "{before} to {after}");
    let mut last = slow.pop().unwrap();
    drop(slow);
    let all = u64::try_from(calls + 1).unwrap() * 2;
    for expected in 1..=all {
        assert_eq!(last.event().await.sequence, expected);
    }
}

#[tokio::test]
async fn there_are_no_more_watchers_than_may_be() {
    let daemon = Daemon::start().await;
    let mut watching = Vec::new();
    for _ in 0..64 {
        watching.push(Watching::from(&daemon, 0).await);
    }
    let refusal = Watching::try_of(&daemon, request(0)).await.err().unwrap();
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    // Of a caller, also those of sessions that are not there.
    let mut others = Vec::new();
    for number in 0..64 {
        let session = format!("none-{number}");
        others.push(Watching::of(&daemon, in_session(&session, request(0))).await);
    }
    let another = in_session("another", request(0));
    let refusal = Watching::try_of(&daemon, another).await.err().unwrap();
    assert_eq!(refusal.metadata["limit"], "128", "{refusal:?}");
    drop(others);
    eventually("there is a place for another", async || {
        let another = in_session("another", request(0));
        Watching::try_of(&daemon, another).await.is_ok()
    })
    .await;
    drop(watching);
    eventually("there is a place again", async || {
        Watching::try_of(&daemon, request(0)).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn events_of_types_that_nobody_makes_leave_the_others_out() {
    let daemon = Daemon::start().await;
    let of_types = WatchEventsRequest {
        types: vec!["patch_applied".to_owned()],
        keep_alive_sec: Some(1),
        ..request(0)
    };
    let mut watching = Watching::of(&daemon, of_types).await;
    make(&daemon, "d").await;
    match watching.next().await {
        Some(Item::KeepAlive(_)) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_last_ones_alone_can_be_watched() {
    let daemon = Daemon::start().await;
    let tail = |tail| WatchEventsRequest { tail: Some(tail), ..request(0) };
    let place = async |watching: &mut Watching| match watching.next().await {
        Some(Item::KeepAlive(keep_alive)) => keep_alive.last_sequence,
        other => panic!("{other:?}"),
    };
    let mut none = Watching::of(&daemon, tail(0)).await;
    assert_eq!(place(&mut none).await, 0);
    make(&daemon, "one").await;
    assert_eq!(none.event().await.sequence, 1);
    let mut new = Watching::of(&daemon, tail(0)).await;
    let mut some = Watching::of(&daemon, tail(1)).await;
    let mut all = Watching::of(&daemon, tail(9)).await;
    let places = [place(&mut new).await, place(&mut some).await, place(&mut all).await];
    assert_eq!(places, [2, 1, 0]);
    make(&daemon, "two").await;
    for (watching, first) in [(&mut new, 3), (&mut some, 2), (&mut all, 1)] {
        assert_eq!(watching.event().await.sequence, first);
    }
    let both = WatchEventsRequest {
        after_sequence: 1,
        types: vec!["patch_applied".to_owned(), "tool_call_ended".to_owned()],
        ..tail(1)
    };
    let refusal = Watching::try_of(&daemon, both).await.err().unwrap();
    assert_eq!(refusal.reason, "INVALID_PARAMS");
    assert_eq!(refusal.fields(), ["tail", "types[1]"]);
}
