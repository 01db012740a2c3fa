//! L1: commands share the daemon's namespaces. The operator must permit it.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path, time::Instant};

use jig::api::v1::{Outcome, RunRequest};
use rustix::process::{Pid, Signal, kill_process};
use tonic_health::pb::health_check_response::ServingStatus;

use crate::support::{
    DAEMON_UID, Daemon, HostProgram, MAX_REACTION_TIME, Mark, Setup, argv, compile_in_workspace,
    descendants, eventually, is_alive, promptly, shell, status_field,
};

async fn start_at_l1() -> Daemon {
    Setup::new().at_l1().start().await
}

#[tokio::test]
async fn info_reports_applied_and_missing_layers() {
    let daemon = start_at_l1().await;
    assert_eq!(daemon.health().await, ServingStatus::Serving);
    assert_eq!(daemon.run(shell("true")).await.isolation, "L1");

    let info = daemon.info().await;
    let isolation = info.isolation.unwrap();
    assert_eq!(isolation.level, "L1");
    assert_eq!(isolation.minimum_level, "L1");
    assert!(isolation.ready);
    assert_eq!(isolation.failure, None);

    let failures: Vec<_> = isolation
        .failed_levels
        .iter()
        .map(|failure| (failure.level.as_str(), failure.errno.as_str()))
        .collect();
    assert_eq!(failures, [("L3", "ENOSPC"), ("L2", "ENOSPC")]);

    for failure in &isolation.failed_levels {
        assert_eq!(failure.stage, "user_namespace");
        assert!(failure.remedy.contains("max_user_namespaces"));
    }

    for layer in &isolation.layers {
        assert_eq!(
            layer.applied,
            layer.remedy.is_empty(),
            "a missing layer has no remedy: {layer:?}"
        );
        assert!(!layer.detail.is_empty());
    }

    let applied = isolation.layers.iter().filter(|layer| layer.applied);
    let applied: Vec<_> = applied.map(|layer| layer.name.as_str()).collect();
    assert_eq!(
        applied,
        [
            "process_limit",
            "capabilities",
            "no_new_privs",
            "seccomp",
            "memory_limit",
            "cpu_share",
            "landlock"
        ]
    );

    let limits = info.run_limits.unwrap();
    assert_eq!((limits.tmp_bytes, limits.tmp_inodes), (0, 0));

    let log = daemon.log();
    assert!(log.contains("does not support a higher isolation level"), "{log}");
}

#[tokio::test]
async fn unprotected_repository_is_reported() {
    let git_config = "[core]\n";
    let setup = Setup::new().workspace_file(".git/config", git_config);
    let daemon = setup.at_l1().start().await;
    let log = daemon.log();
    assert!(log.contains("these paths are NOT protected at L1"), "{log}");

    let check = daemon.run_check();
    let report = String::from_utf8_lossy(&check.stdout);
    assert!(report.contains("NOT protected at L1"), "{report}");

    daemon.output(shell("echo changed > .git/config")).await;
    let plain = start_at_l1().await;
    assert!(!plain.log().contains("are protected"), "{}", plain.log());
}

#[tokio::test]
async fn workspace_keeps_its_host_path() {
    let daemon = start_at_l1().await;
    let path = daemon.workspace();
    let path = path.to_str().unwrap();
    let info = daemon.info().await;
    assert_eq!(info.workspaces.first().unwrap().mount_path, path);
    assert_eq!(daemon.output(shell("pwd")).await, format!("{path}\n"));

    let script = "mkdir -p a/b && echo text > a/b/file && mv a/b/file a/file && cat a/file";
    assert_eq!(daemon.output(shell(script)).await, "text\n");

    let in_subdirectory = RunRequest { cwd: Some(format!("{path}/a")), ..shell("pwd") };
    assert_eq!(daemon.output(in_subdirectory).await, format!("{path}/a\n"));

    let file = format!("{path}/a/file");
    assert_eq!(daemon.read_file(&file).await.unwrap(), "text\n");
    assert_eq!(daemon.file("a/file").metadata().unwrap().uid(), DAEMON_UID);

    let outside = RunRequest { cwd: Some("/workspace".to_owned()), ..shell("pwd") };
    daemon.run_failing(outside, "PATH_ESCAPE").await;
}

