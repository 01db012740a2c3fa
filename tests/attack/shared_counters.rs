//! Resources that the kernel counts per user or per machine, exhausted by one run.

use std::{process::Command, time::Instant};

use jig::api::v1::{LowerLimits, Outcome, RunRequest};
use tempfile::TempDir;
use tonic_health::pb::health_check_response::ServingStatus;

use crate::support::{
    Daemon, EpollShortage, HostProgram, MAX_REACTION_TIME, Mark, Setup, argv, compile_in_workspace,
    daemon_binary, descendants, eventually, promptly, shell, status_field, with_metadata,
};

/// A user other than root that runs the daemon.
const UNPRIVILEGED_UID: u32 = 12347;

/// Runs a program that takes all epoll watches. The daemon answers calls, health checks and new
/// connections until it ends the run.
async fn check_epoll_watch_exhaustion(setup: Setup) {
    let daemon = setup.exclusive().start().await;
    let program = compile_in_workspace(&daemon, "watches");
    let mark = Mark::new();
    let attack = daemon.spawn_run(mark.on(argv(&[&program])));

    while !attack.is_finished() {
        let start = Instant::now();
        assert_eq!(daemon.health().await, ServingStatus::Serving);
        assert_eq!(daemon.output(shell("echo beside")).await, "beside\n");
        let mut tools = daemon.tools_on_new_connection();
        tools.run(shell("true")).await.unwrap();
        let elapsed = start.elapsed();
        assert!(elapsed < MAX_REACTION_TIME, "{elapsed:?}");
    }

    let response = attack.await.unwrap().unwrap();
    let reported = (response.outcome(), response.limit.as_str());
    assert_eq!(reported, (Outcome::Signaled, "epoll"), "{response:?}");
    assert_eq!(response.signal, "SIGKILL");
    mark.assert_gone();
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
}

#[tokio::test]
async fn unprivileged_daemon_ends_a_run_that_exhausts_epoll_watches() {
    check_epoll_watch_exhaustion(Setup::new().user(UNPRIVILEGED_UID)).await;
}

#[tokio::test]
async fn root_daemon_ends_a_run_that_exhausts_epoll_watches() {
    check_epoll_watch_exhaustion(Setup::new()).await;
}

#[tokio::test]
async fn daemon_short_of_watches_ends_a_run_that_hides_epoll_sets() {
    let shortage = EpollShortage::new();
    let daemon = shortage.apply_to(Setup::new()).start().await;

    // Descriptors in a socket's queue are in no table that /proc shows.
    let hide = "import os, select, socket, time\nsender, receiver = socket.socketpair()\nset = select.epoll()\n\
        socket.send_fds(sender, [b'x'], [set.fileno()])\nset.close()\nopen('hidden', 'w').close()\ntime.sleep(1000)";
    let hidden_run = daemon.spawn_run(argv(&["python3", "-c", hide]));
    let other_mark = Mark::new();
    let other_run = daemon.spawn_run(other_mark.on(shell("sleep 1000")));
    eventually("the run hides an epoll set", async || daemon.file("hidden").exists()).await;
    other_mark.wait_for_processes(1).await;

    shortage.begin();
    let mut tools = daemon.tools_on_new_connection();
    tools.run(shell("true")).await.unwrap_err();

    let response = promptly("the daemon ends the run", hidden_run).await.unwrap().unwrap();
    let reported = (response.outcome(), response.limit.as_str());
    assert_eq!(reported, (Outcome::Signaled, "epoll"), "{response:?}");
    assert!(!other_run.is_finished());

    shortage.end();
    other_run.abort();
    other_mark.wait_until_gone().await;
}

#[tokio::test]
async fn daemon_reports_and_enforces_the_epoll_watch_limit() {
    let limits = "[limits]\nepoll_watches = 50\n";
    let daemon = Setup::new().workspace_table(limits).start().await;
    let limits = daemon.info().await.run_limits.unwrap();
    assert_eq!(limits.epoll_watches, 50);

    let watch = |count: u32| {
        // The run uses CPU time until the daemon has counted its watches.
        shell(&format!(
            "python3 -c 'import os, select, time\nset = select.epoll()\nfor _ in range({count}): set.register(os.eventfd(0))\n\
             end = time.process_time() + 3\nwhile time.process_time() < end: pass'"
        ))
    };

    let response = daemon.run(watch(60)).await;
    assert_eq!(response.limit, "epoll", "{response:?}");

    let response = daemon.run(watch(40)).await;
    assert_eq!(response.exit_code, Some(0), "{response:?}");

    drop(daemon);
    let run_limits = Daemon::start().await.info().await.run_limits.unwrap();
    let max_user_watches = std::fs::read_to_string("/proc/sys/fs/epoll/max_user_watches").unwrap();
    assert_eq!(run_limits.epoll_watches, max_user_watches.trim().parse::<u64>().unwrap() / 16);
}

