//! Fleets whose queues are in a PostgreSQL database.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    sync::Arc,
    time::{Duration, Instant},
};

use jig::api::v1::{
    CancelJobRequest, Job, JobState, SubmitJobRequest, job_service_client::JobServiceClient,
};
use prost::Message as _;
use rustix::process::Signal;
use tempfile::TempDir;

use super::{
    COUNTED_WAIT, FleetJobs, fleet_job,
    plain_client::{MAX_FLEET_TIME, fleet_job_id},
    postgres_server::{PostgresServer, StoredJob},
};
use crate::{
    jobs::command_job,
    support::{
        CertificateAuthority, Daemon, KeyFile, Setup, eventually_within, full_size, with_key,
    },
};

/// A PostgreSQL server, and what the daemons of its fleet share.
pub(super) struct PostgresFleet {
    pub(super) server: PostgresServer,
    pub(super) keys: Arc<KeyFile>,
    /// Secret of the key `ci`, which the queue maps to.
    ci: String,
    directory: Arc<TempDir>,
    /// Name of the workspace of daemons.
    pub(super) workspace: String,
    /// Lines of the table `[fleet]`.
    pub(super) settings: String,
    /// Tables of the queues.
    pub(super) queues: String,
}

impl PostgresFleet {
    pub(super) async fn start() -> Self {
        Self::with_server(PostgresServer::start().await)
    }

    fn with_server(server: PostgresServer) -> Self {
        let keys = Arc::new(KeyFile::new());
        let ci = keys.add_key("ci", "invoke", &[]);
        let settings =
            format!("postgres = {:?}\nlost_after = \"3s\"\nmax_deliver = 3\n", server.socket_url());
        let queues = "[[fleet.queues]]\nname = \"build\"\nkey = \"ci\"\n\
            workspaces = [\"WORKSPACE\"]\nplaces = 4\n"
            .to_owned();
        let directory = Arc::new(TempDir::with_prefix("jig-test-fleet-").unwrap());
        let workspace = "main".to_owned();
        Self { server, keys, ci, directory, workspace, settings, queues }
    }

    pub(super) fn setup(&self) -> Setup {
        let keys = self.keys.path().display().to_string();
        Setup::new()
            .workspace_table(&self.table())
            .arguments(&["--keys", &keys, "--drain-timeout", "120s"])
            .with_resource(Arc::clone(&self.keys) as _)
            .with_resource(Arc::clone(&self.directory) as _)
    }

    /// The table of the workspace and those after it.
    pub(super) fn table(&self) -> String {
        let Self { workspace, settings, queues, .. } = self;
        let queues = queues.replace("WORKSPACE", workspace);
        format!("name = {workspace:?}\n[fleet]\n{settings}{queues}")
    }

    pub(super) async fn start_daemon(&self) -> Daemon {
        self.setup().start().await
    }

    pub(super) async fn start_daemon_beside(&self, other: &Daemon) -> Daemon {
        self.setup().beside(other).start().await
    }

    /// A client of a daemon's job service, which calls with the key `ci`.
    pub(super) fn jobs(&self, daemon: &Daemon) -> FleetJobs {
        FleetJobs { client: JobServiceClient::new(daemon.channel()), key: self.ci.clone() }
    }

    pub(super) async fn expect_end(&self, id: &str, outcome: &str) -> StoredJob {
        let job = self.server.wait_for_end(id).await;
        assert_eq!(job.outcome.as_deref(), Some(outcome), "{job:?}");
        job
    }
}

/// Jobs that a daemon's commands have begun.
pub(super) fn effects(daemon: &Daemon) -> usize {
    fs::read_to_string(daemon.file("effects")).unwrap_or_default().lines().count()
}

pub(super) async fn wait_for_effects(daemon: &Daemon, count: usize) {
    let what = format!("{count} jobs run here");
    eventually_within(MAX_FLEET_TIME, &what, async || effects(daemon) == count).await;
}

