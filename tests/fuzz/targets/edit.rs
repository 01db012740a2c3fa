//! See `jig::daemon::fuzz::edit`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jig::daemon::fuzz::edit(data));