#[tokio::test]
async fn command_has_no_privileges() {
    let daemon = start_at_l1().await;
    let status = daemon.output(argv(&["cat", "/proc/self/status"])).await;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().to_owned()
    };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }

    assert_eq!(field("NoNewPrivs:"), "1");
    assert_eq!(field("SigIgn:"), "0000000000000000");

    let descriptors = daemon.output(shell("ls /proc/self/fd")).await;
    assert_eq!(descriptors, "0\n1\n2\n3\n", "3 is the directory that ls reads");

    let mark = Mark::new();
    let call = daemon.spawn_run(mark.on(argv(&["sleep", "1000"])));

    let pid = *mark.wait_for_processes(1).await.first().unwrap();
    for namespace in ["user", "mnt", "pid", "net", "ipc", "uts"] {
        let namespace_of = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).unwrap();
        assert_eq!(namespace_of(pid), namespace_of(daemon.pid()), "{namespace}");
    }
    assert_eq!(status_field(pid, "Seccomp").unwrap(), "2");

    let session = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let session = session.rsplit_once(')').unwrap().1.split(' ').nth(4);
    assert_eq!(
        session,
        Some(pid.to_string().as_str()),
        "the command does not lead its own session"
    );

    call.abort();
    mark.wait_until_gone().await;
}

#[tokio::test]
async fn each_run_has_private_directories_that_are_removed() {
    let daemon = Setup::new().environment("TMPDIR", "/tmp").at_l1().start().await;
    let script = "echo $HOME $TMPDIR; ls -A $HOME $TMPDIR | grep -c file; echo x > $HOME/file && echo x > $TMPDIR/file; \
                mkdir -p $TMPDIR/a/b/c && chmod 0 $TMPDIR/a";

    let mut used_paths = Vec::new();
    for _ in 0..3 {
        let output = daemon.output(shell(script)).await;
        let (paths, files) = output.trim().split_once('\n').unwrap();
        assert_eq!(files, "0", "files of an earlier run remain: {output}");
        for path in paths.split(' ') {
            assert!(path.starts_with("/tmp/jig-run-"), "{path}");
            assert!(!used_paths.contains(&path.to_owned()), "{path} was used before");
            used_paths.push(path.to_owned());
        }
    }

    for path in used_paths {
        let directory = Path::new(&path).parent().unwrap().to_owned();
        eventually("the directory is removed", async || !directory.exists()).await;
    }

    let request = RunRequest {
        env: [("HOME".to_owned(), "/nowhere".to_owned())].into(),
        ..shell("echo $HOME")
    };
    assert_eq!(daemon.output(request).await, "/nowhere\n");
}

#[tokio::test]
async fn commands_move_and_link_files_between_directories() {
    let daemon = start_at_l1().await;
    let lines = [
        "mkdir a b; echo text > a/file; python3 -c 'import os; os.rename(\"a/file\", \"b/file\")'; cat b/file",
        "ln b/file a/link; cat a/link",
        "mv b \"$TMPDIR/\"; mv \"$TMPDIR/b\" c; cat c/file",
        "printenv GIT_CONFIG_NOSYSTEM; git config safe.directory",
        "git init -q r; cd r; mkdir d; echo text > d/f; git add .; git -c user.name=a -c user.email=a@b commit -qm one; \
            mkdir e; git mv d/f e/f; git status --porcelain",
    ];

    for (line, expected) in
        lines.iter().zip(["text\n", "text\n", "text\n", "1\n*\n", "R  d/f -> e/f\n"])
    {
        assert_eq!(daemon.output(shell(line)).await, expected, "{line}");
    }
}

#[tokio::test]
async fn processes_left_behind_are_killed() {
    let daemon = start_at_l1().await;
    for (name, expected) in [("daemonize", "started\n"), ("dodge", "running\n")] {
        let program = compile_in_workspace(&daemon, name);
        for _ in 0..5 {
            let mark = Mark::new();
            let output = daemon.output(mark.on(argv(&[&program]))).await;
            mark.assert_gone();
            assert_eq!(output, expected);
        }
    }

    let mark = Mark::new();
    let start = Instant::now();
    let response = daemon.run(mark.on(argv(&["sh", "-c", "sleep 100 & exit 5"]))).await;
    mark.assert_gone();
    assert!(start.elapsed() < MAX_REACTION_TIME, "{:?}", start.elapsed());
    assert_eq!(response.exit_code, Some(5));
}

