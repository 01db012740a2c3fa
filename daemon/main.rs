//! `jigd`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    jig::daemon::become_keeper_if_asked();
    jig::daemon::main("jigd", std::env::args_os().skip(1).collect())
}
