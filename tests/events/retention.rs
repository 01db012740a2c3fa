//! Retention of sessions, while they are watched and across kills.

use std::{collections::BTreeSet, fs};

use jig::api::v1::{
    LastCommandRequest, ListSessionsRequest, event_service_client::EventServiceClient,
    watch_events_response::Item,
};

use super::{
    EventWatch, in_session, make_directory, records, sequences, snapshot_request, watch_request,
};
use crate::support::{Daemon, Mark, Setup, eventually, full_size, shell, with_metadata};

/// A small limit on the records of a session.
const SMALL_RECORDS_TABLE: &str = "[sessions]\nmax_record_bytes = 65536";

/// The number of the first stored record of the default session.
fn first_sequence(daemon: &Daemon) -> u64 {
    let records = records(daemon, "default");
    records.first().map_or(0, |record| record["sequence"].as_u64().unwrap())
}

fn record_bytes(daemon: &Daemon) -> u64 {
    let path = daemon.state_dir().join("sessions/default/events.jsonl");
    fs::metadata(path).unwrap().len()
}

/// Reads until record `last` has arrived. Returns the records that were skipped.
async fn missed_until(watching: &mut EventWatch, mut next: u64, last: u64) -> BTreeSet<u64> {
    let mut skipped = BTreeSet::new();
    while next <= last {
        match watching.next().await.unwrap() {
            Item::Event(event) => {
                assert_eq!(event.sequence, next, "each record arrives once and in order");
                next += 1;
            }
            Item::Gap(gap) => {
                assert!(gap.first_sequence > next, "{gap:?} at {next}");
                skipped.extend(next..gap.first_sequence);
                next = gap.first_sequence;
            }
            Item::KeepAlive(_) => {}
            other => panic!("{other:?}"),
        }
    }
    skipped
}

#[tokio::test]
async fn oldest_steps_are_removed_while_watched() {
    let daemon = Setup::new().workspace_table(SMALL_RECORDS_TABLE).start().await;

    let mut reading_watch = EventWatch::from(&daemon, 0).await;
    let mut idle_watch = EventWatch::from(&daemon, 0).await;
    let output = daemon.run(shell("echo text")).await;
    let calls = full_size(5_000, 600);
    let last = u64::try_from(calls).unwrap() * 2 + 2;
    let mut read = 0;
    for number in 0..calls {
        make_directory(&daemon, &format!("d{}", number % 50)).await;
        // A watch that keeps up misses nothing.
        if (number + 1) % 20 == 0 {
            let written = u64::try_from(number + 1).unwrap() * 2 + 2;
            let skipped = missed_until(&mut reading_watch, read + 1, written).await;
            assert!(skipped.is_empty(), "{skipped:?}");
            read = written;
        }
    }

    assert_eq!(read, last);

    eventually("old records are removed", async || first_sequence(&daemon) > 2).await;
    missed_until(&mut idle_watch, 1, last).await;
    eventually("the limit is enforced", async || record_bytes(&daemon) <= 65536).await;

    let refusal = daemon.artifact_of_session("default", &output.stdout_path).await;
    let refusal = refusal.unwrap_err();
    assert_eq!(refusal.reason, "ARTIFACT_NOT_FOUND");
    assert!(refusal.message.contains("ListArtifacts"), "{refusal:?}");

    // From any number, the gap is reported, and then the stored records.
    let first = first_sequence(&daemon);
    for after in [0, 1, first - 2, first - 1, first, last - 1, last] {
        let mut watching = EventWatch::of(&daemon, snapshot_request(after)).await;
        if after + 1 < first {
            match watching.next().await {
                Some(Item::Gap(gap)) => assert_eq!(gap.first_sequence, first),
                other => panic!("{after}: {other:?}"),
            }
        }

        let events = watching.remaining_events().await;
        let expected = (after + 1).max(first)..=last;
        assert!(events.iter().map(|event| event.sequence).eq(expected), "{after}");
    }

    let response = daemon.run(shell("true")).await;
    let step = format!("{:04}", calls + 2);
    assert!(response.stdout_path.contains(&step), "{response:?}");
}

#[tokio::test]
async fn running_step_is_retained_behind_newer_ones() {
    let daemon = Setup::new().workspace_table(SMALL_RECORDS_TABLE).start().await;
    let mark = Mark::new();

    let command = "echo begins; until [ -e end ]; do sleep 0.05; done; echo ends";
    let call = daemon.spawn_run(mark.on(shell(command)));
    mark.wait_for_processes(1).await;

    let mut number = 0;
    eventually("old records are removed", async || {
        for _ in 0..50 {
            number += 1;
            make_directory(&daemon, &format!("d{}", number % 50)).await;
        }
        records(&daemon, "default")[1]["sequence"] != 2
    })
    .await;
    assert_eq!(first_sequence(&daemon), 1, "the first record of the running step is retained");

    // A later watch gets each gap.
    let mut watching = EventWatch::of(&daemon, snapshot_request(0)).await;
    assert_eq!(watching.next_event().await.sequence, 1);
    assert!(matches!(watching.next().await, Some(Item::Gap(_))));

    fs::write(daemon.file("end"), "").unwrap();
    let response = call.await.unwrap().unwrap();
    let (output, _) = daemon.artifact(&response.stdout_path).await;
    assert_eq!(output, b"begins\nends\n");
}

