//! Retention: removes what has expired or exceeds a limit.
//!
//! [`rows`] covers finished rows of the database (jobs, idempotency keys). [`sessions`] covers
//! session directories, with their records and artifacts.

pub(crate) mod rows;
pub(crate) mod sessions;

/// Returns the amount to which each holder is reduced so that all together hold at most `limit`.
///
/// Max-min fairness: a holder that uses less than others loses nothing until those have come down
/// to its amount. Returns `u64::MAX` if all together are within the limit.
fn fair_share(amounts: impl Iterator<Item = u64>, limit: u64) -> u64 {
    let mut amounts: Vec<_> = amounts.collect();
    amounts.sort_unstable();

    let (mut remaining, mut holders) = (limit, amounts.len() as u64);
    for amount in amounts {
        let share = remaining / holders;
        if amount > share {
            return share;
        }

        remaining -= amount;
        holders -= 1;
    }
    u64::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_holders_are_reduced_first() {
        for (amounts, limit, expected) in [
            (&[][..], 10, u64::MAX),
            (&[10], 10, u64::MAX),
            (&[11], 10, 10),
            (&[1, 2, 100], 10, 7),
            (&[6, 6, 1], 10, 4),
            (&[5, 5, 5], 10, 3),
            (&[5, 5, 5], 0, 0),
            (&[u64::MAX, 1], u64::MAX, u64::MAX - 1),
        ] {
            let share = fair_share(amounts.iter().copied(), limit);
            assert_eq!(share, expected, "{amounts:?} {limit}");
        }
    }
}
