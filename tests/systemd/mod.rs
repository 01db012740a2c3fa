//! The units of `deploy/systemd` under a real systemd, in a virtual machine with cgroups of
//! version 2.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use jig::api::v1::{
    GetInfoRequest, LowerLimits, Outcome, RunRequest, RunResponse,
    daemon_service_client::DaemonServiceClient,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::JoinHandle;
use tonic::Request;

use crate::support::{
    Kernel, eventually, guest, lazy_channel, promptly, shell, tool_client, with_metadata,
};

const ADDRESS: &str = "unix:/run/jigd/jig.sock";
const CONFIG: &str = "/etc/jigd/jigd.toml";
const WORKSPACE: &str = "/var/lib/jig/workspace";
const SERVICE_CGROUP: &str = "/sys/fs/cgroup/system.slice/jigd.service";
/// Shorter times than those of the unit, so that the test ends sooner.
const DROP_IN: &str = "[Service]\nWatchdogSec=12s\nTimeoutStopSec=5s\n";
/// A unit that needs the daemon, and starts after it.
const DEPENDENT_UNIT: &str = "\
[Unit]
Requires=jigd.service
After=jigd.service
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'systemctl show -P StatusText jigd.service >/run/status'
";

#[tokio::test]
async fn shipped_units_work_under_systemd() {
    if guest(Kernel::Debian13).with_systemd().run_current_test(|| {}).await {
        return;
    }
    install();

    first_call_activates_the_service().await;
    hardening_keeps_l3_and_a_low_exposure().await;
    reload_reports_its_outcome().await;
    memory_and_process_limits_hold().await;
    missed_watchdog_restarts_the_daemon().await;
    killed_daemon_restarts_with_its_state().await;
    cpu_limit_holds().await;
    stop_drains_and_leaves_nothing().await;
    units_after_the_daemon_start_when_it_is_ready().await;
}

