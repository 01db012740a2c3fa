//! `jig exec -it` on a terminal, as `ssh -t` is used.

use super::person::{Person, set_size};
use crate::support::{Daemon, Mark, eventually};

/// A shell at a terminal, which bears the mark.
async fn begun(daemon: &Daemon, mark: &Mark) -> Person {
    let marked = mark.on_process(Default::default());
    let (name, value) = marked.env.iter().next().unwrap();
    let variable = format!("{name}={value}");
    let mut person =
        Person::runs(daemon, &["exec", "-it", "--env", &variable, "--", "bash", "--norc"]);
    person.types("echo be''gun\r");
    person.sees("begun\r\n").await;
    person
}

#[tokio::test]
async fn a_shell_is_used_as_over_ssh() {
    let daemon = Daemon::start().await;
    let mut person = Person::runs(&daemon, &["exec", "-it", "--", "bash", "--norc"]);
    person.types("echo $TERM; stty size\r");
    person.sees("vt100\r\n40 100\r\n").await;
    // The window changes.
    set_size(&person.behind, 77, 33);
    person.types("while [ \"$(stty size)\" != '33 77' ]; do sleep 0.05; done; echo re''sized\r");
    person.sees("resized\r\n").await;
    // Ctrl-C is the command's, and neither jig's nor the shell's end.
    person.types("sleep 1000; echo $? slept\r");
    eventually("it sleeps", async || {
        let listed = daemon.list_processes().await;
        !listed.is_empty() && person.screen().contains("slept")
    })
    .await;
    let sleeps = async || {
        let found = crate::support::descendants(daemon.pid());
        found.iter().any(|process| {
            crate::support::host_status(process.pid, "Name").is_some_and(|name| name == "sleep")
        })
    };
    eventually("it sleeps", sleeps).await;
    person.types("\x03");
    person.types("echo status=$?\r");
    person.sees("status=130\r\n").await;
    person.types("exit 42\r");
    assert_eq!(person.ends().await, Some(42));
}

#[tokio::test]
async fn a_terminal_can_be_left_and_come_back_to() {
    let daemon = Daemon::start().await;
    let mut person = Person::runs(&daemon, &["exec", "-it", "--keep", "--", "bash", "--norc"]);
    person.types("marker=here; echo be''gun\r");
    person.sees("begun\r\n").await;
    person.types("\r~.");
    assert_eq!(person.ends().await, Some(0));
    let id = daemon.list_processes().await[0].process_id.clone();
    assert!(person.screen().contains(&format!("jig attach -i {id}")), "{}", person.screen());
    let mut again = Person::runs(&daemon, &["attach", "-i", &id]);
    // What was written before comes again.
    again.sees("begun\r\n").await;
    again.types("echo still $marker; exit 9\r");
    again.sees("still here\r\n").await;
    assert_eq!(again.ends().await, Some(9));
}

#[tokio::test]
async fn leaving_ends_what_is_not_kept() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let mut person = begun(&daemon, &mark).await;
    person.types("~.");
    assert_eq!(person.ends().await, Some(130));
    mark.vanishes().await;
}

#[tokio::test]
async fn with_nothing_named_there_is_a_shell() {
    let daemon = Daemon::start().await;
    let mut person = Person::runs(&daemon, &["exec", "-it"]);
    person.types("echo $0-$((6 * 7)); exit\r");
    person.sees("bash-42\r\n").await;
    assert_eq!(person.ends().await, Some(0));
}

#[tokio::test]
async fn full_screen_programs_get_their_keys() {
    let daemon = Daemon::start().await;
    std::fs::write(daemon.file("text"), "line\n".repeat(200)).unwrap();
    let mut person = Person::runs(&daemon, &["exec", "-it", "less text"]);
    person.sees("text").await;
    person.types("q");
    assert_eq!(person.ends().await, Some(0));
}

#[tokio::test]
async fn what_there_is_for_this_side_is_told() {
    let daemon = Daemon::start().await;
    let mut person = Person::runs(&daemon, &["exec", "-it", "cat"]);
    person.hands_over(true).await;
    person.types("~?");
    person.sees("~^Z  suspend jig\r\n").await;
    person.types("~~here\r");
    person.sees("~here\r\n").await;
    person.types("\x04");
    assert_eq!(person.ends().await, Some(0));
}

#[tokio::test]
async fn jig_is_suspended_and_continued_as_other_programs_are() {
    let daemon = Daemon::start().await;
    let shell = ["bash", "--norc", "--noediting", "-i"];
    let mut person = Person::runs_program(&daemon, &shell);
    let line = format!("{} exec -it cat\r", env!("CARGO_BIN_EXE_jig"));
    person.types(&line);
    person.hands_over(true).await;
    person.types("one\r");
    person.sees("one\r\none\r\n").await;
    person.types("~\x1a");
    person.sees("Stopped").await;
    person.hands_over(false).await;
    person.types("echo on the $((6 * 7))\r");
    person.sees("on the 42").await;
    person.types("fg\r");
    person.hands_over(true).await;
    person.types("two\r");
    person.sees("two\r\ntwo\r\n").await;
    person.types("\x04");
    person.hands_over(false).await;
    person.types("exit 7\r");
    assert_eq!(person.ends().await, Some(7));
}

#[tokio::test]
async fn a_terminal_that_goes_away_ends_the_command() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let mut person = begun(&daemon, &mark).await;
    person.goes_away();
    mark.vanishes().await;
}
