//! Reports the changes below a directory, from the events of the kernel.
//!
//! An event says only that something happened to a name in a watched directory. The watch then
//! examines what exists at that name, and reports that. So the changes of one name are reported as
//! one, and a later event corrects what has changed since.
//!
//! A directory is watched before it is read, so no entry is missed. Watches are added to open
//! directories, which the kernel resolved beneath the workspace, without symbolic links. The kernel
//! identifies a watched directory: adding a watch to it again returns the same descriptor. That is how
//! the watch detects that a directory is no longer at its path.
//!
//! | module | contents |
//! |---|---|
//! | [`budget`] | the number of watches |
//! | [`change_batch`] | changes that are reported together |
//! | [`changes`] | what the events of the kernel mean |
//! | [`filter`] | which entries are reported |
//! | [`kernel_events`] | inotify(7) |
//! | [`scan`] | adds directories with all below them |
//! | [`watch`] | the watch itself |
//! | [`watch_tree`] | the watched directories |

mod budget;
mod change_batch;
mod changes;
mod filter;
mod kernel_events;
mod scan;
mod watch;
mod watch_tree;

pub(crate) use self::{
    budget::WatchBudget,
    change_batch::{ChangeBatch, EntryChange, EntryChangeKind},
    filter::WatchFilter,
    watch::TreeWatch,
};

#[cfg(test)]
mod tests;