#[tokio::test]
async fn records_shrink_around_a_running_step() {
    let daemon = Setup::new().workspace_table(SMALL_RECORDS_TABLE).start().await;
    let mark = Mark::new();

    // The first record is large, and is retained while the command runs.
    let long = "x".repeat(8000);
    let command = format!("until [ -e end ]; do sleep 0.05; done; : {long}");
    let call = daemon.spawn_run(mark.on(shell(&command)));
    mark.wait_for_processes(1).await;

    let mut number = 0;
    let mut has_room = true;
    while has_room {
        number += 1;
        make_directory(&daemon, &format!("d{}", number % 50)).await;
        // Until records are removed or due for removal.
        has_room =
            record_bytes(&daemon) <= 65536 && records(&daemon, "default")[1]["sequence"] == 2;
    }

    eventually("the limit is enforced", async || record_bytes(&daemon) <= 65536).await;
    assert_eq!(first_sequence(&daemon), 1);

    fs::write(daemon.file("end"), "").unwrap();
    call.await.unwrap().unwrap();
}

#[tokio::test]
async fn unused_session_is_removed_with_its_directory() {
    let daemon = Setup::new().workspace_table("[sessions]\nretention = \"4s\"").start().await;

    daemon.run(in_session("unused", shell("echo text"))).await;
    daemon.run(in_session("watched", shell("echo text"))).await;
    let directory = |daemon: &Daemon, name: &str| daemon.state_dir().join("sessions").join(name);

    // Left by a daemon that died while it removed a session.
    let half = directory(&daemon, ".removed-half");
    fs::create_dir(&half).unwrap();
    fs::write(half.join("events.jsonl"), "").unwrap();
    eventually("the session is older than the retention", async || {
        let age = fs::metadata(directory(&daemon, "watched/events.jsonl"));
        age.unwrap().modified().unwrap().elapsed().unwrap().as_secs() >= 5
    })
    .await;

    // Retention is applied soon after the start.
    let daemon = daemon.restart().await;
    let watching = EventWatch::of(&daemon, in_session("watched", watch_request(2))).await;
    eventually("the unused session is removed", async || {
        !directory(&daemon, "unused").exists() && !half.exists()
    })
    .await;

    eventually("the expired records are removed", async || records(&daemon, "watched").is_empty())
        .await;
    drop(watching);
    let response = daemon.run(in_session("watched", shell("true"))).await;
    assert_eq!(response.stdout_path, "logs/tool_step_0002_stdout.txt");

    // The new session reuses no path and no number of the removed one.
    let mut later = EventWatch::of(&daemon, in_session("unused", watch_request(2))).await;
    let response = daemon.run(in_session("unused", shell("true"))).await;
    assert_eq!(response.stdout_path, "logs/tool_step_0002_stdout.txt");
    assert_eq!(later.next_event().await.sequence, 3);

    let daemon = daemon.restart().await;
    let response = daemon.run(in_session("unused", shell("true"))).await;
    assert_eq!(response.stdout_path, "logs/tool_step_0003_stdout.txt");
}

#[tokio::test]
async fn oldest_artifacts_of_any_session_are_removed_beyond_max_bytes() {
    let table = "[sessions]\nmax_bytes = 1000000";
    let daemon = Setup::new().workspace_table(table).start().await;

    let artifact_counts = |daemon: &Daemon| {
        let artifact_count = |name: &str| {
            let logs = daemon.state_dir().join("sessions").join(name).join("logs");
            fs::read_dir(logs).unwrap().count()
        };
        [artifact_count("s0"), artifact_count("s1")]
    };
    for number in 0..4 {
        let session = format!("s{}", number % 2);
        let command = shell("head -c 200000 /dev/zero");
        daemon.run(in_session(&session, command)).await;
    }
    assert_eq!(artifact_counts(&daemon), [2, 2]);

    // Retention does not wait for its timer: written bytes are counted.
    eventually("retention has measured the sessions", async || {
        let command = shell("head -c 200000 /dev/zero");
        daemon.run(in_session("s0", command)).await;
        artifact_counts(&daemon)[1] < 2
    })
    .await;
    eventually("the limit is enforced", async || {
        artifact_counts(&daemon).iter().sum::<usize>() <= 4
    })
    .await;
}

