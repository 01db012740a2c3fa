//! Hosts that do not support the highest isolation level, and the capabilities of commands there.

/// `--chown-workspace`.
mod chown_workspace;
/// Containers of an OCI runtime.
mod containers;
/// Hosts on which a step fails, or whose resources are exhausted.
mod host_failures;
/// The shipped Kubernetes manifests, and the images that they name.
mod kubernetes;
/// Attempts of a command at L1 to reach the daemon.
mod l1_neighbours;
/// L2: a masked `/proc`.
mod masked_proc;
/// L1: no namespaces at all.
mod no_namespaces;
/// Persistent homes on hosts that restrict them.
mod persistent_homes;
/// Containers and pods of Podman.
mod podman;
/// Deaths of the processes that build and keep sandboxes.
mod process_deaths;
/// Commands on a terminal.
mod terminals;
