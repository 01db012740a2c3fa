//! User ids that a root daemon uses for its sandboxes, one for each workspace.
//!
//! The kernel limits some resources per user: epoll watches, pipe pages and descriptors in flight.
//! With ids of their own, workspaces do not share these limits.

use std::{collections::BTreeSet, fs};

/// User and group id of the first workspace. Debian, Fedora and systemd assign no ids from 60706 to
/// 61183.
const DEFAULT_SANDBOX_ID: u32 = 61_000;

/// Chooses an id for each workspace: `first` and the next ones.
///
/// Skips ids of existing users and groups, except `first`, which the operator gave.
pub(super) fn choose_sandbox_ids(
    first: Option<u32>,
    workspaces: usize,
    problems: &mut Vec<String>,
) -> Vec<u32> {
    let ids = choose_free_ids(first, workspaces, &taken_ids());
    if first == Some(0) || first == Some(u32::MAX) {
        problems.push("sandbox.uid must be the id of a user that is not root".to_owned());
    } else if ids.len() < workspaces {
        problems.push(format!(
            "sandbox.uid leaves {} ids for {workspaces} workspaces: give a smaller one",
            ids.len()
        ));
    }
    ids
}

fn choose_free_ids(first: Option<u32>, count: usize, taken: &BTreeSet<u32>) -> Vec<u32> {
    let candidates = first.unwrap_or(DEFAULT_SANDBOX_ID)..u32::MAX;
    let is_free = |id: &u32| Some(*id) == first || !taken.contains(id);
    candidates.filter(is_free).take(count).collect()
}

/// Whether a user or group of this machine has the id.
pub(crate) fn is_taken(id: u32) -> bool {
    taken_ids().contains(&id)
}

/// Ids of the users and groups of this machine.
fn taken_ids() -> BTreeSet<u32> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    ["/etc/passwd", "/etc/group"].map(read).iter().flat_map(|text| parse_ids(text)).collect()
}

/// Ids in a file with the format of passwd(5) and group(5).
fn parse_ids(text: &str) -> impl Iterator<Item = u32> {
    text.lines().filter_map(|line| line.split(':').nth(2)?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_workspace_has_an_unused_id() {
        let passwd = "root:x:0:0::/:/bin/sh\nalice:x:61001:61001::/:/bin/sh\nbroken\n:::\n";
        let taken: BTreeSet<u32> = parse_ids(passwd).collect();
        assert_eq!(taken, [0, 61_001].into());
        assert_eq!(choose_free_ids(None, 3, &taken), [61_000, 61_002, 61_003]);
        assert_eq!(choose_free_ids(Some(7), 2, &taken), [7, 8]);
        // The id that the operator gave is used, even if it is taken. The next one is not.
        assert_eq!(choose_free_ids(Some(61_001), 2, &taken), [61_001, 61_002]);
        assert_eq!(choose_free_ids(Some(u32::MAX - 1), 2, &taken).len(), 1);
    }

    #[test]
    fn root_is_refused() {
        for first in [0, u32::MAX, u32::MAX - 1] {
            let mut problems = Vec::new();
            choose_sandbox_ids(Some(first), 2, &mut problems);
            assert!(problems[0].contains("sandbox.uid"), "{problems:?}");
        }
    }
}
