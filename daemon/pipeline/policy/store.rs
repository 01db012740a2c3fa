//! The rules in force: those of the configuration file, which the operator can reload, and those of
//! `ApprovalService`, which the database stores.
//!
//! Changes are serialized. A decision sees all of a change or nothing of it.

use std::{
    cmp::Reverse,
    collections::BTreeSet,
    future::Future,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, SystemTime},
};

use tokio::sync::Semaphore;

use super::{
    decision::{CompiledPolicy, PolicyDecision, PolicySnapshot},
    pattern::RulePattern,
    request::PolicyRequest,
    rule::{FILE_RULE_ID_PREFIX, Rule, RuleProvenance},
};
use crate::daemon::{
    config::policy::PolicyAction,
    error::{Error, Reason},
    pipeline::state_error::state_database_error,
    store::{
        database::DatabaseError,
        rules::{RuleTable, StoredRule},
        unix_millis,
    },
    task::{self, available_cores},
    tool::WorkspaceContext,
};

/// Limit on the stored rules of a workspace. Each call of a tool is matched against all its rules.
/// Expired rules are stored as long as there is room.
const MAX_RULES_PER_WORKSPACE: usize = 1024;
/// Total length of all patterns of a workspace. Compiled, they take about fifty times as much.
const MAX_PATTERN_BYTES_PER_WORKSPACE: usize = 1 << 20;
/// Longest input that is matched on the calling thread, counted once for each pattern. A pattern
/// may take a second per MiB, so longer inputs are matched on a blocking thread.
const MAX_INLINE_MATCH_BYTES: usize = 16 << 10;

/// The rules in force. See the module documentation.
#[derive(Debug)]
pub(crate) struct RuleStore {
    current: RwLock<Arc<PolicySnapshot>>,
    table: RuleTable,
    /// Held while a rule is changed in the database and in memory.
    write_lock: tokio::sync::Mutex<()>,
    /// Permits for offloaded decisions: they use at most half of the cores.
    offload_permits: Arc<Semaphore>,
}

impl RuleStore {
    /// Starts with the policy of the configuration file and the stored rules.
    pub(crate) async fn open(
        policy: CompiledPolicy,
        table: RuleTable,
    ) -> Result<Self, DatabaseError> {
        let stored = table.load_all().await?;
        let mut rules: Vec<_> =
            stored.into_iter().filter_map(from_stored_rule).map(Arc::new).collect();
        rules.sort_by_key(|rule| Reverse(creation_order(rule)));
        let snapshot = PolicySnapshot::new(Arc::new(policy), rules.into());

        Ok(Self {
            current: RwLock::new(Arc::new(snapshot)),
            table,
            write_lock: tokio::sync::Mutex::default(),
            offload_permits: Arc::new(Semaphore::new(available_cores().div_ceil(2))),
        })
    }

