//! The rules in force: those of the configuration file, which is read again when the operator says so, and
//! those made by ApprovalService, which are kept in the database. Every change goes through here, one after
//! the other; a call that is decided about meanwhile sees all of it or nothing.

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
    task,
    workspace::available_cores,
};

/// Most rules of a workspace that are kept: each is compared with each call of its tool. Those that have ended
/// are among them for as long as there is room.
const MAX_RULES_PER_WORKSPACE: usize = 1024;
/// Bytes of all patterns of a workspace's rules that are kept: compiled, they take some fifty times that.
const MAX_PATTERN_BYTES_PER_WORKSPACE: usize = 1 << 20;
/// Bytes that are compared with rules at once, counted once for each pattern; more are on a thread that may
/// block, in their turn: a pattern may take a second for each MiB, and this thread serves others, too.
const MAX_INLINE_MATCH_BYTES: usize = 16 << 10;

/// The rules.
#[derive(Debug)]
pub(crate) struct RuleStore {
    current: RwLock<Arc<PolicySnapshot>>,
    log: RuleTable,
    /// Held while a rule is changed on disk and here.
    write_lock: tokio::sync::Mutex<()>,
    /// Large calls that are looked at at one time: half of the cores are for others.
    offload_permits: Arc<Semaphore>,
}

impl RuleStore {
    /// The rules of a configuration file, and those that are kept.
    pub(crate) async fn open(
        settings: CompiledPolicy,
        log: RuleTable,
    ) -> Result<Self, DatabaseError> {
        let stored = log.load_all().await?;
        let stored = stored.into_iter().filter_map(from_stored_rule).map(Arc::new);
        let mut stored: Vec<_> = stored.collect();
        stored.sort_by_key(|rule| Reverse(creation_order(rule)));
        let snapshot = PolicySnapshot::new(Arc::new(settings), stored.into());
        Ok(Self {
            current: RwLock::new(Arc::new(snapshot)),
            log,
            write_lock: tokio::sync::Mutex::default(),
            offload_permits: Arc::new(Semaphore::new(available_cores().div_ceil(2))),
        })
    }

