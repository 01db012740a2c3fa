//! Kernels other than the host's, in virtual machines: the isolation that the daemon gives on them,
//! and the attacks. Machines with an arm64 processor are in [`arm64`].

mod arm64;

use std::{
    env, fs,
    io::{self, Write as _},
    process::Command,
};

use tonic_health::pb::health_check_response::ServingStatus;

use crate::support::{
    ALL_ATTACKS_VARIABLE, DAEMON_UID, Daemon, GuestOutput, Kernel, Setup, argv, guest, shell,
};

/// Attacks that run in virtual machines: those that depend on the kernel's answers. Tests that
/// measure time or move much data take too long under emulation. The first filter always runs, the
/// others at full size: together they take two minutes for each kernel.
const ATTACK_FILTERS: &[&str] = &[
    "attack::kernel",
    "attack::network",
    "attack::filesystem",
    "attack::killed_processes",
    "attack::protected_paths",
    "isolation::",
];

/// Tests among them that cannot run in a virtual machine, and the reason.
const SKIPPED_IN_GUEST: &[(&str, &str)] = &[
    (
        "case_75_command_fails_promptly_to_reach",
        "it measures how soon the kernel refuses, which emulation delays",
    ),
    ("_at_l1", "Linux 6.1 does not give L1"),
];

/// Prints a line that the test harness shows even if the test succeeds.
fn print_to_stderr(text: &str) {
    io::stderr().write_all(format!("{text}\n").as_bytes()).unwrap();
}

/// Arguments of the tests that select the attacks.
fn attack_arguments(all: bool) -> Vec<&'static str> {
    let filters = if all { ATTACK_FILTERS } else { &ATTACK_FILTERS[..1] };
    let skipped = SKIPPED_IN_GUEST.iter().flat_map(|(name, _)| ["--skip", name]);
    filters.iter().copied().chain(skipped).collect()
}

/// Fails if an attack succeeded, or if the attacks did not run.
fn check_attacks(output: &GuestOutput, all: bool) {
    let (passed, _) = output.test_counts();
    assert_eq!(output.failed_tests(), [""; 0], "{}", output.text());
    assert!(passed >= if all { 40 } else { 8 }, "{}", output.text());
}

/// Prints a summary of a machine that withstood attacks.
fn print_attacks(output: &GuestOutput) {
    let (passed, failed) = output.test_counts();
    let first = output.text().lines().next().unwrap_or_default();
    let last = output.text().lines().last().unwrap_or_default();
    print_to_stderr(&format!("{first}; {passed} tests passed, {failed} failed; {last}"));
    for (name, reason) in SKIPPED_IN_GUEST {
        print_to_stderr(&format!("skipped in virtual machines: {name}: {reason}"));
    }
}

/// In a virtual machine, checks the level that a daemon gives, and runs the attacks.
async fn check_l3_and_attacks(landlock: &str) {
    check_l3(landlock).await;

    let all = env::var(ALL_ATTACKS_VARIABLE).as_deref() == Ok("1");
    let mut attacks = Command::new(env::current_exe().unwrap());
    let output = attacks.args(attack_arguments(all)).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    print_to_stderr(&text);
    check_attacks(&GuestOutput::new(text), all);
    assert!(output.status.success(), "{}", output.status);
}

#[tokio::test]
async fn linux_6_1_gives_l3_and_withstands_attacks() {
    match guest(Kernel::Debian12).output_of_current_test(|| {}).await {
        Some(output) => print_attacks(&output),
        None => check_l3_and_attacks("version 2").await,
    }
}

#[tokio::test]
async fn linux_6_12_gives_l3_and_withstands_attacks() {
    match guest(Kernel::Debian13).output_of_current_test(|| {}).await {
        Some(output) => print_attacks(&output),
        None => check_l3_and_attacks("version 6").await,
    }
}

/// Checks the level that a daemon gives, as root and as an ordinary user.
async fn check_l3(landlock: &str) {
    for setup in [Setup::new(), Setup::new().user(DAEMON_UID)] {
        let daemon = setup.start().await;
        assert_eq!(daemon.run(shell("true")).await.isolation, "L3");
        assert_eq!(landlock_version(&daemon).await, landlock);
    }
}

