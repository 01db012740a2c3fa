//! Interactive programs on a terminal of their own.

use jig::api::v1::{StartRequest, TerminalSize};

use super::{try_script, with_each_daemon};
use crate::support::{Setup, argv, shell, start_request};

with_each_daemon!(shell_job_control_works, programs_draw_on_terminals);

fn on_terminal(request: StartRequest) -> StartRequest {
    StartRequest { pty: Some(TerminalSize { cols: 80, rows: 24 }), ..request }
}

async fn shell_job_control_works(setup: Setup) {
    let daemon = setup.start().await;

    let request = on_terminal(start_request(argv(&["bash", "--norc", "-i"])));
    let mut watch = daemon.start_process(request).await;
    let id = watch.id.clone();
    daemon.send_stdin(&id, b"PS1='<$?>'; stty -echo; false\n").await.unwrap();
    watch.read_until("<1>").await;

    let job = b"sh -c 'while read -r line; do echo \"read $line\"; done' &\n";
    daemon.send_stdin(&id, job).await.unwrap();

    // A background process that reads from the terminal is stopped.
    daemon.send_stdin(&id, b"until jobs -s | grep .; do sleep 0.01; done\n").await.unwrap();
    watch.read_until("Stopped").await;
    daemon.send_stdin(&id, b"echo fo''re; fg\n").await.unwrap();
    watch.read_until("fore\r\n").await;

    // The job gets the terminal a moment later, and the shell ignores Ctrl-Z until then. Once the
    // job has read a line, it has the terminal.
    daemon.send_stdin(&id, b"this\n").await.unwrap();
    watch.read_until("read this\r\n").await;
    daemon.send_stdin(&id, b"\x1a").await.unwrap();

    // Ctrl-Z may discard input typed before the next prompt.
    watch.read_until("<148>").await;
    daemon.send_stdin(&id, b"sleep 1000 &\njobs %2\n").await.unwrap();
    watch.read_until("Running").await;
    daemon.send_stdin(&id, b"kill %1 %2; wait\n").await.unwrap();
    daemon.send_stdin(&id, b"sleep 0.1 & wait; echo all d''one\n").await.unwrap();
    watch.read_until("all done\r\n").await;

    // A terminal within the terminal.
    daemon.send_stdin(&id, b"script -qc 'tty; stty size' /dev/null; echo ba''ck\n").await.unwrap();
    watch.read_until("/dev/pts/1\r\n24 80\r\n").await;

    // `script` reads all input until it has ended.
    watch.read_until("back\r\n").await;
    daemon.send_stdin(&id, b"exit 7\n").await.unwrap();
    assert_eq!(watch.wait_for_exit().await.exit_code, Some(7));
}

async fn programs_draw_on_terminals(setup: Setup) {
    let daemon = setup.start().await;

    let request =
        on_terminal(start_request(shell("seq 1000 > f; less f; vi f; top -n1; echo ended")));
    let mut watch = daemon.start_process(request).await;
    let id = watch.id.clone();
    watch.read_until("\n23").await;
    daemon.send_stdin(&id, b"q").await.unwrap();
    watch.read_until("1000L").await;

    daemon.send_stdin(&id, b":%s/^500$/five hundred/\r:wq\r").await.unwrap();
    watch.read_until("ended\r\n").await;
    assert_eq!(watch.wait_for_exit().await.exit_code, Some(0));

    let edited = try_script(&daemon, "grep -n five f", &[]).await;
    assert_eq!(edited.stdout, "500:five hundred\n");
}