    pub(crate) fn snapshot(&self) -> Arc<PolicySnapshot> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }

    /// Decides about a call. Long inputs are matched on a blocking thread.
    pub(crate) async fn decide(
        &self,
        snapshot: Arc<PolicySnapshot>,
        request: Arc<PolicyRequest>,
    ) -> Result<PolicyDecision, Error> {
        let now = SystemTime::now();
        if snapshot.match_cost_bytes(request.to_request_ref(), now) <= MAX_INLINE_MATCH_BYTES {
            return Ok(snapshot.decide(request.to_request_ref(), now));
        }

        let permit =
            Arc::clone(&self.offload_permits).acquire_owned().await.map_err(Error::internal)?;
        let decision = task::spawn_blocking(move || {
            let _permit = permit;
            snapshot.decide(request.to_request_ref(), SystemTime::now())
        });
        decision.await.map_err(Error::internal)
    }

    /// Replaces the policy of the configuration file.
    pub(crate) fn replace_policy(&self, policy: CompiledPolicy) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let stored = current.runtime_rules().iter().cloned().collect();
        *current = Arc::new(PolicySnapshot::new(Arc::new(policy), stored));
    }

    /// Adds a rule to one workspace, unless that was deleted.
    pub(crate) async fn add(
        &self,
        rule: Rule,
        workspace: &WorkspaceContext,
    ) -> Result<Arc<Rule>, Error> {
        let _lock = self.write_lock.lock().await;
        // A deletion removes the rules after this one, or this sees the deletion.
        workspace.require_undeleted()?;
        self.add_locked(rule, |stored| self.table.add(stored)).await
    }

    /// As [`Self::add`], but `store` writes the rule, in one transaction with other changes. Evicts
    /// as few expired rules as necessary.
    pub(crate) async fn add_with<K, F>(&self, rule: Rule, store: K) -> Result<Arc<Rule>, Error>
    where
        K: FnOnce(StoredRule) -> F,
        F: Future<Output = Result<(), DatabaseError>>,
    {
        let _lock = self.write_lock.lock().await;
        self.add_locked(rule, store).await
    }

    /// Adds a rule. The caller must hold `write_lock`.
    async fn add_locked<K, F>(&self, rule: Rule, store: K) -> Result<Arc<Rule>, Error>
    where
        K: FnOnce(StoredRule) -> F,
        F: Future<Output = Result<(), DatabaseError>>,
    {
        let evicted = rules_to_evict(&self.snapshot(), &rule, SystemTime::now())?;
        let removed = self.remove_stored(&evicted).await;
        removed.map_err(|error| state_database_error(&error))?;
        store(to_stored_rule(&rule)).await.map_err(|error| state_database_error(&error))?;

        let rule = Arc::new(rule);
        let mut rules: Vec<_> = self.snapshot().runtime_rules().to_vec();
        rules.push(Arc::clone(&rule));
        rules.sort_by_key(|rule| Reverse(creation_order(rule)));
        self.set_stored(rules.into_iter());

        Ok(rule)
    }

    /// Enables or disables a rule, or changes when it expires. `is_visible` limits the rules that
    /// the caller may name.
    pub(crate) async fn change(
        &self,
        id: &str,
        is_visible: impl Fn(&Rule) -> bool,
        enabled: Option<bool>,
        expires: Option<Option<SystemTime>>,
    ) -> Result<Arc<Rule>, Error> {
        let _lock = self.write_lock.lock().await;
        let snapshot = self.snapshot();
        let before = find_stored(&snapshot, id, is_visible)?;
        let changed = Arc::new(Rule {
            enabled: enabled.unwrap_or(before.enabled),
            expires: expires.unwrap_or(before.expires),
            ..(**before).clone()
        });
        let expires_ms = changed.expires.map(unix_millis::from_time);
        let updated = self.table.update(id.to_owned(), changed.enabled, expires_ms).await;
        updated.map_err(|error| state_database_error(&error))?;

        let rules = snapshot.runtime_rules().iter().cloned();
        self.set_stored(rules.map(|rule| if rule.id == id { Arc::clone(&changed) } else { rule }));

        Ok(changed)
    }

    /// Removes a rule. `is_visible` limits the rules that the caller may name.
    pub(crate) async fn remove(
        &self,
        id: &str,
        is_visible: impl Fn(&Rule) -> bool,
    ) -> Result<(), Error> {
        let _lock = self.write_lock.lock().await;
        find_stored(&self.snapshot(), id, is_visible)?;
        let removed = self.remove_stored(&[id.to_owned()].into()).await;
        removed.map_err(|error| state_database_error(&error))
    }

    /// Removes the rules of a workspace that is deleted.
    pub(crate) async fn remove_all_in(&self, workspace: &str) -> Result<(), DatabaseError> {
        let _lock = self.write_lock.lock().await;
        let snapshot = self.snapshot();
        let is_in = |rule: &Arc<Rule>| {
            rule.workspaces.as_ref().is_some_and(|names| names.contains(workspace))
        };
        let rules = snapshot.runtime_rules().iter();
        let ids = rules.filter(|rule| is_in(rule)).map(|rule| rule.id.clone()).collect();
        self.remove_stored(&ids).await
    }

    /// Removes rules that expired before `cutoff`.
    pub(crate) async fn remove_expired(&self, cutoff: SystemTime) -> Result<(), DatabaseError> {
        let _lock = self.write_lock.lock().await;
        let snapshot = self.snapshot();
        let is_old = |rule: &Arc<Rule>| rule.expires.is_some_and(|expiry| expiry < cutoff);
        let old = snapshot
            .runtime_rules()
            .iter()
            .filter(|rule| is_old(rule))
            .map(|rule| rule.id.clone())
            .collect();
        self.remove_stored(&old).await
    }

    /// Removes rules from the database and from memory. The caller must hold `write_lock`.
    async fn remove_stored(&self, ids: &BTreeSet<String>) -> Result<(), DatabaseError> {
        if ids.is_empty() {
            return Ok(());
        }

        self.table.remove(ids.iter().cloned().collect()).await?;
        let snapshot = self.snapshot();
        let rules = snapshot.runtime_rules().iter().cloned();
        self.set_stored(rules.filter(|rule| !ids.contains(&rule.id)));
        Ok(())
    }

    fn set_stored(&self, rules: impl Iterator<Item = Arc<Rule>>) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let policy = Arc::clone(&current.policy);
        *current = Arc::new(PolicySnapshot::new(policy, rules.collect()));
    }
}

