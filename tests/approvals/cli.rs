//! `jig approvals` and `jig rules`, at a terminal and without one.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use jig::api::v1::{
    ApprovalState, Decision, InvokeRequest, InvokeStatus,
    invoke_service_client::InvokeServiceClient,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{
    ASK_POLICY, decide, decide_request, find_approval, rules::fill_rule_store, spawn_write,
    start_with_policy, wait_for_decision, wait_for_pending_approval, wait_for_pending_approvals,
    write_request,
};
use crate::support::{
    Daemon, KeyFile, Setup, eventually, kill_and_reap, open_pseudo_terminal, promptly, shell,
};

fn jig_command(daemon: &Daemon, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_jig"));
    command
        .args(arguments)
        .current_dir("/")
        .env_clear()
        .env("JIG_ADDRESS", format!("unix:{}", daemon.socket().display()))
        .stdin(Stdio::null());
    command
}

pub(super) fn run_jig(daemon: &Daemon, arguments: &[&str]) -> Output {
    jig_command(daemon, arguments).output().unwrap()
}

fn stdout_json(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn utf8_text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A pseudo-terminal on which `jig` runs, with an approver that reads and types.
pub(super) struct ApproverTerminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<String>>,
}

impl ApproverTerminal {
    fn spawn(mut command: Command) -> Self {
        let (keyboard, terminal) = open_pseudo_terminal();
        let stream = || terminal.try_clone().unwrap();
        command.stdin(stream()).stdout(stream()).stderr(stream());
        let child = command.spawn().unwrap();

        // The screen ends once every holder has closed the terminal.
        drop((command, terminal));
        let mut reader = keyboard.try_clone().unwrap();
        let screen = Arc::new(Mutex::new(String::new()));
        let screen_text = Arc::clone(&screen);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..read]).replace('\r', "");
                screen_text.lock().unwrap().push_str(&text);
            }
        });
        Self { child, keyboard, screen }
    }

    pub(super) fn open_approvals(daemon: &Daemon) -> Self {
        Self::spawn(jig_command(daemon, &["approvals"]))
    }

    /// Waits until the screen shows `text` at least `count` times. Returns the whole screen.
    pub(super) async fn wait_for_text(&self, text: &str, count: usize) -> String {
        let screen = || self.screen.lock().unwrap().clone();
        eventually(text, async || screen().matches(text).count() >= count).await;
        screen()
    }

    pub(super) fn type_text(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    async fn wait_for_exit(&mut self) -> Option<i32> {
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

impl Drop for ApproverTerminal {
    fn drop(&mut self) {
        kill_and_reap(&mut self.child);
        if thread::panicking() {
            eprintln!("--- screen ---\n{}---", self.screen.lock().unwrap());
        }
    }
}

pub(super) const APPROVE_PROMPT: &str = "Approve? (y/n/always): ";
pub(super) const RULE_PROMPT: &str = "Create this rule? (y/n, or another pattern): ";

#[tokio::test]
async fn approver_decides_calls_at_a_terminal() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let mut terminal = ApproverTerminal::open_approvals(&daemon);
    terminal.wait_for_text("no calls are pending approval", 1).await;
    let first = spawn_write(&daemon, write_request("hello.py", "print('hello, you')!"));
    let screen = terminal.wait_for_text(APPROVE_PROMPT, 1).await;
    let expected = "Tool: write_file\nParameters:\n  path: hello.py\n  content: <20 bytes>\nFiles affected: hello.py\nRisk level: safe_write\n\nApprove? (y/n/always): ";
    assert!(screen.ends_with(expected), "{screen}");
    assert!(screen.contains("call by uid:0 in workspace workspace, session default"), "{screen}");

    terminal.type_text("maybe\n");
    terminal.wait_for_text("answer y (allow this call), n (deny it)", 1).await;
    assert!(!first.is_finished());

    terminal.wait_for_text(APPROVE_PROMPT, 2).await;
    terminal.type_text("y\n");
    promptly("the file is written", first).await.unwrap().unwrap();
    terminal.wait_for_text("jig: allowed", 1).await;

    // With two pending calls, jig prompts for one after the other.
    let second = spawn_write(&daemon, write_request("b", "x"));
    wait_for_pending_approval(&daemon).await;
    let third = spawn_write(&daemon, write_request("c", "x"));
    wait_for_pending_approvals(&daemon, 2).await;
    terminal.wait_for_text(APPROVE_PROMPT, 3).await;
    terminal.type_text("n\n");
    terminal.wait_for_text(APPROVE_PROMPT, 4).await;
    promptly("the call is denied", second).await.unwrap().unwrap_err();
    assert!(!third.is_finished());

    terminal.type_text("always\n");

    // The approver sees the rule before it is created.
    let screen = terminal.wait_for_text(RULE_PROMPT, 1).await;
    assert!(
        screen.contains("Rule for 30 days: allow write_file in workspace workspace, where\n  ^"),
        "{screen}"
    );
    assert!(!third.is_finished());

    terminal.type_text("y\n");
    promptly("the file is written", third).await.unwrap().unwrap();
    terminal.wait_for_text("and similar calls by the rule", 1).await;
    spawn_write(&daemon, write_request("c", "y")).await.unwrap().unwrap();
    assert_eq!(rule_patterns(&daemon).await.len(), 1);

    // On Ctrl-C, jig reports that the call is still pending.
    let last = spawn_write(&daemon, write_request("d", "x"));
    terminal.wait_for_text(APPROVE_PROMPT, 5).await;
    let pid = Pid::from_child(&terminal.child);
    kill_process(pid, Signal::INT).unwrap();
    terminal.wait_for_text("no decision about this call: it is still pending", 1).await;
    assert_eq!(terminal.wait_for_exit().await, Some(130));

    let approval = wait_for_pending_approval(&daemon).await;
    decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();
    last.await.unwrap().unwrap();
}

#[tokio::test]
async fn answer_applies_only_to_the_displayed_call() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let mut terminal = ApproverTerminal::open_approvals(&daemon);
    let first = spawn_write(&daemon, write_request("a", "x"));
    terminal.wait_for_text(APPROVE_PROMPT, 1).await;
    let approval = wait_for_pending_approval(&daemon).await;
    let second = spawn_write(&daemon, write_request("b", "x"));
    wait_for_pending_approvals(&daemon, 2).await;

    // Another approver decides first.
    decide(&daemon, decide_request(&approval, Decision::Deny)).await.unwrap();
    first.await.unwrap().unwrap_err();
    terminal.wait_for_text("denied by uid:0. Press Enter to continue", 1).await;

    // This answer was meant for the first call.
    terminal.type_text("y\n");
    let screen = terminal.wait_for_text(APPROVE_PROMPT, 2).await;
    assert!(screen.contains("path: b"), "{screen}");
    assert!(!second.is_finished() && !daemon.file("b").exists());

    terminal.type_text("y\n");
    promptly("the file is written", second).await.unwrap().unwrap();

    // Ctrl-D ends jig.
    terminal.type_text("\u{4}");
    assert_eq!(terminal.wait_for_exit().await, Some(0));
}

