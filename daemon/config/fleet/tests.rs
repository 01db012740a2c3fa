//! Tests of the checks of `[fleet]`.

use std::{fs, os::unix::fs::PermissionsExt as _};

use super::*;
use crate::daemon::config::jobs::parse_jobs;

fn parse(text: &str, allow_plaintext: bool) -> (FleetConfig, Vec<String>) {
    let mut problems = Vec::new();
    let jobs = parse_jobs(Default::default(), &mut problems);
    let context = FleetContext {
        jobs: &jobs,
        workspaces: &["main", "other"],
        creates_workspaces: false,
        keys: Some(&[("ci", AccessRole::Invoke), ("reader", AccessRole::Read)]),
        allow_plaintext,
    };
    let config = parse_fleet(toml::from_str(text).unwrap(), context, &mut problems);
    (config, problems)
}

#[test]
fn a_short_table_has_defaults() {
    let text = "nats = [\"tls://nats.example.com:4222\"]\n[[queues]]\nname = \"build\"\n";
    let (fleet, problems) = parse(text, false);
    assert_eq!(problems, [""; 0]);
    let FleetServers::Nats(nats) = fleet.servers else { panic!("{:?}", fleet.servers) };
    assert_eq!(nats.stream, "JIG_JOBS");
    assert_eq!((fleet.ack_wait, fleet.lost_after), (DEFAULT_ACK_WAIT, DEFAULT_LOST_AFTER));
    let queue = FleetQueueConfig {
        name: "build".to_owned(),
        key: None,
        workspaces: vec!["main".to_owned()],
        places: 20,
    };
    assert_eq!(fleet.queues, [queue]);
}

#[test]
fn every_problem_is_reported() {
    let text = r#"
        nats = ["http://x", "nats://nats.example.com", "tls://u:p@h"]
        stream = "a.b"
        replicas = 2
        daemon_id = "a b"
        ack_wait = "10ms"
        lost_after = "soon"
        max_deliver = 0
        result_retention = "0s"
        credentials_file = "/nowhere/creds"
        nkey_file = "/nowhere/nkey"
        signing_key_file = "/nowhere/key"
        [[queues]]
        name = "a.b"
        key = "unknown"
        workspaces = ["none", "a.b", "main", "main"]
        places = 1000
        [[queues]]
        name = "build"
        [[queues]]
        name = "build"
        key = "reader"
    "#;
    let (_, problems) = parse(text, false);
    for part in [
        "http://x",
        "unencrypted",
        "remove user and password",
        "fleet.stream",
        "fleet.replicas",
        "fleet.daemon_id",
        "fleet.ack_wait",
        "fleet.lost_after",
        "fleet.max_deliver",
        "fleet.result_retention",
        "one of the two",
        "fleet.signing_key_file",
        "not the name",
        "no key \"unknown\"",
        "\"reader\" has the role read",
        "no workspace of this daemon",
        "part of a subject",
        "give each once",
        "places must be",
        "two queues",
    ] {
        assert!(problems.iter().any(|problem| problem.contains(part)), "{part}: {problems:#?}");
    }
}

#[test]
fn retention_is_as_long_as_daemons_may_be_silent() {
    let text = |retention| {
        format!("nats = [\"tls://h\"]\nresult_retention = {retention:?}\nack_wait = \"90s\"")
    };
    assert_eq!(parse(&text("90s"), false).1, [""; 0]);
    let (_, problems) = parse(&text("89s"), false);
    assert!(problems[0].contains("fleet.result_retention must be at least"), "{problems:?}");
}

#[test]
fn ca_files_have_certificates() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ca.pem");
    fs::write(&path, "hello").unwrap();
    let (_, problems) = parse(&format!("nats = [\"tls://h\"]\nca_file = {path:?}"), false);
    assert!(problems[0].contains("fleet.ca_file") && problems[0].contains("no certificate"));
}

#[test]
fn queues_of_postgresql_need_a_key() {
    let text = |key: &str| {
        format!(
            "postgres = \"postgresql://jig@localhost/jig\"\n[[queues]]\nname = \"build\"\n{key}"
        )
    };
    assert_eq!(parse(&text("key = \"ci\""), false).1, [""; 0]);
    let (_, problems) = parse(&text(""), false);
    assert!(problems[0].contains("\"build\": key: is missing"), "{problems:?}");
    assert_eq!(problems.len(), 1);
}

#[test]
fn plaintext_is_for_this_machine_and_trusted_networks() {
    for url in ["nats://127.0.0.1:4222", "nats://localhost:4222", "nats://[::1]:4222"] {
        assert_eq!(parse(&format!("nats = [{url:?}]"), false).1, [""; 0]);
    }
    let remote = "nats = [\"nats://192.0.2.1:4222\"]";
    assert_eq!(parse(remote, false).1.len(), 1);
    assert_eq!(parse(remote, true).1, [""; 0]);
}

#[test]
fn secrets_are_private_and_long() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    let text = format!("nats = [\"tls://h\"]\nsigning_key_file = {path:?}");
    let write = |content: &str, mode| {
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    };

    let long = "k".repeat(32);
    write(&format!("{long}\n"), 0o600);
    let (fleet, problems) = parse(&text, false);
    assert_eq!(problems, [""; 0]);
    assert_eq!(fleet.signing_key.unwrap().bytes(), long.as_bytes());

    write(&long, 0o644);
    assert!(parse(&text, false).1[0].contains("chmod"));
    write("short", 0o600);
    assert!(parse(&text, false).1[0].contains("at least 32"));
    write("", 0o600);
    assert!(parse(&text, false).1[0].contains("is empty"));
}
