//! The `jigd` binary.
#![forbid(unsafe_code)]

use std::process::ExitCode;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    jig::daemon::run_keeper_if_invoked();
    jig::daemon::main("jigd", std::env::args_os().skip(1).collect())
}
