//! Changes to a repository that make git run a command's program for the operator.

use std::fs;

use super::operator_git::run_git;
use crate::{
    files::tools::Tool,
    support::{Daemon, Refusal, Setup, run_jigd, shell},
};

/// A repository without commits, like `git init` creates it. A name that starts with a dot creates
/// its directory only.
const REPOSITORY_FILES: &[(&str, &str)] = &[
    (".git/HEAD", "ref: refs/heads/main\n"),
    (".git/config", "[core]\n\trepositoryformatversion = 0\n\tbare = false\n[a]\n\tb = c\n"),
    (".git/objects/.directory", ""),
    (".git/refs/.directory", ""),
    (".git/refs/heads/.directory", ""),
    (".git/hooks/.directory", ""),
];

/// What each attack makes git run, as a hook or a monitor: it creates a file in the workspace.
const ATTACK_PROGRAM: &str = "touch PWNED; false";

/// Attacks, with the program as `$1`. Any step may fail.
const ATTACK_SCRIPTS: &[&str] = &[
    "git config core.fsmonitor \"$1\"",
    "printf '[core]\\n fsmonitor = \"%s\"\\n' \"$1\" >> .git/config",
    "sed -i \"1i [core]\\nfsmonitor = \\\"$1\\\"\" .git/config",
    "mkdir x; cp .git/config x/; git config -f x/config core.fsmonitor \"$1\"; mkdir x/refs x/objects; rm -f .git/commondir; echo ../x > .git/commondir",
    "mkdir x; cp .git/config x/; mkdir x/refs x/objects; git config -f x/config core.fsmonitor \"$1\"; echo ../x > c; mv -f c .git/commondir; ln -sf ../c .git/commondir",
    "git config extensions.worktreeConfig true; git config -f .git/config.worktree core.fsmonitor \"$1\"",
    "printf '#!/bin/sh\\n%s\\n' \"$1\" > .git/hooks/pre-commit; chmod 755 .git/hooks/pre-commit",
    "printf '#!/bin/sh\\n%s\\n' \"$1\" > .git/hooks/post-index-change; chmod 755 .git/hooks/*",
    "cp -a .git g && git config -f g/config core.fsmonitor \"$1\" && mv .git h && mv g .git",
    "cp -a .git g; git config -f g/config core.fsmonitor \"$1\"; rm -rf .git; echo 'gitdir: g' > .git",
    "git init -q --separate-git-dir g; git config -f g/config core.fsmonitor \"$1\"",
];

#[tokio::test]
async fn git_runs_nothing_for_the_operator_in_an_attacked_repository() {
    for setup in [
        setup_with_repository(),
        setup_with_repository().workspace_owner(12345),
        setup_with_repository().user(12345),
    ] {
        let daemon = setup.start().await;
        check_git_workflows(&daemon).await;
        check_tools_are_denied(&daemon).await;

        // Some attacks destroy the repository, which commands may change.
        run_all_attacks(&daemon).await;
        let log = daemon.log();
        assert!(log.contains("files that make git run programs are protected"), "{log}");
    }
}

#[tokio::test]
async fn attacks_succeed_without_protection() {
    let daemon = setup_with_repository().arguments(&["--protect", "none"]).start().await;
    run_attack_script(&daemon, ATTACK_SCRIPTS[0]).await;
    use_git_as_operator(&daemon);
    assert!(daemon.file("PWNED").exists(), "the test detects a successful attack");
    assert!(!daemon.file(".git/commondir").exists());
}

#[tokio::test]
async fn l1_is_available_with_default_protection() {
    let daemon = setup_with_repository().at_l1().start().await;
    let isolation = daemon.info().await.isolation.unwrap();
    assert_eq!(isolation.level, "L1");

    let layer = isolation.layers.iter().find(|layer| layer.name == "protected_paths").unwrap();
    assert!(!layer.applied && layer.detail.contains("commands can"), "{layer:?}");
    check_tools_are_denied(&daemon).await;

    // At L1 commands can change these paths, and the daemon reports it.
    let command = shell("git config core.fsmonitor x && git config core.fsmonitor");
    assert_eq!(daemon.output(command).await, "x\n");

    let log = daemon.log();
    assert!(
        log.contains("these paths are NOT protected at L1") && log.contains("in a clone"),
        "{log}"
    );
    assert!(!log.contains("are protected"), "{log}");
}

