//! What is at a path, for the wire.

use prost_types::Timestamp;

use crate::{
    api::v1,
    daemon::workspace::{Description, Kind},
};

/// The type of a file.
pub(super) fn file_type(kind: Kind) -> v1::FileType {
    match kind {
        Kind::File => v1::FileType::File,
        Kind::Directory => v1::FileType::Directory,
        Kind::Symlink => v1::FileType::Symlink,
        Kind::Fifo => v1::FileType::Fifo,
        Kind::Socket => v1::FileType::Socket,
        Kind::CharacterDevice => v1::FileType::CharacterDevice,
        Kind::BlockDevice => v1::FileType::BlockDevice,
        Kind::Unknown => v1::FileType::Unspecified,
    }
}

/// When its content was last changed.
pub(super) fn modify_time(description: &Description) -> Option<Timestamp> {
    let (seconds, nanos) = description.modified;
    Some(Timestamp { seconds, nanos })
}