#[tokio::test]
async fn typed_ahead_input_decides_no_unseen_call() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let first = spawn_write(&daemon, write_request("a", "x"));
    wait_for_pending_approval(&daemon).await;
    let second = spawn_write(&daemon, write_request("b", "x"));
    wait_for_pending_approvals(&daemon, 2).await;
    let mut terminal = ApproverTerminal::open_approvals(&daemon);
    terminal.wait_for_text(APPROVE_PROMPT, 1).await;
    terminal.type_text("y\ny\ny\n");
    let screen = terminal.wait_for_text(APPROVE_PROMPT, 2).await;
    assert!(screen.contains("path: b"), "{screen}");

    promptly("the file is written", first).await.unwrap().unwrap();

    // jig reads only input that is typed after the prompt.
    terminal.type_text("n\n");
    terminal.wait_for_text("jig: denied", 1).await;
    promptly("the call is denied", second).await.unwrap().unwrap_err();
    assert!(!daemon.file("b").exists());
}

#[tokio::test]
async fn approver_can_view_the_whole_call_and_change_its_rule() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let mut terminal = ApproverTerminal::open_approvals(&daemon);
    let command = format!("echo {} >&2; echo the-end", "x".repeat(40_000));
    let run = daemon.spawn_run(shell(&command));
    let screen = terminal.wait_for_text(APPROVE_PROMPT, 1).await;
    assert!(screen.contains("bytes of command are not shown"), "{screen}");
    assert!(screen.contains("the-end"), "{screen}");

    terminal.type_text("all\n");
    let screen = terminal.wait_for_text(APPROVE_PROMPT, 2).await;
    assert!(screen.matches('x').count() > 40_000);

    terminal.type_text("always\n");
    terminal.wait_for_text("Pattern (n for no rule): ", 1).await;
    terminal.type_text("n\n");
    terminal.wait_for_text(APPROVE_PROMPT, 3).await;
    terminal.type_text("always\n");
    terminal.wait_for_text("Pattern (n for no rule): ", 2).await;
    terminal.type_text("the-end\n");
    terminal.wait_for_text(RULE_PROMPT, 1).await;
    terminal.type_text("y\n");
    promptly("the command runs", run).await.unwrap().unwrap();
    daemon.run(shell("echo the-end")).await;
}

