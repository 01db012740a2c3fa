//! What a hostile command tries, by the numbers of the catalogue of attacks that the design was
//! made from.
//!
//! The programs in `programs/` make the system calls that no shell command makes. What they try and
//! what must be answered stands in the tests.

/// What lies around a command, and what is asked for it: 56, 57, 61, 64, 66, 70, 71, 73, 74, 82.
mod command_environment;
/// All of these on a daemon of root's in a container.
mod containers;
/// Descriptors that commands send.
mod descriptors_in_flight;
/// The proxy, and the networks other than none: 75 to 79.
mod egress;
/// What others need, used up: 30 to 32, 34 to 36.
mod exhaustion;
/// Parts of the kernel that commands hardly need: N1 to N3b.
mod exposed_kernel;
/// A host that stops giving what sandboxes are made of: N28.
mod fail_closed;
/// Names by which the file tools would leave the workspace, or wait for ever: 38, 40 to 45, 47, 48,
/// 62.
mod file_tools;
/// Files that are not the command's: 37, 50 to 55, 63.
mod filesystem;
/// Repositories that do not lie in `.git`: N16.
mod git_layouts;
/// Names of hosts that mean one thing to one program and another to the next: N14.
mod host_names;
/// Sockets of programs of the host in what commands are shown.
mod host_sockets;
/// What a caller can say: N11.
mod isolation;
/// Mounts, namespaces, processes, capabilities and calls: 58 to 60, 65, 67 to 69, 72.
mod kernel;
/// What a killed process of the daemon's own takes along: 12 to 14.
mod killed_processes;
/// What lives on, or would: 1 to 17.
mod lifetime;
/// Many commands, at once and one after another: 80, 81.
mod many_runs;
/// Memory, in processes and without, and processors: 26 to 29, 33.
mod memory;
/// Addresses and sockets: 75 to 77.
mod network;
/// Git, as the operator uses it in the workspace.
mod operator_git;
/// What is written, or not read: 18 to 25.
mod output;
/// Paths whose meaning changes while a tool is on its way along them: 39, 46.
mod path_races;
/// Names that the daemon makes, taken before it comes to them: N24.
mod planted_files;
/// What the operator protects: 49.
mod protected_paths;
/// Protected files that the operator replaces: N16.
mod replaced_files;
/// What git runs for the operator in a repository: N16.
mod repository;
/// Network namespaces that one run has after the other: 63, 76.
mod reused_networks;
/// What the kernel counts for a user or for the machine.
mod shared_counters;
/// Workspaces whose names and paths begin alike: N18.
mod similar_workspaces;
/// Repositories that commands make within a repository: N16.
mod submodules;
/// Names that are swapped between two system calls of a file tool: N8.
mod system_call_races;
