//! Uploads, and interference of other processes with them.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
};

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use tempfile::TempDir;

use super::*;

/// A change in a directory that affects the partial file with this name.
type Tampering = fn(&Path, &str);

/// Creates a workspace with a partial file of `dir/file` that has some bytes.
fn with_partial_file() -> (TempDir, Workspace, PartialFile) {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("dir")).unwrap();
    let workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();
    let path = workspace.resolve("dir/file").unwrap();
    let mut partial = workspace.create_partial_file(&path, |_| Ok(())).unwrap();
    partial.append(b"some").unwrap();
    (directory, workspace, partial)
}

/// Runs `work` on a thread without root's permissions for files.
fn without_root_access<R: Send>(work: impl FnOnce() -> R + Send) -> R {
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

/// Returns whether the partial file is intact, and the reason.
fn reason(error: PartialFileError) -> (bool, Reason) {
    match error {
        PartialFileError::Intact(error) => (true, error.reason),
        PartialFileError::Unusable(error) => (false, error.reason),
    }
}

#[test]
fn partial_file_is_reopened() {
    let (_directory, workspace, partial) = with_partial_file();
    workspace.check_partial_file(&partial).unwrap();
    let reopened =
        workspace.reopen_partial_file(partial.location().clone(), &CancelToken::new()).unwrap();
    assert_eq!((reopened.length(), reopened.sha256()), (4, partial.sha256()));
    assert_eq!(reopened.location(), partial.location());

    let cancel = CancelToken::new();
    cancel.cancel();
    let result = workspace.reopen_partial_file(partial.location().clone(), &cancel);
    assert_eq!(reason(result.unwrap_err()), (true, Reason::Timeout));
}

#[test]
fn removed_partial_file_is_unusable_and_inaccessible_one_is_intact() {
    let cases: [(Tampering, Reason); 5] = [
        (
            |directory, name| fs::remove_file(directory.join("dir").join(name)).unwrap(),
            Reason::StaleFile,
        ),
        (
            |directory, name| {
                let partial = directory.join("dir").join(name);
                fs::rename(&partial, directory.join("stolen")).unwrap();
                fs::write(partial, "some").unwrap();
            },
            Reason::StaleFile,
        ),
        (
            |directory, _| {
                fs::rename(directory.join("dir"), directory.join("moved")).unwrap();
                fs::write(directory.join("dir"), "").unwrap();
            },
            Reason::StaleFile,
        ),
        (
            |directory, _| {
                fs::rename(directory.join("dir"), directory.join("moved")).unwrap();
                symlink("moved", directory.join("dir")).unwrap();
            },
            Reason::StaleFile,
        ),
        (
            |directory, _| {
                let closed = fs::Permissions::from_mode(0o0);
                fs::set_permissions(directory.join("dir"), closed).unwrap();
            },
            Reason::PermissionDenied,
        ),
    ];
    for (tamper, expected) in cases {
        let (directory, workspace, partial) = with_partial_file();
        tamper(directory.path(), &partial.location().name);
        let errors = without_root_access(|| {
            [
                workspace.check_partial_file(&partial).unwrap_err(),
                workspace
                    .reopen_partial_file(partial.location().clone(), &CancelToken::new())
                    .unwrap_err(),
            ]
        });
        let is_intact = expected != Reason::StaleFile;
        assert_eq!(errors.map(reason), [(is_intact, expected); 2]);
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
fn commit_does_not_overwrite_concurrent_changes() {
    use Reason as R;
    /// Content before, action of a command during the commit, content after, and expected reason.
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
        let (directory, workspace, mut partial) = with_partial_file();
        let file = directory.path().join("dir/file");
        if let Some(before) = before {
            fs::write(&file, before).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        }
        let target = target(&workspace);
        let record = |location: &PartialFileLocation| {
            assert_eq!(location.replaces, Some(before.is_some()));
            command(&file);
            Ok(())
        };
        let error =
            workspace.commit_partial_file(&mut partial, &target, record, &CancelToken::new());
        assert_eq!(reason(error.unwrap_err()), (true, expected));
        assert_eq!(fs::read_to_string(&file).ok().as_deref(), after);
        // The partial file is unchanged.
        let path = directory.path().join("dir").join(&partial.location().name);
        assert_eq!(mode(&path), 0o600);
        workspace.check_partial_file(&partial).unwrap();
        let created =
            workspace.commit_partial_file(&mut partial, &target, |_| Ok(()), &CancelToken::new());
        assert_eq!(created.unwrap(), after.is_none());
        assert_eq!(fs::read_to_string(&file).unwrap(), "some");
        assert_eq!(fs::read_dir(directory.path().join("dir")).unwrap().count(), 1);
    }
}

#[test]
fn file_that_changes_after_its_hash_check_is_not_replaced() {
    let (directory, workspace, mut partial) = with_partial_file();
    let file = directory.path().join("dir/file");
    fs::write(&file, "old").unwrap();
    let target = PartialFileTarget {
        expected_sha256: Some(crate::daemon::checksum::sha256(b"old")),
        ..target(&workspace)
    };
    let guard =
        workspace.locks.lock(std::slice::from_ref(&target.path), &CancelToken::new()).unwrap();
    let (started, thread_id) = std::sync::mpsc::channel();
    let error = std::thread::scope(|scope| {
        let commit = scope.spawn(|| {
            started.send(rustix::thread::gettid()).unwrap();
            workspace.commit_partial_file(&mut partial, &target, |_| Ok(()), &CancelToken::new())
        });
        // The thread waits for the lock after it has hashed the file.
        let thread = thread_id.recv().unwrap().as_raw_nonzero();
        let is_sleeping = || {
            let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
            stat.is_ok_and(|stat| stat.contains(") S "))
        };
        while !is_sleeping() {
            std::thread::yield_now();
        }
        fs::write(&file, "newer").unwrap();
        drop(guard);
        commit.join().unwrap().unwrap_err()
    });
    assert_eq!(reason(error), (true, Reason::StaleFile));
    assert_eq!(fs::read_to_string(&file).unwrap(), "newer");
}

#[test]
fn commit_fails_after_the_directory_was_replaced() {
    let (temp_dir, workspace, mut partial) = with_partial_file();
    fs::rename(temp_dir.path().join("dir"), temp_dir.path().join("moved")).unwrap();
    fs::create_dir(temp_dir.path().join("dir")).unwrap();
    let result = workspace.commit_partial_file(
        &mut partial,
        &target(&workspace),
        |_| Ok(()),
        &CancelToken::new(),
    );
    assert_eq!(reason(result.unwrap_err()), (false, Reason::StaleFile));
    partial.discard();
    for directory in ["dir", "moved"] {
        let entries = fs::read_dir(temp_dir.path().join(directory)).unwrap();
        assert_eq!(entries.count(), 0, "{directory}");
    }
}

#[test]
fn directory_need_not_be_readable() {
    let (temp_dir, workspace, partial) = with_partial_file();
    partial.discard();
    let directory = temp_dir.path().join("dir");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o300)).unwrap();
    let created = without_root_access(|| {
        let target = target(&workspace);
        let mut partial = workspace.create_partial_file(&target.path, |_| Ok(()))?;
        workspace.commit_partial_file(&mut partial, &target, |_| Ok(()), &CancelToken::new())
    });
    assert!(created.unwrap());
    assert_eq!(mode(&directory.join("file")), 0o644);
}