#[tokio::test]
async fn jig_creates_only_rules_that_were_displayed() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let mut terminal = ApproverTerminal::open_approvals(&daemon);
    let run = daemon.spawn_run(shell("true"));
    terminal.wait_for_text(APPROVE_PROMPT, 1).await;
    terminal.type_text("always\n");
    terminal.wait_for_text(RULE_PROMPT, 1).await;

    // A typing error.
    terminal.type_text("m\n");
    let screen = terminal.wait_for_text(RULE_PROMPT, 2).await;
    assert!(
        screen.ends_with(&format!("workspace workspace, where\n  m\n{RULE_PROMPT}")),
        "{screen}"
    );
    assert!(!run.is_finished());
    assert_eq!(rule_patterns(&daemon).await, [""; 0]);

    terminal.type_text("n\n");
    terminal.wait_for_text(APPROVE_PROMPT, 2).await;

    // A pattern that the approver enters on purpose.
    terminal.type_text("always\n");
    terminal.wait_for_text(RULE_PROMPT, 3).await;
    terminal.type_text("\"command\":\"true\"\n");
    terminal.wait_for_text(RULE_PROMPT, 4).await;
    terminal.type_text("y\n");
    promptly("the command runs", run).await.unwrap().unwrap();
    assert_eq!(rule_patterns(&daemon).await, ["\"command\":\"true\""]);
}

#[tokio::test]
async fn jig_prompts_again_when_the_rule_store_is_full() {
    let daemon = start_with_policy(ASK_POLICY).await;
    fill_rule_store(&daemon, None).await;
    let mut terminal = ApproverTerminal::open_approvals(&daemon);
    let run = daemon.spawn_run(shell("true"));
    terminal.wait_for_text(APPROVE_PROMPT, 1).await;
    terminal.type_text("always\n");
    terminal.wait_for_text(RULE_PROMPT, 1).await;
    terminal.type_text("y\n");
    let screen = terminal.wait_for_text(APPROVE_PROMPT, 2).await;
    assert!(screen.contains("unexpired rules have"), "{screen}");

    terminal.type_text("y\n");
    promptly("the command runs", run).await.unwrap().unwrap();
}

#[tokio::test]
async fn exec_reports_its_pending_approval() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let mut terminal =
        ApproverTerminal::spawn(jig_command(&daemon, &["exec", "--", "echo", "ran"]));
    terminal.wait_for_text("or pending approval (jig approvals)", 1).await;
    let approval = wait_for_pending_approval(&daemon).await;
    let decided = run_jig(&daemon, &["approvals", "decide", &approval.approval_id, "y"]);
    assert!(decided.status.success(), "{decided:?}");

    terminal.wait_for_text("ran\n", 1).await;
    assert_eq!(terminal.wait_for_exit().await, Some(0));
}

async fn rule_patterns(daemon: &Daemon) -> Vec<String> {
    let listed = super::rules::list_rules(daemon).await;
    listed.into_iter().map(|rule| rule.pattern).collect()
}

#[tokio::test]
async fn call_cannot_forge_its_displayed_approval() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let terminal = ApproverTerminal::open_approvals(&daemon);
    let command = "true\x1b[2J\x1b[H\nFiles affected: none\rRisk level: read_only\u{202e}";
    let run = daemon.spawn_run(shell(command));
    let screen = terminal.wait_for_text(APPROVE_PROMPT, 1).await;
    assert!(!screen.contains(['\x1b', '\u{202e}']), "{screen:?}");
    assert_eq!(screen.matches("\nRisk level: ").count(), 1, "{screen}");
    assert_eq!(screen.matches("\nFiles affected: ").count(), 1, "{screen}");

    let listed = run_jig(&daemon, &["approvals", "list"]);
    assert!(!utf8_text(&listed.stdout).contains(['\x1b', '\u{202e}', '\r']), "{listed:?}");
    assert_eq!(utf8_text(&listed.stdout).lines().count(), 2);

    run.abort();
}

