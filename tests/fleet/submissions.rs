//! Jobs that are submitted to the fleet through a daemon, and their results through any other.

use std::process::Command;

use jig::api::v1::{CancelJobRequest, FleetJobState, JobState, SubmitJobRequest, WaitJobRequest};

use super::{
    COUNTED_WAIT, Member, TestFleet, all_effects, fleet_job,
    plain_client::{JobMessage, MAX_FLEET_TIME, fleet_job_id},
};
use crate::{
    jobs::{
        command_job,
        start_blocked::{allow, wait_for_pending_approvals_with_key},
    },
    support::{eventually_within, promptly, with_key},
};

#[tokio::test]
async fn any_daemon_submits_and_returns_the_result() {
    let fleet = TestFleet::start().await;
    let observer = fleet.start_observer().await;
    let worker = fleet.start_member_beside(&observer).await;
    let other = fleet.start_member_beside(&observer).await;
    let mut jobs = fleet.jobs(&observer);

    let submitted = jobs.submit("m-1", fleet_job("echo run >> effects; echo hello")).await;
    assert_eq!((&*submitted.job_id, submitted.fleet), (&*fleet_job_id("m-1"), true));
    assert_eq!((&*submitted.queue, &*submitted.principal), ("build", "key:ci"));

    let ended = jobs.wait(&submitted.job_id).await;
    assert_eq!(ended.state(), JobState::Succeeded);
    assert!(ended.result.as_ref().unwrap().text.contains("hello"));
    for member in [&worker, &other] {
        assert_eq!(fleet.jobs(member).wait(&submitted.job_id).await, ended);
    }
    assert_eq!(all_effects(&[&observer, &worker, &other]), ["run"]);
    assert_eq!(observer.lines("effects"), [""; 0]);
}

#[tokio::test]
async fn repeated_submission_is_the_same_job_by_every_way() {
    let fleet = TestFleet::start().await;
    let observer = fleet.start_observer().await;
    let worker = fleet.start_member_beside(&observer).await;
    let request = || fleet_job("echo run >> effects");

    let first = fleet.jobs(&observer).submit("m-1", request()).await;
    let again = fleet.jobs(&observer).submit("m-1", request()).await;
    let elsewhere = fleet.jobs(&worker).submit("m-1", request()).await;
    assert_eq!((&first.job_id, &first.job_id), (&again.job_id, &elsewhere.job_id));
    fleet.client.wait_for_ends(std::slice::from_ref(&first.job_id)).await;

    // As a plain message, and once more after the end.
    let plain = SubmitJobRequest { fleet: false, ..request() };
    fleet.client.publish(&JobMessage::new("m-1", &plain)).await;
    let ended = fleet.jobs(&worker).submit("m-1", request()).await;
    assert_eq!(ended.job_id, first.job_id);

    for member in [&observer, &worker] {
        let other = fleet_job("echo other >> effects");
        let refusal = fleet.jobs(member).try_submit("m-1", other).await.unwrap_err();
        assert_eq!(refusal.reason, "REQUEST_ID_REUSED", "{refusal:?}");
    }
    fleet.client.wait_for_ends(&[first.job_id]).await;
    assert_eq!(worker.lines("effects"), ["run"]);
}

#[tokio::test]
async fn job_of_unmapped_queue_stays_queued() {
    let fleet = TestFleet::start().await;
    let member = fleet.start_member().await;
    let mut jobs = fleet.jobs(&member);
    // The daemon serves the queue `build` once it takes jobs of it.
    fleet.client.publish(&JobMessage::new("m-0", &command_job("true"))).await;
    fleet.client.wait_for_end(&fleet_job_id("m-0")).await;
    let other = SubmitJobRequest { queue: Some("other".to_owned()), ..fleet_job("true") };
    let mut submit = async |request_id: &str, request| {
        let request = jobs.request(request_id, request);
        let submitted = jobs.client.submit_job(request).await.unwrap().into_inner();
        (submitted.job.unwrap().job_id, submitted.unserved)
    };
    assert!(!submit("served", fleet_job("true")).await.1);
    let (id, unserved) = submit("m-1", other).await;
    assert!(unserved);

    let wait = WaitJobRequest { job_id: id.clone(), wait_ms: Some(300) };
    let waiting = jobs.client.wait_job(with_key(&fleet.ci, wait));
    let job = promptly("the wait ends", waiting).await.unwrap().into_inner().job.unwrap();
    assert_eq!((job.state(), job.daemon_id.as_str()), (JobState::Queued, ""));
    eventually_within(MAX_FLEET_TIME, "the other jobs have ended", async || {
        fleet.client.message_count().await == Some(1)
    })
    .await;
}

