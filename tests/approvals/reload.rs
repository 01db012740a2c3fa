//! SIGHUP: the daemon reloads the configuration and the key file.

use std::{
    fs,
    io::{BufRead as _, BufReader, IsTerminal as _},
    process::{Command, Stdio},
    sync::Arc,
};

use jig::api::v1::Decision;
use rustix::process::{Pid, Signal, kill_process};

use super::{ASK_POLICY, decide, decide_request, start_with_policy, wait_for_pending_approval};
use crate::support::{
    Daemon, KeyFile, Refusal, Setup, daemon_binary, eventually, open_pseudo_terminal, shell,
    with_key,
};

fn count_in_log(daemon: &Daemon, text: &str) -> usize {
    daemon.log().matches(text).count()
}

fn rewrite_config(daemon: &Daemon, lines: &str) {
    let path = daemon.sibling_path("jig.toml");
    let workspace = daemon.workspace();
    let text = format!("[[workspaces]]\npath = {workspace:?}\n{lines}\n");
    fs::write(path, text).unwrap();
}

#[tokio::test]
async fn reloaded_policy_applies_to_new_and_approved_calls() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let pending_call = daemon.spawn_run(shell("echo waited"));
    let approval = wait_for_pending_approval(&daemon).await;
    rewrite_config(&daemon, "[policy]\ndangerous = \"allow\"");
    daemon.reload_config(Daemon::RELOADED).await;
    assert_eq!(daemon.run(shell("echo free")).await.stdout, "free\n");

    let running =
        daemon.spawn_run(shell("touch begun; echo begun; until [ -e go ]; do sleep 0.01; done"));
    eventually("the command runs", async || daemon.file("begun").exists()).await;
    rewrite_config(&daemon, "[policy]\ndeny_tools = [\"run\"]");
    daemon.reload_config(Daemon::RELOADED).await;
    daemon.run_failing(shell("true"), "TOOL_DISABLED").await;
    fs::write(daemon.file("go"), "").unwrap();
    assert_eq!(running.await.unwrap().unwrap().stdout, "begun\n");
    assert!(!pending_call.is_finished());

    decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();

    // The approval does not apply: the tool was disabled after the request.
    let status = pending_call.await.unwrap().unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "TOOL_DISABLED");
    assert_eq!(count_in_log(&daemon, Daemon::RELOAD_FAILED), 0, "{}", daemon.log());

    // Policy changes take effect without a restart.
    assert_eq!(count_in_log(&daemon, "need a restart to take effect"), 0);

    rewrite_config(&daemon, "[limits]\nprocesses = 7");
    daemon.reload_config("need a restart to take effect").await;
}

#[tokio::test]
async fn reload_rejects_a_bad_file_as_a_whole() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("one", "admin", &[]);
    let path = keys.path().display().to_string();
    let setup = Setup::new()
        .workspace_table("[policy]\ndeny_tools = [\"stat\"]")
        .arguments(&["--keys", &path]);
    let daemon = setup.with_resource(Arc::clone(&keys) as Arc<KeyFile>).start().await;
    let run = async || daemon.try_run(with_key(&key, shell("true"))).await;
    let valid_keys = fs::read_to_string(&path).unwrap();

    for (lines, key_file, parts) in [
        ("[policy]\ndeny_tools = [\"run\", \"dance\"]", valid_keys.as_str(), &["dance"][..]),
        ("[policy\n", &valid_keys, &["TOML parse error"]),
        ("[policy]\ndeny_tools = [\"run\"]\nallow = 1", &valid_keys, &["unknown field"]),
        (
            "[policy]\ndeny_tools = [\"run\"]\nread_only = \"no\"\n[approvals]\ntimeout = \"x\"",
            &valid_keys,
            &["policy.read_only", "approvals.timeout"],
        ),
        // The configuration is valid, but the key file is not: the daemon applies neither.
        ("[policy]\ndeny_tools = [\"run\"]", "[[keys]]\n", &["--keys", "missing field"]),
        (
            "[policy]\ndeny_tools = [\"run\"]\n[[policy.rules]]\nname = \"x\"\ntool = \"run\"\naction = \"deny\"\npattern = \"(\"",
            &valid_keys,
            &["unclosed group"],
        ),
    ] {
        rewrite_config(&daemon, lines);
        fs::write(&path, key_file).unwrap();
        let counts_before =
            parts.iter().map(|part| count_in_log(&daemon, part)).collect::<Vec<_>>();
        daemon.reload_config(Daemon::RELOAD_FAILED).await;
        eventually("the daemon logs every problem", async || {
            parts
                .iter()
                .zip(&counts_before)
                .all(|(part, before)| count_in_log(&daemon, part) > *before)
        })
        .await;
        assert_eq!(run().await.unwrap().exit_code, Some(0), "{lines}");
    }

    assert_eq!(count_in_log(&daemon, Daemon::RELOADED), 0);
    assert_eq!(
        Refusal::from_status(&daemon.try_run(shell("true")).await.unwrap_err()).reason,
        "UNAUTHENTICATED"
    );
}

