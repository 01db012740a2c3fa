//! What ends a run from outside: deadlines, shutting down. Callers and daemons that die are attacks
//! 12 to 14.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use jig::api::v1::{
    GetInfoRequest, Outcome, RunRequest, daemon_service_client::DaemonServiceClient,
};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use tonic::{Code, Request};
use tonic_health::pb::health_check_response::ServingStatus;

use crate::support::{
    Daemon, Mark, PROMPT, Refusal, Setup, descendants, eventually, is_alive, jigd, patience,
    promptly, shell,
};

/// What a client of HTTP/2 begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Types of frames, and the flag of an answer to one.
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACKNOWLEDGED: u8 = 1;
/// Connections that a daemon takes at one time.
const PLACES: usize = 1024;
/// Those of them on which no call needs to be let in, for the daemon's own user.
const STRANGERS: usize = 960;

/// Connects, and sends bytes.
fn connection(daemon: &Daemon, bytes: &[u8]) -> UnixStream {
    let mut connection = UnixStream::connect(daemon.socket()).unwrap();
    connection.set_read_timeout(Some(patience())).unwrap();
    connection.write_all(bytes).unwrap();
    connection
}

/// A frame of a connection's own stream.
fn frame(kind: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).unwrap();
    [&[0, 0, length, kind, 0, 0, 0, 0, 0], content].concat()
}

/// Reads until the peer has acknowledged a frame of this type.
fn acknowledged(connection: &mut UnixStream, wanted: u8) {
    loop {
        let mut head = [0; 9];
        connection.read_exact(&mut head).unwrap();
        let [a, b, c, kind, flags, ..] = head;
        let length = u32::from_be_bytes([0, a, b, c]);
        let mut content = vec![0; usize::try_from(length).unwrap()];
        connection.read_exact(&mut content).unwrap();
        if kind == wanted && flags & ACKNOWLEDGED != 0 {
            return;
        }
    }
}

/// A connection that is served, and on which nothing is called.
fn served(daemon: &Daemon) -> UnixStream {
    let greeting = [PREFACE, &frame(SETTINGS, b"")].concat();
    let mut connection = connection(daemon, &greeting);
    acknowledged(&mut connection, SETTINGS);
    connection
}

/// Waits until the peer closes a connection.
fn closed(mut connection: UnixStream) {
    let mut rest = Vec::new();
    match connection.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

/// A command that does not end by being asked.
fn deaf() -> RunRequest {
    shell("trap '' TERM; setsid sleep 1000 & sleep 1000; sleep 1000")
}

#[tokio::test]
async fn a_deadline_kills_at_once() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let mut request = Request::new(mark.on(deaf()));
    request.set_timeout(Duration::from_secs(2));
    let mut tools = daemon.tools();
    let call = tokio::spawn(async move { tools.run(request).await });
    mark.appears(3).await;
    let status = promptly("the call ends", call).await.unwrap().unwrap_err();
    // The client gives up by itself at the same moment, and tells that as `CANCELLED`.
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
    mark.vanishes().await;
    eventually("its end is known", async || daemon.info().await.counts.unwrap().runs_active == 0)
        .await;
    let counts = daemon.info().await.counts.unwrap();
    assert_eq!(counts.sandboxes_quarantined, 0);
}

#[tokio::test]
async fn a_deadline_that_the_client_does_not_keep_is_answered_by_the_daemon() {
    let daemon = Setup::new().tcp().start().await;
    let mark = Mark::new();
    // curl knows nothing of deadlines, so what it gets is the daemon's own word.
    let request = prost::Message::encode_to_vec(&mark.on(deaf()));
    let mut frame = vec![0];
    frame.extend_from_slice(&u32::try_from(request.len()).unwrap().to_be_bytes());
    frame.extend_from_slice(&request);
    let body = daemon.beside("request");
    fs::write(&body, frame).unwrap();
    let url = format!("http://127.0.0.1:{}/jig.v1.ToolService/Run", daemon.port());
    let mut curl = std::process::Command::new("curl");
    curl.args([
        "--http2-prior-knowledge",
        "--silent",
        "--show-error",
        "--include",
        "--max-time",
        "60",
    ])
    .args(["-H", "content-type: application/grpc", "-H", "te: trailers", "-H", "grpc-timeout: 1S"])
    .arg("--data-binary")
    .arg(format!("@{}", body.display()))
    .args(["--output", "-", &url]);
    let output = tokio::task::spawn_blocking(move || curl.output().unwrap());
    let output = promptly("the answer", output).await.unwrap();
    mark.vanishes().await;
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("grpc-status: 4"), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let details = text
        .lines()
        .find_map(|line| line.strip_prefix("grpc-status-details-bin: "))
        .expect("an ErrorInfo comes along");
    let mut headers = http::HeaderMap::new();
    headers.insert("grpc-status", "4".parse().unwrap());
    headers.insert("grpc-message", "deadline".parse().unwrap());
    headers.insert("grpc-status-details-bin", details.trim().parse().unwrap());
    let status = tonic::Status::from_header_map(&headers).unwrap();
    assert_eq!(Refusal::of(&status).reason, "TIMEOUT");
}

