//! Limits that a request lowers or tries to raise.

use std::sync::Arc;

use jig::api::v1::{LowerLimits, Outcome, RunRequest, StartRequest};

use super::{LARGEST_LIMITS_TABLE, limited_command};
use crate::{
    processes::command_line::run_jig,
    support::{Daemon, Refusal, Setup, shell, start_request},
};

/// Starts a daemon with a configuration file.
async fn start_with_config(text: &str) -> Daemon {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jig.toml");
    std::fs::write(&path, text).unwrap();
    let arguments = ["--config", &path.display().to_string()];
    Setup::new().arguments(&arguments).with_resource(Arc::new(directory)).start().await
}

#[tokio::test]
async fn lowered_limits_apply_to_one_run() {
    let daemon = Daemon::start().await;
    let limits = LowerLimits {
        cpu_sec: Some(7),
        processes: Some(20),
        open_files: Some(32),
        file_size_bytes: Some(1 << 20),
        ..LowerLimits::default()
    };

    let output = daemon
        .output(limited_command(
            "ulimit -S -t; ulimit -H -t; ulimit -S -n; ulimit -H -n; ulimit -H -f; (ulimit -n 33) 2> /dev/null || echo refused",
            limits,
        ))
        .await;
    assert_eq!(output, "7\n8\n32\n32\n2048\nrefused\n");

    // The next run has the operator's limits.
    let output = daemon.output(shell("ulimit -n; ulimit -H -n; ulimit -t")).await;
    assert_eq!(output, "1024\n4096\nunlimited\n");
}

#[tokio::test]
async fn tmp_limits_apply_to_one_run() {
    let daemon = Daemon::start().await;
    let limits =
        LowerLimits { tmp_bytes: Some(1 << 20), tmp_inodes: Some(10), ..LowerLimits::default() };
    let script = "for d in /tmp /dev/shm $HOME; do stat -f -c '%b %S %c' $d; \
        head -c 2000000 /dev/zero > $d/big 2> /dev/null || echo full; rm $d/big; \
        (for i in 1 2 3 4 5 6 7 8 9 10 11; do : > $d/$i || exit; done) 2> /dev/null; ls $d | wc -l; done";
    let output = daemon.output(limited_command(script, limits)).await;
    assert_eq!(output, "256 4096 10\nfull\n9\n".repeat(3));

    let output = daemon.output(shell("stat -f -c '%b %S %c' /tmp")).await;
    assert_eq!(output, "131072 4096 65536\n");

    // Many runs at once, every second with a limit.
    let runs: Vec<_> = (0..20)
        .map(|number| {
            let limits = LowerLimits {
                tmp_bytes: (number % 2 == 0).then_some(4096 * (number + 1)),
                ..LowerLimits::default()
            };
            daemon.spawn_run(limited_command("stat -f -c %b /tmp", limits))
        })
        .collect();

    for (number, run) in runs.into_iter().enumerate() {
        let blocks = if number % 2 == 0 { number + 1 } else { 131_072 };
        assert_eq!(run.await.unwrap().unwrap().stdout, format!("{blocks}\n"));
    }

    assert_eq!(daemon.info().await.counts.unwrap().runs_active, 0);
}

