//! Drafts, and what others do with them meanwhile.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
};

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use tempfile::TempDir;

use super::*;

/// Something that is done in a folder to a draft of this name.
type Tampering = fn(&Path, &str);

/// A workspace with a draft of `dir/file` that has some bytes.
fn with_draft() -> (TempDir, Workspace, PartialFile) {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("dir")).unwrap();
    let workspace = Workspace::open("w", folder.path(), "/workspace").unwrap();
    let path = workspace.resolve("dir/file").unwrap();
    let mut draft = workspace.create_partial_file(&path, |_| Ok(())).unwrap();
    draft.append(b"some").unwrap();
    (folder, workspace, draft)
}

/// Runs something on a thread that has no more rights than an ordinary user.
fn as_nobody_special<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let sets = capabilities(None).unwrap();
            let without = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
            let effective = sets.effective.difference(without);
            set_capabilities(None, CapabilitySets { effective, ..sets }).unwrap();
            work()
        });
        thread.join().unwrap()
    })
}

fn reason(error: PartialFileError) -> (bool, Reason) {
    match error {
        PartialFileError::Intact(error) => (true, error.reason),
        PartialFileError::Unusable(error) => (false, error.reason),
    }
}

#[test]
fn a_draft_is_found_again() {
    let (_folder, workspace, draft) = with_draft();
    workspace.check_partial_file(&draft).unwrap();
    let again = workspace.reopen_partial_file(draft.location().clone(), &CancelToken::new());
    let again = again.unwrap();
    assert_eq!((again.length(), again.sha256()), (4, draft.sha256()));
    assert_eq!(again.location(), draft.location());
    let stop = CancelToken::new();
    stop.cancel();
    let stopped = workspace.reopen_partial_file(draft.location().clone(), &stop);
    assert_eq!(reason(stopped.unwrap_err()), (true, Reason::Timeout));
}

#[test]
fn a_draft_that_was_taken_away_is_dropped_and_one_that_cannot_be_reached_is_kept() {
    let spoil: [(Tampering, Reason); 5] = [
        (|folder, name| fs::remove_file(folder.join("dir").join(name)).unwrap(), Reason::StaleFile),
        (
            |folder, name| {
                let draft = folder.join("dir").join(name);
                fs::rename(&draft, folder.join("stolen")).unwrap();
                fs::write(draft, "some").unwrap();
            },
            Reason::StaleFile,
        ),
        (
            |folder, _| {
                fs::rename(folder.join("dir"), folder.join("moved")).unwrap();
                fs::write(folder.join("dir"), "").unwrap();
            },
            Reason::StaleFile,
        ),
        (
            |folder, _| {
                fs::rename(folder.join("dir"), folder.join("moved")).unwrap();
                symlink("moved", folder.join("dir")).unwrap();
            },
            Reason::StaleFile,
        ),
        (
            |folder, _| {
                let closed = fs::Permissions::from_mode(0o0);
                fs::set_permissions(folder.join("dir"), closed).unwrap();
            },
            Reason::PermissionDenied,
        ),
    ];
    for (spoil, expected) in spoil {
        let (folder, workspace, draft) = with_draft();
        spoil(folder.path(), &draft.location().name);
        let found = as_nobody_special(|| {
            [
                workspace.check_partial_file(&draft).unwrap_err(),
                workspace
                    .reopen_partial_file(draft.location().clone(), &CancelToken::new())
                    .unwrap_err(),
            ]
        });
        let kept = expected != Reason::StaleFile;
        assert_eq!(found.map(reason), [(kept, expected); 2]);
    }
}