/// Lets the commands that wait for the file `go` end.
pub(super) fn go(daemon: &Daemon) {
    fs::write(daemon.file("go"), "").unwrap();
}

pub(super) async fn kill(daemon: &mut Daemon) {
    daemon.signal(Signal::KILL);
    daemon.wait_for_exit().await;
}

pub(super) fn repeatable(command: &str) -> SubmitJobRequest {
    SubmitJobRequest { retry_if_lost: true, ..command_job(command) }
}

#[tokio::test]
async fn rows_run_once_each_with_three_daemons() {
    let fleet = PostgresFleet::start().await;
    let first = fleet.start_daemon().await;
    let second = fleet.start_daemon_beside(&first).await;
    let third = fleet.start_daemon_beside(&first).await;

    let count = full_size(3_000, 200);
    let body = command_job("echo run >> effects").encode_to_vec();
    let start = Instant::now();
    let statement = "INSERT INTO jig_jobs (queue, workspace, request_id, request) \
        SELECT 'build', CASE WHEN n % 2 = 0 THEN 'main' ELSE '' END, 'm-' || n, $1 \
        FROM generate_series(1, $2::int) AS n";
    let rows = i32::try_from(count).unwrap();
    fleet.server.connect("ci").await.execute(statement, &[&body, &rows]).await.unwrap();
    eventually_within(2 * MAX_FLEET_TIME, "all jobs have ended", async || {
        fleet.server.count("state = 'ended'").await == i64::from(rows)
    })
    .await;
    let rate = count as f64 / start.elapsed().as_secs_f64();
    eprintln!("{count} jobs from PostgreSQL on three daemons: {rate:.0} jobs/s");

    let succeeded = "outcome = 'succeeded' AND attempts = 1 AND workspace = 'main'";
    assert_eq!(fleet.server.count(succeeded).await, i64::from(rows));
    let shares = [&first, &second, &third].map(effects);
    assert_eq!(shares.iter().sum::<usize>(), count, "{shares:?}");
    assert!(shares.iter().all(|share| *share > 0), "{shares:?}");

    // The same request id is the same job.
    let id = fleet_job_id("m-1");
    let repeated = "INSERT INTO jig_jobs (queue, request_id, request) VALUES ('build', 'm-1', $1) \
        ON CONFLICT (id) DO NOTHING";
    let ci = fleet.server.connect("ci").await;
    assert_eq!(ci.execute(repeated, &[&body]).await.unwrap(), 0);
    // A submitter cannot give a job a result.
    assert!(ci.execute("UPDATE jig_jobs SET outcome = 'lost'", &[]).await.is_err());
    let job = fleet.jobs(&second).try_get(&id).await.unwrap();
    assert_eq!((job.state(), job.job_id, job.fleet), (JobState::Succeeded, id, true));
}

#[tokio::test]
async fn job_of_dead_daemon_is_lost_or_runs_again() {
    let fleet = PostgresFleet::start().await;
    let mut first = fleet.start_daemon().await;
    let once = fleet.server.insert("once", &command_job(COUNTED_WAIT)).await;
    let again = fleet.server.insert("again", &repeatable(COUNTED_WAIT)).await;
    assert_eq!(once, fleet_job_id("once"));
    wait_for_effects(&first, 2).await;
    let owner = fleet.server.job(&once).await.claimed_by;

    let second = fleet.start_daemon_beside(&first).await;
    go(&second);
    kill(&mut first).await;
    let lost = fleet.expect_end(&once, "lost").await;
    assert_eq!((lost.attempts, &lost.claimed_by), (1, &owner));
    let error = lost.result.unwrap().result.unwrap().error.unwrap();
    assert_eq!(error.error_type, "daemon_lost");
    let repeated = fleet.expect_end(&again, "succeeded").await;
    assert_eq!(repeated.attempts, 2);
    assert_ne!(repeated.claimed_by, owner);

    // The dead daemon returns, and changes nothing.
    let first = first.restart().await;
    let next = fleet.server.insert("next", &command_job("true")).await;
    fleet.expect_end(&next, "succeeded").await;
    fleet.expect_end(&once, "lost").await;
    assert_eq!((effects(&first), effects(&second)), (2, 1));
}

