//! Names that change their meaning between two system calls of a file tool: N8.
//!
//! The program `between` traces the daemon and swaps two names on entry to the N-th system call
//! that concerns the workspace. Each tool is called with N = 1, 2, … until it makes fewer calls, so
//! that every gap between two of them is met once. What a call has done must be what it would have
//! done before the swap or after it, or nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use rustix::fs::{CWD, FileType, RenameFlags, renameat_with};

use crate::{
    files::tools::{NOTEBOOK, Tool},
    support::{
        DAEMON_UID, Daemon, HostProgram, Refusal, Setup, Tree, full_size, promptly, snapshot_tree,
    },
};

/// What is called, on which path, and the fewest system calls that concern the workspace in it.
const TRACED_CALLS: &[(Tool, &str, u32)] = &[
    (Tool::Read, "d/e/f", 3),
    (Tool::Write, "d/e/f", 6),
    (Tool::Edit, "d/e/f", 7),
    (Tool::Patch, "d/e/f", 7),
    (Tool::Stat, "d/e/f", 4),
    (Tool::Search, "d/e/f", 2),
    (Tool::Search, "d", 12),
    (Tool::MoveFrom, "d/e/f", 4),
    (Tool::MoveTo, "d/e/new", 4),
    (Tool::Delete, "d/e/f", 2),
    (Tool::Delete, "d", 12),
    (Tool::ReadNotebook, "d/e/n", 3),
    (Tool::EditNotebook, "d/e/n", 7),
    (Tool::Download, "d/e/f", 3),
    (Tool::Upload, "d/e/f", 20),
    (Tool::Upload, "d/e/new", 16),
    (Tool::Write, "d/e/new/f", 8),
    (Tool::CreateDirectory, "d/e/new/deep", 6),
    (Tool::ListFiles, "d", 5),
    (Tool::ListDirectory, "d/e", 4),
];
/// More system calls than any of these calls makes.
const MAX_SYSTEM_CALLS: u32 = 300;
/// What a call may be refused with when a name has changed its meaning.
const ALLOWED_REASONS: &[&str] = &[
    "DIRECTORY_NOT_EMPTY",
    "DIRECTORY_NOT_FOUND",
    "FILE_EXISTS",
    "FILE_NOT_FOUND",
    "NOT_A_DIRECTORY",
    "NOT_A_FILE",
    "PATCH_HUNK_FAIL",
    "PATH_ESCAPE",
    "STALE_FILE",
    "STRING_NOT_FOUND",
    "SYMLINK_BLOCKED",
];

