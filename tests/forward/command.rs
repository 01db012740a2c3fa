//! `jig forward`.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{client, start_server, wait_for_port};
use crate::{
    processes::command_line::{jig_command, run_jig},
    support::{Daemon, argv, promptly, shell, start_request},
};

/// `jig forward`, and the local addresses that it printed.
struct Forwarding {
    child: Child,
    addresses: Vec<String>,
}

impl Forwarding {
    fn start(daemon: &Daemon, arguments: &[&str]) -> Self {
        let arguments = [&["--json", "forward"], arguments].concat();
        let mut child = jig_command(&daemon.socket(), &arguments).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let printed: Value = serde_json::from_str(&line).unwrap();
        let ports = printed["ports"].as_array().unwrap().iter();
        let addresses = ports.map(|port| port["address"].as_str().unwrap().to_owned());
        Self { addresses: addresses.collect(), child }
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

#[tokio::test]
async fn http_server_answers_curl() {
    let daemon = Daemon::start().await;
    std::fs::write(daemon.file("page"), "x".repeat(1 << 20)).unwrap();
    let serve = argv(&["python3", "-m", "http.server", "3000"]);
    let server = daemon.start_process(start_request(serve)).await;
    wait_for_port(&client(&daemon).await, &server.id, 3000).await;

    let forwarding = Forwarding::start(&daemon, &[&server.id, "3000", "3001"]);
    assert_eq!(forwarding.addresses.len(), 2);
    let url = format!("http://{}/page", forwarding.addresses[0]);
    let curls: Vec<_> = (0..8)
        .map(|_| {
            let mut curl = std::process::Command::new("curl");
            curl.args(["--silent", "--show-error", "--fail", "--max-time", "60", &url]);
            curl.stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for curl in curls {
        let output = curl.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stdout.len(), 1 << 20);
    }

    // Nothing listens there: the local connection is reset.
    let mut refused = TcpStream::connect(&forwarding.addresses[1]).unwrap();
    let received = refused.read(&mut [0]);
    assert!(!matches!(received, Ok(1..)), "{received:?}");
}

#[tokio::test]
async fn forwarding_ends_with_the_process_or_an_interrupt() {
    let daemon = Daemon::start().await;
    let echo = "
stream = listener.accept()[0]
while data := stream.recv(65536): stream.sendall(data)
stream.close()
time.sleep(1000)
";
    let server = start_server(&daemon, echo).await;
    let mut forwarding = Forwarding::start(&daemon, &[&server.id, "8000"]);
    let mut local = TcpStream::connect(&forwarding.addresses[0]).unwrap();
    local.write_all(b"half-closed").unwrap();
    local.shutdown(std::net::Shutdown::Write).unwrap();
    let mut received = String::new();
    local.read_to_string(&mut received).unwrap();
    assert_eq!(received, "half-closed");

    let mut interrupted = Forwarding::start(&daemon, &[&server.id, "8000"]);
    let pid = Pid::from_raw(i32::try_from(interrupted.child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    interrupted.child.wait().unwrap();
    assert!(TcpStream::connect(&interrupted.addresses[0]).is_err());

    daemon.send_signal(&server.id, "KILL").await.unwrap();
    let ended = tokio::task::spawn_blocking(move || {
        let status = forwarding.child.wait().unwrap();
        let mut text = String::new();
        forwarding.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        forwarding.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (status.code(), text)
    });
    let (code, text) = promptly("the end", ended).await.unwrap();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("the process has ended"), "{text}");
}

#[tokio::test]
async fn standard_streams_are_connected() {
    let daemon = Daemon::start().await;
    let body = "
stream = listener.accept()[0]
received = b''
while data := stream.recv(65536): received += data
stream.sendall(received.upper())
";
    let server = start_server(&daemon, body).await;
    let (code, out, err) =
        run_jig(&daemon, &["forward", &server.id, "8000", "--stdio"], "text\n").await;
    assert_eq!((code, out.as_str(), err.as_str()), (0, "TEXT\n", ""));
}

#[tokio::test]
async fn arguments_are_checked() {
    let daemon = Daemon::start().await;
    let mut ended = daemon.start_process(start_request(shell("true"))).await;
    ended.wait_for_exit().await;
    for (arguments, code, text) in [
        (&["forward", "x"][..], 64, "PORT"),
        (&["forward", "x", "0"], 64, "1 to 65535"),
        (&["forward", "x", "80:http"], 64, "1 to 65535"),
        (&["forward", "x", "80", "81", "--stdio"], 64, "--stdio"),
        (&["forward", "x", "80"], 1, "no process \"x\""),
        (&["forward", &ended.id, "80"], 1, "the process has ended"),
        (&["forward", &ended.id, "80", "--stdio"], 1, "PROCESS_ENDED"),
    ] {
        let (actual, out, err) = run_jig(&daemon, arguments, "").await;
        assert_eq!((actual, out.as_str()), (code, ""), "{arguments:?}: {err}");
        assert!(err.contains(text), "{arguments:?}: {err}");
    }
}