#[tokio::test]
async fn restarted_daemon_ends_its_own_claims() {
    let fleet = PostgresFleet::start().await;
    let daemon = fleet.start_daemon().await;
    let once = fleet.server.insert("once", &command_job(COUNTED_WAIT)).await;
    let again = fleet.server.insert("again", &repeatable(COUNTED_WAIT)).await;
    wait_for_effects(&daemon, 2).await;

    let daemon = daemon.restart().await;
    go(&daemon);
    fleet.expect_end(&once, "lost").await;
    fleet.expect_end(&again, "succeeded").await;
    assert_eq!(effects(&daemon), 3);
}

#[tokio::test]
async fn restart_of_the_server_loses_no_job() {
    let mut fleet = PostgresFleet::start().await;
    let first = fleet.start_daemon().await;
    let second = fleet.start_daemon_beside(&first).await;
    let mut ids = Vec::new();
    for number in 0..6 {
        ids.push(fleet.server.insert(&format!("m-{number}"), &command_job(COUNTED_WAIT)).await);
    }
    let running = "all jobs run";
    eventually_within(MAX_FLEET_TIME, running, async || effects(&first) + effects(&second) == 6)
        .await;

    // One job ends while there is no server, and all leases do.
    fleet.server.kill();
    go(&first);
    tokio::time::sleep(Duration::from_secs(4)).await;
    fleet.server.restart().await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    go(&second);
    ids.push(fleet.server.insert("next", &command_job("echo run >> effects")).await);
    for id in &ids {
        assert_eq!(fleet.expect_end(id, "succeeded").await.attempts, 1);
    }
    assert_eq!(effects(&first) + effects(&second), 7);
}

#[tokio::test]
async fn invalid_rows_fail() {
    let fleet = PostgresFleet::start().await;
    let daemon = fleet.start_daemon().await;
    let valid = command_job("echo run >> effects");
    let other_queue = SubmitJobRequest { queue: Some("other".to_owned()), ..valid.clone() };
    let unknown_tool = SubmitJobRequest { tool: "no_such_tool".to_owned(), ..valid.clone() };
    let client = fleet.server.connect("ci").await;
    let insert = "INSERT INTO jig_jobs (queue, request_id, session, request) \
        VALUES ($1, $2, $3, $4) RETURNING id";

    for (name, queue, session, body, message) in [
        ("bytes", "build", "", vec![0xff; 9], "SubmitJobRequest"),
        ("queue", "build", "", other_queue.encode_to_vec(), "queue"),
        ("tool", "build", "", unknown_tool.encode_to_vec(), "no_such_tool"),
        ("session", "build", "../../etc", valid.encode_to_vec(), "session"),
    ] {
        let row = client.query_one(insert, &[&queue, &name, &session, &body]).await.unwrap();
        let job = fleet.expect_end(row.get(0), "failed").await;
        let result = format!("{:?}", job.result);
        assert!(result.contains(message), "{name}: {result}");
    }
    // The table rejects what is no job.
    for (request_id, body) in [("", vec![0_u8]), ("huge", vec![0_u8; (1 << 20) + 1])] {
        assert!(client.query_one(insert, &[&"build", &request_id, &"", &body]).await.is_err());
    }

    let id = fleet.server.insert("valid", &valid).await;
    fleet.expect_end(&id, "succeeded").await;
    assert_eq!(effects(&daemon), 1);
}

