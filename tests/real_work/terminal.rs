//! Interactive programs on a terminal of their own.

use jig::api::v1::{StartRequest, TerminalSize};

use super::{attempt, with_each_daemon};
use crate::support::{Setup, argv, shell, started};

with_each_daemon!(jobs_are_controlled, programs_draw_on_terminals);

fn on_terminal(request: StartRequest) -> StartRequest {
    StartRequest { pty: Some(TerminalSize { cols: 80, rows: 24 }), ..request }
}

async fn jobs_are_controlled(setup: Setup) {
    let daemon = setup.start().await;
    let request = on_terminal(started(argv(&["bash", "--norc", "-i"])));
    let mut watch = daemon.watch(request).await;
    let id = watch.id.clone();
    daemon.write(&id, b"PS1='<$?>'; stty -echo; false\n").await.unwrap();
    watch.until("<1>").await;
    let job = b"sh -c 'while read -r line; do echo \"read $line\"; done' &\n";
    daemon.write(&id, job).await.unwrap();
    // Who reads the terminal without having it is stopped.
    daemon.write(&id, b"until jobs -s | grep .; do sleep 0.01; done\n").await.unwrap();
    watch.until("Stopped").await;
    daemon.write(&id, b"echo fo''re; fg\n").await.unwrap();
    watch.until("fore\r\n").await;
    // The job gets the terminal a moment later, and until then Ctrl-Z is the shell's to ignore: it has
    // it when it has read something.
    daemon.write(&id, b"this\n").await.unwrap();
    watch.until("read this\r\n").await;
    daemon.write(&id, b"\x1a").await.unwrap();
    // What is typed before the shell asks may go with the Ctrl-Z.
    watch.until("<148>").await;
    daemon.write(&id, b"sleep 1000 &\njobs %2\n").await.unwrap();
    watch.until("Running").await;
    daemon.write(&id, b"kill %1 %2; wait\n").await.unwrap();
    daemon.write(&id, b"sleep 0.1 & wait; echo all d''one\n").await.unwrap();
    watch.until("all done\r\n").await;
    // A terminal within the terminal.
    daemon.write(&id, b"script -qc 'tty; stty size' /dev/null; echo ba''ck\n").await.unwrap();
    watch.until("/dev/pts/1\r\n24 80\r\n").await;
    // Until it has ended, it reads what is typed.
    watch.until("back\r\n").await;
    daemon.write(&id, b"exit 7\n").await.unwrap();
    assert_eq!(watch.finish().await.exit_code, Some(7));
}

async fn programs_draw_on_terminals(setup: Setup) {
    let daemon = setup.start().await;
    let request = on_terminal(started(shell("seq 1000 > f; less f; vi f; top -n1; echo ended")));
    let mut watch = daemon.watch(request).await;
    let id = watch.id.clone();
    watch.until("\n23").await;
    daemon.write(&id, b"q").await.unwrap();
    watch.until("1000L").await;
    daemon.write(&id, b":%s/^500$/five hundred/\r:wq\r").await.unwrap();
    watch.until("ended\r\n").await;
    assert_eq!(watch.finish().await.exit_code, Some(0));
    let edited = attempt(&daemon, "grep -n five f", &[]).await;
    assert_eq!(edited.stdout, "500:five hundred\n");
}
