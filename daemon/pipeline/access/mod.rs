//! Who calls, and what that one may do.
//!
//! ```text
//! a key is shown ───────────▶ one of the key file ─▶ its holder      otherwise UNAUTHENTICATED
//! none, and there is no key file,
//!   a process of this machine ─▶ of the daemon's user, or root ─▶ administrator
//!   on loopback, and --trust-loopback ─▶ administrator
//! ```

pub(crate) mod principal;
pub(super) mod token_bucket;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, PoisonError, RwLock},
};

use rustix::process::geteuid;

use self::principal::Principal;
use crate::daemon::{
    catalog::Catalog,
    config::keys::{KeyDigest, KeyFile, redacted_name},
    error::{Error, Reason},
};

/// Where a call comes from, as the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerOrigin {
    /// From the daemon's own process: it lives for one call, which it makes itself.
    Itself,
    /// From a process of this machine, by a Unix socket.
    Socket {
        /// Its user.
        uid: u32,
    },
    /// From a process of this machine, by the loopback interface.
    Loopback {
        /// Its user, where that could be found out.
        uid: Option<u32>,
    },
    /// From elsewhere, or nobody knows.
    Elsewhere,
}

/// Whom the daemon takes calls from.
#[derive(Debug)]
pub(crate) struct AccessControl {
    /// None where there is no key file.
    keys: RwLock<Option<Arc<KeyHolders>>>,
    trust: LocalTrust,
    root: Arc<Principal>,
    /// The daemon's own user.
    daemon_user: Arc<Principal>,
    /// Whoever reaches the loopback interface.
    loopback: Arc<Principal>,
}

/// Whom of this machine the daemon trusts without a key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalTrust {
    /// The daemon's own user, where the kernel tells it from all others.
    pub(crate) daemon_uid: Option<u32>,
    /// Everybody who reaches the loopback interface.
    pub(crate) loopback: bool,
    /// Whether commands in sandboxes cannot be who comes by the loopback interface as one of the
    /// trusted users.
    pub(crate) commands_are_distinguishable: bool,
}

/// Whose key each is. Which bucket of the map a digest is in, and how long that takes to find out, tells
/// nothing: digests of keys with 256 random bits cannot be chosen, nor led back to keys.
type KeyHolders = HashMap<KeyDigest, Arc<Principal>>;

impl AccessControl {
    /// Lets in the holders of `keys` or, without any, whom `trust` says.
    pub(crate) fn new(trust: LocalTrust) -> Self {
        Self {
            keys: RwLock::new(None),
            trust,
            root: Principal::of_user(0),
            daemon_user: Principal::of_user(trust.daemon_uid.unwrap_or_else(|| geteuid().as_raw())),
            loopback: Principal::of_loopback(),
        }
    }

