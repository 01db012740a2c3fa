//! Claims that a daemon finds after a restart, and whose jobs its database does not have: whether a job
//! has begun depends on the start that claimed it, not on clocks.

use std::{
    fs,
    time::{Duration, SystemTime},
};

use jig::api::v1::{FleetJobRecord, FleetJobState, JobState, SubmitJobRequest};
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::{
    COUNTED_WAIT, Member, TestFleet,
    plain_client::{JobMessage, MAX_FLEET_TIME, fleet_job_id},
};
use crate::{jobs::command_job, support::eventually_within};

/// A start of another database.
const FOREIGN_START: &str = "01JDZZZZZZZZZZZZZZZZZZZZZZ";

/// The death of a daemon after a claim, before it stored the job.
struct DeadClaim {
    name: &'static str,
    start_id: String,
    retry_if_lost: bool,
    claim_time: SystemTime,
}

impl DeadClaim {
    /// Publishes the message of a job, and stores its claim.
    async fn store(&self, fleet: &TestFleet) {
        let DeadClaim { name, start_id, retry_if_lost, claim_time } = self;
        let command = format!("echo {name} >> effects");
        let request = SubmitJobRequest { retry_if_lost: *retry_if_lost, ..command_job(&command) };
        let record = FleetJobRecord {
            state: FleetJobState::Claimed.into(),
            queue: "build".to_owned(),
            workspace: "main".to_owned(),
            request_id: (*name).to_owned(),
            tool: request.tool.clone(),
            principal: "key:ci".to_owned(),
            daemon_id: "one".to_owned(),
            start_id: start_id.clone(),
            attempts: 1,
            retry_if_lost: *retry_if_lost,
            claim_time: Some((*claim_time).into()),
            request_sha256: Sha256::digest(request.encode_to_vec()).to_vec().into(),
            ..FleetJobRecord::default()
        };
        let records = fleet.client.records().await;
        records.create(fleet_job_id(name), record.encode_to_vec().into()).await.unwrap();
        fleet.client.publish(&JobMessage::new(name, &request)).await;
    }
}

/// Starts the daemon `one`. Returns its start.
async fn start_one(fleet: &mut TestFleet) -> (Member, String) {
    fleet.add_settings("daemon_id = \"one\"\n");
    let member = fleet.start_member().await;
    let mut start_id = String::new();
    eventually_within(MAX_FLEET_TIME, "the daemon has a heartbeat", async || {
        let heartbeat = fleet.client.heartbeat("one").await;
        start_id = heartbeat.map(|(record, _)| record.start_id).unwrap_or_default();
        !start_id.is_empty()
    })
    .await;
    (member, start_id)
}

/// Makes the database of a dead daemon one that may lack its last writes.
fn replace_database_by_a_copy(member: &Member) {
    let database = member.daemon.state_dir().join("jig.db");
    let copy = database.with_extension("copy");
    fs::copy(&database, &copy).unwrap();
    fs::rename(&copy, &database).unwrap();
}

pub(super) async fn end_of(fleet: &TestFleet, name: &str) -> (JobState, u32) {
    let record = fleet.client.wait_for_end(&fleet_job_id(name)).await;
    (record.job.unwrap().state(), record.attempts)
}

#[tokio::test]
async fn claim_without_a_job_runs_if_the_database_is_the_same() {
    let mut fleet = TestFleet::start().await;
    let (mut member, start_id) = start_one(&mut fleet).await;
    member.kill().await;

    let hour = Duration::from_secs(3600);
    let [past, future] = [SystemTime::now() - hour, SystemTime::now() + hour];
    for (name, start_id, retry_if_lost, claim_time) in [
        ("own-past", &*start_id, false, past),
        ("own-future", &start_id, false, future),
        ("foreign-past", FOREIGN_START, false, past),
        ("foreign-future", FOREIGN_START, false, future),
        ("foreign-again", FOREIGN_START, true, past),
        ("old", "", false, future),
    ] {
        let start_id = start_id.to_owned();
        DeadClaim { name, start_id, retry_if_lost, claim_time }.store(&fleet).await;
    }

    let member = member.restart().await;
    assert_eq!(end_of(&fleet, "own-past").await, (JobState::Succeeded, 1));
    assert_eq!(end_of(&fleet, "own-future").await, (JobState::Succeeded, 1));
    assert_eq!(end_of(&fleet, "foreign-past").await, (JobState::Lost, 1));
    assert_eq!(end_of(&fleet, "foreign-future").await, (JobState::Lost, 1));
    assert_eq!(end_of(&fleet, "foreign-again").await, (JobState::Succeeded, 2));
    assert_eq!(end_of(&fleet, "old").await, (JobState::Lost, 1));
    let mut effects = member.lines("effects");
    effects.sort();
    assert_eq!(effects, ["foreign-again", "own-future", "own-past"]);

    // Two restarts later, too.
    let mut member = member.restart().await;
    member.kill().await;
    let claim_time = SystemTime::now();
    DeadClaim { name: "later", start_id, retry_if_lost: false, claim_time }.store(&fleet).await;
    let _member = member.restart().await;
    assert_eq!(end_of(&fleet, "later").await, (JobState::Succeeded, 1));
}

