//! Commands that ask for a terminal below L3.

use jig::api::v1::{StartRequest, TerminalSize};

use crate::support::{Daemon, Refusal, Setup, shell, started};

fn on_terminal(command: &str) -> StartRequest {
    StartRequest { pty: Some(TerminalSize { cols: 90, rows: 30 }), ..started(shell(command)) }
}

#[tokio::test]
async fn at_l2_they_have_one_of_their_own() {
    let daemon = Setup::new().at_l2().start().await;
    let mut watch = daemon.watch(on_terminal("tty; stty size; ls /dev/pts")).await;
    watch.finish().await;
    assert_eq!(watch.text(), "/dev/pts/0\r\n30 90\r\n0  ptmx\r\n");
}

#[tokio::test]
async fn at_l1_there_is_none_and_that_is_said() {
    let daemon = Setup::new().at_l1().start().await;
    let refusal = refused(&daemon, on_terminal("touch ran")).await;
    assert_eq!(refusal.reason, "INVALID_PARAMS", "{refusal:?}");
    assert!(refusal.message.contains("at isolation L1"), "{refusal:?}");
    assert!(!daemon.file("ran").exists());
}

async fn refused(daemon: &Daemon, request: StartRequest) -> Refusal {
    let answer = daemon.processes().start(request).await;
    match answer {
        Err(status) => Refusal::of(&status),
        Ok(stream) => match stream.into_inner().message().await {
            Err(status) => Refusal::of(&status),
            Ok(event) => panic!("it was started: {event:?}"),
        },
    }
}