#[tokio::test]
async fn jobs_are_visible_as_local_ones_are() {
    let fleet = TestFleet::start().await;
    let elsewhere = fleet.keys.add_key("elsewhere", "admin", &["--for-workspace", "other"]);
    let reader = fleet.keys.add_key("reader", "read", &[]);
    let narrow = fleet.keys.add_key("narrow", "invoke", &["--for-tool", "read_file"]);
    let member = fleet.start_member().await;
    let id = fleet.jobs(&member).submit("m-1", fleet_job("true")).await.job_id;
    fleet.client.wait_for_end(&id).await;

    let job = fleet.jobs(&member).with_key(&reader).try_get(&id).await.unwrap();
    assert_eq!(job.state(), JobState::Succeeded);
    let hidden = fleet.jobs(&member).with_key(&narrow).try_get(&id).await.unwrap_err();
    let unknown = fleet_job_id("unknown");
    let absent = fleet.jobs(&member).with_key(&narrow).try_get(&unknown).await.unwrap_err();
    assert_eq!((&*hidden.reason, &*absent.reason), ("JOB_NOT_FOUND", "JOB_NOT_FOUND"));
    assert_eq!(hidden.message.replace(&id, ""), absent.message.replace(&unknown, ""));

    let refusal = fleet.jobs(&member).with_key(&elsewhere).try_get(&id).await.unwrap_err();
    assert_eq!(refusal.reason, "JOB_NOT_FOUND", "the key calls in its own workspace");
    for key in [&reader, &narrow] {
        let mut jobs = fleet.jobs(&member).with_key(key);
        let refusal = jobs.try_submit("m-2", fleet_job("true")).await.unwrap_err();
        assert_eq!(refusal.reason, "FORBIDDEN", "{refusal:?}");
    }
}

#[tokio::test]
async fn submission_without_server_fails_and_can_be_repeated() {
    let mut fleet = TestFleet::start().await;
    let member = fleet.start_member().await;
    let mut jobs = fleet.jobs(&member);
    let request = || fleet_job("echo run >> effects");
    let before = jobs.submit("m-1", request()).await.job_id;
    fleet.client.wait_for_end(&before).await;

    fleet.server.kill();
    let call = jobs.try_submit("m-2", request());
    let refusal = tokio::time::timeout(MAX_FLEET_TIME, call).await.unwrap().unwrap_err();
    assert_eq!(refusal.reason, "FLEET_UNAVAILABLE", "{refusal:?}");
    assert_eq!(refusal.metadata["request_id"], "m-2");
    // Local jobs do not need the server.
    let local = jobs.submit("local", command_job("true")).await;
    assert!(!local.fleet);
    assert_eq!(jobs.wait(&local.job_id).await.state(), JobState::Succeeded);

    fleet.restart_server(&[&member]).await;
    let mut id = None;
    eventually_within(MAX_FLEET_TIME, "the submission succeeds", async || {
        id = jobs.try_submit("m-2", request()).await.ok().map(|job| job.job_id);
        id.is_some()
    })
    .await;
    assert_eq!(jobs.wait(&id.unwrap()).await.state(), JobState::Succeeded);
    assert_eq!(member.lines("effects"), ["run", "run"]);
}

#[tokio::test]
async fn daemon_starts_without_server_and_takes_jobs_later() {
    let mut fleet = TestFleet::start().await;
    fleet.server.kill();
    let member = fleet.start_member().await;
    let mut jobs = fleet.jobs(&member);
    let local = jobs.submit("local", command_job("true")).await;
    assert_eq!(jobs.wait(&local.job_id).await.state(), JobState::Succeeded);

    fleet.restart_server(&[&member]).await;
    let mut id = None;
    eventually_within(MAX_FLEET_TIME, "a submission succeeds", async || {
        id = jobs.try_submit("m-1", fleet_job("true")).await.ok().map(|job| job.job_id);
        id.is_some()
    })
    .await;
    assert_eq!(jobs.wait(&id.unwrap()).await.state(), JobState::Succeeded);
}

