//! Messages of plain NATS clients: each runs once, with the rights of its principal, and its record
//! has the result.

use std::time::Duration;

use futures_util::future::join_all;
use jig::api::v1::{FleetJobState, InvokeResponse, JobState};
use prost::Message as _;
use serde_json::json;
use tokio::{io::AsyncReadExt as _, time::sleep};

use super::{
    Member, SIGNING_KEY, TestFleet,
    nats_proxy::NatsProxy,
    plain_client::{JobMessage, fleet_job_id, queue_job_id},
};
use crate::{
    jobs::{command_job, tool_job},
    support::eventually,
};

#[tokio::test]
async fn plain_message_runs_and_its_record_ends() {
    let fleet = TestFleet::start().await;
    let member = fleet.start_member().await;
    let message = JobMessage::new("m-1", &command_job("echo run >> effects; echo hello"));
    assert!(!fleet.client.publish(&message.header("Jig-Session", "nightly")).await);

    let id = fleet_job_id("m-1");
    let record = fleet.client.wait_for_end(&id).await;
    assert_eq!((&*record.queue, &*record.workspace), ("build", "main"));
    assert_eq!((&*record.request_id, &*record.tool), ("m-1", "run"));
    assert_eq!((&*record.principal, record.attempts), ("key:ci", 1));
    assert!(record.submit_time.is_some() && record.claim_time.is_some());

    let job = record.job.unwrap();
    assert_eq!((job.job_id.as_str(), job.fleet, job.state()), (&*id, true, JobState::Succeeded));
    assert_eq!((&*job.queue, &*job.session, &*job.principal), ("build", "nightly", "key:ci"));
    assert_eq!(job.daemon_id, record.daemon_id);
    assert!(!job.daemon_id.is_empty());
    let result = job.result.as_ref().unwrap();
    assert_eq!(result.exit_code, Some(0));
    assert!(result.text.contains("hello"), "{result:?}");

    // The daemon returns the job as the record has it.
    let mut jobs = fleet.jobs(&member);
    assert_eq!(jobs.try_get(&id).await.unwrap(), job);
    assert_eq!(jobs.wait(&id).await, job);
    assert_eq!(member.lines("effects"), ["run"]);
    eventually("the message is gone", async || fleet.client.message_count().await == Some(0)).await;
}

#[tokio::test]
async fn message_without_workspace_runs_in_first_workspace() {
    let fleet = TestFleet::start().await;
    let member = fleet.start_member().await;
    let message = JobMessage::new("m-1", &command_job("echo run >> effects"));
    fleet.client.publish(&message.subject("jig.jobs.build")).await;

    let record = fleet.client.wait_for_end(&fleet_job_id("m-1")).await;
    assert_eq!(record.job.unwrap().state(), JobState::Succeeded);
    assert_eq!(member.lines("effects"), ["run"]);
}

#[tokio::test]
async fn signed_message_has_rights_of_its_principal() {
    let fleet = TestFleet::start().await;
    let _developer = fleet.keys.add_key("developer", "invoke", &[]);
    let _reader = fleet.keys.add_key("reader", "read", &[]);
    let member = fleet.start_member().await;

    for principal in ["developer", "reader"] {
        let request = command_job(&format!("echo {principal} >> effects"));
        let message = JobMessage::new(principal, &request).header("Jig-Session", "s-1");
        fleet.client.publish(&message.signed(SIGNING_KEY, &format!("key:{principal}"))).await;
    }

    let record = fleet.client.wait_for_end(&fleet_job_id("developer")).await;
    let job = record.job.unwrap();
    assert_eq!((&*job.principal, job.state()), ("key:developer", JobState::Succeeded));
    assert_eq!(job.session, "s-1");

    let record = fleet.client.wait_for_end(&fleet_job_id("reader")).await;
    let job = record.job.unwrap();
    assert_eq!(job.state(), JobState::Failed, "{job:?}");
    assert_eq!(job.result.unwrap().error.unwrap().error_type, "forbidden");
    assert_eq!(member.lines("effects"), ["developer"]);
}

