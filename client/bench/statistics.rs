//! Percentiles and ratios, and whether they meet the design's targets.

use std::time::Duration;

/// Times of single runs.
#[derive(Debug, Clone, Default)]
pub(super) struct Samples {
    sorted: Vec<Duration>,
}

/// Something that the design promises, and what was measured.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BenchTarget {
    /// What is promised.
    pub(super) promise: &'static str,
    pub(super) measured: f64,
    pub(super) unit: TargetUnit,
    pub(super) bound: TargetBound,
    /// What is hoped for beyond the promise.
    pub(super) stretch: Option<TargetBound>,
}

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TargetUnit {
    /// Times something else.
    Ratio,
    Milliseconds,
    Mebibytes,
    /// Things.
    Count,
}

/// Where a number must lie.
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

    /// The time that so many percent of the runs did not exceed (nearest rank).
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

    /// How many there are in a second, one after the other.
    pub(super) fn per_second(&self) -> f64 {
        let total: Duration = self.sorted.iter().sum();
        ratio(self.sorted.len() as f64, total.as_secs_f64())
    }

    /// How many times the median of the other its median is.
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
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }
}

/// One by the other; not a number when there is nothing to divide by, which meets no target.
pub(super) fn ratio(one: f64, other: f64) -> f64 {
    if other > 0.0 { one / other } else { f64::NAN }
}

/// The numbers of targets and what is said of them.
#[cfg(test)]
pub(super) fn target_verdicts(targets: &[BenchTarget]) -> Vec<(String, &'static str)> {
    let verdict = |target: &BenchTarget| (format!("{:.2}", target.measured), target.verdict());
    targets.iter().map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let samples = Samples::new((1..=200).rev().map(Duration::from_millis).collect());
        assert_eq!(samples.p50(), Duration::from_millis(100));
        assert_eq!(samples.p99(), Duration::from_millis(198));
        let one = Samples::new(vec![Duration::from_millis(7)]);
        assert_eq!(one.p50(), one.p99());
        assert_eq!(Samples::default().p50(), Duration::ZERO);
    }

    #[test]
    fn verdicts() {
        let target = |measured| BenchTarget {
            promise: "p50",
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
