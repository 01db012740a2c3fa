//! Watches of fleet jobs by daemons that do not run them: states from the record, and output from
//! the daemon that runs the job.

use jig::api::v1::{JobState, WaitJobRequest, WatchJobRequest, WatchJobResponse};
use tonic::Streaming;

use super::{FleetJobs, TestFleet, fleet_job};
use crate::{
    jobs::WatchedEvents,
    support::{Refusal, eventually, promptly, with_key},
};

/// Watches that one daemon serves for a job of another.
const MAX_WATCHERS: usize = 4;

async fn watch(jobs: &mut FleetJobs, id: &str) -> Streaming<WatchJobResponse> {
    let request = WatchJobRequest { job_id: id.to_owned(), ..WatchJobRequest::default() };
    let call = jobs.client.watch_job(with_key(&jobs.key, request));
    promptly("the watch begins", call).await.unwrap().into_inner()
}

#[tokio::test]
async fn watch_streams_output_of_another_daemon_live_and_result_last() {
    let fleet = TestFleet::start().await;
    let observer = fleet.start_observer().await;
    let mut jobs = fleet.jobs(&observer);
    let line = "echo one; echo two >&2; until [ -e go ]; do sleep 0.05; done; seq 20000; exit 4";
    let id = jobs.submit("m-1", fleet_job(line)).await.job_id;

    let mut stream = watch(&mut jobs, &id).await;
    let mut watched = WatchedEvents::default();
    watched.read_next(&mut stream, (0, 0)).await;
    assert_eq!(watched.states, [JobState::Queued]);

    let worker = fleet.start_member_beside(&observer).await;
    while watched.stdout.is_empty() || watched.stderr.is_empty() {
        assert!(promptly("output arrives", watched.read_next(&mut stream, (0, 0))).await);
    }
    assert_eq!((&*watched.stdout, &*watched.stderr), (&b"one\n"[..], &b"two\n"[..]));

    worker.go();
    while promptly("the watch ends", watched.read_next(&mut stream, (0, 0))).await {}
    let expected: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    assert_eq!(watched.stdout, format!("one\n{expected}").into_bytes());
    assert_eq!(watched.states.last(), Some(&JobState::Succeeded));
    assert_eq!(watched.last.unwrap().result.unwrap().exit_code, Some(4));

    // Once the job has ended, the daemon that ran it still has the output.
    let mut late = WatchedEvents::default();
    let mut stream = watch(&mut jobs, &id).await;
    while promptly("the watch ends", late.read_next(&mut stream, (0, 0))).await {}
    assert_eq!(late.stdout, watched.stdout);
    assert_eq!(late.states, [JobState::Succeeded]);
}

#[tokio::test]
async fn watches_of_a_job_are_bounded_and_do_not_slow_it() {
    let fleet = TestFleet::start().await;
    let observer = fleet.start_observer().await;
    let worker = fleet.start_member_beside(&observer).await;
    let mut jobs = fleet.jobs(&observer);
    let line =
        "echo run >> effects; head -c 30000000 /dev/zero; until [ -e go ]; do sleep 0.05; done";
    let id = jobs.submit("m-1", fleet_job(line)).await.job_id;
    worker.wait_for_effects(1).await;

    // These read nothing.
    let mut idle = Vec::new();
    for _ in 0..MAX_WATCHERS + 2 {
        idle.push(watch(&mut jobs, &id).await);
    }
    worker.go();
    // On a connection of its own, because the watches block theirs.
    let job = fleet.jobs(&observer).wait(&id).await;
    assert_eq!(job.state(), JobState::Succeeded);
    drop(idle);

    // Their places become free.
    eventually("a watch has the output", async || {
        let mut watched = WatchedEvents::default();
        let mut stream = watch(&mut fleet.jobs(&observer), &id).await;
        while promptly("the watch ends", watched.read_next(&mut stream, (0, 0))).await {}
        assert_eq!(watched.states, [JobState::Succeeded]);
        !watched.stdout.is_empty()
    })
    .await;
}

#[tokio::test]
async fn watch_of_an_unknown_job_is_rejected() {
    let fleet = TestFleet::start().await;
    let observer = fleet.start_observer().await;
    let mut jobs = fleet.jobs(&observer);
    let job_id = super::plain_client::fleet_job_id("unknown");
    let request = WatchJobRequest { job_id, ..WatchJobRequest::default() };
    let status = jobs.client.watch_job(with_key(&jobs.key, request)).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "JOB_NOT_FOUND");
}

