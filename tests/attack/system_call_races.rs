//! Names that change their meaning between two system calls of a file tool: N8.
//!
//! The program `between` traces the daemon and swaps two names on entry to the N-th system call
//! that concerns the workspace. The test calls each tool with N = 1, 2, … until the call makes
//! fewer than N system calls, so it meets every gap between two of them once. The effect of a call
//! must be that of a call before the swap or after it, or none.
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
        DAEMON_UID, Daemon, HostProgram, Refusal, Setup, Tree, full_size, kill_and_reap, promptly,
        snapshot_tree,
    },
};

/// A tool, its path, and the fewest of its system calls that concern the workspace.
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
/// An upper bound on the system calls of one call.
const MAX_SYSTEM_CALLS: u32 = 300;
/// Reasons for which a tool may refuse a path whose meaning changes.
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

/// Two names in the workspace that the tracer swaps.
type SwappedNames = (String, &'static str);

/// The swaps to try for a path: each of its components with a symbolic link that leads outside, and
/// with another file or directory of the workspace.
fn all_swaps(path: &str) -> Vec<SwappedNames> {
    let mut swaps = vec![
        ("d".to_owned(), "link_d"),
        ("d".to_owned(), "other"),
        ("d/e".to_owned(), "link_e"),
        ("d/e".to_owned(), "other/e"),
    ];
    let leaf = path.split('/').nth(2).unwrap_or("f");
    let links = BTreeMap::from([("f", "link_f"), ("n", "link_n"), ("new", "link_new")]);
    let replacements =
        BTreeMap::from([("f", "other/e/f"), ("n", "other/e/n"), ("new", "other/e/g")]);
    swaps.push((format!("d/e/{leaf}"), links[leaf]));
    swaps.push((format!("d/e/{leaf}"), replacements[leaf]));
    swaps
}

/// All swaps at full size, otherwise only those with symbolic links.
fn sampled_swaps(path: &str) -> Vec<SwappedNames> {
    let swaps = all_swaps(path).into_iter();
    swaps.filter(|(_, second)| is_full_size() || second.starts_with("link")).collect()
}

fn is_full_size() -> bool {
    full_size(1, 0) == 1
}

/// The process that traces a daemon.
#[derive(Debug)]
struct Tracer {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    _program: HostProgram,
}

/// What the tracer observed of a call.
#[derive(Debug)]
struct TraceReport {
    /// How many system calls concern the workspace.
    calls: u32,
    /// How often the names were swapped.
    swaps: u32,
    /// The system call before which they were swapped, or `-`.
    swapped_before: String,
    /// A system call that is not anchored at a descriptor, or `-`.
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

    fn send_command(&mut self, command: &str) -> String {
        self.commands.write_all(format!("{command}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer
    }

    fn arm_swap(&mut self, gap: u32, is_swapped_back: bool, (first, second): &SwappedNames) {
        let back = u8::from(is_swapped_back);
        assert_eq!(self.send_command(&format!("{gap} {back} {first} {second}")), "armed\n");
    }

    fn end_trace(&mut self) -> TraceReport {
        let answer = self.send_command("end");
        let fields: Vec<&str> = answer.trim_end().splitn(4, ' ').collect();
        TraceReport {
            calls: fields[0].parse().unwrap(),
            swaps: fields[1].parse().unwrap(),
            swapped_before: fields[2].to_owned(),
            unanchored: fields[3].to_owned(),
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        kill_and_reap(&mut self.child);
    }
}

/// Lets every user change a file or directory.
fn make_world_writable(path: &Path, owner: u32) {
    let mode = if path.is_dir() { 0o777 } else { 0o666 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    chown(path, Some(owner), Some(owner)).unwrap();
}

/// Creates files with a text in `directory`/e.
fn fill_directory(directory: &Path, text: &str, owner: u32) {
    let e = directory.join("e");
    fs::create_dir_all(&e).unwrap();
    fs::write(e.join("f"), format!("{text}\n")).unwrap();
    fs::write(e.join("n"), NOTEBOOK.replace("TEXT", text)).unwrap();
    for path in [directory, &e, &e.join("f"), &e.join("n")] {
        make_world_writable(path, owner);
    }
}

/// Clears the workspace and creates the files that a tool needs.
fn reset_workspace(daemon: &Daemon, owner: u32, tool: Tool) {
    let workspace = daemon.workspace();
    for entry in fs::read_dir(&workspace).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            fs::remove_dir_all(entry.path()).unwrap();
        } else {
            fs::remove_file(entry.path()).unwrap();
        }
    }

    fill_directory(&workspace.join("d"), "written", owner);
    fill_directory(&workspace.join("other"), "other", owner);
    let mut files = vec![("other/e/g", "another\n")];
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

/// A path at which two trees differ, and its entry in the second tree.
type Difference<'a> = (&'a String, Option<&'a (u32, Vec<u8>)>);

fn tree_differences<'a>(first: &'a Tree, second: &'a Tree) -> Vec<Difference<'a>> {
    let names: BTreeSet<_> = first.keys().chain(second.keys()).collect();
    names
        .into_iter()
        .filter(|name| first.get(*name) != second.get(*name))
        .map(|name| (name, second.get(name)))
        .collect()
}

/// Whether a call may have another effect than a call before the swap or after it.
fn is_allowed_outcome(tool: Tool, path: &str, before: &Tree, after: &Tree, end: &str) -> bool {
    match (tool, path, end) {
        // The tool deletes a directory entry by entry, in the state in which it finds them.
        (Tool::Delete, "d", "OK") => after.keys().all(|name| !name.contains(".jig-")),
        // The tool moved out another file than the one that it had read, and a file had come back
        // at the name before the tool noticed. That file stays, and the moved one remains beside
        // it.
        (_, _, "STALE_FILE") => {
            let mut remaining: Vec<_> = after.values().collect();
            let mut remains = |content| {
                let index = remaining.iter().position(|entry| *entry == content);
                index.map(|index| remaining.swap_remove(index)).is_some()
            };
            after.get(path) == before.get(path) && before.values().all(&mut remains)
        }

        // The new directory was renamed as soon as the tool had created it.
        (_, _, "NOT_A_DIRECTORY" | "PATH_ESCAPE" | "SYMLINK_BLOCKED") => {
            let mut other_entries = after.clone();
            let created = other_entries.remove("d/e/new");
            let is_directory = |(mode, _)| FileType::from_raw_mode(mode).is_dir();
            created.is_some_and(is_directory) && other_entries == *before
        }
        _ => false,
    }
}

/// Contents and metadata of the files outside, without access times.
fn snapshot_outside(outside: &Path) -> Vec<String> {
    let entries = snapshot_tree(outside).into_iter();
    let paths = entries.map(|(name, (_, content))| (outside.join(name), content));
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

/// Swaps two names like the tracer; if only one exists, renames it to the other.
fn swap_names(daemon: &Daemon, (first, second): &SwappedNames) {
    let (first, second) = (daemon.file(first), daemon.file(second));
    let rename = |from, to, flags| renameat_with(CWD, from, CWD, to, flags);
    let _may_not_exist = rename(&first, &second, RenameFlags::EXCHANGE)
        .or_else(|_| rename(&second, &first, RenameFlags::NOREPLACE))
        .or_else(|_| rename(&first, &second, RenameFlags::NOREPLACE));
}

/// A daemon with a tracer.
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
        fill_directory(&daemon.sibling_path("outside"), "secret written", owner);
        Self {
            tracer: Tracer::attach(&daemon),
            outside: snapshot_outside(&daemon.sibling_path("outside")),
            daemon,
            owner,
            violations: Vec::new(),
        }
    }

    /// Calls a tool without a race, on the original names or on the swapped ones, and swaps them
    /// back. Returns the tree that the call leaves, unless the tool refuses.
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
        let result = tool.call(&self.daemon, path).await;
        if let Some(names) = names {
            swap_names(&self.daemon, names);
        }
        result.is_ok().then(|| snapshot_tree(&self.daemon.workspace()))
    }

    /// Calls a tool on a path repeatedly and swaps the names at each gap. Returns how many system
    /// calls concern the workspace, and how the calls ended: "OK" or the reason of a refusal.
    async fn check_every_gap(
        &mut self,
        tool: Tool,
        path: &str,
        names: &SwappedNames,
        is_swapped_back: bool,
    ) -> (u32, BTreeSet<String>) {
        let mut trees_without_race = Vec::new();
        for names in [None, Some(names)] {
            trees_without_race.extend(self.tree_without_race(tool, path, names).await);
        }

        let mut ends = BTreeSet::new();
        for gap in 1..=MAX_SYSTEM_CALLS {
            reset_workspace(&self.daemon, self.owner, tool);
            let before = [snapshot_tree(&self.daemon.workspace())];
            self.tracer.arm_swap(gap, is_swapped_back, names);
            let result = promptly("the traced call ends", tool.call(&self.daemon, path)).await;
            let report = self.tracer.end_trace();
            if report.swaps == 1 {
                swap_names(&self.daemon, names);
            }

            let (end, text) = match result {
                Ok(text) => ("OK".to_owned(), text),
                Err(status) => (Refusal::from_status(&status).reason, status.message().to_owned()),
            };
            let expected = if end == "OK" { &trees_without_race[..] } else { &before[..] };
            let TraceReport { swapped_before, unanchored, .. } = &report;
            for violation in self.find_violations(tool, path, (&end, &text), expected, unanchored) {
                self.violations.push(format!(
                    "{tool:?} {path}, {names:?} swapped before call {gap}, {swapped_before}: \
                     {violation} ({unanchored}): {end}: {text:.300}"
                ));
            }

            ends.insert(end);
            if report.swaps == 0 {
                return (report.calls, ends);
            }
        }

        panic!("{tool:?} {path} makes more than {MAX_SYSTEM_CALLS} system calls");
    }

    /// Lists what a call did although it must not. It must leave one of the `expected` trees.
    fn find_violations(
        &self,
        tool: Tool,
        path: &str,
        (end, text): (&str, &str),
        expected: &[Tree],
        unanchored: &str,
    ) -> Vec<String> {
        let mut violations = Vec::new();
        if unanchored != "-" {
            violations.push("is not anchored".to_owned());
        }
        if text.contains("secret") {
            violations.push("reads a file outside the workspace".to_owned());
        }
        if end != "OK" && !ALLOWED_REASONS.contains(&end) {
            violations.push("is not a refusal for a name that changed".to_owned());
        }

        let after = snapshot_tree(&self.daemon.workspace());
        if !expected.contains(&after) && !is_allowed_outcome(tool, path, &expected[0], &after, end)
        {
            violations.push(format!("leaves {:?}", tree_differences(&expected[0], &after)));
        }
        if snapshot_outside(&self.daemon.sibling_path("outside")) != self.outside {
            violations.push("changes a file outside the workspace".to_owned());
        }
        violations
    }

    /// Calls every tool with each of the swaps for its path.
    async fn check_every_tool(
        &mut self,
        swaps: impl Fn(&str) -> Vec<SwappedNames>,
        is_swapped_back: &[bool],
    ) {
        let mut all_ends = BTreeSet::new();

        for (tool, path, min_calls) in TRACED_CALLS {
            for names in swaps(path) {
                for back in is_swapped_back {
                    let (calls, ends) = self.check_every_gap(*tool, path, &names, *back).await;
                    let is_traced = calls >= *min_calls;
                    assert!(is_traced, "{tool:?} {path}: {calls} calls are traced");
                    all_ends.extend(ends);
                }
            }
        }

        assert!(self.violations.is_empty(), "{:#?}", self.violations);
        assert!(all_ends.contains("OK"), "{all_ends:?}");

        let blocked = ["PATH_ESCAPE", "SYMLINK_BLOCKED"];
        let link_is_met = blocked.iter().any(|reason| all_ends.contains(*reason));
        assert!(link_is_met, "no call met a link: {all_ends:?}");

        let log = self.daemon.log();
        assert!(!log.contains("panic"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_n8_file_tools_withstand_a_swap_between_system_calls() {
    let back: &[bool] = if is_full_size() { &[false, true] } else { &[false] };
    let mut traced = TracedDaemon::start(Setup::new()).await;
    traced.check_every_tool(all_swaps, back).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_n8_unprivileged_file_tools_withstand_a_swap_and_its_reversal() {
    let back: &[bool] = if is_full_size() { &[false, true] } else { &[true] };
    let mut traced = TracedDaemon::start(Setup::new().user(DAEMON_UID)).await;
    traced.check_every_tool(sampled_swaps, back).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_n8_file_tools_following_links_withstand_a_swap() {
    let back: &[bool] = if is_full_size() { &[false, true] } else { &[false] };
    let setup = Setup::new().workspace_table("symlinks = \"within\"");
    let mut traced = TracedDaemon::start(setup).await;
    traced.check_every_tool(sampled_swaps, back).await;
}
