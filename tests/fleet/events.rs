//! What happens to fleet jobs, in the audit log and in the metrics of a daemon.

use std::collections::BTreeMap;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{
    COUNTED_WAIT, Member, SIGNING_KEY, TestFleet,
    plain_client::{JobMessage, MAX_FLEET_TIME, fleet_job_id},
};
use crate::{
    audit::AuditDirectory,
    jobs::{command_job, tool_job},
    support::eventually_within,
    telemetry::metrics::{metrics_address, scrape},
};

/// Lines of the audit log about fleet jobs: event, outcome, reason and principal of each by job.
fn events(audit: &AuditDirectory) -> BTreeMap<String, Vec<Value>> {
    let mut events = BTreeMap::<String, Vec<Value>>::new();
    for line in audit.lines().iter().filter(|line| line["event"] == "fleet_job") {
        assert_eq!(line["queue"], "build", "{line}");
        let names = ["fleet_event", "outcome", "reason", "principal"];
        let id = line["fleet_job_id"].as_str().unwrap().to_owned();
        events.entry(id).or_default().push(json!(names.map(|name| &line[name])));
    }
    events
}

/// Counts of fleet jobs by event.
async fn counts(member: &Member) -> BTreeMap<String, f64> {
    let text = scrape(&metrics_address(&member.daemon).unwrap()).await;
    let samples = text.lines().filter(|line| {
        line.starts_with("jig_fleet_jobs_total{") && line.contains("jig_fleet_queue=\"build\"")
    });
    let count = |line: &str| {
        let (_, rest) = line.split_once("jig_fleet_event=\"")?;
        let (event, _) = rest.split_once('"')?;
        Some((event.to_owned(), line.rsplit(' ').next()?.parse().ok()?))
    };
    samples.filter_map(count).filter(|(_, count)| *count > 0.0).collect()
}

#[tokio::test]
async fn each_claim_and_each_end_is_reported() {
    let mut fleet = TestFleet::start().await;
    // A daemon claims jobs, and runs one at a time.
    fleet.keys.add_key("slow", "invoke", &["--concurrent-calls", "1"]);
    fleet.set_queues(
        "[[fleet.queues]]\nname = \"build\"\nkey = \"slow\"\nworkspaces = [\"main\"]\nplaces = 4\n",
    );
    let mut dying = fleet.start_member_with(|setup| setup).await;
    let client = &fleet.client;
    client.publish(&JobMessage::new("lost", &command_job(COUNTED_WAIT))).await;
    dying.wait_for_effects(1).await;
    let owner = client.record(&fleet_job_id("lost")).await.unwrap().daemon_id;

    let audit = AuditDirectory::new();
    let mut member = fleet
        .start_member_with(|setup| {
            let setup = audit.of(setup.beside(&dying.daemon));
            setup.arguments(&["--drain-timeout", "120s", "--metrics-listen", "0.0.0.0:0"])
        })
        .await;
    dying.kill().await;
    client.wait_for_end(&fleet_job_id("lost")).await;
    let bad = tool_job("read_file", json!({ "path": "missing" }));
    client.publish(&JobMessage::new("good", &command_job("exit 0"))).await;
    client.publish(&JobMessage::new("bad", &bad)).await;
    let forged = JobMessage::new("forged", &command_job("true"));
    client.publish(&forged.signed(b"another key, which has 32 bytes+", "key:ci")).await;
    for name in ["good", "bad", "forged"] {
        client.wait_for_end(&fleet_job_id(name)).await;
    }

    let expected = [("claimed", 2), ("finished", 2), ("lost", 1), ("rejected", 1)];
    let expected = expected.map(|(event, count)| (event.to_owned(), f64::from(count)));
    eventually_within(MAX_FLEET_TIME, "the metrics have all events", async || {
        counts(&member).await == BTreeMap::from(expected.clone())
    })
    .await;

    // A daemon that drains gives back what has not begun.
    client.publish(&JobMessage::new("running", &command_job(COUNTED_WAIT))).await;
    member.wait_for_effects(1).await;
    client.publish(&JobMessage::new("waiting", &command_job("true"))).await;
    let waiting = fleet_job_id("waiting");
    eventually_within(MAX_FLEET_TIME, "the daemon has claimed both", async || {
        events(&audit).contains_key(&waiting)
    })
    .await;
    member.daemon.signal(Signal::TERM);
    eventually_within(MAX_FLEET_TIME, "the job is given back", async || {
        events(&audit)[&waiting].len() == 2
    })
    .await;
    member.go();
    assert!(member.daemon.wait_for_exit().await.success());

    let claimed = json!(["claimed", null, null, "key:slow"]);
    let ended =
        |event: &str, outcome: &str, reason: Value| json!([event, outcome, reason, "key:slow"]);
    let expected = [
        ("lost", vec![ended("lost", "lost", "DAEMON_LOST".into())]),
        ("good", vec![claimed.clone(), ended("finished", "succeeded", Value::Null)]),
        ("bad", vec![claimed.clone(), ended("finished", "failed", Value::Null)]),
        ("forged", vec![json!(["rejected", null, "UNAUTHENTICATED", null])]),
        ("running", vec![claimed.clone(), ended("finished", "succeeded", Value::Null)]),
        ("waiting", vec![claimed, json!(["released", null, "DRAINING", "key:slow"])]),
    ];
    let expected = expected.map(|(name, events)| (fleet_job_id(name), events));
    assert_eq!(events(&audit), BTreeMap::from(expected));

    let lines = audit.lines();
    let line = |name: &str, event: &str| {
        let id = fleet_job_id(name);
        let found = |line: &&Value| line["fleet_job_id"] == id && line["fleet_event"] == event;
        lines.iter().find(found).unwrap()
    };
    assert_eq!(line("lost", "lost")["owner"], owner);
    assert_eq!(line("forged", "rejected")["request_id"], "forged");
    let finished = line("good", "finished");
    assert_ne!(finished["daemon_id"], owner);
    assert_eq!((&finished["workspace"], &finished["tool"]), (&json!("main"), &json!("run")));
    // The local job has lines of its own.
    let is_local_end =
        |line: &&Value| line["event"] == "job_ended" && line["job_id"] == finished["job_id"];
    assert_eq!(lines.iter().filter(is_local_end).count(), 1);
    assert_eq!(finished["job_id"], line("good", "claimed")["job_id"]);
    assert!(!audit.text().contains(std::str::from_utf8(SIGNING_KEY).unwrap()));
    assert!(!audit.text().contains(&fleet.ci));
}
