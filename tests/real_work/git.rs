//! Git: everyday commands, and ownership of repositories.

use super::{run_script, with_each_daemon};
use crate::support::Setup;

with_each_daemon!(everyday_git_commands_work, git_trusts_repositories_of_any_owner);

async fn everyday_git_commands_work(setup: Setup) {
    let daemon = setup.start().await;

    let script = r#"
git config --global user.name agent
git config --global user.email agent@localhost
git config --global init.defaultBranch main
git init -q one && cd one
seq 100 > numbers; mkdir d; echo text > d/file; ln -s d/file link; echo '#!/bin/sh' > run; chmod +x run
git add -A; git commit -qm first
git switch -qc side; sed -i 's/^50$/fifty/' numbers; git commit -qam side
git switch -q main; sed -i 's/^10$/ten/' numbers; git commit -qam main
git rebase -q main side; git log --format=%s side | tr '\n' ' '; echo
git switch -q main; git merge -q --no-ff -m merged side; git log --oneline --graph | wc -l
echo more >> numbers; git stash -q; git status --porcelain | wc -l; git stash pop -q; git diff --stat | tail -1
git commit -qam more; git tag -a v1 -m v1; git describe
git worktree add -q ../tree side; git -C ../tree log -1 --format=%s; git worktree list | wc -l
GIT_SEQUENCE_EDITOR='sed -i 2d' git rebase -qi HEAD~1 2>&1 | tail -1
git gc -q; git fsck --no-progress; git clean -ndx | wc -l
git format-patch -q -1 --stdout > ../p; git reset -q --hard HEAD~1; git am -q ../p; git blame numbers | grep -c fifty
git archive --format=tar HEAD | tar t | sort | sed -n 1p
cd ..; git clone -q one two; git clone -q --no-local one three; git clone -q --bare one bare.git
cd two; git log -1 --format=%s; echo x > new; git add new; git commit -qm new; git push -q ../bare.git HEAD:refs/heads/topic
git -C ../three fetch -q ../bare.git topic; git -C ../three log -1 --format=%s FETCH_HEAD
git -c protocol.file.allow=always submodule --quiet add ../bare.git sub
printf '#!/bin/sh\necho hook ran\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; git commit -qm sub 2>&1 | grep hook
git grep -n fifty
"#;
    let output = run_script(&daemon, script).await;
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[0], "side main first ", "{output}");

    for expected in [" 1 file changed, 1 insertion(+)", "v1", "hook ran", "numbers:50:fifty"] {
        assert!(lines.contains(&expected), "{expected}: {output}");
    }
}

async fn git_trusts_repositories_of_any_owner(setup: Setup) {
    let owners = [setup.workspace_uid(), 54321];
    let daemon = setup.start().await;

    for owner in owners {
        let repository = daemon.workspace().join(owner.to_string());
        let made = std::process::Command::new("git")
            .args(["init", "-q"])
            .arg(&repository)
            .env("HOME", "/nonexistent")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .status();
        assert!(made.unwrap().success());
        let chowned = std::process::Command::new("chown")
            .arg("-R")
            .arg(format!("{owner}:{owner}"))
            .arg(&repository)
            .status();
        assert!(chowned.unwrap().success());
    }

    // The files of another user can be read, not written.
    let script = format!(
        "cd {}; echo x > x; git add x; git -c user.name=a -c user.email=a@b commit -qm x; git status --porcelain; git log --format=%s; cd ../54321; git status --porcelain --branch",
        owners[0]
    );
    assert_eq!(run_script(&daemon, &script).await, "x\n## No commits yet on master\n");
}
