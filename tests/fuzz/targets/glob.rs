//! See `jig::daemon::fuzz::glob`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jig::daemon::fuzz::glob(data));