#[tokio::test]
async fn open_files_limit_ends_a_run() {
    let daemon = Setup::new().exclusive().start().await;
    let program = compile_in_workspace(&daemon, "open_files");
    assert_eq!(daemon.info().await.run_limits.unwrap().open_files_total, 65_536);

    let mark = Mark::new();
    let response = daemon.run(mark.on(argv(&[&program, "100"]))).await;
    let reported = (response.outcome(), response.limit.as_str());
    assert_eq!(reported, (Outcome::Signaled, "open_files"), "{response:?}");
    mark.assert_gone();

    // A request can lower the limit. One process with the most files per process is below it.
    let request = |max_files: u32| RunRequest {
        limits: Some(LowerLimits { open_files_total: Some(max_files), ..LowerLimits::default() }),
        timeout_sec: Some(10),
        ..argv(&[&program, "2"])
    };

    let response = daemon.run(request(8000)).await;
    assert_eq!(response.limit, "open_files", "{response:?}");

    let response = daemon.run(request(10_000)).await;
    assert_eq!(response.outcome(), Outcome::TimedOut, "{response:?}");
    assert_eq!(response.stdout, "full\nfull\n");
}

#[tokio::test]
async fn mappings_count_as_memory() {
    let daemon = Setup::new().exclusive().start().await;
    let program = compile_in_workspace(&daemon, "mappings");
    let limited = |request: RunRequest| RunRequest {
        limits: Some(LowerLimits { memory_bytes: Some(64 << 20), ..LowerLimits::default() }),
        ..request
    };

    let mark = Mark::new();
    let response = daemon.run(mark.on(limited(argv(&[&program, "12"])))).await;
    let reported = (response.outcome(), response.limit.as_str());
    assert_eq!(reported, (Outcome::OomKilled, "memory"), "{response:?}");
    mark.assert_gone();

    // Reserved address space does not count as memory.
    let reserve = "python3 -c 'import mmap, os, time\nm = mmap.mmap(-1, 1 << 36, flags=mmap.MAP_PRIVATE | 0x4000, prot=mmap.PROT_READ)\n\
        for _ in range(9):\n  if os.fork() == 0: break\nelse: [os.wait() for _ in range(9)]\n\
        end = time.process_time() + 0.2\nwhile time.process_time() < end: pass'";

    let response = daemon.run(limited(shell(reserve))).await;
    assert_eq!(response.exit_code, Some(0), "{response:?}");
}

/// Runs a command in the workspace `other`.
fn in_other_workspace(request: RunRequest) -> tonic::Request<RunRequest> {
    with_metadata("jig-workspace", "other", request)
}

#[tokio::test]
async fn workspaces_have_separate_pipe_page_quotas() {
    let directory = TempDir::with_prefix("jig-test-other-").unwrap();
    let other_workspace = format!("other={}", directory.path().display());
    let setup = Setup::new().arguments(&["--workspace", &other_workspace]);
    let daemon = setup.exclusive().start().await;

    // Takes pipes until the kernel gives this user none of full size (fs.pipe-user-pages-soft).
    let take = "import fcntl, os, resource, time\nresource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))\nkeep = []\n\
        while True:\n  keep.append(os.pipe())\n  if fcntl.fcntl(keep[-1][0], 1032) < 65536: break\n\
        open('taken', 'w').close()\ntime.sleep(1000)";
    let size = "python3 -c 'import fcntl, os; print(fcntl.fcntl(os.pipe()[0], 1032))'";

    let mark = Mark::new();
    let attack = daemon.spawn_run(mark.on(argv(&["python3", "-c", take])));
    eventually("the run takes all pipe pages", async || daemon.file("taken").exists()).await;
    assert_ne!(
        daemon.output(shell(size)).await,
        "65536\n",
        "runs of the same workspace share the quota"
    );
    assert_eq!(daemon.output(in_other_workspace(shell(size))).await, "65536\n");

    attack.abort();
    mark.wait_until_gone().await;
}

#[tokio::test]
async fn runs_share_at_most_half_of_the_process_ids() {
    let daemon = Daemon::start().await;
    let ids = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap();
    let ids: u64 = ids.trim().parse().unwrap();
    let processes = descendants(daemon.pid());
    let template = processes
        .iter()
        // A failed attempt at L3 may have left an earlier template.
        .rfind(|process| status_field(process.pid, "Name").as_deref() == Some("jig-template"));
    let limits = format!("/proc/{}/limits", template.unwrap().pid);
    let limits = std::fs::read_to_string(limits).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max processes"));
    let soft: u64 = line.unwrap().split_whitespace().nth(2).unwrap().parse().unwrap();

    assert!(soft <= ids / 2, "{limits}");
}

#[tokio::test]
async fn daemon_warns_about_a_low_process_limit() {
    let with_process_limit = |limit: u32| {
        let option = format!("--nproc={limit}");
        Setup::new().user(UNPRIVILEGED_UID).wrapped_by(["prlimit".to_owned(), option])
    };
    let daemon = with_process_limit(600).start().await;
    assert!(daemon.log().contains("ulimit -u"), "{}", daemon.log());

    let report = daemon.run_check();
    let text = String::from_utf8_lossy(&report.stdout);
    assert!(text.contains("warning") && text.contains("600"), "{report:?}");

    drop(daemon);
    let daemon = with_process_limit(4096).start().await;
    assert!(!daemon.log().contains("ulimit -u"), "{}", daemon.log());
}

#[tokio::test]
async fn daemon_without_epoll_watches_reports_the_remedy() {
    let injector = HostProgram::compile("inject");

    // Adding to an epoll set fails with ENOSPC.
    let output = Command::new(&injector.path)
        .args(["epoll_ctl:1:1=28", "--"])
        .arg(daemon_binary())
        .arg("--check")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);

    assert!(!output.status.success(), "{output:?}");

    for part in ["starting the runtime", "epoll watches", "fs.epoll.max_user_watches"] {
        assert!(text.contains(part), "{part}: {output:?}");
    }
}
