//! Commands that try to outlive their run, to outgrow it, or to end what is not theirs.

use std::{
    fs::File,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use jig::api::v1::{Outcome, RunRequest};
use tonic_health::pb::health_check_response::ServingStatus;

use crate::support::{
    Daemon, HostProgram, Mark, PROMPT, Setup, argv, compile, descendants, eventually, is_alive,
    marked_count, promptly, shell, while_waiting,
};

/// Signals whose default is to end a process (signal(7)), by their numbers: no shell knows all
/// names.
const FATAL: &[(i32, &str)] = &[
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
async fn case_01_a_command_past_its_timeout_is_killed() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let began = Instant::now();
    let response = daemon
        .run(mark.on(RunRequest { timeout_sec: Some(1), ..shell("echo before; sleep 1000") }))
        .await;
    mark.assert_gone();
    assert_eq!(response.outcome(), Outcome::TimedOut);
    assert_eq!(response.exit_code, None);
    assert_eq!(response.stdout, "before\n", "what was written is not lost");
    assert!(response.duration_ms >= 1000, "{response:?}");
    assert!(began.elapsed() < Duration::from_secs(1) + PROMPT);
}

#[tokio::test]
async fn case_02_a_command_that_ignores_sigterm_is_killed_after_the_grace() {
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
    assert!(response.duration_ms >= 3000, "1 s and a grace of 2 s: {response:?}");
}

#[tokio::test]
async fn case_02_a_command_may_clean_up_within_the_grace() {
    let daemon = Daemon::start().await;
    let response = daemon
        .run(RunRequest {
            timeout_sec: Some(1),
            ..shell("trap 'echo cleaned up; exit 3' TERM; sleep 1000 & wait")
        })
        .await;
    assert_eq!(response.outcome(), Outcome::TimedOut);
    assert_eq!(response.stdout, "cleaned up\n");
    assert!(response.duration_ms < 3000, "it need not wait for the grace: {response:?}");
}

#[tokio::test]
async fn case_03_a_straggler_that_holds_stdout_is_not_waited_for() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let began = Instant::now();
    let response = daemon.run(mark.on(argv(&["sh", "-c", "sleep 100 & exit 5"]))).await;
    mark.assert_gone();
    assert!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
    assert_eq!(response.outcome(), Outcome::Exited);
    assert_eq!(response.exit_code, Some(5));
}

#[tokio::test]
async fn case_04_a_daemonised_process_is_gone_after_the_run() {
    let daemon = Daemon::start().await;
    let program = compile(&daemon, "daemonize");
    let mark = Mark::new();
    let output = daemon.output(mark.on(argv(&[&program]))).await;
    mark.assert_gone();
    assert_eq!(output, "started\n");
}

#[tokio::test]
async fn case_05_a_process_that_forks_anew_every_millisecond_is_gone_after_the_run() {
    let daemon = Daemon::start().await;
    let program = compile(&daemon, "dodge");
    let mark = Mark::new();
    let output = daemon.output(mark.on(argv(&[&program]))).await;
    mark.assert_gone();
    assert_eq!(output, "running\n");
}

