//! Random requests of every tool. All frontends read a request alike, and reject an invalid one for
//! the same reason.
//!
//! Each case has a seed, which a failed test prints: `JIG_PROPERTY_SEED` repeats that case alone.
//! Without it, each run tries new cases; with `JIG_FULL=1`, many of them.

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

/// One case of a property. If the test panics during the case, dropping it prints the seed.
#[derive(Debug)]
struct Case {
    name: String,
    seed: u64,
}

impl Case {
    /// Returns a case and the random number generator that determines it.
    fn new(name: &str, seed: u64) -> (Self, Rng) {
        let name = name.to_owned();
        (Self { name, seed }, Rng::with_seed(seed))
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        if thread::panicking() {
            let Self { name, seed } = self;
            eprintln!("{name}: JIG_PROPERTY_SEED={seed} repeats this case");
        }
    }
}

/// Seeds of the cases to try: `full` of them in a full test, otherwise `scaled`.
fn case_seeds(full: usize, scaled: usize) -> Vec<u64> {
    match env::var("JIG_PROPERTY_SEED") {
        Ok(seed) => vec![seed.parse().expect("JIG_PROPERTY_SEED must be a number")],
        Err(_) => (0..full_size(full, scaled)).map(|_| fastrand::u64(..)).collect(),
    }
}