    /// Lets in the holders of these keys from now on, and nobody without one. Refuses keys for
    /// workspaces or tools that there are not.
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
        let before = self.holders();
        let before: HashMap<&str, &Arc<Principal>> = before
            .iter()
            .flat_map(|holders| holders.values())
            .map(|known| (known.name(), known))
            .collect();
        let mut stay = HashSet::new();
        let holders = keys.keys.into_iter().map(|key| {
            let principal = Principal::from_key(&key);
            // Who was here before goes on with what is left of his allowance.
            let principal = match before.get(principal.name()) {
                Some(known) if known.has_same_rights(&principal) => {
                    stay.insert(known.name());
                    Arc::clone(known)
                }
                Some(known) => Arc::new(principal.inheriting_bucket(known)),
                None => Arc::new(principal),
            };
            (key.digest, principal)
        });
        let holders: Arc<KeyHolders> = Arc::new(holders.collect());
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Some(holders);
        for (name, known) in &before {
            if !stay.contains(name) {
                known.revoke();
            }
        }
        // From now on nobody is let in without a key, and no file of keys is taken back.
        for trusted in [&self.root, &self.daemon_user, &self.loopback] {
            trusted.revoke();
        }
        Ok(())
    }

    /// Who calls: who holds the key that was `shown`, or whom the daemon trusts without one.
    pub(crate) fn authenticate(
        &self,
        shown: Option<&[u8]>,
        origin: PeerOrigin,
    ) -> Result<Arc<Principal>, Error> {
        let is_trusted = self.trust.loopback && matches!(origin, PeerOrigin::Loopback { .. });
        match (shown, self.holders()) {
            (Some(shown), Some(holders)) => authenticate_key(&holders, shown),
            (_, None) if is_trusted => Ok(Arc::clone(&self.loopback)),
            (None, Some(_)) => Err(unauthenticated(
                "this daemon takes calls with a key only: send one as `authorization: Bearer KEY` or `x-api-key: KEY` (jig: --key or JIG_KEY; `jig key new` makes one)",
            )),
            (None, None) => self.authenticate_user(origin),
            (Some(_), None) => self.authenticate_user(origin).map_err(|_refused| {
                unauthenticated("this daemon has no keys (--keys), so that none is right")
            }),
        }
    }

    /// Who is called so in records, if he may still call.
    pub(crate) fn find_principal(&self, name: &str) -> Option<Arc<Principal>> {
        let Some(holders) = self.holders() else {
            if let Some(uid) = name.strip_prefix("uid:") {
                return self.trusted_user(uid.parse().ok()?);
            }
            let is_loopback = self.trust.loopback && name == self.loopback.name();
            return is_loopback.then(|| Arc::clone(&self.loopback));
        };
        let mut holders = holders.values();
        let holder = holders.find(|holder| holder.name() == name && !holder.has_expired())?;
        Some(Arc::clone(holder))
    }

    /// Whether who calls must show a key.
    pub(crate) fn requires_key(&self) -> bool {
        self.holders().is_some()
    }

    /// The callers that have keys; none where there is no key file.
    pub(crate) fn key_holders(&self) -> Option<Vec<Arc<Principal>>> {
        Some(self.holders()?.values().cloned().collect())
    }

    /// Whether there are several callers, who are told apart by their keys.
    pub(crate) fn has_several_key_holders(&self) -> bool {
        self.holders().is_some_and(|holders| holders.len() > 1)
    }

    /// The user of this number, if the daemon trusts him.
    fn trusted_user(&self, uid: u32) -> Option<Arc<Principal>> {
        match uid {
            0 => Some(Arc::clone(&self.root)),
            uid if Some(uid) == self.trust.daemon_uid => Some(Arc::clone(&self.daemon_user)),
            _ => None,
        }
    }

    /// The user whose process calls without a key.
    fn authenticate_user(&self, origin: PeerOrigin) -> Result<Arc<Principal>, Error> {
        let uid = match origin {
            PeerOrigin::Itself => return Ok(Arc::clone(&self.daemon_user)),
            PeerOrigin::Socket { uid } => uid,
            PeerOrigin::Loopback { .. } if !self.trust.commands_are_distinguishable => {
                return Err(unauthenticated(
                    "commands reach the loopback interface as the daemon's own user (--network host, or proxy.allow_addresses that hold it), so that it cannot tell them from you there: use a Unix socket (--listen unix:/path), or keys (--keys)",
                ));
            }
            PeerOrigin::Loopback { uid: Some(uid) } => uid,
            PeerOrigin::Loopback { uid: None } => {
                return Err(unauthenticated(
                    "the kernel does not say whose process this connection is: use a Unix socket (--listen unix:/path), keys (--keys), or --trust-loopback",
                ));
            }
            PeerOrigin::Elsewhere => {
                return Err(unauthenticated(
                    "who calls from another machine needs a key: start the daemon with --keys",
                ));
            }
        };
        self.trusted_user(uid).ok_or_else(|| unauthenticated(
            "without keys the daemon takes calls from its own user and from root only: call as one of these, or start it with --keys, or with --trust-loopback where everybody on this machine may call",
        ))
    }

    fn holders(&self) -> Option<Arc<KeyHolders>> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.clone()
    }
}

/// Finds who holds the key that was shown.
fn authenticate_key(holders: &KeyHolders, shown: &[u8]) -> Result<Arc<Principal>, Error> {
    let digest = KeyDigest::from_key(shown);
    let found = holders.get_key_value(&digest);
    let holder = found.filter(|(known, _)| known.constant_time_eq(&digest));
    let (_, principal) = holder.ok_or_else(|| {
        unauthenticated("this is no key of this daemon, or not any more: ask its operator for one")
    })?;
    if principal.has_expired() {
        return Err(unauthenticated(
            "this key has expired: ask the operator of the daemon for another",
        ));
    }
    Ok(Arc::clone(principal))
}

fn unauthenticated(text: &'static str) -> Error {
    Error::new(Reason::Unauthenticated, text)
}

/// What keys are for that there is not.
pub(crate) fn unknown_names(keys: &KeyFile, catalog: &Catalog, workspaces: &[&str]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut report = |key: &str, what: &str, name: &str| {
        problems.push(format!(
            "--keys {}: key {key:?}: there is no {what} {}: one that the configuration adds is there once the daemon was started with it",
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