fn target(workspace: &Workspace) -> PartialFileTarget {
    PartialFileTarget {
        path: workspace.resolve("dir/file").unwrap(),
        create_new: false,
        expected_sha256: None,
        mode: None,
    }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn what_commands_do_while_a_draft_is_put_in_its_place_is_not_lost() {
    use Reason as R;
    /// What is there before, what a command does, and what is there after it.
    type UploadCase = (Option<&'static str>, fn(&Path), Option<&'static str>, Reason);
    let cases: [UploadCase; 4] = [
        (
            Some("old"),
            |file| fs::write(file, "by a command").unwrap(),
            Some("by a command"),
            R::StaleFile,
        ),
        (
            Some("old"),
            |file| {
                fs::write(file.with_extension("new"), "new").unwrap();
                fs::rename(file.with_extension("new"), file).unwrap();
            },
            Some("new"),
            R::StaleFile,
        ),
        (Some("old"), |file| fs::remove_file(file).unwrap(), None, R::StaleFile),
        (
            None,
            |file| fs::write(file, "by a command").unwrap(),
            Some("by a command"),
            R::FileExists,
        ),
    ];
    for (before, command, after, expected) in cases {
        let (folder, workspace, mut draft) = with_draft();
        let file = folder.path().join("dir/file");
        if let Some(before) = before {
            fs::write(&file, before).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        }
        let target = target(&workspace);
        let say = |place: &PartialFileLocation| {
            assert_eq!(place.replaces, Some(before.is_some()));
            command(&file);
            Ok(())
        };
        let error = workspace.commit_partial_file(&mut draft, &target, say, &CancelToken::new());
        assert_eq!(reason(error.unwrap_err()), (true, expected));
        assert_eq!(fs::read_to_string(&file).ok().as_deref(), after);
        // It is a draft as before.
        let place = folder.path().join("dir").join(&draft.location().name);
        assert_eq!(mode(&place), 0o600);
        workspace.check_partial_file(&draft).unwrap();
        let put =
            workspace.commit_partial_file(&mut draft, &target, |_| Ok(()), &CancelToken::new());
        assert_eq!(put.unwrap(), after.is_none());
        assert_eq!(fs::read_to_string(&file).unwrap(), "some");
        assert_eq!(fs::read_dir(folder.path().join("dir")).unwrap().count(), 1);
    }
}

#[test]
fn a_file_that_changes_after_it_was_hashed_is_not_replaced() {
    let (folder, workspace, mut draft) = with_draft();
    let file = folder.path().join("dir/file");
    fs::write(&file, "old").unwrap();
    let target = PartialFileTarget {
        expected_sha256: Some(crate::daemon::checksum::sha256(b"old")),
        ..target(&workspace)
    };
    let held =
        workspace.locks.lock(std::slice::from_ref(&target.path), &CancelToken::new()).unwrap();
    let (started, thread_id) = std::sync::mpsc::channel();
    let error = std::thread::scope(|scope| {
        let put = scope.spawn(|| {
            started.send(rustix::thread::gettid()).unwrap();
            workspace.commit_partial_file(&mut draft, &target, |_| Ok(()), &CancelToken::new())
        });
        // It waits for the lock once it has hashed the file.
        let thread = thread_id.recv().unwrap().as_raw_nonzero();
        let sleeps = || {
            let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
            stat.is_ok_and(|stat| stat.contains(") S "))
        };
        while !sleeps() {
            std::thread::yield_now();
        }
        fs::write(&file, "newer").unwrap();
        drop(held);
        put.join().unwrap().unwrap_err()
    });
    assert_eq!(reason(error), (true, Reason::StaleFile));
    assert_eq!(fs::read_to_string(&file).unwrap(), "newer");
}

#[test]
fn a_draft_is_put_beside_itself_or_nowhere() {
    let (folder, workspace, mut draft) = with_draft();
    fs::rename(folder.path().join("dir"), folder.path().join("moved")).unwrap();
    fs::create_dir(folder.path().join("dir")).unwrap();
    let put = workspace.commit_partial_file(
        &mut draft,
        &target(&workspace),
        |_| Ok(()),
        &CancelToken::new(),
    );
    assert_eq!(reason(put.unwrap_err()), (false, Reason::StaleFile));
    draft.discard();
    for directory in ["dir", "moved"] {
        let entries = fs::read_dir(folder.path().join(directory)).unwrap();
        assert_eq!(entries.count(), 0, "{directory}");
    }
}

#[test]
fn a_directory_need_not_be_readable() {
    let (folder, workspace, draft) = with_draft();
    draft.discard();
    let directory = folder.path().join("dir");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o300)).unwrap();
    let put = as_nobody_special(|| {
        let target = target(&workspace);
        let mut draft = workspace.create_partial_file(&target.path, |_| Ok(()))?;
        workspace.commit_partial_file(&mut draft, &target, |_| Ok(()), &CancelToken::new())
    });
    assert!(put.unwrap());
    assert_eq!(mode(&directory.join("file")), 0o644);
}

