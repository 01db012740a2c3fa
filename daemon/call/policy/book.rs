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
    decision::{Settings, Snapshot, Verdict},
    judged::Judged,
    pattern::Pattern,
    rule::{Made, OF_FILE, Rule},
};
use crate::daemon::{
    call::state_error::of_database,
    config::policy::Action,
    error::{Error, Reason},
    store::{
        database::DatabaseError,
        milliseconds,
        rules::{RuleLog, StoredRule},
    },
    task,
    workspace::cores,
};

/// Most rules of a workspace that are kept: each is compared with each call of its tool. Those that have ended
/// are among them for as long as there is room.
const MOST_RULES: usize = 1024;
/// Bytes of all patterns of a workspace's rules that are kept: compiled, they take some fifty times that.
const MOST_PATTERN_BYTES: usize = 1 << 20;
/// Bytes that are compared with rules at once, counted once for each pattern; more are on a thread that may
/// block, in their turn: a pattern may take a second for each MiB, and this thread serves others, too.
const AT_ONCE: usize = 16 << 10;

/// The rules.
#[derive(Debug)]
pub(crate) struct RuleBook {
    current: RwLock<Arc<Snapshot>>,
    log: RuleLog,
    /// Held while a rule is changed on disk and here.
    turn: tokio::sync::Mutex<()>,
    /// Large calls that are looked at at one time: half of the cores are for others.
    large: Arc<Semaphore>,
}

impl RuleBook {
    /// The rules of a configuration file, and those that are kept.
    pub(crate) async fn open(settings: Settings, log: RuleLog) -> Result<Self, DatabaseError> {
        let stored = log.all().await?;
        let stored = stored.into_iter().filter_map(rule).map(Arc::new);
        let mut stored: Vec<_> = stored.collect();
        stored.sort_by_key(|rule| Reverse(age(rule)));
        let snapshot = Snapshot::new(Arc::new(settings), stored.into());
        Ok(Self {
            current: RwLock::new(Arc::new(snapshot)),
            log,
            turn: tokio::sync::Mutex::default(),
            large: Arc::new(Semaphore::new(cores().div_ceil(2))),
        })
    }

    /// What decides now.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }

    /// Decides about a call, without holding up others where there is much to look at.
    pub(crate) async fn decide(
        &self,
        snapshot: Arc<Snapshot>,
        call: Arc<Judged>,
    ) -> Result<Verdict, Error> {
        let now = SystemTime::now();
        if snapshot.work(call.asked(), now) <= AT_ONCE {
            return Ok(snapshot.decide(call.asked(), now));
        }
        let turn = Arc::clone(&self.large).acquire_owned().await;
        let turn = turn.map_err(Error::internal)?;
        let decided = task::blocking(move || {
            let _turn = turn;
            snapshot.decide(call.asked(), SystemTime::now())
        });
        decided.await.map_err(Error::internal)
    }