/// The version of Landlock that the daemon reports.
async fn landlock_version(daemon: &Daemon) -> String {
    let layers = daemon.info().await.isolation.unwrap().layers;
    let landlock = layers.into_iter().find(|layer| layer.name == "landlock");
    let detail = landlock.unwrap().detail;
    detail.split(';').next().unwrap_or_default().to_owned()
}

/// Refuses user namespaces in this machine, until it is dropped.
struct NoUserNamespaces(String);

const USER_NAMESPACE_LIMIT: &str = "/proc/sys/user/max_user_namespaces";

impl NoUserNamespaces {
    fn new() -> Self {
        let limit = fs::read_to_string(USER_NAMESPACE_LIMIT).unwrap();
        fs::write(USER_NAMESPACE_LIMIT, "0").unwrap();
        Self(limit)
    }
}

impl Drop for NoUserNamespaces {
    fn drop(&mut self) {
        fs::write(USER_NAMESPACE_LIMIT, &self.0).unwrap();
    }
}

/// Checks a host that refuses user namespaces. The daemon runs nothing unless the operator allows
/// L1 and the kernel's Landlock is new enough for it.
async fn check_without_user_namespaces(gives_l1: bool) {
    let _refused = NoUserNamespaces::new();
    assert_eq!(fs::read_to_string(USER_NAMESPACE_LIMIT).unwrap(), "0\n");

    for setup in [Setup::new(), Setup::new().user(DAEMON_UID)] {
        let daemon = setup.start().await;
        assert_eq!(daemon.health().await, ServingStatus::NotServing);
        let refusal = daemon.run_failing(shell("touch ran"), "SANDBOX_UNAVAILABLE").await;
        assert_eq!(refusal.metadata["stage"], "user_namespace");
        assert_eq!(refusal.metadata["errno"], "ENOSPC");
        assert!(refusal.metadata["remedy"].contains("max_user_namespaces"));
        assert!(!daemon.file("ran").exists());
    }

    let allowed = Setup::new().user(DAEMON_UID).arguments(&["--minimum-level", "L1"]);
    let daemon = allowed.start().await;
    let isolation = daemon.info().await.isolation.unwrap();
    let refused: Vec<_> = isolation
        .failed_levels
        .iter()
        .map(|failure| (failure.level.as_str(), failure.stage.as_str()))
        .collect();
    let namespaces = [("L3", "user_namespace"), ("L2", "user_namespace")];
    if gives_l1 {
        assert_eq!((isolation.level.as_str(), isolation.ready), ("L1", true));
        assert_eq!(refused, namespaces);
        assert_eq!(daemon.run(shell("true")).await.isolation, "L1");
        let response = daemon.run(argv(&["ls", "/root"])).await;
        assert_ne!(response.exit_code, Some(0), "{response:?}");
    } else {
        assert_eq!((isolation.level.as_str(), isolation.ready), ("L0", false));
        assert_eq!(refused[..2], namespaces);
        assert_eq!(refused[2..], [("L1", "no_namespaces")]);
        let last = isolation.failed_levels.last().unwrap();
        assert!(last.message.contains("version 2 of Landlock"), "{last:?}");
        assert!(last.remedy.contains("6.12"), "{last:?}");
        daemon.run_failing(shell("touch ran"), "SANDBOX_UNAVAILABLE").await;
        assert!(!daemon.file("ran").exists());
    }
}

#[tokio::test]
async fn linux_6_1_without_user_namespaces_runs_no_command() {
    if !guest(Kernel::Debian12).run_current_test(|| {}).await {
        check_without_user_namespaces(false).await;
    }
}

#[tokio::test]
async fn linux_6_12_without_user_namespaces_gives_l1() {
    if !guest(Kernel::Debian13).run_current_test(|| {}).await {
        check_without_user_namespaces(true).await;
    }
}

#[tokio::test]
async fn linux_6_12_without_landlock_gives_l3_and_reports_it() {
    let machine = guest(Kernel::Debian13).kernel_option("lsm=yama");
    if machine.run_current_test(|| {}).await {
        return;
    }
    let daemon = Daemon::start().await;
    assert_eq!(daemon.run(shell("true")).await.isolation, "L3");
    assert!(landlock_version(&daemon).await.contains("not available"));
}
