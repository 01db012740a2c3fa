//! Attaching to a process: replayed output, gaps and limits.

use std::sync::Arc;

use jig::api::v1::AttachRequest;

use super::{keep_request, setup_with_config};
use crate::support::{
    Daemon, KeyFile, Refusal, Setup, eventually, full_size, wait_for_process_exit, with_key,
    with_metadata,
};

/// Output of a process that the daemon stores by default.
const REPLAY_BUFFER_BYTES: usize = 1 << 20;
/// Writes 1 MiB, alternating between the streams. Each 8 KiB part has its own byte.
const INTERLEAVED_OUTPUT_SCRIPT: &str = "i=0; while [ $i -lt 64 ]; do \
    head -c 8192 /dev/zero | tr '\\0' \"$(printf '\\\\%03o' $((i % 64 + 64)))\"; \
    head -c 8192 /dev/zero | tr '\\0' \"$(printf '\\\\%03o' $((i % 64 + 64)))\" >&2; \
    i=$((i + 1)); done";

#[tokio::test]
async fn attach_after_any_chunk_returns_the_exact_rest() {
    let daemon = Daemon::start().await;
    let mut whole = daemon.start_process(keep_request(INTERLEAVED_OUTPUT_SCRIPT)).await;
    let exited = whole.wait_for_exit().await;
    assert_eq!(whole.stdout.len() + whole.stderr.len(), REPLAY_BUFFER_BYTES);
    assert!(whole.gaps.is_empty());

    for position in 0..=whole.sequence {
        let request = AttachRequest { after_sequence: position, ..whole.resume_request() };
        let mut rest = daemon.try_attach(request).await.unwrap();
        assert_eq!(rest.wait_for_exit().await, exited);

        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        for (sequence, is_stderr, offset, length) in &whole.chunks {
            if *sequence > position {
                let start = usize::try_from(*offset).unwrap();
                let (source, target) = if *is_stderr {
                    (&whole.stderr, &mut stderr)
                } else {
                    (&whole.stdout, &mut stdout)
                };
                target.extend_from_slice(&source[start..start + length]);
            }
        }

        assert!(rest.stdout == stdout && rest.stderr == stderr, "after chunk {position}");
        assert!(rest.gaps.is_empty());
    }
}

#[tokio::test]
async fn attach_at_any_byte_returns_the_exact_rest() {
    let daemon = Daemon::start().await;
    let mut whole = daemon.start_process(keep_request("seq -f %08.0f 131072 | tr -d '\\n'")).await;
    whole.wait_for_exit().await;
    assert_eq!(whole.stdout.len(), REPLAY_BUFFER_BYTES);

    // All offsets in a full test; otherwise a prime step.
    let step = full_size(1, 16_411);
    for offset in (0..=REPLAY_BUFFER_BYTES).step_by(step) {
        let request = AttachRequest {
            process_id: whole.id.clone(),
            stdout_offset: offset as u64,
            ..AttachRequest::default()
        };
        let mut rest = daemon.try_attach(request).await.unwrap();
        rest.wait_for_exit().await;
        assert!(rest.stdout == whole.stdout[offset..], "from byte {offset}");

        let first = rest.chunks.first().map(|chunk| chunk.2);
        assert_eq!(first, (offset < REPLAY_BUFFER_BYTES).then_some(offset as u64));
        assert!(rest.gaps.is_empty());
    }
}

#[tokio::test]
async fn evicted_output_is_reported_as_a_gap() {
    let daemon = Daemon::start().await;
    let line = "a line of output that is long enough to be worth something\\n";
    let watch = daemon
        .start_process(keep_request(&format!(
            "read go; yes '{line}' | head -c 5000000; echo; echo end >&2; read stop"
        )))
        .await;
    let id = watch.id.clone();
    drop(watch);
    daemon.send_stdin(&id, b"\n").await.unwrap();

    let writes_without_watcher = async || {
        let processes = daemon.list_processes().await;
        processes.first().is_some_and(|process| process.last_sequence > 0 && process.attached == 0)
    };
    eventually("the process writes without a watcher", writes_without_watcher).await;
    daemon.send_stdin(&id, b"\n").await.unwrap();
    let exited = wait_for_process_exit(&daemon, &id).await;
    assert_eq!(exited.stdout_bytes, 5_000_001);

    let (artifact, _) = daemon.artifact(&exited.stdout_path).await;
    assert_eq!(artifact.len(), 5_000_001);

    let mut late = daemon.attach(&id).await;
    late.wait_for_exit().await;
    let [gap] = late.gaps[..] else {
        panic!("expected one gap: {:?}", late.gaps);
    };
    let start = usize::try_from(gap.stdout_offset).unwrap();
    assert!(late.stdout == artifact[start..], "the output differs from the artifact");
    assert!(
        late.stdout.len() > REPLAY_BUFFER_BYTES / 2 && late.stdout.len() <= REPLAY_BUFFER_BYTES
    );
    assert_eq!(late.chunks.first().map(|chunk| chunk.0), Some(gap.next_sequence));
    assert_eq!(late.stderr, b"end\n");
    assert_eq!(gap.stderr_offset, 0);

    // A client that already has the evicted bytes sees no gap.
    let request = AttachRequest {
        process_id: id.clone(),
        stdout_offset: gap.stdout_offset + 7,
        ..AttachRequest::default()
    };
    let mut rest = daemon.try_attach(request).await.unwrap();
    rest.wait_for_exit().await;

    assert!(rest.gaps.is_empty(), "{:?}", rest.gaps);
    assert!(rest.stdout == artifact[start + 7..]);
}

