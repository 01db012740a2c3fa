//! `jig cp -r` and git: what a command of the workspace writes, git on this side must not act on.

use std::{
    fs,
    os::unix::fs::symlink,
    process::{Command, Stdio},
};

use serde_json::Value;

use super::sides::{Sides, names};
use crate::support::shell;

impl Sides {
    /// Whether `git status` in a directory of this side runs what the workspace's commands chose.
    fn git_is_fooled(&self, directory: &str) -> bool {
        let mark = self.at("pwned");
        Command::new("git")
            .arg("status")
            .current_dir(self.at(directory))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.here.path())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CEILING_DIRECTORIES", self.here.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let is_fooled = mark.exists();
        if is_fooled {
            fs::remove_file(mark).unwrap();
        }
        is_fooled
    }

    /// Has a command make a repository in the workspace whose configuration runs a program on this
    /// side. `extra` stands in its section `core`.
    async fn make_trap(&self, directory: &str, extra: &str) {
        let mark = self.at("pwned");
        let script = format!(
            "mkdir -p {directory} && cd {directory} && mkdir -p objects refs/heads
            echo 'ref: refs/heads/main' > HEAD
            printf '[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = \"touch {}; false\"\\n{extra}' > config",
            mark.display()
        );
        let response = self.daemon.run(shell(&script)).await;
        assert_eq!(response.exit_code, Some(0), "{response:?}");
    }
}

#[tokio::test]
async fn a_copied_file_that_leads_git_to_a_repository_is_left_out() {
    let sides = Sides::new().await;
    sides.make_trap("tree/x", "").await;
    fs::write(sides.daemon.file("tree/.git"), "gitdir: x\n").unwrap();
    fs::write(sides.daemon.file("tree/f"), "").unwrap();

    let told = sides.refused(&["-r", ":tree", "out"]);
    assert_eq!(names(&sides.at("out")), ["f"]);
    for line in [
        "left out, a name that git takes for .git: :tree/.git\n",
        "left out, a directory that git takes for a repository: :tree/x\n",
        "left out because a version control tool would act on it: 2; copy it with --with-git\n",
    ] {
        assert!(told.contains(line), "{told}");
    }
    assert!(!sides.git_is_fooled("out"));

    // The trap is one: whoever insists walks into it.
    sides.cp(&["-r", "--with-git", ":tree", "insisted"], 0);
    assert!(sides.git_is_fooled("insisted"));
}

#[tokio::test]
async fn a_copied_directory_that_is_a_repository_is_left_out() {
    let sides = Sides::new().await;
    let worktree = "\\tbare = false\\n\\tworktree = .\\n";
    sides.make_trap("tree/docs", worktree).await;
    fs::write(sides.daemon.file("tree/f"), "").unwrap();

    let output = sides.cp(&["-r", "--json", ":tree", "out"], 1);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["left_out_of_vcs"], 1, "{json}");
    assert_eq!(json["left_out"][0]["path"], ":tree/docs", "{json}");
    assert_eq!(json["left_out"][0]["reason"], "GIT_REPOSITORY", "{json}");
    assert_eq!(names(&sides.at("out")), ["f"]);
    assert!(!sides.git_is_fooled("out"));
    // Asked for by its name, it is refused whole.
    for from in [":tree/docs", ":tree/docs/."] {
        let told = sides.refused(&["-r", from, "docs"]);
        assert!(told.contains("takes for a repository"), "{told}");
        assert!(!sides.at("docs").exists());
    }

    sides.cp(&["-r", "--with-git", ":tree", "insisted"], 0);
    assert!(sides.git_is_fooled("insisted/docs"));
}

#[tokio::test]
async fn no_copy_makes_a_repository_together_with_those_before_it() {
    let sides = Sides::new().await;
    let worktree = "\\tbare = false\\n\\tworktree = .\\n";
    sides.make_trap("tree", worktree).await;
    sides.cp(&[":tree/HEAD", "out/"], 1);
    fs::create_dir(sides.at("out")).unwrap();
    sides.cp(&[":tree/config", "out/"], 0);
    sides.cp(&[":tree/HEAD", "out/"], 0);
    sides.cp(&["-r", ":tree/objects", "out"], 0);
    for arguments in [
        &["-r", ":tree/refs", "out"][..],
        &["-r", ":tree/refs/heads", "out/refs/heads"],
        &["-r", ":tree/.", "out"],
    ] {
        let told = sides.refused(arguments);
        assert!(told.contains("takes for a repository"), "{told}");
    }
    // Nor one whose parts come in directories of several copies.
    fs::create_dir_all(sides.daemon.file("second/out")).unwrap();
    fs::rename(sides.daemon.file("tree/refs"), sides.daemon.file("second/out/refs")).unwrap();
    let told = sides.refused(&["-r", ":second/.", "."]);
    assert!(told.contains("for a repository: :second/./out\n"), "{told}");
    assert_eq!(names(&sides.at("out")), ["HEAD", "config", "objects"]);
    assert!(!sides.git_is_fooled("out"));
}

