//! A daemon without `[fleet]` has no connection for it, and accepts no jobs of one.

use std::{collections::BTreeSet, fs, path::Path};

use jig::api::v1::SubmitJobRequest;

use super::{TestFleet, fleet_job};
use crate::{
    jobs::command_job,
    support::{Daemon, Setup, eventually, promptly, shell},
};

/// Number of TCP sockets that the daemon has open.
fn tcp_sockets(daemon: &Daemon) -> usize {
    let process = format!("/proc/{}", daemon.pid());
    let tables = ["net/tcp", "net/tcp6"]
        .map(|table| fs::read_to_string(Path::new(&process).join(table)).unwrap());
    let inodes: BTreeSet<String> = tables
        .iter()
        .flat_map(|table| table.lines().skip(1))
        .filter_map(|line| line.split_ascii_whitespace().nth(9))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();

    let descriptors = fs::read_dir(format!("{process}/fd")).unwrap();
    let targets = descriptors.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    targets.filter(|target| inodes.contains(&*target.to_string_lossy())).count()
}

#[tokio::test]
async fn daemon_without_fleet_has_no_connection_for_it() {
    let fleet = TestFleet::start().await;
    let plain = Setup::new().workspace_table("name = \"main\"\n").start().await;
    plain.output(shell("true")).await;
    assert_eq!(tcp_sockets(&plain), 0);

    let member = fleet.start_member_with(|setup| setup.beside(&plain)).await;
    eventually("the member connects", async || tcp_sockets(&member.daemon) > 0).await;
    assert_eq!(tcp_sockets(&plain), 0);
}

#[tokio::test]
async fn submission_to_absent_fleet_names_the_table() {
    let daemon = Daemon::start().await;
    let mut jobs = crate::jobs::Jobs::of(&daemon);
    let refusal = jobs.try_submit(fleet_job("true")).await.unwrap_err();
    assert_eq!((&*refusal.reason, &*refusal.invalid_fields()), ("INVALID_PARAMS", &["fleet"][..]));
    assert!(refusal.message.contains("[fleet]"), "{refusal:?}");

    let request = SubmitJobRequest { retry_if_lost: true, ..command_job("true") };
    let refusal = jobs.try_submit(request).await.unwrap_err();
    assert_eq!(refusal.invalid_fields(), ["retry_if_lost"], "{refusal:?}");
    let request = SubmitJobRequest { store_artifacts: true, ..command_job("true") };
    let refusal = jobs.try_submit(request).await.unwrap_err();
    assert_eq!(refusal.invalid_fields(), ["store_artifacts"], "{refusal:?}");
    let id = promptly("a local job is accepted", jobs.submit(command_job("true"))).await;
    assert!(!jobs.wait(&id).await.fleet);

    // An id of a fleet is an unknown one.
    let id = super::plain_client::fleet_job_id("m-1");
    assert_eq!(jobs.try_get(&id).await.unwrap_err().reason, "JOB_NOT_FOUND");
}
