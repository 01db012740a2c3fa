//! Hosts on which a step of building a sandbox fails. The daemon reports the step with the kernel's
//! error, and runs nothing.

use jig::api::v1::RunRequest;
use tonic_health::pb::health_check_response::ServingStatus;

use crate::support::{DAEMON_UID, Daemon, HostProgram, Mark, Setup, argv, eventually, shell};

/// A failing step of a root daemon: the injected faults, the reported stage, and the error.
struct InjectedFault(&'static [&'static str], &'static str, &'static str);

/// Flags of clone(2) and mount(2) identify the steps.
const FAULTS: &[InjectedFault] = &[
    // The namespace for id-mapped mounts is a user namespace as well.
    InjectedFault(&["clone:0:0x10000000:0x7e020000=1"], "user_namespace", "EPERM"),
    // CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID
    InjectedFault(&["clone:0:0x30020000:0x7e020000=28"], "user_namespace", "ENOSPC"),
    InjectedFault(&["setresuid=1"], "set_user", "EPERM"),
    InjectedFault(&["setresgid=1"], "set_user", "EPERM"),
    // MS_PRIVATE | MS_REC
    InjectedFault(&["mount:3:0x44000=13"], "mount_propagation", "EACCES"),
    InjectedFault(&["mount_setattr=1"], "map_owner", "EPERM"),
    InjectedFault(&["open_tree=1"], "open_source", "EPERM"),
    InjectedFault(&["open_tree=24"], "open_source", "EMFILE"),
    // All namespaces but the user namespace.
    InjectedFault(&["clone:0:0x6e020000:0x7e020000=12"], "template_namespaces", "ENOMEM"),
    // MS_NOSUID | MS_NODEV
    InjectedFault(&["mount:3:6=12"], "build_root", "ENOMEM"),
    InjectedFault(&["move_mount=1"], "build_root", "EPERM"),
    // MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV
    InjectedFault(&["mount:3:0x1027=1"], "build_root", "EPERM"),
    // MS_NOSUID | MS_NODEV | MS_NOEXEC
    InjectedFault(&["mount:3:0xe=1"], "mount_template_proc", "EPERM"),
    // MS_MOVE is the alternative way to change the root.
    InjectedFault(&["pivot_root=1", "mount:3:0x2000=1"], "pivot_root", "EPERM"),
    InjectedFault(&["umount2=1"], "pivot_root", "EPERM"),
    InjectedFault(&["seccomp=22"], "seccomp", "EINVAL"),
    // CLONE_NEWNET
    InjectedFault(&["unshare:0:0x40000000=28"], "network_namespace", "ENOSPC"),
    InjectedFault(&["setns=1"], "network_namespace", "EPERM"),
    // CLONE_NEWUSER | CLONE_NEWNS
    InjectedFault(&["clone:0:0x10020000:0x7e020000=28"], "slot_namespace", "ENOSPC"),
    // RLIMIT_CORE
    InjectedFault(&["prlimit64:1:4=1"], "resource_limits", "EPERM"),
    // CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC
    InjectedFault(&["clone:0:0x28020000:0x7e020000=11"], "run_namespaces", "EAGAIN"),
    // PR_CAPBSET_DROP
    InjectedFault(&["prctl:0:24=1"], "capabilities", "EPERM"),
    // PR_SET_SECUREBITS
    InjectedFault(&["prctl:0:28=1"], "capabilities", "EPERM"),
    // MS_BIND
    InjectedFault(&["mount:3:0x1000=1"], "mask_proc", "EPERM"),
    // CLONE_VM | SIGCHLD
    InjectedFault(&["clone:0:0x111=11"], "command_process", "EAGAIN"),
];

/// Failing steps of a daemon whose minimum level is L2.
const FAULTS_AT_L2: &[InjectedFault] = &[
    // MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RELATIME, and with MS_RDONLY
    InjectedFault(&["mount:3:0x20102e=13"], "bind_proc", "EACCES"),
    InjectedFault(&["mount:3:0x20102f=1"], "bind_proc", "EPERM"),
    InjectedFault(&["mount:3:0x1000=1"], "mask_proc", "EPERM"),
    InjectedFault(&["seccomp=22"], "seccomp", "EINVAL"),
];

/// Failing steps of a daemon whose minimum level is L1.
const FAULTS_AT_L1: &[InjectedFault] = &[
    // RLIMIT_CORE
    InjectedFault(&["prlimit64:1:4=1"], "resource_limits", "EPERM"),
    InjectedFault(&["seccomp=22"], "seccomp", "EINVAL"),
    // CLONE_VM | SIGCHLD
    InjectedFault(&["clone:0:0x111=11"], "command_process", "EAGAIN"),
];

