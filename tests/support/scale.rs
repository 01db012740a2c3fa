//! How much a test does.

use std::env;

/// `full` where the environment has `JIG_FULL=1`, else `scaled`.
pub(crate) fn full_size(full: usize, scaled: usize) -> usize {
    match env::var("JIG_FULL").as_deref() {
        Ok("1") => full,
        _ => scaled,
    }
}
