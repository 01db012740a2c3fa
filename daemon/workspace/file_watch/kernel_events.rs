//! The events of the kernel about watched directories: inotify(7).

use std::{
    collections::BTreeMap,
    fs::read_to_string,
    io,
    mem::MaybeUninit,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags},
    io::retry_on_intr,
};

use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
    workspace::os_error::{ExpectedKind, os_error},
};

/// Buffer for events.
const EVENT_BUFFER_BYTES: usize = 64 * 1024;
/// Entries with changes that one read returns. More stay in the kernel's queue.
const MAX_ENTRIES_PER_READ: usize = 4096;
/// Events that one read returns, however few their entries.
const MAX_EVENTS_PER_READ: usize = 65_536;

/// Changes of entries, of the directory itself, and its end.
const DIRECTORY_EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::EXCL_UNLINK)
    .union(WatchFlags::ONLYDIR);
/// Renames and the deletion of a directory above the watched one.
const ANCESTOR_EVENTS: WatchFlags =
    WatchFlags::MOVE_SELF.union(WatchFlags::DELETE_SELF).union(WatchFlags::ONLYDIR);

/// A queue of events.
#[derive(Debug)]
pub(super) struct KernelWatch(OwnedFd);

/// What the kernel reported about an entry of a directory, in one read.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryEvents {
    /// Whether the entry appeared, and not vanished, by the last event of these kinds.
    pub(super) appeared_last: bool,
    /// Whether a directory vanished from this name.
    pub(super) lost_directory: bool,
    /// Whether a file of any other type vanished from this name.
    pub(super) lost_file: bool,
    /// Whether it appeared as a directory that vanished again, or did not change its place.
    pub(super) is_changed: bool,
}

/// Changed entries by name, by the watch descriptor of their directory.
pub(super) type ChangedEntries = BTreeMap<i32, BTreeMap<Box<[u8]>, EntryEvents>>;

/// What one read returned.
#[derive(Debug, Default)]
pub(super) struct KernelEvents {
    pub(super) entries: ChangedEntries,
    /// Directories that were renamed or deleted, by their own watches.
    pub(super) moved: Vec<i32>,
    /// Directories that are not watched any more.
    pub(super) ended: Vec<i32>,
    /// Whether the queue overflowed, or a file system was unmounted.
    pub(super) has_gap: bool,
    /// Whether events are left.
    pub(super) has_more: bool,
}

impl KernelWatch {
    pub(super) fn new() -> Result<Self, Error> {
        match inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) {
            Ok(queue) => Ok(Self(queue)),
            Err(errno @ Errno::MFILE) => Err(kernel_limit_error("max_user_instances", errno)),
            Err(errno) => Err(os_error(errno, ".", ExpectedKind::Directory)),
        }
    }

    /// Returns another descriptor of the queue, to wait for events.
    pub(super) fn try_clone(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Watches an open directory. A directory that is watched already keeps its watch descriptor.
    pub(super) fn add(&self, directory: BorrowedFd<'_>) -> Result<i32, Errno> {
        self.add_for(directory, DIRECTORY_EVENTS)
    }

    /// Watches for the rename and the deletion of an open directory.
    pub(super) fn add_ancestor(&self, directory: BorrowedFd<'_>) -> Result<i32, Errno> {
        self.add_for(directory, ANCESTOR_EVENTS)
    }

    fn add_for(&self, directory: BorrowedFd<'_>, events: WatchFlags) -> Result<i32, Errno> {
        // The link leads to the open directory itself, wherever it is now.
        let link = format!("/proc/self/fd/{}", directory.as_raw_fd());
        retry_on_intr(|| inotify::add_watch(self.0.as_fd(), link.as_str(), events))
    }

    /// Ends watches. Those of deleted directories have ended.
    pub(super) fn remove(&self, watches: &[i32]) {
        for watch in watches {
            let _ended = inotify::remove_watch(self.0.as_fd(), *watch);
        }
    }

    /// Returns the events that are queued.
    pub(super) fn read(&self) -> Result<KernelEvents, Error> {
        let mut buffer = vec![MaybeUninit::uninit(); EVENT_BUFFER_BYTES];
        let mut reader = Reader::new(self.0.as_fd(), &mut buffer);
        let mut events = KernelEvents::default();
        let (mut entries, mut count) = (0, 0);
        loop {
            let is_full = entries >= MAX_ENTRIES_PER_READ || count >= MAX_EVENTS_PER_READ;
            if is_full && reader.is_buffer_empty() {
                events.has_more = true;
                return Ok(events);
            }
            match reader.next() {
                Ok(event) => {
                    count += 1;
                    entries += usize::from(events.add(&event));
                }
                Err(Errno::AGAIN) => return Ok(events),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::internal(io::Error::from(errno))),
            }
        }
    }
}