#[tokio::test]
async fn drain_gives_back_queued_jobs_and_ends_running_ones() {
    let mut fleet = PostgresFleet::start().await;
    // A daemon claims four jobs and runs one of them.
    fleet.keys.add_key("slow", "invoke", &["--concurrent-calls", "1"]);
    fleet.queues = fleet.queues.replace("\"ci\"", "\"slow\"");
    let mut first = fleet.start_daemon().await;
    let mut ids = Vec::new();
    for number in 0..4 {
        ids.push(fleet.server.insert(&format!("m-{number}"), &command_job(COUNTED_WAIT)).await);
    }
    wait_for_effects(&first, 1).await;
    eventually_within(MAX_FLEET_TIME, "the daemon has claimed all jobs", async || {
        fleet.server.count("state = 'claimed'").await == 4
    })
    .await;

    let second = fleet.start_daemon_beside(&first).await;
    go(&second);
    first.signal(Signal::TERM);
    wait_for_effects(&second, 3).await;
    go(&first);
    for id in &ids {
        assert_eq!(fleet.expect_end(id, "succeeded").await.attempts, 1);
    }
    assert!(first.wait_for_exit().await.success());
    assert_eq!((effects(&first), effects(&second)), (1, 3));
}

#[tokio::test]
async fn any_daemon_submits_and_waits_by_tls_with_a_password() {
    let authority = CertificateAuthority::new();
    let server = PostgresServer::start_with_tls(&authority.issue_server()).await;
    let mut fleet = PostgresFleet::with_server(server);
    let (url, password) = fleet.server.tls_url();
    let [ca_file, password_file] =
        ["ca.pem", "password"].map(|name| fleet.directory.path().join(name));
    fs::copy(authority.ca(), &ca_file).unwrap();
    fs::write(&password_file, format!("{password}\n")).unwrap();
    fs::set_permissions(&password_file, fs::Permissions::from_mode(0o600)).unwrap();
    fleet.settings = format!(
        "postgres = {url:?}\nca_file = {ca_file:?}\npassword_file = {password_file:?}\nlost_after = \"3s\"\n"
    );
    let first = fleet.start_daemon().await;
    let second = fleet.start_daemon_beside(&first).await;

    let mut jobs = fleet.jobs(&first);
    let job = jobs.submit("m-1", fleet_job("echo hello; echo run >> effects")).await;
    assert_eq!(job.job_id, fleet_job_id("m-1"));
    let ended = fleet.jobs(&second).wait(&job.job_id).await;
    assert_eq!((ended.state(), ended.fleet), (JobState::Succeeded, true));
    assert!(format!("{:?}", ended.result).contains("hello"), "{ended:?}");
    let repeated = jobs.submit("m-1", fleet_job("echo hello; echo run >> effects")).await;
    assert_eq!(repeated.job_id, job.job_id);
    let reused = fleet.jobs(&second).try_submit("m-1", fleet_job("true")).await.unwrap_err();
    assert_eq!(reused.reason, "REQUEST_ID_REUSED");
    assert_eq!(effects(&first) + effects(&second), 1);

    // Rows do not name the caller, so no other key can submit.
    let other = fleet.keys.add_key("other", "invoke", &[]);
    let third = fleet.start_daemon_beside(&first).await;
    let refusal = fleet.jobs(&third).with_key(&other).try_submit("m-2", fleet_job("true")).await;
    assert_eq!(refusal.unwrap_err().reason, "FORBIDDEN");

    // The table has no place for artifacts, also for those of rows that programs insert.
    let storing = SubmitJobRequest { store_artifacts: true, ..fleet_job("true") };
    let refusal = jobs.try_submit("m-3", storing.clone()).await.unwrap_err();
    assert_eq!(refusal.invalid_fields(), ["store_artifacts"], "{refusal:?}");
    let inserted = fleet.server.insert("m-4", &storing).await;
    let failed = fleet.expect_end(&inserted, "failed").await;
    assert!(format!("{failed:?}").contains("store_artifacts"), "{failed:?}");

    // A job that no daemon has claimed can be cancelled.
    let late = "INSERT INTO jig_jobs (queue, workspace, request_id, request, not_before) \
        VALUES ('build', 'main', 'late', $1, now() + interval '1 hour') RETURNING id";
    let body = command_job("true").encode_to_vec();
    let row = fleet.server.connect("ci").await.query_one(late, &[&body]).await.unwrap();
    let job_id: String = row.get(0);
    let request = with_key(&jobs.key, CancelJobRequest { job_id: job_id.clone() });
    let cancelled: Option<Job> = jobs.client.cancel_job(request).await.unwrap().into_inner().job;
    assert_eq!(cancelled.unwrap().state(), JobState::Cancelled);
    fleet.expect_end(&job_id, "cancelled").await;

    // Connections read the password again.
    fs::write(&password_file, "another password\n").unwrap();
    let change = "ALTER ROLE jigd PASSWORD 'another password'";
    fleet.server.connect("postgres").await.batch_execute(change).await.unwrap();
    fleet.server.restart().await;
    eventually_within(MAX_FLEET_TIME, "the daemon connects with the new password", async || {
        jobs.try_submit("m-3", fleet_job("true")).await.is_ok()
    })
    .await;
    assert_eq!(jobs.wait(&fleet_job_id("m-3")).await.state(), JobState::Succeeded);
}

