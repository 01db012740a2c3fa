//! `jig exec -it` on a terminal, used like `ssh -t`.

use super::terminal_user::{TerminalUser, set_size};
use crate::support::{Daemon, Mark, eventually};

/// Starts a shell on a terminal, with the mark in its environment.
async fn start_marked_shell(daemon: &Daemon, mark: &Mark) -> TerminalUser {
    let variable = mark.variable();
    let mut user =
        TerminalUser::run_jig(daemon, &["exec", "-it", "--env", &variable, "--", "bash", "--norc"]);
    user.type_keys("echo be''gun\r");
    user.wait_for_text("begun\r\n").await;
    user
}

#[tokio::test]
async fn interactive_shell_behaves_as_over_ssh() {
    let daemon = Daemon::start().await;
    let mut user = TerminalUser::run_jig(&daemon, &["exec", "-it", "--", "bash", "--norc"]);
    user.type_keys("echo $TERM; stty size\r");
    user.wait_for_text("vt100\r\n40 100\r\n").await;

    // The window is resized.
    set_size(&user.terminal, 77, 33);
    user.type_keys("while [ \"$(stty size)\" != '33 77' ]; do sleep 0.05; done; echo re''sized\r");
    user.wait_for_text("resized\r\n").await;

    // Ctrl-C interrupts the command. It ends neither jig nor the shell.
    user.type_keys("sleep 1000; echo $? slept\r");
    eventually("the shell has the command line", async || {
        let processes = daemon.list_processes().await;
        !processes.is_empty() && user.screen_text().contains("slept")
    })
    .await;
    let is_sleeping = async || {
        let processes = crate::support::descendants(daemon.pid());
        processes.iter().any(|process| {
            crate::support::status_field(process.pid, "Name").is_some_and(|name| name == "sleep")
        })
    };

    eventually("the command sleeps", is_sleeping).await;
    user.type_keys("\x03");
    user.type_keys("echo status=$?\r");
    user.wait_for_text("status=130\r\n").await;
    user.type_keys("exit 42\r");
    assert_eq!(user.wait_for_exit().await, Some(42));
}

#[tokio::test]
async fn kept_terminal_can_be_detached_and_reattached() {
    let daemon = Daemon::start().await;
    let mut user =
        TerminalUser::run_jig(&daemon, &["exec", "-it", "--keep", "--", "bash", "--norc"]);
    user.type_keys("marker=here; echo be''gun\r");
    user.wait_for_text("begun\r\n").await;
    user.type_keys("\r~.");
    assert_eq!(user.wait_for_exit().await, Some(0));

    let id = daemon.list_processes().await[0].process_id.clone();
    assert!(user.screen_text().contains(&format!("jig attach -i {id}")), "{}", user.screen_text());

    let mut second = TerminalUser::run_jig(&daemon, &["attach", "-i", &id]);

    // The earlier output is replayed.
    second.wait_for_text("begun\r\n").await;
    second.type_keys("echo still $marker; exit 9\r");
    second.wait_for_text("still here\r\n").await;
    assert_eq!(second.wait_for_exit().await, Some(9));
}

#[tokio::test]
async fn detaching_kills_a_process_that_is_not_kept() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let mut user = start_marked_shell(&daemon, &mark).await;
    user.type_keys("~.");
    assert_eq!(user.wait_for_exit().await, Some(130));
    mark.wait_until_gone().await;
}

#[tokio::test]
async fn exec_without_a_command_starts_a_shell() {
    let daemon = Daemon::start().await;
    let mut user = TerminalUser::run_jig(&daemon, &["exec", "-it"]);
    user.type_keys("echo $0-$((6 * 7)); exit\r");
    user.wait_for_text("bash-42\r\n").await;
    assert_eq!(user.wait_for_exit().await, Some(0));
}

#[tokio::test]
async fn full_screen_programs_receive_keys() {
    let daemon = Daemon::start().await;
    std::fs::write(daemon.file("text"), "line\n".repeat(200)).unwrap();
    let mut user = TerminalUser::run_jig(&daemon, &["exec", "-it", "less text"]);
    user.wait_for_text("text").await;
    user.type_keys("q");
    assert_eq!(user.wait_for_exit().await, Some(0));
}

#[tokio::test]
async fn escape_menu_lists_its_keys() {
    let daemon = Daemon::start().await;
    let mut user = TerminalUser::run_jig(&daemon, &["exec", "-it", "cat"]);
    user.wait_for_raw_mode(true).await;
    user.type_keys("~?");
    user.wait_for_text("~^Z  suspend jig\r\n").await;
    user.type_keys("~~here\r");
    user.wait_for_text("~here\r\n").await;
    user.type_keys("\x04");

    assert_eq!(user.wait_for_exit().await, Some(0));
}

#[tokio::test]
async fn shell_job_control_suspends_and_continues_jig() {
    let daemon = Daemon::start().await;
    let shell = ["bash", "--norc", "--noediting", "-i"];
    let mut user = TerminalUser::run_program(&daemon, &shell);
    let line = format!("{} exec -it cat\r", env!("CARGO_BIN_EXE_jig"));
    user.type_keys(&line);
    user.wait_for_raw_mode(true).await;
    user.type_keys("one\r");
    user.wait_for_text("one\r\none\r\n").await;
    user.type_keys("~\x1a");
    user.wait_for_text("Stopped").await;
    user.wait_for_raw_mode(false).await;
    user.type_keys("echo on the $((6 * 7))\r");
    user.wait_for_text("on the 42").await;
    user.type_keys("fg\r");
    user.wait_for_raw_mode(true).await;
    user.type_keys("two\r");
    user.wait_for_text("two\r\ntwo\r\n").await;
    user.type_keys("\x04");
    user.wait_for_raw_mode(false).await;
    user.type_keys("exit 7\r");

    assert_eq!(user.wait_for_exit().await, Some(7));
}

#[tokio::test]
async fn closed_terminal_ends_the_command() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let mut user = start_marked_shell(&daemon, &mark).await;
    user.close_terminal();
    mark.wait_until_gone().await;
}
