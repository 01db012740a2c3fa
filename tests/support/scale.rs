//! Sizes of tests.

use std::env;

/// Returns `full` if the environment has `JIG_FULL=1`, else `scaled`.
pub(crate) fn full_size(full: usize, scaled: usize) -> usize {
    match env::var("JIG_FULL").as_deref() {
        Ok("1") => full,
        _ => scaled,
    }
}
