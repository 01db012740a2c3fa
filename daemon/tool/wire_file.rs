//! Converts file metadata to the types of the contract.

use prost_types::Timestamp;

use crate::{
    api::v1,
    daemon::workspace::{FileKind, PathMetadata},
};

pub(crate) fn file_type(kind: FileKind) -> v1::FileType {
    match kind {
        FileKind::File => v1::FileType::File,
        FileKind::Directory => v1::FileType::Directory,
        FileKind::Symlink => v1::FileType::Symlink,
        FileKind::Fifo => v1::FileType::Fifo,
        FileKind::Socket => v1::FileType::Socket,
        FileKind::CharacterDevice => v1::FileType::CharacterDevice,
        FileKind::BlockDevice => v1::FileType::BlockDevice,
        FileKind::Unknown => v1::FileType::Unspecified,
    }
}

/// Time of the last change of the content.
pub(super) fn modify_time(metadata: &PathMetadata) -> Option<Timestamp> {
    let (seconds, nanos) = metadata.modified;
    Some(Timestamp { seconds, nanos })
}
