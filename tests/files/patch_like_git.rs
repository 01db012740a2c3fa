//! `apply_patch` compared with `git apply`: the diff of a generated commit, applied to the tree before
//! it, gives the tree after it. `JIG_FULL=1` generates more commits.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use jig::api::v1::ApplyPatchRequest;

use crate::support::{Daemon, full_size};

const COMMITS: usize = 60;
const FULL_COMMITS: usize = 400;
/// Texts of lines: many are alike, and some look like parts of a patch.
const LINE_TEXTS: &[&str] = &[
    "}",
    "",
    "    return;",
    "let x = 1;",
    "-- a/f",
    "++ b/f",
    "@@ -1,2 +1,2 @@",
    "diff --git a/f b/f",
    "\\ No newline at end of file",
    "ünï ☃",
    "trailing  ",
    "\ttab",
    "```",
    "-- ",
    "2.39.2",
    "carriage\rreturn",
];
const FILE_NAMES: &[&str] = &[
    "main.rs",
    "lib.rs",
    "with blank",
    "ünï.txt",
    "tab\tand \"quote\"",
    "back\\slash",
    "a",
    "b",
    "deep/er/f",
    "deep/g",
    "--- x",
    "x b/x",
];
/// Options of `git diff`.
const DIFF_OPTIONS: &[&[&str]] = &[
    &[],
    &["-U1"],
    &["-U0"],
    &["--no-prefix"],
    &["-U10", "--patience"],
    &["--src-prefix=i/", "--dst-prefix=w/"],
    &["--full-index"],
];

/// A tree: content and executable bit by path.
type Tree = BTreeMap<String, (Vec<u8>, bool)>;

/// A fixed sequence of pseudo-random numbers (xorshift).
struct SeededRandom(u64);

impl SeededRandom {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % limit
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn line(&mut self, ending: &str) -> String {
        let text = self.pick(LINE_TEXTS);
        match self.below(3) {
            0 => format!("{text}{ending}"),
            _ => format!("{text} {}{ending}", self.below(1000)),
        }
    }

    fn text(&mut self) -> Vec<u8> {
        let ending = self.pick(&["\n", "\n", "\r\n"]);
        let lines = self.pick(&[0, 1, 5, 40, 200]);
        let mut text: String = (0..lines).map(|_| self.line(ending)).collect();
        if self.below(4) == 0 {
            text.push_str("no newline");
        }
        text.into_bytes()
    }

    /// Inserts, replaces or removes some lines, and sometimes changes line endings.
    fn edit(&mut self, content: &[u8]) -> Vec<u8> {
        let text = String::from_utf8(content.to_vec()).unwrap();
        let ending = if text.contains("\r\n") { "\r\n" } else { "\n" };

        let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
        for _ in 0..=self.below(4) {
            let at = self.below(lines.len() + 1);
            match self.below(3) {
                0 => lines.insert(at, self.line(ending)),
                1 if at < lines.len() => lines[at] = self.line(ending),
                _ if at < lines.len() => drop(lines.remove(at)),
                _ => lines.push(self.line(ending)),
            }
        }

        let mut text = lines.concat();
        match self.below(12) {
            0 => text.truncate(text.trim_end_matches(['\r', '\n']).len()),
            1 => text = text.replace("\r\n", "\n"),
            2 => text = text.replace("\r\n", "\n").replace('\n', "\r\n"),
            _ => {}
        }

        text.into_bytes()
    }

    /// A path that neither exists in the tree nor conflicts with an existing path.
    fn free_path(&mut self, tree: &Tree) -> String {
        loop {
            let name = self.pick(FILE_NAMES);
            let path = match self.below(3) {
                0 => name.to_owned(),
                _ => format!("dir {}/{name}", self.below(20)),
            };
            let taken = tree.keys().any(|existing| {
                *existing == path || is_below(existing, &path) || is_below(&path, existing)
            });
            if !taken {
                return path;
            }
        }
    }

