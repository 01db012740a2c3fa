//! Retention of finished rows by age, count and bytes.
//!
//! Evicts the oldest rows of the principal that uses the most, so one busy principal does not
//! evict the results of others.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rusqlite::{Connection, params};
use tokio::{sync::Notify, time::timeout};

use super::fair_share;
use crate::daemon::store::unix_millis;

/// Rows that one transaction deletes at most. Other users of the database wait for it.
const MAX_DELETE_BATCH_ROWS: usize = 1000;
/// Bytes of rows that one transaction deletes at most.
const MAX_DELETE_BATCH_BYTES: u64 = 16 << 20;
/// A pass is due after 1/10 of a limit has been added, so a limit is exceeded by 10 % at most.
const TRIGGER_DIVISOR: u64 = 10;
/// Rows added between two passes at most: frequent passes are cheaper in total.
const MAX_ROWS_BETWEEN_PASSES: u64 = 1000;
/// Longest time between two passes: rows expire even if none are added.
const MAX_PASS_INTERVAL: Duration = Duration::from_secs(600);

/// Limits for the finished rows of one table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetentionLimits {
    /// Counted from the row's end.
    pub(crate) max_age: Duration,
    /// Over all principals.
    pub(crate) max_rows: u32,
    /// Over all principals.
    pub(crate) max_bytes: u64,
}

/// Signals when enough rows or bytes were added that a retention pass is due.
#[derive(Debug)]
pub(crate) struct RetentionTrigger {
    rows_between_passes: u64,
    bytes_between_passes: u64,
    added_rows: AtomicU64,
    added_bytes: AtomicU64,
    due: Notify,
}

/// A table with columns `principal` and `ended_ms`, and an index over these and the bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetainedTable {
    pub(crate) name: &'static str,
    /// Name of the column that holds the bytes of a row.
    pub(crate) bytes_column: &'static str,
}

/// One batch of rows to remove.
#[derive(Debug, Default)]
pub(crate) struct ExcessRows {
    /// Rows that have expired or exceed the row limit.
    pub(crate) rows: Vec<i64>,
    /// Rows that exceed the byte limit.
    pub(crate) oversized: Vec<i64>,
    bytes: u64,
}

#[derive(Debug)]
struct PrincipalUsage {
    principal: String,
    rows: u64,
    bytes: u64,
}

/// What one principal may hold.
#[derive(Debug, Clone, Copy)]
struct PrincipalLimits {
    max_rows: u64,
    max_bytes: u64,
    /// Rows that ended before this have expired.
    oldest_ms: i64,
}

impl RetentionTrigger {
    pub(crate) fn new(limits: RetentionLimits) -> Self {
        Self {
            rows_between_passes: (u64::from(limits.max_rows) / TRIGGER_DIVISOR)
                .clamp(1, MAX_ROWS_BETWEEN_PASSES),
            bytes_between_passes: (limits.max_bytes / TRIGGER_DIVISOR).max(1),
            added_rows: AtomicU64::new(0),
            added_bytes: AtomicU64::new(0),
            due: Notify::new(),
        }
    }

    /// Counts an added row of `bytes`.
    pub(crate) fn add_row(&self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let added_rows = self.added_rows.fetch_add(1, Ordering::Relaxed) + 1;
        let added_bytes = self.added_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;

        if added_rows >= self.rows_between_passes || added_bytes >= self.bytes_between_passes {
            self.added_rows.store(0, Ordering::Relaxed);
            self.added_bytes.store(0, Ordering::Relaxed);
            self.due.notify_one();
        }
    }

    /// Waits until enough was added or `MAX_PASS_INTERVAL` has passed.
    pub(crate) async fn wait_until_due(&self) {
        let _due_or_elapsed = timeout(MAX_PASS_INTERVAL, self.due.notified()).await;
    }
}

impl ExcessRows {
    /// Finds one batch of rows to remove. [`Self::is_full`] is true if there may be more.
    ///
    /// Count and byte limits never select the newest row of a principal: its caller may be about
    /// to request it.
    pub(crate) fn find(
        connection: &Connection,
        table: RetainedTable,
        limits: RetentionLimits,
    ) -> rusqlite::Result<Self> {
        let usages = usage_by_principal(connection, table)?;

        let max_age_ms = i64::try_from(limits.max_age.as_millis()).unwrap_or(i64::MAX);
        let per_principal = PrincipalLimits {
            max_rows: fair_share(usages.iter().map(|usage| usage.rows), limits.max_rows.into())
                .max(1),
            max_bytes: fair_share(usages.iter().map(|usage| usage.bytes), limits.max_bytes),
            oldest_ms: unix_millis::now().saturating_sub(max_age_ms),
        };

        let mut excess = Self::default();
        for usage in &usages {
            if excess.is_full() {
                break;
            }
            excess.add_of_principal(connection, table, usage, per_principal)?;
        }
        Ok(excess)
    }