async fn start_with_faults(injector: &HostProgram, faults: &[&str], setup: Setup) -> Daemon {
    let injector = injector.path.to_str().unwrap();
    let wrapper = [injector].into_iter().chain(faults.iter().copied());
    setup.and_wrapped_by(wrapper.chain(["--"])).start().await
}

#[tokio::test]
async fn case_84_failing_step_below_l3_is_reported_and_nothing_runs() {
    let injector = HostProgram::compile("inject");
    let mut wrong = Vec::new();
    for (level, faults, setup) in
        [("L2", FAULTS_AT_L2, Setup::new().at_l2()), ("L1", FAULTS_AT_L1, Setup::new().at_l1())]
    {
        for InjectedFault(faults, stage, errno) in faults {
            let daemon = start_with_faults(&injector, faults, setup.clone()).await;
            assert_eq!(daemon.health().await, ServingStatus::NotServing);

            daemon.run_failing(shell("touch ran"), "SANDBOX_UNAVAILABLE").await;
            assert!(!daemon.file("ran").exists(), "{faults:?}");

            let isolation = daemon.info().await.isolation.unwrap();
            let last = isolation.failed_levels.last().unwrap();
            let reported = (last.level.as_str(), last.stage.as_str(), last.errno.as_str());
            if reported != (level, stage, errno) {
                wrong.push(format!("{faults:?}: {last:?}"));
            }
            assert!(!last.remedy.is_empty(), "{faults:?}");
        }
    }

    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn case_84_failing_step_is_reported_and_nothing_runs() {
    let injector = HostProgram::compile("inject");
    let mut wrong = Vec::new();
    for InjectedFault(faults, stage, errno) in FAULTS {
        let daemon = start_with_faults(&injector, faults, Setup::new()).await;
        let isolation = daemon.info().await.isolation.unwrap();
        assert_eq!(daemon.health().await, ServingStatus::NotServing, "{faults:?}");

        let refusal = daemon.run_failing(shell("touch ran"), "SANDBOX_UNAVAILABLE").await;
        assert!(!daemon.file("ran").exists(), "{faults:?}");
        assert_eq!(isolation.level, "L0", "{faults:?}");

        let metadata = |name: &str| refusal.metadata[name].clone();
        if (metadata("stage").as_str(), metadata("errno").as_str()) != (stage, errno) {
            wrong.push(format!("{faults:?}: {refusal:?}"));
        }
        assert!(!metadata("remedy").is_empty(), "{faults:?}");
    }

    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn case_84_unavailable_syscalls_use_their_fallbacks() {
    let injector = HostProgram::compile("inject");
    for (fault, layer) in [
        ("pivot_root=1", None),
        ("pivot_root=38", None),
        // Container engines' seccomp profiles return ENOSYS (38).
        ("clone3=38", None),
        ("landlock_create_ruleset=38", Some("landlock")),
    ] {
        for setup in [Setup::new(), Setup::new().user(DAEMON_UID)] {
            let daemon = start_with_faults(&injector, &[fault], setup).await;
            assert_eq!(daemon.run(shell("true")).await.isolation, "L3", "{fault}");
            let layers = daemon.info().await.isolation.unwrap().layers;
            let missing = layers.iter().find(|layer| !layer.applied);
            assert_eq!(missing.map(|layer| layer.name.as_str()), layer, "{fault}");
        }
    }
}

#[tokio::test]
async fn case_84_rejected_host_name_is_reported_and_keeps_the_level() {
    let injector = HostProgram::compile("inject");
    for setup in [Setup::new(), Setup::new().user(DAEMON_UID)] {
        let daemon = start_with_faults(&injector, &["sethostname=1"], setup).await;
        let response = daemon.run(argv(&["uname", "-n"])).await;
        assert_eq!(response.isolation, "L3");
        assert_ne!(response.stdout, "jig\n");
        let layers = daemon.info().await.isolation.unwrap().layers;
        let layer = layers.iter().find(|layer| layer.name == "uts_namespace");
        let layer = layer.unwrap();
        assert!(layer.applied && layer.detail.contains("refused"), "{layer:?}");
    }

    let daemon = Setup::new().start().await;
    assert_eq!(daemon.output(argv(&["uname", "-n"])).await, "jig\n");
}

#[tokio::test]
async fn case_84_daemon_that_cannot_confine_itself_does_not_start() {
    let injector = HostProgram::compile("inject");

    // PR_SET_NO_NEW_PRIVS, PR_SET_DUMPABLE
    for fault in ["prctl:0:38=1", "prctl:0:4=1"] {
        let directory = tempfile::TempDir::with_prefix("jig-test-").unwrap();
        let output = std::process::Command::new(&injector.path)
            .args([fault, "--"])
            .arg(crate::support::daemon_binary())
            .args(["--check", "--workspace"])
            .arg(directory.path())
            .output()
            .unwrap();

        assert!(!output.status.success(), "{fault}: {output:?}");
        assert!(output.stdout.is_empty(), "{fault}: {output:?}");
        assert!(!output.stderr.is_empty(), "{fault}: there is no error message");
    }
}

#[tokio::test]
async fn case_85_exhausted_namespaces_are_reported_and_recover() {
    for (limit, stage) in [
        // One for the launcher and four for slots.
        ("max_user_namespaces=5", "slot_namespace"),
        // One for the template and four for slots.
        ("max_net_namespaces=5", "network_namespace"),
    ] {
        let daemon =
            Setup::new().environment("JIG_TEST_LIMIT", limit).without_namespaces().start().await;
        assert_eq!(daemon.run(shell("true")).await.isolation, "L3", "{limit}");

        let mark = Mark::new();
        let mut calls = Vec::new();
        let refusal = loop {
            assert!(calls.len() < 8, "{limit}");
            let before = mark.processes().len();
            let request = RunRequest { timeout_sec: Some(600), ..argv(&["sleep", "1000"]) };
            let mut call = daemon.spawn_run(mark.on(request));
            let mut error = None;
            eventually("the command runs or is rejected", async || {
                if call.is_finished() {
                    error = Some((&mut call).await.unwrap().unwrap_err());
                }
                error.is_some() || mark.processes().len() > before
            })
            .await;
            match error {
                Some(status) => break crate::support::Refusal::from_status(&status),
                None => calls.push(call),
            }
        };

        assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED", "{limit}: {refusal:?}");
        assert_eq!(refusal.metadata["stage"], stage, "{refusal:?}");
        assert_eq!(refusal.metadata["errno"], "ENOSPC", "{refusal:?}");
        assert!(calls.len() >= 3, "{limit}: {}", calls.len());
        assert_eq!(daemon.health().await, ServingStatus::Serving);

        for call in calls {
            call.abort();
        }

        mark.wait_until_gone().await;

        // The slots return a little later. Until then, a call may fail with a request to retry.
        eventually("commands run again", async || {
            let response = daemon.try_run(shell("echo again")).await;
            response.is_ok_and(|response| response.stdout == "again\n")
        })
        .await;
    }
}

/// Starts the daemon with few process ids. From Linux 6.14 on, each PID namespace has its own
/// limit; before, the limit would affect the whole machine.
const LOWER_PID_MAX_SCRIPT: &str = r#"
    case $(uname -r) in [1-5].*|6.[0-9].*|6.1[0-3].*) exit 1 ;; esac
    echo 400 > /proc/sys/kernel/pid_max && exec "$0" "$@"
"#;
/// Takes all process ids, which are fewer than the limit of a run.
const EXHAUST_PIDS_SCRIPT: &str = r#"
import os, time
try:
    while os.fork(): pass
except OSError:
    open("full", "w")
time.sleep(1000)
"#;

#[tokio::test]
async fn case_85_exhausted_pids_are_reported_and_recover() {
    let daemon = Setup::new()
        .wrapped_by([
            "unshare",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            LOWER_PID_MAX_SCRIPT,
        ])
        .start()
        .await;

    let mark = Mark::new();
    let greedy = daemon.spawn_run(mark.on(argv(&["python3", "-c", EXHAUST_PIDS_SCRIPT])));
    eventually("all process ids are in use", async || {
        daemon.file("full").exists() || greedy.is_finished()
    })
    .await;

    // Sandboxes that exist already run their commands.
    let calls: Vec<_> = (0..8).map(|_| daemon.spawn_run(argv(&["sleep", "1"]))).collect();
    let mut rejected = 0;
    for call in calls {
        let Err(status) = call.await.unwrap() else {
            continue;
        };
        let refusal = crate::support::Refusal::from_status(&status);
        assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED", "{refusal:?}");
        assert_eq!(refusal.metadata["errno"], "EAGAIN", "{refusal:?}");
        rejected += 1;
    }

    assert!(rejected >= 4, "{rejected}");
    assert_eq!(daemon.health().await, ServingStatus::Serving);

    greedy.abort();
    mark.wait_until_gone().await;
    // Processes that have ended keep their ids until they are reaped.
    eventually("commands run again", async || {
        daemon.try_run(shell("echo again")).await.is_ok_and(|run| run.stdout == "again\n")
    })
    .await;
}