/// The daemon that runs the job dies while it is watched.
#[tokio::test]
async fn watch_reports_a_lost_job() {
    let fleet = TestFleet::start().await;
    let observer = fleet.start_observer().await;
    let mut worker = fleet.start_member_beside(&observer).await;
    let mut jobs = fleet.jobs(&observer);
    let id = jobs.submit("m-1", fleet_job(super::COUNTED_WAIT)).await.job_id;
    worker.wait_for_effects(1).await;
    let mut stream = watch(&mut jobs, &id).await;
    let _other = fleet.start_member_beside(&observer).await;
    worker.kill().await;

    let mut watched = WatchedEvents::default();
    let reading = async { while watched.read_next(&mut stream, (0, 0)).await {} };
    tokio::time::timeout(super::plain_client::MAX_FLEET_TIME, reading).await.unwrap();
    assert_eq!(watched.states.last(), Some(&JobState::Lost));
}

/// The daemon that runs the job connects again first, and sends output that the other one misses.
#[tokio::test]
async fn watch_has_the_output_of_an_outage() {
    let mut fleet = TestFleet::start().await;
    fleet.set_times("5s", "60s");
    let observer = fleet.start_observer().await;
    let worker = fleet.start_member_beside(&observer).await;
    let mut jobs = fleet.jobs(&observer);
    let line = "echo one; until [ -e go ]; do sleep 0.05; done; seq 5";
    let id = jobs.submit("m-1", fleet_job(line)).await.job_id;
    let mut stream = watch(&mut jobs, &id).await;
    let mut watched = WatchedEvents::default();
    while watched.stdout.is_empty() {
        assert!(promptly("output arrives", watched.read_next(&mut stream, (0, 0))).await);
    }

    fleet.restart_server(&[&worker]).await;
    worker.go();
    fleet.client.wait_for_end(&id).await;
    observer.proxy.set_server_port(fleet.server.port());
    let reading = async { while watched.read_next(&mut stream, (0, 0)).await {} };
    tokio::time::timeout(super::plain_client::MAX_FLEET_TIME, reading).await.unwrap();
    assert_eq!(watched.stdout, b"one\n1\n2\n3\n4\n5\n");
    assert_eq!(watched.states.last(), Some(&JobState::Succeeded));
}

/// The watch and the job outlive the bucket of records.
#[tokio::test]
async fn watch_continues_after_its_record_was_deleted() {
    let fleet = TestFleet::start().await;
    let observer = fleet.start_observer().await;
    let worker = fleet.start_member_beside(&observer).await;
    let mut jobs = fleet.jobs(&observer);
    let line = "echo one; until [ -e go ]; do sleep 0.05; done; echo two";
    let id = jobs.submit("m-1", fleet_job(line)).await.job_id;
    let mut stream = watch(&mut jobs, &id).await;
    let mut watched = WatchedEvents::default();
    while watched.stdout.is_empty() {
        assert!(promptly("output arrives", watched.read_next(&mut stream, (0, 0))).await);
    }

    fleet.client.jetstream().delete_stream("KV_JIG_JOBS_records").await.unwrap();
    worker.go();
    fleet.client.wait_for_end(&id).await;
    let reading = async { while watched.read_next(&mut stream, (0, 0)).await {} };
    tokio::time::timeout(super::plain_client::MAX_FLEET_TIME, reading).await.unwrap();
    assert_eq!(watched.stdout, b"one\ntwo\n");
    assert_eq!(watched.states.last(), Some(&JobState::Succeeded));
}

#[tokio::test]
async fn watch_and_wait_end_when_the_record_expires() {
    let mut fleet = TestFleet::start().await;
    fleet.add_settings("result_retention = \"3s\"\n");
    let observer = fleet.start_observer().await;
    let mut jobs = fleet.jobs(&observer);
    let id = jobs.submit("m-1", fleet_job("true")).await.job_id;

    let mut stream = watch(&mut jobs, &id).await;
    let wait = WaitJobRequest { job_id: id, wait_ms: None };
    let waited = promptly("the wait ends", jobs.client.wait_job(with_key(&fleet.ci, wait))).await;
    assert_eq!(Refusal::from_status(&waited.unwrap_err()).reason, "JOB_NOT_FOUND");
    let end = async {
        loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the watch ends without an error"),
                Err(status) => return Refusal::from_status(&status),
            }
        }
    };
    assert_eq!(promptly("the watch ends", end).await.reason, "JOB_NOT_FOUND");
}