    /// Has another configuration file decide from now on.
    pub(crate) fn replace(&self, settings: Settings) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let stored = current.stored().iter().cloned().collect();
        *current = Arc::new(Snapshot::new(Arc::new(settings), stored));
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
        let _turn = self.turn.lock().await;
        let in_the_way = in_the_way(&self.snapshot(), &rule, SystemTime::now())?;
        let made_room = self.take_out(&in_the_way).await;
        made_room.map_err(|error| of_database(&error))?;
        keep(stored(&rule)).await.map_err(|error| of_database(&error))?;
        let rule = Arc::new(rule);
        let mut rules: Vec<_> = self.snapshot().stored().to_vec();
        rules.push(Arc::clone(&rule));
        rules.sort_by_key(|rule| Reverse(age(rule)));
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
        let _turn = self.turn.lock().await;
        let snapshot = self.snapshot();
        let before = find(&snapshot, id, sees)?;
        let changed = Arc::new(Rule {
            enabled: enabled.unwrap_or(before.enabled),
            expires: expires.unwrap_or(before.expires),
            ..(**before).clone()
        });
        let expires_ms = changed.expires.map(milliseconds::of);
        let kept = self.log.change(id.to_owned(), changed.enabled, expires_ms);
        kept.await.map_err(|error| of_database(&error))?;
        let rules = snapshot.stored().iter().cloned();
        self.set_stored(rules.map(|rule| match rule.id == id {
            true => Arc::clone(&changed),
            false => rule,
        }));
        Ok(changed)
    }

    /// Removes a rule. `sees` tells of which that may be asked.
    pub(crate) async fn remove(&self, id: &str, sees: impl Fn(&Rule) -> bool) -> Result<(), Error> {
        let _turn = self.turn.lock().await;
        find(&self.snapshot(), id, sees)?;
        let removed = self.take_out(&[id.to_owned()].into()).await;
        removed.map_err(|error| of_database(&error))
    }

    /// Removes rules that ended before some time.
    pub(crate) async fn forget(&self, ended_before: SystemTime) -> Result<(), DatabaseError> {
        let _turn = self.turn.lock().await;
        let snapshot = self.snapshot();
        let is_old = |rule: &Arc<Rule>| rule.expires.is_some_and(|end| end < ended_before);
        let old = snapshot.stored().iter().filter(|rule| is_old(rule));
        let old = old.map(|rule| rule.id.clone()).collect();
        self.take_out(&old).await
    }

    /// Removes these from disk, and here. To be called in turn.
    async fn take_out(&self, ids: &BTreeSet<String>) -> Result<(), DatabaseError> {
        if ids.is_empty() {
            return Ok(());
        }
        self.log.remove(ids.iter().cloned().collect()).await?;
        let snapshot = self.snapshot();
        let rules = snapshot.stored().iter().cloned();
        self.set_stored(rules.filter(|rule| !ids.contains(&rule.id)));
        Ok(())
    }

    fn set_stored(&self, rules: impl Iterator<Item = Arc<Rule>>) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let settings = Arc::clone(&current.settings);
        *current = Arc::new(Snapshot::new(settings, rules.collect()));
    }
}

/// The rules that have to go for this one, of those that have ended: the first that did so first.
fn in_the_way(
    snapshot: &Snapshot,
    rule: &Rule,
    now: SystemTime,
) -> Result<BTreeSet<String>, Error> {
    let is_beside = |other: &&Arc<Rule>| other.workspaces == rule.workspaces;
    let (mut ended, others): (Vec<_>, Vec<_>) =
        snapshot.stored().iter().filter(is_beside).partition(|other| other.has_ended(now));
    ended.sort_by_key(|rule| rule.expires);
    let sum =
        |rules: &[&Arc<Rule>]| -> usize { rules.iter().map(|rule| rule.pattern_bytes()).sum() };
    let (count, bytes) = (others.len(), sum(&others));
    if count >= MOST_RULES {
        let text = format!(
            "this workspace has {count} rules that have not ended, and {MOST_RULES} are the most: delete some (ListRules, DeleteRule)"
        );
        return Err(Error::new(Reason::ResourceExhausted, text));
    }
    if bytes + rule.pattern_bytes() > MOST_PATTERN_BYTES {
        let text = format!(
            "the patterns of this workspace's rules that have not ended have {bytes} bytes, and {MOST_PATTERN_BYTES} are the most: delete some (ListRules, DeleteRule), or make this one shorter"
        );
        return Err(Error::new(Reason::ResourceExhausted, text));
    }
    let fits = |left: &[&Arc<Rule>]| {
        count + left.len() < MOST_RULES
            && bytes + sum(left) + rule.pattern_bytes() <= MOST_PATTERN_BYTES
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
fn age(rule: &Rule) -> (i64, String) {
    let made = rule.made.as_ref().map(|made| milliseconds::of(made.at));
    (made.unwrap_or_default(), rule.id.clone())
}

/// The rule of this id, if it can be changed here.
fn find<'s>(
    snapshot: &'s Snapshot,
    id: &str,
    sees: impl Fn(&Rule) -> bool,
) -> Result<&'s Arc<Rule>, Error> {
    if id.starts_with(OF_FILE) {
        let text = "is of the configuration file: change it there, and send the daemon SIGHUP";
        return Err(Error::invalid_field("rule_id", text));
    }
    let mut rules = snapshot.stored().iter();
    let found = rules.find(|rule| rule.id == id && sees(rule));
    found.ok_or_else(|| {
        let text = format!("there is no rule {id:?}: ListRules tells which there are");
        Error::new(Reason::RuleNotFound, text).with("rule_id", id)
    })
}

