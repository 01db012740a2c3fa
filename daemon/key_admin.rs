//! Administration of the key file, for `jig key`.

use std::{collections::BTreeSet, io, path::Path, time::SystemTime};

use super::{
    catalog::Catalog,
    config::{
        keys::{self, AccessRole, ApiKey, KeyDigest, KeyFileEditError, KeyLimits, RateLimit},
        tools::load_tools,
    },
};

/// Why a key file was not changed, or cannot be listed. Display says what to do.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The requested key or the content of the file is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The file or its directory cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file or directory.
        path: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Settings of a key, to add or to list. The secret is not part of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyInfo {
    /// Name of the key's holder in records: 1 to 64 letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// `read`, `invoke` or `admin`.
    pub role: String,
    /// Workspaces that the key gives access to; empty for all.
    pub workspaces: Vec<String>,
    /// Tools that the key gives access to; empty for all.
    pub tools: Vec<String>,
    /// Average number of calls per second.
    pub calls_per_second: Option<u32>,
    /// Calls in one burst. Needs `calls_per_second`.
    pub burst: Option<u32>,
    /// Calls that may run at the same time.
    pub concurrent_calls: Option<u32>,
    /// When the key expires.
    pub expires: Option<SystemTime>,
    /// When the key was created, as written in the file.
    pub created: Option<String>,
}

/// Adds a key to the file at `path`, and creates the file if it is missing. Blocks.
///
/// `config` is the daemon's configuration file; it is needed if the key names a tool defined there.
/// Returns the secret, which is not stored and cannot be read again.
///
/// # Errors
///
/// Rejects unknown roles, unknown tools, and a burst without a rate.
pub fn add(path: &Path, info: &KeyInfo, config: Option<&Path>) -> Result<String, KeyFileError> {
    let invalid = |text: String| Err(KeyFileError::Invalid(text));
    let mut roles = [AccessRole::Read, AccessRole::Invoke, AccessRole::Admin].into_iter();
    let Some(role) = roles.find(|role| role.name() == info.role) else {
        return invalid(format!("role {:?}: give read, invoke or admin", info.role));
    };
    if info.burst.is_some() && info.calls_per_second.is_none() {
        return invalid("a burst needs a number of calls per second".to_owned());
    }

    // A daemon would reject the whole file because of one unknown tool.
    let catalog =
        load_catalog(config).map_err(|problems| KeyFileError::Invalid(problems.join("\n")))?;
    if let Some(unknown) = info.tools.iter().find(|tool| !catalog.has_tool(tool)) {
        let text = catalog.unknown_tool_message(unknown);
        return invalid(match config {
            Some(_) => text,
            None => format!("{text}; name the file that has [[tools]] with --config"),
        });
    }

    let names = |names: &[String]| -> Option<BTreeSet<String>> {
        (!names.is_empty()).then(|| names.iter().cloned().collect())
    };
    let key = ApiKey {
        name: info.name.clone(),
        role,
        digest: KeyDigest::default(),
        workspaces: names(&info.workspaces),
        tools: names(&info.tools),
        limits: KeyLimits {
            rate: info.calls_per_second.map(|per_second| RateLimit {
                per_second,
                burst: info.burst.unwrap_or(per_second),
            }),
            concurrent_calls: info.concurrent_calls,
        },
        expires: info.expires,
    };
    let secret = keys::add(path, &key)?;
    Ok(secret.reveal().to_owned())
}

/// The canonical tools, and those that a configuration file defines.
fn load_catalog(config: Option<&Path>) -> Result<Catalog, Vec<String>> {
    let tools = config.map(load_tools).transpose()?.unwrap_or_default();
    let catalog = Catalog::load().map_err(|error| vec![error.to_string()])?;
    catalog.with_custom_tools(tools)
}

/// Removes the key named `name` from the file at `path`. Blocks.
pub fn revoke(path: &Path, name: &str) -> Result<(), KeyFileError> {
    Ok(keys::revoke(path, name)?)
}

/// Lists the keys of the file at `path`. Blocks.
pub fn list(path: &Path) -> Result<Vec<KeyInfo>, KeyFileError> {
    let names = |names: Option<BTreeSet<String>>| names.into_iter().flatten().collect();
    let infos = keys::list(path)?.into_iter().map(|(key, created)| KeyInfo {
        name: key.name,
        role: key.role.name().to_owned(),
        workspaces: names(key.workspaces),
        tools: names(key.tools),
        calls_per_second: key.limits.rate.map(|rate| rate.per_second),
        burst: key.limits.rate.map(|rate| rate.burst),
        concurrent_calls: key.limits.concurrent_calls,
        expires: key.expires,
        created,
    });
    Ok(infos.collect())
}

impl From<KeyFileEditError> for KeyFileError {
    fn from(error: KeyFileEditError) -> Self {
        match error {
            KeyFileEditError::Invalid(text) => Self::Invalid(text),
            KeyFileEditError::Io { path, source } => Self::Io { path, source },
        }
    }
}