/// The death of a daemon after a claim, before it stored the job.
#[tokio::test]
async fn claim_without_a_job_runs_if_the_database_is_the_same() {
    let mut fleet = PostgresFleet::start().await;
    fleet.settings += "daemon_id = \"one\"\n";
    let mut daemon = fleet.start_daemon().await;
    let id = fleet.server.insert("first", &command_job("echo run >> effects")).await;
    fleet.expect_end(&id, "succeeded").await;
    kill(&mut daemon).await;

    let mut ids = Vec::new();
    for name in ["own", "foreign"] {
        ids.push(fleet.server.insert(name, &command_job("echo run >> effects")).await);
    }
    let claim = "UPDATE jig_jobs AS job SET state = 'claimed', claimed_by = 'one', attempts = 1,
        claimed_start = CASE WHEN job.request_id = 'own' THEN first.claimed_start ELSE 'x' END,
        claimed_at = now() + interval '1 hour', lease_until = now()
        FROM jig_jobs AS first WHERE job.state = 'queued' AND first.request_id = 'first'";
    assert_eq!(fleet.server.connect("postgres").await.execute(claim, &[]).await.unwrap(), 2);
    let daemon = daemon.restart().await;
    assert_eq!(fleet.expect_end(&ids[0], "succeeded").await.attempts, 1);
    assert_eq!(fleet.expect_end(&ids[1], "lost").await.attempts, 1);
    assert_eq!(effects(&daemon), 2);
}

#[tokio::test]
async fn daemons_with_one_name_do_not_take_claims_of_each_other() {
    let mut fleet = PostgresFleet::start().await;
    fleet.settings += "daemon_id = \"twin\"\n";
    let first = fleet.start_daemon().await;
    let running = fleet.server.insert("running", &command_job(COUNTED_WAIT)).await;
    wait_for_effects(&first, 1).await;

    let second = fleet.start_daemon_beside(&first).await;
    go(&second);
    let mut number = 0;
    eventually_within(MAX_FLEET_TIME, "the second daemon takes jobs", async || {
        number += 1;
        let job = command_job("echo run >> effects");
        let id = fleet.server.insert(&format!("m-{number}"), &job).await;
        fleet.expect_end(&id, "succeeded").await;
        effects(&second) > 0
    })
    .await;
    assert_eq!(fleet.server.job(&running).await.state, "claimed");
    go(&first);
    assert_eq!(fleet.expect_end(&running, "succeeded").await.attempts, 1);
    assert_eq!(effects(&first) + effects(&second), number + 1);
}
