//! The integration tests: one binary.

#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "tests name what they expect; everything else fails"
)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod contract;
mod tidy;
