//! See `jig::daemon::fuzz::archive`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jig::daemon::fuzz::archive(data));
