//! Repositories outside `.git`: their files that can make git run programs are protected too.

use std::fs;

use super::{operator_git::run_git, repository::run_attack_script};
use crate::{
    files::tools::Tool,
    support::{Daemon, Refusal, Setup},
};

/// Where the git directory of a workspace is.
struct RepositoryLayout {
    /// The content of the file `.git`, if that exists.
    pointer: Option<&'static str>,
    /// The path of the git directory, with a trailing slash; empty for the workspace itself.
    prefix: &'static str,
    /// Whether the repository has no working tree.
    is_bare: bool,
}

const REPOSITORY_LAYOUTS: [RepositoryLayout; 3] = [
    RepositoryLayout { pointer: None, prefix: "", is_bare: true },
    RepositoryLayout { pointer: Some("gitdir: ./.gd\n"), prefix: ".gd/", is_bare: false },
    RepositoryLayout { pointer: Some("gitdir: deep/git\n"), prefix: "deep/git/", is_bare: false },
];

/// Attacks that run in the git directory, with the program as `$1`. Any step may fail.
const ATTACK_SCRIPTS: &[&str] = &[
    "git config core.fsmonitor \"$1\"",
    "[ $PWD != /workspace ] || w='worktree = .'; printf '[core]\\nbare = false\\n%s\\nfsmonitor = \"%s\"\\n' \"$w\" \"$1\" >> config",
    "printf '#!/bin/sh\\n%s\\n' \"$1\" > hooks/reference-transaction; chmod 755 hooks/*",
    "mv hooks h; mkdir hooks; printf '#!/bin/sh\\n%s\\n' \"$1\" > hooks/reference-transaction; chmod 755 hooks/*",
    "git config extensions.worktreeConfig true; git config -f config.worktree core.fsmonitor \"$1\"",
    "mkdir x x/refs x/objects; git config -f x/config core.fsmonitor \"$1\"; echo x > commondir; echo x > c; mv c commondir",
    "mkdir g g/refs g/objects; cp HEAD g; git config -f g/config core.fsmonitor \"$1\"; cd /workspace; rm -rf .git; mv $OLDPWD/g .git; echo 'gitdir: g' > .git",
];

impl RepositoryLayout {
    fn setup(&self) -> Setup {
        let config = format!("[core]\n\trepositoryformatversion = 0\n\tbare = {}\n", self.is_bare);
        let setup = [
            ("HEAD", "ref: refs/heads/main\n"),
            ("config", &config),
            ("objects/.directory", ""),
            ("refs/heads/.directory", ""),
        ]
        .iter()
        .fold(Setup::new(), |setup, (name, content)| {
            setup.workspace_file(&format!("{}{name}", self.prefix), content)
        });

        match self.pointer {
            Some(pointer) => setup.workspace_file(".git", pointer),
            None => setup,
        }
    }

    async fn run_attack(&self, daemon: &Daemon, attack: &str) {
        run_attack_script(daemon, &format!("cd ./{}\n{attack}", self.prefix)).await;
        use_git_as_operator(daemon);
    }
}

/// Runs git like a shell prompt, then changes a reference.
fn use_git_as_operator(daemon: &Daemon) {
    let root = daemon.workspace();
    run_git(&root, &["status"]);
    let tree = run_git(&root, &["hash-object", "-t", "tree", "-w", "/dev/null"]);
    let commit = run_git(&root, &["commit-tree", "-m", "x", tree.trim()]);
    run_git(&root, &["update-ref", "refs/heads/operator", commit.trim()]);
}

#[tokio::test]
async fn git_runs_nothing_from_relocated_repositories() {
    for layout in REPOSITORY_LAYOUTS {
        for setup in [layout.setup(), layout.setup().user(12345)] {
            let daemon = setup.start().await;
            let log = daemon.log();
            let config = format!("{}config, ", layout.prefix);
            assert!(
                log.contains("git run programs are protected") && log.contains(&config),
                "{log}"
            );

            for attack in ATTACK_SCRIPTS {
                layout.run_attack(&daemon, attack).await;
                assert!(!daemon.file("PWNED").exists(), "{attack}");
            }

            use_git_as_operator(&daemon);
            let reference = format!("{}refs/heads/operator", layout.prefix);
            assert!(daemon.file(&reference).exists(), "the operator can use git");

            for name in ["config", "hooks/pre-commit"] {
                let path = format!("{}{name}", layout.prefix);
                let status = Tool::Write.call(&daemon, &path).await.unwrap_err();
                assert_eq!(Refusal::from_status(&status).reason, "POLICY_DENIED", "{path}");
            }
        }
    }
}

#[tokio::test]
async fn attacks_on_relocated_repositories_succeed_without_protection() {
    for layout in REPOSITORY_LAYOUTS {
        for attack in [ATTACK_SCRIPTS[1], "mkdir hooks", ATTACK_SCRIPTS[2]] {
            let setup = layout.setup().arguments(&["--protect", "none"]);
            let daemon = setup.start().await;
            run_attack_script(&daemon, &format!("mkdir ./{}hooks", layout.prefix)).await;
            layout.run_attack(&daemon, attack).await;
            let is_attack = attack != "mkdir hooks";
            assert_eq!(daemon.file("PWNED").exists(), is_attack, "{attack}");
        }
    }
}

#[tokio::test]
async fn daemon_adds_no_placeholders_without_a_repository() {
    let setup = Setup::new().workspace_file("HEAD", "a headline\n");
    let daemon = setup.workspace_file("refs/x", "").start().await;
    assert!(!daemon.log().contains("repository"), "{}", daemon.log());
    assert_eq!(fs::read_dir(daemon.workspace()).unwrap().count(), 2);
}
