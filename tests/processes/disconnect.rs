//! What becomes of a process when those who watch it leave.

use std::time::Duration;

use jig::api::v1::{OnDisconnect, Outcome, StartRequest};
use rustix::process::{Pid, Signal, kill_process};
use tonic::Request;

use crate::support::{
    Daemon, Mark, PROMPT, Proxy, Refusal, Watch, descendants, eventually, host_status, promptly,
    shell, started, wait_for_end,
};

fn on_disconnect(what: OnDisconnect, command: &str) -> StartRequest {
    StartRequest { on_disconnect: Some(what.into()), ..started(shell(command)) }
}

#[tokio::test]
async fn without_a_word_it_is_killed_with_its_last_reader() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let first = daemon
        .watch(mark.on_process(started(shell("trap '' TERM HUP; sleep 1000 & sleep 1000"))))
        .await;
    mark.appears(3).await;
    let second = daemon.attach(&first.id).await;
    let id = first.id.clone();
    drop(first);
    // One is left: nothing happens to it.
    let attached = async || daemon.list_processes().await[0].attached == 1;
    eventually("the first has left", attached).await;
    assert_eq!(mark.processes().len(), 3);
    drop(second);
    mark.vanishes().await;
    let exited = wait_for_end(&daemon, &id).await;
    assert_eq!(exited.outcome(), Outcome::Cancelled);
    assert_eq!(exited.signal, "SIGKILL");
}

#[tokio::test]
async fn what_is_to_be_kept_goes_on_and_can_be_come_back_to() {
    let daemon = Daemon::start().await;
    let watch = daemon
        .watch(on_disconnect(OnDisconnect::Keep, "echo one; read a; echo two; read b; echo three"))
        .await;
    let (id, position) = (watch.id.clone(), watch.position());
    drop(watch);
    let alone = async || daemon.list_processes().await[0].attached == 0;
    eventually("nobody watches", alone).await;
    daemon.write(&id, b"\n").await.unwrap();
    let mut again = daemon.try_attach(position).await.unwrap();
    again.until("two\n").await;
    assert_eq!(again.text(), "one\ntwo\n");
    // Coming back while it runs, and once more at the end.
    let mut behind = daemon.try_attach(again.position()).await.unwrap();
    daemon.write(&id, b"\n").await.unwrap();
    assert_eq!(behind.finish().await, again.finish().await);
    assert_eq!(behind.text(), "three\n");
}

#[tokio::test]
async fn a_connection_that_is_lost_is_a_reader_that_left() {
    let daemon = Daemon::start().await;
    let proxy = Proxy::to(&daemon);
    for what in [OnDisconnect::Kill, OnDisconnect::Keep] {
        let mark = Mark::new();
        let request = mark.on_process(on_disconnect(what, "echo here; read a; echo there"));
        let channel = proxy.channel();
        let mut processes =
            jig::api::v1::process_service_client::ProcessServiceClient::new(channel);
        let mut stream = processes.start(request).await.unwrap().into_inner();
        let first = stream.message().await.unwrap().unwrap();
        let Some(jig::api::v1::start_response::Event::Started(begun)) = first.event else {
            panic!("{first:?}");
        };
        let wrote = stream.message().await.unwrap().unwrap();
        assert!(format!("{wrote:?}").contains("here"), "{wrote:?}");
        proxy.cut();
        promptly("the stream breaks", async { while stream.message().await.is_ok() {} }).await;
        let mut watch = match what {
            OnDisconnect::Kill => {
                mark.vanishes().await;
                daemon.attach(&begun.process_id).await
            }
            _ => {
                let watch = daemon.attach(&begun.process_id).await;
                daemon.write(&begun.process_id, b"\n").await.unwrap();
                watch
            }
        };
        let exited = watch.finish().await;
        let (outcome, text) = match what {
            OnDisconnect::Kill => (Outcome::Cancelled, "here\n"),
            _ => (Outcome::Exited, "here\nthere\n"),
        };
        assert_eq!((exited.outcome(), watch.text().as_str()), (outcome, text));
    }
}

#[tokio::test]
async fn the_deadline_of_the_call_ends_a_process_that_ends_with_it() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let request = mark.on_process(started(shell("trap '' TERM; sleep 1000")));
    let mut request = Request::new(request);
    request.set_timeout(Duration::from_millis(700));
    let began = std::time::Instant::now();
    let mut stream = daemon.processes().start(request).await.unwrap().into_inner();
    let end = promptly("the stream ends", async {
        loop {
            if let Err(status) = stream.message().await {
                return status;
            }
        }
    })
    .await;
    // The client's own timer may be faster than the daemon's word.
    assert!(
        matches!(end.code(), tonic::Code::DeadlineExceeded | tonic::Code::Cancelled),
        "{end:?}"
    );
    mark.vanishes().await;
    assert!(began.elapsed() < PROMPT);
}

#[tokio::test]
async fn the_deadline_of_a_stream_does_not_end_a_process_that_is_kept() {
    let daemon = Daemon::start().await;
    let mut request = Request::new(on_disconnect(OnDisconnect::Keep, "read a; echo still there"));
    // As a raw header, so that only the daemon keeps it.
    request.metadata_mut().insert("grpc-timeout", "300m".parse().unwrap());
    let mut stream = daemon.processes().start(request).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap();
    let Some(jig::api::v1::start_response::Event::Started(begun)) = first.event else {
        panic!("{first:?}");
    };
    let status = promptly("the stream ends", stream.message()).await.unwrap_err();
    let refusal = Refusal::of(&status);
    assert_eq!(refusal.reason, "TIMEOUT");
    assert!(refusal.message.contains("the process continues"), "{}", refusal.message);
    let mut watch: Watch = daemon.attach(&begun.process_id).await;
    daemon.write(&begun.process_id, b"\n").await.unwrap();
    assert_eq!(watch.finish().await.exit_code, Some(0));
    assert_eq!(watch.text(), "still there\n");
}

#[tokio::test]
async fn a_launcher_that_dies_is_the_end_of_a_stream_and_no_invented_exit() {
    let daemon = Daemon::start().await;
    let mut watch = daemon.watch(started(shell("echo here; sleep 1000"))).await;
    watch.until("here\n").await;
    let launcher = descendants(daemon.pid())
        .into_iter()
        .find(|process| host_status(process.pid, "Name").is_some_and(|name| name == "jig-launcher"))
        .unwrap();
    kill_process(Pid::from_raw(launcher.pid).unwrap(), Signal::KILL).unwrap();
    let refusal = watch.cut_off().await;
    assert_eq!(refusal.reason, "SANDBOX_ERROR");
    // What it wrote until then is kept.
    let (artifact, _) = daemon.artifact(&watch.started().stdout_path).await;
    assert_eq!(artifact, b"here\n");
    // Whoever comes back is told the same.
    let mut again = daemon.attach(&watch.id).await;
    assert_eq!(again.cut_off().await.reason, "SANDBOX_ERROR");
    assert_eq!(again.text(), "here\n");
    let listed = daemon.list_processes().await;
    assert_eq!((listed[0].state, listed[0].outcome), (3, 0), "{listed:?}");
}
