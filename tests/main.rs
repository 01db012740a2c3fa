//! The integration tests, in one binary. Each test of behaviour starts the real daemon in a
//! directory of its own and calls it like a client.
//!
//! The tests run as root, which sees every process and can start the daemon as any user. They need
//! `gcc`, `git`, `curl`, `openssl`, `unshare`, `setpriv`, `ip`, `strip`, Python with pip in `/usr`,
//! and what the `install.sh` scripts of their directories install: ripgrep, crun, qemu, two kernels
//! and a NATS server. No test is skipped: on a machine that cannot build sandboxes, tests fail.
//!
//! `JIG_TEST_TIMEOUT_SEC` is the timeout of waits (20 s by default). `JIG_FULL=1` runs tests with
//! full sizes and numbers of rounds. `JIG_TEST_CONTAINER=docker` or `podman` starts every root
//! daemon in a container with the defaults of that engine. `attack::containers` lists what holds
//! there. `JIG_TEST_RECYCLE=off` builds a sandbox for each run, and `hostile` makes hostile runs
//! before those of each test.

#![allow(clippy::wildcard_enum_match_arm, reason = "tests name expected values; all others fail")]
#![expect(clippy::unwrap_used, reason = "a test that cannot continue fails")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests start the daemon, the programs that attack it and their own tasks themselves"
)]

/// Rates, permits and queues of calls.
mod admission;
/// The API of the Kubernetes agent-sandbox runtime.
mod agent_sandbox;
/// Policy rules and approvals.
mod approvals;
/// Attacks of hostile commands.
mod attack;
/// The audit log.
mod audit;
/// Clients that send a socket path as authority.
mod authority;
/// Requests that are rejected before anything starts.
mod bad_input;
/// Load with faults.
mod bench;
/// Authentication and authorization of callers.
mod callers;
/// The reference page of the command line.
mod cli_page;
/// Calls of tools with the command `jig`.
mod cli_tools;
/// The command `jig`.
mod client;
/// The reference page of the configuration.
mod configuration_page;
/// Confinement of the daemon itself.
mod confinement;
/// Rules and compatibility of the contract.
mod contract;
/// Workspaces that callers create.
mod created_workspace_bounds;
mod created_workspaces;
/// Tools defined in the configuration.
mod custom_tools;
/// Which daemon `jig` uses if none is named.
mod daemon_discovery;
/// Commands with a network.
mod egress;
/// The reference page of errors.
mod errors_page;
/// Events, results and retention of sessions.
mod events;
/// Fetching from the web.
mod fetch;
/// Watches of files.
mod file_watches;
/// Tools that read and change files.
mod files;
/// Jobs from the queues of fleets.
mod fleet;
/// Connections to ports of processes.
mod forward;
/// Health reports of the daemon.
mod health;
/// Ways in over HTTP beside gRPC.
mod http;
/// The user of commands and the owner of their files.
mod identity;
/// Calls by tool name, in every dialect, single and in batches.
mod invoke;
/// What a command is and sees in the sandbox.
mod isolation;
/// Jobs: calls without a waiting caller.
mod jobs;
/// Kernels other than that of the host.
mod kernels;
/// Hosts without the highest isolation level.
mod levels;
/// Deadlines and shutdown.
mod lifecycle;
/// Limits of runs.
mod limits;
/// Listeners: ages of connections, shutdown, health checks and abuse.
mod listeners;
/// Calls that are rejected before their message is decoded.
mod malformed;
/// MCP over standard input and output.
mod mcp;
/// Processes: commands with streamed input and output.
mod processes;
/// Random requests through every interface.
mod property;
/// Everyday work of developers.
mod real_work;
/// Request ids: repeated calls run once.
mod requests;
/// The contract of `Run` for ordinary commands.
mod run;
/// Output of `jig run`, complete and live.
mod run_streams;
/// Hosts that cannot isolate commands: no command runs.
mod sandbox_unavailable;
/// Requirements of the source documents, row by row.
mod seeds;
/// Messages to the service manager.
mod service_manager;
/// Sessions: records, step numbers and artifacts.
mod sessions;
/// Named shells.
mod shells;
/// Starting a daemon.
mod start;
/// Helpers: starting daemons, calling them, and inspecting their state.
mod support;
/// The shipped units under systemd.
mod systemd;
/// Traces, metrics and logs.
mod telemetry;
/// The command `jig` on a terminal.
mod terminal;
/// Rules of this repository.
mod tidy;
/// TLS: certificates, reload and clients.
mod tls;
/// State of other versions, and backups.
mod upgrade;
/// Shells that were executed before their command is known.
mod warm_shells;
/// The same effects by every way in.
mod ways_in;
/// Several workspaces of one daemon.
mod workspaces;
