//! The integration tests: one binary.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod contract;
mod tidy;
