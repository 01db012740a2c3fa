//! L1: commands in the daemon's own namespaces, where the operator allows it.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path, time::Instant};

use jig::api::v1::{Outcome, RunRequest};
use rustix::process::{Pid, Signal, kill_process};
use tonic_health::pb::health_check_response::ServingStatus;

use crate::support::{
    Daemon, HostProgram, Mark, PROMPT, Setup, USER, argv, compile, descendants, eventually,
    host_status, is_alive, promptly, shell,
};

async fn start() -> Daemon {
    Setup::new().at_l1().start().await
}

#[tokio::test]
async fn it_is_told_what_is_given_and_what_is_not_and_why() {
    let daemon = start().await;
    assert_eq!(daemon.health().await, ServingStatus::Serving);
    assert_eq!(daemon.run(shell("true")).await.isolation, "L1");
    let info = daemon.info().await;
    let isolation = info.isolation.unwrap();
    assert_eq!(isolation.level, "L1");
    assert_eq!(isolation.minimum_level, "L1");
    assert!(isolation.ready);
    assert_eq!(isolation.failure, None);
    let refused: Vec<_> = isolation
        .refused
        .iter()
        .map(|failure| (failure.level.as_str(), failure.errno.as_str()))
        .collect();
    assert_eq!(refused, [("L3", "ENOSPC"), ("L2", "ENOSPC")]);
    for failure in &isolation.refused {
        assert_eq!(failure.stage, "user_namespace");
        assert!(failure.remedy.contains("max_user_namespaces"));
    }
    for layer in &isolation.layers {
        assert_eq!(
            layer.applied,
            layer.remedy.is_empty(),
            "what is missing has a remedy: {layer:?}"
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
async fn a_repository_that_is_protected_by_default_is_not_from_commands_and_that_is_logged() {
    let of_git = "[core]\n";
    let setup = Setup::new().workspace_file(".git/config", of_git);
    let daemon = setup.at_l1().start().await;
    let log = daemon.log();
    assert!(log.contains("these paths are NOT protected at L1"), "{log}");
    let checked = daemon.check();
    let report = String::from_utf8_lossy(&checked.stdout);
    assert!(report.contains("NOT protected at L1"), "{report}");
    daemon.output(shell("echo changed > .git/config")).await;
    let start = start().await;
    assert!(!start.log().contains("are protected"), "{}", start.log());
}

#[tokio::test]
async fn the_workspace_is_where_it_is() {
    let daemon = start().await;
    let path = daemon.workspace();
    let path = path.to_str().unwrap();
    let info = daemon.info().await;
    assert_eq!(info.workspaces.first().unwrap().mount_path, path);
    assert_eq!(daemon.output(shell("pwd")).await, format!("{path}\n"));
    let line = "mkdir -p a/b && echo text > a/b/file && mv a/b/file a/file && cat a/file";
    assert_eq!(daemon.output(shell(line)).await, "text\n");
    let within = RunRequest { cwd: Some(format!("{path}/a")), ..shell("pwd") };
    assert_eq!(daemon.output(within).await, format!("{path}/a\n"));
    let file = format!("{path}/a/file");
    assert_eq!(daemon.read_file(&file).await.unwrap(), "text\n");
    assert_eq!(daemon.file("a/file").metadata().unwrap().uid(), USER);
    let elsewhere = RunRequest { cwd: Some("/workspace".to_owned()), ..shell("pwd") };
    daemon.refuses(elsewhere, "PATH_ESCAPE").await;
}

#[tokio::test]
async fn a_command_has_no_privilege_left() {
    let daemon = start().await;
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
    assert_eq!(descriptors, "0\n1\n2\n3\n", "3 is the listing itself");
    let mark = Mark::new();
    let running = daemon.begin(mark.on(argv(&["sleep", "1000"])));
    let pid = *mark.appears(1).await.first().unwrap();
    for namespace in ["user", "mnt", "pid", "net", "ipc", "uts"] {
        let of = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).unwrap();
        assert_eq!(of(pid), of(daemon.pid()), "{namespace}");
    }
    assert_eq!(host_status(pid, "Seccomp").unwrap(), "2");
    let session = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let session = session.rsplit_once(')').unwrap().1.split(' ').nth(4);
    assert_eq!(session, Some(pid.to_string().as_str()), "it leads its own");
    running.abort();
    mark.vanishes().await;
}

#[tokio::test]
async fn each_run_has_directories_of_its_own_and_none_stays() {
    let daemon = Setup::new().environment("TMPDIR", "/tmp").at_l1().start().await;
    let line = "echo $HOME $TMPDIR; ls -A $HOME $TMPDIR | grep -c file; echo x > $HOME/file && echo x > $TMPDIR/file; \
                mkdir -p $TMPDIR/a/b/c && chmod 0 $TMPDIR/a";
    let mut seen = Vec::new();
    for _ in 0..3 {
        let output = daemon.output(shell(line)).await;
        let (paths, found) = output.trim().split_once('\n').unwrap();
        assert_eq!(found, "0", "nothing is left of another run: {output}");
        for path in paths.split(' ') {
            assert!(path.starts_with("/tmp/jig-run-"), "{path}");
            assert!(!seen.contains(&path.to_owned()), "{path} was used before");
            seen.push(path.to_owned());
        }
    }
    for path in seen {
        let folder = Path::new(&path).parent().unwrap().to_owned();
        eventually("it is removed", async || !folder.exists()).await;
    }
    let own = RunRequest {
        env: [("HOME".to_owned(), "/nowhere".to_owned())].into(),
        ..shell("echo $HOME")
    };
    assert_eq!(daemon.output(own).await, "/nowhere\n");
}

#[tokio::test]
async fn files_are_moved_and_linked_between_directories() {
    let daemon = start().await;
    let lines = [
        "mkdir a b; echo text > a/file; python3 -c 'import os; os.rename(\"a/file\", \"b/file\")'; cat b/file",
        "ln b/file a/link; cat a/link",
        "mv b \"$TMPDIR/\"; mv \"$TMPDIR/b\" c; cat c/file",
        "printenv GIT_CONFIG_NOSYSTEM",
        "git init -q r; cd r; mkdir d; echo text > d/f; git add .; git -c user.name=a -c user.email=a@b commit -qm one; \
            mkdir e; git mv d/f e/f; git status --porcelain",
    ];
    for (line, expected) in
        lines.iter().zip(["text\n", "text\n", "text\n", "1\n", "R  d/f -> e/f\n"])
    {
        assert_eq!(daemon.output(shell(line)).await, expected, "{line}");
    }
}

#[tokio::test]
async fn whatever_a_command_leaves_behind_is_ended() {
    let daemon = start().await;
    for (name, expected) in [("daemonize", "started\n"), ("dodge", "running\n")] {
        let program = compile(&daemon, name);
        for _ in 0..5 {
            let mark = Mark::new();
            let output = daemon.output(mark.on(argv(&[&program]))).await;
            mark.assert_gone();
            assert_eq!(output, expected);
        }
    }
    let mark = Mark::new();
    let began = Instant::now();
    let response = daemon.run(mark.on(argv(&["sh", "-c", "sleep 100 & exit 5"]))).await;
    mark.assert_gone();
    assert!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
    assert_eq!(response.exit_code, Some(5));
}

/// A command that does what it can to live on.
fn stubborn() -> RunRequest {
    shell(
        "trap '' TERM INT HUP; for n in 1 2 3 4 5 6 7 8; do setsid sleep 1000 & done; \
         setsid sleep 1000 & kill -STOP $!; wait; sleep 1000",
    )
}

#[tokio::test]
async fn a_command_past_its_timeout_is_ended_with_all_that_it_started() {
    let daemon = start().await;
    let mark = Mark::new();
    let response = daemon.run(mark.on(RunRequest { timeout_sec: Some(1), ..stubborn() })).await;
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
async fn a_call_that_is_cancelled_leaves_nothing() {
    let daemon = start().await;
    for _ in 0..3 {
        let mark = Mark::new();
        let call = daemon.begin(mark.on(stubborn()));
        mark.appears(10).await;
        call.abort();
        mark.vanishes().await;
    }
    // Cancelled at once, whatever the command's process is doing by then.
    for _ in 0..20 {
        let mark = Mark::new();
        let call = daemon.begin(mark.on(stubborn()));
        tokio::task::yield_now().await;
        call.abort();
        mark.vanishes().await;
    }
    eventually("no slot is lost", async || {
        let counts = daemon.info().await.counts.unwrap();
        counts.runs_active == 0 && counts.sandboxes_quarantined == 0
    })
    .await;
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
}

#[tokio::test]
async fn a_daemon_that_is_killed_leaves_nothing() {
    let mut daemon = start().await;
    let mark = Mark::new();
    let call = daemon.begin(mark.on(stubborn()));
    mark.appears(10).await;
    let everything = descendants(daemon.pid());
    daemon.signal(Signal::KILL);
    daemon.exit().await;
    mark.vanishes().await;
    eventually("the daemon's processes are gone", async || !everything.iter().any(is_alive)).await;
    promptly("the caller notices", call).await.unwrap().unwrap_err();
}

#[tokio::test]
async fn a_supervisor_that_is_killed_takes_its_run_along() {
    let daemon = start().await;
    let mark = Mark::new();
    let call = daemon.begin(mark.on(stubborn()));
    let pids = mark.appears(10).await;
    let parent = |pid: i32| host_status(pid, "PPid").unwrap().parse::<i32>().unwrap();
    let supervisor = pids
        .iter()
        .map(|pid| parent(*pid))
        .find(|pid| host_status(*pid, "Name").unwrap() == "jig-supervisor")
        .unwrap();
    kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
    let status = promptly("the call is answered", call).await.unwrap().unwrap_err();
    assert!(status.message().contains("lost"), "{status:?}");
    mark.vanishes().await;
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
}

#[tokio::test]
async fn a_fork_bomb_reaches_its_limit_and_the_daemon_lives() {
    let daemon = Setup::new().at_l1().alone().start().await;
    let program = compile(&daemon, "fork_bomb");
    let mark = Mark::new();
    let response =
        daemon.run(mark.on(RunRequest { timeout_sec: Some(3), ..argv(&[&program]) })).await;
    mark.assert_gone();
    assert_eq!(response.outcome(), Outcome::TimedOut, "{response:?}");
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
}

/// Checks that a daemon that may give L1 does not, and says why.
async fn refuses(setup: Setup, stage: &str, why: &str) {
    let daemon = setup.arguments(&["--minimum-level", "L1"]).without_namespaces().start().await;
    refused(&daemon, stage, why).await;
}

async fn refused(daemon: &Daemon, stage: &str, why: &str) {
    let refused = daemon.runs_nothing().await;
    let last = refused.last().unwrap();
    assert_eq!((last.level.as_str(), last.stage.as_str()), ("L1", stage));
    assert!(last.message.contains(why), "{last:?}");
    assert!(!last.remedy.is_empty(), "{last:?}");
}

#[tokio::test]
async fn what_needs_a_mount_is_not_given_without_one() {
    refuses(
        Setup::new().workspace_file("kept/file", "").workspace_table("protected = [\"kept\"]"),
        "protected_paths",
        "protected",
    )
    .await;
    refuses(
        Setup::new().workspace_table("mount_path = \"/elsewhere\""),
        "no_namespaces",
        "mount_path",
    )
    .await;
    refuses(
        Setup::new().arguments(&["--bind-ro", "/etc/hosts:/hosts"]),
        "no_namespaces",
        "bound at /hosts",
    )
    .await;
}

#[tokio::test]
async fn temporary_files_must_not_be_shared() {
    refuses(Setup::new().environment("TMPDIR", "/usr"), "no_namespaces", "/usr").await;
    refuses(Setup::new().environment("TMPDIR", "/nowhere"), "no_namespaces", "/nowhere").await;
}

#[tokio::test]
async fn temporary_files_must_not_lie_in_another_workspace() {
    // Of what is there, that workspace's tools and commands see all.
    let other = tempfile::tempdir().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(other.path(), open).unwrap();
    let other = other.path().to_str().unwrap();
    let table = format!("[[workspaces]]\nname = \"other\"\npath = \"{other}\"");
    let setup = Setup::new().environment("TMPDIR", other);
    refuses(setup.workspace_table(&table), "no_namespaces", other).await;
}

#[tokio::test]
async fn a_kernel_without_landlock_does_not_give_it() {
    let (without, profile) =
        (HostProgram::compile("without_landlock"), HostProgram::compile("without_namespaces"));
    let daemon = Setup::new()
        .workspace_owner(USER)
        .under([&without.path, &profile.path])
        .arguments(&["--minimum-level", "L1"])
        .start()
        .await;
    refused(&daemon, "no_namespaces", "version 0 of Landlock").await;
}

#[tokio::test]
async fn commands_of_a_workspace_of_roots_would_be_root() {
    let wrapper = HostProgram::compile("no_namespaces");
    let daemon =
        Setup::new().under([&wrapper.path]).arguments(&["--minimum-level", "L1"]).start().await;
    refused(&daemon, "workspace_owner", "belongs to root").await;
    let refusal = daemon.refuses(shell("true"), "SANDBOX_UNAVAILABLE").await;
    let remedy = &refusal.metadata["remedy"];
    assert!(remedy.contains("--chown-workspace"), "{refusal:?}");
}

#[tokio::test]
async fn it_is_never_given_unasked() {
    for level in ["L2", "L3"] {
        let daemon =
            Setup::new().arguments(&["--minimum-level", level]).without_namespaces().start().await;
        assert_eq!(daemon.health().await, ServingStatus::NotServing);
        daemon.refuses(shell("touch ran"), "SANDBOX_UNAVAILABLE").await;
        assert!(!daemon.file("ran").exists());
        let isolation = daemon.info().await.isolation.unwrap();
        let tried = isolation.refused.iter().map(|one| one.level.as_str());
        let expected: &[&str] = match level {
            "L2" => &["L3", "L2"],
            _ => &["L3"],
        };
        assert_eq!(tried.collect::<Vec<_>>(), expected, "{level}");
    }
}
