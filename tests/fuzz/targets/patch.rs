//! See `jig::daemon::fuzz::patch`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jig::daemon::fuzz::patch(data));
