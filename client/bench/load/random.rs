//! Pseudorandom choices, repeatable by their seed.

use std::time::Duration;

/// Percentiles of the duration of agents' commands, and both ends of the range.
const COMMAND_SECONDS: [(f64, f64); 5] =
    [(0.0, 0.005), (0.5, 0.08), (0.9, 5.9), (0.99, 230.0), (1.0, 600.0)];

/// Pseudorandom numbers (SplitMix64).
#[derive(Debug, Clone)]
pub(super) struct SeededRandom(u64);

impl SeededRandom {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// Returns a number from 0 to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns the duration of a command: between two percentiles, its logarithm is uniform.
    pub(super) fn command_time(&mut self, scale: f64) -> Duration {
        command_time_at(self.unit()).mul_f64(scale)
    }
}

fn command_time_at(quantile: f64) -> Duration {
    for pair in COMMAND_SECONDS.windows(2) {
        if let &[(low, shortest), (high, longest)] = pair
            && quantile <= high
        {
            let part = (quantile - low) / (high - low);
            return Duration::from_secs_f64(shortest * (longest / shortest).powf(part));
        }
    }
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_times_have_the_percentiles_of_agents() {
        let mut random = SeededRandom::new(1);
        let mut times: Vec<_> = (0..100_000).map(|_| random.command_time(1.0)).collect();
        times.sort_unstable();
        for (rank, expected) in [(50_000, 0.08), (90_000, 5.9), (99_000, 230.0)] {
            let ratio = times[rank].as_secs_f64() / expected;
            assert!((0.8..1.25).contains(&ratio), "{rank}: {ratio}");
        }
    }
}
