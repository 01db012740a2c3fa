//! Authentication: which principal a call belongs to.
//!
//! ```text
//! with a key or a client certificate ─▶ in the key file ─▶ its principal
//! with both ─▶ of one entry ─▶ its principal
//! without, if there is no key file:
//!   process of this machine ─▶ the daemon's user or root ─▶ administrator
//!   loopback, with --trust-loopback ─▶ administrator
//! otherwise      ─▶ UNAUTHENTICATED
//! ```

pub(crate) mod credentials;
mod key_principals;
pub(crate) mod principal;
pub(super) mod token_bucket;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, PoisonError, RwLock},
};

use rustix::process::geteuid;

use self::{
    credentials::{Credentials, unauthenticated_error},
    key_principals::KeyPrincipals,
    principal::Principal,
};
use crate::daemon::{
    catalog::Catalog,
    config::keys::{KeyFile, redacted_name},
    error::Error,
};

/// Where a connection comes from, as the kernel reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerOrigin {
    /// The daemon's own process: an embedded daemon, which serves one call.
    Itself,
    /// A process of this machine, by a Unix socket.
    Socket { uid: u32 },
    /// A process of this machine, by the loopback interface.
    Loopback {
        /// `None` if the kernel does not report it.
        uid: Option<u32>,
    },
    /// Another machine, or unknown.
    Elsewhere,
}

/// The principals that may call.
#[derive(Debug)]
pub(crate) struct AccessControl {
    /// `None` without a key file.
    keys: RwLock<Option<Arc<KeyPrincipals>>>,
    trust: LocalTrust,
    root: Arc<Principal>,
    daemon_user: Arc<Principal>,
    /// Any caller on the loopback interface, with `--trust-loopback`.
    loopback: Arc<Principal>,
}

/// Local callers that need no key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalTrust {
    /// The daemon's own user, if the kernel can distinguish it from all others.
    pub(crate) daemon_uid: Option<u32>,
    /// Whether any caller on the loopback interface is trusted.
    pub(crate) loopback: bool,
    /// Whether a connection by the loopback interface from a trusted user cannot come from a
    /// sandboxed command.
    pub(crate) commands_are_distinguishable: bool,
}

impl AccessControl {
    /// Starts without a key file: only the callers in `trust` may call.
    pub(crate) fn new(trust: LocalTrust) -> Self {
        Self {
            keys: RwLock::new(None),
            trust,
            root: Principal::of_user(0),
            daemon_user: Principal::of_user(trust.daemon_uid.unwrap_or_else(|| geteuid().as_raw())),
            loopback: Principal::of_loopback(),
        }
    }

    /// Replaces the keys. From now on every caller needs one. Returns the problems of keys that
    /// name unknown workspaces or tools.
    pub(crate) fn set_keys(
        &self,
        keys: KeyFile,
        catalog: &Catalog,
        workspaces: &[&str],
    ) -> Result<(), Vec<String>> {
        let problems = unknown_names(&keys, catalog, workspaces);
        if !problems.is_empty() {
            return Err(problems);
        }

        let previous_principals = self.principals();
        let previous: HashMap<&str, &Arc<Principal>> = previous_principals
            .iter()
            .flat_map(|principals| principals.all())
            .map(|principal| (principal.name(), principal))
            .collect();
        let mut unchanged = HashSet::new();
        let principals = keys.keys.into_iter().map(|key| {
            let principal = Principal::from_key(&key);
            // A principal that existed keeps its token bucket.
            let principal = match previous.get(principal.name()) {
                Some(known) if known.is_equivalent(&principal) => {
                    unchanged.insert(known.name());
                    Arc::clone(known)
                }
                Some(known) => Arc::new(principal.inheriting_bucket(known)),
                None => Arc::new(principal),
            };
            (key, principal)
        });
        let principals = Arc::new(KeyPrincipals::from_iter(principals));
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Some(principals);
        for (name, known) in &previous {
            if !unchanged.contains(name) {
                known.revoke();
            }
        }

        // Keys are required from now on: a key file is never unloaded.
        for trusted in [&self.root, &self.daemon_user, &self.loopback] {
            trusted.revoke();
        }

        Ok(())
    }

