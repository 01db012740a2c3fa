//! A client that applies the reported changes has the state of the tree.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use super::*;

/// Contents of files by path; `None` for directories.
type Mirror = BTreeMap<String, Option<Vec<u8>>>;

/// Random numbers (xorshift).
struct ChangeGenerator(u64);

impl ChangeGenerator {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % limit
    }

    /// A path with up to four of a few names.
    fn path(&mut self) -> String {
        let depth = 1 + self.below(4);
        let names: Vec<_> = (0..depth).map(|_| ["a", "b", "c"][self.below(3)]).collect();
        names.join("/")
    }
}

/// Reads everything at `path` and below it.
fn read(root: &Path, path: &str, mirror: &mut Mirror) {
    let full = root.join(path);
    let Ok(metadata) = full.symlink_metadata() else { return };
    if !metadata.is_dir() {
        if let Ok(content) = fs::read(&full) {
            mirror.insert(path.to_owned(), Some(content));
        }
        return;
    }
    if path != "." {
        mirror.insert(path.to_owned(), None);
    }
    for entry in fs::read_dir(&full).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let below = if path == "." { name } else { format!("{path}/{name}") };
        read(root, &below, mirror);
    }
}

fn forget(mirror: &mut Mirror, path: &str) {
    let below = format!("{path}/");
    mirror.retain(|known, _| path != "." && known != path && !known.starts_with(&below));
}

fn apply(root: &Path, mirror: &mut Mirror, change: &EntryChange) {
    match (change.kind, change.file_kind) {
        (EntryChangeKind::Deleted, _) => forget(mirror, &change.path),
        (EntryChangeKind::Rescan, _) => {
            forget(mirror, &change.path);
            read(root, &change.path, mirror);
        }
        (EntryChangeKind::Created | EntryChangeKind::Changed, FileKind::Directory) => {
            mirror.insert(change.path.clone(), None);
        }
        // A file that was removed since has another change.
        (EntryChangeKind::Created | EntryChangeKind::Changed, _) => {
            let content = fs::read(root.join(&change.path)).ok();
            mirror.insert(change.path.clone(), Some(content.unwrap_or_default()));
        }
    }
}

/// Makes one random change. Most succeed.
fn change(random: &mut ChangeGenerator, root: &Path, outside: &Path, number: usize) {
    let path = root.join(random.path());
    let _result = match random.below(10) {
        0..3 => fs::create_dir_all(&path),
        3..6 => fs::write(&path, number.to_string()),
        6 => fs::rename(&path, root.join(random.path())),
        7 => fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path)),
        8 => fs::rename(&path, outside.join("a")).or_else(|_| {
            fs::remove_dir_all(outside.join("a")).or_else(|_| fs::remove_file(outside.join("a")))
        }),
        _ => fs::rename(outside.join("a"), &path),
    };
}

fn is_full() -> bool {
    std::env::var_os("JIG_FULL").is_some_and(|value| value == "1")
}

#[test]
fn mirror_equals_the_tree_after_random_changes() {
    let rounds = if is_full() { 20 } else { 4 };
    let changes = if is_full() { 10_000 } else { 1000 };
    for round in 0..rounds {
        let fixture = Fixture::new();
        let (root, outside) = (fixture.path(""), fixture.outside(""));
        let mut random = ChangeGenerator(0x9e37_79b9_7f4a_7c15 ^ (round + 1));
        for number in 0..50 {
            change(&mut random, &root, &outside, number);
        }
        let mut watch = fixture.watch();
        let mut mirror = Mirror::new();
        read(&root, ".", &mut mirror);

        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..changes {
                    change(&mut random, &root, &outside, number);
                }
                is_done.store(true, Ordering::Release);
            });
            loop {
                // Checked before the events are read: those of the last change are among them.
                let is_last = is_done.load(Ordering::Acquire);
                let batch = next_batch(&mut watch).unwrap();
                for change in &batch.changes {
                    apply(&root, &mut mirror, change);
                }
                if is_last && !batch.has_more {
                    break;
                }
            }
        });

        let mut tree = Mirror::new();
        read(&root, ".", &mut tree);
        assert_eq!(mirror, tree, "round {round}");
        let directories = tree.values().filter(|content| content.is_none()).count();
        assert_eq!(watch.directories(), directories + 1, "round {round}");
    }
}
