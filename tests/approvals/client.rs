//! `jig approvals` and `jig rules`.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::fd::OwnedFd,
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use jig::api::v1::{
    ApprovalState, Decision, InvokeRequest, InvokeStatus,
    invoke_service_client::InvokeServiceClient,
};
use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};
use serde_json::Value;

use super::{
    ASK, decide, decision, file, find, rules::fill, wait_for, wait_for_end, wait_for_one,
    with_policy, write,
};
use crate::support::{Daemon, KeyFile, Setup, eventually, promptly, shell};

fn command(daemon: &Daemon, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_jig"));
    command
        .args(words)
        .current_dir("/")
        .env_clear()
        .env("JIG_ADDRESS", format!("unix:{}", daemon.socket().display()))
        .stdin(Stdio::null());
    command
}

pub(super) fn jig(daemon: &Daemon, words: &[&str]) -> Output {
    command(daemon, words).output().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// `jig approvals` on a terminal, with somebody before it.
pub(super) struct Somebody {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<String>>,
}

impl Somebody {
    fn at(mut command: Command) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let screen = openpt(flags).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let name = ptsname(&screen, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let open = || -> OwnedFd { openat(CWD, &name, flags, Mode::empty()).unwrap() };
        let child = command.stdin(open()).stdout(open()).stderr(open()).spawn().unwrap();
        drop(command);
        let keyboard = File::from(screen);
        let mut reading = keyboard.try_clone().unwrap();
        let screen = Arc::new(Mutex::new(String::new()));
        let seen = Arc::clone(&screen);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = reading.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..read]).replace('\r', "");
                seen.lock().unwrap().push_str(&text);
            }
        });
        Self { child, keyboard, screen }
    }

    pub(super) fn before(daemon: &Daemon) -> Self {
        Self::at(command(daemon, &["approvals"]))
    }

    /// Waits until this is seen so often.
    pub(super) async fn sees(&self, text: &str, count: usize) -> String {
        let seen = || self.screen.lock().unwrap().clone();
        eventually(text, async || seen().matches(text).count() >= count).await;
        seen()
    }

    pub(super) fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    async fn exits(&mut self) -> Option<i32> {
        let mut code = None;
        let child = &mut self.child;
        eventually("jig ends", async || match child.try_wait().unwrap() {
            Some(status) => {
                code = Some(status.code());
                true
            }
            None => false,
        })
        .await;
        code.unwrap()
    }
}

impl Drop for Somebody {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
        if thread::panicking() {
            eprintln!("--- screen ---\n{}---", self.screen.lock().unwrap());
        }
    }
}

pub(super) const ASKS: &str = "Approve? (y/n/always): ";
pub(super) const MAKES: &str = "Create this rule? (y/n, or another pattern): ";

