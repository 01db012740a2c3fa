//! Credentials of daemons that are replaced, or that expire, while the daemon runs.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use async_nats::ConnectOptions;
use jig::api::v1::JobState;
use nkeys::KeyPair;

use super::{
    COUNTED_WAIT, Member, TestFleet, decentralized_auth::Operator, fleet_job,
    nats_server::NatsServer, plain_client::PlainClient,
};
use crate::support::{eventually, eventually_within};

/// Log text of a rejected connection.
const REJECTED: &str = "its credentials are wrong, or have expired";
/// Time until a daemon has connected again: it waits for at most 5 s between attempts.
const MAX_RECONNECT_TIME: Duration = Duration::from_secs(60);
/// Lifetime of credentials that expire in a test, but not before the daemon has connected.
const SHORT_LIFETIME: Duration = Duration::from_secs(10);
const LONG_LIFETIME: Duration = Duration::from_secs(3600);

/// Replaces a file at once, as orchestrators do.
fn replace(path: &Path, content: &str, mode: u32) {
    let new = path.with_extension("new");
    fs::write(&new, content).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(mode)).unwrap();
    fs::rename(new, path).unwrap();
}

/// Waits until the log of a daemon has a text once more.
async fn wait_for_log(member: &Member, text: &str) {
    let count = || member.daemon.log().matches(text).count();
    let before = count();
    let what = format!("the log has once more: {text}");
    eventually_within(MAX_RECONNECT_TIME, &what, async || count() > before).await;
}

async fn submit_when_connected(fleet: &TestFleet, member: &Member, request_id: &str) -> String {
    let mut jobs = fleet.jobs(member);
    let mut id = None;
    eventually_within(MAX_RECONNECT_TIME, "a job is accepted", async || {
        id = jobs.try_submit(request_id, fleet_job("true")).await.ok().map(|job| job.job_id);
        id.is_some()
    })
    .await;

    id.unwrap()
}

/// Configuration of a server with an nkey for daemons, and a user for the test.
fn users(daemon: &KeyPair) -> String {
    let nkey = daemon.public_key();
    format!(
        "authorization {{ users = [ {{ nkey: {nkey} }}, {{ user: plain, password: secret }} ] }}\n"
    )
}

#[tokio::test]
async fn replaced_nkey_is_read_at_the_next_connection() {
    let [old, new] = [(); 2].map(|()| KeyPair::new_user());
    let server = NatsServer::start_with_config(&users(&old)).await;
    let options = ConnectOptions::with_user_and_password("plain".into(), "secret".into());
    let client = PlainClient::connect(server.port(), options).await;
    let mut fleet = TestFleet::with_client(server, client);
    let path = fleet.directory.path().join("daemon.nk");
    replace(&path, &old.seed().unwrap(), 0o600);
    fleet.add_settings(&format!("nkey_file = {path:?}\n"));
    let member = fleet.start_member().await;
    let mut jobs = fleet.jobs(&member);
    let running = submit_command(&fleet, &member, COUNTED_WAIT).await;
    member.wait_for_effects(1).await;

    fleet.server.reload(&users(&new));
    wait_for_log(&member, REJECTED).await;
    let refusal = jobs.try_submit("m-2", fleet_job("true")).await.unwrap_err();
    assert_eq!(refusal.reason, "FLEET_UNAVAILABLE", "{refusal:?}");

    // The checks of the start apply.
    let seed = new.seed().unwrap();
    replace(&path, &seed, 0o644);
    wait_for_log(&member, "chmod o-rwx").await;
    fs::remove_file(&path).unwrap();
    wait_for_log(&member, "give the path of the file").await;
    assert!(!member.daemon.log().contains(&seed));

    replace(&path, &seed, 0o600);
    let id = submit_when_connected(&fleet, &member, "m-2").await;
    assert_eq!(jobs.wait(&id).await.state(), JobState::Succeeded);
    member.go();
    assert_eq!(jobs.wait(&running).await.state(), JobState::Succeeded);
    assert_eq!(member.lines("effects"), ["run"]);
}

#[tokio::test]
async fn missing_credentials_are_named_with_the_server() {
    let server = NatsServer::start_with_config(&users(&KeyPair::new_user())).await;
    let options = ConnectOptions::with_user_and_password("plain".into(), "secret".into());
    let client = PlainClient::connect(server.port(), options).await;
    let fleet = TestFleet::with_client(server, client);
    let member = fleet.start_member().await;
    let expected = ["set fleet.credentials_file or fleet.nkey_file", &member.proxy.url()];
    eventually("the log has the remedy and the server", async || {
        let log = member.daemon.log();
        log.lines().any(|line| expected.iter().all(|text| line.contains(text)))
    })
    .await;
}

async fn submit_command(fleet: &TestFleet, member: &Member, command: &str) -> String {
    fleet.jobs(member).submit("m-1", fleet_job(command)).await.job_id
}

#[tokio::test]
async fn expired_credentials_are_replaced_while_the_daemon_runs() {
    let operator = Operator::new();
    let server = NatsServer::start_with_config(&operator.server_config()).await;
    let own = operator.credentials(LONG_LIFETIME);
    let options = ConnectOptions::with_credentials(&own).unwrap();
    let client = PlainClient::connect(server.port(), options).await;
    let mut fleet = TestFleet::with_client(server, client);
    let path: PathBuf = fleet.directory.path().join("daemon.creds");
    replace(&path, &operator.credentials(SHORT_LIFETIME), 0o600);
    fleet.add_settings(&format!("credentials_file = {path:?}\n"));
    let member = fleet.start_member().await;
    eventually("the daemon connects", async || {
        member.daemon.log().contains("connected to the NATS server")
    })
    .await;

    wait_for_log(&member, REJECTED).await;
    assert!(member.daemon.log().contains("User Authentication Expired"), "{}", member.daemon.log());
    let mut jobs = fleet.jobs(&member);
    let refusal = jobs.try_submit("m-1", fleet_job("true")).await.unwrap_err();
    assert_eq!(refusal.reason, "FLEET_UNAVAILABLE", "{refusal:?}");

    // Credentials of another operator's account, and what is none.
    replace(&path, &Operator::new().credentials(LONG_LIFETIME), 0o600);
    wait_for_log(&member, REJECTED).await;
    replace(&path, "SUACH75SWCM5D2JMJM6EKLR2WDARVGZT4QC6LX3AGHSWOMVAKERABBBRWM", 0o600);
    wait_for_log(&member, "is no credentials file").await;

    replace(&path, &operator.credentials(LONG_LIFETIME), 0o600);
    let id = submit_when_connected(&fleet, &member, "m-1").await;
    assert_eq!(jobs.wait(&id).await.state(), JobState::Succeeded);
}
