//! Servers with TLS and users: how daemons authenticate, and what plain clients may do.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command, time::Duration};

use async_nats::{ConnectOptions, jetstream::stream};
use futures_util::StreamExt as _;
use jig::api::v1::{FleetJobRecord, FleetJobState, JobState};
use prost::Message as _;

use super::{
    COUNTED_WAIT, Member, TestFleet, fleet_job,
    nats_server::NatsServer,
    plain_client::{JobMessage, MAX_FLEET_TIME, PlainClient, fleet_job_id},
};
use crate::{
    jobs::command_job,
    support::{CertificateAuthority, eventually_within, promptly, tools_directory},
};

const DAEMONS_PAGE: &str = include_str!("../../docs/operate/fleet.md");
const CLIENTS_PAGE: &str = include_str!("../../docs/fleet.md");
/// The public key of [`NKEY_SEED`].
const NKEY: &str = "UAFHG6FUD2UU4SDFVAFUL5LDFO2XM4WYM76UNXTPJYJK7EEMYRBHT2VE";
/// The seed of a key that the tests of NATS publish.
const NKEY_SEED: &str = "SUACH75SWCM5D2JMJM6EKLR2WDARVGZT4QC6LX3AGHSWOMVAKERABBBRWM";

/// The permissions that a page lists, as text of a server's configuration.
fn documented_permissions(page: &str) -> String {
    let (_, rest) = page.split_once("```text\npublish ").unwrap();
    let (block, _) = rest.split_once("```").unwrap();
    let (publish, subscribe) = block.split_once("subscribe ").unwrap();
    let quoted = |text: &str| {
        let subjects = text.split([',', '\n']).map(str::trim).filter(|word| !word.is_empty());
        subjects.map(|subject| format!("{subject:?}")).collect::<Vec<_>>().join(", ")
    };
    format!("publish = [{}], subscribe = [{}]", quoted(publish), quoted(subscribe))
}

/// A fleet on a server that knows an nkey for daemons, and a user for plain clients.
async fn start_fleet_with_users(config: &str) -> TestFleet {
    let [daemons, clients] = [DAEMONS_PAGE, CLIENTS_PAGE].map(documented_permissions);
    start_fleet(&format!(
        "{config}\nauthorization {{ users = [\n  {{ nkey: {NKEY}, permissions: {{ {daemons} }} }}\n  \
         {{ user: plain, password: PASSWORD, permissions: {{ {clients} }} }}\n] }}\n"
    ))
    .await
}

/// A fleet whose daemons have the documented permissions, and whose plain client has all.
pub(super) async fn start_fleet_with_limited_daemons() -> TestFleet {
    let daemons = documented_permissions(DAEMONS_PAGE);
    start_fleet(&format!(
        "authorization {{ users = [\n  {{ nkey: {NKEY}, permissions: {{ {daemons} }} }}\n  \
         {{ user: plain, password: PASSWORD }}\n] }}\n"
    ))
    .await
}

/// A fleet on a server whose configuration names the nkey of daemons and the user `plain`.
async fn start_fleet(config: &str) -> TestFleet {
    let server = NatsServer::start_with_config(config).await;
    let options = ConnectOptions::with_user_and_password("plain".into(), "PASSWORD".into());
    let client = PlainClient::connect(server.port(), options).await;
    let mut fleet = TestFleet::with_client(server, client);

    let seed = fleet.directory.path().join("daemon.nk");
    fs::write(&seed, format!("{NKEY_SEED}\n")).unwrap();
    fs::set_permissions(&seed, fs::Permissions::from_mode(0o600)).unwrap();
    fleet.add_settings(&format!("nkey_file = {seed:?}\n"));
    fleet
}

#[tokio::test]
async fn example_needs_only_the_documented_permissions() {
    let fleet = start_fleet_with_users("").await;
    let _member = fleet.start_member().await;
    let python = tools_directory().join("fleet/python/bin/python");
    let stubs = fleet.directory.path().join("stubs");
    fs::create_dir(&stubs).unwrap();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let mut generator = Command::new(&python);
    generator.args(["-m", "grpc_tools.protoc", "--python_out"]).arg(&stubs);
    generator.arg("--proto_path").arg(&sources);
    let protos = fs::read_dir(sources.join("jig/v1")).unwrap();
    generator.args(protos.map(|proto| proto.unwrap().path()));
    run(generator).await;

    let server = format!("nats://plain:PASSWORD@127.0.0.1:{}", fleet.server.port());
    let mut example = Command::new(&python);
    example.env("PYTHONPATH", &stubs);
    example.args(["examples/fleet.py", &server, "build.main", "seq 200000"]);
    let printed = run(example).await;
    assert!(printed.contains("JOB_STATE_SUCCEEDED"), "{printed}");
    assert!(printed.contains("stdout.txt: 1288895 bytes"), "{printed}");
    assert!(!fleet.server.log().contains("Violation"), "{}", fleet.server.log());
}

