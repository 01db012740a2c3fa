//! L2: all namespaces, with the daemon's own masked `/proc`. The operator must permit it.

use jig::api::v1::{LowerLimits, RunRequest};
use rustix::process::{Pid, Signal, kill_process};
use tonic_health::pb::health_check_response::ServingStatus;

use crate::support::{
    Daemon, HostProgram, Mark, Setup, argv, check_no_leftovers, compile_in_workspace, descendants,
    eventually, find_descendant, is_alive, shell,
};

async fn start_at_l2() -> Daemon {
    Setup::new().at_l2().start().await
}

#[tokio::test]
async fn info_reports_applied_and_missing_layers() {
    let daemon = start_at_l2().await;
    assert_eq!(daemon.health().await, ServingStatus::Serving);
    assert_eq!(daemon.run(shell("true")).await.isolation, "L2");

    let isolation = daemon.info().await.isolation.unwrap();
    assert_eq!(isolation.level, "L2");
    assert!(isolation.ready);

    let [failure] = isolation.failed_levels.as_slice() else {
        panic!("{isolation:?}");
    };
    assert_eq!(
        (failure.level.as_str(), failure.stage.as_str(), failure.errno.as_str()),
        ("L3", "mount_template_proc", "EPERM")
    );
    assert!(failure.remedy.contains("procMount"), "{failure:?}");

    let missing = isolation.layers.iter().filter(|layer| !layer.applied);
    let missing: Vec<_> =
        missing.map(|layer| (layer.name.as_str(), layer.remedy.contains("procMount"))).collect();
    assert_eq!(missing, [("fresh_proc", true), ("kernel_quotas", true)]);
}

/// The daemon identifies a run's processes by their ids in its own `/proc`.
#[tokio::test]
async fn run_usage_is_measured() {
    let daemon = start_at_l2().await;
    let open_files = compile_in_workspace(&daemon, "open_files");
    let with_limits = |limits: LowerLimits, request: RunRequest| RunRequest {
        limits: Some(limits),
        timeout_sec: Some(20),
        ..request
    };
    let fill = "import time; filled = bytearray(256 << 20); time.sleep(1000)";
    let few_files = LowerLimits { open_files_total: Some(8000), ..LowerLimits::default() };

    let little_memory = LowerLimits { memory_bytes: Some(64 << 20), ..LowerLimits::default() };
    for (request, limit) in [
        (with_limits(few_files, argv(&[&open_files, "2"])), "open_files"),
        (with_limits(little_memory, argv(&["python3", "-c", fill])), "memory"),
    ] {
        let response = daemon.run(request).await;
        assert_eq!(response.limit, limit, "{response:?}");
    }
}

