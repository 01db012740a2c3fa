//! What a hostile command tries, by the numbers of the catalogue of attacks that the design was
//! made from.
//!
//! The programs in `programs/` make the system calls that no shell command makes. What they try and
//! what must be answered stands in the tests.

/// What a killed process of the daemon's own takes along: 12 to 14.
mod death;
mod exhaustion;
/// Files that are not the command's: 37, 50 to 55, 63.
mod files;
mod filesystem;
/// Descriptors that commands send.
mod in_flight;
/// Mounts, namespaces, processes, capabilities and calls: 58 to 60, 65 to 72.
mod kernel;
/// What lives on, or would: 1 to 17.
mod lifetime;
/// Addresses and sockets: 75 to 77.
mod network;
/// What is written, or not read: 18 to 25.
mod output;
mod race;
