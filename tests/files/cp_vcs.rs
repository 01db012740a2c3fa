//! `jig cp -r` and git: local git must not act on repositories that commands write in the workspace.

use std::{
    fs,
    os::unix::fs::symlink,
    process::{Command, Stdio},
};

use serde_json::Value;

use super::client_fixture::{ClientFixture, sorted_names};
use crate::support::shell;

impl ClientFixture {
    /// Whether `git status` in a local directory runs a program that the workspace's repository
    /// names.
    fn git_runs_planted_program(&self, directory: &str) -> bool {
        let marker = self.local_path("pwned");
        Command::new("git")
            .arg("status")
            .current_dir(self.local_path(directory))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.local_dir.path())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CEILING_DIRECTORIES", self.local_dir.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let was_run = marker.exists();
        if was_run {
            fs::remove_file(marker).unwrap();
        }

        was_run
    }

    /// Runs a command that creates a repository in the workspace. Its configuration runs a program
    /// on the local side; `extra` is added to section `core`.
    async fn plant_repository(&self, directory: &str, extra: &str) {
        let marker = self.local_path("pwned");
        let script = format!(
            "mkdir -p {directory} && cd {directory} && mkdir -p objects refs/heads
            echo 'ref: refs/heads/main' > HEAD
            printf '[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = \"touch {}; false\"\\n{extra}' > config",
            marker.display()
        );
        let response = self.daemon.run(shell(&script)).await;
        assert_eq!(response.exit_code, Some(0), "{response:?}");
    }
}

#[tokio::test]
async fn cp_skips_gitdir_files_and_their_repositories() {
    let fixture = ClientFixture::start().await;
    fixture.plant_repository("tree/x", "").await;
    fs::write(fixture.daemon.file("tree/.git"), "gitdir: x\n").unwrap();
    fs::write(fixture.daemon.file("tree/f"), "").unwrap();

    let stderr = fixture.run_failing_cp(&["-r", ":tree", "out"]);
    assert_eq!(sorted_names(&fixture.local_path("out")), ["f"]);

    for line in [
        "skipped, a name that git takes for .git: :tree/.git\n",
        "skipped, a directory that git takes for a repository: :tree/x\n",
        "skipped because a version control tool would act on them: 2; copy them with --with-git\n",
    ] {
        assert!(stderr.contains(line), "{stderr}");
    }

    assert!(!fixture.git_runs_planted_program("out"));

    // The planted repository works: with `--with-git`, git runs its program.
    fixture.run_cp(&["-r", "--with-git", ":tree", "insisted"], 0);
    assert!(fixture.git_runs_planted_program("insisted"));
}

#[tokio::test]
async fn cp_skips_directories_that_are_repositories() {
    let fixture = ClientFixture::start().await;
    let worktree = "\\tbare = false\\n\\tworktree = .\\n";
    fixture.plant_repository("tree/docs", worktree).await;
    fs::write(fixture.daemon.file("tree/f"), "").unwrap();

    let output = fixture.run_cp(&["-r", "--json", ":tree", "out"], 1);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["skipped_vcs_entries"], 1, "{json}");
    assert_eq!(json["skipped"][0]["path"], ":tree/docs", "{json}");
    assert_eq!(json["skipped"][0]["reason"], "GIT_REPOSITORY", "{json}");
    assert_eq!(sorted_names(&fixture.local_path("out")), ["f"]);
    assert!(!fixture.git_runs_planted_program("out"));

    // A copy of the repository itself fails.
    for from in [":tree/docs", ":tree/docs/."] {
        let stderr = fixture.run_failing_cp(&["-r", from, "docs"]);
        assert!(stderr.contains("takes for a repository"), "{stderr}");
        assert!(!fixture.local_path("docs").exists());
    }

    fixture.run_cp(&["-r", "--with-git", ":tree", "insisted"], 0);
    assert!(fixture.git_runs_planted_program("insisted/docs"));
}