#[tokio::test]
async fn concurrent_watchers_read_the_same_output() {
    let daemon = Daemon::start().await;
    let mut first = daemon.start_process(keep_request("read a; seq 100000; exit 9")).await;
    let mut watches = Vec::new();
    for _ in 0..5 {
        watches.push(daemon.attach(&first.id).await);
    }

    daemon.send_stdin(&first.id, b"\n").await.unwrap();
    let mut tasks = vec![tokio::spawn(async move { (first.wait_for_exit().await, first.stdout) })];
    for mut watch in watches {
        tasks.push(tokio::spawn(async move { (watch.wait_for_exit().await, watch.stdout) }));
    }

    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
    assert_eq!(results[0].0.exit_code, Some(9));
    assert_eq!(results[0].1.len(), 588_895);
}

#[tokio::test]
async fn attach_beyond_the_last_position_is_rejected() {
    let daemon = Daemon::start().await;
    let mut watch = daemon.start_process(keep_request("printf abc; printf de >&2")).await;
    watch.wait_for_exit().await;
    let request = AttachRequest {
        process_id: watch.id.clone(),
        after_sequence: 3,
        stdout_offset: 4,
        stderr_offset: 3,
        keep_alive_sec: None,
    };

    let refusal = Refusal::from_status(&daemon.try_attach(request).await.unwrap_err());
    assert_eq!(refusal.reason, "INVALID_PARAMS");
    assert_eq!(refusal.invalid_fields(), ["after_sequence", "stderr_offset", "stdout_offset"]);
    assert!(refusal.message.contains("written up to 2"), "{}", refusal.message);
}

#[tokio::test]
async fn attach_to_unknown_process_is_rejected() {
    let daemon = Setup::new().start().await;
    for request in [
        AttachRequest::default(),
        AttachRequest { process_id: "x".repeat(65), ..AttachRequest::default() },
    ] {
        let refusal = Refusal::from_status(&daemon.try_attach(request).await.unwrap_err());
        assert_eq!(refusal.invalid_fields(), ["process_id"]);
    }

    let request = AttachRequest {
        process_id: "01ARZ3NDEKTSV4RRFFQ69G5FAV".to_owned(),
        ..AttachRequest::default()
    };
    let refusal = Refusal::from_status(&daemon.try_attach(request).await.unwrap_err());
    assert_eq!(refusal.reason, "PROCESS_NOT_FOUND");
    assert!(refusal.message.contains("ListProcesses"), "{}", refusal.message);
}

#[tokio::test]
async fn process_is_not_found_from_another_workspace() {
    let directory = tempfile::tempdir().unwrap();
    let other = format!("other={}", directory.path().display());
    let daemon = Setup::new().arguments(&["--workspace", &other]).start().await;
    let watch = daemon.start_process(keep_request("cat")).await;
    let in_other_workspace = |message| with_metadata("jig-workspace", "other", message);
    let attach = in_other_workspace(watch.resume_request());
    let status = daemon.processes().attach(attach).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "PROCESS_NOT_FOUND");

    let mut request = tonic::Request::new(jig::api::v1::SendSignalRequest {
        process_id: watch.id.clone(),
        signal: "KILL".to_owned(),
    });
    request.metadata_mut().insert("jig-workspace", "other".parse().unwrap());
    let status = daemon.processes().send_signal(request).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "PROCESS_NOT_FOUND");

    let list = with_metadata("jig-workspace", "other", jig::api::v1::ListProcessesRequest {});
    let response = daemon.processes().list_processes(list).await.unwrap();
    assert!(response.into_inner().processes.is_empty());
    assert_eq!(daemon.list_processes().await.len(), 1);
}

#[tokio::test]
async fn ended_process_is_retained_for_the_configured_time() {
    let (_directory, setup) = setup_with_config("[limits]\nprocess_retention = \"1s\"\n");
    let daemon = setup.start().await;
    let mut watch = daemon.start_process(keep_request("exit 4")).await;
    watch.wait_for_exit().await;
    assert_eq!(wait_for_process_exit(&daemon, &watch.id).await.exit_code, Some(4));

    eventually("the process is removed from the list", async || {
        daemon.list_processes().await.is_empty()
    })
    .await;
    let status = daemon.try_attach(watch.resume_request()).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "PROCESS_NOT_FOUND");
}

#[tokio::test]
async fn watchers_of_one_process_are_limited() {
    let daemon = Daemon::start().await;
    let first = daemon.start_process(keep_request("cat")).await;
    let mut watches = Vec::new();
    for _ in 1..64 {
        watches.push(daemon.attach(&first.id).await);
    }

    let refusal =
        Refusal::from_status(&daemon.try_attach(first.resume_request()).await.unwrap_err());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");

    watches.pop();
    eventually("a watcher slot is free", async || {
        daemon.try_attach(first.resume_request()).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn watchers_of_another_principal_do_not_exhaust_the_owners() {
    let keys = Arc::new(KeyFile::new());
    let [owner_key, other_key] = ["owner", "other"].map(|name| keys.add_key(name, "invoke", &[]));
    let path = keys.path().display().to_string();
    let daemon = Setup::new()
        .arguments(&["--keys", &path])
        .with_resource(Arc::clone(&keys) as _)
        .start()
        .await;
    let first = daemon.start_process(with_key(&owner_key, keep_request("cat"))).await;

    let attach = async |key: &str| {
        let request = AttachRequest { process_id: first.id.clone(), ..AttachRequest::default() };
        daemon.processes().attach(with_key(key, request)).await
    };
    let mut streams = Vec::new();
    let refusal = loop {
        match attach(&other_key).await {
            Ok(stream) => streams.push(stream),
            Err(status) => break Refusal::from_status(&status),
        }
        assert!(streams.len() < 200, "no watcher was rejected");
    };

    assert_eq!(streams.len(), 64);
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert!(refusal.retry_after.is_some(), "{refusal:?}");

    attach(&owner_key).await.unwrap();
}