#[tokio::test]
async fn reload_adds_and_revokes_keys() {
    let keys = Arc::new(KeyFile::new());
    let [old_key, kept_key] = ["old", "kept"].map(|name| keys.add_key(name, "invoke", &[]));
    let path = keys.path().display().to_string();
    let setup =
        Setup::new().arguments(&["--keys", &path]).with_resource(Arc::clone(&keys) as Arc<KeyFile>);
    let daemon = setup.start().await;

    let is_accepted = async |key: &str| match daemon.try_run(with_key(key, shell("true"))).await {
        Ok(_) => true,
        Err(status) => {
            assert_eq!(Refusal::from_status(&status).reason, "UNAUTHENTICATED");
            false
        }
    };
    assert!(is_accepted(&old_key).await && is_accepted(&kept_key).await);
    assert!(keys.run_jig_key(&["revoke", "old"]).status.success());

    let new_key = keys.add_key("new", "invoke", &[]);
    assert!(is_accepted(&old_key).await && !is_accepted(&new_key).await);

    daemon.reload_config(Daemon::RELOADED).await;
    assert!(
        !is_accepted(&old_key).await && is_accepted(&kept_key).await && is_accepted(&new_key).await
    );

    // A missing key file changes no keys.
    fs::rename(&path, format!("{path}.away")).unwrap();
    daemon.reload_config(Daemon::RELOAD_FAILED).await;
    assert!(is_accepted(&kept_key).await);
}

#[tokio::test]
async fn reload_keeps_keys_that_the_config_omits() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("one", "invoke", &[]);
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("jig.toml");
    let line = format!("keys = {:?}\n", keys.path());
    fs::write(&config, &line).unwrap();
    let arguments = ["--config", &config.display().to_string()];
    let daemon = Setup::new()
        .arguments(&arguments)
        .with_resource(Arc::clone(&keys) as Arc<KeyFile>)
        .start()
        .await;
    daemon.run(with_key(&key, shell("true"))).await;
    fs::write(&config, "").unwrap();
    daemon.reload_config(Daemon::RELOAD_FAILED).await;
    assert!(daemon.try_run(shell("true")).await.is_err());

    daemon.run(with_key(&key, shell("true"))).await;
}

#[tokio::test]
async fn daemon_without_a_config_survives_reload() {
    let daemon = Daemon::start().await;
    daemon.reload_config(Daemon::RELOADED).await;
    daemon.run(shell("true")).await;
}

#[tokio::test]
async fn terminal_hangup_ends_the_daemon() {
    let directory = tempfile::tempdir().unwrap();
    let [workspace, state] = ["w", "s"].map(|name| directory.path().join(name));
    fs::create_dir(&workspace).unwrap();
    let (screen, terminal) = open_pseudo_terminal();

    let mut child = Command::new(daemon_binary())
        .args(["--listen", "127.0.0.1:0", "--drain-timeout", "1s"])
        .args(["--workspace".as_ref(), workspace.as_os_str()])
        .args(["--state-dir".as_ref(), state.as_os_str()])
        .env_clear()
        .stdin(terminal.try_clone().unwrap())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();

    let mut lines = BufReader::new(child.stdout.take().unwrap());
    lines.read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on "), "{line}");

    drop(screen);
    // A child that another test is starting has the screen until it executes its program.
    eventually("the terminal is closed", async || !terminal.is_terminal()).await;
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    eventually("the daemon ends", async || child.try_wait().unwrap().is_some()).await;
    assert!(child.wait().unwrap().success());
}
