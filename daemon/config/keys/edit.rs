//! Adding keys to the file and taking them away, as `jig key` does. The file is replaced as a whole: a
//! daemon that reads it meanwhile sees the old one or the new one.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown},
    path::Path,
    time::SystemTime,
};

use rustix::fs::{FlockOperation, flock};

use super::{
    file::{Key, Written, WrittenKey, check},
    secret::{Digest, Secret, shown},
};

/// What stands above the keys.
const HEADER: &str = "\
# Keys of jigd, as digests: who holds none of the keys cannot make one from this file.
# Written by `jig key`, which does not keep comments. A daemon reads it when it starts, and at SIGHUP.

";

/// Why the file was left as it is. Display says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EditError {
    /// The file holds what cannot be understood, or would.
    #[error("{0}")]
    Bad(String),
    /// It cannot be read or written.
    #[error("{path}: {source}")]
    Unusable {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
}

/// Adds a key of this name to the file at `path`, making it where it is missing. What `key` says of its
/// digest counts for nothing. Answers the new key.
pub(crate) fn add(path: &Path, key: &Key) -> Result<Secret, EditError> {
    let secret = Secret::generate().map_err(unusable(path))?;
    change(path, true, |written| {
        if written.keys.iter().any(|other| other.name == key.name) {
            return Err(format!(
                "there is a key named {:?} already: choose another name, or revoke that one first",
                key.name
            ));
        }
        written.keys.push(write(key, secret.digest()));
        Ok(())
    })?;
    Ok(secret)
}

/// Takes the key of this name from the file at `path`.
pub(crate) fn revoke(path: &Path, name: &str) -> Result<(), EditError> {
    change(path, false, |written| {
        let before = written.keys.len();
        written.keys.retain(|key| key.name != name);
        if written.keys.len() == before {
            return Err(format!(
                "there is no key named {}: `jig key list` tells which there are",
                shown(name)
            ));
        }
        Ok(())
    })
}

/// The keys of the file at `path`, and when each was made.
pub(crate) fn list(path: &Path) -> Result<Vec<(Key, Option<String>)>, EditError> {
    let written = Written::read(path).map_err(|problem| bad(path, &problem))?;
    let created: Vec<_> = written.keys.iter().map(|key| key.created.clone()).collect();
    let keys = checked(path, written)?;
    Ok(keys.into_iter().zip(created).collect())
}

/// Changes the file at `path`, unless `change` or the rules of the file are against it.
fn change(
    path: &Path,
    make: bool,
    change: impl FnOnce(&mut Written) -> Result<(), String>,
) -> Result<(), EditError> {
    // Where the links to it lead: what is replaced is the file, not a link.
    let real = match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
            path.to_owned()
        }
        real => real.map_err(unusable(path))?,
    };
    let path = real.as_path();
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // One at a time: what another one writes meanwhile would be lost.
    let turn = fs::File::open(folder).map_err(unusable(folder))?;
    flock(&turn, FlockOperation::LockExclusive).map_err(|errno| unusable(folder)(errno.into()))?;
    let before = match fs::metadata(path) {
        Ok(metadata) => Some(metadata),
        Err(error) if make && error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(unusable(path)(error)),
    };
    let mut written = match before {
        Some(_) => Written::read(path).map_err(|problem| bad(path, &problem))?,
        None => Written::default(),
    };
    change(&mut written).map_err(|problem| bad(path, &problem))?;
    let text = toml::to_string(&written).map_err(|error| bad(path, &error.to_string()))?;
    checked(path, written)?;
    let temporary = tempfile::Builder::new()
        .prefix(".jig-keys-")
        .make_in(folder, |path| {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600).open(path)
        })
        .map_err(unusable(path))?;
    let mut file = temporary.as_file();
    let replaced = (|| {
        file.write_all((HEADER.to_owned() + &text).as_bytes())?;
        if let Some(before) = before {
            // The daemon may be another user's.
            file.set_permissions(fs::Permissions::from_mode(before.mode() & 0o777))?;
            fchown(file, Some(before.uid()), Some(before.gid()))?;
        }
        file.sync_all()
    })();
    replaced.map_err(unusable(path))?;
    temporary.persist(path).map_err(|error| unusable(path)(error.error))?;
    turn.sync_all().map_err(unusable(folder))
}