    /// What decides now.
    pub(crate) fn snapshot(&self) -> Arc<PolicySnapshot> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }

    /// Decides about a call, without holding up others where there is much to look at.
    pub(crate) async fn decide(
        &self,
        snapshot: Arc<PolicySnapshot>,
        call: Arc<PolicyRequest>,
    ) -> Result<PolicyDecision, Error> {
        let now = SystemTime::now();
        if snapshot.match_cost_bytes(call.to_request_ref(), now) <= MAX_INLINE_MATCH_BYTES {
            return Ok(snapshot.decide(call.to_request_ref(), now));
        }
        let turn = Arc::clone(&self.offload_permits).acquire_owned().await;
        let turn = turn.map_err(Error::internal)?;
        let decided = task::spawn_blocking(move || {
            let _turn = turn;
            snapshot.decide(call.to_request_ref(), SystemTime::now())
        });
        decided.await.map_err(Error::internal)
    }

    /// Has another configuration file decide from now on.
    pub(crate) fn replace_policy(&self, settings: CompiledPolicy) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let stored = current.stored_rules().iter().cloned().collect();
        *current = Arc::new(PolicySnapshot::new(Arc::new(settings), stored));
    }

    /// Adds a rule for one workspace.
    pub(crate) async fn add(&self, rule: Rule) -> Result<Arc<Rule>, Error> {
        self.add_with(rule, |stored| self.log.add(stored)).await
    }

    /// Adds a rule for one workspace, which `keep` writes down together with what else is to be. Where there is
    /// no room for it, those that have ended are forgotten, and no more of them than must be.
    pub(crate) async fn add_with<K, F>(&self, rule: Rule, keep: K) -> Result<Arc<Rule>, Error>
    where
        K: FnOnce(StoredRule) -> F,
        F: Future<Output = Result<(), DatabaseError>>,
    {
        let _turn = self.write_lock.lock().await;
        let in_the_way = rules_to_evict(&self.snapshot(), &rule, SystemTime::now())?;
        let made_room = self.remove_stored(&in_the_way).await;
        made_room.map_err(|error| state_database_error(&error))?;
        keep(to_stored_rule(&rule)).await.map_err(|error| state_database_error(&error))?;
        let rule = Arc::new(rule);
        let mut rules: Vec<_> = self.snapshot().stored_rules().to_vec();
        rules.push(Arc::clone(&rule));
        rules.sort_by_key(|rule| Reverse(creation_order(rule)));
        self.set_stored(rules.into_iter());
        Ok(rule)
    }

    /// Changes whether a rule counts, and when it ends. `sees` tells of which that may be asked.
    pub(crate) async fn change(
        &self,
        id: &str,
        sees: impl Fn(&Rule) -> bool,
        enabled: Option<bool>,
        expires: Option<Option<SystemTime>>,
    ) -> Result<Arc<Rule>, Error> {
        let _turn = self.write_lock.lock().await;
        let snapshot = self.snapshot();
        let before = find_stored(&snapshot, id, sees)?;
        let changed = Arc::new(Rule {
            enabled: enabled.unwrap_or(before.enabled),
            expires: expires.unwrap_or(before.expires),
            ..(**before).clone()
        });
        let expires_ms = changed.expires.map(unix_millis::from_time);
        let kept = self.log.update(id.to_owned(), changed.enabled, expires_ms);
        kept.await.map_err(|error| state_database_error(&error))?;
        let rules = snapshot.stored_rules().iter().cloned();
        self.set_stored(rules.map(|rule| match rule.id == id {
            true => Arc::clone(&changed),
            false => rule,
        }));
        Ok(changed)
    }

    /// Removes a rule. `sees` tells of which that may be asked.
    pub(crate) async fn remove(&self, id: &str, sees: impl Fn(&Rule) -> bool) -> Result<(), Error> {
        let _turn = self.write_lock.lock().await;
        find_stored(&self.snapshot(), id, sees)?;
        let removed = self.remove_stored(&[id.to_owned()].into()).await;
        removed.map_err(|error| state_database_error(&error))
    }

    /// Removes rules that ended before some time.
    pub(crate) async fn remove_expired(
        &self,
        ended_before: SystemTime,
    ) -> Result<(), DatabaseError> {
        let _turn = self.write_lock.lock().await;
        let snapshot = self.snapshot();
        let is_old = |rule: &Arc<Rule>| rule.expires.is_some_and(|end| end < ended_before);
        let old = snapshot.stored_rules().iter().filter(|rule| is_old(rule));
        let old = old.map(|rule| rule.id.clone()).collect();
        self.remove_stored(&old).await
    }

    /// Removes these from disk, and here. To be called in turn.
    async fn remove_stored(&self, ids: &BTreeSet<String>) -> Result<(), DatabaseError> {
        if ids.is_empty() {
            return Ok(());
        }
        self.log.remove(ids.iter().cloned().collect()).await?;
        let snapshot = self.snapshot();
        let rules = snapshot.stored_rules().iter().cloned();
        self.set_stored(rules.filter(|rule| !ids.contains(&rule.id)));
        Ok(())
    }

    fn set_stored(&self, rules: impl Iterator<Item = Arc<Rule>>) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let settings = Arc::clone(&current.policy);
        *current = Arc::new(PolicySnapshot::new(settings, rules.collect()));
    }
}

/// The rules that have to go for this one, of those that have ended: the first that did so first.
fn rules_to_evict(
    snapshot: &PolicySnapshot,
    rule: &Rule,
    now: SystemTime,
) -> Result<BTreeSet<String>, Error> {
    let is_beside = |other: &&Arc<Rule>| other.workspaces == rule.workspaces;
    let (mut ended, others): (Vec<_>, Vec<_>) =
        snapshot.stored_rules().iter().filter(is_beside).partition(|other| other.has_expired(now));
    ended.sort_by_key(|rule| rule.expires);
    let sum =
        |rules: &[&Arc<Rule>]| -> usize { rules.iter().map(|rule| rule.pattern_bytes()).sum() };
    let (count, bytes) = (others.len(), sum(&others));
    if count >= MAX_RULES_PER_WORKSPACE {
        let text = format!(
            "this workspace has {count} rules that have not ended, and {MAX_RULES_PER_WORKSPACE} are the most: delete some (ListRules, DeleteRule)"
        );
        return Err(Error::new(Reason::ResourceExhausted, text));
    }
    if bytes + rule.pattern_bytes() > MAX_PATTERN_BYTES_PER_WORKSPACE {
        let text = format!(
            "the patterns of this workspace's rules that have not ended have {bytes} bytes, and {MAX_PATTERN_BYTES_PER_WORKSPACE} are the most: delete some (ListRules, DeleteRule), or make this one shorter"
        );
        return Err(Error::new(Reason::ResourceExhausted, text));
    }
    let fits = |left: &[&Arc<Rule>]| {
        count + left.len() < MAX_RULES_PER_WORKSPACE
            && bytes + sum(left) + rule.pattern_bytes() <= MAX_PATTERN_BYTES_PER_WORKSPACE
    };
    let mut left = ended.as_slice();
    let mut gone = BTreeSet::new();
    while !fits(left)
        && let Some((first, rest)) = left.split_first()
    {
        gone.insert(first.id.clone());
        left = rest;
    }
    Ok(gone)
}