#[tokio::test]
async fn a_deadline_that_has_passed_already_starts_nothing() {
    let daemon = Daemon::start().await;
    let mut request = Request::new(shell("touch ran"));
    request.metadata_mut().insert("grpc-timeout", "0n".parse().unwrap());
    daemon.tools().run(request).await.unwrap_err();
    assert_eq!(daemon.output(shell("ls")).await, "");
}

#[tokio::test]
async fn sigterm_lets_a_command_end_and_then_the_daemon_does() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = Setup::new().arguments(&["--drain-timeout", "60s"]).start().await;
        let mut health = daemon.watch_health().await;
        let first = health.message().await.unwrap().unwrap();
        assert_eq!(first.status(), ServingStatus::Serving);
        let mark = Mark::new();
        // It ends when it finds the file.
        let call = daemon
            .begin(mark.on(shell("until [ -e end ]; do sleep 0.05; done; echo done; exit 4")));
        mark.appears(1).await;
        let everything = descendants(daemon.pid());
        daemon.signal(signal);
        let next = promptly("health changes", health.message()).await.unwrap().unwrap();
        assert_eq!(next.status(), ServingStatus::NotServing);
        // A connection made at the very moment may get a less clear answer.
        eventually("new calls are refused", async || {
            let mut tools = daemon.tools_on_a_new_connection();
            tools.run(shell("true")).await.is_err_and(|status| status.code() == Code::Unavailable)
        })
        .await;
        let mut tools = daemon.tools_on_a_new_connection();
        // Its connection may be reset while the listener is being closed: then the answer is less clear.
        tools.run(shell("touch ran")).await.unwrap_err();
        assert!(!mark.processes().is_empty(), "the command goes on");
        fs::write(daemon.file("end"), "").unwrap();
        let response = promptly("the command ends", call).await.unwrap().unwrap();
        assert_eq!((response.exit_code, response.stdout.as_str()), (Some(4), "done\n"));
        drop(health);
        assert!(daemon.exit().await.success());
        mark.assert_gone();
        eventually("all its processes are gone", async || !everything.iter().any(is_alive)).await;
        assert!(!daemon.file("ran").exists());
        assert!(!daemon.socket().exists(), "its socket is removed");
    }
}

#[tokio::test]
async fn a_command_that_outlasts_the_drain_is_killed_and_its_caller_told() {
    let mut daemon = Setup::new().arguments(&["--drain-timeout", "1s"]).start().await;
    let mark = Mark::new();
    let call = daemon.begin(
        mark.on(shell("echo begun; trap '' TERM; setsid sleep 1000 & sleep 1000; sleep 1000")),
    );
    mark.appears(3).await;
    let everything = descendants(daemon.pid());
    daemon.signal(Signal::TERM);
    let response = promptly("the call is answered", call).await.unwrap().unwrap();
    mark.assert_gone();
    assert_eq!(response.outcome(), Outcome::Cancelled);
    assert_eq!(response.exit_code, None);
    assert_eq!(response.stdout, "begun\n");
    assert!(daemon.exit().await.success());
    eventually("all its processes are gone", async || !everything.iter().any(is_alive)).await;
}

#[tokio::test]
async fn a_second_signal_ends_the_daemon_at_once() {
    let mut daemon = Setup::new().arguments(&["--drain-timeout", "3600s"]).start().await;
    let mark = Mark::new();
    let _call = daemon.begin(mark.on(deaf()));
    mark.appears(3).await;
    let mut health = daemon.watch_health().await;
    assert_eq!(health.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let everything = descendants(daemon.pid());
    daemon.signal(Signal::TERM);
    let next = promptly("health changes", health.message()).await.unwrap().unwrap();
    assert_eq!(next.status(), ServingStatus::NotServing);
    daemon.signal(Signal::TERM);
    daemon.exit().await;
    mark.vanishes().await;
    eventually("all its processes are gone", async || !everything.iter().any(is_alive)).await;
}

#[tokio::test]
async fn an_idle_daemon_ends_at_once_and_with_all_its_processes() {
    let mut daemon = Setup::new().arguments(&["--drain-timeout", "3600s"]).start().await;
    daemon.output(shell("true")).await;
    let everything = descendants(daemon.pid());
    assert!(!everything.is_empty());
    daemon.signal(Signal::TERM);
    assert!(daemon.exit().await.success());
    eventually("all its processes are gone", async || !everything.iter().any(is_alive)).await;
}

/// Runs what blocks.
async fn blocking<T: Send + 'static>(function: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(function).await.unwrap()
}

