//! The key file, for who administers it: `jig key`.

use std::{collections::BTreeSet, path::Path, time::SystemTime};

use super::config::keys::{self, Allowance, Digest, Key, Rate, Role};

/// A key, as it is asked for and listed. It is not the key itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grant {
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

/// Adds a key to the file at `path`, making it where it is missing. Answers the key, which cannot be
/// had again; or why the file was left as it is. Blocks.
pub fn add(path: &Path, grant: &Grant) -> Result<String, String> {
    let role = [Role::Read, Role::Invoke, Role::Admin]
        .into_iter()
        .find(|role| role.name() == grant.role)
        .ok_or_else(|| format!("role {:?}: give read, invoke or admin", grant.role))?;
    if grant.burst.is_some() && grant.calls_per_second.is_none() {
        return Err("a burst says nothing without a number of calls per second".to_owned());
    }
    let names = |names: &[String]| -> Option<BTreeSet<String>> {
        (!names.is_empty()).then(|| names.iter().cloned().collect())
    };
    let key = Key {
        name: grant.name.clone(),
        role,
        digest: Digest::default(),
        workspaces: names(&grant.workspaces),
        tools: names(&grant.tools),
        allowance: Allowance {
            rate: grant.calls_per_second.map(|per_second| Rate {
                per_second,
                burst: grant.burst.unwrap_or(per_second),
            }),
            concurrent_calls: grant.concurrent_calls,
        },
        expires: grant.expires,
    };
    let secret = keys::add(path, &key).map_err(|error| error.to_string())?;
    Ok(secret.reveal().to_owned())
}

/// Takes the key of this name from the file at `path`; answers why it cannot be. Blocks.
pub fn revoke(path: &Path, name: &str) -> Result<(), String> {
    keys::revoke(path, name).map_err(|error| error.to_string())
}

/// The keys of the file at `path`, or why it cannot be read. Blocks.
pub fn list(path: &Path) -> Result<Vec<Grant>, String> {
    let listed = keys::list(path).map_err(|error| error.to_string())?;
    let names = |names: Option<BTreeSet<String>>| names.into_iter().flatten().collect();
    let grants = listed.into_iter().map(|(key, created)| Grant {
        name: key.name,
        role: key.role.name().to_owned(),
        workspaces: names(key.workspaces),
        tools: names(key.tools),
        calls_per_second: key.allowance.rate.map(|rate| rate.per_second),
        burst: key.allowance.rate.map(|rate| rate.burst),
        concurrent_calls: key.allowance.concurrent_calls,
        expires: key.expires,
        created,
    });
    Ok(grants.collect())
}
