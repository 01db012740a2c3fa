//! What a hostile command tries, by the numbers of the catalogue of attacks that the design was
//! made from.
//!
//! The programs in `programs/` make the system calls that no shell command makes. What they try and
//! what must be answered stands in the tests.

/// Names that are swapped between two system calls of a file tool: N8.
mod between;
/// All of these on a daemon of root's in a container.
mod contained;
/// What the kernel counts for a user or for the machine.
mod counters;
/// What a killed process of the daemon's own takes along: 12 to 14.
mod death;
/// The proxy, and the networks other than none: 75 to 79.
mod egress;
/// What others need, used up: 30 to 32, 34 to 36.
mod exhaustion;
/// A host that stops giving what sandboxes are made of: N28.
mod fail_closed;
/// Names by which the file tools would leave the workspace, or wait for ever: 38, 40 to 45, 47, 48,
/// 62.
mod files;
/// Files that are not the command's: 37, 50 to 55, 63.
mod filesystem;
/// Repositories that do not lie in `.git`: N16.
mod git_layouts;
/// Names of hosts that mean one thing to one program and another to the next: N14.
mod host_names;
/// Sockets of programs of the host in what commands are shown.
mod host_sockets;
/// Descriptors that commands send.
mod in_flight;
/// What a caller can say: N11.
mod isolation;
/// Mounts, namespaces, processes, capabilities and calls: 58 to 60, 65, 67 to 69, 72.
mod kernel;
/// What lives on, or would: 1 to 17.
mod lifetime;
/// Many commands, at once and one after another: 80, 81.
mod many;
/// Memory, in processes and without, and processors: 26 to 29, 33.
mod memory;
/// Addresses and sockets: 75 to 77.
mod network;
/// Git, as the operator uses it in the workspace.
mod operator;
/// What is written, or not read: 18 to 25.
mod output;
/// Names that the daemon makes, taken before it comes to them: N24.
mod planted;
/// Workspaces whose names and paths begin alike: N18.
mod prefixes;
/// What the operator protects: 49.
mod protected;
/// Paths whose meaning changes while a tool is on its way along them: 39, 46.
mod race;
/// Network namespaces that one run has after the other: 63, 76.
mod recycled;
/// Protected files that the operator replaces: N16.
mod replaced;
/// What git runs for the operator in a repository: N16.
mod repository;
/// Repositories that commands make within a repository: N16.
mod submodules;
/// Parts of the kernel that commands hardly need: N1 to N3b.
mod surface;
/// What lies around a command, and what is asked for it: 56, 57, 61, 64, 66, 70, 71, 73, 74, 82.
mod surroundings;