    /// Whether the batch is full and the table may hold more rows to remove.
    pub(crate) fn is_full(&self) -> bool {
        self.rows.len() + self.oversized.len() >= MAX_DELETE_BATCH_ROWS
            || self.bytes >= MAX_DELETE_BATCH_BYTES
    }

    fn add_of_principal(
        &mut self,
        connection: &Connection,
        table: RetainedTable,
        usage: &PrincipalUsage,
        limits: PrincipalLimits,
    ) -> rusqlite::Result<()> {
        let mut excess_rows = usage.rows.saturating_sub(limits.max_rows);
        let mut remaining_bytes = usage.bytes;
        if remaining_bytes > limits.max_bytes {
            // A row that exceeds the limit by itself must not displace all the others.
            let large_bytes = self.add_large_rows(connection, table, usage, limits.max_bytes)?;
            remaining_bytes = remaining_bytes.saturating_sub(large_bytes);
        }
        let mut excess_bytes = remaining_bytes.saturating_sub(limits.max_bytes);

        let RetainedTable { name, bytes_column } = table;
        let sql = format!(
            "SELECT rowid, {bytes_column}, ended_ms FROM {name} WHERE principal = ?1 AND ended_ms IS NOT NULL ORDER BY ended_ms, rowid"
        );
        let mut select = connection.prepare_cached(&sql)?;
        let mut rows = select.query([&usage.principal])?;
        while let Some(row) = rows.next()? {
            let (id, bytes) = (row.get(0)?, unsigned(row.get(1)?));
            let is_expired = row.get::<_, i64>(2)? < limits.oldest_ms;
            if self.is_full() || (!is_expired && excess_rows == 0 && excess_bytes == 0) {
                break;
            }

            let is_counted = bytes <= limits.max_bytes;
            if is_expired || excess_rows > 0 {
                self.rows.push(id);
                excess_rows = excess_rows.saturating_sub(1);
            } else if bytes > 0 && is_counted {
                self.oversized.push(id);
            } else {
                continue;
            }

            self.bytes = self.bytes.saturating_add(bytes);
            if is_counted {
                excess_bytes = excess_bytes.saturating_sub(bytes);
            }
        }
        Ok(())
    }

    /// Adds the rows that exceed the byte limit by themselves, except the principal's newest row.
    /// Returns the bytes of all such rows, including the newest.
    fn add_large_rows(
        &mut self,
        connection: &Connection,
        table: RetainedTable,
        usage: &PrincipalUsage,
        max_bytes: u64,
    ) -> rusqlite::Result<u64> {
        let RetainedTable { name, bytes_column } = table;
        let sql = format!(
            "SELECT rowid, {bytes_column}, rowid <> (SELECT rowid FROM {name} WHERE principal = ?1 AND ended_ms IS NOT NULL ORDER BY ended_ms DESC, rowid DESC LIMIT 1)
             FROM {name} WHERE principal = ?1 AND ended_ms IS NOT NULL AND {bytes_column} > ?2 ORDER BY ended_ms, rowid"
        );
        let mut select = connection.prepare_cached(&sql)?;
        let max_bytes = i64::try_from(max_bytes).unwrap_or(i64::MAX);
        let mut rows = select.query(params![usage.principal, max_bytes])?;

        let mut large_bytes: u64 = 0;
        while let Some(row) = rows.next()? {
            let bytes = unsigned(row.get(1)?);
            large_bytes = large_bytes.saturating_add(bytes);
            let is_not_newest: bool = row.get(2)?;
            if is_not_newest && !self.is_full() {
                self.oversized.push(row.get(0)?);
                self.bytes = self.bytes.saturating_add(bytes);
            }
        }
        Ok(large_bytes)
    }
}

fn usage_by_principal(
    connection: &Connection,
    table: RetainedTable,
) -> rusqlite::Result<Vec<PrincipalUsage>> {
    let RetainedTable { name, bytes_column } = table;
    let sql = format!(
        "SELECT principal, count(*), sum({bytes_column}) FROM {name} WHERE ended_ms IS NOT NULL GROUP BY principal"
    );
    let mut select = connection.prepare_cached(&sql)?;
    let rows = select.query_map([], |row| {
        Ok(PrincipalUsage {
            principal: row.get(0)?,
            rows: unsigned(row.get(1)?),
            bytes: unsigned(row.get(2)?),
        })
    })?;
    rows.collect()
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