#[tokio::test]
async fn jig_lists_and_decides_without_a_terminal() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let empty = run_jig(&daemon, &["approvals"]);
    assert!(
        empty.status.success() && utf8_text(&empty.stderr).contains("no calls are pending"),
        "{empty:?}"
    );

    let run = daemon.spawn_run(shell("echo hello"));
    let approval = wait_for_pending_approval(&daemon).await;
    let listed = stdout_json(&run_jig(&daemon, &["approvals", "list", "--json"]));
    let listed = &listed["approvals"][0];
    assert_eq!(listed["approval_id"], approval.approval_id.as_str());
    assert_eq!(listed["risk"], "RISK_DANGEROUS");
    assert_eq!(listed["parameters"][0]["value"], "echo hello");

    let output = run_jig(&daemon, &["approvals"]);
    assert!(utf8_text(&output.stdout).contains("command=echo hello"), "{output:?}");

    let id = approval.approval_id.as_str();
    let decided = stdout_json(&run_jig(
        &daemon,
        &["approvals", "decide", id, "always", "--comment", "go on", "--days", "3", "--json"],
    ));
    assert_eq!(decided["approval"]["comment"], "go on");
    assert_eq!(decided["rule"]["action"], "ACTION_ALLOW");

    run.await.unwrap().unwrap();
    let repeated = run_jig(&daemon, &["approvals", "decide", id, "deny"]);
    assert_eq!(repeated.status.code(), Some(1));
    assert!(utf8_text(&repeated.stderr).contains("APPROVAL_DECIDED"), "{repeated:?}");
    assert_eq!(find_approval(&daemon, id).await.state(), ApprovalState::Allowed);

    let all = run_jig(&daemon, &["approvals", "list", "--all"]);
    assert!(utf8_text(&all.stdout).contains("allowed"), "{all:?}");

    let rule = decided["rule"]["rule_id"].as_str().unwrap();
    for (arguments, part) in [
        (&["rules", "list"][..], "always run"),
        (&["rules", "disable", rule], "disabled"),
        (&["rules", "enable", rule], "enabled"),
        (&["rules", "add", "deny", "run", "--pattern", "rm -rf", "--days", "1"], "deny run"),
        (&["rules", "rm", rule], ""),
    ] {
        let output = run_jig(&daemon, arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        assert!(utf8_text(&output.stdout).contains(part), "{arguments:?}: {output:?}");
    }

    let rules = stdout_json(&run_jig(&daemon, &["rules", "list", "--json"]));
    assert_eq!(rules["rules"].as_array().unwrap().len(), 1);

    daemon.run_failing(shell("rm -rf x"), "POLICY_DENIED").await;
    let missing = run_jig(&daemon, &["rules", "disable", rule]);
    assert!(utf8_text(&missing.stderr).contains("RULE_NOT_FOUND"), "{missing:?}");
}

#[tokio::test]
async fn approvals_command_reports_a_missing_admin_role() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("caller", "invoke", &[]);
    let path = keys.path().display().to_string();
    let setup = Setup::new().workspace_table(ASK_POLICY).arguments(&["--keys", &path]);
    let daemon = setup.with_resource(keys).start().await;
    let mut command = jig_command(&daemon, &["approvals"]);
    command.env("JIG_KEY", &key);
    let mut terminal = ApproverTerminal::spawn(command);
    let screen = terminal.wait_for_text("FORBIDDEN", 1).await;
    assert!(screen.contains("needs the role admin"), "{screen}");
    assert_eq!(terminal.wait_for_exit().await, Some(1));
}

#[tokio::test]
async fn approvals_command_reports_daemon_shutdown() {
    let mut daemon = start_with_policy(ASK_POLICY).await;
    let mut terminal = ApproverTerminal::open_approvals(&daemon);
    let run = daemon.spawn_run(shell("true"));
    terminal.wait_for_text(APPROVE_PROMPT, 1).await;
    let approval = wait_for_pending_approval(&daemon).await;
    daemon.signal(Signal::TERM);
    assert_eq!(terminal.wait_for_exit().await, Some(1));

    terminal.wait_for_text("DRAINING", 1).await;
    run.await.unwrap().unwrap_err();
    assert!(daemon.wait_for_exit().await.success());

    let daemon = daemon.restart().await;
    let decided = wait_for_decision(&daemon, &approval.approval_id).await;
    assert_eq!(decided.state(), ApprovalState::Withdrawn);
}

#[tokio::test]
async fn d13_cli_agent_always_decides_without_confirmation() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let mut terminal = ApproverTerminal::open_approvals(&daemon);
    terminal.wait_for_text("no calls are pending approval", 1).await;
    let mut client = InvokeServiceClient::new(daemon.channel());
    let request = InvokeRequest {
        tool: "create_file".to_owned(),
        params_json: r#"{"path": "a.txt", "content": "x"}"#.to_owned(),
        dialect: "cli_agent".to_owned(),
        ..InvokeRequest::default()
    };
    let call = tokio::spawn(async move { client.invoke(request).await });
    let screen = terminal.wait_for_text(APPROVE_PROMPT, 1).await;
    assert!(screen.contains("Tool: create_file\n"), "{screen}");

    terminal.type_text("always\n");
    let response = promptly("the file is written", call).await.unwrap().unwrap();
    assert_eq!(response.into_inner().status(), InvokeStatus::Success);

    let screen = terminal.wait_for_text("and similar calls by the rule", 1).await;
    assert!(screen.contains("Rule for 30 days: allow write_file"), "{screen}");
    assert!(!screen.contains(RULE_PROMPT), "{screen}");
    assert_eq!(rule_patterns(&daemon).await.len(), 1);
}
