//! Attacks of hostile commands. The numbers, such as 63 or N16, are those of the attack catalogue
//! from which the project was designed. The catalogue is not in the repository: the name or the
//! comment of each test describes its attack.
//!
//! The programs in `programs/` make system calls that no shell command makes. The tests list their
//! attempts and the answers that are right.

/// The environment and the settings of a command: 56, 57, 61, 64, 66, 70, 71, 73, 74, 82.
mod command_environment;
/// All of these attacks on a root daemon in a container.
mod containers;
/// Descriptors that commands send over sockets.
mod descriptors_in_flight;
/// The proxy and the host network: 75 to 79.
mod egress;
/// Shared resources, exhausted: 30 to 32, 34 to 36.
mod exhaustion;
/// Parts of the kernel that commands hardly need: N1 to N3b.
mod exposed_kernel;
/// A host that withdraws what sandboxes need: N28.
mod fail_closed;
/// Names by which the file tools would leave the workspace or block: 38, 40 to 45, 47, 48, 62.
mod file_tools;
/// Files that a command must not use: 37, 50 to 55, 63.
mod filesystem;
/// Repositories outside `.git`: N16.
mod git_layouts;
/// Host names that two programs may read differently: N14.
mod host_names;
/// Unix sockets of host programs in directories that commands can see.
mod host_sockets;
/// Archives of hostile callers: N26.
mod hostile_archives;
/// Hostile runs between honest ones of the same caller.
mod hostile_runs;
/// Requests that try to lower isolation: N11.
mod isolation;
/// Mounts, namespaces, processes, capabilities and system calls: 58 to 60, 65, 67 to 69, 72.
mod kernel;
/// Clients, daemons and launchers that die during a run: 12 to 14.
mod killed_processes;
/// Commands that try to outlive their run: 1 to 17.
mod lifetime;
/// Many commands, concurrently and in sequence: 80, 81.
mod many_runs;
/// Memory, with and without a process, and CPU time: 26 to 29, 33.
mod memory;
/// Addresses and sockets: 75 to 77.
mod network;
/// The operator's git commands in the workspace.
mod operator_git;
/// Output and input: 18 to 25.
mod output;
/// Paths whose meaning changes while a tool resolves them: 39, 46.
mod path_races;
/// Names that the daemon creates, planted by another user: N24.
mod planted_files;
/// Paths that the operator protects: 49.
mod protected_paths;
/// What a run leaves in its sandbox, which the same caller's next run may get.
mod recycled_sandboxes;
/// Protected files that the operator replaces: N16.
mod replaced_files;
/// Programs that git runs for the operator in a repository: N16.
mod repository;
/// Network namespaces that several runs use in turn: 63, 76.
mod reused_networks;
/// Resources that the kernel counts per user or per machine.
mod shared_counters;
/// Workspaces whose names or paths share a prefix: N18.
mod similar_workspaces;
/// Repositories that commands create within a repository: N16.
mod submodules;
/// Names swapped between two system calls of a file tool: N8.
mod system_call_races;
