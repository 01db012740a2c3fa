//! Commands on a terminal below L3.

use jig::api::v1::{StartRequest, TerminalSize};

use crate::support::{Daemon, Refusal, Setup, shell, start_request};

fn terminal_request(command: &str) -> StartRequest {
    StartRequest { pty: Some(TerminalSize { cols: 90, rows: 30 }), ..start_request(shell(command)) }
}

#[tokio::test]
async fn command_has_its_own_terminal_at_l2() {
    let daemon = Setup::new().at_l2().start().await;
    let mut watch = daemon.start_process(terminal_request("tty; stty size; ls /dev/pts")).await;
    watch.wait_for_exit().await;
    assert_eq!(watch.stdout_text(), "/dev/pts/0\r\n30 90\r\n0  ptmx\r\n");
}

#[tokio::test]
async fn terminal_request_is_rejected_at_l1() {
    let daemon = Setup::new().at_l1().start().await;
    let refusal = expect_rejected_start(&daemon, terminal_request("touch ran")).await;
    assert_eq!(refusal.reason, "INVALID_PARAMS", "{refusal:?}");
    assert!(refusal.message.contains("at isolation L1"), "{refusal:?}");
    assert!(!daemon.file("ran").exists());
}

async fn expect_rejected_start(daemon: &Daemon, request: StartRequest) -> Refusal {
    let response = daemon.processes().start(request).await;
    match response {
        Err(status) => Refusal::from_status(&status),
        Ok(stream) => match stream.into_inner().message().await {
            Err(status) => Refusal::from_status(&status),
            Ok(event) => panic!("the process was started: {event:?}"),
        },
    }
}
