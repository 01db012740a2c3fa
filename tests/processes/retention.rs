//! Retention of ended processes: their exit, and their output within the memory limit. Limits of
//! running processes.

use jig::api::v1::{Outcome, StartRequest};

use super::{keep_request, setup_with_config};
use crate::support::{
    Daemon, Mark, Refusal, Setup, argv, eventually, shell, start_request, wait_for_process_exit,
};

/// Waits until a process waits for a sandbox, and returns its id.
async fn wait_for_starting_process(daemon: &Daemon) -> String {
    let mut id = String::new();
    eventually("a process waits for a sandbox", async || {
        let processes = daemon.list_processes().await;
        let starting = processes.iter().find(|process| process.state == 1);
        id = starting.map(|process| process.process_id.clone()).unwrap_or_default();
        !id.is_empty()
    })
    .await;

    id
}

#[tokio::test]
async fn ended_processes_use_bounded_memory_and_keep_their_exit() {
    let daemon = Setup::new().exclusive().start().await;

    // The oldest process, which ends last.
    let mut first = daemon.start_process(keep_request("read a; echo done; exit 7")).await;

    let mut ids = Vec::new();
    for _ in 0..150 {
        let mut watch = daemon.start_process(keep_request("head -c 1048576 /dev/zero")).await;
        watch.wait_for_exit().await;
        ids.push(watch.id);
    }

    let resident = daemon.resident_bytes();
    assert!(resident < 200 << 20, "{resident} bytes");

    daemon.send_stdin(&first.id, b"\n").await.unwrap();
    first.wait_for_exit().await;
    let mut second = daemon.attach(&first.id).await;
    assert_eq!(second.wait_for_exit().await.exit_code, Some(7));
    assert_eq!(second.stdout_text(), "done\n");

    // The output of the earliest process is evicted, but its exit is known.
    let mut early = daemon.attach(&ids[0]).await;
    let exited = early.wait_for_exit().await;
    assert_eq!((exited.exit_code, exited.stdout_bytes), (Some(0), 1 << 20));
    assert_eq!(early.gaps.len(), 1);
    assert_eq!(daemon.list_processes().await.len(), 151);
}

#[tokio::test]
async fn final_output_excerpts_count_towards_the_memory_limit() {
    let daemon = Setup::new().exclusive().start().await;
    for _ in 0..40 {
        let request = StartRequest {
            max_output_bytes: Some(10 << 20),
            ..keep_request("head -c 10000000 /dev/zero | tr '\\0' x")
        };
        let exited = daemon.start_process(request).await.wait_for_exit().await;
        assert_eq!(exited.stdout.len(), 10_000_000);
    }

    let resident = daemon.resident_bytes();
    assert!(resident < 256 << 20, "{resident} bytes");
}

