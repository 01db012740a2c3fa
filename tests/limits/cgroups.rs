//! Limits that the kernel enforces in cgroups of version 2, in virtual machines.

use std::{fs, path::PathBuf, process::Command};

use jig::api::v1::{LowerLimits, Outcome, RunRequest, RunResponse};
use rustix::process::Signal;
use tonic_health::pb::health_check_response::ServingStatus;

use super::{LARGEST_LIMITS_TABLE, isolation_layer, limited_command};
use crate::support::{
    DAEMON_UID, Daemon, Kernel, Mark, Refusal, Setup, argv, compile_in_workspace, eventually,
    guest, shell,
};

const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// Prepares a cgroup like systemd with `Delegate=yes`, enters it and executes the arguments.
const DELEGATION_SCRIPT: &str = r#"
    echo "+memory +pids +cpu" > /sys/fs/cgroup/cgroup.subtree_control
    mkdir -p /sys/fs/cgroup/delegated
    chown -R USER /sys/fs/cgroup/delegated
    echo $$ > /sys/fs/cgroup/delegated/cgroup.procs &&
    exec setpriv --reuid USER --regid USER --clear-groups "$0" "$@"
"#;

fn command_with_limits(command: &str, lower: impl FnOnce(&mut LowerLimits)) -> RunRequest {
    let mut limits = LowerLimits::default();
    lower(&mut limits);
    limited_command(command, limits)
}

fn outcome_and_limit(response: &RunResponse) -> (Outcome, &str) {
    (response.outcome(), response.limit.as_str())
}

/// The existing cgroups of a daemon's runs. `parent` is relative to the root of the hierarchy.
fn run_cgroups(daemon: &Daemon, parent: &str) -> Vec<PathBuf> {
    let runs = PathBuf::from(CGROUP_ROOT).join(parent);
    let runs = runs.join(format!("jig-runs-{}", daemon.pid()));
    let entries = fs::read_dir(&runs).unwrap_or_else(|error| panic!("{runs:?}: {error}"));
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.is_dir()).collect()
}

/// Checks the limits that every daemon with cgroups enforces.
async fn check_limits(daemon: &Daemon) {
    for (name, expected_text) in
        [("memory_limit", "memory.max"), ("process_limit", "pids.max"), ("cpu_share", "cpu.weight")]
    {
        let layer = isolation_layer(daemon, name).await;
        assert!(layer.applied && layer.detail.contains(expected_text), "{layer:?}");
    }

    check_memory_limit(daemon).await;
    check_process_limit(daemon).await;

    // A lowered limit does not apply to the next run.
    let script = "head -c 60000000 /dev/zero > /tmp/x; for i in 1 2 3 4 5 6 7 8; do sleep 1 & done; wait; echo fine";
    assert_eq!(daemon.output(shell(script)).await, "fine\n");
}

async fn check_memory_limit(daemon: &Daemon) {
    for attack in [
        // One process.
        "echo 1; tail /dev/zero",
        // Many: the kernel kills all of them, and the shell that would continue.
        "echo 1; (tail /dev/zero; echo survived) & sleep 300",
        // Files in memory.
        "echo 1; head -c 100000000 /dev/zero > /dev/shm/x; echo survived; sleep 300",
    ] {
        let mark = Mark::new();
        let request = command_with_limits(attack, |limits| limits.memory_bytes = Some(48 << 20));
        let response = daemon.run(mark.on(request)).await;
        assert_eq!(outcome_and_limit(&response), (Outcome::OomKilled, "memory"), "{response:?}");
        assert_eq!(response.signal, "SIGKILL");
        assert_eq!(response.stdout, "1\n", "{attack}");
        mark.assert_gone();
    }
}

async fn check_process_limit(daemon: &Daemon) {
    let bomb = compile_in_workspace(daemon, "fork_bomb");
    let mark = Mark::new();
    let bomb = RunRequest {
        timeout_sec: Some(3),
        limits: command_with_limits("", |limits| limits.processes = Some(20)).limits,
        ..argv(&[&bomb])
    };
    let response = daemon.run(mark.on(bomb)).await;
    assert_eq!(response.limit, "pids", "{response:?}");
    mark.assert_gone();

    // A run that reached the limit and continued reports it when it fails, and only then.
    let script = "for i in 1 2 3 4 5 6 7 8 9; do sleep 1 & done; wait; exit 3";
    let request = command_with_limits(script, |limits| limits.processes = Some(5));
    let response = daemon.run(request).await;
    assert_eq!(response.limit, "pids", "{response:?}");

    let response = daemon.run(shell("exit 3")).await;
    assert_eq!(response.limit, "", "{response:?}");
}