#[test]
fn what_was_done_by_half_is_taken_back() {
    let replaced = Some(true);
    let created = Some(false);
    // What there is of the draft, of its place, and of the third name; whether it was to replace.
    for (beside, in_place, third, replaces, left, place_after) in [
        ("draft", "", "", None, "draft", ""),
        ("draft", "old", "", replaced, "draft", "old"),
        // Swapped in one step, or by means of a third name.
        ("old", "draft", "", replaced, "draft", "old"),
        ("draft", "old", "old", replaced, "draft", "old"),
        ("", "draft", "old", replaced, "draft", "old"),
        // Put in its place.
        ("", "draft", "", replaced, "in place", "draft"),
        ("", "draft", "", created, "in place", "draft"),
        ("draft", "draft", "", created, "in place", "draft"),
        // By a command, before all had come.
        ("", "draft", "", None, "nothing", "draft"),
        ("draft", "draft", "", None, "draft", "draft"),
        ("", "old", "", replaced, "nothing", "old"),
        ("old", "", "", None, "nothing", ""),
        ("", "", "", None, "nothing", ""),
    ] {
        let case = format!("{beside:?} {in_place:?} {third:?} {replaces:?}");
        let (folder, _workspace, draft) = with_draft();
        let place = PartialFileLocation { replaces, ..draft.location().clone() };
        let at = |name: &str| folder.path().join("dir").join(name);
        let old_link = format!("{}~", place.name);
        let names = [place.name.as_str(), "file", &old_link];
        fs::rename(at(&place.name), at("draft")).unwrap();
        fs::write(at("old"), "old").unwrap();
        for (name, holds) in names.iter().zip([beside, in_place, third]) {
            if !holds.is_empty() {
                fs::hard_link(at(holds), at(name)).unwrap();
            }
        }
        fs::remove_file(at("draft")).unwrap();
        fs::remove_file(at("old")).unwrap();

        let directory = std::fs::File::open(at("")).unwrap().into();
        let expected = match left {
            "draft" => PartialFileState::Partial(4),
            "in place" => PartialFileState::Committed(4),
            _ => PartialFileState::Missing,
        };
        for _ in 0..2 {
            let found = recover_placement(&directory, "file", &place);
            assert_eq!(found, Ok(expected), "{case}");
        }
        let holds = |name: &str| match fs::read_to_string(at(name)).ok().as_deref() {
            None => "",
            Some("some") => "draft",
            Some(_) => "old",
        };
        assert_eq!(holds("file"), place_after, "{case}");
        let beside_after = match left {
            "draft" => "draft",
            "in place" => "",
            _ => beside,
        };
        assert_eq!(names.map(holds), [beside_after, place_after, ""], "{case}");
    }
}

#[test]
fn no_record_makes_another_file_a_draft() {
    let (folder, workspace, draft) = with_draft();
    let at = |name: &str| folder.path().join("dir").join(name);
    for name in ["", "~", "file", "../file"] {
        fs::write(at("~"), "").unwrap();
        fs::write(at("file"), "").unwrap();
        let place = PartialFileLocation {
            name: name.to_owned(),
            identity: None,
            ..draft.location().clone()
        };
        assert_eq!(workspace.recover_partial_file(&place).unwrap(), PartialFileState::Missing);
        assert!(workspace.delete_partial_file(&place));
        assert!(at("~").exists() && at("file").exists(), "{name:?}");
    }
}
