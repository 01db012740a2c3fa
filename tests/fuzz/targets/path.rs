//! See `jig::daemon::fuzz::path`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jig::daemon::fuzz::path(data));