fn checked(path: &Path, written: Written) -> Result<Vec<Key>, EditError> {
    let mut problems = Vec::new();
    let keys = check(written, &mut problems);
    match problems.is_empty() {
        true => Ok(keys),
        false => Err(bad(path, &problems.join("\n"))),
    }
}

fn write(key: &Key, digest: Digest) -> WrittenKey {
    let time = |time: SystemTime| prost_types::Timestamp::from(time).to_string();
    let rate = key.allowance.rate;
    let names = |names: &std::collections::BTreeSet<String>| names.iter().cloned().collect();
    WrittenKey {
        name: key.name.clone(),
        role: key.role,
        sha256: digest.to_string(),
        workspaces: key.workspaces.as_ref().map(names),
        tools: key.tools.as_ref().map(names),
        calls_per_second: rate.map(|rate| rate.per_second),
        burst: rate.map(|rate| rate.burst),
        concurrent_calls: key.allowance.concurrent_calls,
        expires: key.expires.map(time),
        created: Some(time(SystemTime::now())),
    }
}

fn bad(path: &Path, problem: &str) -> EditError {
    EditError::Bad(format!("{}: {problem}", path.display()))
}

fn unusable(path: &Path) -> impl FnOnce(io::Error) -> EditError {
    let path = path.display().to_string();
    move |source| EditError::Unusable { path, source }
}

#[cfg(test)]
mod tests {
    use super::{
        super::file::{Allowance, Keys, Rate, Role},
        *,
    };

    fn key(name: &str) -> Key {
        Key {
            name: name.to_owned(),
            role: Role::Invoke,
            digest: Digest::default(),
            workspaces: Some(["w".to_owned()].into()),
            tools: None,
            allowance: Allowance {
                rate: Some(Rate { per_second: 3, burst: 5 }),
                concurrent_calls: None,
            },
            expires: None,
        }
    }

    #[test]
    fn the_file_that_a_link_leads_to_is_changed_and_the_link_stays() {
        let [folder, other] = [0, 1].map(|_| tempfile::tempdir().unwrap());
        let (link, path) = (folder.path().join("link"), other.path().join("keys.toml"));
        std::os::unix::fs::symlink(&path, &link).unwrap();
        // One that leads nowhere is not replaced either.
        assert!(add(&link, &key("a")).is_err());
        add(&path, &key("a")).unwrap();
        add(&link, &key("b")).unwrap();
        assert!(link.is_symlink());
        assert_eq!(list(&path).unwrap().len(), 2);
        revoke(&link, "a").unwrap();
        assert!(link.is_symlink());
        assert_eq!(list(&path).unwrap().len(), 1);
    }

    #[test]
    fn keys_are_added_and_taken_away_and_the_rest_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        assert!(revoke(&path, "a").is_err());
        let secret = add(&path, &key("a")).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        add(&path, &key("b")).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains(secret.reveal()));
        let keys = Keys::read(&path).unwrap().keys;
        let expected = Key { digest: secret.digest(), ..key("a") };
        assert_eq!(keys.first(), Some(&expected));
        assert_eq!(keys.len(), 2);
        let refused = add(&path, &key("a")).unwrap_err().to_string();
        assert!(refused.contains("already"), "{refused}");
        let refused = add(&path, &key("a b")).unwrap_err().to_string();
        assert!(refused.contains("a name has"), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        revoke(&path, "a").unwrap();
        assert!(revoke(&path, "a").is_err());
        let listed = list(&path).unwrap();
        assert_eq!(listed.len(), 1);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