#[tokio::test]
async fn daemon_does_not_fall_back_to_l2_by_default() {
    let daemon = Setup::new().with_masked_proc().start().await;
    assert_eq!(daemon.health().await, ServingStatus::NotServing);

    let refusal = daemon.run_failing(shell("touch ran"), "SANDBOX_UNAVAILABLE").await;

    // The suggested remedy depends on the container that the tests run in, if any.
    let suggests = |text| refusal.message.contains(text);
    assert!(suggests("--minimum-level L2"), "{refusal:?}");
    assert!(suggests("procMount") || suggests("systempaths=unconfined"), "{refusal:?}");
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn root_mounts_fresh_proc_despite_masks() {
    // A process with CAP_SYS_ADMIN in the mount namespace of the masks can mount /proc.
    let masks = "mount --bind /dev/null /proc/keys && mount -t tmpfs -o ro tmpfs /proc/fs && exec \"$0\" \"$@\"";
    let wrapper = ["unshare", "--mount", "--propagation", "private", "sh", "-c", masks];
    let daemon = Setup::new().wrapped_by(wrapper).start().await;
    assert_eq!(daemon.run(shell("true")).await.isolation, "L3");

    let pids = daemon.output(shell("cd /proc; echo $$ [0-9]*")).await;
    let (command, seen) = pids.trim().split_once(' ').unwrap();
    assert_eq!(seen, format!("1 {command}"), "the command sees processes of others");
}

#[tokio::test]
async fn proc_is_shared_with_the_daemon_read_only_and_masked() {
    let daemon = start_at_l2().await;
    let pid = daemon.pid();
    let pids = daemon.output(shell("cd /proc; echo [0-9]*")).await;
    assert!(pids.split_whitespace().any(|seen| seen == pid.to_string()), "{pids}");

    // /proc/self of the command shows its id in the daemon's namespace.
    let ids = daemon.output(shell("echo $$; readlink /proc/self")).await;
    let (inside, outside) = ids.trim().split_once('\n').unwrap();
    assert_eq!(inside, "2");
    assert_ne!(outside, "2");

    for file in [
        "self/oom_score_adj".to_owned(),
        "self/comm".to_owned(),
        "sys/kernel/hostname".to_owned(),
        "sys/net/ipv4/ip_forward".to_owned(),
        format!("{pid}/oom_score_adj"),
    ] {
        let script = format!("echo 1 > /proc/{file}");
        let response = daemon.run(shell(&script)).await;
        assert_ne!(response.exit_code, Some(0), "{file}: {response:?}");
        let error = response.stderr;
        assert!(["Read-only", "denied"].iter().any(|text| error.contains(text)), "{file}: {error}");
    }

    for file in ["kcore", "keys", "kallsyms", "timer_list", "modules"] {
        let script = format!("head -c 16 /proc/{file} | wc -c");
        assert_eq!(daemon.output(shell(&script)).await, "0\n", "{file}");
    }

    // Ordinary uses of /proc work.
    let script =
        "echo text > /dev/stdout; ls /proc/self/fd | wc -l; cat /proc/self/status | grep -c Name";
    assert_eq!(daemon.output(shell(script)).await, "text\n4\n1\n");
}

#[tokio::test]
async fn command_cannot_open_other_processes() {
    assert_other_processes_cannot_be_opened(&start_at_l2().await).await;
}

#[tokio::test]
async fn command_cannot_open_other_processes_without_landlock() {
    // Another run has the same user, and its program is readable. Without Landlock, only the user
    // namespace is the boundary.
    let injector = HostProgram::compile("inject");
    let injector = injector.path.to_str().unwrap();
    let setup = Setup::new().at_l2();
    let setup = setup.and_wrapped_by([injector, "landlock_create_ruleset=38", "--"]);
    let daemon = setup.start().await;
    assert_eq!(daemon.run(shell("true")).await.isolation, "L2");

    assert_other_processes_cannot_be_opened(&daemon).await;
}

async fn assert_other_processes_cannot_be_opened(daemon: &Daemon) {
    let mark = Mark::new();
    let other_run = daemon.spawn_run(mark.on(argv(&["sleep", "1000"])));
    let sleep_pid = *mark.wait_for_processes(1).await.first().unwrap();
    let visible = descendants(std::process::id().cast_signed());
    let daemon_processes = descendants(daemon.pid());
    let processes = visible.into_iter().filter(|process| {
        daemon_processes.contains(process) || [daemon.pid(), sleep_pid].contains(&process.pid)
    });
    let processes: Vec<_> = processes.collect();
    assert!(processes.len() > 5, "{processes:?}");

    for process in processes {
        let pid = process.pid;
        for file in ["environ", "mem", "maps", "fd/0", "root/", "cwd/", "exe"] {
            let script = format!("head -c 1 /proc/{pid}/{file}");
            let response = daemon.run(shell(&script)).await;
            // Idle sandboxes come and go, and a dead process has no such files.
            if is_alive(&process) {
                assert_ne!(response.exit_code, Some(0), "{pid} {file}: {response:?}");
                assert!(response.stderr.contains("denied"), "{pid} {file}: {response:?}");
            }
        }

        let response = daemon.run(shell(&format!("kill -9 {pid}"))).await;
        assert_ne!(response.exit_code, Some(0), "{pid}: {response:?}");
    }

    assert_eq!(mark.processes().len(), 1, "the other run was killed");

    other_run.abort();
    mark.wait_until_gone().await;
}

#[tokio::test]
async fn run_leaves_nothing_for_the_next() {
    let daemon = start_at_l2().await;
    let program = compile_in_workspace(&daemon, "carry_over");
    for _ in 0..4 {
        daemon.output(argv(&[&program, "leave"])).await;
        let response = daemon.run(argv(&[&program, "find"])).await;
        check_no_leftovers(&response);
    }

    eventually("the idle sandboxes are replaced", async || {
        daemon.info().await.counts.unwrap().sandboxes_idle >= 2
    })
    .await;
}

#[tokio::test]
async fn restarted_sandbox_processes_give_the_same_level() {
    for (setup, level, name) in [
        (Setup::new().at_l2(), "L2", "jig-launcher"),
        (Setup::new().at_l2(), "L2", "jig-template"),
        (Setup::new().at_l1(), "L1", "jig-template"),
        (Setup::new().at_l1(), "L1", "jig-slot"),
    ] {
        let daemon = setup.start().await;
        assert_eq!(daemon.run(shell("true")).await.isolation, level);

        // A sandbox that is still being built would not be among the killed processes.
        eventually("the idle sandboxes are ready", async || {
            daemon.info().await.counts.unwrap().sandboxes_idle >= 2
        })
        .await;
        let process = find_descendant(daemon.pid(), name).unwrap();
        let mut killed = descendants(process.pid);
        kill_process(Pid::from_raw(process.pid).unwrap(), Signal::KILL).unwrap();
        killed.push(process);
        eventually("the process and its descendants have ended", async || {
            !killed.iter().any(is_alive)
        })
        .await;

        let response = daemon.run(shell("cd /proc; echo [0-9]*")).await;
        assert_eq!(response.isolation, level, "{name}: {response:?}");

        let pids = response.stdout.split_whitespace();
        let pid = daemon.pid().to_string();
        assert!(pids.into_iter().any(|seen| seen == pid), "{response:?}");
    }
}

#[tokio::test]
async fn other_restrictions_match_l3() {
    let daemon = start_at_l2().await;
    let status = daemon.output(argv(&["cat", "/proc/self/status"])).await;
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000")), "{status}");
    }

    assert_eq!(
        daemon.output(shell("pwd; ls -d /sys /root 2> /dev/null; true")).await,
        "/workspace\n"
    );

    for (program, output) in [("daemonize", "started\n"), ("dodge", "running\n")] {
        let program = compile_in_workspace(&daemon, program);
        let mark = Mark::new();
        assert_eq!(daemon.output(mark.on(argv(&[&program]))).await, output);
        mark.assert_gone();
    }

    for (program, expected) in [
        (
            "mounts",
            [
                ("bind", "EPERM"),
                ("remount writable", "EPERM"),
                ("proc", "EPERM"),
                ("detach /proc", "EPERM"),
                ("detach a mask", "EPERM"),
                ("chroot", "EPERM"),
            ]
            .as_slice(),
        ),
        ("namespaces", &[("unshare user and mount", "EPERM")]),
        ("join", &[("enter all of process 1", "EPERM")]),
    ] {
        let path = compile_in_workspace(&daemon, program);
        let response = daemon.run(argv(&[&path])).await;
        for (attempt, answer) in expected {
            assert!(
                response.stdout.contains(&format!("{attempt}: {answer}\n")),
                "{program}: {response:?}"
            );
        }
    }
}