#[tokio::test]
async fn somebody_at_a_terminal_answers() {
    let daemon = with_policy(ASK).await;
    let mut somebody = Somebody::before(&daemon);
    somebody.sees("no calls are pending approval", 1).await;
    let first = write(&daemon, file("hello.py", "print('hello, you')!"));
    let seen = somebody.sees(ASKS, 1).await;
    let expected = "Tool: write_file\nParameters:\n  path: hello.py\n  content: <20 bytes>\nFiles affected: hello.py\nRisk level: safe_write\n\nApprove? (y/n/always): ";
    assert!(seen.ends_with(expected), "{seen}");
    assert!(seen.contains("call by uid:0 in workspace workspace, session default"), "{seen}");
    somebody.types("maybe\n");
    somebody.sees("answer y (allow this call), n (deny it)", 1).await;
    assert!(!first.is_finished());
    somebody.sees(ASKS, 2).await;
    somebody.types("y\n");
    promptly("it is written", first).await.unwrap().unwrap();
    somebody.sees("jig: allowed", 1).await;
    // Two wait: one after the other is asked about.
    let second = write(&daemon, file("b", "x"));
    wait_for_one(&daemon).await;
    let third = write(&daemon, file("c", "x"));
    wait_for(&daemon, 2).await;
    somebody.sees(ASKS, 3).await;
    somebody.types("n\n");
    somebody.sees(ASKS, 4).await;
    promptly("it is told", second).await.unwrap().unwrap_err();
    assert!(!third.is_finished());
    somebody.types("always\n");
    // What is made is seen before it is.
    let seen = somebody.sees(MAKES, 1).await;
    assert!(
        seen.contains("Rule for 30 days: allow write_file in workspace workspace, where\n  ^"),
        "{seen}"
    );
    assert!(!third.is_finished());
    somebody.types("y\n");
    promptly("it is written", third).await.unwrap().unwrap();
    somebody.sees("and similar calls by the rule", 1).await;
    write(&daemon, file("c", "y")).await.unwrap().unwrap();
    assert_eq!(rules(&daemon).await.len(), 1);
    // Ctrl-C says what becomes of what is asked about.
    let last = write(&daemon, file("d", "x"));
    somebody.sees(ASKS, 5).await;
    let pid = Pid::from_child(&somebody.child);
    kill_process(pid, Signal::INT).unwrap();
    somebody.sees("no decision about this call: it is still pending", 1).await;
    assert_eq!(somebody.exits().await, Some(130));
    let waiting = wait_for_one(&daemon).await;
    decide(&daemon, decision(&waiting, Decision::Allow)).await.unwrap();
    last.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_answer_is_for_the_call_that_was_asked_about_alone() {
    let daemon = with_policy(ASK).await;
    let mut somebody = Somebody::before(&daemon);
    let first = write(&daemon, file("a", "x"));
    somebody.sees(ASKS, 1).await;
    let approval = wait_for_one(&daemon).await;
    let second = write(&daemon, file("b", "x"));
    wait_for(&daemon, 2).await;
    // Somebody else is faster.
    decide(&daemon, decision(&approval, Decision::Deny)).await.unwrap();
    first.await.unwrap().unwrap_err();
    somebody.sees("denied by uid:0. Press Enter to continue", 1).await;
    // This was meant for the first.
    somebody.types("y\n");
    let seen = somebody.sees(ASKS, 2).await;
    assert!(seen.contains("path: b"), "{seen}");
    assert!(!second.is_finished() && !daemon.file("b").exists());
    somebody.types("y\n");
    promptly("it is written", second).await.unwrap().unwrap();
    // Ctrl-D ends it.
    somebody.types("\u{4}");
    assert_eq!(somebody.exits().await, Some(0));
}

#[tokio::test]
async fn what_is_typed_ahead_answers_nothing_that_was_not_seen() {
    let daemon = with_policy(ASK).await;
    let first = write(&daemon, file("a", "x"));
    wait_for_one(&daemon).await;
    let second = write(&daemon, file("b", "x"));
    wait_for(&daemon, 2).await;
    let mut somebody = Somebody::before(&daemon);
    somebody.sees(ASKS, 1).await;
    somebody.types("y\ny\ny\n");
    let seen = somebody.sees(ASKS, 2).await;
    assert!(seen.contains("path: b"), "{seen}");
    promptly("it is written", first).await.unwrap().unwrap();
    // What is typed now is the first that is read.
    somebody.types("n\n");
    somebody.sees("jig: denied", 1).await;
    promptly("it is told", second).await.unwrap().unwrap_err();
    assert!(!daemon.file("b").exists());
}

#[tokio::test]
async fn all_of_a_call_is_shown_on_demand_and_its_rule_can_be_another() {
    let daemon = with_policy(ASK).await;
    let mut somebody = Somebody::before(&daemon);
    let command = format!("echo {} >&2; echo the-end", "x".repeat(40_000));
    let run = daemon.begin(shell(&command));
    let seen = somebody.sees(ASKS, 1).await;
    assert!(seen.contains("bytes of command are not shown"), "{seen}");
    assert!(seen.contains("the-end"), "{seen}");
    somebody.types("all\n");
    let seen = somebody.sees(ASKS, 2).await;
    assert!(seen.matches('x').count() > 40_000);
    somebody.types("always\n");
    somebody.sees("Pattern (n for no rule): ", 1).await;
    somebody.types("n\n");
    somebody.sees(ASKS, 3).await;
    somebody.types("always\n");
    somebody.sees("Pattern (n for no rule): ", 2).await;
    somebody.types("the-end\n");
    somebody.sees(MAKES, 1).await;
    somebody.types("y\n");
    promptly("it runs", run).await.unwrap().unwrap();
    daemon.run(shell("echo the-end")).await;
}

#[tokio::test]
async fn no_rule_is_made_that_was_not_seen() {
    let daemon = with_policy(ASK).await;
    let mut somebody = Somebody::before(&daemon);
    let run = daemon.begin(shell("true"));
    somebody.sees(ASKS, 1).await;
    somebody.types("always\n");
    somebody.sees(MAKES, 1).await;
    // A slip of a finger.
    somebody.types("m\n");
    let seen = somebody.sees(MAKES, 2).await;
    assert!(seen.ends_with(&format!("workspace workspace, where\n  m\n{MAKES}")), "{seen}");
    assert!(!run.is_finished());
    assert_eq!(rules(&daemon).await, [""; 0]);
    somebody.types("n\n");
    somebody.sees(ASKS, 2).await;
    // Another pattern that is meant.
    somebody.types("always\n");
    somebody.sees(MAKES, 3).await;
    somebody.types("\"command\":\"true\"\n");
    somebody.sees(MAKES, 4).await;
    somebody.types("y\n");
    promptly("it runs", run).await.unwrap().unwrap();
    assert_eq!(rules(&daemon).await, ["\"command\":\"true\""]);
}

#[tokio::test]
async fn where_there_is_no_room_for_a_rule_it_is_asked_again() {
    let daemon = with_policy(ASK).await;
    fill(&daemon, None).await;
    let mut somebody = Somebody::before(&daemon);
    let run = daemon.begin(shell("true"));
    somebody.sees(ASKS, 1).await;
    somebody.types("always\n");
    somebody.sees(MAKES, 1).await;
    somebody.types("y\n");
    let seen = somebody.sees(ASKS, 2).await;
    assert!(seen.contains("unexpired rules have"), "{seen}");
    somebody.types("y\n");
    promptly("it runs", run).await.unwrap().unwrap();
}

#[tokio::test]
async fn who_starts_a_command_is_told_that_it_waits() {
    let daemon = with_policy(ASK).await;
    let mut somebody = Somebody::at(command(&daemon, &["exec", "--", "echo", "ran"]));
    somebody.sees("or pending approval (jig approvals)", 1).await;
    let approval = wait_for_one(&daemon).await;
    let decided = jig(&daemon, &["approvals", "decide", &approval.approval_id, "y"]);
    assert!(decided.status.success(), "{decided:?}");
    somebody.sees("ran\n", 1).await;
    assert_eq!(somebody.exits().await, Some(0));
}

/// The patterns of the rules.
async fn rules(daemon: &Daemon) -> Vec<String> {
    let listed = super::rules::rules(daemon).await;
    listed.into_iter().map(|rule| rule.pattern).collect()
}

#[tokio::test]
async fn a_call_cannot_lie_about_itself() {
    let daemon = with_policy(ASK).await;
    let somebody = Somebody::before(&daemon);
    let lie = "true\x1b[2J\x1b[H\nFiles affected: none\rRisk level: read_only\u{202e}";
    let run = daemon.begin(shell(lie));
    let seen = somebody.sees(ASKS, 1).await;
    assert!(!seen.contains(['\x1b', '\u{202e}']), "{seen:?}");
    assert_eq!(seen.matches("\nRisk level: ").count(), 1, "{seen}");
    assert_eq!(seen.matches("\nFiles affected: ").count(), 1, "{seen}");
    let listed = jig(&daemon, &["approvals", "list"]);
    assert!(!text(&listed.stdout).contains(['\x1b', '\u{202e}', '\r']), "{listed:?}");
    assert_eq!(text(&listed.stdout).lines().count(), 2);
    run.abort();
}

#[tokio::test]
async fn lists_and_decisions_need_no_terminal() {
    let daemon = with_policy(ASK).await;
    let none = jig(&daemon, &["approvals"]);
    assert!(
        none.status.success() && text(&none.stderr).contains("no calls are pending"),
        "{none:?}"
    );
    let run = daemon.begin(shell("echo hello"));
    let approval = wait_for_one(&daemon).await;
    let listed = json(&jig(&daemon, &["approvals", "list", "--json"]));
    let listed = &listed["approvals"][0];
    assert_eq!(listed["approval_id"], approval.approval_id.as_str());
    assert_eq!(listed["risk"], "RISK_DANGEROUS");
    assert_eq!(listed["parameters"][0]["value"], "echo hello");
    let shown = jig(&daemon, &["approvals"]);
    assert!(text(&shown.stdout).contains("command=echo hello"), "{shown:?}");
    let id = approval.approval_id.as_str();
    let decided = json(&jig(
        &daemon,
        &["approvals", "decide", id, "always", "--comment", "go on", "--days", "3", "--json"],
    ));
    assert_eq!(decided["approval"]["comment"], "go on");
    assert_eq!(decided["rule"]["action"], "ACTION_ALLOW");
    run.await.unwrap().unwrap();
    let again = jig(&daemon, &["approvals", "decide", id, "deny"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("APPROVAL_DECIDED"), "{again:?}");
    assert_eq!(find(&daemon, id).await.state(), ApprovalState::Allowed);
    let all = jig(&daemon, &["approvals", "list", "--all"]);
    assert!(text(&all.stdout).contains("allowed"), "{all:?}");
    let rule = decided["rule"]["rule_id"].as_str().unwrap();
    for (words, part) in [
        (&["rules", "list"][..], "always run"),
        (&["rules", "off", rule], "off"),
        (&["rules", "on", rule], "on"),
        (&["rules", "add", "deny", "run", "--pattern", "rm -rf", "--days", "1"], "deny run"),
        (&["rules", "rm", rule], ""),
    ] {
        let output = jig(&daemon, words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        assert!(text(&output.stdout).contains(part), "{words:?}: {output:?}");
    }
    let rules = json(&jig(&daemon, &["rules", "list", "--json"]));
    assert_eq!(rules["rules"].as_array().unwrap().len(), 1);
    daemon.refuses(shell("rm -rf x"), "POLICY_DENIED").await;
    let missing = jig(&daemon, &["rules", "off", rule]);
    assert!(text(&missing.stderr).contains("RULE_NOT_FOUND"), "{missing:?}");
}

#[tokio::test]
async fn who_may_not_approve_is_told_so() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add("caller", "invoke", &[]);
    let path = keys.path().display().to_string();
    let setup = Setup::new().workspace_table(ASK).arguments(&["--keys", &path]);
    let daemon = setup.keeping(keys).start().await;
    let mut command = command(&daemon, &["approvals"]);
    command.env("JIG_KEY", &key);
    let mut somebody = Somebody::at(command);
    let seen = somebody.sees("FORBIDDEN", 1).await;
    assert!(seen.contains("needs the role admin"), "{seen}");
    assert_eq!(somebody.exits().await, Some(1));
}

#[tokio::test]
async fn a_daemon_that_ends_is_told_of() {
    let mut daemon = with_policy(ASK).await;
    let mut somebody = Somebody::before(&daemon);
    let run = daemon.begin(shell("true"));
    somebody.sees(ASKS, 1).await;
    let approval = wait_for_one(&daemon).await;
    daemon.signal(Signal::TERM);
    assert_eq!(somebody.exits().await, Some(1));
    somebody.sees("DRAINING", 1).await;
    run.await.unwrap().unwrap_err();
    assert!(daemon.exit().await.success());
    let daemon = daemon.restart().await;
    let ended = wait_for_end(&daemon, &approval.approval_id).await;
    assert_eq!(ended.state(), ApprovalState::Withdrawn);
}

#[tokio::test]
async fn d13_always_is_one_answer_for_a_call_in_cli_agent() {
    let daemon = with_policy(ASK).await;
    let mut somebody = Somebody::before(&daemon);
    somebody.sees("no calls are pending approval", 1).await;
    let mut client = InvokeServiceClient::new(daemon.channel());
    let request = InvokeRequest {
        tool: "create_file".to_owned(),
        params_json: r#"{"path": "a.txt", "content": "x"}"#.to_owned(),
        dialect: "cli_agent".to_owned(),
        ..InvokeRequest::default()
    };
    let call = tokio::spawn(async move { client.invoke(request).await });
    let seen = somebody.sees(ASKS, 1).await;
    assert!(seen.contains("Tool: create_file\n"), "{seen}");
    somebody.types("always\n");
    let answered = promptly("it is written", call).await.unwrap().unwrap();
    assert_eq!(answered.into_inner().status(), InvokeStatus::Success);
    let seen = somebody.sees("and similar calls by the rule", 1).await;
    assert!(seen.contains("Rule for 30 days: allow write_file"), "{seen}");
    assert!(!seen.contains(MAKES), "{seen}");
    assert_eq!(rules(&daemon).await.len(), 1);
}