#[tokio::test]
async fn names_that_git_takes_for_its_own_are_left_out_of_either_side() {
    let sides = Sides::new().await;
    let own = [".GIT", ".git ", ".g\u{200c}it", "git~1", ".git::$DATA"];
    for tree in [sides.daemon.file("tree"), sides.at("tree")] {
        fs::create_dir_all(tree.join("deep/.Git")).unwrap();
        fs::write(tree.join("deep/.Git/config"), "").unwrap();
        for name in own {
            fs::write(tree.join(name), "").unwrap();
        }
        symlink("deep", tree.join(".git")).unwrap();
        fs::write(tree.join(".gitignore"), "").unwrap();
        // A linked worktree's directory has no objects and refs of its own.
        fs::create_dir(tree.join("linked")).unwrap();
        fs::write(tree.join("linked/HEAD"), "").unwrap();
        fs::write(tree.join("linked/commondir"), "../elsewhere").unwrap();
    }
    for (from, to) in [("tree", ":in"), (":tree", "out")] {
        let output = sides.cp(&["-r", "--json", from, to], 1);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["left_out_of_vcs"], own.len() + 3, "{json}");
    }
    for copy in [sides.daemon.file("in"), sides.at("out")] {
        assert_eq!(names(&copy), [".gitignore", "deep"]);
        assert_eq!(names(&copy.join("deep")), [""; 0]);
    }
}

/// Each of these names programs in its configuration (`.hg/hgrc`, `.jj/repo/config.toml`); `.svn` does
/// not.
#[tokio::test]
async fn repositories_of_other_tools_are_left_out_of_either_side() {
    let sides = Sides::new().await;
    let of_tools = [".hg", ".Jj", ".BZR", ".sl", ".pijul", "_darcs"];
    let checkouts = [".fslckout", "_FOSSIL_", "hg~1"];
    for tree in [sides.daemon.file("tree"), sides.at("tree")] {
        for name in of_tools.iter().chain(&[".svn"]) {
            fs::create_dir_all(tree.join(name)).unwrap();
            fs::write(tree.join(name).join("hgrc"), "[hooks]\nupdate = id\n").unwrap();
        }
        for name in checkouts.iter().chain(&[".hgignore"]) {
            fs::write(tree.join(name), "").unwrap();
        }
    }
    let count = of_tools.len() + checkouts.len();
    for (from, to) in [("tree", ":in"), (":tree", "out")] {
        // It is known that they are not copied, so that is no failure.
        let output = sides.cp(&["-r", "--json", from, to], 0);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["left_out_of_vcs"], count, "{json}");
        assert_eq!(json["left_out"][0]["reason"], "VCS_NAME", "{json}");
    }
    for copy in [sides.daemon.file("in"), sides.at("out")] {
        assert_eq!(names(&copy), [".hgignore", ".svn"]);
    }
    for arguments in [
        &["-r", ":tree/.hg", "copy"][..],
        &[":tree/.hgignore", "out/.HG/hgrc"],
        &["tree/.hgignore", ":.hg"],
    ] {
        let told = sides.refused(arguments);
        assert!(told.contains("--with-git"), "{told}");
    }

    sides.cp(&["-r", "--with-git", ":tree", "insisted"], 0);
    assert_eq!(names(&sides.at("insisted")).len(), count + 2);
}

#[tokio::test]
async fn a_single_file_of_git_is_copied_only_where_that_is_insisted_on() {
    let sides = Sides::new().await;
    fs::write(sides.daemon.file(".git"), "gitdir: x").unwrap();
    fs::write(sides.daemon.file("f"), "").unwrap();
    fs::write(sides.at(".git"), "gitdir: y").unwrap();
    fs::create_dir_all(sides.at("mine/.git/hooks")).unwrap();
    symlink("mine/.git/hooks/pre-commit", sides.at("link")).unwrap();
    fs::write(sides.at("mine/.git/hooks/pre-commit"), "own").unwrap();
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
        let told = sides.refused(arguments);
        assert!(told.contains("--with-git"), "{told}");
    }
    assert_eq!(names(sides.here.path()), [".git", "link", "mine"]);
    assert_eq!(names(&sides.at("mine/.git/hooks")), ["pre-commit"]);
    sides.cp(&["--with-git", ":.git", "copy"], 0);
    assert_eq!(fs::read(sides.at("copy")).unwrap(), b"gitdir: x");
}

#[tokio::test]
async fn no_link_leads_a_copy_into_a_repository() {
    let sides = Sides::new().await;
    fs::create_dir(sides.daemon.file("dd")).unwrap();
    fs::write(sides.daemon.file("dd/post-checkout"), "").unwrap();
    for directory in ["r/.git/hooks", "bare/hooks", "bare/refs", "plain"] {
        fs::create_dir_all(sides.at(directory)).unwrap();
    }
    fs::write(sides.at("bare/HEAD"), "").unwrap();
    for (target, link) in
        [("r/.git/hooks", "lk"), ("lk", "chain"), ("bare/hooks", "hooks"), ("plain", "free")]
    {
        symlink(target, sides.at(link)).unwrap();
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
            let told = sides.refused(arguments);
            assert!(told.contains("--with-git"), "{told}");
        }
    }
    assert_eq!(names(&sides.at("r/.git/hooks")), [""; 0]);
    assert_eq!(names(&sides.at("bare/hooks")), [""; 0]);

    // Other links are followed, and so are these where that is insisted on.
    sides.cp(&["-r", ":dd/.", "free"], 0);
    assert_eq!(names(&sides.at("plain")), ["post-checkout"]);
    sides.cp(&["-r", "--with-git", ":dd/.", "lk"], 0);
    assert_eq!(names(&sides.at("r/.git/hooks")), ["post-checkout"]);
}
