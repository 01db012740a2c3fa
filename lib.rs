//! jig runs the tools of AI agents. `jigd` is a daemon that owns a directory, the *workspace*, and
//! serves tool calls on it over gRPC, HTTP and MCP: read, search and change files, run commands. Each command
//! runs in a sandbox of its own, under time and output limits; each call is an OpenTelemetry span.
//! `jig` is the client.
//!
//! This page is the architecture: the map of the source, the life of a call, and the invariants.
//!
//! # Map
//!
//! ```text
//! proto/jig/v1/     the contract; the tools with their limits and defaults are options in it
//! proto/process/v1/ the process service of the Kubernetes agent-sandbox runtime
//! lib.rs            this page
//! api/              types generated from the contract, its descriptors, reasons of errors, JSON ⇄
//!                   google.protobuf.Struct
//! archive/          tar archives of trees: parsing, checks and writing, without access to files
//! daemon/
//!   main.rs start.rs start/  from arguments to serving
//!   key_admin.rs    `jigd key`: API keys in the key file
//!   config/         file < environment < flags → checked types
//!   server/         listeners, TLS, peers, layers (trace, errors, panic, deadline, auth, body limits), health,
//!                   the service manager
//!   agent_sandbox/  the agent-sandbox runtime: processes over gRPC, files over REST
//!   http/           the ways in beside gRPC: Connect, REST, events, MCP; each becomes calls of gRPC
//!   grpc/           one file or directory per gRPC service; errors → statuses
//!   fleet/          queues of jobs that several daemons share, on NATS or PostgreSQL
//!   pipeline/       what every call passes: validation, idempotency, policy, approval, admission, records;
//!                   jobs, batches and calls by name
//!   dialect/        one file per dialect: names and parameters of tools that models know
//!   catalog/        tools and field rules, read from the descriptors; custom tools; vendor renderings
//!   tool/           one file per tool: typed request → typed response
//!   workspace/      files, resolved beneath a directory descriptor: read, search, change
//!   text/           edits, patches, diffs and notebooks, as pure functions
//!   fetch/          fetching from the web; HTML → Markdown
//!   egress/         the proxy through which commands reach allowed hosts
//!   netpolicy/      allowed hosts and addresses, for both
//!   process/        one command: specification, input, output, stop sequence, supervision, replay
//!   sandbox/        the processes that build sandboxes, isolation levels, the pool; system call filters
//!   sys/            raw system calls; the only module with `unsafe`. `arch` depends on the processor
//!   store/          state directory: database, sessions, events, artifacts
//!   queue/          fair queues and limiters over callers
//!   telemetry/      spans, metrics, attribute names, propagation, logs, the audit log
//!   error.rs error/ errors of calls: reasons, messages, suggestions
//!   task.rs checksum.rs fd_exhaustion.rs  tasks; SHA-256; waiting for file descriptors
//!   fuzz.rs         entry points of the fuzz targets
//! mcp/              the MCP server, a client of the contract: `jig mcp`, and `/mcp` over HTTP
//! client/           `jig`: connection, subcommands, benchmarks; its library part is the Rust client
//! deploy/           releases, images, manifests, units, monitoring
//! tests/            one binary that starts the real daemon; attack/ by the numbers of the attack catalogue
//! ```
//!
//! Imports run downwards: `server → agent_sandbox → http → grpc → fleet → pipeline → dialect → tool →
//! {workspace, process, egress, fetch} → {netpolicy, text} → {catalog, store} → sandbox → sys`.
//! `config`, `telemetry`, `queue`, `task` and `error` are below everything that uses them.
//! `tests/tidy.rs` reads the `use` lines and fails on an import that runs upwards and on a cycle.
//! Its `EXCEPTIONS` allow `config` to use plain data of `netpolicy` and `sandbox`.
//!
//! # Dialects
//!
//! Every tool is an RPC of `ToolService` with its own request and response. `InvokeService` calls
//! the same tools by name, with JSON parameters; `CatalogService` describes them to models in each
//! vendor's format.
//!
//! A *dialect* is another set of names over the same tools: a table of tool names and parameters.
//! For each tool, a function calls tools of the contract and shapes their responses. A dialect has
//! no other abilities: each of its calls is validated, authorized, admitted and recorded like any
//! other, under both names. To add one, write a file in `daemon/dialect/` with such a table, and
//! add a line to `DIALECTS` in `daemon/dialect/mod.rs`.
//!
//! A *custom tool* (`[[tools]]`, `catalog/custom.rs`) is a command with a name and a JSON Schema.
//! Its calls run as `run` does, but are authorized and recorded under their own name.
//!
//! # Life of a call
//!
//! 1. **Receive.** `server` accepts the connection and asks the kernel for the peer's credentials.
//!    `http` turns a request of another protocol into a call of gRPC. The layers of `server` assign
//!    a call id, start the RPC's span, catch panics, parse the deadline, and authenticate the caller
//!    by key, certificate or credentials. `grpc` reads the metadata into the call's context.
//! 2. **Validate.** Each field is checked against the rules in the descriptors. Then the tool
//!    checks rules over several fields. The error lists up to 20 violations (`INVALID_PARAMS`).
//! 3. **Claim.** If the call changes something and has a request id, it claims the id in the
//!    database. A duplicate waits for the first call's reply and returns it. A different call with
//!    the same id is an error (`REQUEST_ID_REUSED`).
//! 4. **Authorize.** The operator's policy allows the call, denies it, or asks a person for
//!    approval (`TOOL_DISABLED`, `POLICY_DENIED`, `APPROVAL_DENIED`). A call that waits for
//!    approval holds no permit.
//! 5. **Admit.** The call waits for its permits, fairly among callers (`RESOURCE_EXHAUSTED`,
//!    `DRAINING`).
//! 6. **Reauthorize.** Keys and rules may have changed while the call waited. The key must still be
//!    valid, and the policy must still allow the call (`UNAUTHENTICATED`, `POLICY_DENIED`).
//! 7. **Record the start.** The session's event log gets `tool_call_started`, and the tool's span
//!    begins (`NO_SPACE`). A call that is rejected before this point has started nothing.
//! 8. **Execute.** The tool runs in a task of its own. A caller that disconnects cancels it; with a
//!    request id, the call continues for `requests.detached_timeout`. `run` takes an idle sandbox
//!    from the workspace's pool, sends it the command, reads its output, and waits until every
//!    process of the run is gone.
//! 9. **Record the end and reply.** The event log gets `tool_call_finished`, the audit log a line, the
//!    span ends, and the permits are released. The reply is stored for duplicates, and the caller gets it.
//!
//! `pipeline` takes steps 2 to 9 in this order for every frontend.
//!
//! `ProcessService.Start` takes the steps of the tool `run`, with three differences. It is rejected
//! at once if too many processes run. It returns a stream instead of waiting in step 8. And its
//! process may wait for a sandbox after step 5, so that callers can see and end it.
//!
//! Submitting a job runs steps 1 and 2, and step 3 if it has a request id. When the job starts, the
//! pipeline validates it again and runs steps 4 to 9, with the permissions that its caller has then.
//!
//! # Dependencies
//!
//! | crates | use |
//! |---|---|
//! | tokio, tonic, hyper, tower | runtime, gRPC and the layers of the server |
//! | prost, prost-reflect, protox | messages; descriptors with their options; compiling the protos |
//! | nix, caps, rustix, libc | system calls; numbers and constants of the kernel |
//! | rusqlite | requests, jobs, approvals and rules in the state directory |
//! | ignore, globset, grep-*, regex | walks and searches as ripgrep's |
//! | similar, strsim | diffs; similar lines and names in errors |
//! | rustls, tokio-rustls, x509-cert | TLS; names in client certificates |
//! | tar, ruzstd | fields of tar headers; Zstandard in Rust |
//! | reqwest, url, htmd, encoding_rs | `fetch_url`: HTTP, HTML to Markdown, character sets |
//! | jsonschema, toml, serde | parameters of custom tools; configuration |
//! | opentelemetry, prometheus, tracing | spans, metrics and logs |
//! | rmcp | the Model Context Protocol |
//! | async-nats, nkeys, hmac | queues of a fleet, and the signatures of their jobs |
//! | tokio-postgres | queues of a fleet in PostgreSQL |
//! | clap, indicatif, anstream | command line, progress and colours of `jig` |
//!
//! The process decides which crate makes a system call. In ordinary processes (daemon, keeper,
//! launcher, template) `nix` sets resource limits, enters namespaces and unblocks signals, and `caps`
//! reads and drops capabilities. rustix makes the other calls, in every process. The processes of a
//! sandbox share memory with the process that starts them, until they execute the command. There a
//! system call must neither allocate nor write `errno`, which is thread-local storage of the parent.
//! rustix and `sys` make such calls; `nix` and `caps` go through libc. Two loops stay. `caps` drops
//! only capabilities that it knows by name, and `sandbox/capabilities.rs` drops all that the kernel
//! has. `nix` has no real-time signals, and `sys/signal.rs` resets them too.
//!
//! # Invariants
//!
//! * **A command that ran is a result, not an error.** Errors report what the daemon could not do.
//! * **No request weakens isolation.** There is no fallback: if a step of building a sandbox fails,
//!   the error names the step, and the command does not run.
//! * **The daemon does not fork.** The keeper starts before the daemon has threads. It is the
//!   ancestor of all processes that build sandboxes. The daemon talks to each sandbox over a socket
//!   and a pidfd.
//! * **Caller paths are not opened by name.** The kernel resolves them beneath the workspace's
//!   descriptor (`openat2`, RESOLVE_BENEATH).
//! * **The daemon is confined too**, with Landlock of Linux 5.19 or newer. `jigd` can write only to
//!   its workspaces, its state directory, its socket directories and the cgroups of its runs. It
//!   can read these, system directories (`/etc`, `/lib`, `/proc`, `/run`, `/usr`, devices) and the
//!   directories of its configuration and key files. A daemon embedded in `jig` is not confined.
//! * **File changes are atomic**, even if the daemon dies in the middle. A journal lists the steps
//!   before the first one, and the next start rolls back an incomplete change.
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
//!   cgroups, for the CPU share of long runs, and for retries when descriptors run out. A network
//!   namespace is checked up to 20 times, 1 ms apart, before it is reused.
//! * **Everything is bounded** by a named constant or a setting. Dropped data is counted.
//! * **A tool is described once**, in its proto file: names, limits and defaults are read from
//!   there.
//! * **`unsafe` occurs in `daemon/sys` alone.**
//! * **Every command runs in a sandbox.** There is no option to run one without. A sandbox that had
//!   an earlier run serves the same caller only, and only if that run left nothing in it.

pub mod api;
#[cfg(any(feature = "client", feature = "daemon"))]
pub mod archive;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "daemon")]
pub mod daemon;
#[cfg(any(feature = "client", feature = "daemon"))]
pub mod mcp;