/// A command that ignores signals and starts processes in their own sessions.
fn stubborn_request() -> RunRequest {
    shell(
        "trap '' TERM INT HUP; for n in 1 2 3 4 5 6 7 8; do setsid sleep 1000 & done; \
         setsid sleep 1000 & kill -STOP $!; wait; sleep 1000",
    )
}

#[tokio::test]
async fn timeout_kills_a_command_and_its_descendants() {
    let daemon = start_at_l1().await;
    let mark = Mark::new();
    let response =
        daemon.run(mark.on(RunRequest { timeout_sec: Some(1), ..stubborn_request() })).await;
    mark.assert_gone();
    assert_eq!(response.outcome(), Outcome::TimedOut);

    let response = daemon
        .run(RunRequest {
            timeout_sec: Some(1),
            ..shell("trap 'echo cleaned up; exit 3' TERM; sleep 1000 & wait")
        })
        .await;
    assert_eq!(response.stdout, "cleaned up\n");
}

#[tokio::test]
async fn cancelled_call_leaves_no_processes() {
    let daemon = start_at_l1().await;
    for _ in 0..3 {
        let mark = Mark::new();
        let call = daemon.spawn_run(mark.on(stubborn_request()));
        mark.wait_for_processes(10).await;
        call.abort();
        mark.wait_until_gone().await;
    }

    // Cancels at once, whatever state the command's process is in.
    for _ in 0..20 {
        let mark = Mark::new();
        let call = daemon.spawn_run(mark.on(stubborn_request()));
        tokio::task::yield_now().await;
        call.abort();
        mark.wait_until_gone().await;
    }

    eventually("all slots are free", async || {
        let counts = daemon.info().await.counts.unwrap();
        counts.runs_active == 0 && counts.sandboxes_quarantined == 0
    })
    .await;
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
}

#[tokio::test]
async fn killed_daemon_leaves_no_processes() {
    let mut daemon = start_at_l1().await;
    let mark = Mark::new();
    let call = daemon.spawn_run(mark.on(stubborn_request()));
    mark.wait_for_processes(10).await;
    let processes = descendants(daemon.pid());
    daemon.signal(Signal::KILL);
    daemon.wait_for_exit().await;
    mark.wait_until_gone().await;
    eventually("the daemon's processes have ended", async || !processes.iter().any(is_alive)).await;
    promptly("the call fails", call).await.unwrap().unwrap_err();
}

#[tokio::test]
async fn killed_init_ends_its_run() {
    let daemon = start_at_l1().await;
    let mark = Mark::new();
    let call = daemon.spawn_run(mark.on(stubborn_request()));
    let pids = mark.wait_for_processes(10).await;
    let parent = |pid: i32| status_field(pid, "PPid").unwrap().parse::<i32>().unwrap();
    let init = pids
        .iter()
        .map(|pid| parent(*pid))
        .find(|pid| status_field(*pid, "Name").unwrap() == "jig-l1-init")
        .unwrap();
    kill_process(Pid::from_raw(init).unwrap(), Signal::KILL).unwrap();

    let status = promptly("the call fails", call).await.unwrap().unwrap_err();
    assert!(status.message().contains("lost"), "{status:?}");

    mark.wait_until_gone().await;
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
}

#[tokio::test]
async fn daemon_survives_a_fork_bomb() {
    let daemon = Setup::new().at_l1().exclusive().start().await;
    let program = compile_in_workspace(&daemon, "fork_bomb");
    let mark = Mark::new();
    let response =
        daemon.run(mark.on(RunRequest { timeout_sec: Some(3), ..argv(&[&program]) })).await;
    mark.assert_gone();
    assert_eq!(response.outcome(), Outcome::TimedOut, "{response:?}");
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
}

/// Checks that L1, although permitted, is unavailable, and that the daemon reports the reason.
async fn assert_l1_unavailable(setup: Setup, stage: &str, reason: &str) {
    let daemon = setup.arguments(&["--minimum-level", "L1"]).without_namespaces().start().await;
    assert_l1_failure(&daemon, stage, reason).await;
}

