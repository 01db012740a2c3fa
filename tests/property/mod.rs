//! Random requests of every tool: each door reads the same out of them, and refuses for the same reason
//! what breaks a rule.
//!
//! Each case has a seed, which a failed test names: `JIG_PROPERTY_SEED` repeats it alone. Without it, each run
//! tries other cases; `JIG_FULL=1` has it try many.

mod contract;
mod dialects;
mod faults;
mod fixture;
mod frontends;
mod generators;
mod invalid;
mod json_variants;
mod valid;
mod validity;

use std::{env, thread};

use fastrand::Rng;

use crate::support::full_size;

/// One case of a property: if the test fails meanwhile, its seed is told.
#[derive(Debug)]
struct Case {
    what: String,
    seed: u64,
}

impl Case {
    /// A case, and the numbers that it is made of.
    fn new(what: &str, seed: u64) -> (Self, Rng) {
        let what = what.to_owned();
        (Self { what, seed }, Rng::with_seed(seed))
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        if thread::panicking() {
            let Self { what, seed } = self;
            eprintln!("{what}: JIG_PROPERTY_SEED={seed} repeats this case");
        }
    }
}

/// The seeds of the cases to try: so many at full size, and so many otherwise.
fn case_seeds(full: usize, scaled: usize) -> Vec<u64> {
    match env::var("JIG_PROPERTY_SEED") {
        Ok(seed) => vec![seed.parse().expect("JIG_PROPERTY_SEED is a number")],
        Err(_) => (0..full_size(full, scaled)).map(|_| fastrand::u64(..)).collect(),
    }
}