    /// Turns the tree into that of the next commit.
    fn change_tree(&mut self, tree: &mut Tree) {
        for _ in 0..=self.below(5) {
            let paths: Vec<String> = tree.keys().cloned().collect();
            let path = self.below(paths.len().max(1));
            let action = if tree.len() < 10 { 0 } else { self.below(10) };
            let new = self.free_path(tree);

            match (action, paths.get(path)) {
                (0 | 1, _) | (_, None) => drop(tree.insert(new, (self.text(), self.below(4) == 0))),
                (2, Some(path)) => drop(tree.remove(path)),
                (3 | 4, Some(path)) => {
                    let (mut content, mut executable) = tree.remove(path).unwrap();
                    if self.below(2) == 0 {
                        content = self.edit(&content);
                    }
                    executable ^= self.below(4) == 0;
                    tree.insert(new, (content, executable));
                }
                (5, Some(path)) => tree.get_mut(path).unwrap().1 ^= true,
                // A directory replaces a file, or a file replaces its directory.
                (6, Some(path)) => {
                    let file = tree.remove(path).unwrap();
                    let parent = path.rsplit_once('/').map(|(parent, _)| parent);
                    match parent.filter(|parent| !tree.keys().any(|path| is_below(path, parent))) {
                        Some(parent) => drop(tree.insert(parent.to_owned(), file)),
                        None => {
                            tree.insert(format!("{path}/{}", self.pick(FILE_NAMES)), file);
                            tree.insert(format!("{path}/more/x"), (self.text(), false));
                        }
                    }
                }
                (_, Some(path)) => {
                    let content = self.edit(&tree[path].0);
                    tree.get_mut(path).unwrap().0 = content;
                }
            }
        }
    }
}

fn is_below(path: &str, directory: &str) -> bool {
    path.starts_with(&format!("{directory}/"))
}

/// The tree after `git apply`, or none if git rejects the diff.
fn git_apply_result(tree: &Tree, diff: &str) -> Option<Tree> {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("tree");
    fs::create_dir(&root).unwrap();
    write_tree(&root, tree);
    let file = directory.path().join("diff");
    fs::write(&file, diff).unwrap();

    let output = Command::new("git")
        .args(["apply", "--whitespace=nowarn"])
        .arg(&file)
        .current_dir(&root)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("GIT_CEILING_DIRECTORIES", directory.path())
        .output()
        .unwrap();
    output.status.success().then(|| read_tree(&root))
}

fn write_tree(root: &Path, tree: &Tree) {
    for (path, file) in tree {
        write(root, path, file);
    }
}

/// A repository that ignores the user's and the system's git configuration.
struct Repository(PathBuf);

impl Repository {
    fn new(path: PathBuf) -> Self {
        fs::create_dir(&path).unwrap();
        let repository = Self(path);
        repository.git(&["init", "--quiet"]);
        repository
    }

    fn git(&self, arguments: &[&str]) -> Vec<u8> {
        let output = Command::new("git")
            .args(["-c", "core.autocrlf=false", "-c", "core.safecrlf=false"])
            .args(["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "gc.auto=0"])
            .args(arguments)
            .current_dir(&self.0)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_SYSTEM", "/dev/null")
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "git {arguments:?}: {stderr}");

        output.stdout
    }

    /// Commits `tree` on top of `before`.
    fn commit(&self, before: &Tree, tree: &Tree) {
        for path in before.keys().filter(|path| !tree.contains_key(*path)) {
            fs::remove_file(self.0.join(path)).unwrap();
            let mut parent = Path::new(path).parent();
            while let Some(directory) =
                parent.filter(|parent| fs::remove_dir(self.0.join(parent)).is_ok())
            {
                parent = directory.parent();
            }
        }

        for (path, file) in tree.iter().filter(|(path, file)| before.get(*path) != Some(file)) {
            write(&self.0, path, file);
        }

        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message", "x"]);
    }
}

fn write(root: &Path, path: &str, (content, executable): &(Vec<u8>, bool)) {
    let file = root.join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, content).unwrap();
    let mode = if *executable { 0o755 } else { 0o644 };
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
}

fn read_tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let mut is_empty = directory != root;
        for entry in fs::read_dir(&directory).unwrap() {
            is_empty = false;
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }

            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let executable = fs::metadata(&path).unwrap().permissions().mode() & 0o100 != 0;
            tree.insert(name, (fs::read(&path).unwrap(), executable));
        }

        assert!(!is_empty, "{} is left behind", directory.display());
    }

    tree
}

