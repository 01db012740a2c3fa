//! Commands that try to outlive their run, to exceed its limits, or to signal other processes.

use std::{
    fs::File,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use jig::api::v1::{Outcome, RunRequest};
use tonic_health::pb::health_check_response::ServingStatus;

use crate::support::{
    Daemon, HostProgram, MAX_REACTION_TIME, Mark, Setup, argv, compile_in_workspace,
    count_marked_processes, descendants, eventually, is_alive, probe_while_waiting, promptly,
    shell,
};

/// Signals whose default action ends a process (signal(7)), by number, because no shell knows all
/// their names.
const FATAL_SIGNALS: &[(i32, &str)] = &[
    (1, "SIGHUP"),
    (2, "SIGINT"),
    (3, "SIGQUIT"),
    (4, "SIGILL"),
    (5, "SIGTRAP"),
    (6, "SIGABRT"),
    (7, "SIGBUS"),
    (8, "SIGFPE"),
    (9, "SIGKILL"),
    (10, "SIGUSR1"),
    (11, "SIGSEGV"),
    (12, "SIGUSR2"),
    (13, "SIGPIPE"),
    (14, "SIGALRM"),
    (15, "SIGTERM"),
    (16, "SIGSTKFLT"),
    (24, "SIGXCPU"),
    (25, "SIGXFSZ"),
    (26, "SIGVTALRM"),
    (27, "SIGPROF"),
    (29, "SIGIO"),
    (30, "SIGPWR"),
    (31, "SIGSYS"),
];

#[tokio::test]
async fn case_01_timeout_kills_the_command() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let start = Instant::now();
    let response = daemon
        .run(mark.on(RunRequest { timeout_sec: Some(1), ..shell("echo before; sleep 1000") }))
        .await;
    mark.assert_gone();

    assert_eq!(response.outcome(), Outcome::TimedOut);
    assert_eq!(response.exit_code, None);
    assert_eq!(response.stdout, "before\n", "output before the timeout is returned");
    assert!(response.duration_ms >= 1000, "{response:?}");
    assert!(start.elapsed() < Duration::from_secs(1) + MAX_REACTION_TIME);
}

#[tokio::test]
async fn case_02_command_ignoring_sigterm_is_killed_after_the_grace() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let response = daemon
        .run(mark.on(RunRequest {
            timeout_sec: Some(1),
            ..shell("trap '' TERM; setsid sleep 1000 & sleep 1000; sleep 1000")
        }))
        .await;

    mark.assert_gone();
    assert_eq!(response.outcome(), Outcome::TimedOut);
    assert_eq!(response.exit_code, None);
    assert!(response.duration_ms >= 3000, "the timeout is 1 s and the grace is 2 s: {response:?}");
}

#[tokio::test]
async fn case_02_command_can_clean_up_within_the_grace() {
    let daemon = Daemon::start().await;
    let response = daemon
        .run(RunRequest {
            timeout_sec: Some(1),
            ..shell("trap 'echo cleaned up; exit 3' TERM; sleep 1000 & wait")
        })
        .await;

    assert_eq!(response.outcome(), Outcome::TimedOut);
    assert_eq!(response.stdout, "cleaned up\n");
    assert!(
        response.duration_ms < 3000,
        "the daemon does not wait for the whole grace: {response:?}"
    );
}

#[tokio::test]
async fn case_03_background_process_does_not_delay_the_response() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let start = Instant::now();
    let response = daemon.run(mark.on(argv(&["sh", "-c", "sleep 100 & exit 5"]))).await;

    mark.assert_gone();
    assert!(start.elapsed() < MAX_REACTION_TIME, "{:?}", start.elapsed());
    assert_eq!(response.outcome(), Outcome::Exited);
    assert_eq!(response.exit_code, Some(5));
}

#[tokio::test]
async fn case_04_daemonized_process_ends_with_the_run() {
    let daemon = Daemon::start().await;
    let program = compile_in_workspace(&daemon, "daemonize");
    let mark = Mark::new();
    let output = daemon.output(mark.on(argv(&[&program]))).await;
    mark.assert_gone();
    assert_eq!(output, "started\n");
}

#[tokio::test]
async fn case_05_continually_forking_process_ends_with_the_run() {
    let daemon = Daemon::start().await;
    let program = compile_in_workspace(&daemon, "dodge");
    let mark = Mark::new();
    let output = daemon.output(mark.on(argv(&[&program]))).await;
    mark.assert_gone();
    assert_eq!(output, "running\n");
}

#[tokio::test]
async fn case_06_timeout_kills_stopped_processes() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let response = daemon
        .run(mark.on(RunRequest {
            timeout_sec: Some(1),
            ..shell("sleep 1000 & setsid sleep 1000 & kill -STOP $!; kill -STOP 0")
        }))
        .await;
    mark.assert_gone();
    assert_eq!(response.outcome(), Outcome::TimedOut);
}

