//! Faults of the network between daemons and the server: partitions, lost acknowledgements, slow
//! links, and connections that are cut. No job is lost, none runs twice, and each has one end.

use std::{fs, slice, time::Duration};

use jig::api::v1::{FleetJobState, JobState, SubmitJobRequest};
use rustix::process::Signal;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    COUNTED_WAIT, Member, TestFleet, all_effects,
    plain_client::{JobMessage, MAX_FLEET_TIME, fleet_job_id},
    starts::{end_of, publish_two, start_slow_member},
};
use crate::{
    jobs::{command_job, tool_job},
    support::{eventually_within, full_size},
};

/// A partition that the fleet takes for the death of the daemon: another one ends the job as lost.
/// When the partition heals, the first daemon has a result, which comes too late.
#[tokio::test]
async fn result_after_a_long_partition_does_not_replace_the_end() {
    let fleet = TestFleet::start().await;
    let first = fleet.start_member().await;
    let client = &fleet.client;
    client.publish(&JobMessage::new("m-1", &command_job(COUNTED_WAIT))).await;
    first.wait_for_effects(1).await;
    let second = fleet.start_member_beside(&first).await;

    first.proxy.partition();
    let id = fleet_job_id("m-1");
    let lost = client.wait_for_end(&id).await;
    assert_eq!(lost.job.as_ref().unwrap().state(), JobState::Lost);

    first.go();
    first.proxy.heal();
    // The first daemon takes part again once it knows.
    first.wait_until_it_runs_jobs(&fleet).await;
    client.wait_for_ends(slice::from_ref(&id)).await;
    assert_eq!(client.record(&id).await.unwrap(), lost);
    assert_eq!(all_effects(&[&first, &second]), ["run"]);
}

/// As above, but the request permits a repetition: two daemons run the job, and one result counts.
#[tokio::test]
async fn repeated_job_of_a_partitioned_daemon_has_one_result() {
    let fleet = TestFleet::start().await;
    let first = fleet.start_member().await;
    let request = SubmitJobRequest {
        retry_if_lost: true,
        ..command_job(&format!("{COUNTED_WAIT}; cat name"))
    };
    fs::write(first.daemon.file("name"), "first").unwrap();
    fleet.client.publish(&JobMessage::new("m-1", &request)).await;
    first.wait_for_effects(1).await;

    let second = fleet.start_member_beside(&first).await;
    fs::write(second.daemon.file("name"), "second").unwrap();
    first.proxy.partition();
    second.wait_for_effects(1).await;

    // The first daemon ends the job while the second runs it.
    first.go();
    first.proxy.heal();
    first.wait_until_it_runs_jobs(&fleet).await;
    second.go();
    let id = fleet_job_id("m-1");
    let ends = fleet.client.wait_for_ends(slice::from_ref(&id)).await;
    let job = ends[&id].job.as_ref().unwrap();
    assert_eq!(job.state(), JobState::Succeeded);
    let result = job.result.as_ref().unwrap();
    assert!(result.text.contains("second"), "the claim of the first is void: {result:?}");
}

/// A partition longer than the acknowledgement wait, and shorter than the death of a daemon.
#[tokio::test]
async fn short_partition_only_delays() {
    let mut fleet = TestFleet::start().await;
    fleet.set_times("1s", "60s");
    let first = fleet.start_member().await;
    let second = fleet.start_member_beside(&first).await;
    let client = &fleet.client;
    client.publish(&JobMessage::new("m-1", &command_job(COUNTED_WAIT))).await;
    let members = [&first, &second];
    eventually_within(MAX_FLEET_TIME, "the job runs", async || all_effects(&members).len() == 1)
        .await;

    let [one, other] =
        if first.lines("effects").is_empty() { [&second, &first] } else { [&first, &second] };
    one.proxy.partition();
    one.go();
    other.go();
    let id = fleet_job_id("m-1");
    // Lets the wait for the acknowledgement pass a few times.
    sleep(Duration::from_secs(3)).await;
    assert_eq!(client.record(&id).await.unwrap().state(), FleetJobState::Claimed);

    one.proxy.heal();
    let ends = client.wait_for_ends(slice::from_ref(&id)).await;
    assert_eq!(ends[&id].job.as_ref().unwrap().state(), JobState::Succeeded);
    assert_eq!(all_effects(&members), ["run"]);
}

