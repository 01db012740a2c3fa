//! What a daemon must not leave behind: mounts, cgroups and sockets.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Mount point of the cgroup file systems.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// Returns the mounts and sockets in `directories`, the cgroups of earlier daemons, by process id,
/// and those of the last one's runs. Its own cgroup is the next daemon's to remove.
pub(super) fn find(earlier: &BTreeSet<i32>, last: i32, directories: &[PathBuf]) -> Vec<String> {
    let is_below = |line: &str| {
        directories.iter().filter_map(|path| path.to_str()).any(|path| line.contains(path))
    };
    let mut found = Vec::new();
    // proc_pid_mountinfo(5), proc_net_unix(5): a line for each, with its path.
    for (kind, list) in [("mount", "/proc/self/mountinfo"), ("socket", "/proc/net/unix")] {
        let lines = fs::read_to_string(list).unwrap_or_default();
        let below = lines.lines().filter(|line| is_below(line));
        found.extend(below.map(|line| format!("{kind} {line}")));
    }

    find_cgroups(Path::new(CGROUP_ROOT), earlier, last, &mut found);
    found
}

fn find_cgroups(directory: &Path, earlier: &BTreeSet<i32>, last: i32, found: &mut Vec<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|file_type| file_type.is_dir()) {
            continue;
        }
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let daemon = ["jig-daemon-", "jig-runs-"].iter().find_map(|p| name.strip_prefix(p));
        let is_of_earlier =
            daemon.and_then(|id| id.parse().ok()).is_some_and(|id| earlier.contains(&id));
        if is_of_earlier || directory.ends_with(format!("jig-runs-{last}")) {
            found.push(format!("cgroup {}", entry.path().display()));
        }
        find_cgroups(&entry.path(), earlier, last, found);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::net::UnixListener,
        thread::sleep,
        time::{Duration, Instant},
    };

    use super::*;

    #[test]
    fn socket_that_a_process_holds_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let socket = UnixListener::bind(path.join("s")).unwrap();
        let found = find(&BTreeSet::new(), 7, std::slice::from_ref(&path));
        assert!(matches!(found.as_slice(), [one] if one.starts_with("socket ")), "{found:?}");
        drop(socket);
        // The child of another test holds a copy until it executes its program.
        let start = Instant::now();
        while !find(&BTreeSet::new(), 7, std::slice::from_ref(&path)).is_empty() {
            assert!(start.elapsed() < Duration::from_secs(20), "the socket is still found");
            sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn cgroups_are_found_at_any_depth() {
        let directory = tempfile::tempdir().unwrap();
        for path in ["a/jig-daemon-7", "a/jig-daemon-8", "a/jig-runs-8/0", "a/jig-runs-9/0"] {
            fs::create_dir_all(directory.path().join(path)).unwrap();
        }
        let mut found = Vec::new();
        find_cgroups(directory.path(), &BTreeSet::from([7]), 8, &mut found);
        found.sort();
        let expected = ["a/jig-daemon-7", "a/jig-runs-8/0"];
        let expected =
            expected.map(|path| format!("cgroup {}", directory.path().join(path).display()));
        assert_eq!(found, expected);
    }
}