impl KernelEvents {
    /// Adds an event. Returns whether it is the first one of its entry.
    fn add(&mut self, event: &inotify::Event<'_>) -> bool {
        let (kinds, watch) = (event.events(), event.wd());
        self.has_gap |= kinds.intersects(ReadFlags::QUEUE_OVERFLOW | ReadFlags::UNMOUNT);
        if kinds.intersects(ReadFlags::MOVE_SELF | ReadFlags::DELETE_SELF) {
            self.moved.push(watch);
        }
        if kinds.contains(ReadFlags::IGNORED) {
            self.ended.push(watch);
        }
        let Some(name) = event.file_name() else {
            return false;
        };

        let names = self.entries.entry(watch).or_default();
        let before = names.len();
        let entry = names.entry(name.to_bytes().into()).or_default();
        if kinds.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            entry.appeared_last = true;
        } else if kinds.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
            entry.appeared_last = false;
            let is_directory = kinds.contains(ReadFlags::ISDIR);
            entry.lost_directory |= is_directory;
            entry.lost_file |= !is_directory;
        } else {
            entry.is_changed = true;
        }
        names.len() > before
    }
}

/// The error for a directory that cannot be watched.
pub(super) fn watch_error(errno: Errno, path: &[u8]) -> Error {
    match errno {
        Errno::NOSPC => kernel_limit_error("max_user_watches", errno),
        errno => {
            let path = String::from_utf8_lossy(path);
            let path = if path.is_empty() { "." } else { &*path };
            os_error(errno, path, ExpectedKind::Directory)
        }
    }
}

/// The error for a limit of the kernel: `/proc/sys/fs/inotify/` has its name.
fn kernel_limit_error(limit: &str, errno: Errno) -> Error {
    let value = read_to_string(format!("/proc/sys/fs/inotify/{limit}")).unwrap_or_default();
    let value = value.trim();
    let remedy = match limit {
        "max_user_watches" => {
            "watch a smaller directory, exclude some with exclude_globs, or ask the operator to raise it"
        }
        _ => "end other watches, or ask the operator to raise it, or the limit of open files",
    };
    let text = format!(
        "the kernel's limit fs.inotify.{limit} ({value}) for the daemon's user is reached: {remedy}"
    );
    Error::new(Reason::ResourceExhausted, text)
        .with_metadata("limit", value)
        .with_cause(io::Error::from(errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_the_kernel_are_named_with_their_remedy() {
        let error = watch_error(Errno::NOSPC, b"a");
        assert_eq!(error.reason, Reason::ResourceExhausted);
        assert!(error.message.contains("fs.inotify.max_user_watches ("), "{error}");
        assert!(error.message.contains("exclude_globs"), "{error}");
        let error = kernel_limit_error("max_user_instances", Errno::MFILE);
        assert!(error.message.contains("fs.inotify.max_user_instances ("), "{error}");
        assert_eq!(watch_error(Errno::ACCESS, b"a").reason, Reason::PermissionDenied);
    }
}
