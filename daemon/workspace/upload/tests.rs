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
type Spoil = fn(&Path, &str);

/// A workspace with a draft of `dir/file` that has some bytes.
fn with_draft() -> (TempDir, Workspace, Draft) {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("dir")).unwrap();
    let workspace = Workspace::open("w", folder.path(), "/workspace").unwrap();
    let path = workspace.resolve("dir/file").unwrap();
    let mut draft = workspace.begin_draft(&path).unwrap();
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

fn reason(error: DraftError) -> (bool, Reason) {
    match error {
        DraftError::Kept(error) => (true, error.reason),
        DraftError::Dropped(error) => (false, error.reason),
    }
}

#[test]
fn a_draft_is_found_again() {
    let (_folder, workspace, draft) = with_draft();
    workspace.check_draft(&draft).unwrap();
    let again = workspace.reopen_draft(draft.place().clone(), &Stop::new());
    let again = again.unwrap();
    assert_eq!((again.length(), again.sha256()), (4, draft.sha256()));
    assert_eq!(again.place(), draft.place());
    let stop = Stop::new();
    stop.stop();
    let stopped = workspace.reopen_draft(draft.place().clone(), &stop);
    assert_eq!(reason(stopped.unwrap_err()), (true, Reason::Timeout));
}

#[test]
fn a_draft_that_was_taken_away_is_dropped_and_one_that_cannot_be_reached_is_kept() {
    let spoil: [(Spoil, Reason); 5] = [
        (
            |folder, name| fs::remove_file(folder.join("dir").join(name)).unwrap(),
            Reason::StaleFile,
        ),
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
        spoil(folder.path(), &draft.place().name);
        let found = as_nobody_special(|| {
            [
                workspace.check_draft(&draft).unwrap_err(),
                workspace
                    .reopen_draft(draft.place().clone(), &Stop::new())
                    .unwrap_err(),
            ]
        });
        let kept = expected != Reason::StaleFile;
        assert_eq!(found.map(reason), [(kept, expected); 2]);
    }
}
