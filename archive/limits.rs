//! Constants that bound an archive.

/// Size of a block. Headers are one block, and contents are padded to whole blocks.
pub const BLOCK_BYTES: usize = 512;
/// Members of one archive.
pub const MAX_MEMBERS: u64 = 1_000_000;
/// Bytes of the contents of all files of one archive.
pub const MAX_CONTENT_BYTES: u64 = 64 << 30;
/// Bytes of the path of a member, and of the target of a link.
pub const MAX_MEMBER_PATH_BYTES: usize = 4096;
/// Components of the path of a member.
pub const MAX_MEMBER_DEPTH: usize = 256;
/// Bytes of one PAX header.
pub const MAX_PAX_HEADER_BYTES: u64 = 64 << 10;
