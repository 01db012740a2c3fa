//! Hosts that do not give the highest level of isolation, and what commands can do on them where the
//! operator allows it.

/// Workspaces that are given to the user of commands.
mod chown_workspace;
/// Containers of every kind.
mod containers;
/// Hosts on which a step fails, or that have too little.
mod host_failures;
/// What of the daemon's own a command at L1 tries to reach.
mod l1_neighbours;
/// L2: a masked `/proc`.
mod masked_proc;
/// L1: no namespaces at all.
mod no_namespaces;
/// Kept homes where they cannot be as everywhere.
mod persistent_homes;
/// Containers and pods as people run them.
mod podman;
/// Deaths of the processes that make and keep sandboxes.
mod process_deaths;
/// Commands that ask for a terminal.
mod terminals;