fn install() {
    for (file, text) in [
        ("/run/systemd/system/jigd.service.d/test.conf", DROP_IN),
        ("/run/systemd/system/dependent.service", DEPENDENT_UNIT),
    ] {
        fs::create_dir_all(Path::new(file).parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    execute("systemd-sysusers", &[]);
    systemctl(&["daemon-reload"]);
}

async fn first_call_activates_the_service() {
    systemctl(&["start", "jigd.socket"]);
    assert_eq!(property("ActiveState"), "inactive");

    let response = run(shell("id -un; env")).await;
    assert_eq!((response.isolation.as_str(), response.exit_code), ("L3", Some(0)));
    for variable in ["NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_", "INVOCATION_ID", "JOURNAL_STREAM"] {
        assert!(!response.stdout.contains(variable), "{response:?}");
    }

    assert_eq!(property("ActiveState"), "active");
    assert_eq!(property("StatusText"), "serving workspace: isolation L3, limits by cgroups");
    let status = execute("systemctl", &["status", "--no-pager", "jigd.service"]);
    assert!(status.contains("Status: \"serving workspace"), "{status}");

    let pid = main_pid();
    let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert_eq!(cgroup, format!("0::/system.slice/jigd.service/jig-daemon-{pid}\n"));
}

async fn hardening_keeps_l3_and_a_low_exposure() {
    let mut daemon = DaemonServiceClient::new(lazy_channel(ADDRESS));
    let info = daemon.get_info(GetInfoRequest::default()).await.unwrap().into_inner();
    let isolation = info.isolation.unwrap();
    assert_eq!((isolation.level.as_str(), isolation.ready), ("L3", true));
    for (name, mechanism) in
        [("memory_limit", "memory.max"), ("process_limit", "pids.max"), ("cpu_share", "cpu.weight")]
    {
        let layer = isolation.layers.iter().find(|layer| layer.name == name).unwrap();
        assert!(layer.applied && layer.detail.contains(mechanism), "{layer:?}");
    }
    // The filter of the unit allows what the daemon confines itself with.
    let journal = journal();
    assert!(!journal.contains("not confined"), "{journal}");

    let report = execute("systemd-analyze", &["security", "--no-pager", "jigd.service"]);
    let summary = report.lines().find(|line| line.contains("exposure level")).unwrap();
    let exposure = summary.split(": ").nth(1).unwrap().split(' ').next().unwrap();
    assert!(exposure.parse::<f32>().unwrap() <= 3.1, "{report}");
}

async fn reload_reports_its_outcome() {
    let valid = fs::read_to_string(CONFIG).unwrap();
    systemctl(&["reload", "jigd.service"]);
    wait_for_status(", reloaded").await;

    fs::write(CONFIG, format!("{valid}\nx = [")).unwrap();
    systemctl(&["reload", "jigd.service"]);
    wait_for_status("reload rejected, old configuration in effect").await;
    assert_eq!(property("ActiveState"), "active");
    assert_eq!(run(shell("echo served")).await.stdout, "served\n");

    // The limit of the CPU takes effect with the next start.
    fs::write(CONFIG, format!("{valid}\n[limits]\ncpus = 0.2\n")).unwrap();
    systemctl(&["reload", "jigd.service"]);
    wait_for_status(", reloaded").await;
}

async fn memory_and_process_limits_hold() {
    let daemon = main_pid();
    let neighbour = spawn_run_until("neighbour");

    let limits = LowerLimits { memory_bytes: Some(48 << 20), ..LowerLimits::default() };
    let bomb = RunRequest { limits: Some(limits), ..shell("tail /dev/zero; echo survived") };
    let response = run(bomb).await;
    assert_eq!(
        (response.outcome(), response.limit.as_str(), response.stdout.as_str()),
        (Outcome::OomKilled, "memory", ""),
        "{response:?}"
    );

    let limits = LowerLimits { processes: Some(5), ..LowerLimits::default() };
    let script = "for i in 1 2 3 4 5 6 7 8 9; do sleep 1 & done; wait; exit 3";
    let response = run(RunRequest { limits: Some(limits), ..shell(script) }).await;
    assert_eq!(response.limit, "pids", "{response:?}");

    end_run("neighbour");
    assert_eq!(neighbour.await.unwrap().stdout, "ended\n");
    assert_eq!((main_pid(), property("NRestarts").as_str()), (daemon, "0"));
}

async fn missed_watchdog_restarts_the_daemon() {
    let stopped = main_pid();
    signal_daemon(Signal::STOP);
    wait_for_restart(1).await;
    assert_ne!(main_pid(), stopped);
    let journal = journal();
    assert!(journal.contains("Watchdog timeout"), "{journal}");
}

async fn killed_daemon_restarts_with_its_state() {
    let request = || {
        let command = shell("cat /proc/sys/kernel/random/uuid");
        with_metadata("jig-request-id", "the-only-run", command)
    };
    let response = run(request()).await;
    assert_eq!(response.exit_code, Some(0), "{response:?}");

    let killed = main_pid();
    signal_daemon(Signal::KILL);
    wait_for_restart(2).await;
    // However often it fails.
    assert_eq!(property("StartLimitIntervalUSec"), "0");
    assert_eq!(run(request()).await.stdout, response.stdout);

    let pid = main_pid();
    assert_ne!(pid, killed);
    let mut cgroups: Vec<_> = fs::read_dir(SERVICE_CGROUP)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    cgroups.sort();
    assert_eq!(cgroups, [format!("jig-daemon-{pid}"), format!("jig-runs-{pid}")]);
}

/// With 0.2 CPUs, two loops use about one second in five.
async fn cpu_limit_holds() {
    let loops = shell("while :; do :; done & while :; do :; done");
    let response = run(RunRequest { timeout_sec: Some(5), ..loops }).await;
    assert_eq!(response.outcome(), Outcome::TimedOut);
    let usage = response.usage.unwrap();
    assert!((100..2500).contains(&(usage.user_ms + usage.system_ms)), "{usage:?}");
}

async fn stop_drains_and_leaves_nothing() {
    let running = spawn_run_until("drained");
    let started = Path::new(WORKSPACE).join("drained.started");
    eventually("the command runs", async || started.exists()).await;

    systemctl(&["stop", "--no-block", "jigd.service", "jigd.socket"]);
    wait_for_status("draining").await;
    // Longer than TimeoutStopSec=, which the daemon extends.
    tokio::time::sleep(std::time::Duration::from_secs(8)).await;
    assert_eq!(property("ActiveState"), "deactivating");

    end_run("drained");
    assert_eq!(running.await.unwrap().stdout, "ended\n");
    eventually("the service stops", async || property("ActiveState") == "inactive").await;
    assert_eq!(property("Result"), "success");
    eventually("the cgroup is removed", async || !Path::new(SERVICE_CGROUP).exists()).await;
    let processes = Command::new("pgrep").args(["-u", "jig"]).output().unwrap();
    assert_eq!(text(processes.stdout), "");
}

async fn units_after_the_daemon_start_when_it_is_ready() {
    systemctl(&["start", "dependent.service"]);
    let status = fs::read_to_string("/run/status").unwrap();
    assert_eq!(status, "serving workspace: isolation L3, limits by cgroups\n");
    assert_eq!(run(shell("echo again")).await.stdout, "again\n");
    systemctl(&["stop", "jigd.service", "jigd.socket"]);
}

async fn run(request: impl tonic::IntoRequest<RunRequest>) -> RunResponse {
    let request: Request<RunRequest> = request.into_request();
    let mut tools = tool_client(lazy_channel(ADDRESS));
    promptly("a run", tools.run(request)).await.unwrap().into_inner()
}

/// Starts a run that reports its start, and ends after [`end_run`].
fn spawn_run_until(name: &str) -> JoinHandle<RunResponse> {
    let script =
        format!("touch {name}.started; until [ -e {name} ]; do sleep 0.2; done; echo ended");
    tokio::spawn(run(shell(&script)))
}

fn end_run(name: &str) {
    fs::write(Path::new(WORKSPACE).join(name), "").unwrap();
}

async fn wait_for_status(part: &str) {
    eventually(part, async || property("StatusText").contains(part)).await;
}

async fn wait_for_restart(count: u32) {
    let expected = (count.to_string(), "active".to_owned());
    eventually("the daemon is restarted", async || {
        (property("NRestarts"), property("ActiveState")) == expected
    })
    .await;
}

fn main_pid() -> i32 {
    property("MainPID").parse().unwrap()
}

fn signal_daemon(signal: Signal) {
    kill_process(Pid::from_raw(main_pid()).unwrap(), signal).unwrap();
}

fn property(name: &str) -> String {
    execute("systemctl", &["show", "-P", name, "jigd.service"]).trim_end().to_owned()
}

fn systemctl(arguments: &[&str]) {
    execute("systemctl", arguments);
}

fn journal() -> String {
    execute("journalctl", &["--no-pager", "-u", "jigd.service"])
}

/// Runs a program, which must succeed, and returns its output.
fn execute(program: &str, arguments: &[&str]) -> String {
    let output: Output = Command::new(program).args(arguments).output().unwrap();
    let stderr = text(output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
    text(output.stdout)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}