/// Returns the expired rules to evict so that `rule` fits, those that expired first.
fn rules_to_evict(
    snapshot: &PolicySnapshot,
    rule: &Rule,
    now: SystemTime,
) -> Result<BTreeSet<String>, Error> {
    let is_in_same_workspace = |other: &&Arc<Rule>| other.workspaces == rule.workspaces;
    let (mut expired, unexpired): (Vec<_>, Vec<_>) = snapshot
        .runtime_rules()
        .iter()
        .filter(is_in_same_workspace)
        .partition(|other| other.has_expired(now));
    expired.sort_by_key(|rule| rule.expires);

    let sum =
        |rules: &[&Arc<Rule>]| -> usize { rules.iter().map(|rule| rule.pattern_bytes()).sum() };
    let (count, bytes) = (unexpired.len(), sum(&unexpired));
    if count >= MAX_RULES_PER_WORKSPACE {
        let text = format!(
            "this workspace has {count} unexpired rules, at most {MAX_RULES_PER_WORKSPACE}: delete some (ListRules, DeleteRule)"
        );
        return Err(Error::new(Reason::ResourceExhausted, text));
    }
    if bytes + rule.pattern_bytes() > MAX_PATTERN_BYTES_PER_WORKSPACE {
        let text = format!(
            "the patterns of this workspace's unexpired rules have {bytes} bytes, at most {MAX_PATTERN_BYTES_PER_WORKSPACE} with this one: delete some rules (ListRules, DeleteRule), or make this pattern shorter"
        );
        return Err(Error::new(Reason::ResourceExhausted, text));
    }

    let fits = |remaining: &[&Arc<Rule>]| {
        count + remaining.len() < MAX_RULES_PER_WORKSPACE
            && bytes + sum(remaining) + rule.pattern_bytes() <= MAX_PATTERN_BYTES_PER_WORKSPACE
    };

    let mut remaining = expired.as_slice();
    let mut evicted = BTreeSet::new();
    while !fits(remaining)
        && let Some((first, rest)) = remaining.split_first()
    {
        evicted.insert(first.id.clone());
        remaining = rest;
    }

    Ok(evicted)
}

/// Returns the sort key of rules by age: the same as in the database, so that a restart does not
/// change the order in which rules are matched.
fn creation_order(rule: &Rule) -> (i64, String) {
    let created_ms = rule.provenance.as_ref().map(|created| unix_millis::from_time(created.at));
    (created_ms.unwrap_or_default(), rule.id.clone())
}

/// Finds a stored rule that the caller may see and change.
fn find_stored<'s>(
    snapshot: &'s PolicySnapshot,
    id: &str,
    is_visible: impl Fn(&Rule) -> bool,
) -> Result<&'s Arc<Rule>, Error> {
    if id.starts_with(FILE_RULE_ID_PREFIX) {
        let text =
            "is a rule of the configuration file: change it there, then send SIGHUP to the daemon";
        return Err(Error::invalid_field("rule_id", text));
    }
    let mut rules = snapshot.runtime_rules().iter();
    let found = rules.find(|rule| rule.id == id && is_visible(rule));
    found.ok_or_else(|| {
        let text = format!("unknown rule {id:?}: ListRules lists the rules");
        Error::new(Reason::RuleNotFound, text).with_metadata("rule_id", id)
    })
}

