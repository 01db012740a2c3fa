//! Ends of runs from outside: deadlines and shutdown. `attack::killed_processes` covers callers
//! and daemons that die.

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
    Daemon, MAX_REACTION_TIME, Mark, Refusal, Setup, descendants, eventually, is_alive, promptly,
    run_jigd, shell, wait_timeout,
};

/// The connection preface of HTTP/2 clients.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Frame types, and the flag of an acknowledgement.
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK_FLAG: u8 = 1;
/// Maximum number of open connections.
const MAX_CONNECTIONS: usize = 1024;
/// Maximum number of connections without an authorized call, for the daemon's own user.
const MAX_UNAUTHORIZED_CONNECTIONS: usize = 960;

/// Connects and sends bytes.
fn connect(daemon: &Daemon, bytes: &[u8]) -> UnixStream {
    let mut connection = UnixStream::connect(daemon.socket()).unwrap();
    connection.set_read_timeout(Some(wait_timeout())).unwrap();
    connection.write_all(bytes).unwrap();
    connection
}

/// A frame on stream 0.
fn connection_frame(kind: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).unwrap();
    [&[0, 0, length, kind, 0, 0, 0, 0, 0], content].concat()
}

/// Reads until the peer has acknowledged a frame of this type.
fn wait_for_ack(connection: &mut UnixStream, expected_kind: u8) {
    loop {
        let mut head = [0; 9];
        connection.read_exact(&mut head).unwrap();
        let [a, b, c, kind, flags, ..] = head;
        let length = u32::from_be_bytes([0, a, b, c]);
        let mut content = vec![0; usize::try_from(length).unwrap()];
        connection.read_exact(&mut content).unwrap();

        if kind == expected_kind && flags & ACK_FLAG != 0 {
            return;
        }
    }
}

/// A connection after the HTTP/2 handshake, without calls.
fn connect_with_preface(daemon: &Daemon) -> UnixStream {
    let greeting = [PREFACE, &connection_frame(SETTINGS, b"")].concat();
    let mut connection = connect(daemon, &greeting);
    wait_for_ack(&mut connection, SETTINGS);
    connection
}

/// Waits until the peer closes a connection.
fn wait_until_closed(mut connection: UnixStream) {
    let mut rest = Vec::new();
    match connection.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

/// A command that ignores SIGTERM.
fn sigterm_resistant_command() -> RunRequest {
    shell("trap '' TERM; setsid sleep 1000 & sleep 1000; sleep 1000")
}

#[tokio::test]
async fn deadline_kills_command_immediately() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();

    let mut request = Request::new(mark.on(sigterm_resistant_command()));
    request.set_timeout(Duration::from_secs(2));
    let mut tools = daemon.tools();
    let call = tokio::spawn(async move { tools.run(request).await });
    mark.wait_for_processes(3).await;

    let status = promptly("the call ends", call).await.unwrap().unwrap_err();

    // The client gives up at the same moment, and reports `CANCELLED`.
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");

    mark.wait_until_gone().await;
    eventually("the run is no longer active", async || {
        daemon.info().await.counts.unwrap().runs_active == 0
    })
    .await;

    let counts = daemon.info().await.counts.unwrap();
    assert_eq!(counts.sandboxes_quarantined, 0);
}

#[tokio::test]
async fn daemon_enforces_deadline_the_client_ignores() {
    let daemon = Setup::new().listen_tcp().start().await;
    let mark = Mark::new();

    // curl does not enforce deadlines, so the answer is that of the daemon.
    let request = prost::Message::encode_to_vec(&mark.on(sigterm_resistant_command()));
    let mut frame = vec![0];
    frame.extend_from_slice(&u32::try_from(request.len()).unwrap().to_be_bytes());
    frame.extend_from_slice(&request);
    let body = daemon.sibling_path("request");
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
    let output = promptly("the daemon answers", output).await.unwrap();
    mark.wait_until_gone().await;

    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("grpc-status: 4"), "{text}\n{}", String::from_utf8_lossy(&output.stderr));

    let details = text
        .lines()
        .find_map(|line| line.strip_prefix("grpc-status-details-bin: "))
        .expect("the answer has no ErrorInfo");
    let mut headers = http::HeaderMap::new();
    headers.insert("grpc-status", "4".parse().unwrap());
    headers.insert("grpc-message", "deadline".parse().unwrap());
    headers.insert("grpc-status-details-bin", details.trim().parse().unwrap());
    let status = tonic::Status::from_header_map(&headers).unwrap();
    assert_eq!(Refusal::from_status(&status).reason, "TIMEOUT");
}

#[tokio::test]
async fn expired_deadline_starts_nothing() {
    let daemon = Daemon::start().await;
    let mut request = Request::new(shell("touch ran"));
    request.metadata_mut().insert("grpc-timeout", "0n".parse().unwrap());
    daemon.tools().run(request).await.unwrap_err();
    assert_eq!(daemon.output(shell("ls")).await, "");
}

