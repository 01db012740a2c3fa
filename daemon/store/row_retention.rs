//! How much is kept of what has ended, of all who call together, and whose goes first: the oldest of who
//! has most, so that nobody loses what is kept for him because another calls much.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rusqlite::{Connection, params};
use tokio::{sync::Notify, time::timeout};

use super::unix_millis;

/// Most rows that are removed in one go, and bytes in them: others wait meanwhile.
const DELETE_BATCH_ROWS: usize = 1000;
const DELETE_BATCH_BYTES: u64 = 16 << 20;
/// The part of what is kept by which more may be there before it is looked again.
const TRIGGER_DIVISOR: u64 = 10;
/// Most rows by which more may be there: to look is the cheaper the oftener it is done.
const MAX_ROWS_BETWEEN_RUNS: u64 = 1000;
/// Time after which it is looked all the same: some may have grown old.
const MAX_RUN_INTERVAL: Duration = Duration::from_secs(600);

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetentionLimits {
    /// How long, from the end.
    pub(crate) max_age: Duration,
    /// How many.
    pub(crate) max_rows: u32,
    /// Bytes of all of them.
    pub(crate) max_bytes: u64,
}

/// Tells when so much has been added that it is to be looked whether too much is kept.
#[derive(Debug)]
pub(crate) struct RetentionTrigger {
    rows_between_runs: u64,
    bytes_between_runs: u64,
    added_rows: AtomicU64,
    added_bytes: AtomicU64,
    due: Notify,
}

/// A table of what is kept: with columns `principal` and `ended_ms`, and an index over these and the bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct RetainedTable {
    pub(super) name: &'static str,
    /// The column that has the bytes of a row.
    pub(super) bytes_column: &'static str,
}

/// Rows of which there are too many.
#[derive(Debug, Default)]
pub(super) struct ExcessRows {
    /// Rows that are too old, or too many.
    pub(super) rows: Vec<i64>,
    /// Rows that have too many bytes.
    pub(super) oversized: Vec<i64>,
    bytes: u64,
}

/// What is kept of one who calls.
#[derive(Debug)]
struct PrincipalUsage {
    principal: String,
    rows: u64,
    bytes: u64,
}

impl RetentionTrigger {
    /// Of what has these bounds.
    pub(super) fn new(bounds: RetentionLimits) -> Self {
        Self {
            rows_between_runs: (u64::from(bounds.max_rows) / TRIGGER_DIVISOR)
                .clamp(1, MAX_ROWS_BETWEEN_RUNS),
            bytes_between_runs: (bounds.max_bytes / TRIGGER_DIVISOR).max(1),
            added_rows: AtomicU64::new(0),
            added_bytes: AtomicU64::new(0),
            due: Notify::new(),
        }
    }

    /// Counts a row of so many bytes.
    pub(super) fn add_row(&self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let number = self.added_rows.fetch_add(1, Ordering::Relaxed) + 1;
        let bytes = self.added_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if number >= self.rows_between_runs || bytes >= self.bytes_between_runs {
            self.added_rows.store(0, Ordering::Relaxed);
            self.added_bytes.store(0, Ordering::Relaxed);
            self.due.notify_one();
        }
    }

    /// Waits until it is to be looked.
    pub(crate) async fn wait_until_due(&self) {
        // Either will do.
        let _time_is_up = timeout(MAX_RUN_INTERVAL, self.due.notified()).await;
    }
}

impl ExcessRows {
    /// Looks for some of what a table has too much of. Never the newest of a caller, for its number or
    /// bytes: he may just be asking for it.
    pub(super) fn find(
        connection: &Connection,
        table: RetainedTable,
        bounds: RetentionLimits,
    ) -> rusqlite::Result<Self> {
        let holdings = usage_by_principal(connection, table)?;
        let most = fair_share(holdings.iter().map(|holding| holding.rows), bounds.max_rows.into());
        let most_bytes = fair_share(holdings.iter().map(|holding| holding.bytes), bounds.max_bytes);
        let age = i64::try_from(bounds.max_age.as_millis()).unwrap_or(i64::MAX);
        let oldest = unix_millis::now().saturating_sub(age);
        let mut surplus = Self::default();
        for holding in holdings {
            if !surplus.is_full() {
                surplus.add_of_principal(
                    connection,
                    table,
                    &holding,
                    (most.max(1), most_bytes),
                    oldest,
                )?;
            }
        }
        Ok(surplus)
    }

