//! jig runs the tools of AI agents. `jigd` is a daemon that owns a directory, the *workspace*, and
//! serves tool calls on it over gRPC: read, search and change files, run commands. Each command
//! runs in a sandbox of its own, under time and output limits; each call is an OpenTelemetry span.
//! `jig` is the client.
//!
//! This page is the architecture: the map of the source, the life of a call, and the invariants.
//!
//! # Map
//!
//! ```text
//! proto/jig/v1/     the contract; the tools with their limits and defaults are options in it
//! lib.rs            this page
//! api/              types generated from the contract, its descriptors, JSON ⇄ google.protobuf.Struct
//! daemon/
//!   main.rs start.rs  from arguments to serving
//!   config/         file < environment < flags → checked types
//!   server/         listeners, peers, layers (trace, errors, panic, deadline, auth, body limits), health
//!   grpc/           one file or folder per gRPC service; errors → statuses
//!   pipeline/       what every call passes: validation, idempotency, policy, approval, admission, records;
//!                   jobs, batches and calls by name
//!   dialect/        one file per tool vocabulary that agents already speak
//!   catalog/        tools and field rules, read from the descriptors; configured tools; vendor renderings
//!   tool/           one file per tool: typed request → typed response
//!   workspace/      files, resolved beneath a directory descriptor: read, search, change
//!   text/           edits, patches, diffs and notebooks, as pure functions
//!   fetch/          fetching from the web; HTML → Markdown
//!   egress/         the proxy through which commands reach allowed hosts
//!   netpolicy/      allowed hosts and addresses, for both
//!   process/        one command: specification, input, output, stop sequence, supervision, replay
//!   sandbox/        the processes that build sandboxes, isolation levels, the pool; system call filters
//!   sys/            raw system calls; the only module with `unsafe`
//!   store/          state directory: database, sessions, events, artifacts
//!   queue/          fair queues and limiters over callers
//!   telemetry/      spans, attribute names, propagation, logs
//! client/           `jig`: connection, subcommands, benchmarks; its library part is the Rust client
//! tests/            one binary that starts the real daemon; attack/ by the numbers of the attack catalogue
//! ```
//!
//! Imports run downwards: `server → grpc → pipeline → dialect → tool → {workspace, process, egress,
//! fetch} → text, netpolicy, sandbox → sys`. `catalog` and `store` are below `pipeline`; `config`,
//! `telemetry`, `error` and `task` are below everything that uses them. `tests/tidy.rs` reads the
//! `use` lines and fails on an import that runs upwards and on a cycle.
//!
//! # Vocabularies
//!
//! Every tool is an RPC of `ToolService` with its own request and response. `InvokeService` calls
//! the same tools by name, with JSON parameters; `CatalogService` describes them to models in each
//! vendor's format.
//!
//! A *dialect* is another vocabulary over the same tools: a table of tool names and parameters, and
//! for each a function that calls tools of the contract and shapes their responses. A dialect has
//! no other abilities: each of its calls is validated, authorized, admitted and recorded like any
//! other, under both names. To add one, write a file in `daemon/dialect/` with such a table, and
//! add a line to `dialect::ALL`.
//!
//! A *configured tool* (`[[tools]]`, `catalog/custom.rs`) is a command with a name and a JSON
//! Schema. Its calls run as `run` does, but are authorized and recorded under their own name.
//!
//! # Life of a call
//!
//! 1. **Connection.** `server` accepts it and asks the kernel for the peer's credentials. Its
//!    layers assign a call id, start the RPC's span, catch panics, parse the deadline, and
//!    authenticate the caller by key or by credentials.
//! 2. **Context.** `grpc` reads the metadata into the call's context and passes the typed request
//!    on.
//! 3. **Validation.** `pipeline` checks each field against the rules in the descriptors; then the
//!    tool checks what takes several fields. The error lists up to 20 violations.
//! 4. **Idempotency.** If the call changes something and has a request id, the id is claimed in the
//!    database. A repeat waits for the first call's response and returns it.
//! 5. **Policy.** The operator's rules allow the call, deny it, or require approval. A call that
//!    waits for approval holds no permit.
//! 6. **Admission.** The call waits for a permit, fairly among callers. If it has waited here or for
//!    approval, it is authorized again: keys and rules may have changed.
//! 7. **Record.** The session's event log gets the start of the call. The tool's span begins.
//! 8. **Execution.** The tool runs in a task of its own. A caller that disconnects cancels it; with a
//!    request id the call continues for `requests.detached_timeout`. `run` takes an idle sandbox
//!    from the workspace's pool, sends it the command, reads its output, and waits until every
//!    process of the sandbox is gone.
//! 9. **Response.** The event log gets the end. The permit is released, the response is stored for
//!    repeats, and the caller gets it.
//!
//! `ProcessService.Start` passes the same steps as the tool `run`, and returns a stream instead of
//! waiting in step 8. It is rejected at once if too many processes run. A job passes steps 3 to 9 when its turn in the queue comes, as the caller
//! that submitted it.
//!
//! # Dependencies
//!
//! | crates | use |
//! |---|---|
//! | tokio, tonic, hyper, tower | runtime, gRPC and the layers of the server |
//! | prost, prost-reflect, protox | messages; descriptors with their options; compiling the protos |
//! | rustix, libc | system calls; numbers and constants of the kernel |
//! | rusqlite | requests, jobs, approvals and rules in the state directory |
//! | ignore, globset, grep-*, regex | walks and searches as ripgrep's |
//! | similar, strsim | diffs; similar lines and names in errors |
//! | reqwest, rustls, url, htmd, encoding_rs | `fetch_url`: HTTP, TLS, HTML to Markdown, character sets |
//! | jsonschema, toml, serde | parameters of configured tools; configuration |
//! | opentelemetry, tracing | spans and logs |
//! | clap, indicatif, anstream | command line, progress and colours of `jig` |
//!
//! Sandbox processes share memory with the process that starts them, until they execute the command.
//! There a system call must neither allocate nor write `errno`, which is thread-local storage of the
//! parent. rustix makes such calls; `nix` and `caps` go through libc. `caps` also drops only the
//! capabilities that it knows by name, while `sandbox/capabilities.rs` drops all that the kernel has.
//!
//! # Invariants
//!
//! * **A command that ran is a result, not an error.** Errors report what the daemon could not do.
//! * **No request weakens isolation.** There is no fallback: if a step of building a sandbox fails,
//!   the error names the step, and the command does not run.
//! * **The daemon does not fork.** Processes that started before it had threads build the
//!   sandboxes. The daemon talks to each sandbox over a socket and a pidfd.
//! * **Caller paths are not opened by name.** The kernel resolves them beneath the workspace's
//!   descriptor (`openat2`, RESOLVE_BENEATH). With Landlock of Linux 5.19 or newer, `jigd`
//!   itself can write only to its workspaces, its state directory, its socket directories and the
//!   cgroups of its runs. It can read these, system directories (`/etc`, `/lib`, `/proc`, `/run`,
//!   `/usr`, devices) and the directories of its configuration and key files.
//! * **File changes are atomic**, also when the daemon dies in the middle: a journal lists the
//!   steps before the first, and the next start undoes what is incomplete.
//! * **A request id is executed once.** It is claimed on disk before execution. If the daemon dies
//!   during execution, repeats return `DAEMON_LOST`; the call is not executed again.
//! * **An acknowledged job is executed once, or lost.** It is on disk before it is acknowledged,
//!   and marked as running before it runs.
//! * **No information leaks across permissions.** Resources that a caller may not access are absent
//!   from lists and from error messages.
//! * **An approval ends once.** Its end is on disk before the call proceeds. Secrets are neither
//!   shown to approvers nor stored.
//! * **A process stream ends with one `exited` event or with an error.** A lost process has no
//!   invented exit.
//! * **The end of a run does not depend on its pipes.** A run is over when its sandbox reports so
//!   or its init's pidfd becomes readable, even if another process still holds a pipe.
//! * **Nothing polls on a call's path.** Timers are for limits, for the memory watchdog without
//!   cgroups, for the CPU weight of long runs, and for retries when descriptors run out. A network
//!   namespace is checked up to 20 times, 1 ms apart, before it is reused.
//! * **Everything is bounded** by a named constant or a setting. Dropped data is counted.
//! * **A tool is described once**, in its proto file: names, limits and defaults are read from
//!   there.
//! * **`unsafe` occurs in `daemon/sys` alone.**
//! * Deliberately absent: a way to run a command without a sandbox.

pub mod api;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "daemon")]
pub mod daemon;
