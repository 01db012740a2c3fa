//! `process.v1.ProcessService`.

use std::time::Duration;

use jig::api::process_v1::{
    ExecuteRequest, ProcessConfig, Pty, ResizeTtyRequest, SendSignalRequest, Signal, StartRequest,
    WriteStdinRequest, write_stdin_request::Payload,
};
use tonic::{Code, Request};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use super::{
    Started, execute, execute_shell, grpc_channel, processes, shell_config, start_runtime,
    start_shell, with_timeout,
};
use crate::support::{Mark, Refusal, promptly, shell};

fn input(process_id: i32, data: &[u8]) -> WriteStdinRequest {
    let payload = Some(Payload::Input(data.to_vec().into()));
    WriteStdinRequest { process_id, payload }
}

fn eof(process_id: i32) -> WriteStdinRequest {
    WriteStdinRequest { process_id, payload: Some(Payload::Eof(())) }
}

fn signal(process_id: i32, signal: Signal) -> SendSignalRequest {
    SendSignalRequest { process_id, signal: signal.into() }
}

/// A command with the mark, which a test finds on the host.
fn marked(mark: &Mark, script: &str) -> ProcessConfig {
    let env_vars = mark.on(shell("")).env;
    ProcessConfig { env_vars, ..shell_config(script) }
}

#[tokio::test]
async fn execute_returns_output_and_exit_code() {
    let daemon = start_runtime().await;
    std::fs::create_dir(daemon.file("below")).unwrap();
    let config = ProcessConfig {
        env_vars: [("GREETING".to_owned(), "hello".to_owned())].into(),
        cwd: Some("below".to_owned()),
        ..shell_config("printf \"$GREETING \\377\"; pwd >&2; cat; exit 3")
    };
    let request = ExecuteRequest { config: Some(config) };
    let response = promptly("a command without input", execute(&daemon, request)).await.unwrap();
    assert_eq!(&*response.stdout, b"hello \xff");
    assert_eq!(&*response.stderr, b"/workspace/below\n");
    assert_eq!(response.exit_code, 3);

    // As shells report signals.
    let response = execute(&daemon, execute_shell("kill -TERM $$")).await.unwrap();
    assert_eq!(response.exit_code, 143);
    // An empty directory is no directory.
    let config = ProcessConfig { cwd: Some(String::new()), ..shell_config("pwd") };
    let response = execute(&daemon, ExecuteRequest { config: Some(config) }).await.unwrap();
    assert_eq!(&*response.stdout, b"/workspace\n");
}

#[tokio::test]
async fn start_streams_output_and_takes_input() {
    let daemon = start_runtime().await;
    let mut client = processes(&daemon);
    let started = Started::new(&mut client, start_shell("echo out; echo err >&2; exit 7")).await;
    assert!(started.process_id > 0);
    assert_eq!(started.finish().await, ("out\n".to_owned(), "err\n".to_owned(), 7));

    let mut started = Started::new(&mut client, start_shell("echo ready; wc -c")).await;
    let id = started.process_id;
    started.wait_for("ready").await;
    for data in [&b"abc"[..], b"", &vec![b'x'; 3 << 20]] {
        client.write_stdin(input(id, data)).await.unwrap();
    }
    let status = client.write_stdin(input(id, &vec![b'x'; 5 << 20])).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    client.write_stdin(eof(id)).await.unwrap();
    assert_eq!(started.finish().await.0.trim(), (3 + (3 << 20)).to_string());
}

#[tokio::test]
async fn terminal_has_the_size_of_the_request() {
    let daemon = start_runtime().await;
    let mut client = processes(&daemon);
    for (pty, expected) in [((132, 43), "43 132\r\n"), ((0, 0), "24 80\r\n")] {
        let pty = Some(Pty { cols: pty.0, rows: pty.1 });
        let request = StartRequest { pty, ..start_shell("stty size; tty >/dev/null") };
        let started = Started::new(&mut client, request).await;
        assert_eq!(started.finish().await, (expected.to_owned(), String::new(), 0));
    }

    let pty = Some(Pty { cols: 80, rows: 24 });
    let script = "trap 'stty size; exit 5' WINCH; echo ready; while read line; do :; done";
    let mut started = Started::new(&mut client, StartRequest { pty, ..start_shell(script) }).await;
    started.wait_for("ready").await;
    let resize = ResizeTtyRequest { process_id: started.process_id, cols: 100, rows: 50 };
    client.resize_tty(resize).await.unwrap();
    // Some shells handle the signal after their read. Others have ended by now.
    let _ended = client.write_stdin(input(started.process_id, b"\n")).await;
    let (stdout, _, exit_code) = started.finish().await;
    assert!(stdout.contains("50 100"), "{stdout:?}");
    assert_eq!(exit_code, 5);

    let mut started = Started::new(&mut client, start_shell("echo ready; cat")).await;
    started.wait_for("ready").await;
    let resize = ResizeTtyRequest { process_id: started.process_id, cols: 100, rows: 50 };
    let status = client.resize_tty(resize).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
}

