//! jig: `jigd`, a long-lived daemon that holds a workspace and serves tool calls on it to remote
//! agents over gRPC, and `jig`, its client. Commands run in namespace-isolated processes under
//! timeouts and output caps; every call is an OpenTelemetry span.
//!
//! This page is the architecture: the map, the life of a call, and what is always true.
//!
//! # Map
//!
//! ```text
//! proto/jig/v1/     the contract; tools, their limits and defaults are options in it
//! lib.rs            this page; `api` (generated), `client`, `daemon`
//! daemon/
//!   main.rs  mod.rs  start.rs     from arguments to serving, in an order that cannot be otherwise
//!   config/         file < environment < flags → checked types
//!   server/         listeners, peers, layers (trace, explain, panic, deadline, auth), health, reflection, drain
//!   door/           one per way in: typed gRPC, calls by name, catalog, jobs, processes, approvals, artifacts, events,
//!                   transfers, info; errors → statuses
//!   call/           the pipeline: access, context, request ids, policy, approvals, admission, drain, record; jobs, and calls by name
//!   dialect/        one file per tool vocabulary that agents already speak, over the tools below
//!   catalog/        tools and rules of fields, read from the descriptors; tools of the configuration; tools as vendors
//!                   of models want them
//!   tool/           one file per tool: typed request → typed response
//!   workspace/      files beneath a directory descriptor, never by path: read, search, change
//!   text/           changing text without a file: edits, patches, diffs, notebooks
//!   egress/         the proxy through which commands reach the hosts that the operator allows
//!   fetch/          fetching from the web, and pages as Markdown or text
//!   outside/        which hosts and addresses may be reached, for both
//!   process/        one command: spec, environment, input, output, stop ladder, outcome, supervision;
//!                   for those that are watched, the transcript, its readers, and the registry
//!   sandbox/        the processes that make sandboxes, the layers, levels, the pool; in seccomp/, the system calls of
//!                   commands, and the kernel flaws that these do not reach
//!   sys/            system calls; the only module with `unsafe`
//!   store/          state directory, database, request ids, jobs, approvals, rules, sessions, events, artifacts
//!   keys.rs         the key file, for `jig key`
//!   queue/          places that are given in turn to those who want them
//!   telemetry/      spans, names, propagation, logs
//! client/           `jig`: connection, subcommands, benchmarks; its library part is the Rust client
//! tests/            one binary that starts the real daemon; attack/ by the numbers of the catalogue
//! ```
//!
//! Imports run one way, downwards: `server → door → call → dialect → tool → {workspace, process, egress, fetch} →
//! text, outside, sandbox → sys`; `catalog` and `store` stand below `call`; `config`, `telemetry`, `error` and `task` are
//! used from above and use nothing above themselves. `tests/tidy.rs` reads the `use` lines and
//! fails on an arrow back up or a circle.
//!
//! # Vocabularies
//!
//! Every tool is an RPC of `ToolService`, with a request and an answer of its own, and each has a name.
//! `InvokeService` calls them by these names, with parameters as JSON; `CatalogService` tells models of them, in
//! the format of each vendor. A dialect is another vocabulary over the same tools: a table of its tools with
//! their parameters, and for each a function that calls tools of the contract by name and shapes their answers,
//! with the words of the dialect's document, also for what failed. It can do nothing else: each of its calls is
//! checked, decided about, admitted and recorded as any other, under both names.
//!
//! A further dialect is a file in `daemon/dialect/` with such a table, and a line in `dialect::ALL`. From then on
//! it is listed, called, made a job of and put into batches, and rules can name its tools.
//!
//! A vocabulary may borrow tools of the contract, and `wait_job`, which waits for a call that is pending, has the same
//! name in all of them. Texts for models leave out what `FieldRules` says is for programs; `data` has everything.
//!
//! A tool of the configuration (`catalog/custom.rs`) is a command with a name and a JSON Schema of its own, the same
//! in every vocabulary; a dialect can say how such tools answer. `run` does it in its name: it is checked, decided about and recorded as that tool.
//!
//! # Life of a call
//!
//! 1. `server` accepts the connection, and asks the kernel whose process is at the other end. Its layers
//!    give the call an id and a span, catch panics, keep the caller's deadline, and find out who calls, by
//!    the key that is shown or by the peer: who may not make this call is refused here.
//! 2. `door` takes the call's context from metadata and hands the typed request to the pipeline.
//! 3. `call` checks every field against the rules in the descriptors, and what cannot be seen from
//!    one field alone with the tool: all violations are told at once, and nothing was started.
//! 4. Where the call has a request id and changes something, the id is claimed in the database. Was it
//!    claimed before, the call gets the first one's answer, and waits for it as long as it must.
//! 5. The operator's policy decides: the call is let in, refused, or waits until somebody has decided
//!    about it, in a task that holds nothing else.
//! 6. A permit is taken. From here on the work belongs to a task of its own, which is polled to its
//!    end; a caller that goes away ends its wait, and the task is told to stop.
//! 7. The session records that the call starts. The tool's span begins.
//! 8. The tool does its work. `run` takes a warm sandbox from the workspace's pool, sends the
//!    command in, reads what it writes, and waits until the sandbox says that the command has ended
//!    and everything that it left behind is gone.
//! 9. The session records how the call ended; the permit is given back; the answer is kept for those
//!    who repeat the call; the caller is answered.
//!
//! `ProcessService.Start` goes the same way, as the tool `run`, and does not wait at step 8: its
//! caller, and whoever attaches, reads the process's transcript, which step 9 ends.
//!
//! A job goes the same way from step 3 on when its turn comes, as whoever submitted it; its parameters
//! come as JSON, and its answer goes into an envelope that is kept.
//!
//! # Always true
//!
//! * **A command that ran is a result, never an error.** Errors are about what the daemon could not
//!   do.
//! * **No request can weaken isolation**, and there is no second, weaker way: a step of building a
//!   sandbox that fails is reported by name, and the command is not run.
//! * **The daemon never forks.** Sandboxes are made by processes that were started before it had
//!   threads; it talks to each sandbox through a socket and a pidfd.
//! * **A caller's path is never opened by name.** The kernel resolves it beneath the workspace's
//!   descriptor. Behind that, where the kernel has Landlock, the daemon can change nothing but its
//!   workspaces and its state, and make and remove sockets where it listens; and beside them it can
//!   read `/etc`, `/lib`, `/proc`, `/run`, `/usr` and devices, and the folders in which its configuration
//!   file, its key file and the links to them lie, with all that is below: these files are replaced by
//!   others, so that a rule for them alone would not last. Nothing else.
//! * **A change of files is made whole or not at all**, also when the daemon dies in the middle:
//!   what it will do is in a journal first, and the next start undoes what was half done.
//! * **A call with a request id is done once.** Its id is claimed on disk before it begins; one whose
//!   daemon died is told to be lost, and never done again.
//! * **A job that was acknowledged is done once, or lost.** It is on disk before it is acknowledged, and
//!   known to run before it runs; what ran when the daemon died is told to be lost.
//! * **What a caller may not see is not there for him**: not in lists, and not in the texts of errors.
//! * **A call that waits to be approved ends in one way**, which is on disk before the call goes on. What
//!   may be secret of it is shown to nobody and kept nowhere.
//! * **A stream of a process ends with its one `exited`, or with an error.** Nothing is invented: a
//!   process that was lost has no end that could be told.
//! * **Nothing waits for a pipe to close.** A run is over when its sandbox says so, or its init's
//!   pidfd does; who else holds the pipe does not matter.
//! * **Nothing polls on a call's path.** What is waited for is an event; the only timers are limits,
//!   the watchdog of memory where no cgroup counts it, and what lowers the CPU share of a run that
//!   lasts, both beside the call.
//! * **Everything is bounded**, by a constant or a setting with a name; what is dropped is counted.
//! * **A tool is described once**, in its proto. Names, limits and defaults are read from there.
//! * **`unsafe` lives in `daemon/sys`**, nowhere else.
//! * Deliberately absent: a way to run a command without a sandbox, on request or by falling back.

pub mod api;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "daemon")]
pub mod daemon;