#[tokio::test]
async fn case_07_shell_fork_bomb_is_contained_by_its_limit() {
    check_fork_bomb(argv(&["bash", "-c", ":(){ :|:& };: 2> /dev/null; sleep 1000"])).await;
}

#[tokio::test]
async fn case_07_fork_bomb_ignoring_sigterm_is_contained_by_its_limit() {
    check_fork_bomb(argv(&["./fork_bomb"])).await;
}

/// Runs a fork bomb beside ordinary runs and health checks.
async fn check_fork_bomb(request: RunRequest) {
    let daemon = Setup::new().exclusive().start().await;
    let _program = compile_in_workspace(&daemon, "fork_bomb");
    let limit = usize::try_from(daemon.info().await.run_limits.unwrap().processes).unwrap();
    let mark = Mark::new();
    let mut bomb = daemon.spawn_run(mark.on(RunRequest { timeout_sec: Some(5), ..request }));
    mark.wait_for_processes(limit / 4).await;

    let mut max_processes = 0;
    let other_runs = async {
        for _ in 0..5 {
            let output = daemon.output(shell("echo unharmed")).await;
            assert_eq!(output, "unharmed\n");
            assert_eq!(daemon.health().await, ServingStatus::Serving);
        }
    };

    probe_while_waiting(other_runs, || {
        max_processes = max_processes.max(count_marked_processes(&mark))
    })
    .await;
    assert!(max_processes <= limit, "{max_processes} processes at once, the limit is {limit}");

    let response = promptly("the bomb ends", &mut bomb).await.unwrap().unwrap();
    if response.kill_pending {
        // On a loaded machine the kill may take longer than the daemon waits, which it then
        // reports.
        mark.wait_until_gone().await;
    } else {
        mark.assert_gone();
    }

    assert_ne!(response.outcome(), Outcome::Unspecified);
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
}

#[tokio::test]
async fn case_08_thread_bomb_is_contained_by_its_limit() {
    let daemon = Setup::new().exclusive().start().await;
    let program = compile_in_workspace(&daemon, "thread_bomb");
    let limit = daemon.info().await.run_limits.unwrap().processes;
    let mark = Mark::new();
    let (bomb, other) = tokio::join!(
        daemon.output(mark.on(argv(&[&program]))),
        daemon.output(shell("echo unharmed")),
    );
    mark.assert_gone();
    assert_eq!(other, "unharmed\n");

    let threads: u32 = bomb.trim().parse().unwrap();
    assert!(threads < limit, "{threads} threads, the limit is {limit}");
    assert!(threads > limit / 2, "{threads} threads: ordinary work needs more");
}

#[tokio::test]
async fn case_09_kill_all_reaches_only_the_runs_own_processes() {
    let daemon = Daemon::start().await;
    let (killer, other) = (Mark::new(), Mark::new());
    let other_call = daemon.spawn_run(other.on(argv(&["sleep", "1000"])));
    other.wait_for_processes(1).await;

    let response =
        daemon.run(killer.on(shell("sleep 1000 & kill -9 -1; echo alive; exit 4"))).await;
    killer.assert_gone();
    assert_eq!(response.exit_code, Some(4), "{response:?}");
    assert_eq!(response.stdout, "alive\n");
    assert_eq!(count_marked_processes(&other), 1, "the other run continues");

    other_call.abort();
    other.wait_until_gone().await;
}

#[tokio::test]
async fn case_10_command_cannot_signal_the_init() {
    let daemon = Daemon::start().await;
    let response = daemon
        .run(shell("kill -9 1; kill -STOP 1; kill -9 $PPID; kill -STOP $PPID; echo alive; exit 7"))
        .await;
    assert_eq!(response.exit_code, Some(7), "{response:?}");
    assert_eq!(response.stdout, "alive\n");

    let program = compile_in_workspace(&daemon, "signal_init");
    let response = daemon.run(argv(&[&program])).await;
    assert_eq!(response.exit_code, Some(7), "{response:?}");
    assert_eq!(response.stdout, "alive\n");
}

#[tokio::test]
async fn case_11_command_continues_after_closing_its_output() {
    let daemon = Daemon::start().await;
    let response =
        daemon.run(shell("echo begun; exec >&- 2>&-; sleep 1; touch done; exit 7")).await;
    assert_eq!(response.exit_code, Some(7), "{response:?}");
    assert_eq!(response.stdout, "begun\n");
    assert!(response.duration_ms >= 1000, "{response:?}");
    assert!(daemon.file("done").exists());

    let mark = Mark::new();
    let response = daemon
        .run(mark.on(RunRequest { timeout_sec: Some(1), ..shell("exec >&- 2>&-; sleep 1000") }))
        .await;
    mark.assert_gone();
    assert_eq!(response.outcome(), Outcome::TimedOut);
}

#[tokio::test]
async fn case_15_daemon_reports_every_exit_code() {
    let daemon = Daemon::start().await;
    for code in [0, 1, 2, 126, 127, 128, 137, 255] {
        let response = daemon.run(shell(&format!("exit {code}"))).await;
        assert_eq!(response.outcome(), Outcome::Exited);
        assert_eq!(response.exit_code, Some(code));
        assert_eq!(response.signal, "");
    }
}