#[tokio::test]
async fn successive_copies_cannot_assemble_a_repository() {
    let fixture = ClientFixture::start().await;
    let worktree = "\\tbare = false\\n\\tworktree = .\\n";
    fixture.plant_repository("tree", worktree).await;
    fixture.run_cp(&[":tree/HEAD", "out/"], 1);
    fs::create_dir(fixture.local_path("out")).unwrap();
    fixture.run_cp(&[":tree/config", "out/"], 0);
    fixture.run_cp(&[":tree/HEAD", "out/"], 0);
    fixture.run_cp(&["-r", ":tree/objects", "out"], 0);

    for arguments in [
        &["-r", ":tree/refs", "out"][..],
        &["-r", ":tree/refs/heads", "out/refs/heads"],
        &["-r", ":tree/.", "out"],
    ] {
        let stderr = fixture.run_failing_cp(arguments);
        assert!(stderr.contains("takes for a repository"), "{stderr}");
    }

    // Parts that arrive with directories of several copies cannot form one either.
    fs::create_dir_all(fixture.daemon.file("second/out")).unwrap();
    fs::rename(fixture.daemon.file("tree/refs"), fixture.daemon.file("second/out/refs")).unwrap();
    let stderr = fixture.run_failing_cp(&["-r", ":second/.", "."]);
    assert!(stderr.contains("for a repository: :second/./out\n"), "{stderr}");
    assert_eq!(sorted_names(&fixture.local_path("out")), ["HEAD", "config", "objects"]);
    assert!(!fixture.git_runs_planted_program("out"));
}

#[tokio::test]
async fn cp_skips_git_names_in_both_directions() {
    let fixture = ClientFixture::start().await;
    let git_names = [".GIT", ".git ", ".g\u{200c}it", "git~1", ".git::$DATA"];
    for tree in [fixture.daemon.file("tree"), fixture.local_path("tree")] {
        fs::create_dir_all(tree.join("deep/.Git")).unwrap();
        fs::write(tree.join("deep/.Git/config"), "").unwrap();
        for name in git_names {
            fs::write(tree.join(name), "").unwrap();
        }

        symlink("deep", tree.join(".git")).unwrap();
        fs::write(tree.join(".gitignore"), "").unwrap();

        // The git directory of a linked worktree has no objects or refs of its own.
        fs::create_dir(tree.join("linked")).unwrap();
        fs::write(tree.join("linked/HEAD"), "").unwrap();
        fs::write(tree.join("linked/commondir"), "../elsewhere").unwrap();
    }

    for (from, to) in [("tree", ":in"), (":tree", "out")] {
        let output = fixture.run_cp(&["-r", "--json", from, to], 1);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["skipped_vcs_entries"], git_names.len() + 3, "{json}");
    }

    for copy in [fixture.daemon.file("in"), fixture.local_path("out")] {
        assert_eq!(sorted_names(&copy), [".gitignore", "deep"]);
        assert_eq!(sorted_names(&copy.join("deep")), [""; 0]);
    }
}

/// These tools run programs that their configuration names (`.hg/hgrc`, `.jj/repo/config.toml`);
/// Subversion does not, so `.svn` is copied.
#[tokio::test]
async fn cp_skips_other_vcs_names_in_both_directions() {
    let fixture = ClientFixture::start().await;
    let directories = [".hg", ".Jj", ".BZR", ".sl", ".pijul", "_darcs"];
    let files = [".fslckout", "_FOSSIL_", "hg~1"];

    for tree in [fixture.daemon.file("tree"), fixture.local_path("tree")] {
        for name in directories.iter().chain(&[".svn"]) {
            fs::create_dir_all(tree.join(name)).unwrap();
            fs::write(tree.join(name).join("hgrc"), "[hooks]\nupdate = id\n").unwrap();
        }
        for name in files.iter().chain(&[".hgignore"]) {
            fs::write(tree.join(name), "").unwrap();
        }
    }

    let count = directories.len() + files.len();
    for (from, to) in [("tree", ":in"), (":tree", "out")] {
        // Skipping these names is documented, so the copy succeeds.
        let output = fixture.run_cp(&["-r", "--json", from, to], 0);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["skipped_vcs_entries"], count, "{json}");
        assert_eq!(json["skipped"][0]["reason"], "VCS_NAME", "{json}");
    }

    for copy in [fixture.daemon.file("in"), fixture.local_path("out")] {
        assert_eq!(sorted_names(&copy), [".hgignore", ".svn"]);
    }

    for arguments in [
        &["-r", ":tree/.hg", "copy"][..],
        &[":tree/.hgignore", "out/.HG/hgrc"],
        &["tree/.hgignore", ":.hg"],
    ] {
        let stderr = fixture.run_failing_cp(arguments);
        assert!(stderr.contains("--with-git"), "{stderr}");
    }

    fixture.run_cp(&["-r", "--with-git", ":tree", "insisted"], 0);
    assert_eq!(sorted_names(&fixture.local_path("insisted")).len(), count + 2);
}

