//! `jig exec` whose connection is lost, or whose daemon takes no more calls.

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
    eventually("nobody watches, or somebody again", async || {
        !daemon.list_processes().await.is_empty()
    })
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
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    let ended = promptly("it ends", ended).await.unwrap();
    assert_eq!(ended.status.code(), Some(125));
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert!(stderr.contains("the daemon was restarted"), "{stderr}");
}

#[tokio::test]
async fn stdin_resumes_after_lost_connections() {
    let daemon = Daemon::start().await;
    let proxy = ConnectionProxy::start(&daemon);
    // Of each kind, so that some writes are under way when the connection goes.
    let input: String = (0..200_000).map(|number| format!("{number}\n")).collect();
    let mut child = jig_command(&proxy.socket(), &["exec", "-i", "--keep", "cat"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let given = input.clone();
    let writing = std::thread::spawn(move || stdin.write_all(given.as_bytes()).unwrap());
    let reading = tokio::task::spawn_blocking(move || {
        let mut echoed = String::new();
        let mut part = vec![0; 100_000];
        let mut cuts = 0;
        loop {
            let bytes = stdout.read(&mut part).unwrap();
            if bytes == 0 {
                return echoed;
            }
            echoed.push_str(std::str::from_utf8(&part[..bytes]).unwrap());
            if echoed.len() / 300_000 > cuts {
                cuts += 1;
                proxy.cut();
            }
        }
    });
    let echoed = reading.await.unwrap();
    writing.join().unwrap();
    let ended = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(0), "{stderr}");
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
    let writing = std::thread::spawn(move || stdin.write_all(&vec![b'x'; 4 << 20]).unwrap());
    eventually("it runs", async || !daemon.list_processes().await.is_empty()).await;
    // Longer than a write is offered to a daemon that refuses it.
    tokio::time::sleep(Duration::from_secs(4)).await;
    proxy.cut();
    std::fs::write(daemon.file("go"), "").unwrap();
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    let ended = promptly("it ends", ended).await.unwrap();
    writing.join().unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(String::from_utf8(ended.stdout).unwrap(), "4194304\n", "{stderr}");
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
    eventually("nothing is listened to", socket_is_closed).await;
    stdin.write_all(b"two\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "two");
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(4));
    assert_eq!(String::from_utf8(ended.stderr).unwrap(), "");
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
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    let ended = ended.await.unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(125), "{stderr}");
    assert!(
        stderr.starts_with("jig: the connection was lost, which ended the command"),
        "{stderr}"
    );
}
