//! The key file, for who administers it: `jig key`.

use std::{collections::BTreeSet, io, path::Path, time::SystemTime};

use super::{
    catalog::Catalog,
    config::{
        keys::{self, AccessRole, ApiKey, KeyDigest, KeyFileEditError, KeyLimits, RateLimit},
        tools::load_tools,
    },
};

/// Why a key file was left as it is, or cannot be listed. Display says what to do.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// What is asked for, or what the file holds, is against its rules.
    #[error("{0}")]
    Invalid(String),
    /// It cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file or directory.
        path: String,
        /// Why.
        source: io::Error,
    },
}

/// A key, as it is asked for and listed. It is not the key itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyInfo {
    /// What its holder is called in records: 1 to 64 letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// `read`, `invoke` or `admin`.
    pub role: String,
    /// The workspaces that it is for; empty for all.
    pub workspaces: Vec<String>,
    /// The tools that it is for; empty for all.
    pub tools: Vec<String>,
    /// Calls per second, on average.
    pub calls_per_second: Option<u32>,
    /// Calls at once, where there is a number per second.
    pub burst: Option<u32>,
    /// Calls at one time.
    pub concurrent_calls: Option<u32>,
    /// When it stops being a key.
    pub expires: Option<SystemTime>,
    /// When it was made, as the file says.
    pub created: Option<String>,
}

/// Adds a key to the file at `path`, making it where it is missing. `config` is the configuration of the daemon,
/// where the key is for tools of it. Answers the key, which cannot be had again. Blocks.
pub fn add(path: &Path, grant: &KeyInfo, config: Option<&Path>) -> Result<String, KeyFileError> {
    let refused = |text: String| Err(KeyFileError::Invalid(text));
    let mut roles = [AccessRole::Read, AccessRole::Invoke, AccessRole::Admin].into_iter();
    let Some(role) = roles.find(|role| role.name() == grant.role) else {
        return refused(format!("role {:?}: give read, invoke or admin", grant.role));
    };
    if grant.burst.is_some() && grant.calls_per_second.is_none() {
        return refused("a burst says nothing without a number of calls per second".to_owned());
    }
    let catalog =
        load_catalog(config).map_err(|problems| KeyFileError::Invalid(problems.join("\n")))?;
    let mut tools = grant.tools.iter();
    if let Some(unknown) = tools.find(|tool| !catalog.has_tool(tool)) {
        // A daemon would refuse the whole file.
        let text = catalog.unknown_tool_message(unknown);
        return refused(match config {
            Some(_) => text,
            None => format!("{text}; name the file that has [[tools]] with --config"),
        });
    }
    let names = |names: &[String]| -> Option<BTreeSet<String>> {
        (!names.is_empty()).then(|| names.iter().cloned().collect())
    };
    let key = ApiKey {
        name: grant.name.clone(),
        role,
        digest: KeyDigest::default(),
        workspaces: names(&grant.workspaces),
        tools: names(&grant.tools),
        limits: KeyLimits {
            rate: grant.calls_per_second.map(|per_second| RateLimit {
                per_second,
                burst: grant.burst.unwrap_or(per_second),
            }),
            concurrent_calls: grant.concurrent_calls,
        },
        expires: grant.expires,
    };
    let secret = keys::add(path, &key)?;
    Ok(secret.reveal().to_owned())
}

/// The tools of the contract, and those of a configuration.
fn load_catalog(config: Option<&Path>) -> Result<Catalog, Vec<String>> {
    let tools = config.map(load_tools).transpose()?.unwrap_or_default();
    let catalog = Catalog::load().map_err(|error| vec![error.to_string()])?;
    catalog.with_custom_tools(tools)
}

/// Takes the key of this name from the file at `path`. Blocks.
pub fn revoke(path: &Path, name: &str) -> Result<(), KeyFileError> {
    Ok(keys::revoke(path, name)?)
}

/// The keys of the file at `path`. Blocks.
pub fn list(path: &Path) -> Result<Vec<KeyInfo>, KeyFileError> {
    let listed = keys::list(path)?;
    let names = |names: Option<BTreeSet<String>>| names.into_iter().flatten().collect();
    let grants = listed.into_iter().map(|(key, created)| KeyInfo {
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
    Ok(grants.collect())
}

impl From<KeyFileEditError> for KeyFileError {
    fn from(error: KeyFileEditError) -> Self {
        match error {
            KeyFileEditError::Invalid(text) => Self::Invalid(text),
            KeyFileEditError::Io { path, source } => Self::Io { path, source },
        }
    }
}