    /// Whether there may be more.
    pub(super) fn is_full(&self) -> bool {
        self.rows.len() + self.oversized.len() >= DELETE_BATCH_ROWS
            || self.bytes >= DELETE_BATCH_BYTES
    }

    fn add_of_principal(
        &mut self,
        connection: &Connection,
        table: RetainedTable,
        holding: &PrincipalUsage,
        (most, most_bytes): (u64, u64),
        oldest: i64,
    ) -> rusqlite::Result<()> {
        let RetainedTable { name, bytes_column: bytes } = table;
        let mut too_many = holding.rows.saturating_sub(most);
        let mut held = holding.bytes;
        if held > most_bytes {
            // What does not fit by itself must not take the place of all the others.
            let sql = format!(
                "SELECT rowid, {bytes}, rowid <> (SELECT rowid FROM {name} WHERE principal = ?1 AND ended_ms IS NOT NULL ORDER BY ended_ms DESC, rowid DESC LIMIT 1)
                 FROM {name} WHERE principal = ?1 AND ended_ms IS NOT NULL AND {bytes} > ?2 ORDER BY ended_ms, rowid"
            );
            let mut select = connection.prepare_cached(&sql)?;
            let most_bytes = i64::try_from(most_bytes).unwrap_or(i64::MAX);
            let mut rows = select.query(params![holding.principal, most_bytes])?;
            while let Some(row) = rows.next()? {
                let bytes = unsigned(row.get(1)?);
                held = held.saturating_sub(bytes);
                if row.get(2)? && !self.is_full() {
                    self.oversized.push(row.get(0)?);
                    self.bytes = self.bytes.saturating_add(bytes);
                }
            }
        }
        let mut too_large = held.saturating_sub(most_bytes);
        let sql = format!(
            "SELECT rowid, {bytes}, ended_ms FROM {name} WHERE principal = ?1 AND ended_ms IS NOT NULL ORDER BY ended_ms, rowid"
        );
        let mut select = connection.prepare_cached(&sql)?;
        let mut rows = select.query([&holding.principal])?;
        while let Some(row) = rows.next()? {
            let (id, bytes) = (row.get(0)?, unsigned(row.get(1)?));
            let is_old = row.get::<_, i64>(2)? < oldest;
            if self.is_full() || (!is_old && too_many == 0 && too_large == 0) {
                break;
            }
            let is_counted = bytes <= most_bytes;
            if is_old || too_many > 0 {
                self.rows.push(id);
                too_many = too_many.saturating_sub(1);
            } else if bytes > 0 && is_counted {
                self.oversized.push(id);
            } else {
                continue;
            }
            self.bytes = self.bytes.saturating_add(bytes);
            if is_counted {
                too_large = too_large.saturating_sub(bytes);
            }
        }
        Ok(())
    }
}

fn usage_by_principal(
    connection: &Connection,
    table: RetainedTable,
) -> rusqlite::Result<Vec<PrincipalUsage>> {
    let RetainedTable { name, bytes_column: bytes } = table;
    let sql = format!(
        "SELECT principal, count(*), sum({bytes}) FROM {name} WHERE ended_ms IS NOT NULL GROUP BY principal"
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

/// What each who calls, or each workspace, may have at most, where all together may have `bound`: who has
/// less than others loses nothing before they have come down to as much.
pub(super) fn fair_share(held: impl Iterator<Item = u64>, bound: u64) -> u64 {
    let mut held: Vec<_> = held.collect();
    held.sort_unstable();
    let (mut left, mut callers) = (bound, held.len() as u64);
    for held in held {
        let share = left / callers;
        if held > share {
            return share;
        }
        left -= held;
        callers -= 1;
    }
    u64::MAX
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_most_comes_down_first() {
        for (held, bound, expected) in [
            (&[][..], 10, u64::MAX),
            (&[10], 10, u64::MAX),
            (&[11], 10, 10),
            (&[1, 2, 100], 10, 7),
            (&[6, 6, 1], 10, 4),
            (&[5, 5, 5], 10, 3),
            (&[5, 5, 5], 0, 0),
            (&[u64::MAX, 1], u64::MAX, u64::MAX - 1),
        ] {
            let found = fair_share(held.iter().copied(), bound);
            assert_eq!(found, expected, "{held:?} {bound}");
        }
    }
}