async fn assert_l1_failure(daemon: &Daemon, stage: &str, reason: &str) {
    let failures = daemon.assert_runs_nothing().await;
    let last = failures.last().unwrap();
    assert_eq!((last.level.as_str(), last.stage.as_str()), ("L1", stage));
    assert!(last.message.contains(reason), "{last:?}");
    assert!(!last.remedy.is_empty(), "{last:?}");
}

#[tokio::test]
async fn settings_that_need_mounts_make_l1_unavailable() {
    assert_l1_unavailable(
        Setup::new().workspace_file("kept/file", "").workspace_table("protected = [\"kept\"]"),
        "protected_paths",
        "protected",
    )
    .await;
    assert_l1_unavailable(
        Setup::new().workspace_table("mount_path = \"/elsewhere\""),
        "no_namespaces",
        "mount_path",
    )
    .await;
    assert_l1_unavailable(
        Setup::new().arguments(&["--bind-ro", "/etc/hosts:/hosts"]),
        "no_namespaces",
        "bound at /hosts",
    )
    .await;
}

#[tokio::test]
async fn unusable_tmpdir_makes_l1_unavailable() {
    assert_l1_unavailable(Setup::new().environment("TMPDIR", "/usr"), "no_namespaces", "/usr")
        .await;
    assert_l1_unavailable(
        Setup::new().environment("TMPDIR", "/nowhere"),
        "no_namespaces",
        "/nowhere",
    )
    .await;
}

#[tokio::test]
async fn tmpdir_in_another_workspace_makes_l1_unavailable() {
    // Tools and commands of that workspace would see every file in TMPDIR.
    let other = tempfile::tempdir().unwrap();
    let writable_by_all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(other.path(), writable_by_all).unwrap();
    let other = other.path().to_str().unwrap();
    let table = format!("[[workspaces]]\nname = \"other\"\npath = \"{other}\"");
    let setup = Setup::new().environment("TMPDIR", other);
    assert_l1_unavailable(setup.workspace_table(&table), "no_namespaces", other).await;
}

#[tokio::test]
async fn kernel_without_landlock_makes_l1_unavailable() {
    let (without_landlock, without_namespaces) =
        (HostProgram::compile("without_landlock"), HostProgram::compile("without_namespaces"));
    let daemon = Setup::new()
        .workspace_owner(DAEMON_UID)
        .wrapped_by([&without_landlock.path, &without_namespaces.path])
        .arguments(&["--minimum-level", "L1"])
        .start()
        .await;

    assert_l1_failure(&daemon, "no_namespaces", "version 0 of Landlock").await;
}

#[tokio::test]
async fn root_owned_workspace_makes_l1_unavailable() {
    let wrapper = HostProgram::compile("no_namespaces");
    let daemon = Setup::new()
        .wrapped_by([&wrapper.path])
        .arguments(&["--minimum-level", "L1"])
        .start()
        .await;
    assert_l1_failure(&daemon, "workspace_owner", "belongs to root").await;
    let refusal = daemon.run_failing(shell("true"), "SANDBOX_UNAVAILABLE").await;
    let remedy = &refusal.metadata["remedy"];

    assert!(remedy.contains("--chown-workspace"), "{refusal:?}");
}

#[tokio::test]
async fn daemon_does_not_fall_back_to_l1_by_default() {
    for level in ["L2", "L3"] {
        let daemon =
            Setup::new().arguments(&["--minimum-level", level]).without_namespaces().start().await;
        assert_eq!(daemon.health().await, ServingStatus::NotServing);

        daemon.run_failing(shell("touch ran"), "SANDBOX_UNAVAILABLE").await;
        assert!(!daemon.file("ran").exists());

        let isolation = daemon.info().await.isolation.unwrap();
        let levels = isolation.failed_levels.iter().map(|failure| failure.level.as_str());
        let expected: &[&str] = match level {
            "L2" => &["L3", "L2"],
            _ => &["L3"],
        };
        assert_eq!(levels.collect::<Vec<_>>(), expected, "{level}");
    }
}