#[tokio::test]
async fn a_connection_that_does_not_say_what_http_2_begins_with_loses_its_place() {
    let daemon = Daemon::start().await;
    let mut good = served(&daemon);
    let silent = connection(&daemon, b"");
    let half = connection(&daemon, &PREFACE[..12]);
    let all_but_one = connection(&daemon, &PREFACE[..23]);
    blocking(move || {
        for connection in [silent, half, all_but_one] {
            closed(connection);
        }
        // It is older than those, and says nothing either.
        good.write_all(&frame(PING, b"are you?")).unwrap();
        acknowledged(&mut good, PING);
    })
    .await;
}

#[tokio::test]
async fn shutting_down_waits_for_no_half_begun_connection() {
    let mut daemon = Setup::new().arguments(&["--drain-timeout", "60s"]).start().await;
    let mark = Mark::new();
    let call = daemon.begin(mark.on(shell("until [ -e end ]; do sleep 0.05; done")));
    mark.appears(1).await;
    let half = connection(&daemon, &PREFACE[..12]);
    let began = Instant::now();
    daemon.signal(Signal::TERM);
    blocking(move || closed(half)).await;
    assert!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
    assert!(!mark.processes().is_empty(), "the command goes on");
    fs::write(daemon.file("end"), "").unwrap();
    promptly("the command ends", call).await.unwrap().unwrap();
    assert!(daemon.exit().await.success());
}

#[tokio::test]
async fn a_daemon_whose_places_are_all_taken_stops_listening_when_it_is_to_end() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|soft| soft < 4096) {
        let current = Some(4096);
        setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
    }
    let setup = Setup::new().arguments(&["--drain-timeout", "60s"]).alone();
    let mut daemon = setup.start().await;
    let mark = Mark::new();
    let call = daemon.begin(mark.on(shell("until [ -e end ]; do sleep 0.05; done")));
    mark.appears(1).await;
    // The call has one. Some are left for connections on which a call is let in.
    let mut known = Vec::new();
    for _ in STRANGERS + 1..PLACES {
        let mut client = DaemonServiceClient::new(daemon.new_connection());
        let info = client.get_info(GetInfoRequest {});
        promptly("there is a place", info).await.unwrap();
        known.push(client);
    }
    let strangers: Vec<_> = (0..STRANGERS).map(|_| served(&daemon)).collect();
    let waiting = connection(&daemon, PREFACE);
    daemon.signal(Signal::TERM);
    eventually("its socket is removed", async || !daemon.socket().exists()).await;
    assert!(!mark.processes().is_empty(), "the command goes on");
    blocking(move || closed(waiting)).await;
    fs::write(daemon.file("end"), "").unwrap();
    promptly("the command ends", call).await.unwrap().unwrap();
    drop((strangers, known));
    assert!(daemon.exit().await.success());
}

#[tokio::test]
async fn one_daemon_at_a_time_holds_a_state_directory_and_a_socket() {
    let daemon = Daemon::start().await;
    let (state, workspace, socket) = (daemon.state(), daemon.workspace(), daemon.socket());
    let (state, workspace) = (state.to_str().unwrap(), workspace.to_str().unwrap());
    let other_socket = format!("unix:{}", daemon.beside("other.sock").display());
    let refused =
        jigd(&["--listen", &other_socket, "--workspace", workspace, "--state-dir", state]);
    assert!(!refused.status.success());
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(why.contains(&daemon.pid().to_string()), "it names the other's pid: {why}");
    let other_state = daemon.beside("other-state");
    let socket = format!("unix:{}", socket.display());
    let refused = jigd(&[
        "--listen",
        &socket,
        "--workspace",
        workspace,
        "--state-dir",
        other_state.to_str().unwrap(),
    ]);
    assert!(!refused.status.success());
    assert!(refused.stdout.is_empty(), "it never said that it listens");
    assert_eq!(daemon.output(shell("echo unharmed")).await, "unharmed\n");
}

#[tokio::test]
async fn what_a_run_has_left_behind_is_there_after_a_restart() {
    let daemon = Daemon::start().await;
    let response = daemon.run(shell("echo kept; echo file > file")).await;
    let daemon = daemon.restart().await;
    assert_eq!(daemon.artifact(&response.stdout_path).await.0, b"kept\n");
    assert_eq!(daemon.read_file("file").await.unwrap(), "file\n");
    let next = daemon.run(shell("echo next")).await;
    assert_ne!(next.stdout_path, response.stdout_path, "steps go on");
    assert_eq!(daemon.artifact(&response.stdout_path).await.0, b"kept\n");
}