#[tokio::test]
async fn sigterm_waits_for_command_before_daemon_exits() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = Setup::new().arguments(&["--drain-timeout", "60s"]).start().await;

        let mut health = daemon.watch_health().await;
        let first = health.message().await.unwrap().unwrap();
        assert_eq!(first.status(), ServingStatus::Serving);

        let mark = Mark::new();

        // The command ends once the file exists.
        let call = daemon
            .spawn_run(mark.on(shell("until [ -e end ]; do sleep 0.05; done; echo done; exit 4")));
        mark.wait_for_processes(1).await;

        let processes = descendants(daemon.pid());
        daemon.signal(signal);
        let next = promptly("the health changes", health.message()).await.unwrap().unwrap();
        assert_eq!(next.status(), ServingStatus::NotServing);

        // A connection opened at this moment may be reset instead.
        eventually("the daemon rejects new calls", async || {
            let mut tools = daemon.tools_on_new_connection();
            tools.run(shell("true")).await.is_err_and(|status| status.code() == Code::Unavailable)
        })
        .await;
        let mut tools = daemon.tools_on_new_connection();

        // The connection may be reset while the listener closes, so the status is not checked.
        tools.run(shell("touch ran")).await.unwrap_err();
        assert!(!mark.processes().is_empty(), "the command still runs");

        fs::write(daemon.file("end"), "").unwrap();
        let response = promptly("the command ends", call).await.unwrap().unwrap();
        assert_eq!((response.exit_code, response.stdout.as_str()), (Some(4), "done\n"));

        drop(health);
        assert!(daemon.wait_for_exit().await.success());
        mark.assert_gone();

        eventually("all processes of the daemon have exited", async || {
            !processes.iter().any(is_alive)
        })
        .await;
        assert!(!daemon.file("ran").exists());
        assert!(!daemon.socket().exists(), "the socket is removed");
    }
}

#[tokio::test]
async fn command_that_outlasts_drain_is_cancelled() {
    let mut daemon = Setup::new().arguments(&["--drain-timeout", "1s"]).start().await;
    let mark = Mark::new();

    let call = daemon.spawn_run(
        mark.on(shell("echo begun; trap '' TERM; setsid sleep 1000 & sleep 1000; sleep 1000")),
    );
    mark.wait_for_processes(3).await;

    let processes = descendants(daemon.pid());
    daemon.signal(Signal::TERM);
    let response = promptly("the daemon answers the call", call).await.unwrap().unwrap();
    mark.assert_gone();
    assert_eq!(response.outcome(), Outcome::Cancelled);
    assert_eq!(response.exit_code, None);
    assert_eq!(response.stdout, "begun\n");
    assert!(daemon.wait_for_exit().await.success());

    eventually("all processes of the daemon have exited", async || !processes.iter().any(is_alive))
        .await;
}

#[tokio::test]
async fn second_signal_ends_daemon_immediately() {
    let mut daemon = Setup::new().arguments(&["--drain-timeout", "3600s"]).start().await;
    let mark = Mark::new();

    let _call = daemon.spawn_run(mark.on(sigterm_resistant_command()));
    mark.wait_for_processes(3).await;

    let mut health = daemon.watch_health().await;
    assert_eq!(health.message().await.unwrap().unwrap().status(), ServingStatus::Serving);

    let processes = descendants(daemon.pid());
    daemon.signal(Signal::TERM);
    let next = promptly("the health changes", health.message()).await.unwrap().unwrap();
    assert_eq!(next.status(), ServingStatus::NotServing);

    daemon.signal(Signal::TERM);
    daemon.wait_for_exit().await;

    mark.wait_until_gone().await;
    eventually("all processes of the daemon have exited", async || !processes.iter().any(is_alive))
        .await;
}

#[tokio::test]
async fn idle_daemon_exits_with_all_its_processes() {
    let mut daemon = Setup::new().arguments(&["--drain-timeout", "3600s"]).start().await;
    daemon.output(shell("true")).await;
    let processes = descendants(daemon.pid());
    assert!(!processes.is_empty());
    daemon.signal(Signal::TERM);
    assert!(daemon.wait_for_exit().await.success());
    eventually("all processes of the daemon have exited", async || !processes.iter().any(is_alive))
        .await;
}

/// Runs a blocking function.
async fn run_blocking<T: Send + 'static>(function: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(function).await.unwrap()
}

