//! Where a key file lies: who can replace it, can let in whom he likes.

use std::{fs, io::ErrorKind, os::unix::fs::MetadataExt as _, path::Path};

use rustix::process::geteuid;

/// Who may write to a file or folder beside its owner.
pub(super) const OTHERS_WRITE: u32 = 0o022;
/// With this, what is in a folder can be replaced by its owner only.
const STICKY: u32 = 0o1000;

/// Looks whether nobody but the daemon's own user and root can replace the file at `path`, or what is in it.
pub(super) fn check_place(path: &Path) -> Result<(), String> {
    let metadata = look(path)?;
    let path = fs::canonicalize(path).map_err(|error| error.to_string())?;
    let own = geteuid().as_raw();
    let folder = path.parent().unwrap_or(Path::new("/"));
    let of_folder = fs::metadata(folder).map_err(|error| error.to_string())?;
    for (what, place, owner) in [
        ("it", path.as_path(), metadata.uid()),
        ("its directory", folder, of_folder.uid()),
    ] {
        if owner != 0 && owner != own {
            return Err(format!(
                "{what} belongs to the user {owner}, who can let in whom he likes: chown {} to the daemon's user or to root",
                place.display()
            ));
        }
    }
    for folder in folder.ancestors() {
        let mode = fs::metadata(folder).map_err(|error| error.to_string())?;
        let mode = mode.mode();
        if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
            return Err(format!(
                "others than its owner may write to the directory {} (mode {:04o}), and so replace it: chmod go-w that",
                folder.display(),
                mode & 0o7777
            ));
        }
    }
    Ok(())
}

/// What is at `path`.
pub(super) fn look(path: &Path) -> Result<fs::Metadata, String> {
    fs::metadata(path).map_err(|error| {
        let remedy = if error.kind() == ErrorKind::PermissionDenied {
            "a daemon reads it as its own user and, once it serves, only where it and the links to it were at its start: restart it where that has changed"
        } else {
            "make a key with `jig key new --keys FILE`"
        };
        format!("{error}: {remedy}")
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown};

    use super::*;

    #[test]
    fn a_file_that_others_may_replace_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("keys");
        let path = place.join("keys.toml");
        fs::create_dir(&place).unwrap();
        fs::write(&path, "").unwrap();
        let with_mode = |mode: u32| {
            fs::set_permissions(&place, fs::Permissions::from_mode(mode)).unwrap();
            check_place(&path)
        };
        for mode in [0o700, 0o755, 0o1777] {
            with_mode(mode).unwrap();
        }
        for mode in [0o770, 0o757, 0o777] {
            let problem = with_mode(mode).unwrap_err();
            assert!(problem.contains("chmod go-w"), "{problem}");
        }
        with_mode(0o755).unwrap();
        // Of whom it is can be changed by root only, as whom the tests run that need it.
        for (changed, told) in [(&path, "it belongs"), (&place, "its directory belongs")] {
            if chown(changed, Some(12_345), None).is_ok() {
                let problem = check_place(&path).unwrap_err();
                assert!(
                    problem.contains(told) && problem.contains("12345"),
                    "{problem}"
                );
                chown(changed, Some(geteuid().as_raw()), None).unwrap();
            }
        }
    }
}
