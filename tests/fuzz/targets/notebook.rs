//! See `jig::daemon::fuzz::notebook`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jig::daemon::fuzz::notebook(data));