#[tokio::test]
async fn l1_is_unavailable_with_explicit_protection() {
    let setup = setup_with_repository().at_l1().arguments(&["--protect", "@git"]);
    let daemon = setup.start().await;
    let refusal = daemon.run_failing(shell("true"), "SANDBOX_UNAVAILABLE").await;
    for text in ["max_user_namespaces", "leave out --protect", "at L1"] {
        assert!(refusal.message.contains(text), "{text}: {refusal:?}");
    }

    let isolation = daemon.info().await.isolation.unwrap();
    let last = isolation.failed_levels.last().unwrap();
    assert_eq!(last.stage, "protected_paths", "{last:?}");
}

#[tokio::test]
async fn commands_cannot_replace_a_git_file() {
    let link = "gitdir: ../elsewhere\n";
    let daemon = Setup::new().workspace_file(".git", link).start().await;
    for command in ["rm -f .git; mkdir .git", "echo gitdir: x > .git", "mv .git x"] {
        assert_ne!(daemon.run(shell(command)).await.exit_code, Some(0), "{command}");
    }
    assert_eq!(fs::read_to_string(daemon.file(".git")).unwrap(), link);
}

#[tokio::test]
async fn presets_protect_configurations_of_agents_and_editors() {
    let table = "protected = [\"@git\", \"@agent-configs\"]";
    let setup = setup_with_repository().workspace_file(".venv/pyvenv.cfg", "home = /usr\n");
    let daemon = setup.workspace_file(".mcp.json", "{}\n").workspace_table(table).start().await;

    for path in
        [".mcp.json", ".vscode/tasks.json", ".claude/settings.json", ".envrc", ".venv/pyvenv.cfg"]
    {
        let command = format!("mkdir -p $(dirname {path}); echo x > {path}");
        assert_ne!(daemon.run(shell(&command)).await.exit_code, Some(0), "{path}");
        assert_write_denied(&daemon, path).await;
    }
    assert_eq!(fs::read_to_string(daemon.file(".mcp.json")).unwrap(), "{}\n");

    run_all_attacks(&daemon).await;
}

#[test]
fn daemon_rejects_unknown_protect_values() {
    for value in ["@gti", "/etc", "../x"] {
        let output = run_jigd(&["--workspace", "/usr/share/doc", "--protect", value, "--check"]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{stderr}");
        assert!(stderr.contains("@git, @agent-configs, or none alone"), "{stderr}");
    }
}

pub(super) fn setup_with_repository() -> Setup {
    let add = |setup: Setup, (path, content): &(&str, &str)| setup.workspace_file(path, content);
    REPOSITORY_FILES.iter().fold(Setup::new(), add)
}

async fn run_all_attacks(daemon: &Daemon) {
    for attack in ATTACK_SCRIPTS {
        run_attack_script(daemon, attack).await;
        use_git_as_operator(daemon);
        assert!(!daemon.file("PWNED").exists(), "{attack}");
        run_attack_script(daemon, "rm -rf x g c h").await;
    }
}

pub(super) async fn run_attack_script(daemon: &Daemon, script: &str) {
    let command = format!("set -- '{ATTACK_PROGRAM}'; cd /workspace 2>/dev/null\n{script}");
    daemon.run(shell(&command)).await;
}

/// Runs git like a shell prompt, an editor and the operator.
fn use_git_as_operator(daemon: &Daemon) {
    assert!(daemon.file(".git").exists(), "no attack removes the repository");
    for arguments in [&["status"][..], &["add", "-A"], &["commit", "--allow-empty", "-qm", "x"]] {
        run_git(&daemon.workspace(), arguments);
    }
}

async fn check_tools_are_denied(daemon: &Daemon) {
    for path in [".git/config", ".git/commondir", ".git/hooks/pre-commit", ".git/config.worktree"] {
        assert_write_denied(daemon, path).await;
    }
}

async fn assert_write_denied(daemon: &Daemon, path: &str) {
    let status = Tool::Write.call(daemon, path).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "POLICY_DENIED", "{path}");
}

/// Checks that commits, branches, merges and stashes work, and that the configuration is read-only.
async fn check_git_workflows(daemon: &Daemon) {
    let script = "
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@localhost GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@localhost
set -e
git switch -qc work; echo one > one; git add one; git commit -qm one
git switch -qc side; echo two > two; git add two; git commit -qm two
git switch -q work; echo three >> one; git commit -qam three; git merge -q -m merged side
echo four >> one; git stash -q; git stash pop -q; git reset -q --hard; git rebase -q side work; git gc -q
git worktree add -q /tmp/tree side; git worktree list | wc -l
git tag finished; git fsck --no-progress 2>&1 | grep -v dangling || true
git config a.b
git config a.b d 2>/dev/null || echo unchanged; git config a.b";
    let output = daemon.output(shell(script)).await;
    assert_eq!(output, "2\nc\nunchanged\nc\n");
}
