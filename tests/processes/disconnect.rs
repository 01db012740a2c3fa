//! Effect of a disconnect: a process is killed or continues, by its `on_disconnect`.

use std::time::Duration;

use jig::api::v1::{OnDisconnect, Outcome, StartRequest};
use rustix::process::{Pid, Signal, kill_process};
use tonic::Request;

use crate::support::{
    ConnectionProxy, Daemon, MAX_REACTION_TIME, Mark, Refusal, WatchedProcess, eventually,
    find_descendant, promptly, shell, start_request, wait_for_process_exit,
};

fn disconnect_request(on_disconnect: OnDisconnect, command: &str) -> StartRequest {
    StartRequest { on_disconnect: Some(on_disconnect.into()), ..start_request(shell(command)) }
}

#[tokio::test]
async fn process_is_killed_with_its_last_watcher_by_default() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let first = daemon
        .start_process(
            mark.on_start(start_request(shell("trap '' TERM HUP; sleep 1000 & sleep 1000"))),
        )
        .await;
    mark.wait_for_processes(3).await;
    let second = daemon.attach(&first.id).await;

    let id = first.id.clone();
    drop(first);

    // One watcher remains, so the process continues.
    let attached = async || daemon.list_processes().await[0].attached == 1;
    eventually("the first watcher has disconnected", attached).await;
    assert_eq!(mark.processes().len(), 3);
    drop(second);
    mark.wait_until_gone().await;
    let exited = wait_for_process_exit(&daemon, &id).await;

    assert_eq!(exited.outcome(), Outcome::Cancelled);
    assert_eq!(exited.signal, "SIGKILL");
}

#[tokio::test]
async fn kept_process_continues_unwatched_and_can_be_reattached() {
    let daemon = Daemon::start().await;
    let watch = daemon
        .start_process(disconnect_request(
            OnDisconnect::Keep,
            "echo one; read a; echo two; read b; echo three",
        ))
        .await;

    let (id, position) = (watch.id.clone(), watch.resume_request());
    drop(watch);
    let is_unwatched = async || daemon.list_processes().await[0].attached == 0;
    eventually("the process has no watcher", is_unwatched).await;
    daemon.send_stdin(&id, b"\n").await.unwrap();
    let mut second = daemon.try_attach(position).await.unwrap();
    second.read_until("two\n").await;
    assert_eq!(second.stdout_text(), "one\ntwo\n");

    // A third stream attaches while the process runs and reads to its end.
    let mut third = daemon.try_attach(second.resume_request()).await.unwrap();
    daemon.send_stdin(&id, b"\n").await.unwrap();
    assert_eq!(third.wait_for_exit().await, second.wait_for_exit().await);
    assert_eq!(third.stdout_text(), "three\n");
}

#[tokio::test]
async fn lost_connection_counts_as_a_departed_watcher() {
    let daemon = Daemon::start().await;
    let proxy = ConnectionProxy::start(&daemon);
    for on_disconnect in [OnDisconnect::Kill, OnDisconnect::Keep] {
        let mark = Mark::new();
        let request =
            mark.on_start(disconnect_request(on_disconnect, "echo here; read a; echo there"));
        let channel = proxy.channel();
        let mut processes =
            jig::api::v1::process_service_client::ProcessServiceClient::new(channel);
        let mut stream = processes.start(request).await.unwrap().into_inner();
        let first = stream.message().await.unwrap().unwrap();
        let Some(jig::api::v1::start_response::Event::Started(started)) = first.event else {
            panic!("{first:?}");
        };

        let output = stream.message().await.unwrap().unwrap();
        assert!(format!("{output:?}").contains("here"), "{output:?}");

        proxy.cut();
        promptly("the stream fails", async { while stream.message().await.is_ok() {} }).await;
        let mut watch = match on_disconnect {
            OnDisconnect::Kill => {
                mark.wait_until_gone().await;
                daemon.attach(&started.process_id).await
            }
            _ => {
                let watch = daemon.attach(&started.process_id).await;
                daemon.send_stdin(&started.process_id, b"\n").await.unwrap();
                watch
            }
        };

        let exited = watch.wait_for_exit().await;
        let (outcome, text) = match on_disconnect {
            OnDisconnect::Kill => (Outcome::Cancelled, "here\n"),
            _ => (Outcome::Exited, "here\nthere\n"),
        };
        assert_eq!((exited.outcome(), watch.stdout_text().as_str()), (outcome, text));
    }
}

#[tokio::test]
async fn call_deadline_kills_a_process_that_is_not_kept() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let request = mark.on_start(start_request(shell("trap '' TERM; sleep 1000")));
    let mut request = Request::new(request);
    request.set_timeout(Duration::from_millis(700));
    let start = std::time::Instant::now();
    let mut stream = daemon.processes().start(request).await.unwrap().into_inner();
    let status = promptly("the stream ends", async {
        loop {
            if let Err(status) = stream.message().await {
                return status;
            }
        }
    })
    .await;

    // The client's own timer may fire before the daemon's status arrives.
    assert!(
        matches!(status.code(), tonic::Code::DeadlineExceeded | tonic::Code::Cancelled),
        "{status:?}"
    );

    mark.wait_until_gone().await;
    assert!(start.elapsed() < MAX_REACTION_TIME);
}

#[tokio::test]
async fn stream_deadline_does_not_end_a_kept_process() {
    let daemon = Daemon::start().await;
    let mut request =
        Request::new(disconnect_request(OnDisconnect::Keep, "read a; echo still there"));

    // A raw header: only the daemon enforces it.
    request.metadata_mut().insert("grpc-timeout", "300m".parse().unwrap());
    let mut stream = daemon.processes().start(request).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap();
    let Some(jig::api::v1::start_response::Event::Started(started)) = first.event else {
        panic!("{first:?}");
    };
    let status = promptly("the stream ends", stream.message()).await.unwrap_err();
    let refusal = Refusal::from_status(&status);

    assert_eq!(refusal.reason, "TIMEOUT");
    assert!(refusal.message.contains("the process continues"), "{}", refusal.message);

    let mut watch: WatchedProcess = daemon.attach(&started.process_id).await;
    daemon.send_stdin(&started.process_id, b"\n").await.unwrap();
    assert_eq!(watch.wait_for_exit().await.exit_code, Some(0));
    assert_eq!(watch.stdout_text(), "still there\n");
}

#[tokio::test]
async fn launcher_death_ends_the_stream_without_an_exit() {
    let daemon = Daemon::start().await;
    let mut watch = daemon.start_process(start_request(shell("echo here; sleep 1000"))).await;
    watch.read_until("here\n").await;

    let launcher = find_descendant(daemon.pid(), "jig-launcher").unwrap();
    kill_process(Pid::from_raw(launcher.pid).unwrap(), Signal::KILL).unwrap();
    let refusal = watch.wait_for_failure().await;
    assert_eq!(refusal.reason, "SANDBOX_ERROR");

    // The output so far is stored.
    let (artifact, _) = daemon.artifact(&watch.started().stdout_path).await;
    assert_eq!(artifact, b"here\n");

    // A later attach receives the same error.
    let mut second = daemon.attach(&watch.id).await;
    assert_eq!(second.wait_for_failure().await.reason, "SANDBOX_ERROR");
    assert_eq!(second.stdout_text(), "here\n");

    let processes = daemon.list_processes().await;
    assert_eq!((processes[0].state, processes[0].outcome), (3, 0), "{processes:?}");
}