/// A rule as it is kept.
fn stored(rule: &Rule) -> StoredRule {
    let made = rule.made.clone();
    let (created_by, created_ms, approval_id) = match made {
        Some(made) => (made.by, milliseconds::of(made.at), made.approval_id),
        None => Default::default(),
    };
    StoredRule {
        id: rule.id.clone(),
        workspace: rule.workspaces.iter().flatten().next().cloned().unwrap_or_default(),
        name: rule.name.clone(),
        tool: rule.tool.clone(),
        pattern: rule.pattern.as_ref().map(|pattern| pattern.as_str().to_owned()),
        action: match rule.action {
            Action::Allow => "ALLOW",
            Action::Ask => "ASK",
            Action::Deny => "DENY",
        }
        .to_owned(),
        expires_ms: rule.expires.map(milliseconds::of),
        enabled: rule.enabled,
        created_by,
        created_ms,
        approval_id,
    }
}

/// The rule that was kept. One that cannot be read any more allows nothing, and is about all calls of its
/// tool where it does not allow.
fn rule(kept: StoredRule) -> Option<Rule> {
    let action = match kept.action.as_str() {
        "ALLOW" => Action::Allow,
        "ASK" => Action::Ask,
        _ => Action::Deny,
    };
    let pattern = match kept.pattern.as_deref().map(Pattern::parse).transpose() {
        Ok(pattern) => pattern,
        Err(problem) => {
            tracing::error!(
                rule = kept.id,
                problem,
                "the pattern of a rule cannot be read any more"
            );
            if action == Action::Allow {
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
        expires: kept.expires_ms.map(milliseconds::to_time),
        enabled: kept.enabled,
        made: Some(Made {
            by: kept.created_by,
            at: milliseconds::to_time(kept.created_ms),
            approval_id: kept.approval_id,
        }),
    })
}

/// When a rule ends that lasts so long from now.
pub(crate) fn ending(lifetime_sec: u32) -> SystemTime {
    SystemTime::now() + Duration::from_secs(lifetime_sec.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::v1::Risk,
        daemon::{
            catalog::{Catalog, Text},
            config::policy::Policy,
            store::database::Database,
        },
    };

    /// The calling thread serves others: what takes long is none of its work, be it one long text or many
    /// patterns.
    #[tokio::test]
    async fn many_patterns_are_as_much_work_as_a_long_text() {
        let settings = Settings::new(Policy::default(), &Catalog::load().unwrap(), &["w"], &[]);
        let log = RuleLog::new(Database::in_memory().unwrap());
        let book = RuleBook::open(settings.unwrap(), log).await.unwrap();
        // Nobody else has a turn.
        let turns = u32::try_from(book.large.available_permits()).unwrap();
        let _turns = book.large.acquire_many(turns).await.unwrap();
        let decides_at_once = async |bytes: usize| {
            let call = Arc::new(Judged {
                tool: "run",
                risk: Risk::Dangerous,
                workspace: "w".to_owned(),
                texts: vec![Text { text: "x".repeat(bytes), may_allow: true }],
                said: None,
            });
            let deciding = book.decide(book.snapshot(), call);
            tokio::select! {
                biased;
                decided = deciding => {
                    assert_eq!(decided.unwrap().action, Action::Allow);
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
                pattern: Some(Pattern::parse("y").unwrap()),
                action: Action::Deny,
                workspaces: Some(["w".to_owned()].into()),
                expires: None,
                enabled: true,
                made: None,
            };
            book.add(rule).await.unwrap();
            assert!(decides_at_once(AT_ONCE / count).await);
            assert!(!decides_at_once(AT_ONCE / count + 1).await);
        }
    }
}