/// Runs a program in the directory of the source, and returns what it prints.
async fn run(mut command: Command) -> String {
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("PYTHONDONTWRITEBYTECODE", "1");
    let running = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = promptly("a program ends", running).await.unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn plain_client_can_do_only_what_its_permissions_say() {
    let fleet = start_fleet_with_users("").await;
    let member = fleet.start_member().await;
    let client = &fleet.client;
    client.publish(&JobMessage::new("m-1", &command_job("echo hello"))).await;
    let id = fleet_job_id("m-1");
    let mut jobs = fleet.jobs(&member);
    eventually_within(MAX_FLEET_TIME, "there is a job", async || jobs.try_get(&id).await.is_ok())
        .await;
    let job = jobs.wait(&id).await;
    assert_eq!(job.state(), JobState::Succeeded);

    let records = client.records().await;
    let other = JobMessage::new("m-2", &command_job("true")).subject("jig.jobs.other.main");
    let (mut consumers, mut names) = (records.stream.consumers(), records.stream.consumer_names());
    let (put, get, consumer, name, published) = tokio::join!(
        records.put(&id, "forged".into()),
        // The server would send the stored bytes to any subject, also to that of another record.
        records.get(&id),
        // Consumers of daemons show where the server delivers records to.
        consumers.next(),
        names.next(),
        client.try_publish(&other),
    );
    assert!(put.is_err() && get.is_err() && published.is_none());
    assert!(consumer.unwrap().is_err() && name.unwrap().is_err());
    assert_eq!(jobs.try_get(&id).await.unwrap(), job);

    // It reads the record by a watch.
    let mut changes = records.watch_with_history(&id).await.unwrap();
    let entry = promptly("the record arrives", changes.next()).await.unwrap().unwrap();
    let record = FleetJobRecord::decode(entry.value).unwrap();
    assert_eq!(record.state(), FleetJobState::Ended);
}

/// The server sends replies to any subject, but not to one of another account.
#[tokio::test]
async fn program_in_another_account_writes_no_record() {
    let (_, rest) = CLIENTS_PAGE.split_once("```text\naccounts").unwrap();
    let (accounts, _) = rest.split_once("```").unwrap();
    let fleet = start_fleet(&format!("accounts{}", accounts.replace("DAEMONS", NKEY))).await;
    let member = fleet.start_member().await;
    let mut jobs = fleet.jobs(&member);
    let command = format!("{COUNTED_WAIT}; echo real");
    let id = jobs.submit("m-1", fleet_job(&command)).await.job_id;
    member.wait_for_effects(1).await;
    let own = JobMessage::new("own", &command_job("echo forged"));
    fleet.client.publish(&own).await;

    let client = fleet.client.client();
    let get = format!("$JS.API.DIRECT.GET.KV_JIG_JOBS_records.{}", subject(&fleet_job_id("own")));
    eventually_within(MAX_FLEET_TIME, "the job has ended", async || {
        let reply = client.request(get.clone(), "".into()).await.unwrap();
        let record = FleetJobRecord::decode(reply.payload).unwrap();
        record.state() == FleetJobState::Ended
    })
    .await;
    for request in [get.clone(), "jig.jobs.build.main".to_owned()] {
        client.publish_with_reply(request, subject(&id), "".into()).await.unwrap();
    }
    client.request(get, "".into()).await.unwrap();

    member.go();
    let job = jobs.wait(&id).await;
    assert_eq!((&*job.job_id, job.state()), (&*id, JobState::Succeeded));
    assert!(job.result.unwrap().text.contains("real"));
}

/// Where the record of a job is.
fn subject(id: &str) -> String {
    format!("$KV.JIG_JOBS_records.{id}")
}

#[tokio::test]
async fn daemon_connects_by_tls_with_nkey_and_private_ca() {
    let authority = CertificateAuthority::new();
    let files = authority.issue_server();
    let (cert, key) = (files.cert.display(), files.key.display());
    let tls =
        format!("tls {{ cert_file: \"{cert}\", key_file: \"{key}\" }}\nallow_non_tls: true\n");
    let mut fleet = start_fleet_with_users(&tls).await;
    let url = format!("tls://127.0.0.1:{}", fleet.server.port());

    // Without the CA, the daemon does not trust the server.
    let daemon = fleet.setup(&[&url], &fleet.queues).start().await;
    let proxy = fleet.client.proxy().clone();
    let member = Member { daemon, proxy: proxy.clone() };
    let refusal = fleet.jobs(&member).try_submit("m-1", fleet_job("true")).await.unwrap_err();
    assert_eq!(refusal.reason, "FLEET_UNAVAILABLE", "{refusal:?}");
    drop(member);

    fleet.add_settings(&format!("ca_file = {:?}\n", authority.ca()));
    let daemon = fleet.setup(&[&url], &fleet.queues).start().await;
    let member = Member { daemon, proxy };
    let mut jobs = fleet.jobs(&member);
    let mut id = None;
    eventually_within(MAX_FLEET_TIME, "a job is accepted", async || {
        id = jobs.try_submit("m-1", fleet_job("true")).await.ok().map(|job| job.job_id);
        id.is_some()
    })
    .await;
    assert_eq!(jobs.wait(&id.unwrap()).await.state(), JobState::Succeeded);
}

#[tokio::test]
async fn stream_of_another_shape_is_reported_and_not_used() {
    let fleet = TestFleet::start().await;
    let shape = stream::Config {
        name: "JIG_JOBS".to_owned(),
        subjects: vec!["jig.jobs.>".to_owned()],
        retention: stream::RetentionPolicy::WorkQueue,
        max_age: Duration::from_secs(24 * 60 * 60),
        discard: stream::DiscardPolicy::New,
        ..stream::Config::default()
    };
    let jetstream = fleet.client.jetstream();
    for field in ["discard", "storage", "fleet.result_retention", "max_msg_size"] {
        let mut shape = shape.clone();
        match field {
            "discard" => shape.discard = stream::DiscardPolicy::Old,
            "storage" => shape.storage = stream::StorageType::Memory,
            "max_msg_size" => shape.max_message_size = 1000,
            _ => shape.max_age /= 2,
        }
        jetstream.create_stream(shape).await.unwrap();
        let member = fleet.start_observer().await;
        eventually_within(MAX_FLEET_TIME, field, async || {
            fleet.jobs(&member).try_submit("m-1", fleet_job("true")).await.is_err()
                && member.daemon.log().contains(field)
        })
        .await;
        drop(member);
        jetstream.delete_stream("JIG_JOBS").await.unwrap();
    }
}
