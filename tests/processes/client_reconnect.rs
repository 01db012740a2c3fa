//! `jig exec` that loses its connection, or whose daemon drains.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::Stdio,
    time::Duration,
};

use rustix::process::Signal;

use super::command_line::jig_command;
use crate::support::{ConnectionProxy, Daemon, Setup, eventually, promptly};

#[tokio::test]
async fn jig_reconnects_after_a_lost_connection() {
    let daemon = Daemon::start().await;
    let proxy = ConnectionProxy::start(&daemon);
    let script = "echo one; while ! test -e go; do sleep 0.05; done; seq 3; exit 6";
    let mut child = jig_command(&proxy.socket(), &["exec", "--keep", script]).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    stdout.read_line(&mut first).unwrap();
    proxy.cut();
    eventually("the daemon lists the process", async || !daemon.list_processes().await.is_empty())
        .await;
    std::fs::write(daemon.file("go"), "").unwrap();

    let rest = tokio::task::spawn_blocking(move || {
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        (rest, child.wait().unwrap())
    });
    let (rest, status) = rest.await.unwrap();
    assert_eq!((first.as_str(), rest.as_str()), ("one\n", "1\n2\n3\n"));
    assert_eq!(status.code(), Some(6));
}

#[tokio::test]
async fn daemon_restart_is_reported_as_a_lost_command() {
    let daemon = Daemon::start().await;
    let script = "echo one; exec sleep 1000";
    let mut child = jig_command(&daemon.socket(), &["exec", "--keep", script]).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    stdout.read_line(&mut first).unwrap();
    let _daemon = daemon.restart().await;
    let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    let output = promptly("jig exits", output).await.unwrap();
    assert_eq!(output.status.code(), Some(125));

    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("the daemon was restarted"), "{stderr}");
}

#[tokio::test]
async fn stdin_resumes_after_lost_connections() {
    let daemon = Daemon::start().await;
    let proxy = ConnectionProxy::start(&daemon);

    // Enough input that some writes are in flight when a connection is cut.
    let input: String = (0..200_000).map(|number| format!("{number}\n")).collect();
    let mut child = jig_command(&proxy.socket(), &["exec", "-i", "--keep", "cat"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let bytes = input.clone();
    let writer = std::thread::spawn(move || stdin.write_all(bytes.as_bytes()).unwrap());

    let reader = tokio::task::spawn_blocking(move || {
        let mut echoed = String::new();
        let mut chunk = vec![0; 100_000];
        let mut cuts = 0;
        loop {
            let length = stdout.read(&mut chunk).unwrap();
            if length == 0 {
                return echoed;
            }
            echoed.push_str(std::str::from_utf8(&chunk[..length]).unwrap());
            if echoed.len() / 300_000 > cuts {
                cuts += 1;
                proxy.cut();
            }
        }
    });

    let echoed = reader.await.unwrap();
    writer.join().unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(echoed == input, "{} of {} bytes", echoed.len(), input.len());
}

#[tokio::test]
async fn blocked_stdin_resumes_after_a_lost_connection() {
    let daemon = Daemon::start().await;
    let proxy = ConnectionProxy::start(&daemon);
    let script = "until test -e go; do sleep 0.05; done; wc -c";
    let mut child = jig_command(&proxy.socket(), &["exec", "-i", "--keep", script])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(&vec![b'x'; 4 << 20]).unwrap());
    eventually("the command runs", async || !daemon.list_processes().await.is_empty()).await;

    // Longer than jig offers a write to a daemon that rejects it.
    tokio::time::sleep(Duration::from_secs(4)).await;
    proxy.cut();
    std::fs::write(daemon.file("go"), "").unwrap();
    let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    let output = promptly("jig exits", output).await.unwrap();
    writer.join().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();

    assert_eq!(String::from_utf8(output.stdout).unwrap(), "4194304\n", "{stderr}");
}

#[tokio::test]
async fn draining_daemon_serves_stdin_and_output_of_running_commands() {
    let setup = Setup::new().arguments(&["--drain-timeout", "60s"]);
    let daemon = setup.start().await;
    let script = "read a; echo $a; read b; echo $b; exit 4";
    let mut child = jig_command(&daemon.socket(), &["exec", "-i", script])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());

    let mut lines = BufReader::new(stdout).lines();
    stdin.write_all(b"one\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "one");

    daemon.signal(Signal::TERM);
    let socket_is_closed =
        async || std::os::unix::net::UnixStream::connect(daemon.socket()).is_err();
    eventually("the daemon closes its socket", socket_is_closed).await;
    stdin.write_all(b"two\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "two");

    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[tokio::test]
async fn lost_connection_is_reported_as_the_end_of_the_command() {
    let daemon = Daemon::start().await;
    let proxy = ConnectionProxy::start(&daemon);
    let mut child =
        jig_command(&proxy.socket(), &["exec", "echo one; sleep 1000"]).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    stdout.read_line(&mut first).unwrap();
    proxy.cut();
    let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());

    let output = output.await.unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(125), "{stderr}");
    assert!(
        stderr.starts_with("jig: the connection was lost, which ended the command"),
        "{stderr}"
    );
}