/// Checks that the cgroups of ended runs are removed, however the runs ended.
async fn check_cgroups_are_removed(daemon: &Daemon, parent: &str) {
    let mark = Mark::new();
    let calls = [
        daemon.spawn_run(mark.on(shell("sleep 100"))),
        daemon.spawn_run(mark.on(shell("(sleep 100) & sleep 100"))),
    ];
    mark.wait_for_processes(5).await;
    for call in calls {
        call.abort();
    }
    mark.wait_until_gone().await;

    eventually("the cgroups are removed", async || {
        // Cgroups that could not be removed at once are removed when the next run is made.
        daemon.run(shell("true")).await;

        // The remaining cgroups belong to idle sandboxes, with one process each.
        run_cgroups(daemon, parent).iter().all(|run| {
            let members = fs::read_to_string(run.join("cgroup.procs")).unwrap_or_default();
            members.lines().count() == 1
        })
    })
    .await;
}

#[tokio::test]
async fn linux_6_1_enforces_limits_in_cgroups() {
    if guest(Kernel::Debian12).run_current_test(|| {}).await {
        return;
    }
    let daemon = Setup::new().start().await;
    check_limits(&daemon).await;
    check_cgroups_are_removed(&daemon, "").await;
}

#[tokio::test]
async fn case_n28_daemon_runs_nothing_without_its_limiting_cgroup() {
    if guest(Kernel::Debian12).run_current_test(|| {}).await {
        return;
    }
    let daemon = Setup::new().start().await;
    let control = format!("{CGROUP_ROOT}/jig-runs-{}/cgroup.subtree_control", daemon.pid());
    fs::write(&control, "-pids").unwrap();
    eventually("the daemon is not ready", async || {
        match daemon.try_run(shell("touch ran")).await {
            // The cgroup of an idle sandbox was made before.
            Ok(response) => assert_eq!(response.isolation, "L3"),
            Err(status) => assert_eq!(Refusal::from_status(&status).metadata["stage"], "cgroup"),
        }
        daemon.health().await == ServingStatus::NotServing
    })
    .await;

    fs::remove_file(daemon.file("ran")).unwrap_or_default();
    daemon.try_run(shell("touch ran")).await.unwrap_err();
    assert!(!daemon.file("ran").exists());

    fs::write(&control, "+pids").unwrap();
    eventually("the daemon is ready again", async || {
        daemon.health().await == ServingStatus::Serving
    })
    .await;
    check_process_limit(&daemon).await;
}

#[tokio::test]
async fn linux_6_12_enforces_limits_in_cgroups() {
    if guest(Kernel::Debian13).run_current_test(|| {}).await {
        return;
    }
    let daemon = Setup::new().start().await;
    check_limits(&daemon).await;
    check_cgroups_are_removed(&daemon, "").await;
}

#[tokio::test]
async fn daemon_removes_cgroups_of_its_killed_predecessor() {
    if guest(Kernel::Debian12).run_current_test(|| {}).await {
        return;
    }
    let mut daemon = Setup::new().start().await;
    let first_cgroups = ["daemon", "runs"]
        .map(|kind| PathBuf::from(CGROUP_ROOT).join(format!("jig-{kind}-{}", daemon.pid())));
    daemon.signal(Signal::KILL);
    daemon.wait_for_exit().await;

    eventually("the processes of the first daemon end", async || {
        first_cgroups.iter().all(|cgroup| {
            let events = fs::read_to_string(cgroup.join("cgroup.events")).unwrap();
            events.contains("populated 0")
        })
    })
    .await;

    let daemon = daemon.restart().await;
    assert_eq!(daemon.output(shell("echo fine")).await, "fine\n");

    for cgroup in first_cgroups {
        assert!(!cgroup.exists(), "{cgroup:?}");
    }
}

#[tokio::test]
async fn delegated_subtree_suffices_for_limits() {
    if guest(Kernel::Debian12).run_current_test(|| {}).await {
        return;
    }
    let delegated = DELEGATION_SCRIPT.replace("USER", &DAEMON_UID.to_string());
    let daemon = Setup::new()
        .user(DAEMON_UID)
        .wrapper_sets_user()
        .wrapped_by(["sh", "-c", &delegated])
        .start()
        .await;

    check_limits(&daemon).await;
    check_cgroups_are_removed(&daemon, "delegated").await;
}

#[tokio::test]
async fn cgroup_enforces_cpu_share() {
    if guest(Kernel::Debian12).run_current_test(|| {}).await {
        return;
    }
    let daemon = Setup::new().workspace_table("\n[limits]\ncpus = 0.2\n").start().await;
    assert_eq!(daemon.info().await.run_limits.unwrap().cpus, Some(0.2));

    let weight_of_all_runs = format!("{CGROUP_ROOT}/jig-runs-{}/cpu.weight", daemon.pid());
    assert_eq!(fs::read_to_string(weight_of_all_runs).unwrap(), "10\n");

    let mut request = shell("while :; do :; done & while :; do :; done");
    request.timeout_sec = Some(5);
    let response = daemon.run(request).await;
    assert_eq!(response.outcome(), Outcome::TimedOut);

    let usage = response.usage.unwrap();
    assert!((100..2500).contains(&(usage.user_ms + usage.system_ms)), "{usage:?}");
}