/// A copy of the database may lack jobs that were added after it was made.
#[tokio::test]
async fn claim_without_a_job_is_lost_if_the_database_is_a_copy() {
    let mut fleet = TestFleet::start().await;
    let (mut member, start_id) = start_one(&mut fleet).await;
    member.kill().await;
    replace_database_by_a_copy(&member);

    let claim_time = SystemTime::now();
    DeadClaim { name: "own", start_id, retry_if_lost: false, claim_time }.store(&fleet).await;
    let member = member.restart().await;
    assert_eq!(end_of(&fleet, "own").await, (JobState::Lost, 1));
    assert_eq!(member.lines("effects"), [""; 0]);
}

/// Starts a daemon that runs one job of the queue at a time.
pub(super) async fn start_slow_member(fleet: &mut TestFleet) -> Member {
    fleet.keys.add_key("slow", "invoke", &["--concurrent-calls", "1"]);
    fleet.set_queues(&fleet.queues.replace("\"ci\"", "\"slow\""));
    fleet.start_member().await
}

/// Has a slow daemon claim two jobs, and run one of them.
pub(super) async fn publish_two(fleet: &TestFleet, member: &Member) {
    let client = &fleet.client;
    client.publish(&JobMessage::new("running", &command_job(COUNTED_WAIT))).await;
    member.wait_for_effects(1).await;
    client.publish(&JobMessage::new("queued", &command_job("echo queued >> effects"))).await;
    client.wait_for_state(&fleet_job_id("queued"), FleetJobState::Claimed).await;
    eventually_within(MAX_FLEET_TIME, "the second job waits at the daemon", async || {
        let records = fs::read_dir(member.daemon.state_dir().join("jobs"));
        records.is_ok_and(|records| records.count() > 0)
    })
    .await;
}

/// A job that waits at a daemon when it dies does not begin there after another one has ended it.
#[tokio::test]
async fn queued_job_that_was_given_up_does_not_begin() {
    let mut fleet = TestFleet::start().await;
    let mut first = start_slow_member(&mut fleet).await;
    publish_two(&fleet, &first).await;
    let second = fleet.start_member_beside(&first).await;
    first.kill().await;
    assert_eq!(end_of(&fleet, "running").await.0, JobState::Lost);
    assert_eq!(end_of(&fleet, "queued").await.0, JobState::Lost);
    drop(second);

    // The record cannot be read yet.
    first.proxy.partition();
    let first = first.restart().await;
    let mut jobs = fleet.jobs(&first);
    let local = jobs.submit("local", command_job("echo local >> effects")).await;
    jobs.wait(&local.job_id).await;
    assert_eq!(first.lines("effects"), ["run", "local"]);
    first.proxy.heal();
    first.go();
    fleet.client.publish(&JobMessage::new("next", &command_job("echo next >> effects"))).await;
    assert_eq!(end_of(&fleet, "next").await.0, JobState::Succeeded);
    assert_eq!(first.lines("effects"), ["run", "local", "next"]);
}

/// A copy of the database may have been made before the job began.
#[tokio::test]
async fn queued_job_is_lost_if_the_database_is_a_copy() {
    let mut fleet = TestFleet::start().await;
    let mut member = start_slow_member(&mut fleet).await;
    publish_two(&fleet, &member).await;
    member.kill().await;
    replace_database_by_a_copy(&member);

    let member = member.restart().await;
    for name in ["running", "queued"] {
        assert_eq!(end_of(&fleet, name).await, (JobState::Lost, 1));
    }
    assert_eq!(member.lines("effects"), ["run"]);
}