#[tokio::test]
async fn case_15_daemon_reports_signals_by_name() {
    let daemon = Daemon::start().await;
    for (number, name) in FATAL_SIGNALS {
        let response = daemon.run(shell(&format!("kill -{number} $$"))).await;
        assert_eq!(response.outcome(), Outcome::Signaled, "{name}: {response:?}");
        assert_eq!(response.exit_code, None, "{name}");
        assert_eq!(response.signal, *name);
    }

    for number in [34, 64] {
        let response = daemon.run(shell(&format!("kill -{number} $$"))).await;
        assert_eq!(response.outcome(), Outcome::Signaled, "signal {number}");
        assert!(response.signal.starts_with("SIG"), "signal {number}: {response:?}");
    }
}

#[tokio::test]
async fn case_15_daemon_reports_why_a_program_cannot_be_executed() {
    let daemon = Daemon::start().await;
    daemon
        .output(shell(
            "echo '#!/bin/sh' > plain; echo 'echo from a script' > text; printf '\\177ELF nothing' > broken; \
             echo '#!/no/such/interpreter' > lost; cp /bin/true busy; chmod 755 text broken lost busy",
        ))
        .await;
    let busy = File::options().write(true).open(daemon.file("busy")).unwrap();

    for (program, reason) in [
        ("no-such-program", "COMMAND_NOT_FOUND"),
        ("./no-such-program", "COMMAND_NOT_FOUND"),
        ("./plain/below-a-file", "COMMAND_NOT_FOUND"),
        ("./lost", "COMMAND_NOT_FOUND"),
        ("./plain", "PERMISSION_DENIED"),
        ("/tmp", "PERMISSION_DENIED"),
        ("./text", "COMMAND_NOT_EXECUTABLE"),
        ("./broken", "COMMAND_NOT_EXECUTABLE"),
        ("./busy", "COMMAND_NOT_EXECUTABLE"),
    ] {
        daemon.run_failing(argv(&[program]), reason).await;
    }

    drop(busy);
    daemon.output(argv(&["./busy"])).await;

    // A shell reports such programs by its exit code.
    for (command, code) in [("no-such-program", 127), ("./plain", 126)] {
        let response = daemon.run(shell(command)).await;
        assert_eq!(response.exit_code, Some(code), "{command}: {response:?}");
    }

    assert_eq!(daemon.output(shell("./text")).await, "from a script\n");
}

#[tokio::test]
async fn case_16_sandbox_reaps_orphans_and_zombies() {
    let daemon = Setup::new().exclusive().start().await;
    let program = compile_in_workspace(&daemon, "orphans");
    let mark = Mark::new();
    let output = daemon.output(mark.on(argv(&[&program]))).await;
    mark.assert_gone();
    assert!(output.starts_with("10000 orphans, "), "{output}");

    // Dead inits remain until their slot makes the next sandbox. No other process remains.
    let daemons = descendants(daemon.pid());
    assert!(daemons.len() < 100, "{daemons:?}");

    let dead = daemons.iter().filter(|process| !is_alive(process)).count();
    assert!(dead <= 8, "{dead} dead processes are not reaped");
}

#[tokio::test]
async fn case_17_unkillable_process_does_not_delay_the_response() {
    // The FUSE server reads requests and answers none, so no signal ends a process that waits for
    // it.
    let daemon = Setup::new().workspace_owner(1234).start().await;
    let directory = daemon.file("hangs");
    std::fs::create_dir(&directory).unwrap();
    let server = HostProgram::compile("hang_fuse");
    let mut server = Command::new(&server.path)
        .arg(&directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut mounted = [0; 8];
    std::io::Read::read_exact(server.stdout.as_mut().unwrap(), &mut mounted).unwrap();

    // The file system is mounted before the workspace is mounted into sandboxes.
    let daemon = daemon.restart().await;

    // If the test fails, this drops the server before the daemon's directory: its mount would
    // prevent the removal.
    let mut server = server;

    let mark = Mark::new();
    let response =
        daemon.run(mark.on(RunRequest { timeout_sec: Some(1), ..shell("cat hangs/file") })).await;
    assert_eq!(response.outcome(), Outcome::TimedOut);
    assert!(response.kill_pending, "{response:?}");

    let counts = daemon.info().await.counts.unwrap();
    assert_eq!(counts.sandboxes_quarantined, 1);
    assert_eq!(daemon.output(shell("echo others go on")).await, "others go on\n");

    // The server exits at the end of its standard input, and then the waiting process ends.
    drop(server.stdin.take());
    server.wait().unwrap();
    mark.wait_until_gone().await;

    eventually("no sandbox is quarantined", async || {
        daemon.info().await.counts.unwrap().sandboxes_quarantined == 0
    })
    .await;
}
