//! The integration tests: one binary. Each test of behaviour starts the real daemon in a directory
//! of its own and talks to it as its users do.
//!
//! Those run as root, which sees every process and can start the daemon as anybody, and they need
//! `gcc`, `git`, `curl`, `openssl`, `unshare`, `setpriv`, `ip`, `strip`, Python with pip in `/usr`, and
//! what the scripts `install.sh` beside them put there: ripgrep, crun, qemu and two kernels.
//! Nothing is skipped: a machine that cannot build sandboxes fails here. `JIG_TEST_PATIENCE_SEC`
//! says how long to wait for what must happen (20 s), and `JIG_FULL=1` has tests run at full size.
//! `JIG_TEST_CONTAINER=docker` or `podman` starts every daemon of root's in a container of that
//! engine's defaults; `attack::containers` says what holds there.

#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "tests name what they expect; everything else fails"
)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests start the daemon, the programs that attack it and their own tasks themselves"
)]

/// When calls may begin, and whose turn it is.
mod admission;
/// What the operator lets in, and who is asked.
mod approvals;
/// What a hostile command tries, by the numbers of the catalogue of attacks.
mod attack;
/// Clients that send a socket's path as authority.
mod authority;
/// Requests that are refused before anything is started.
mod bad_input;
/// Who may call, and what.
mod callers;
/// The reference of the command line.
mod cli_page;
/// Tools that are called by their names, with the command `jig`.
mod cli_tools;
/// The command `jig`.
mod client;
/// The documentation of the configuration.
mod configuration_page;
/// What the daemon itself may touch.
mod confinement;
/// The rules that the contract keeps, and its compatibility.
mod contract;
/// Tools of the configuration.
mod custom_tools;
/// Which daemon `jig` uses where none is named.
mod daemon_discovery;
/// Commands that have a network.
mod egress;
/// What goes on in sessions, for those who watch.
mod events;
/// Fetching from the web.
mod fetch;
/// The tools that read and change files.
mod files;
/// How the daemon reports that it is well.
mod health;
/// As whom commands run, and to whom the files belong that they make.
mod identity;
/// Calls by the names of their tools, in any dialect, one or several at a time.
mod invoke;
/// What a command is and sees: the promise of the sandbox, looked at from inside and from outside.
mod isolation;
/// Calls that nobody waits for.
mod jobs;
/// Other kernels than the host's.
mod kernels;
/// Hosts that do not give the highest level of isolation.
mod levels;
/// What ends a run from outside: deadlines, shutting down.
mod lifecycle;
/// Limits of runs.
mod limits;
/// Calls that are refused before there is a request.
mod malformed;
/// Commands that are watched and fed while they run.
mod processes;
/// Random requests, by every door.
mod property;
/// What developers run every day.
mod real_work;
/// Calls with a request id: done once, answered as often as they are repeated.
mod requests;
/// The contract of `Run` for commands that mean no harm.
mod run;
/// `jig run`, and every byte that its command writes.
mod run_streams;
/// A host that cannot isolate commands: none is run.
mod sandbox_unavailable;
/// What the source documents ask for, row by row.
mod seeds;
/// Sessions: their records, their numbers, their artifacts.
mod sessions;
/// Starting a daemon: what it refuses, and what it takes care of.
mod start;
/// Starting daemons, calling them, and looking at what they leave behind.
mod support;
/// What a collector is told.
mod telemetry;
/// The command `jig` on a terminal.
mod terminal;
/// The rules of this repository.
mod tidy;
/// Several workspaces of one daemon.
mod workspaces;