#[tokio::test]
async fn signals_reach_the_process() {
    let daemon = start_runtime().await;
    let mut client = processes(&daemon);
    let script = "trap 'exit 42' INT; echo ready; sleep 300 & wait";
    for (sent, expected) in [(Signal::Sigint, 42), (Signal::Sigterm, 143), (Signal::Sigkill, 137)] {
        let mut started = Started::new(&mut client, start_shell(script)).await;
        started.wait_for("ready").await;
        client.send_signal(signal(started.process_id, sent)).await.unwrap();
        assert_eq!(started.finish().await.2, expected, "{sent:?}");
    }

    let mut started = Started::new(&mut client, start_shell(script)).await;
    started.wait_for("ready").await;
    let none = signal(started.process_id, Signal::Unspecified);
    let refusal = Refusal::from_status(&client.send_signal(none).await.unwrap_err());
    assert_eq!(refusal.invalid_fields(), ["signal"]);
    let nothing = WriteStdinRequest { process_id: started.process_id, payload: None };
    let refusal = Refusal::from_status(&client.write_stdin(nothing).await.unwrap_err());
    assert_eq!(refusal.invalid_fields(), ["payload"]);
}

#[tokio::test]
async fn unknown_and_ended_processes_are_not_found() {
    let daemon = start_runtime().await;
    let mut client = processes(&daemon);
    let started = Started::new(&mut client, start_shell("exit 0")).await;
    let ended = started.process_id;
    started.finish().await;

    for id in [ended, 0, -1, 1] {
        let resize = ResizeTtyRequest { process_id: id, cols: 1, rows: 1 };
        for status in [
            client.write_stdin(input(id, b"x")).await.unwrap_err(),
            client.write_stdin(eof(id)).await.unwrap_err(),
            client.send_signal(signal(id, Signal::Sigkill)).await.unwrap_err(),
            client.resize_tty(resize).await.unwrap_err(),
        ] {
            assert_eq!(status.code(), Code::NotFound, "{id}: {status}");
            assert_eq!(Refusal::from_status(&status).reason, "PROCESS_NOT_FOUND");
        }
    }
}

#[tokio::test]
async fn caller_that_leaves_ends_all_processes_of_its_command() {
    let daemon = start_runtime().await;
    let mut client = processes(&daemon);
    let script = "setsid sleep 300 & sleep 300 & wait";

    let mark = Mark::new();
    let request = StartRequest { config: Some(marked(&mark, script)), pty: None };
    let started = Started::new(&mut client, request).await;
    mark.wait_for_processes(3).await;
    drop(started);
    mark.wait_until_gone().await;

    let mark = Mark::new();
    let request = ExecuteRequest { config: Some(marked(&mark, script)) };
    let call = tokio::spawn({
        let mut client = client.clone();
        async move { client.execute(request).await }
    });
    mark.wait_for_processes(3).await;
    call.abort();
    mark.wait_until_gone().await;
}

#[tokio::test]
async fn deadline_ends_the_command() {
    let daemon = start_runtime().await;
    let mut client = processes(&daemon);
    let timeout = Duration::from_secs(1);

    let mark = Mark::new();
    let request = ExecuteRequest { config: Some(marked(&mark, "sleep 300")) };
    // The client of this test reports its own timeout as `Cancelled`.
    client.execute(with_timeout(request, timeout)).await.unwrap_err();
    mark.wait_until_gone().await;

    // The daemon ends the call too, for clients that do not watch their deadlines.
    let mark = Mark::new();
    let mut request =
        Request::new(StartRequest { config: Some(marked(&mark, "sleep 300")), pty: None });
    request.metadata_mut().insert("grpc-timeout", "1S".parse().unwrap());
    let mut started = Started::new(&mut client, request).await;
    let status = promptly("the deadline", started.events.message()).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    mark.wait_until_gone().await;
}

