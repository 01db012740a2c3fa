//! The `jigd` binary.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    jig::daemon::run_keeper_if_invoked();
    jig::daemon::main("jigd", std::env::args_os().skip(1).collect())
}