#[tokio::test]
async fn daemon_applies_git_diffs_of_random_commits() {
    let daemon = Daemon::start().await;
    let repository = Repository::new(daemon.sibling_path("repository"));
    let commits = full_size(FULL_COMMITS, COMMITS);
    let mut random = SeededRandom(0x0123_4567_89ab_cdef);
    let mut tree = Tree::new();
    repository.commit(&Tree::new(), &tree);
    let mut applied = 0;

    let mut kinds = [0; 4];
    for commit in 0..commits {
        let before = tree.clone();
        random.change_tree(&mut tree);
        repository.commit(&before, &tree);
        let options = DIFF_OPTIONS[commit % DIFF_OPTIONS.len()];
        let diff = [&["diff", "-M", "HEAD^", "HEAD"], options].concat();
        let diff = String::from_utf8(repository.git(&diff)).unwrap();
        if diff.is_empty() {
            continue;
        }

        let request = ApplyPatchRequest {
            unified_diff: diff.clone(),
            max_fuzz: Some(0),
            ..ApplyPatchRequest::default()
        };
        let response = match daemon.tools().apply_patch(request).await {
            Ok(response) => response.into_inner(),
            Err(status) => panic!("commit {commit}: {}\n{diff}", status.message()),
        };

        for file in &response.changed_files {
            kinds[usize::try_from(file.change).unwrap() - 1] += 1;
            assert_eq!((file.fuzz, file.offset), (0, 0), "commit {commit}\n{diff}");
        }

        assert!(read_tree(&daemon.workspace()) == tree, "commit {commit}\n{diff}");

        applied += 1;
    }

    assert!(applied > commits / 2, "{applied}");
    assert!(kinds.iter().all(|count| *count > commits / 10), "{kinds:?}");
}

#[tokio::test]
async fn daemon_applies_stale_hunks_where_git_does() {
    let daemon = Daemon::start().await;
    let repository = Repository::new(daemon.sibling_path("repository"));
    let mut random = SeededRandom(0x0bad_cafe_0123_4567);
    let mut tree = Tree::new();
    repository.commit(&Tree::new(), &tree);
    let (mut same, mut ambiguous) = (0, 0);

    for commit in 0..full_size(FULL_COMMITS, COMMITS / 2) {
        let before = tree.clone();
        random.change_tree(&mut tree);
        repository.commit(&before, &tree);
        let diff = repository.git(&["diff", "-M", "HEAD^", "HEAD"]);
        let diff = String::from_utf8(diff).unwrap();

        // Adds lines at a random position of each file.
        let mut stale = before.clone();
        for (path, (content, _)) in &mut stale {
            if !tree.contains_key(path) || content.is_empty() {
                continue;
            }

            let mut lines: Vec<&[u8]> = content.split_inclusive(|byte| *byte == b'\n').collect();
            let at = random.below(lines.len());
            for _ in 0..=random.below(5) {
                lines.insert(at, b"an added line\n");
            }

            *content = lines.concat();
        }

        let Some(expected) = git_apply_result(&stale, &diff) else {
            continue;
        };
        for entry in fs::read_dir(daemon.workspace()).unwrap() {
            let path = entry.unwrap().path();
            fs::remove_dir_all(&path).unwrap_or_else(|_| fs::remove_file(&path).unwrap());
        }

        write_tree(&daemon.workspace(), &stale);
        let request = ApplyPatchRequest {
            unified_diff: diff.clone(),
            max_fuzz: Some(0),
            ..ApplyPatchRequest::default()
        };

        match daemon.tools().apply_patch(request).await {
            Ok(_) => {
                assert!(read_tree(&daemon.workspace()) == expected, "commit {commit}\n{diff}");
                same += 1;
            }
            Err(status) => {
                let message = status.message();
                assert!(message.contains("equally well"), "commit {commit}: {message}\n{diff}");
                ambiguous += 1;
            }
        }
    }

    assert!(same > 5 && ambiguous * 10 < same, "{same} {ambiguous}");
}