#[tokio::test]
async fn connection_without_http2_preface_is_closed() {
    let daemon = Daemon::start().await;

    let mut complete = connect_with_preface(&daemon);
    let silent = connect(&daemon, b"");
    let incomplete = connect(&daemon, &PREFACE[..12]);

    let all_but_one = connect(&daemon, &PREFACE[..23]);
    run_blocking(move || {
        for connection in [silent, incomplete, all_but_one] {
            wait_until_closed(connection);
        }
        // The complete connection is older and idle, and stays open.
        complete.write_all(&connection_frame(PING, b"are you?")).unwrap();
        wait_for_ack(&mut complete, PING);
    })
    .await;
}

#[tokio::test]
async fn shutdown_does_not_wait_for_half_open_connection() {
    let mut daemon = Setup::new().arguments(&["--drain-timeout", "60s"]).start().await;
    let mark = Mark::new();

    let call = daemon.spawn_run(mark.on(shell("until [ -e end ]; do sleep 0.05; done")));
    mark.wait_for_processes(1).await;

    let incomplete = connect(&daemon, &PREFACE[..12]);
    let began = Instant::now();

    daemon.signal(Signal::TERM);
    run_blocking(move || wait_until_closed(incomplete)).await;
    assert!(began.elapsed() < MAX_REACTION_TIME, "{:?}", began.elapsed());
    assert!(!mark.processes().is_empty(), "the command still runs");

    fs::write(daemon.file("end"), "").unwrap();
    promptly("the command ends", call).await.unwrap().unwrap();
    assert!(daemon.wait_for_exit().await.success());
}

#[tokio::test]
async fn daemon_at_connection_limit_stops_listening_on_shutdown() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|soft| soft < 4096) {
        let current = Some(4096);
        setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
    }

    let setup = Setup::new().arguments(&["--drain-timeout", "60s"]).exclusive();
    let mut daemon = setup.start().await;
    let mark = Mark::new();
    let call = daemon.spawn_run(mark.on(shell("until [ -e end ]; do sleep 0.05; done")));
    mark.wait_for_processes(1).await;

    // The call uses one connection. The others up to the limit need an authorized call.
    let mut authorized = Vec::new();
    for _ in MAX_UNAUTHORIZED_CONNECTIONS + 1..MAX_CONNECTIONS {
        let mut client = DaemonServiceClient::new(daemon.new_connection());
        let info = client.get_info(GetInfoRequest {});
        promptly("the connection is accepted", info).await.unwrap();
        authorized.push(client);
    }

    let unauthorized: Vec<_> =
        (0..MAX_UNAUTHORIZED_CONNECTIONS).map(|_| connect_with_preface(&daemon)).collect();
    let waiting = connect(&daemon, PREFACE);

    daemon.signal(Signal::TERM);
    eventually("the socket is removed", async || !daemon.socket().exists()).await;
    assert!(!mark.processes().is_empty(), "the command still runs");

    run_blocking(move || wait_until_closed(waiting)).await;
    fs::write(daemon.file("end"), "").unwrap();
    promptly("the command ends", call).await.unwrap().unwrap();

    drop((unauthorized, authorized));
    assert!(daemon.wait_for_exit().await.success());
}

#[tokio::test]
async fn one_daemon_at_a_time_holds_a_state_directory_and_a_socket() {
    let daemon = Daemon::start().await;

    let (state, workspace, socket) = (daemon.state_dir(), daemon.workspace(), daemon.socket());
    let (state, workspace) = (state.to_str().unwrap(), workspace.to_str().unwrap());
    let other_socket = format!("unix:{}", daemon.sibling_path("other.sock").display());
    let refused =
        run_jigd(&["--listen", &other_socket, "--workspace", workspace, "--state-dir", state]);
    assert!(!refused.status.success());

    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        stderr.contains(&daemon.pid().to_string()),
        "the error names the pid of the running daemon: {stderr}"
    );

    let other_state = daemon.sibling_path("other-state");
    let socket = format!("unix:{}", socket.display());
    let refused = run_jigd(&[
        "--listen",
        &socket,
        "--workspace",
        workspace,
        "--state-dir",
        other_state.to_str().unwrap(),
    ]);
    assert!(!refused.status.success());
    assert!(refused.stdout.is_empty(), "the second daemon never listens");
    assert_eq!(daemon.output(shell("echo unharmed")).await, "unharmed\n");
}

#[tokio::test]
async fn artifacts_and_files_of_a_run_survive_restart() {
    let daemon = Daemon::start().await;
    let response = daemon.run(shell("echo kept; echo file > file")).await;
    let daemon = daemon.restart().await;
    assert_eq!(daemon.artifact(&response.stdout_path).await.0, b"kept\n");
    assert_eq!(daemon.read_file("file").await.unwrap(), "file\n");
    let next = daemon.run(shell("echo next")).await;
    assert_ne!(next.stdout_path, response.stdout_path, "step numbers continue");
    assert_eq!(daemon.artifact(&response.stdout_path).await.0, b"kept\n");
}
