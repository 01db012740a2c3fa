//! How much is kept of what has ended, of all who call together, and whose goes first: the oldest of who
//! has most, so that nobody loses what is kept for him because another calls much.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rusqlite::{Connection, params};
use tokio::{sync::Notify, time::timeout};

use super::milliseconds;

/// Most rows that are removed in one go, and bytes in them: others wait meanwhile.
const REMOVED_TOGETHER: usize = 1000;
const REMOVED_TOGETHER_BYTES: u64 = 16 << 20;
/// The part of what is kept by which more may be there before it is looked again.
const PART: u64 = 10;
/// Most rows by which more may be there: to look is the cheaper the oftener it is done.
const BETWEEN: u64 = 1000;
/// Time after which it is looked all the same: some may have grown old.
const TIME_BETWEEN: Duration = Duration::from_secs(600);

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// How long, from the end.
    pub(crate) age: Duration,
    /// How many.
    pub(crate) number: u32,
    /// Bytes of all of them.
    pub(crate) bytes: u64,
}

/// Tells when so much has been added that it is to be looked whether too much is kept.
#[derive(Debug)]
pub(crate) struct Growth {
    number_between: u64,
    bytes_between: u64,
    number: AtomicU64,
    bytes: AtomicU64,
    look: Notify,
}

/// A table of what is kept: with columns `principal` and `ended_ms`, and an index over these and the bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    pub(super) name: &'static str,
    /// The column that has the bytes of a row.
    pub(super) bytes: &'static str,
}

/// Rows of which there are too many.
#[derive(Debug, Default)]
pub(super) struct Surplus {
    /// Rows that are too old, or too many.
    pub(super) rows: Vec<i64>,
    /// Rows that have too many bytes.
    pub(super) large: Vec<i64>,
    bytes: u64,
}

/// What is kept of one who calls.
#[derive(Debug)]
struct Holding {
    principal: String,
    number: u64,
    bytes: u64,
}

impl Growth {
    /// Of what has these bounds.
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            number_between: (u64::from(bounds.number) / PART).clamp(1, BETWEEN),
            bytes_between: (bounds.bytes / PART).max(1),
            number: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            look: Notify::new(),
        }
    }

    /// Counts a row of so many bytes.
    pub(super) fn add(&self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if number >= self.number_between || bytes >= self.bytes_between {
            self.number.store(0, Ordering::Relaxed);
            self.bytes.store(0, Ordering::Relaxed);
            self.look.notify_one();
        }
    }

    /// Waits until it is to be looked.
    pub(crate) async fn wait(&self) {
        // Either will do.
        let _time_is_up = timeout(TIME_BETWEEN, self.look.notified()).await;
    }
}

impl Surplus {
    /// Looks for some of what a table has too much of. Never the newest of a caller, for its number or
    /// bytes: he may just be asking for it.
    pub(super) fn find(
        connection: &Connection,
        table: Table,
        bounds: Bounds,
    ) -> rusqlite::Result<Self> {
        let holdings = holdings(connection, table)?;
        let most = share(holdings.iter().map(|holding| holding.number), bounds.number.into());
        let most_bytes = share(holdings.iter().map(|holding| holding.bytes), bounds.bytes);
        let age = i64::try_from(bounds.age.as_millis()).unwrap_or(i64::MAX);
        let oldest = milliseconds::now().saturating_sub(age);
        let mut surplus = Self::default();
        for holding in holdings {
            if !surplus.is_full() {
                surplus.add(connection, table, &holding, (most.max(1), most_bytes), oldest)?;
            }
        }
        Ok(surplus)
    }

    /// Whether there may be more.
    pub(super) fn is_full(&self) -> bool {
        self.rows.len() + self.large.len() >= REMOVED_TOGETHER
            || self.bytes >= REMOVED_TOGETHER_BYTES
    }

    fn add(
        &mut self,
        connection: &Connection,
        table: Table,
        holding: &Holding,
        (most, most_bytes): (u64, u64),
        oldest: i64,
    ) -> rusqlite::Result<()> {
        let Table { name, bytes } = table;
        let mut too_many = holding.number.saturating_sub(most);
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
                    self.large.push(row.get(0)?);
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
                self.large.push(id);
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

fn holdings(connection: &Connection, table: Table) -> rusqlite::Result<Vec<Holding>> {
    let Table { name, bytes } = table;
    let sql = format!(
        "SELECT principal, count(*), sum({bytes}) FROM {name} WHERE ended_ms IS NOT NULL GROUP BY principal"
    );
    let mut select = connection.prepare_cached(&sql)?;
    let rows = select.query_map([], |row| {
        Ok(Holding {
            principal: row.get(0)?,
            number: unsigned(row.get(1)?),
            bytes: unsigned(row.get(2)?),
        })
    })?;
    rows.collect()
}

/// What each who calls, or each workspace, may have at most, where all together may have `bound`: who has
/// less than others loses nothing before they have come down to as much.
pub(super) fn share(held: impl Iterator<Item = u64>, bound: u64) -> u64 {
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
            let found = share(held.iter().copied(), bound);
            assert_eq!(found, expected, "{held:?} {bound}");
        }
    }
}