#[tokio::test]
async fn failed_tool_and_exit_code_are_results() {
    let fleet = TestFleet::start().await;
    let _member = fleet.start_member().await;
    let client = &fleet.client;
    client.publish(&JobMessage::new("exits", &command_job("exit 3"))).await;
    let reading = tool_job("read_file", json!({ "path": "absent" }));
    client.publish(&JobMessage::new("fails", &reading)).await;

    let job = client.wait_for_end(&fleet_job_id("exits")).await.job.unwrap();
    assert_eq!(job.state(), JobState::Succeeded);
    assert_eq!(job.result.unwrap().exit_code, Some(3));

    let job = client.wait_for_end(&fleet_job_id("fails")).await.job.unwrap();
    assert_eq!(job.state(), JobState::Failed);
    assert_eq!(job.result.unwrap().error.unwrap().error_type, "file_not_found");
}

#[tokio::test]
async fn repeated_message_runs_once_within_and_beyond_duplicate_window() {
    let fleet = TestFleet::start().await;
    let member = fleet.start_member().await;
    let client = &fleet.client;
    let message = JobMessage::new("m-1", &command_job("echo run >> effects"));

    assert!(!client.publish(&message).await);
    assert!(client.publish(&message).await, "within the window, the stream drops it");
    let id = fleet_job_id("m-1");
    let record = client.wait_for_end(&id).await;

    // A short window, so that the repeated message is a new one for the stream.
    let mut stream = client.jetstream().get_stream("JIG_JOBS").await.unwrap();
    let mut config = stream.info().await.unwrap().config.clone();
    assert_eq!(config.duplicate_window, Duration::from_secs(600));
    config.duplicate_window = Duration::from_millis(100);
    client.jetstream().update_stream(&config).await.unwrap();
    eventually("the stream accepts it again", async || !client.publish(&message).await).await;

    // The same id with another body changes nothing either.
    let other = JobMessage::new("m-1", &command_job("echo other >> effects"));
    eventually("the stream accepts another body", async || !client.publish(&other).await).await;

    eventually("the messages are gone", async || client.message_count().await == Some(0)).await;
    assert_eq!(client.record(&id).await.unwrap(), record);
    assert_eq!(member.lines("effects"), ["run"]);
}

#[tokio::test]
async fn result_above_record_limit_is_in_object_store() {
    let fleet = TestFleet::start().await;
    let first = fleet.start_member().await;
    let second = fleet.start_member_beside(&first).await;
    let params = json!({ "command": "seq 120000", "max_output_bytes": 1_000_000 });
    fleet.client.publish(&JobMessage::new("m-1", &tool_job("run", params))).await;

    let id = fleet_job_id("m-1");
    let record = fleet.client.wait_for_end(&id).await;
    let job = record.job.unwrap();
    assert_eq!((job.state(), job.result.is_none()), (JobState::Succeeded, true));

    let objects = fleet.client.jetstream().get_object_store("JIG_JOBS_results").await.unwrap();
    let mut object = objects.get(&record.result_object).await.unwrap();
    let mut bytes = Vec::new();
    object.read_to_end(&mut bytes).await.unwrap();
    let result = InvokeResponse::decode(&*bytes).unwrap();
    assert!(bytes.len() > 1 << 20, "{} bytes", bytes.len());
    assert!(result.text.contains("119999"), "the end of the output");

    // Both daemons return the whole result.
    for member in [&first, &second] {
        let returned = fleet.jobs(member).wait(&id).await;
        assert_eq!(returned.result.as_ref(), Some(&result));
    }
}