    /// Returns the principal of a call: the one with its credentials, or a trusted local caller.
    pub(crate) fn authenticate(
        &self,
        credentials: Credentials<'_>,
        origin: PeerOrigin,
    ) -> Result<Arc<Principal>, Error> {
        if let Some(principals) = self.principals() {
            return principals.authenticate(credentials);
        }

        if self.trust.loopback && matches!(origin, PeerOrigin::Loopback { .. }) {
            return Ok(Arc::clone(&self.loopback));
        }
        self.authenticate_user(origin).map_err(|error| {
            if credentials.key.is_none() {
                return error;
            }
            unauthenticated_error("this daemon has no key file (--keys), so it accepts no key")
        })
    }

    /// Finds a principal by its name in records, if it may still call.
    pub(crate) fn find_principal(&self, name: &str) -> Option<Arc<Principal>> {
        let Some(principals) = self.principals() else {
            if let Some(uid) = name.strip_prefix("uid:") {
                return self.trusted_user(uid.parse().ok()?);
            }
            let is_loopback = self.trust.loopback && name == self.loopback.name();
            return is_loopback.then(|| Arc::clone(&self.loopback));
        };
        let mut principals = principals.all();
        let principal =
            principals.find(|principal| principal.name() == name && !principal.has_expired())?;
        Some(Arc::clone(principal))
    }

    /// Whether there is a key file, so that every caller needs a key or a client certificate.
    pub(crate) fn requires_key(&self) -> bool {
        self.principals().is_some()
    }

    /// Returns the principals with keys, or `None` without a key file.
    pub(crate) fn key_principals(&self) -> Option<Vec<Arc<Principal>>> {
        Some(self.principals()?.all().cloned().collect())
    }

    pub(crate) fn has_several_keys(&self) -> bool {
        self.principals().is_some_and(|principals| principals.all().count() > 1)
    }

    /// Returns the principal of a user, if the daemon trusts that user.
    fn trusted_user(&self, uid: u32) -> Option<Arc<Principal>> {
        match uid {
            0 => Some(Arc::clone(&self.root)),
            uid if Some(uid) == self.trust.daemon_uid => Some(Arc::clone(&self.daemon_user)),
            _ => None,
        }
    }

    /// Authenticates a caller without a key by its user.
    fn authenticate_user(&self, origin: PeerOrigin) -> Result<Arc<Principal>, Error> {
        let uid = match origin {
            PeerOrigin::Itself => return Ok(Arc::clone(&self.daemon_user)),
            PeerOrigin::Socket { uid } => uid,
            PeerOrigin::Loopback { .. } if !self.trust.commands_are_distinguishable => {
                return Err(unauthenticated_error(
                    "sandboxed commands can reach the loopback interface as the daemon's own user (--network host, or proxy.allow_addresses that include it), and the daemon cannot distinguish them from you: use a Unix socket (--listen unix:/path), or keys (--keys)",
                ));
            }
            PeerOrigin::Loopback { uid: Some(uid) } => uid,
            PeerOrigin::Loopback { uid: None } => {
                return Err(unauthenticated_error(
                    "the kernel does not report the user of this connection: use a Unix socket (--listen unix:/path), keys (--keys), or --trust-loopback",
                ));
            }
            PeerOrigin::Elsewhere => {
                return Err(unauthenticated_error(
                    "callers on other machines need a key: start the daemon with --keys",
                ));
            }
        };

        self.trusted_user(uid).ok_or_else(|| unauthenticated_error(
            "without keys the daemon accepts calls from its own user and from root only: call as one of these, or start the daemon with --keys, or with --trust-loopback if every user of this machine may call",
        ))
    }

    fn principals(&self) -> Option<Arc<KeyPrincipals>> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.clone()
    }
}

/// Returns a problem for each unknown workspace or tool that a key names.
pub(crate) fn unknown_names(keys: &KeyFile, catalog: &Catalog, workspaces: &[&str]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut report = |key: &str, what: &str, name: &str| {
        problems.push(format!(
            "--keys {}: key {key:?}: unknown {what} {}: restart the daemon if the configuration has added it",
            keys.path.display(),
            redacted_name(name)
        ));
    };

    for key in &keys.keys {
        for name in key.workspaces.iter().flatten() {
            if !workspaces.contains(&name.as_str()) {
                report(&key.name, "workspace", name);
            }
        }
        for name in key.tools.iter().flatten() {
            if !catalog.has_tool(name) {
                report(&key.name, "tool", name);
            }
        }
    }

    problems
}

#[cfg(test)]
mod tests;
