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
    file::{ApiKey, KeyTable, RawKeyFile, check_keys},
    secret::{KeyDigest, SecretKey, redacted_name},
};

/// What stands above the keys.
const FILE_HEADER: &str = "\
# Keys of jigd, as digests: who holds none of the keys cannot make one from this file.
# Written by `jig key`, which does not keep comments. A daemon reads it when it starts, and at SIGHUP.

";

/// Why the file was left as it is. Display says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyFileEditError {
    /// The file holds what cannot be understood, or would.
    #[error("{0}")]
    Invalid(String),
    /// It cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
}

/// Adds a key of this name to the file at `path`, making it where it is missing. What `key` says of its
/// digest counts for nothing. Answers the new key.
pub(crate) fn add(path: &Path, key: &ApiKey) -> Result<SecretKey, KeyFileEditError> {
    let secret = SecretKey::generate().map_err(io_error(path))?;
    edit_file(path, true, |written| {
        if written.keys.iter().any(|other| other.name == key.name) {
            return Err(format!(
                "there is a key named {:?} already: choose another name, or revoke that one first",
                key.name
            ));
        }
        written.keys.push(to_table(key, secret.digest()));
        Ok(())
    })?;
    Ok(secret)
}

/// Takes the key of this name from the file at `path`.
pub(crate) fn revoke(path: &Path, name: &str) -> Result<(), KeyFileEditError> {
    edit_file(path, false, |written| {
        let before = written.keys.len();
        written.keys.retain(|key| key.name != name);
        if written.keys.len() == before {
            return Err(format!(
                "there is no key named {}: `jig key list` tells which there are",
                redacted_name(name)
            ));
        }
        Ok(())
    })
}

/// The keys of the file at `path`, and when each was made.
pub(crate) fn list(path: &Path) -> Result<Vec<(ApiKey, Option<String>)>, KeyFileEditError> {
    let written = RawKeyFile::read(path).map_err(|problem| invalid(path, &problem))?;
    let created: Vec<_> = written.keys.iter().map(|key| key.created.clone()).collect();
    let keys = validated(path, written)?;
    Ok(keys.into_iter().zip(created).collect())
}

/// Changes the file at `path`, unless `change` or the rules of the file are against it.
fn edit_file(
    path: &Path,
    create_missing: bool,
    change: impl FnOnce(&mut RawKeyFile) -> Result<(), String>,
) -> Result<(), KeyFileEditError> {
    // Where the links to it lead: what is replaced is the file, not a link.
    let real = match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
            path.to_owned()
        }
        real => real.map_err(io_error(path))?,
    };
    let path = real.as_path();
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // One at a time: what another one writes meanwhile would be lost.
    let lock = fs::File::open(folder).map_err(io_error(folder))?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|errno| io_error(folder)(errno.into()))?;
    let before = match fs::metadata(path) {
        Ok(metadata) => Some(metadata),
        Err(error) if create_missing && error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(io_error(path)(error)),
    };
    let mut written = match before {
        Some(_) => RawKeyFile::read(path).map_err(|problem| invalid(path, &problem))?,
        None => RawKeyFile::default(),
    };
    change(&mut written).map_err(|problem| invalid(path, &problem))?;
    let text = toml::to_string(&written).map_err(|error| invalid(path, &error.to_string()))?;
    validated(path, written)?;
    let temporary = tempfile::Builder::new()
        .prefix(".jig-keys-")
        .make_in(folder, |path| {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600).open(path)
        })
        .map_err(io_error(path))?;
    let mut file = temporary.as_file();
    let replaced = (|| {
        file.write_all((FILE_HEADER.to_owned() + &text).as_bytes())?;
        if let Some(before) = before {
            // The daemon may be another user's.
            file.set_permissions(fs::Permissions::from_mode(before.mode() & 0o777))?;
            fchown(file, Some(before.uid()), Some(before.gid()))?;
        }
        file.sync_all()
    })();
    replaced.map_err(io_error(path))?;
    temporary.persist(path).map_err(|error| io_error(path)(error.error))?;
    lock.sync_all().map_err(io_error(folder))
}

fn validated(path: &Path, written: RawKeyFile) -> Result<Vec<ApiKey>, KeyFileEditError> {
    let mut problems = Vec::new();
    let keys = check_keys(written, &mut problems);
    match problems.is_empty() {
        true => Ok(keys),
        false => Err(invalid(path, &problems.join("\n"))),
    }
}

fn to_table(key: &ApiKey, digest: KeyDigest) -> KeyTable {
    let time = |time: SystemTime| prost_types::Timestamp::from(time).to_string();
    let rate = key.limits.rate;
    let names = |names: &std::collections::BTreeSet<String>| names.iter().cloned().collect();
    KeyTable {
        name: key.name.clone(),
        role: key.role,
        sha256: digest.to_string(),
        workspaces: key.workspaces.as_ref().map(names),
        tools: key.tools.as_ref().map(names),
        calls_per_second: rate.map(|rate| rate.per_second),
        burst: rate.map(|rate| rate.burst),
        concurrent_calls: key.limits.concurrent_calls,
        expires: key.expires.map(time),
        created: Some(time(SystemTime::now())),
    }
}

fn invalid(path: &Path, problem: &str) -> KeyFileEditError {
    KeyFileEditError::Invalid(format!("{}: {problem}", path.display()))
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> KeyFileEditError {
    let path = path.display().to_string();
    move |source| KeyFileEditError::Io { path, source }
}

#[cfg(test)]
mod tests {
    use super::{
        super::file::{AccessRole, KeyFile, KeyLimits, RateLimit},
        *,
    };

    fn key(name: &str) -> ApiKey {
        ApiKey {
            name: name.to_owned(),
            role: AccessRole::Invoke,
            digest: KeyDigest::default(),
            workspaces: Some(["w".to_owned()].into()),
            tools: None,
            limits: KeyLimits {
                rate: Some(RateLimit { per_second: 3, burst: 5 }),
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
        let keys = KeyFile::read(&path).unwrap().keys;
        let expected = ApiKey { digest: secret.digest(), ..key("a") };
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