#[tokio::test]
async fn queue_that_no_daemon_maps_keeps_its_messages() {
    let fleet = TestFleet::start().await;
    let member = fleet.start_member().await;
    let client = &fleet.client;
    let request = command_job("echo run >> effects");
    for (number, subject) in ["jig.jobs.other", "jig.jobs.build.foreign"].into_iter().enumerate() {
        let message = JobMessage::new(&format!("m-{number}"), &request).subject(subject);
        client.publish(&message).await;
    }

    // A later message of a mapped queue ends, so the others had their chance.
    client.publish(&JobMessage::new("mapped", &command_job("true"))).await;
    client.wait_for_end(&fleet_job_id("mapped")).await;
    eventually("the mapped message is gone", async || client.message_count().await == Some(2))
        .await;
    assert_eq!(member.lines("effects"), [""; 0]);
}

#[tokio::test]
async fn places_bound_the_jobs_that_run_at_once() {
    let fleet = TestFleet::start().await;
    let first = fleet.start_member().await;
    let client = &fleet.client;
    client.wait_for_free_places(&[4]).await;
    for number in 0..6 {
        let request = command_job(super::COUNTED_WAIT);
        client.publish(&JobMessage::new(&format!("m-{number}"), &request)).await;
    }
    first.wait_for_effects(4).await;
    client.wait_for_free_places(&[0]).await;

    // Another daemon takes what has no place at the first.
    let second = fleet.start_member_beside(&first).await;
    second.wait_for_effects(2).await;
    assert_eq!(first.lines("effects").len(), 4);
    client.wait_for_free_places(&[0, 2]).await;

    let ids: Vec<_> = (0..6).map(|number| fleet_job_id(&format!("m-{number}"))).collect();
    for id in &ids {
        assert_eq!(client.record(id).await.unwrap().state(), FleetJobState::Claimed);
    }
    first.go();
    second.go();
    for record in client.wait_for_ends(&ids).await.values() {
        assert_eq!(record.job.as_ref().unwrap().state(), JobState::Succeeded);
    }
    client.wait_for_free_places(&[4, 4]).await;
}

/// A message that the server sends while a daemon takes another one does not wait until it is delivered
/// again.
#[tokio::test]
async fn messages_of_two_subjects_at_once_run_at_once() {
    let mut fleet = TestFleet::start().await;
    fleet.set_times("10m", "10m");
    let first = fleet.start_member().await;
    let _second = fleet.start_member_beside(&first).await;
    for round in 0..30 {
        let names = ["any", "main"].map(|name| format!("{name}-{round}"));
        let [any, main] = names.each_ref().map(|name| JobMessage::new(name, &command_job("true")));
        let any = any.subject("jig.jobs.build");
        tokio::join!(fleet.client.publish(&any), fleet.client.publish(&main));
        for name in names {
            fleet.client.wait_for_end(&fleet_job_id(&name)).await;
        }
    }
}

/// As above, with several queues, on a network with a usual delay: requests of the other queues are on
/// their way while the server sends a message.
#[tokio::test]
async fn messages_of_many_subjects_at_once_run_at_once() {
    let mut fleet = TestFleet::start().await;
    fleet.set_times("10m", "10m");
    let queues = ["build", "second", "third"];
    let tables = queues.map(|queue| fleet.queues.replace("build", queue)).concat();
    let proxy = NatsProxy::start_with_delay(fleet.server.port(), Duration::from_millis(15));
    let setup = fleet.setup(&[&proxy.url()], &tables);
    let _member = Member { daemon: setup.start().await, proxy };

    let mut random = fastrand::Rng::with_seed(28);
    for round in 0..10 {
        let mut publishing = Vec::new();
        for (queue, workspace) in queues.iter().flat_map(|queue| [(queue, ""), (queue, ".main")]) {
            let name = format!("{round}{workspace}");
            let message = JobMessage::new(&format!("{queue}-{name}"), &command_job("true"))
                .subject(&format!("jig.jobs.{queue}{workspace}"))
                .header("Jig-Session", &format!("{queue}{}", workspace.len()));
            let moment = Duration::from_millis(random.u64(0..60));
            let client = &fleet.client;
            publishing.push(async move {
                // Acts at a random moment.
                sleep(moment).await;
                client.publish(&message).await;
                client.wait_for_end(&queue_job_id(queue, &format!("{queue}-{name}"))).await;
            });
        }
        join_all(publishing).await;
    }
}
