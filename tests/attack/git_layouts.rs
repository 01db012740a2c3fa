//! Repositories that do not lie in `.git`: what makes git run programs are protected in these, too.

use std::fs;

use super::{operator::git, repository::run};
use crate::{
    files::tools::Tool,
    support::{Daemon, Refusal, Setup},
};

/// Where a workspace has its git directory.
struct Layout {
    /// Content of the file `.git`, where there is one.
    pointer: Option<&'static str>,
    /// Begin of the names in the git directory.
    prefix: &'static str,
    /// Whether it has no working tree.
    is_bare: bool,
}

const LAYOUTS: [Layout; 3] = [
    Layout { pointer: None, prefix: "", is_bare: true },
    Layout { pointer: Some("gitdir: ./.gd\n"), prefix: ".gd/", is_bare: false },
    Layout { pointer: Some("gitdir: deep/git\n"), prefix: "deep/git/", is_bare: false },
];

/// Attacks with the program as `$1`, in the git directory. They may fail at any step.
const ATTACKS: &[&str] = &[
    "git config core.fsmonitor \"$1\"",
    "[ $PWD != /workspace ] || w='worktree = .'; printf '[core]\\nbare = false\\n%s\\nfsmonitor = \"%s\"\\n' \"$w\" \"$1\" >> config",
    "printf '#!/bin/sh\\n%s\\n' \"$1\" > hooks/reference-transaction; chmod 755 hooks/*",
    "mv hooks h; mkdir hooks; printf '#!/bin/sh\\n%s\\n' \"$1\" > hooks/reference-transaction; chmod 755 hooks/*",
    "git config extensions.worktreeConfig true; git config -f config.worktree core.fsmonitor \"$1\"",
    "mkdir x x/refs x/objects; git config -f x/config core.fsmonitor \"$1\"; echo x > commondir; echo x > c; mv c commondir",
    "mkdir g g/refs g/objects; cp HEAD g; git config -f g/config core.fsmonitor \"$1\"; cd /workspace; rm -rf .git; mv $OLDPWD/g .git; echo 'gitdir: g' > .git",
];

impl Layout {
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

    async fn attack(&self, daemon: &Daemon, attack: &str) {
        run(daemon, &format!("cd ./{}\n{attack}", self.prefix)).await;
        operator_works(daemon);
    }
}

/// Does what a prompt does, and changes a reference.
fn operator_works(daemon: &Daemon) {
    let root = daemon.workspace();
    git(&root, &["status"]);
    let tree = git(&root, &["hash-object", "-t", "tree", "-w", "/dev/null"]);
    let commit = git(&root, &["commit-tree", "-m", "x", tree.trim()]);
    git(&root, &["update-ref", "refs/heads/operator", commit.trim()]);
}

#[tokio::test]
async fn repositories_elsewhere_in_the_workspace_make_git_run_nothing() {
    for layout in LAYOUTS {
        for setup in [layout.setup(), layout.setup().user(12345)] {
            let daemon = setup.start().await;
            let log = daemon.log();
            let config = format!("{}config, ", layout.prefix);
            assert!(
                log.contains("git run programs are protected") && log.contains(&config),
                "{log}"
            );
            for attack in ATTACKS {
                layout.attack(&daemon, attack).await;
                assert!(!daemon.file("PWNED").exists(), "{attack}");
            }
            operator_works(&daemon);
            let reference = format!("{}refs/heads/operator", layout.prefix);
            assert!(daemon.file(&reference).exists(), "the operator can work");

            for name in ["config", "hooks/pre-commit"] {
                let path = format!("{}{name}", layout.prefix);
                let status = Tool::Write.call(&daemon, &path).await.unwrap_err();
                assert_eq!(Refusal::of(&status).reason, "POLICY_DENIED", "{path}");
            }
        }
    }
}

#[tokio::test]
async fn the_attacks_on_repositories_elsewhere_work_without_protection() {
    for layout in LAYOUTS {
        for attack in [ATTACKS[1], "mkdir hooks", ATTACKS[2]] {
            let setup = layout.setup().arguments(&["--protect", "none"]);
            let daemon = setup.start().await;
            run(&daemon, &format!("mkdir ./{}hooks", layout.prefix)).await;
            layout.attack(&daemon, attack).await;
            let is_attack = attack != "mkdir hooks";
            assert_eq!(daemon.file("PWNED").exists(), is_attack, "{attack}");
        }
    }
}

#[tokio::test]
async fn a_directory_without_a_repository_gets_no_placeholders() {
    let setup = Setup::new().workspace_file("HEAD", "a headline\n");
    let daemon = setup.workspace_file("refs/x", "").start().await;
    assert!(!daemon.log().contains("repository"), "{}", daemon.log());
    assert_eq!(fs::read_dir(daemon.workspace()).unwrap().count(), 2);
}