#[test]
fn interrupted_commit_is_reverted_or_completed() {
    let replaced = Some(true);
    let created = Some(false);
    // Files at the temporary name, the destination and the fallback link; `replaces` of the record;
    // the resulting state, and the file at the destination.
    for (at_temporary, at_destination, at_link, replaces, state, destination_after) in [
        ("partial", "", "", None, "partial", ""),
        ("partial", "old", "", replaced, "partial", "old"),
        // Exchanged in one step, or by way of the fallback link.
        ("old", "partial", "", replaced, "partial", "old"),
        ("partial", "old", "old", replaced, "partial", "old"),
        ("", "partial", "old", replaced, "partial", "old"),
        // Committed.
        ("", "partial", "", replaced, "committed", "partial"),
        ("", "partial", "", created, "committed", "partial"),
        ("partial", "partial", "", created, "committed", "partial"),
        // Moved by a command, before the commit.
        ("", "partial", "", None, "missing", "partial"),
        ("partial", "partial", "", None, "partial", "partial"),
        ("", "old", "", replaced, "missing", "old"),
        ("old", "", "", None, "missing", ""),
        ("", "", "", None, "missing", ""),
    ] {
        let case = format!("{at_temporary:?} {at_destination:?} {at_link:?} {replaces:?}");
        let (temp_dir, _workspace, partial) = with_partial_file();
        let location = PartialFileLocation { replaces, ..partial.location().clone() };
        let at = |name: &str| temp_dir.path().join("dir").join(name);
        let old_link = format!("{}~", location.name);
        let names = [location.name.as_str(), "file", &old_link];
        fs::rename(at(&location.name), at("partial")).unwrap();
        fs::write(at("old"), "old").unwrap();
        for (name, file) in names.iter().zip([at_temporary, at_destination, at_link]) {
            if !file.is_empty() {
                fs::hard_link(at(file), at(name)).unwrap();
            }
        }
        fs::remove_file(at("partial")).unwrap();
        fs::remove_file(at("old")).unwrap();

        let directory = std::fs::File::open(at("")).unwrap().into();
        let expected = match state {
            "partial" => PartialFileState::Partial(4),
            "committed" => PartialFileState::Committed(4),
            _ => PartialFileState::Missing,
        };
        for _ in 0..2 {
            let state = recover_placement(&directory, "file", &location);
            assert_eq!(state, Ok(expected), "{case}");
        }
        let file_at = |name: &str| match fs::read_to_string(at(name)).ok().as_deref() {
            None => "",
            Some("some") => "partial",
            Some(_) => "old",
        };
        assert_eq!(file_at("file"), destination_after, "{case}");
        let temporary_after = match state {
            "partial" => "partial",
            "committed" => "",
            _ => at_temporary,
        };
        assert_eq!(names.map(file_at), [temporary_after, destination_after, ""], "{case}");
    }
}

#[test]
fn corrupt_record_does_not_affect_other_files() {
    let (directory, workspace, partial) = with_partial_file();
    let at = |name: &str| directory.path().join("dir").join(name);
    for name in ["", "~", "file", "../file"] {
        fs::write(at("~"), "").unwrap();
        fs::write(at("file"), "").unwrap();
        let location = PartialFileLocation {
            name: name.to_owned(),
            identity: None,
            ..partial.location().clone()
        };
        assert_eq!(workspace.recover_partial_file(&location).unwrap(), PartialFileState::Missing);
        assert!(workspace.delete_partial_file(&location));
        assert!(at("~").exists() && at("file").exists(), "{name:?}");
    }
}
