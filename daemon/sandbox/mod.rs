//! Sandboxes for commands.
//!
//! ```text
//! jigd (tokio, never forks)
//!  └─ keeper             single-threaded, executed before the daemon has threads; dies with it
//!      └─ launcher       process 1 of its namespaces: its death kills all below
//!          └─ template   one per workspace: its root built and pivoted into
//!              └─ slot keeper     user and network namespace of one slot of the pool
//!                  └─ init        process 1 of its namespaces: builds the sandbox before a request
//!                      └─ command process 2: receives the request, executes it. After a run that
//!                                 left nothing, the init starts another
//! ```
//!
//! For each sandbox the daemon receives a control socket and a pidfd, and then talks to the sandbox
//! directly. It responds to the client when the sandbox reports that the command has ended and that
//! no process of it is left. The namespaces are torn down or recycled after that. A killed sandbox
//! is gone when the pidfd of its init says so, not when its socket closes: processes may still live
//! then.
//!
//! Everything fails closed: a step that fails is reported as a [`stage::StageFailure`] with its
//! name. The isolation level of a workspace is decided once, when the daemon starts
//! ([`level_probe`]). It is the highest level that can be built and passes its probe. Below the
//! operator's minimum, no command runs. There is no fallback to a weaker level later.
//!
//! | module | contents |
//! |---|---|
//! | [`keeper`], [`workspace_source`], [`launcher`], [`template`], [`slot`], [`init`], [`command_process`] | what each process does, in this order |
//! | [`no_namespaces`] | the same for hosts that cannot make namespaces (L1) |
//! | [`plan`], [`blueprint`], [`limits`], [`wire`], [`image`] | messages between these processes |
//! | [`identity`], [`root`], [`etc`], [`masked_proc`], [`protected_paths`], [`id_map`], [`proc_masks`], [`capabilities`], [`landlock`], [`seccomp`] | the isolation layers |
//! | [`project_limits`] | bounds of created workspaces that the kernel enforces |
//! | [`quotas`] | what the kernel counts per user or per machine, and what limits it |
//! | [`cgroup`], [`run_meter`], [`priority`] | memory, processes and CPU of a run: counted by the kernel or sampled; CPU shares |
//! | [`stage`], [`probe`], [`level`], [`layers`], [`host_environment`] | steps that can fail, the probe, and the report to the operator |
//! | [`proxy_listener`], [`netns_check`] | listener for runs with the network `proxy`; detection of sockets that a run left behind |
//! | [`loopback_connection`] | connections from the daemon to servers in a run |
//! | [`clean_check`], [`recycle`] | proof that a run left nothing in its sandbox; which caller may have another run in it |
//! | [`warm_shell`] | shells that were executed before their command is known |
//! | [`keeper_process`], [`launcher_process`], [`pools`], [`pool`], [`level_probe`], [`channel`], [`running`], [`kill`], [`protected_files`] | the daemon's side |

mod blueprint;
mod capabilities;
pub(crate) mod cgroup;
mod channel;
mod clean_check;
mod command_process;
mod etc;
pub(crate) mod host_environment;
mod id_map;
mod identity;
pub(crate) mod image;
mod init;
pub(crate) mod keeper;
pub(crate) mod keeper_process;
mod kill;
pub(crate) mod landlock;
mod launcher;
mod launcher_process;
mod layers;
pub(crate) mod level;
pub(crate) mod level_probe;
pub(crate) mod limits;
pub(crate) mod loopback_connection;
mod masked_proc;
mod netns_check;
mod no_namespaces;
pub(crate) mod plan;
pub(crate) mod pool;
pub(crate) mod pools;
mod priority;
mod probe;
mod proc_masks;
mod project_limits;
pub(crate) mod protected_files;
mod protected_paths;
pub(crate) mod proxy_listener;
mod quotas;
mod recycle;
mod root;
mod run_meter;
pub(crate) mod running;
mod seccomp;
mod slot;
pub(crate) mod stage;
mod template;
mod warm_shell;
pub(crate) mod wire;
mod workspace_source;