/// Progress and acknowledgements vanish, so that the server delivers each message again while its
/// job runs, and after its end.
#[tokio::test]
async fn lost_acknowledgements_run_nothing_twice() {
    let mut fleet = TestFleet::start().await;
    fleet.set_times("1s", "60s");
    let first = fleet.start_member().await;
    let second = fleet.start_member_beside(&first).await;
    let client = &fleet.client;
    let members = [&first, &second];
    for member in members {
        member.proxy.drop_acks(true);
    }

    let mut ids = Vec::new();
    for number in 0..6 {
        let request = command_job(COUNTED_WAIT);
        client.publish(&JobMessage::new(&format!("m-{number}"), &request)).await;
        ids.push(fleet_job_id(&format!("m-{number}")));
    }
    let dropped = || members.iter().map(|member| member.proxy.dropped_acks()).sum::<usize>();
    eventually_within(MAX_FLEET_TIME, "all jobs run", async || all_effects(&members).len() == 6)
        .await;
    let before = dropped();
    eventually_within(MAX_FLEET_TIME, "progress is lost", async || dropped() > before + 24).await;

    for member in members {
        member.go();
    }
    for id in &ids {
        client.wait_for_end(id).await;
    }
    let before = dropped();
    eventually_within(MAX_FLEET_TIME, "ends are lost", async || dropped() > before + 12).await;
    assert_eq!(client.message_count().await, Some(6));

    for member in members {
        member.proxy.drop_acks(false);
    }
    for record in client.wait_for_ends(&ids).await.values() {
        assert_eq!(record.job.as_ref().unwrap().state(), JobState::Succeeded);
        assert_eq!(record.attempts, 1);
    }
    assert_eq!(all_effects(&members).len(), 6);
}

/// Jobs with large requests over a link that is far slower than the server.
#[tokio::test]
async fn slow_consumer_runs_each_job_once() {
    let fleet = TestFleet::start().await;
    let member = fleet.start_member().await;
    member.proxy.slow_down();

    let mut ids = Vec::new();
    for number in 0..full_size(100, 12) {
        let name = format!("m-{number}");
        let variables = json!({ "LARGE": "x".repeat(64 << 10) });
        let params = json!({ "command": "echo run >> effects", "env": variables });
        fleet.client.publish(&JobMessage::new(&name, &tool_job("run", params))).await;
        ids.push(fleet_job_id(&name));
    }
    for record in fleet.client.wait_for_ends(&ids).await.values() {
        assert_eq!(record.job.as_ref().unwrap().state(), JobState::Succeeded, "{record:?}");
    }
    assert_eq!(member.lines("effects").len(), ids.len());
}

/// Connections that are cut again and again, at random moments.
#[tokio::test]
async fn cut_connections_lose_no_job() {
    let fleet = TestFleet::start().await;
    let first = fleet.start_member().await;
    let second = fleet.start_member_beside(&first).await;
    let members = [&first, &second];
    let cutting = Instant::now() + Duration::from_secs(full_size(60, 4) as u64);

    let mut ids = Vec::new();
    let mut random = fastrand::Rng::with_seed(27);
    while Instant::now() < cutting {
        for _ in 0..5 {
            let name = format!("m-{}", ids.len());
            let request = command_job("echo run >> effects; sleep 0.1");
            fleet.client.publish(&JobMessage::new(&name, &request)).await;
            ids.push(fleet_job_id(&name));
        }
        // Acts at a random moment.
        sleep(Duration::from_millis(random.u64(0..300))).await;
        members[random.usize(0..2)].proxy.cut();
    }

    for record in fleet.client.wait_for_ends(&ids).await.values() {
        assert_eq!(record.job.as_ref().unwrap().state(), JobState::Succeeded, "{record:?}");
    }
    assert_eq!(all_effects(&members).len(), ids.len());
}

/// A job waits at a daemon while others take the daemon for dead: it does not begin there any more.
#[tokio::test]
async fn queued_job_that_was_given_up_during_an_absence_does_not_begin() {
    let mut fleet = TestFleet::start().await;
    let first = start_slow_member(&mut fleet).await;
    publish_two(&fleet, &first).await;
    let second = fleet.start_member_beside(&first).await;
    first.daemon.signal(Signal::STOP);
    for name in ["running", "queued"] {
        assert_eq!(end_of(&fleet, name).await.0, JobState::Lost);
    }

    first.daemon.signal(Signal::CONT);
    eventually_within(MAX_FLEET_TIME, "the daemon notices both losses", async || {
        first.daemon.log().matches("the claim of a fleet job was lost").count() == 2
    })
    .await;
    first.go();
    fleet.client.wait_for_free_places(&[4, 4]).await;
    assert_eq!(all_effects(&[&first, &second]), ["run"]);
}

impl Member {
    /// Waits until this daemon runs jobs of the queue.
    async fn wait_until_it_runs_jobs(&self, fleet: &TestFleet) {
        let mut number = 0;
        eventually_within(MAX_FLEET_TIME, "the daemon runs jobs again", async || {
            let name = format!("probe-{number}");
            fleet.client.publish(&JobMessage::new(&name, &command_job("touch took-part"))).await;
            fleet.client.wait_for_end(&fleet_job_id(&name)).await;
            number += 1;
            self.daemon.file("took-part").exists()
        })
        .await;
    }
}