#[tokio::test]
async fn case_06_stopped_processes_are_killed_on_timeout() {
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
async fn case_07_a_fork_bomb_of_the_shell_reaches_its_limit_and_nothing_else() {
    bomb(argv(&["bash", "-c", ":(){ :|:& };: 2> /dev/null; sleep 1000"])).await;
}

#[tokio::test]
async fn case_07_a_fork_bomb_that_ignores_sigterm_reaches_its_limit_and_nothing_else() {
    bomb(argv(&["./fork_bomb"])).await;
}

/// Runs a bomb beside a daemon's other work.
async fn bomb(request: RunRequest) {
    let daemon = Setup::new().alone().start().await;
    let _program = compile(&daemon, "fork_bomb");
    let limit = usize::try_from(daemon.info().await.run_limits.unwrap().processes).unwrap();
    let mark = Mark::new();
    let mut running = daemon.begin(mark.on(RunRequest { timeout_sec: Some(5), ..request }));
    mark.appears(limit / 4).await;
    let mut most = 0;
    let others = async {
        for _ in 0..5 {
            let output = daemon.output(shell("echo unharmed")).await;
            assert_eq!(output, "unharmed\n");
            assert_eq!(daemon.health().await, ServingStatus::Serving);
        }
    };
    while_waiting(others, || most = most.max(marked_count(&mark))).await;
    assert!(most <= limit, "{most} processes at one time, {limit} allowed");
    let response = promptly("the bomb's end", &mut running).await.unwrap().unwrap();
    if response.kill_pending {
        // A machine that has other work too may need longer than the daemon waits; then it must say
        // so.
        mark.vanishes().await;
    } else {
        mark.assert_gone();
    }
    assert_ne!(response.outcome(), Outcome::Unspecified);
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
}

#[tokio::test]
async fn case_08_a_thread_bomb_reaches_its_limit_and_nothing_else() {
    let daemon = Setup::new().alone().start().await;
    let program = compile(&daemon, "thread_bomb");
    let limit = daemon.info().await.run_limits.unwrap().processes;
    let mark = Mark::new();
    let (bomb, other) = tokio::join!(
        daemon.output(mark.on(argv(&[&program]))),
        daemon.output(shell("echo unharmed")),
    );
    mark.assert_gone();
    assert_eq!(other, "unharmed\n");
    let threads: u32 = bomb.trim().parse().unwrap();
    assert!(threads < limit, "{threads} threads, {limit} allowed");
    assert!(threads > limit / 2, "{threads} threads: real work needs more");
}

#[tokio::test]
async fn case_09_killing_everybody_kills_only_the_runs_own() {
    let daemon = Daemon::start().await;
    let (killer, other) = (Mark::new(), Mark::new());
    let waiting = daemon.begin(other.on(argv(&["sleep", "1000"])));
    other.appears(1).await;
    let response =
        daemon.run(killer.on(shell("sleep 1000 & kill -9 -1; echo alive; exit 4"))).await;
    killer.assert_gone();
    assert_eq!(response.exit_code, Some(4), "{response:?}");
    assert_eq!(response.stdout, "alive\n");
    assert_eq!(marked_count(&other), 1, "the other run lives");
    waiting.abort();
    other.vanishes().await;
}

#[tokio::test]
async fn case_10_the_init_is_beyond_every_signal() {
    let daemon = Daemon::start().await;
    let response = daemon
        .run(shell("kill -9 1; kill -STOP 1; kill -9 $PPID; kill -STOP $PPID; echo alive; exit 7"))
        .await;
    assert_eq!(response.exit_code, Some(7), "{response:?}");
    assert_eq!(response.stdout, "alive\n");
    let program = compile(&daemon, "signal_init");
    let response = daemon.run(argv(&[&program])).await;
    assert_eq!(response.exit_code, Some(7), "{response:?}");
    assert_eq!(response.stdout, "alive\n");
}

#[tokio::test]
async fn case_11_a_command_that_closes_its_output_goes_on_to_its_end() {
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
async fn case_15_every_exit_code_is_told_as_it_is() {
    let daemon = Daemon::start().await;
    for code in [0, 1, 2, 126, 127, 128, 137, 255] {
        let response = daemon.run(shell(&format!("exit {code}"))).await;
        assert_eq!(response.outcome(), Outcome::Exited);
        assert_eq!(response.exit_code, Some(code));
        assert_eq!(response.signal, "");
    }
}

#[tokio::test]
async fn case_15_every_signal_is_told_by_its_name() {
    let daemon = Daemon::start().await;
    for (number, name) in FATAL {
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
async fn case_15_what_cannot_be_executed_says_why() {
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
        daemon.refuses(argv(&[program]), reason).await;
    }
    drop(busy);
    daemon.output(argv(&["./busy"])).await;
    // For the shell these are commands like others.
    for (command, code) in [("no-such-program", 127), ("./plain", 126)] {
        let response = daemon.run(shell(command)).await;
        assert_eq!(response.exit_code, Some(code), "{command}: {response:?}");
    }
    assert_eq!(daemon.output(shell("./text")).await, "from a script\n");
}

#[tokio::test]
async fn case_16_a_flood_of_orphans_and_zombies_is_reaped() {
    let daemon = Setup::new().alone().start().await;
    let program = compile(&daemon, "orphans");
    let mark = Mark::new();
    let output = daemon.output(mark.on(argv(&[&program]))).await;
    mark.assert_gone();
    assert!(output.starts_with("10000 orphans, "), "{output}");
    // Its own dead inits wait until their slot makes the next sandbox; nothing else may be left.
    let daemons = descendants(daemon.pid());
    assert!(daemons.len() < 100, "{daemons:?}");
    let dead = daemons.iter().filter(|process| !is_alive(process)).count();
    assert!(dead <= 8, "{dead} dead processes are not reaped");
}

#[tokio::test]
async fn case_17_a_process_that_cannot_be_killed_does_not_hold_the_answer() {
    // Its server takes requests and answers none: no signal reaches who waits for it.
    let daemon = Setup::new().workspace_owner(1234).start().await;
    let folder = daemon.file("hangs");
    std::fs::create_dir(&folder).unwrap();
    let server = HostProgram::compile("hang_fuse");
    let mut server = Command::new(&server.path)
        .arg(&folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut mounted = [0; 8];
    std::io::Read::read_exact(server.stdout.as_mut().unwrap(), &mut mounted).unwrap();
    // The mount must be there before the workspace is mounted into sandboxes.
    let daemon = daemon.restart().await;
    // Dropped before the daemon's directory, should this test fail: that could not be removed while
    // it hangs.
    let mut server = server;
    let mark = Mark::new();
    let response =
        daemon.run(mark.on(RunRequest { timeout_sec: Some(1), ..shell("cat hangs/file") })).await;
    assert_eq!(response.outcome(), Outcome::TimedOut);
    assert!(response.kill_pending, "{response:?}");
    let counts = daemon.info().await.counts.unwrap();
    assert_eq!(counts.sandboxes_quarantined, 1);
    assert_eq!(daemon.output(shell("echo others go on")).await, "others go on\n");
    // Its standard input ends, and so does it, and what waits for it.
    drop(server.stdin.take());
    server.wait().unwrap();
    mark.vanishes().await;
    eventually("nothing is set aside any more", async || {
        daemon.info().await.counts.unwrap().sandboxes_quarantined == 0
    })
    .await;
}