#[tokio::test]
async fn any_daemon_cancels_queued_and_running_jobs() {
    let fleet = TestFleet::start().await;
    let observer = fleet.start_observer().await;
    let mut jobs = fleet.jobs(&observer);
    let queued = jobs.submit("queued", fleet_job("echo queued >> effects")).await.job_id;
    let cancel = |id: &str| with_key(&fleet.ci, CancelJobRequest { job_id: id.to_owned() });
    let call = jobs.client.cancel_job(cancel(&queued));
    let job = promptly("the job is cancelled", call).await.unwrap().into_inner().job.unwrap();
    assert_eq!(job.state(), JobState::Cancelled);

    let worker = fleet.start_member_beside(&observer).await;
    let running = jobs.submit("running", fleet_job(COUNTED_WAIT)).await.job_id;
    worker.wait_for_effects(1).await;
    fleet.client.wait_for_state(&running, FleetJobState::Claimed).await;
    let call = jobs.client.cancel_job(cancel(&running));
    let job = promptly("the job is cancelled", call).await.unwrap().into_inner().job.unwrap();
    assert_eq!(job.state(), JobState::Cancelled);

    let ends = fleet.client.wait_for_ends(&[queued, running]).await;
    for record in ends.values() {
        assert_eq!(record.job.as_ref().unwrap().state(), JobState::Cancelled);
    }
    assert_eq!(worker.lines("effects"), ["run"]);
}

#[tokio::test]
async fn command_line_submits_waits_and_watches() {
    let fleet = TestFleet::start().await;
    let observer = fleet.start_observer().await;
    let worker = fleet.start_member_beside(&observer).await;
    let run = |member: &Member, arguments: &[&str]| {
        let address = format!("unix:{}", member.daemon.socket().display());
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        let key = fleet.ci.clone();
        tokio::task::spawn_blocking(move || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_jig"));
            command.args(["--address", &address]).args(arguments).env_clear().env("JIG_KEY", key);
            command.output().unwrap()
        })
    };

    let submit = "job submit run command=echo|hello;exit|3 --fleet --queue build --store-artifacts";
    let submit: Vec<String> = submit.split(' ').map(|word| word.replace('|', " ")).collect();
    let submit: Vec<&str> = submit.iter().map(String::as_str).collect();
    let output = run(&observer, &submit).await.unwrap();
    assert!(output.status.success(), "{output:?}");
    let id = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    assert!(id.starts_with("fleet-"), "{id}");

    let typo = ["job", "submit", "run", "command=true", "--fleet", "--queue", "biuld"];
    let output = run(&observer, &typo).await.unwrap();
    let warning = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        warning.contains("no daemon of the fleet has served the queue \"biuld\""),
        "{output:?}"
    );

    for member in [&observer, &worker] {
        let output = run(member, &["job", "watch", &id]).await.unwrap();
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\n");
        let output = run(member, &["job", "wait", &id]).await.unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).contains("fleet-"), "{output:?}");
        let path = "logs/tool_step_0001_stdout.txt";
        let output = run(member, &["artifact", path, "--job", &id, "--offset", "1"]).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ello\n", "{output:?}");
    }
}

#[tokio::test]
async fn any_daemon_shows_the_approval_that_a_job_waits_for() {
    let mut fleet = TestFleet::start().await;
    let admin = fleet.keys.add_key("root", "admin", &[]);
    let observer = fleet.start_observer().await;
    let tables = format!("{}[policy]\ndangerous = \"ask\"\n", fleet.queues);
    fleet.set_queues(&tables);
    let worker = fleet.start_member_beside(&observer).await;
    let mut jobs = fleet.jobs(&observer);
    let id = jobs.submit("m-1", fleet_job("echo run >> effects")).await.job_id;

    let pending = wait_for_pending_approvals_with_key(&worker.daemon, Some(&admin), 1);
    let approval = pending.await.remove(0);
    let mut waiting = None;
    eventually_within(MAX_FLEET_TIME, "the job shows its approval", async || {
        let job = jobs.try_get(&id).await.unwrap();
        let is_shown = !job.approval_id.is_empty();
        waiting = Some(job);
        is_shown
    })
    .await;
    let waiting = waiting.unwrap();
    assert_eq!((waiting.state(), waiting.start_time), (JobState::Queued, None));
    assert_eq!(waiting.approval_id, approval.approval_id);

    allow(&worker.daemon, Some(&admin), &approval).await;
    let ended = jobs.wait(&id).await;
    assert_eq!((ended.state(), &*ended.approval_id), (JobState::Succeeded, ""));
    assert_eq!(worker.lines("effects"), ["run"]);
}