/// What newer rules have more of: as the database has it, so that they are asked in the same order after a
/// restart.
fn creation_order(rule: &Rule) -> (i64, String) {
    let made = rule.provenance.as_ref().map(|made| unix_millis::from_time(made.at));
    (made.unwrap_or_default(), rule.id.clone())
}

/// The rule of this id, if it can be changed here.
fn find_stored<'s>(
    snapshot: &'s PolicySnapshot,
    id: &str,
    sees: impl Fn(&Rule) -> bool,
) -> Result<&'s Arc<Rule>, Error> {
    if id.starts_with(FILE_RULE_ID_PREFIX) {
        let text = "is of the configuration file: change it there, and send the daemon SIGHUP";
        return Err(Error::invalid_field("rule_id", text));
    }
    let mut rules = snapshot.stored_rules().iter();
    let found = rules.find(|rule| rule.id == id && sees(rule));
    found.ok_or_else(|| {
        let text = format!("there is no rule {id:?}: ListRules tells which there are");
        Error::new(Reason::RuleNotFound, text).with_metadata("rule_id", id)
    })
}

/// A rule as it is kept.
fn to_stored_rule(rule: &Rule) -> StoredRule {
    let made = rule.provenance.clone();
    let (created_by, created_ms, approval_id) = match made {
        Some(made) => (made.by, unix_millis::from_time(made.at), made.approval_id),
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

/// The rule that was kept. One that cannot be read any more allows nothing, and is about all calls of its
/// tool where it does not allow.
fn from_stored_rule(kept: StoredRule) -> Option<Rule> {
    let action = match kept.action.as_str() {
        "ALLOW" => PolicyAction::Allow,
        "ASK" => PolicyAction::Ask,
        _ => PolicyAction::Deny,
    };
    let pattern = match kept.pattern.as_deref().map(RulePattern::parse).transpose() {
        Ok(pattern) => pattern,
        Err(problem) => {
            tracing::error!(
                rule = kept.id,
                problem,
                "the pattern of a rule cannot be read any more"
            );
            if action == PolicyAction::Allow {
                return None;
            }
            None
        }
    };
    Some(Rule {
        id: kept.id,
        name: kept.name,
        tool: kept.tool,
        pattern,
        action,
        workspaces: Some([kept.workspace].into()),
        expires: kept.expires_ms.map(unix_millis::to_time),
        enabled: kept.enabled,
        provenance: Some(RuleProvenance {
            by: kept.created_by,
            at: unix_millis::to_time(kept.created_ms),
            approval_id: kept.approval_id,
        }),
    })
}

/// When a rule ends that lasts so long from now.
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

    /// The calling thread serves others: what takes long is none of its work, be it one long text or many
    /// patterns.
    #[tokio::test]
    async fn many_patterns_are_as_much_work_as_a_long_text() {
        let settings =
            CompiledPolicy::new(PolicyConfig::default(), &Catalog::load().unwrap(), &["w"], &[]);
        let log = RuleTable::new(Database::in_memory().unwrap());
        let book = RuleStore::open(settings.unwrap(), log).await.unwrap();
        // Nobody else has a turn.
        let turns = u32::try_from(book.offload_permits.available_permits()).unwrap();
        let _turns = book.offload_permits.acquire_many(turns).await.unwrap();
        let decides_at_once = async |bytes: usize| {
            let call = Arc::new(PolicyRequest {
                tool: "run",
                risk: Risk::Dangerous,
                workspace: "w".to_owned(),
                texts: vec![PolicyText { text: "x".repeat(bytes), may_allow: true }],
                dialect_call: None,
            });
            let deciding = book.decide(book.snapshot(), call);
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
                expires: None,
                enabled: true,
                provenance: None,
            };
            book.add(rule).await.unwrap();
            assert!(decides_at_once(MAX_INLINE_MATCH_BYTES / count).await);
            assert!(!decides_at_once(MAX_INLINE_MATCH_BYTES / count + 1).await);
        }
    }
}