fn to_stored_rule(rule: &Rule) -> StoredRule {
    let (created_by, created_ms, approval_id) = match rule.provenance.clone() {
        Some(created) => (created.by, unix_millis::from_time(created.at), created.approval_id),
        None => Default::default(),
    };

    StoredRule {
        id: rule.id.clone(),
        workspace: rule.workspaces.iter().flatten().next().cloned().unwrap_or_default(),
        name: rule.name.clone(),
        tool: rule.tool.clone(),
        pattern: rule.pattern.as_ref().map(|pattern| pattern.as_str().to_owned()),
        action: match rule.action {
            PolicyAction::Allow => "ALLOW",
            PolicyAction::Ask => "ASK",
            PolicyAction::Deny => "DENY",
        }
        .to_owned(),
        expires_ms: rule.expires.map(unix_millis::from_time),
        enabled: rule.enabled,
        created_by,
        created_ms,
        approval_id,
    }
}

/// Converts a stored rule. If its pattern no longer compiles, an allow rule is dropped; an ask or
/// deny rule applies to all calls of its tool.
fn from_stored_rule(stored: StoredRule) -> Option<Rule> {
    let action = match stored.action.as_str() {
        "ALLOW" => PolicyAction::Allow,
        "ASK" => PolicyAction::Ask,
        _ => PolicyAction::Deny,
    };

    let pattern = match stored.pattern.as_deref().map(RulePattern::parse).transpose() {
        Ok(pattern) => pattern,
        Err(problem) => {
            tracing::error!(
                rule = stored.id,
                problem,
                "cannot compile the pattern of a stored rule"
            );
            if action == PolicyAction::Allow {
                return None;
            }
            None
        }
    };

    Some(Rule {
        id: stored.id,
        name: stored.name,
        tool: stored.tool,
        pattern,
        action,
        workspaces: Some([stored.workspace].into()),
        created_workspaces: None,
        expires: stored.expires_ms.map(unix_millis::to_time),
        enabled: stored.enabled,
        provenance: Some(RuleProvenance {
            by: stored.created_by,
            at: unix_millis::to_time(stored.created_ms),
            approval_id: stored.approval_id,
        }),
    })
}

/// Returns when a rule expires that lasts `lifetime_sec` from now.
pub(crate) fn expiry_after(lifetime_sec: u32) -> SystemTime {
    SystemTime::now() + Duration::from_secs(lifetime_sec.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::v1::Risk,
        daemon::{
            catalog::{Catalog, PolicyText},
            config::policy::PolicyConfig,
            store::database::Database,
        },
    };

    /// Long matching leaves the calling thread, be it one long text or many patterns.
    #[tokio::test]
    async fn many_patterns_are_offloaded_like_a_long_text() {
        let settings =
            CompiledPolicy::new(PolicyConfig::default(), &Catalog::load().unwrap(), &["w"], &[]);
        let table = RuleTable::new(Database::in_memory().unwrap());
        let store = RuleStore::open(settings.unwrap(), table).await.unwrap();

        // The test holds all permits of offloaded decisions.
        let permits = u32::try_from(store.offload_permits.available_permits()).unwrap();
        let _permits = store.offload_permits.acquire_many(permits).await.unwrap();
        let decides_inline = async |bytes: usize| {
            let call = Arc::new(PolicyRequest {
                tool: "run",
                risk: Risk::Dangerous,
                workspace: "w".to_owned(),
                texts: vec![PolicyText { text: "x".repeat(bytes), may_allow: true }],
                dialect_call: None,
            });
            let deciding = store.decide(store.snapshot(), call);
            tokio::select! {
                biased;
                decided = deciding => {
                    assert_eq!(decided.unwrap().action, PolicyAction::Allow);
                    true
                }
                () = std::future::ready(()) => false,
            }
        };

        for count in 1..=4 {
            let rule = Rule {
                id: count.to_string(),
                name: String::new(),
                tool: "run".to_owned(),
                pattern: Some(RulePattern::parse("y").unwrap()),
                action: PolicyAction::Deny,
                workspaces: Some(["w".to_owned()].into()),
                created_workspaces: None,
                expires: None,
                enabled: true,
                provenance: None,
            };
            store.add_with(rule, |stored| store.table.add(stored)).await.unwrap();
            assert!(decides_inline(MAX_INLINE_MATCH_BYTES / count).await);
            assert!(!decides_inline(MAX_INLINE_MATCH_BYTES / count + 1).await);
        }
    }
}