#[tokio::test]
async fn cpu_limit_counts_unreaped_children() {
    if guest(Kernel::Debian12).run_current_test(|| {}).await {
        return;
    }
    let daemon = Setup::new().start().await;
    let program = compile_in_workspace(&daemon, "unwaited_children");
    let mark = Mark::new();
    let request = RunRequest {
        timeout_sec: Some(10),
        limits: command_with_limits("", |limits| limits.cpu_sec = Some(1)).limits,
        ..argv(&[&program])
    };
    let response = daemon.run(mark.on(request)).await;
    assert_eq!(
        (outcome_and_limit(&response), response.signal.as_str()),
        ((Outcome::Signaled, "cpu"), "SIGKILL"),
        "{response:?}"
    );
    mark.assert_gone();
}

#[tokio::test]
async fn operator_can_set_the_largest_limits() {
    if guest(Kernel::Debian12).run_current_test(|| {}).await {
        return;
    }
    let table = format!("{LARGEST_LIMITS_TABLE}processes = 4294967295\n");
    let daemon = Setup::new()
        .workspace_table(&table)
        .wrapped_by(["prlimit", "--nproc=unlimited"])
        .start()
        .await;
    assert_eq!(daemon.output(shell("echo fine")).await, "fine\n");
}

#[tokio::test]
async fn tight_memory_limit_does_not_kill_the_sandbox() {
    if guest(Kernel::Debian12).run_current_test(|| {}).await {
        return;
    }
    let daemon = Setup::new().start().await;

    // During exec, the command is still charged for the memory of the slot's keeper.
    let argument = "x".repeat(100_000);
    let arguments = [vec!["true"], vec![&argument; 20]].concat();
    let limits = command_with_limits("", |limits| limits.memory_bytes = Some(4 << 20)).limits;

    for _ in 0..3 {
        let request = RunRequest { limits, ..argv(&arguments) };
        let response = daemon.run(request).await;
        assert!(
            [(Outcome::Exited, ""), (Outcome::OomKilled, "memory")]
                .contains(&outcome_and_limit(&response)),
            "{response:?}"
        );
    }
}

#[tokio::test]
async fn daemon_returns_the_delegated_cgroup_on_exit() {
    if guest(Kernel::Debian12).run_current_test(|| {}).await {
        return;
    }
    let delegated = DELEGATION_SCRIPT.replace("USER", &DAEMON_UID.to_string());
    let mut daemon = Setup::new()
        .user(DAEMON_UID)
        .wrapper_sets_user()
        .wrapped_by(["sh", "-c", &delegated])
        .start()
        .await;
    assert_eq!(daemon.output(shell("echo fine")).await, "fine\n");

    daemon.signal(Signal::TERM);
    daemon.wait_for_exit().await;

    // The daemon has returned the cgroup: otherwise no other daemon could start in it. `--check`
    // also returns it.
    let check = Command::new("sh")
        .args(["-c", &delegated])
        .arg(daemon.sibling_path("jigd"))
        .args(["--check", "--workspace"])
        .arg(daemon.workspace())
        .output()
        .unwrap();

    assert!(check.status.success(), "{check:?}");

    let report = String::from_utf8_lossy(&check.stdout);
    assert!(report.contains("memory.max"), "{report}");

    let daemon = daemon.restart().await;
    assert_eq!(daemon.output(shell("echo fine")).await, "fine\n");

    let layer = isolation_layer(&daemon, "memory_limit").await;
    assert!(layer.detail.contains("memory.max"), "{layer:?}");
}

#[tokio::test]
async fn daemon_leaves_a_shared_cgroup_unchanged() {
    if guest(Kernel::Debian12).run_current_test(|| {}).await {
        return;
    }
    let shared = r#"
        mkdir -p /sys/fs/cgroup/shared
        echo $$ > /sys/fs/cgroup/shared/cgroup.procs
        sleep 1000 < /dev/null > /dev/null 2>&1 &
        exec "$0" "$@"
    "#;

    fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory +pids +cpu").unwrap();
    let daemon = Setup::new().wrapped_by(["sh", "-c", shared]).start().await;
    let layer = isolation_layer(&daemon, "memory_limit").await;
    assert!(layer.applied && layer.detail.contains("watchdog"), "{layer:?}");
    assert!(layer.detail.contains("other processes may be in it"), "{layer:?}");

    // The daemon has returned to its former cgroup, and the watchdog supervises the runs.
    let own = fs::read_to_string(format!("/proc/{}/cgroup", daemon.pid())).unwrap();
    assert_eq!(own, "0::/shared\n");

    let request = command_with_limits("echo 1; tail /dev/zero", |limits| {
        limits.memory_bytes = Some(48 << 20);
    });
    let response = daemon.run(request).await;
    assert_eq!(outcome_and_limit(&response), (Outcome::OomKilled, "memory"), "{response:?}");
}
