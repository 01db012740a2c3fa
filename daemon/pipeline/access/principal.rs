//! Who calls.

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
    queue::PrincipalKey,
};

/// Time after which a stream looks again whether the key of its caller has ended.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Somebody who may call.
#[derive(Debug)]
pub(crate) struct Principal {
    name: PrincipalKey,
    role: AccessRole,
    /// None where it is all.
    workspaces: Option<BTreeSet<String>>,
    /// None where it is all.
    tools: Option<BTreeSet<String>>,
    allowance: KeyLimits,
    /// What its key is known by; none without a key.
    digest: Option<KeyDigest>,
    /// When its key ends.
    expires: Option<SystemTime>,
    /// Cancelled when its key is taken away, or gets other rights or another secret.
    revoked: CancellationToken,
    /// None where it may call as often as it likes.
    bucket: Option<Arc<Mutex<TokenBucket>>>,
}

impl Principal {
    /// Who holds a key.
    pub(super) fn from_key(key: &ApiKey) -> Self {
        let full = |rate| Arc::new(Mutex::new(TokenBucket::new(rate, Instant::now())));
        Self {
            name: format!("key:{}", key.name).into(),
            role: key.role,
            workspaces: key.workspaces.clone(),
            tools: key.tools.clone(),
            allowance: key.limits,
            digest: Some(key.digest),
            expires: key.expires,
            revoked: CancellationToken::new(),
            bucket: key.limits.rate.map(full),
        }
    }

    /// The same, with no more left of his allowance than who held the key of this name before.
    pub(super) fn inheriting_bucket(self, before: &Self) -> Self {
        match self.allowance.rate == before.allowance.rate {
            true => Self { bucket: before.bucket.clone(), ..self },
            false => self,
        }
    }

    /// A user of this machine whom the daemon trusts.
    pub(super) fn of_user(uid: u32) -> Arc<Self> {
        Self::administrator(format!("uid:{uid}"))
    }

    /// Whoever reaches the loopback interface.
    pub(super) fn of_loopback() -> Arc<Self> {
        Self::administrator("loopback".to_owned())
    }

    fn administrator(name: String) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            role: AccessRole::Admin,
            workspaces: None,
            tools: None,
            allowance: KeyLimits::default(),
            digest: None,
            expires: None,
            revoked: CancellationToken::new(),
            bucket: None,
        })
    }

    /// What it is called in records: `key:NAME`, `uid:1000` or `loopback`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// As [`Self::name`], where calls of one are told from those of another.
    pub(crate) fn key(&self) -> &PrincipalKey {
        &self.name
    }

    /// Calls that it may make at one time.
    pub(crate) fn concurrent_calls(&self) -> usize {
        let most = self.allowance.concurrent_calls;
        most.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX))
    }

    /// Counts a call, unless it comes too soon after others.
    pub(crate) fn check_rate(&self, now: Instant) -> Result<(), Error> {
        let Some(bucket) = &self.bucket else {
            return Ok(());
        };
        let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let rate = bucket.rate();
        bucket.try_take(now).map_err(|wait| {
            let text = format!(
                "{} may make {} calls per second, and {} at once: retry after the time given",
                self.name, rate.per_second, rate.burst
            );
            Error::new(Reason::ResourceExhausted, text)
                .with_metadata("limit", rate.per_second.to_string())
                .retry_after(wait)
        })
    }

    /// Whether its key has ended.
    pub(super) fn has_expired(&self) -> bool {
        self.expires.is_some_and(|end| end <= SystemTime::now())
    }

    /// It may not call any more, or not as before.
    pub(super) fn revoke(&self) {
        self.revoked.cancel();
    }

    /// Whether it may not call any more, or not as before.
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.is_cancelled() || self.has_expired()
    }

    /// Waits until it may not call any more, or not as before.
    pub(crate) async fn revoked(&self) {
        let Some(expires) = self.expires else {
            return self.revoked.cancelled().await;
        };
        loop {
            // By the clock of the wall, which may be set.
            let left = expires.duration_since(SystemTime::now()).unwrap_or_default();
            tokio::select! {
                () = self.revoked.cancelled() => return,
                () = sleep(left.min(EXPIRY_CHECK_INTERVAL)) => {
                    if self.has_expired() {
                        return;
                    }
                }
            }
        }
    }

    /// What its key is known by; none without a key.
    pub(crate) fn digest(&self) -> Option<&KeyDigest> {
        self.digest.as_ref()
    }

    /// What it may do.
    pub(crate) fn role(&self) -> AccessRole {
        self.role
    }

    /// Whether the workspace of this name is there for it.
    pub(crate) fn can_see_workspace(&self, workspace: &str) -> bool {
        let workspaces = self.workspaces.as_ref();
        workspaces.is_none_or(|names| names.contains(workspace))
    }

    /// Refuses what needs another role.
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

    /// Refuses a tool that its key is not for.
    pub(crate) fn require_tool(&self, tool: &str) -> Result<(), Error> {
        let tools = self.tools.as_ref();
        if tools.is_none_or(|names| names.contains(tool)) {
            return Ok(());
        }
        let text = format!(
            "{} is not for the tool {tool}: use another key, or one of the tools that it is for",
            self.name
        );
        Err(Error::new(Reason::Forbidden, text).with_metadata("tool", tool))
    }

    /// The tools that its key is for; without, all.
    pub(crate) fn allowed_tools(&self) -> Option<impl Iterator<Item = String>> {
        let tools = self.tools.as_ref()?;
        Some(tools.iter().cloned())
    }

    /// Whether it sees all there is, and not some workspaces only.
    pub(crate) fn can_see_all_workspaces(&self) -> bool {
        self.workspaces.is_none()
    }

    /// Whether both are the same, with the same rights, by the same key: who holds one that was replaced may
    /// not be who holds the other.
    pub(super) fn has_same_rights(&self, other: &Self) -> bool {
        self.name == other.name
            && self.role == other.role
            && self.workspaces == other.workspaces
            && self.tools == other.tools
            && self.allowance == other.allowance
            && self.digest == other.digest
            && self.expires == other.expires
    }
}
