//! Tar archives of directory trees: parsing, checks and writing, without access to files.
//!
//! The daemon and the client share this module. Archives are untrusted. The reader accepts ustar,
//! PAX and GNU long names, and rejects everything that two readers could understand differently:
//! that is how members are smuggled past checks. Of the crate `tar`, it uses the layout of headers:
//! the reader of that crate pulls from a blocking source, holds extension headers of any size, and
//! takes one of two sizes that differ.
//!
//! The reader and the decoder do no I/O. A caller pushes bytes as they arrive, and takes events.
//! Memory is bounded by constants, whatever the archive contains.
//!
//! | module | contents |
//! |---|---|
//! | `error` | why an archive is rejected |
//! | `header` | fields of a header block |
//! | `limits` | constants that bound an archive |
//! | `member` | names and link targets of members |
//! | `pax` | PAX extended headers |
//! | `reader` | an archive as a sequence of events |
//! | `writer` | headers of members |
//! | `zstd` | compression |

mod error;
mod header;
mod limits;
mod member;
mod pax;
mod reader;
mod writer;
#[cfg(feature = "daemon")]
mod zstd;

pub use error::{ArchiveError, ArchiveErrorKind};
pub use limits::{
    BLOCK_BYTES, MAX_CONTENT_BYTES, MAX_MEMBER_DEPTH, MAX_MEMBER_PATH_BYTES, MAX_MEMBERS,
    MAX_PAX_HEADER_BYTES,
};
pub use member::{Member, MemberKind, ModifyTime};
pub use reader::{TarEvent, TarReader};
pub use writer::{END_OF_ARCHIVE, padding, write_header};
#[cfg(feature = "daemon")]
pub use zstd::{ZstdDecoder, zstd_frame};
