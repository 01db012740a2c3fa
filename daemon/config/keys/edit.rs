//! Adds keys to the key file, and removes them, for `jig key`.
//!
//! The file is replaced atomically: a daemon that reads it sees the old content or the new one.

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
    secret::{SecretKey, redacted_name},
};

const FILE_HEADER: &str = "\
# Digests of the API keys of jigd. A key cannot be derived from its digest.
# Written by `jig key`, which removes comments. The daemon reads it at its start and at SIGHUP.

";

/// Why the file was not changed. `Display` says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyFileEditError {
    /// The content of the file is invalid, or would be.
    #[error("{0}")]
    Invalid(String),
    /// The file cannot be read or written.
    #[error("{path}: {source}")]
    Io { path: String, source: io::Error },
}

/// Adds `key` with a new secret to the file at `path`, and returns the secret.
///
/// Creates a missing file. Ignores the digest in `key`.
pub(crate) fn add(path: &Path, key: &ApiKey) -> Result<SecretKey, KeyFileEditError> {
    let secret = SecretKey::generate().map_err(io_error(path))?;
    add_entry(path, &ApiKey { digest: Some(secret.digest()), ..key.clone() })?;
    Ok(secret)
}

/// Adds `key` as it is to the file at `path`. Creates a missing file.
pub(crate) fn add_entry(path: &Path, key: &ApiKey) -> Result<(), KeyFileEditError> {
    edit_file(path, true, |content| {
        if content.keys.iter().any(|other| other.name == key.name) {
            return Err(format!(
                "a key named {:?} already exists: choose another name, or revoke that one first",
                key.name
            ));
        }
        content.keys.push(to_table(key));
        Ok(())
    })
}

/// Removes the key of this name from the file at `path`.
pub(crate) fn revoke(path: &Path, name: &str) -> Result<(), KeyFileEditError> {
    edit_file(path, false, |content| {
        let before = content.keys.len();
        content.keys.retain(|key| key.name != name);
        if content.keys.len() == before {
            return Err(format!(
                "no key is named {}: `jig key list` lists the keys",
                redacted_name(name)
            ));
        }
        Ok(())
    })
}

/// Returns the keys of the file at `path` with their times of creation.
pub(crate) fn list(path: &Path) -> Result<Vec<(ApiKey, Option<String>)>, KeyFileEditError> {
    let content = RawKeyFile::read(path).map_err(|problem| invalid(path, &problem))?;
    let created: Vec<_> = content.keys.iter().map(|key| key.created.clone()).collect();
    let keys = validated(path, content)?;
    Ok(keys.into_iter().zip(created).collect())
}

/// Changes the file at `path`, unless `change` fails or the result is invalid.
fn edit_file(
    path: &Path,
    create_missing: bool,
    change: impl FnOnce(&mut RawKeyFile) -> Result<(), String>,
) -> Result<(), KeyFileEditError> {
    // Resolves links, so that the file is replaced and not a link to it.
    let real = match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
            path.to_owned()
        }
        real => real.map_err(io_error(path))?,
    };
    let path = real.as_path();
    let directory = match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    };

    // Without the lock, a concurrent change would be lost.
    let lock = fs::File::open(directory).map_err(io_error(directory))?;
    flock(&lock, FlockOperation::LockExclusive)
        .map_err(|errno| io_error(directory)(errno.into()))?;
    let before = match fs::metadata(path) {
        Ok(metadata) => Some(metadata),
        Err(error) if create_missing && error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(io_error(path)(error)),
    };
    let mut content = match before {
        Some(_) => RawKeyFile::read(path).map_err(|problem| invalid(path, &problem))?,
        None => RawKeyFile::default(),
    };
    change(&mut content).map_err(|problem| invalid(path, &problem))?;
    let text = toml::to_string(&content).map_err(|error| invalid(path, &error.to_string()))?;
    validated(path, content)?;

    let temporary = tempfile::Builder::new()
        .prefix(".jig-keys-")
        .make_in(directory, |path| {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600).open(path)
        })
        .map_err(io_error(path))?;
    let mut file = temporary.as_file();
    let written = (|| {
        file.write_all((FILE_HEADER.to_owned() + &text).as_bytes())?;
        if let Some(before) = before {
            // The daemon can run as another user.
            file.set_permissions(fs::Permissions::from_mode(before.mode() & 0o777))?;
            fchown(file, Some(before.uid()), Some(before.gid()))?;
        }
        file.sync_all()
    })();
    written.map_err(io_error(path))?;
    temporary.persist(path).map_err(|error| io_error(path)(error.error))?;
    lock.sync_all().map_err(io_error(directory))
}

fn validated(path: &Path, content: RawKeyFile) -> Result<Vec<ApiKey>, KeyFileEditError> {
    let mut problems = Vec::new();
    let keys = check_keys(content, &mut problems);
    if problems.is_empty() { Ok(keys) } else { Err(invalid(path, &problems.join("\n"))) }
}

fn to_table(key: &ApiKey) -> KeyTable {
    let time = |time: SystemTime| prost_types::Timestamp::from(time).to_string();
    let rate = key.limits.rate;
    let names = |names: &std::collections::BTreeSet<String>| names.iter().cloned().collect();
    KeyTable {
        name: key.name.clone(),
        role: key.role,
        sha256: key.digest.map(|digest| digest.to_string()),
        certificates: (!key.certificates.is_empty())
            .then(|| key.certificates.iter().map(ToString::to_string).collect()),
        workspaces: key.workspaces.as_ref().filter(|names| !names.is_empty()).map(names),
        create_workspaces: key.create_workspaces,
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
            digest: None,
            certificates: Default::default(),
            workspaces: Some(["w".to_owned()].into()),
            create_workspaces: false,
            tools: None,
            limits: KeyLimits {
                rate: Some(RateLimit { per_second: 3, burst: 5 }),
                concurrent_calls: None,
            },
            expires: None,
        }
    }

    #[test]
    fn the_target_of_a_link_is_changed_and_the_link_stays() {
        let [directory, other] = [0, 1].map(|_| tempfile::tempdir().unwrap());
        let (link, path) = (directory.path().join("link"), other.path().join("keys.toml"));
        std::os::unix::fs::symlink(&path, &link).unwrap();
        // A dangling link is not replaced.
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
    fn keys_are_added_and_revoked_and_other_content_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys.toml");
        assert!(revoke(&path, "a").is_err());
        let secret = add(&path, &key("a")).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        add(&path, &key("b")).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains(secret.reveal()));
        let keys = KeyFile::read(&path).unwrap().keys;
        let expected = ApiKey { digest: Some(secret.digest()), ..key("a") };
        assert_eq!(keys.first(), Some(&expected));
        assert_eq!(keys.len(), 2);
        let refused = add(&path, &key("a")).unwrap_err().to_string();
        assert!(refused.contains("already exists"), "{refused}");
        let refused = add(&path, &key("a b")).unwrap_err().to_string();
        assert!(refused.contains("a name has"), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        revoke(&path, "a").unwrap();
        assert!(revoke(&path, "a").is_err());
        let listed = list(&path).unwrap();
        assert_eq!(listed.len(), 1);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
