//! What is kept of processes that have ended: how they ended, and what they wrote as far as there is
//! memory for it.

use jig::api::v1::{OnDisconnect, Outcome, StartRequest};

use crate::support::{
    Daemon, Mark, Refusal, Setup, argv, eventually, shell, start_request, wait_for_process_exit,
};

fn keep_request(command: &str) -> StartRequest {
    StartRequest { on_disconnect: Some(OnDisconnect::Keep.into()), ..start_request(shell(command)) }
}

fn configured_setup(text: &str) -> (tempfile::TempDir, Setup) {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("jig.toml");
    std::fs::write(&config, text).unwrap();
    let config = config.display().to_string();
    let setup = Setup::new().arguments(&["--config", &config]);
    (folder, setup)
}

#[tokio::test]
async fn ended_processes_use_bounded_memory_and_keep_their_exit() {
    let daemon = Setup::new().exclusive().start().await;
    // The oldest of all, which ends last.
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
    let mut again = daemon.attach(&first.id).await;
    assert_eq!(again.wait_for_exit().await.exit_code, Some(7));
    assert_eq!(again.stdout_text(), "done\n");
    // What the earliest wrote is a gap by now, and how they ended is known.
    let mut early = daemon.attach(&ids[0]).await;
    let exited = early.wait_for_exit().await;
    assert_eq!((exited.exit_code, exited.stdout_bytes), (Some(0), 1 << 20));
    assert_eq!(early.gaps.len(), 1);
    assert_eq!(daemon.list_processes().await.len(), 151);
}

#[tokio::test]
async fn final_output_excerpts_count_towards_the_memory_limit() {
    let daemon = Setup::new().exclusive().start().await;
    for _ in 0..20 {
        let request = StartRequest {
            max_output_bytes: Some(10 << 20),
            ..keep_request("head -c 10000000 /dev/zero | tr '\\0' x")
        };
        let exited = daemon.start_process(request).await.wait_for_exit().await;
        assert_eq!(exited.stdout.len(), 10_000_000);
    }
    let resident = daemon.resident_bytes();
    assert!(resident < 200 << 20, "{resident} bytes");
}

#[tokio::test]
async fn process_waiting_for_a_sandbox_can_be_killed() {
    let (_folder, setup) = configured_setup("[limits]\nconcurrent_runs = 1\n");
    let daemon = setup.start().await;
    let mark = Mark::new();
    let first = daemon.start_process(mark.on_start(keep_request("sleep 1000"))).await;
    for signal in ["KILL", "TERM", "INT"] {
        let mut processes = daemon.processes();
        let request = keep_request("echo ran > ran");
        let waiting = tokio::spawn(async move {
            let mut stream = processes.start(request).await?.into_inner();
            while stream.message().await?.is_some() {}
            Ok::<(), tonic::Status>(())
        });
        let mut id = String::new();
        eventually("it waits", async || {
            let listed = daemon.list_processes().await;
            let starting = listed.iter().find(|process| process.state == 1);
            id = starting.map(|process| process.process_id.clone()).unwrap_or_default();
            !id.is_empty()
        })
        .await;
        daemon.send_signal(&id, signal).await.unwrap();
        let status = waiting.await.unwrap().unwrap_err();
        assert_eq!(Refusal::from_status(&status).reason, "PROCESS_ENDED");
        // It never was.
        assert_eq!(daemon.list_processes().await.len(), 1);
    }
    // Another signal waits for the command.
    let mut processes = daemon.processes();
    let request = keep_request("trap 'echo caught; exit 3' USR1; while :; do sleep 0.05; done");
    let stream = tokio::spawn(async move { processes.start(request).await.unwrap().into_inner() });
    let mut id = String::new();
    eventually("it waits", async || {
        let listed = daemon.list_processes().await;
        let starting = listed.iter().find(|process| process.state == 1);
        id = starting.map(|process| process.process_id.clone()).unwrap_or_default();
        !id.is_empty()
    })
    .await;
    daemon.send_signal(&first.id, "KILL").await.unwrap();
    let sent = daemon.send_signal(&id, "CONT").await;
    sent.unwrap();
    daemon.send_signal(&id, "KILL").await.unwrap();
    assert_eq!(wait_for_process_exit(&daemon, &id).await.signal, "SIGKILL");
    drop(stream);
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn processes_do_not_use_call_permits() {
    let (_folder, setup) =
        configured_setup("[limits]\nconcurrent_calls = 4\nconcurrent_processes = 6\n");
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
    eventually("there is a place again", async || {
        daemon.try_start_process(keep_request("true")).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn pending_writes_are_limited() {
    let daemon = Setup::new().exclusive().start().await;
    let watch = daemon.start_process(keep_request("sleep 1000")).await;
    let mut waiting = Vec::new();
    for _ in 0..40 {
        let mut processes = daemon.processes();
        let request = jig::api::v1::WriteStdinRequest {
            process_id: watch.id.clone(),
            data: vec![0; 1 << 20].into(),
            ..Default::default()
        };
        waiting.push(tokio::spawn(async move { processes.write_stdin(request).await }));
    }
    eventually("those that are too many are told so", async || {
        waiting.iter().filter(|write| write.is_finished()).count() >= 40 - 18
    })
    .await;
    daemon.send_signal(&watch.id, "KILL").await.unwrap();
    let mut refused = 0;
    for write in waiting {
        if let Err(status) = write.await.unwrap() {
            let reason = Refusal::from_status(&status).reason;
            refused += usize::from(reason == "RESOURCE_EXHAUSTED");
        }
    }
    assert!(refused >= 20, "{refused}");
}

#[tokio::test]
async fn timeout_terminates_a_stopped_command_gracefully() {
    let daemon = Daemon::start().await;
    let request = StartRequest {
        timeout_sec: Some(1),
        ..keep_request("trap 'echo told; exit 4' TERM; kill -STOP $$; while :; do sleep 0.05; done")
    };
    let mut watch = daemon.start_process(request).await;
    let exited = watch.wait_for_exit().await;
    assert_eq!(exited.outcome(), Outcome::TimedOut);
    assert_eq!(watch.stdout_text(), "told\n");
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
    eventually("it drains", async || daemon.try_run(shell("true")).await.is_err()).await;
    let refusal = Refusal::from_status(&daemon.try_run(shell("true")).await.unwrap_err());
    assert_eq!(refusal.reason, "DRAINING");
    daemon.send_stdin(&watch.id, b"still here\n").await.unwrap();
    watch.read_until("still here\n").await;
    daemon.close_stdin(&watch.id).await.unwrap();
    assert_eq!(watch.wait_for_exit().await.exit_code, Some(0));
    assert!(daemon.wait_for_exit().await.success());
}
