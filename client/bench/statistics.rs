//! Percentiles, ratios and targets.

use std::time::Duration;

/// Durations of repeated runs.
#[derive(Debug, Clone, Default)]
pub(super) struct Samples {
    sorted: Vec<Duration>,
}

/// A target of docs/performance.md, and its measurement.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BenchTarget {
    /// Description of the target.
    pub(super) label: &'static str,
    pub(super) measured: f64,
    pub(super) unit: TargetUnit,
    pub(super) bound: TargetBound,
    /// Stricter bound, which the measurement need not meet.
    pub(super) stretch: Option<TargetBound>,
}

/// Unit of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TargetUnit {
    /// Ratio of two measurements.
    Ratio,
    Milliseconds,
    Mebibytes,
    Count,
}

/// Allowed range of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum TargetBound {
    AtMost(f64),
    AtLeast(f64),
}

impl Samples {
    pub(super) fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self { sorted: times }
    }

    /// Returns a percentile by the nearest-rank method.
    pub(super) fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.sorted.len() * percent).div_ceil(100).max(1);
        self.sorted.get(rank - 1).copied().unwrap_or_default()
    }

    pub(super) fn p50(&self) -> Duration {
        self.percentile(50)
    }

    pub(super) fn p99(&self) -> Duration {
        self.percentile(99)
    }

    /// Returns the number of runs per second, one after the other.
    pub(super) fn per_second(&self) -> f64 {
        let total: Duration = self.sorted.iter().sum();
        ratio(self.sorted.len() as f64, total.as_secs_f64())
    }

    /// Returns the ratio of the medians.
    pub(super) fn ratio(&self, other: &Self) -> f64 {
        ratio(self.p50().as_secs_f64(), other.p50().as_secs_f64())
    }
}

impl BenchTarget {
    pub(super) fn verdict(&self) -> &'static str {
        match (self.bound.is_met_by(self.measured), self.stretch) {
            (false, _) => "missed",
            (true, Some(stretch)) if stretch.is_met_by(self.measured) => "met, stretch too",
            (true, _) => "met",
        }
    }

    pub(super) fn is_met(&self) -> bool {
        self.bound.is_met_by(self.measured)
    }
}

impl TargetBound {
    fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtMost(bound) => value <= bound,
            Self::AtLeast(bound) => value >= bound,
        }
    }
}

/// Divides two numbers. Returns NaN, which meets no target, if the divisor is 0.
pub(super) fn ratio(dividend: f64, divisor: f64) -> f64 {
    if divisor > 0.0 { dividend / divisor } else { f64::NAN }
}

/// Returns measurement and verdict of each target.
#[cfg(test)]
pub(super) fn target_verdicts(targets: &[BenchTarget]) -> Vec<(String, &'static str)> {
    let verdict = |target: &BenchTarget| (format!("{:.2}", target.measured), target.verdict());
    targets.iter().map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_use_nearest_rank() {
        let samples = Samples::new((1..=200).rev().map(Duration::from_millis).collect());
        assert_eq!(samples.p50(), Duration::from_millis(100));
        assert_eq!(samples.p99(), Duration::from_millis(198));
        let one = Samples::new(vec![Duration::from_millis(7)]);
        assert_eq!(one.p50(), one.p99());
        assert_eq!(Samples::default().p50(), Duration::ZERO);
    }

    #[test]
    fn verdicts_follow_the_bounds() {
        let target = |measured| BenchTarget {
            label: "p50",
            measured,
            unit: TargetUnit::Ratio,
            bound: TargetBound::AtMost(1.4),
            stretch: Some(TargetBound::AtMost(1.25)),
        };
        assert_eq!(target(1.5).verdict(), "missed");
        assert_eq!(target(1.4).verdict(), "met");
        assert_eq!(target(1.1).verdict(), "met, stretch too");
        assert_eq!(target(f64::NAN).verdict(), "missed");
        assert!(!TargetBound::AtLeast(3.0).is_met_by(2.9));
    }
}
