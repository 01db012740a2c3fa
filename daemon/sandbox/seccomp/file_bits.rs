//! Bits of modes and flags that decide whether a call may create or change a file.

/// S_ISUID and S_ISGID. On an id-mapped workspace, a file with one of them would belong to its
/// owner on the host, perhaps root.
pub(super) const SET_ID_BITS: u32 = 0o6000;
/// S_IFMT, S_IFCHR, S_IFBLK.
pub(super) const FILE_TYPE: u32 = 0o170_000;
pub(super) const CHARACTER_DEVICE: u32 = 0o020_000;
pub(super) const BLOCK_DEVICE: u32 = 0o060_000;
/// O_CREAT, and the bit of O_TMPFILE that is not O_DIRECTORY. Without either, open(2) ignores its
/// mode.
pub(super) const CREATE_FLAGS: u32 = 0o100 | 0o20_000_000;