/// Two names of the workspace that are swapped.
type SwappedNames = (String, &'static str);

/// The names that are swapped in a call on this path: each of its components with a symbolic link
/// that leads outside, and with another file or directory of the workspace.
fn all_swaps(path: &str) -> Vec<SwappedNames> {
    let mut swaps = vec![
        ("d".to_owned(), "link_d"),
        ("d".to_owned(), "other"),
        ("d/e".to_owned(), "link_e"),
        ("d/e".to_owned(), "other/e"),
    ];
    let leaf = path.split('/').nth(2).unwrap_or("f");
    let links = BTreeMap::from([("f", "link_f"), ("n", "link_n"), ("new", "link_new")]);
    let others = BTreeMap::from([("f", "other/e/f"), ("n", "other/e/n"), ("new", "other/e/g")]);
    swaps.push((format!("d/e/{leaf}"), links[leaf]));
    swaps.push((format!("d/e/{leaf}"), others[leaf]));
    swaps
}

/// Half of them, unless all is tried: every component with a symbolic link.
fn sampled_swaps(path: &str) -> Vec<SwappedNames> {
    let swaps = all_swaps(path).into_iter();
    swaps.filter(|(_, other)| is_full_size() || other.starts_with("link")).collect()
}

fn is_full_size() -> bool {
    full_size(1, 0) == 1
}

/// The tracer of a daemon.
#[derive(Debug)]
struct Tracer {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    _program: HostProgram,
}

/// What it has seen of a call.
#[derive(Debug)]
struct TraceReport {
    calls: u32,
    swaps: u32,
    before: String,
    unanchored: String,
}

impl Tracer {
    fn attach(daemon: &Daemon) -> Self {
        let program = HostProgram::compile("between");
        let mut child = Command::new(&program.path)
            .arg(daemon.pid().to_string())
            .current_dir(daemon.workspace())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();

        Self {
            commands: child.stdin.take().unwrap(),
            answers: BufReader::new(child.stdout.take().unwrap()),
            child,
            _program: program,
        }
    }

    fn send_command(&mut self, order: &str) -> String {
        self.commands.write_all(format!("{order}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer
    }

    fn arm_swap(&mut self, gap: u32, is_swapped_back: bool, (one, other): &SwappedNames) {
        let back = u8::from(is_swapped_back);
        assert_eq!(self.send_command(&format!("{gap} {back} {one} {other}")), "armed\n");
    }

    fn end_trace(&mut self) -> TraceReport {
        let answer = self.send_command("end");
        let words: Vec<&str> = answer.trim_end().splitn(4, ' ').collect();
        TraceReport {
            calls: words[0].parse().unwrap(),
            swaps: words[1].parse().unwrap(),
            before: words[2].to_owned(),
            unanchored: words[3].to_owned(),
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Makes a file or a directory that everybody may change.
fn make_world_writable(path: &Path, owner: u32) {
    let mode = if path.is_dir() { 0o777 } else { 0o666 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    chown(path, Some(owner), Some(owner)).unwrap();
}

/// Fills `folder`/e with files that hold a text.
fn fill_folder(folder: &Path, text: &str, owner: u32) {
    let e = folder.join("e");
    fs::create_dir_all(&e).unwrap();
    fs::write(e.join("f"), format!("{text}\n")).unwrap();
    fs::write(e.join("n"), NOTEBOOK.replace("TEXT", text)).unwrap();
    for path in [folder, &e, &e.join("f"), &e.join("n")] {
        make_world_writable(path, owner);
    }
}

/// Empties the workspace and fills it anew, with what a tool needs.
fn reset_workspace(daemon: &Daemon, owner: u32, tool: Tool) {
    let workspace = daemon.workspace();
    for entry in fs::read_dir(&workspace).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => fs::remove_dir_all(entry.path()).unwrap(),
            false => fs::remove_file(entry.path()).unwrap(),
        }
    }

    fill_folder(&workspace.join("d"), "written", owner);
    fill_folder(&workspace.join("other"), "kept", owner);
    let mut files = vec![("other/e/g", "kept too\n")];
    if tool == Tool::MoveTo {
        files.push(("other-path", "written\n"));
    }
    for (name, content) in files {
        fs::write(workspace.join(name), content).unwrap();
        make_world_writable(&workspace.join(name), owner);
    }

    let outside = daemon.sibling_path("outside");
    for (name, target) in [("link_d", ""), ("link_e", "e"), ("link_f", "e/f"), ("link_n", "e/n")] {
        symlink(outside.join(target), workspace.join(name)).unwrap();
    }
    symlink("../../../outside/e", workspace.join("link_new")).unwrap();
}

/// A path at which two trees differ, and what the second has there.
type Difference<'a> = (&'a String, Option<&'a (u32, Vec<u8>)>);

/// Paths at which two trees differ.
fn tree_differences<'a>(one: &'a Tree, other: &'a Tree) -> Vec<Difference<'a>> {
    let names: BTreeSet<_> = one.keys().chain(other.keys()).collect();
    names
        .into_iter()
        .filter(|name| one.get(*name) != other.get(*name))
        .map(|name| (name, other.get(name)))
        .collect()
}

/// Whether a call may leave something else than what it would leave before the swap or after it.
fn is_allowed_outcome(tool: Tool, path: &str, before: &Tree, after: &Tree, end: &str) -> bool {
    match (tool, path, end) {
        // A whole directory is deleted entry by entry, as it is found.
        (Tool::Delete, "d", "OK") => after.keys().all(|name| !name.contains(".jig-")),
        // A file was taken out instead of the one that was read, and another one had come back
        // until it was noticed: that one stays, and what was taken out lies beside it.
        (_, _, "STALE_FILE") => {
            let mut left: Vec<_> = after.values().collect();
            let mut is_left = |content| {
                let found = left.iter().position(|left| *left == content);
                found.map(|found| left.swap_remove(found)).is_some()
            };
            after.get(path) == before.get(path) && before.values().all(&mut is_left)
        }

        // A directory was renamed as soon as it was made.
        (_, _, "NOT_A_DIRECTORY" | "PATH_ESCAPE" | "SYMLINK_BLOCKED") => {
            let mut others = after.clone();
            let made = others.remove("d/e/new");
            let is_directory = |(mode, _)| FileType::from_raw_mode(mode).is_dir();
            made.is_some_and(is_directory) && others == *before
        }
        _ => false,
    }
}

/// What lies outside: contents and metadata, without the times of last access.
fn snapshot_outside(outside: &Path) -> Vec<String> {
    let below = snapshot_tree(outside).into_iter();
    let paths = below.map(|(name, (_, content))| (outside.join(name), content));
    let itself = (outside.to_owned(), Vec::new());
    paths
        .chain([itself])
        .map(|(path, content)| {
            let stat = path.symlink_metadata().unwrap();
            let changed = (stat.mtime(), stat.mtime_nsec(), stat.ctime(), stat.ctime_nsec());
            let owner = (stat.uid(), stat.gid(), stat.mode(), stat.nlink());
            format!("{path:?} {} {changed:?} {owner:?} {content:?}", stat.ino())
        })
        .collect()
}

/// Does what the tracer does: swaps two names, or renames the one that is there.
fn swap_names(daemon: &Daemon, (one, other): &SwappedNames) {
    let (one, other) = (daemon.file(one), daemon.file(other));
    let rename = |from, to, flags| renameat_with(CWD, from, CWD, to, flags);
    let _neither_is_there = rename(&one, &other, RenameFlags::EXCHANGE)
        .or_else(|_| rename(&other, &one, RenameFlags::NOREPLACE))
        .or_else(|_| rename(&one, &other, RenameFlags::NOREPLACE));
}

/// A daemon that is traced.
struct TracedDaemon {
    daemon: Daemon,
    tracer: Tracer,
    owner: u32,
    outside: Vec<String>,
    violations: Vec<String>,
}

impl TracedDaemon {
    async fn start(setup: Setup) -> Self {
        let owner = setup.workspace_uid();
        let daemon = setup.start().await;
        fill_folder(&daemon.sibling_path("outside"), "secret written", owner);
        Self {
            tracer: Tracer::attach(&daemon),
            outside: snapshot_outside(&daemon.sibling_path("outside")),
            daemon,
            owner,
            violations: Vec::new(),
        }
    }

    /// Calls a tool while nothing is swapped, or after two names were, and swaps them back. Answers
    /// what it leaves if it is not refused.
    async fn tree_without_race(
        &self,
        tool: Tool,
        path: &str,
        names: Option<&SwappedNames>,
    ) -> Option<Tree> {
        reset_workspace(&self.daemon, self.owner, tool);
        if let Some(names) = names {
            swap_names(&self.daemon, names);
        }
        let called = tool.call(&self.daemon, path).await;
        if let Some(names) = names {
            swap_names(&self.daemon, names);
        }
        called.is_ok().then(|| snapshot_tree(&self.daemon.workspace()))
    }

    /// Calls a tool on a path again and again, swapping the names at each gap. Answers how many
    /// system calls concern the workspace, and how the calls ended.
    async fn check_every_gap(
        &mut self,
        tool: Tool,
        path: &str,
        names: &SwappedNames,
        is_swapped_back: bool,
    ) -> (u32, BTreeSet<String>) {
        let mut right = Vec::new();
        for names in [None, Some(names)] {
            right.extend(self.tree_without_race(tool, path, names).await);
        }
        let mut ends = BTreeSet::new();

        for gap in 1..=MAX_SYSTEM_CALLS {
            reset_workspace(&self.daemon, self.owner, tool);
            let before = snapshot_tree(&self.daemon.workspace());
            self.tracer.arm_swap(gap, is_swapped_back, names);
            let answer = promptly("a traced call", tool.call(&self.daemon, path)).await;
            let seen = self.tracer.end_trace();
            if seen.swaps == 1 {
                swap_names(&self.daemon, names);
            }
            let after = snapshot_tree(&self.daemon.workspace());
            let answer = answer.map_err(|status| (Refusal::from_status(&status).reason, status));
            let mut wrong = Vec::new();
            if seen.unanchored != "-" {
                wrong.push("is not anchored".to_owned());
            }
            let (end, text) = match &answer {
                Ok(text) => ("OK", text.as_str()),
                Err((reason, status)) => (reason.as_str(), status.message()),
            };
            if text.contains("secret") {
                wrong.push("reads what lies outside".to_owned());
            }
            if end != "OK" && !ALLOWED_REASONS.contains(&end) {
                wrong.push("is not a refusal for a name that changed".to_owned());
            }
            let expected = if end == "OK" { &right[..] } else { &[before] };
            if !expected.contains(&after)
                && !is_allowed_outcome(tool, path, &expected[0], &after, end)
            {
                wrong.push(format!("leaves {:?}", tree_differences(&expected[0], &after)));
            }
            if snapshot_outside(&self.daemon.sibling_path("outside")) != self.outside {
                wrong.push("changes what lies outside".to_owned());
            }
            self.violations.extend(wrong.into_iter().map(|wrong| {
                format!(
                    "{tool:?} {path}, {names:?} swapped before call {gap}, {}: {wrong} ({}): {end}: {text:.300}", seen.before, seen.unanchored
                )
            }));
            ends.insert(end.to_owned());
            if seen.swaps == 0 {
                return (seen.calls, ends);
            }
        }

        panic!("{tool:?} {path} makes more than {MAX_SYSTEM_CALLS} system calls");
    }

    /// Calls every tool with all that `swaps` has for its path.
    async fn check_every_tool(
        &mut self,
        swaps: impl Fn(&str) -> Vec<SwappedNames>,
        is_swapped_back: &[bool],
    ) {
        let mut all_ends = BTreeSet::new();

        for (tool, path, fewest) in TRACED_CALLS {
            for names in swaps(path) {
                for back in is_swapped_back {
                    let (calls, ends) = self.check_every_gap(*tool, path, &names, *back).await;
                    let is_traced = calls >= *fewest;
                    assert!(is_traced, "{tool:?} {path}: {calls} calls were traced");
                    all_ends.extend(ends);
                }
            }
        }

        assert!(self.violations.is_empty(), "{:#?}", self.violations);
        assert!(all_ends.contains("OK"), "{all_ends:?}");

        let blocked = ["PATH_ESCAPE", "SYMLINK_BLOCKED"];
        let is_met = blocked.iter().any(|reason| all_ends.contains(*reason));
        assert!(is_met, "none has met a link: {all_ends:?}");

        let log = self.daemon.log();
        assert!(!log.contains("panic"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_n8_file_tools_withstand_a_swap_between_system_calls() {
    let back: &[bool] = if is_full_size() { &[false, true] } else { &[false] };
    let mut stage = TracedDaemon::start(Setup::new()).await;
    stage.check_every_tool(all_swaps, back).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_n8_unprivileged_file_tools_withstand_a_swap_and_its_reversal() {
    let back: &[bool] = if is_full_size() { &[false, true] } else { &[true] };
    let mut stage = TracedDaemon::start(Setup::new().user(DAEMON_UID)).await;
    stage.check_every_tool(sampled_swaps, back).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_n8_file_tools_following_links_withstand_a_swap() {
    let back: &[bool] = if is_full_size() { &[false, true] } else { &[false] };
    let setup = Setup::new().workspace_table("symlinks = \"within\"");
    let mut stage = TracedDaemon::start(setup).await;
    stage.check_every_tool(sampled_swaps, back).await;
}
