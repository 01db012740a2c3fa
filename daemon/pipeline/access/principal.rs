//! A principal: a caller with its rights and limits.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::token_bucket::TokenBucket;
use crate::daemon::{
    config::keys::{AccessRole, ApiKey, KeyDigest, KeyLimits},
    error::{Error, Reason},
    queue::PrincipalName,
};

/// Interval at which a stream checks whether the key of its caller has expired.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// An authenticated caller: an entry of the key file, or a trusted local user.
#[derive(Debug)]
pub(crate) struct Principal {
    name: PrincipalName,
    role: AccessRole,
    /// `None` means all.
    workspaces: Option<BTreeSet<String>>,
    create_workspaces: bool,
    /// `None` means all.
    tools: Option<BTreeSet<String>>,
    limits: KeyLimits,
    /// Digest of all credentials of an entry of the key file. `None` for a local user.
    digest: Option<KeyDigest>,
    /// When the key expires.
    expires: Option<SystemTime>,
    /// Cancelled when the key is revoked, or gets other permissions or another secret.
    revoked: CancellationToken,
    /// `None` without a rate limit.
    bucket: Option<Arc<Mutex<TokenBucket>>>,
}

/// Name of the principal of a key.
pub(crate) fn key_principal_name(key: &str) -> String {
    format!("key:{key}")
}

impl Principal {
    pub(super) fn from_key(key: &ApiKey) -> Self {
        let full = |rate| Arc::new(Mutex::new(TokenBucket::new(rate, Instant::now())));
        Self {
            name: key_principal_name(&key.name).into(),
            role: key.role,
            workspaces: key.workspaces.clone(),
            create_workspaces: key.create_workspaces,
            tools: key.tools.clone(),
            limits: key.limits,
            digest: Some(key.credentials_digest()),
            expires: key.expires,
            revoked: CancellationToken::new(),
            bucket: key.limits.rate.map(full),
        }
    }

    /// Takes over the token bucket of the previous key of this name, if the rate is the same.
    pub(super) fn inheriting_bucket(self, previous: &Self) -> Self {
        if self.limits.rate == previous.limits.rate {
            Self { bucket: previous.bucket.clone(), ..self }
        } else {
            self
        }
    }

    /// A trusted user of this machine.
    pub(super) fn of_user(uid: u32) -> Arc<Self> {
        Self::administrator(format!("uid:{uid}"))
    }

    /// Any caller on the loopback interface, with `--trust-loopback`.
    pub(super) fn of_loopback() -> Arc<Self> {
        Self::administrator("loopback".to_owned())
    }

    fn administrator(name: String) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            role: AccessRole::Admin,
            workspaces: None,
            create_workspaces: true,
            tools: None,
            limits: KeyLimits::default(),
            digest: None,
            expires: None,
            revoked: CancellationToken::new(),
            bucket: None,
        })
    }

    /// Returns the name in records: `key:NAME`, `uid:1000` or `loopback`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name, shared: for limits and fair queueing.
    pub(crate) fn shared_name(&self) -> &PrincipalName {
        &self.name
    }

    /// Returns the limit on concurrent calls.
    pub(crate) fn concurrent_calls(&self) -> usize {
        let limit = self.limits.concurrent_calls;
        limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
    }

    /// Counts a call against the rate limit.
    pub(crate) fn check_rate(&self, now: Instant) -> Result<(), Error> {
        let Some(bucket) = &self.bucket else {
            return Ok(());
        };

        let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let rate = bucket.rate();
        bucket.try_take(now).map_err(|wait| {
            let text = format!(
                "{} is limited to {} calls per second, in bursts of {}: retry after the delay in RetryInfo",
                self.name, rate.per_second, rate.burst
            );
            Error::new(Reason::ResourceExhausted, text)
                .with_metadata("limit", rate.per_second.to_string())
                .with_retry_after(wait)
        })
    }

    pub(super) fn has_expired(&self) -> bool {
        self.expires.is_some_and(|end| end <= SystemTime::now())
    }

    /// Marks the principal as revoked, or replaced by one with other rights.
    pub(super) fn revoke(&self) {
        self.revoked.cancel();
    }

    /// Whether the key was revoked or replaced, or has expired.
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.is_cancelled() || self.has_expired()
    }

    /// Waits until [`Self::is_revoked`].
    pub(crate) async fn revoked(&self) {
        let Some(expires) = self.expires else {
            return self.revoked.cancelled().await;
        };

        loop {
            // The wall clock may be set, so the sleep is limited.
            let remaining = expires.duration_since(SystemTime::now()).unwrap_or_default();
            tokio::select! {
                () = self.revoked.cancelled() => return,
                () = sleep(remaining.min(EXPIRY_CHECK_INTERVAL)) => {
                    if self.has_expired() {
                        return;
                    }
                }
            }
        }
    }

    /// Returns the digest of the key and certificates, if any.
    pub(crate) fn digest(&self) -> Option<&KeyDigest> {
        self.digest.as_ref()
    }

    pub(crate) fn role(&self) -> AccessRole {
        self.role
    }

    pub(crate) fn can_see_workspace(&self, workspace: &str) -> bool {
        let workspaces = self.workspaces.as_ref();
        workspaces.is_none_or(|names| names.contains(workspace))
    }

    /// Whether the principal may see a workspace that `owner` created.
    pub(crate) fn can_see_created(&self, owner: &str) -> bool {
        *self.name == *owner || self.role == AccessRole::Admin && self.workspaces.is_none()
    }

    /// Returns `FORBIDDEN` if the principal may not create workspaces.
    pub(crate) fn require_create_workspaces(&self) -> Result<(), Error> {
        if self.create_workspaces || self.role == AccessRole::Admin {
            return Ok(());
        }
        let text = format!(
            "{} may not create workspaces: use another key, or one with create_workspaces",
            self.name
        );
        Err(Error::new(Reason::Forbidden, text))
    }

    /// Returns `FORBIDDEN` without the role `needed`. `what` names the action in the error.
    pub(crate) fn require_role(&self, needed: AccessRole, what: &str) -> Result<(), Error> {
        if self.role >= needed {
            return Ok(());
        }

        let text = format!(
            "{what} needs the role {needed}, and {} has the role {}: use another key",
            self.name, self.role
        );
        Err(Error::new(Reason::Forbidden, text).with_metadata("role", needed.name()))
    }

    /// Returns `FORBIDDEN` for a tool that the key does not allow.
    pub(crate) fn require_tool(&self, tool: &str) -> Result<(), Error> {
        let tools = self.tools.as_ref();
        if tools.is_none_or(|names| names.contains(tool)) {
            return Ok(());
        }

        let text =
            format!("{} may not use the tool {tool}: use another key, or another tool", self.name);
        Err(Error::new(Reason::Forbidden, text).with_metadata("tool", tool))
    }

    /// Returns the tools that the key allows, or `None` for all.
    pub(crate) fn allowed_tools(&self) -> Option<impl Iterator<Item = String>> {
        let tools = self.tools.as_ref()?;
        Some(tools.iter().cloned())
    }

    pub(crate) fn can_see_all_workspaces(&self) -> bool {
        self.workspaces.is_none()
    }

    /// Whether both have the same name, permissions, limits, expiry and credentials. A replaced key or
    /// certificate may belong to another person.
    pub(super) fn is_equivalent(&self, other: &Self) -> bool {
        self.name == other.name
            && self.role == other.role
            && self.workspaces == other.workspaces
            && self.create_workspaces == other.create_workspaces
            && self.tools == other.tools
            && self.limits == other.limits
            && self.digest == other.digest
            && self.expires == other.expires
    }
}
