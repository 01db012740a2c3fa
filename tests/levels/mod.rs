//! Hosts that do not give the highest level of isolation, and what commands can do on them where the
//! operator allows it.

/// Hosts on which a step fails, or that have too little.
mod broken;
/// Containers of every kind.
mod containers;
/// Deaths of the processes that make and keep sandboxes.
mod deaths;
/// Kept homes where they cannot be as everywhere.
mod homes;
/// L1: no namespaces at all.
mod in_place;
/// L2: a masked `/proc`.
mod masked_proc;
/// What of the daemon's own a command at L1 tries to reach.
mod neighbours;
/// Workspaces that are given to the user of commands.
mod ownership;
/// Containers and pods as people run them.
mod podman;
/// Commands that ask for a terminal.
mod terminals;
