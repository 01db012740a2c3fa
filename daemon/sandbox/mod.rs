//! Sandboxes for commands.
//!
//! ```text
//! jigd (tokio, never forks)
//!  └─ keeper             single-threaded, executed before the daemon has threads; dies with it
//!      └─ launcher       process 1 of a user, mount and process namespace: its death kills everything below
//!          └─ template   one per workspace: its root built and pivoted into
//!              └─ slot keeper     user and network namespace of one slot of the pool
//!                  └─ init        one shot: process 1 of a run, everything applied that needs no request
//!                      └─ command process 2, made already: receives the request, executes
//! ```
//!
//! The daemon gets each sandbox as a token, a control socket and a pidfd, and talks to it directly.
//! The client is answered when the sandbox says that the command ended and everything that it left
//! behind is gone; its namespaces are torn down after that. On the way of a kill, the sandbox is
//! gone when its init's pidfd says so, never when its socket closes: that happens while processes
//! still live.
//!
//! Everything fails closed: a step that cannot be done is reported as a [`stage::Failure`] that
//! names it. Which level of isolation a workspace's sandboxes give is decided once, when the daemon
//! starts ([`proof`]): the highest that can be built and holds what it promises, and none below what
//! the operator asks for. From then on there is no second, weaker way.
//!
//! | file | holds |
//! |---|---|
//! | [`keeper`], [`launcher`], [`template`], [`slot`], [`init`], [`command`] | what each process does, in this order |
//! | [`in_place`] | what they do where no namespaces can be made (L1) |
//! | [`plan`], [`limits`], [`wire`], [`image`] | what they tell one another |
//! | [`identity`], [`root`], [`masked_proc`], [`protect`], [`id_map`], [`proc_masks`], [`capabilities`], [`landlock`], [`seccomp`] | the layers |
//! | [`quotas`] | what the kernel counts for a user or the machine, and what bounds it |
//! | [`cgroup`], [`measure`], [`priority`] | what a run occupies: counted by the kernel, or looked at; its share of the CPUs |
//! | [`stage`], [`canary`], [`level`], [`layers`], [`surroundings`] | what can fail, the proof, and what is told about it |
//! | [`entrance`], [`vacancy`] | the listener of a slot whose runs have the network `proxy`; whether a run has left anything in it |
//! | [`launch`], [`sandboxes`], [`pool`], [`lend`], [`proof`], [`refill`], [`channel`], [`running`], [`kill`] | the daemon's side |

mod acquire;
mod build;
mod canary;
mod capabilities;
pub(crate) mod cgroup;
mod channel;
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
mod layers;
pub(crate) mod level;
pub(crate) mod level_probe;
pub(crate) mod limits;
mod masked_proc;
mod netns_check;
mod no_namespaces;
pub(crate) mod plan;
pub(crate) mod pool;
pub(crate) mod pools;
mod priority;
mod proc_masks;
pub(crate) mod protected_files;
mod protected_paths;
pub(crate) mod proxy_listener;
mod quotas;
mod root;
mod run_meter;
pub(crate) mod running;
mod seccomp;
mod slot;
pub(crate) mod stage;
mod template;
pub(crate) mod wire;