#[tokio::test]
async fn max_bytes_spares_the_smaller_workspace() {
    let directory = tempfile::TempDir::with_prefix("jig-test-other-").unwrap();
    let table = format!(
        "[[workspaces]]\nname = \"other\"\npath = {:?}\n[sessions]\nmax_bytes = 1000000",
        directory.path()
    );
    let daemon = Setup::new().workspace_table(&table).start().await;

    let small_run = daemon.run(shell("echo text")).await;
    eventually("records of the other workspace are removed", async || {
        let command = shell("head -c 200000 /dev/zero");
        daemon.run(with_metadata("jig-workspace", "other", command)).await;
        let request = with_metadata("jig-workspace", "other", snapshot_request(0));
        let next = EventWatch::of(&daemon, request).await.next().await;
        matches!(next, Some(Item::Gap(_)))
    })
    .await;

    let events = EventWatch::of(&daemon, snapshot_request(0)).await.remaining_events().await;
    assert_eq!(sequences(&events), [1, 2]);
    assert_eq!(daemon.artifact(&small_run.stdout_path).await.0, b"text\n");

    let last = daemon.tools().last_command(LastCommandRequest {}).await;
    assert_eq!(last.unwrap().into_inner().stdout, "text\n");
}

#[tokio::test]
async fn longest_unused_sessions_are_removed_beyond_max_entries() {
    let table = "[sessions]\nmax_entries = 20";
    let daemon = Setup::new().workspace_table(table).start().await;

    let sessions = |daemon: &Daemon| {
        let names = fs::read_dir(daemon.state_dir().join("sessions")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let names = names.filter(|name| !name.starts_with('.'));
        names.collect::<BTreeSet<_>>()
    };
    let mut number = 100;
    eventually("the oldest session is removed", async || {
        for _ in 0..10 {
            number += 1;
            let session = format!("s{number}");
            daemon.run(in_session(&session, shell("true"))).await;
        }
        !sessions(&daemon).contains("s101")
    })
    .await;

    eventually("the limit is enforced", async || sessions(&daemon).len() <= 20).await;
    assert!(sessions(&daemon).contains(&format!("s{number}")));
}

#[tokio::test]
async fn stray_files_do_not_stop_retention() {
    let table = "[sessions]\nretention = \"3s\"";
    let daemon = Setup::new().workspace_table(table).start().await;

    daemon.run(in_session("unused", shell("true"))).await;
    daemon.run(in_session("damaged", shell("true"))).await;
    let sessions = daemon.state_dir().join("sessions");
    fs::write(sessions.join("a-stray-file"), "").unwrap();
    fs::write(sessions.join("damaged/numbers"), "nonsense").unwrap();
    let directory = sessions.join("unused");
    eventually("the session is older than the retention", async || {
        let records = fs::metadata(directory.join("events.jsonl")).unwrap();
        records.modified().unwrap().elapsed().unwrap().as_secs() >= 4
    })
    .await;

    let daemon = daemon.restart().await;
    daemon.run(in_session("new", shell("true"))).await;
    eventually("the unused session is removed", async || !directory.exists()).await;

    let mut client = EventServiceClient::new(daemon.channel());
    let listed = client.list_sessions(ListSessionsRequest::default()).await;
    let listed = listed.unwrap().into_inner().sessions;
    let listed: Vec<_> = listed.into_iter().map(|session| session.session).collect();
    assert_eq!(listed, ["new"]);
    assert!(sessions.join("a-stray-file").exists());
}

/// Checks that the stored records and artifacts of the default session match.
fn check_consistency(daemon: &Daemon) {
    let stored = records(daemon, "default");
    let sequences: Vec<u64> =
        stored.iter().map(|record| record["sequence"].as_u64().unwrap()).collect();
    assert!(sequences.is_sorted_by(|previous, next| previous < next), "{sequences:?}");

    let logs = daemon.state_dir().join("sessions/default/logs");
    for entry in fs::read_dir(logs).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let step: u64 = name.split('_').nth(2).unwrap().parse().unwrap();
        let has_record = stored.iter().any(|record| record["step"] == step);
        assert!(has_record, "{name} has no record");
    }
}

#[tokio::test]
async fn kills_during_removal_leave_sessions_consistent() {
    let mut daemon = Setup::new().workspace_table(SMALL_RECORDS_TABLE).start().await;

    let (mut seen, mut steps) = (0, 0_u64);
    for round in 0..full_size(40, 4) {
        let mut watching = EventWatch::from(&daemon, seen).await;
        let before = seen;
        let mut number = 0;
        let calls = 150 + round * 13 % 60;

        while number < calls {
            daemon.run(shell("echo text")).await;
            make_directory(&daemon, &format!("d{}", number % 9)).await;
            number += 2;
            steps += 2;
        }

        let skipped = missed_until(&mut watching, before + 1, steps * 2).await;
        assert!(skipped.len() < 1000);

        seen = steps * 2;

        // During a removal, or around its end.
        let new = daemon.state_dir().join("sessions/default/events.jsonl.new");
        eventually("records are removed", async || {
            (round % 2 == 0 && new.exists()) || record_bytes(&daemon) <= 65536
        })
        .await;

        daemon = daemon.restart().await;
        check_consistency(&daemon);
    }

    eventually("records are removed", async || first_sequence(&daemon) > 1).await;
    let response = daemon.run(shell("true")).await;
    let step = format!("{:04}", steps + 1);
    assert!(response.stdout_path.contains(&step), "{response:?}");
}