#[tokio::test]
async fn request_cannot_raise_a_limit() {
    let daemon = start_with_config(
        "[limits]\ncpu_sec = 5\nmemory_bytes = 104857600\noutput_bytes = 1000\nwall_clock = \"60s\"\n",
    )
    .await;
    let limits = LowerLimits {
        cpu_sec: Some(6),
        memory_bytes: Some(1 << 30),
        processes: Some(513),
        open_files: Some(4097),
        open_files_total: Some(65_537),
        file_size_bytes: Some(1 << 40),
        tmp_bytes: Some(1 << 40),
        tmp_inodes: Some(1 << 30),
        output_bytes: Some(1001),
    };

    let request = RunRequest { timeout_sec: Some(61), ..limited_command("true", limits) };
    let refusal = daemon.run_failing(request.clone(), "INVALID_PARAMS").await;
    let expected = [
        "limits.cpu_sec",
        "limits.file_size_bytes",
        "limits.memory_bytes",
        "limits.open_files",
        "limits.open_files_total",
        "limits.output_bytes",
        "limits.processes",
        "limits.tmp_bytes",
        "limits.tmp_inodes",
        "timeout_sec",
    ];

    assert_eq!(refusal.invalid_fields(), expected);

    let request = StartRequest { limits: request.limits, ..start_request(request) };
    let refusal = Refusal::from_status(&daemon.try_start_process(request).await.unwrap_err());
    assert_eq!(refusal.invalid_fields(), expected);

    let too_small = LowerLimits {
        cpu_sec: Some(0),
        memory_bytes: Some(1),
        open_files: Some(3),
        ..LowerLimits::default()
    };
    let refusal = daemon.run_failing(limited_command("true", too_small), "INVALID_PARAMS").await;
    assert_eq!(
        refusal.invalid_fields(),
        ["limits.cpu_sec", "limits.memory_bytes", "limits.open_files"]
    );

    // The daemon reports the limits that it enforces.
    let run_limits = daemon.info().await.run_limits.unwrap();
    assert_eq!((run_limits.cpu_sec, run_limits.memory_bytes), (Some(5), 104_857_600));
    assert_eq!((run_limits.output_bytes, run_limits.wall_clock_sec), (Some(1000), Some(60)));

    let output = daemon.output(shell("ulimit -t")).await;
    assert_eq!(output, "5\n");
}

#[tokio::test]
async fn operator_wall_clock_ends_runs_without_a_timeout() {
    let daemon = start_with_config("[limits]\nwall_clock = \"1s\"\n").await;
    let run = daemon.run(shell("sleep 1000")).await;
    assert_eq!(run.outcome(), Outcome::TimedOut);

    let exited =
        daemon.start_process(start_request(shell("sleep 1000"))).await.wait_for_exit().await;
    assert_eq!(exited.outcome(), Outcome::TimedOut);
}

#[tokio::test]
async fn jig_run_has_the_default_timeout_of_the_operator() {
    let daemon = Setup::new().workspace_table("run_timeout = \"1s\"").start().await;
    assert_eq!(daemon.info().await.run_limits.unwrap().default_timeout_sec, 1);
    let (code, _, stderr) = run_jig(&daemon, &["run", "exec sleep 1000"], "").await;
    assert_eq!(code, 124, "{stderr}");
    let longer = ["run", "--timeout", "100", "sleep 1.5"];
    assert_eq!(run_jig(&daemon, &longer, "").await.0, 0);
}

#[tokio::test]
async fn default_timeout_is_at_most_the_wall_clock_limit() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("jig.toml");
    std::fs::write(&config, "[limits]\nwall_clock = \"60s\"\n").unwrap();
    let config = config.display().to_string();
    let daemon = Setup::new().arguments(&["--config", &config]).start().await;
    assert_eq!(daemon.info().await.run_limits.unwrap().default_timeout_sec, 60);
    let (code, _, stderr) = run_jig(&daemon, &["run", "true"], "").await;
    assert_eq!(code, 0, "{stderr}");
}

#[tokio::test]
async fn operator_can_set_the_largest_limits() {
    let daemon = Setup::new().workspace_table(LARGEST_LIMITS_TABLE).start().await;
    let output = daemon.output(shell("echo fine; stat -f -c %b /tmp")).await;
    assert!(output.starts_with("fine\n"), "{output}");
}

#[tokio::test]
async fn daemon_rejects_a_process_limit_above_its_own() {
    let daemon = Setup::new().wrapped_by(["prlimit", "--nproc=511"]).start().await;
    let failure = daemon.info().await.isolation.unwrap().failure.unwrap();
    assert_eq!(failure.stage, "resource_limits", "{failure:?}");
    assert!(failure.remedy.contains("ulimit -H"), "{failure:?}");

    // The sandbox's own processes do not count against the limit.
    let daemon = Setup::new().wrapped_by(["prlimit", "--nproc=512"]).start().await;
    assert_eq!(daemon.output(shell("echo fine")).await, "fine\n");
}

#[tokio::test]
async fn l1_rejects_limits_that_it_cannot_enforce() {
    let daemon = Setup::new().at_l1().start().await;
    let limits =
        LowerLimits { tmp_bytes: Some(1 << 20), tmp_inodes: Some(10), ..LowerLimits::default() };
    let refusal = daemon.run_failing(limited_command("true", limits), "INVALID_PARAMS").await;
    assert_eq!(refusal.invalid_fields(), ["limits.tmp_bytes", "limits.tmp_inodes"]);
}