#[tokio::test]
async fn rejected_commands_have_the_codes_of_the_contract() {
    let daemon = start_runtime().await;
    let program =
        |name: &str| ProcessConfig { command: vec![name.to_owned()], ..ProcessConfig::default() };
    let with_cwd = |cwd: &str| ProcessConfig { cwd: Some(cwd.to_owned()), ..program("pwd") };
    for (config, code, reason) in [
        (None, Code::InvalidArgument, "INVALID_PARAMS"),
        (Some(ProcessConfig::default()), Code::InvalidArgument, "INVALID_PARAMS"),
        (Some(program("no-such-program")), Code::NotFound, "COMMAND_NOT_FOUND"),
        (Some(with_cwd("../..")), Code::PermissionDenied, "PATH_ESCAPE"),
        (Some(with_cwd("/etc")), Code::PermissionDenied, "PATH_ESCAPE"),
        (Some(with_cwd("nowhere")), Code::NotFound, "DIRECTORY_NOT_FOUND"),
    ] {
        let request = ExecuteRequest { config: config.clone() };
        let executed = execute(&daemon, request).await.unwrap_err();
        let request = StartRequest { config: config.clone(), pty: None };
        let started = processes(&daemon).start(request).await;
        let started = match started {
            Ok(stream) => stream.into_inner().message().await.unwrap_err(),
            Err(status) => status,
        };
        for status in [executed, started] {
            assert_eq!(status.code(), code, "{config:?}: {status}");
            assert_eq!(Refusal::from_status(&status).reason, reason, "{config:?}");
        }
    }
}

#[tokio::test]
async fn execute_ends_a_command_with_too_much_output() {
    let daemon = start_runtime().await;
    let most = execute_shell("head -c 10485760 /dev/zero");
    assert_eq!(execute(&daemon, most).await.unwrap().stdout.len(), 10 << 20);

    let mark = Mark::new();
    let config = marked(&mark, "head -c 8000000 /dev/zero; yes >&2");
    let status = execute(&daemon, ExecuteRequest { config: Some(config) }).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(status.message().contains("Use Start"), "{status}");
    mark.wait_until_gone().await;
}

#[tokio::test]
async fn listener_serves_this_api_health_and_reflection_only() {
    let daemon = start_runtime().await;
    let channel = grpc_channel(&daemon);
    let request = HealthCheckRequest { service: String::new() };
    HealthClient::new(channel.clone()).check(request).await.unwrap();

    let status = crate::support::tool_client(channel).run(shell("true")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented, "{status}");

    // HTTP/1.1 and other content types are no gRPC.
    let url = format!(
        "http://{}/process.v1.ProcessService/Execute",
        daemon.agent_sandbox_address("gRPC")
    );
    for arguments in [
        &["--http2-prior-knowledge", "-H", "content-type: text/plain"][..],
        &["-H", "content-type: application/grpc"],
    ] {
        let output = std::process::Command::new("curl")
            .args(["--silent", "--write-out", "%{http_code}", "--request", "POST"])
            .args(arguments)
            .arg(&url)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.ends_with("415"), "{text}");
    }
}

#[tokio::test]
async fn reflection_describes_the_details_of_errors() {
    let daemon = start_runtime().await;
    let mut client = ServerReflectionClient::new(grpc_channel(&daemon));
    for (symbol, is_known) in [("google.rpc.ErrorInfo", true), ("google.rpc.None", false)] {
        let request = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::FileContainingSymbol(symbol.to_owned())),
        };
        let responses = client.server_reflection_info(tokio_stream::iter([request])).await;
        let described = match responses {
            Ok(responses) => responses.into_inner().message().await,
            Err(status) => Err(status),
        };
        let is_described = described.is_ok_and(|response| {
            let response = response.and_then(|response| response.message_response);
            matches!(response, Some(MessageResponse::FileDescriptorResponse(_)))
        });
        assert_eq!(is_described, is_known, "{symbol}");
    }
}