#[tokio::test]
async fn cp_copies_git_files_only_with_the_flag() {
    let fixture = ClientFixture::start().await;
    fs::write(fixture.daemon.file(".git"), "gitdir: x").unwrap();
    fs::write(fixture.daemon.file("f"), "").unwrap();
    fs::write(fixture.local_path(".git"), "gitdir: y").unwrap();
    fs::create_dir_all(fixture.local_path("mine/.git/hooks")).unwrap();
    symlink("mine/.git/hooks/pre-commit", fixture.local_path("link")).unwrap();
    fs::write(fixture.local_path("mine/.git/hooks/pre-commit"), "own").unwrap();

    for arguments in [
        &[":.git", "copy"][..],
        &[":.git", "mine/"],
        &[":f", ".GIT"],
        &[":f", "mine/.git/hooks/pre-push"],
        &[":f", "link"],
        &[".git", ":copy"],
        &[".git", ":"],
        &["mine/.git/hooks/pre-commit", ":.git"],
    ] {
        let stderr = fixture.run_failing_cp(arguments);
        assert!(stderr.contains("--with-git"), "{stderr}");
    }

    assert_eq!(sorted_names(fixture.local_dir.path()), [".git", "link", "mine"]);
    assert_eq!(sorted_names(&fixture.local_path("mine/.git/hooks")), ["pre-commit"]);

    fixture.run_cp(&["--with-git", ":.git", "copy"], 0);
    assert_eq!(fs::read(fixture.local_path("copy")).unwrap(), b"gitdir: x");
}

#[tokio::test]
async fn cp_does_not_follow_links_into_repositories() {
    let fixture = ClientFixture::start().await;
    fs::create_dir(fixture.daemon.file("dd")).unwrap();
    fs::write(fixture.daemon.file("dd/post-checkout"), "").unwrap();
    for directory in ["r/.git/hooks", "bare/hooks", "bare/refs", "plain"] {
        fs::create_dir_all(fixture.local_path(directory)).unwrap();
    }

    fs::write(fixture.local_path("bare/HEAD"), "").unwrap();

    for (target, link) in
        [("r/.git/hooks", "lk"), ("lk", "chain"), ("bare/hooks", "hooks"), ("plain", "free")]
    {
        symlink(target, fixture.local_path(link)).unwrap();
    }

    for link in ["lk", "chain", "hooks"] {
        let name = format!("{link}/post-checkout");
        let slash = format!("{link}/");
        for arguments in [
            [":dd/post-checkout", &name].as_slice(),
            &[":dd/post-checkout", link],
            &["-r", ":dd/.", link],
            &["-r", ":dd", &slash],
        ] {
            let stderr = fixture.run_failing_cp(arguments);
            assert!(stderr.contains("--with-git"), "{stderr}");
        }
    }

    assert_eq!(sorted_names(&fixture.local_path("r/.git/hooks")), [""; 0]);
    assert_eq!(sorted_names(&fixture.local_path("bare/hooks")), [""; 0]);

    // Other links are followed; with `--with-git`, these are too.
    fixture.run_cp(&["-r", ":dd/.", "free"], 0);
    assert_eq!(sorted_names(&fixture.local_path("plain")), ["post-checkout"]);

    fixture.run_cp(&["-r", "--with-git", ":dd/.", "lk"], 0);
    assert_eq!(sorted_names(&fixture.local_path("r/.git/hooks")), ["post-checkout"]);
}