#[tokio::test]
async fn process_waiting_for_a_sandbox_can_be_killed() {
    let (_directory, setup) = setup_with_config("[limits]\nconcurrent_runs = 1\n");
    let daemon = setup.start().await;
    let mark = Mark::new();
    let first = daemon.start_process(mark.on_start(keep_request("sleep 1000"))).await;

    for signal in ["KILL", "TERM", "INT"] {
        let mut processes = daemon.processes();
        let request = keep_request("echo ran > ran");
        let call = tokio::spawn(async move {
            let mut stream = processes.start(request).await?.into_inner();
            while stream.message().await?.is_some() {}
            Ok::<(), tonic::Status>(())
        });
        let id = wait_for_starting_process(&daemon).await;
        daemon.send_signal(&id, signal).await.unwrap();

        let status = call.await.unwrap().unwrap_err();
        assert_eq!(Refusal::from_status(&status).reason, "PROCESS_ENDED");

        // The daemon has not stored the process.
        assert_eq!(daemon.list_processes().await.len(), 1);
    }

    // Other signals wait until the command runs.
    let mut processes = daemon.processes();
    let request = keep_request("trap 'echo caught; exit 3' USR1; while :; do sleep 0.05; done");
    let stream = tokio::spawn(async move { processes.start(request).await.unwrap().into_inner() });
    let id = wait_for_starting_process(&daemon).await;
    daemon.send_signal(&first.id, "KILL").await.unwrap();
    daemon.send_signal(&id, "CONT").await.unwrap();
    daemon.send_signal(&id, "KILL").await.unwrap();
    assert_eq!(wait_for_process_exit(&daemon, &id).await.signal, "SIGKILL");
    drop(stream);

    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn processes_do_not_use_call_permits() {
    let (_directory, setup) =
        setup_with_config("[limits]\nconcurrent_calls = 4\nconcurrent_processes = 6\n");
    let daemon = setup.start().await;
    let mut watches = Vec::new();
    for _ in 0..6 {
        watches.push(daemon.start_process(keep_request("sleep 1000")).await);
    }

    let refusal =
        Refusal::from_status(&daemon.try_start_process(keep_request("true")).await.unwrap_err());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert!(refusal.message.contains("ListProcesses"), "{}", refusal.message);
    assert_eq!(daemon.output(argv(&["echo", "fine"])).await, "fine\n");

    daemon.send_signal(&watches[0].id, "KILL").await.unwrap();
    eventually("a process slot is free", async || {
        daemon.try_start_process(keep_request("true")).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn pending_writes_are_limited() {
    let daemon = Setup::new().exclusive().start().await;
    let watch = daemon.start_process(keep_request("sleep 1000")).await;
    let mut writes = Vec::new();
    for _ in 0..40 {
        let mut processes = daemon.processes();
        let request = jig::api::v1::WriteStdinRequest {
            process_id: watch.id.clone(),
            data: vec![0; 1 << 20].into(),
            ..Default::default()
        };
        writes.push(tokio::spawn(async move { processes.write_stdin(request).await }));
    }

    eventually("the daemon rejects the excess writes", async || {
        writes.iter().filter(|write| write.is_finished()).count() >= 40 - 18
    })
    .await;
    daemon.send_signal(&watch.id, "KILL").await.unwrap();

    let mut rejected = 0;
    for write in writes {
        if let Err(status) = write.await.unwrap() {
            let reason = Refusal::from_status(&status).reason;
            rejected += usize::from(reason == "RESOURCE_EXHAUSTED");
        }
    }

    assert!(rejected >= 20, "{rejected}");
}

#[tokio::test]
async fn timeout_terminates_a_stopped_command_gracefully() {
    let daemon = Daemon::start().await;
    let request = StartRequest {
        timeout_sec: Some(1),
        ..keep_request(
            "trap 'echo terminated; exit 4' TERM; kill -STOP $$; while :; do sleep 0.05; done",
        )
    };

    let mut watch = daemon.start_process(request).await;
    let exited = watch.wait_for_exit().await;
    assert_eq!(exited.outcome(), Outcome::TimedOut);
    assert_eq!(watch.stdout_text(), "terminated\n");
}

#[tokio::test]
async fn many_small_writes_reach_a_pausing_reader() {
    let daemon = Daemon::start().await;
    let script =
        "read go; exec python3 -uc 'import os\nfor i in range(60000): os.write(1, b\"x\")'";
    let mut watch = daemon.start_process(keep_request(script)).await;
    daemon.send_stdin(&watch.id, b"\n").await.unwrap();
    watch.wait_for_exit().await;
    assert_eq!((watch.stdout.len(), watch.gaps.len()), (60_000, 0));
}

#[tokio::test]
async fn draining_daemon_accepts_input_for_running_processes() {
    let mut daemon = Daemon::start().await;
    let mut watch = daemon.start_process(start_request(argv(&["cat"]))).await;
    daemon.signal(rustix::process::Signal::TERM);
    eventually("the daemon drains", async || daemon.try_run(shell("true")).await.is_err()).await;
    let refusal = Refusal::from_status(&daemon.try_run(shell("true")).await.unwrap_err());
    assert_eq!(refusal.reason, "DRAINING");

    daemon.send_stdin(&watch.id, b"still here\n").await.unwrap();
    watch.read_until("still here\n").await;
    daemon.close_stdin(&watch.id).await.unwrap();
    assert_eq!(watch.wait_for_exit().await.exit_code, Some(0));
    assert!(daemon.wait_for_exit().await.success());
}
