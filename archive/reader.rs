//! Reads an archive as it arrives: the caller pushes bytes, and takes events.
//!
//! ```text
//! Header ──▶ Extension ──▶ Padding ──▶ Header          names and sizes of the next member
//!   ├──────▶ Content ────▶ Padding ──▶ Header          a file; other members have no content
//!   └──────▶ SecondEndBlock ──▶ Ended                  only zeros may follow
//! ```

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "kinds of members that are rejected, in an enum of another crate"
)]

use std::mem;

use tar::{EntryType, Header};

use super::{
    error::{ArchiveError, ArchiveErrorKind},
    header::{is_zero_block, number, parse},
    limits::{
        BLOCK_BYTES, MAX_CONTENT_BYTES, MAX_MEMBER_PATH_BYTES, MAX_MEMBERS, MAX_PAX_HEADER_BYTES,
    },
    member::{Member, MemberKind, ModifyTime, member_path, symlink_target},
    pax::PaxRecords,
    writer::padding,
};

/// Largest size in a field of 11 octal digits. Beyond it, the size may be in a PAX header alone.
const MAX_OCTAL_SIZE: u64 = 0o77_777_777_777;

/// A part of an archive.
#[derive(Debug, PartialEq, Eq)]
pub enum TarEvent<'a> {
    /// The next member. A file is followed by its content.
    Member(Member),
    /// Bytes of the content of the last file.
    Content(&'a [u8]),
    /// The content of the last file is complete.
    ContentEnd,
}

/// Reads an archive as a sequence of events.
#[derive(Debug)]
pub struct TarReader {
    state: ReaderState,
    block: [u8; BLOCK_BYTES],
    /// Bytes of `block` that have arrived.
    block_bytes: usize,
    /// The extension header that is being received.
    extension: Vec<u8>,
    /// What extension headers say about the next member.
    overrides: Overrides,
    members: u64,
    content_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReaderState {
    Header,
    Extension { kind: Extension, remaining: usize, padding: usize },
    Content { remaining: u64, padding: usize },
    Padding(usize),
    SecondEndBlock,
    Ended,
}

/// Headers that describe the next member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extension {
    GnuLongName,
    GnuLongLink,
    Pax,
    PaxGlobal,
}

#[derive(Debug, Default)]
struct Overrides {
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
    pax: Option<PaxRecords>,
}

impl TarReader {
    /// Creates a reader at the start of an archive.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: ReaderState::Header,
            block: [0; BLOCK_BYTES],
            block_bytes: 0,
            extension: Vec::new(),
            overrides: Overrides::default(),
            members: 0,
            content_bytes: 0,
        }
    }

    /// Returns the next event, and advances `input`. `None` if it needs more input.
    ///
    /// # Errors
    ///
    /// Returns an error if the archive is rejected. The reader must not be used any more then.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<TarEvent<'a>>, ArchiveError> {
        loop {
            match self.state {
                ReaderState::Header => {
                    if !self.fill_block(input) {
                        return Ok(None);
                    }
                    if let Some(member) = self.read_header()? {
                        return Ok(Some(TarEvent::Member(member)));
                    }
                }
                ReaderState::Extension { kind, remaining: 0, padding } => {
                    self.apply_extension(kind)?;
                    self.state = ReaderState::Padding(padding);
                }
                ReaderState::Extension { kind, remaining, padding } => {
                    let data = take(input, remaining);
                    if data.is_empty() {
                        return Ok(None);
                    }
                    self.extension.extend_from_slice(data);
                    self.state =
                        ReaderState::Extension { kind, remaining: remaining - data.len(), padding };
                }
                ReaderState::Content { remaining: 0, padding } => {
                    self.state = ReaderState::Padding(padding);
                    return Ok(Some(TarEvent::ContentEnd));
                }
                ReaderState::Content { remaining, padding } => {
                    let data = take(input, usize::try_from(remaining).unwrap_or(usize::MAX));
                    if data.is_empty() {
                        return Ok(None);
                    }
                    self.state =
                        ReaderState::Content { remaining: remaining - data.len() as u64, padding };
                    return Ok(Some(TarEvent::Content(data)));
                }
                ReaderState::Padding(0) => self.state = ReaderState::Header,
                ReaderState::Padding(remaining) => {
                    let data = take(input, remaining);
                    if data.is_empty() {
                        return Ok(None);
                    }
                    self.state = ReaderState::Padding(remaining - data.len());
                }
                ReaderState::SecondEndBlock => {
                    if !self.fill_block(input) {
                        return Ok(None);
                    }
                    if !is_zero_block(&self.block) {
                        return Err(ArchiveError::invalid("data follows the end of the archive"));
                    }
                    self.state = ReaderState::Ended;
                }
                ReaderState::Ended => {
                    if take(input, usize::MAX).iter().any(|byte| *byte != 0) {
                        return Err(ArchiveError::invalid("data follows the end of the archive"));
                    }
                    return Ok(None);
                }
            }
        }
    }

    /// Checks that the archive is complete.
    ///
    /// # Errors
    ///
    /// Returns an error if its end is missing.
    pub fn finish(&self) -> Result<(), ArchiveError> {
        if self.state == ReaderState::Ended {
            return Ok(());
        }
        Err(ArchiveError::invalid("the archive is incomplete: its end is missing"))
    }

    /// Receives a block. Returns whether it is complete.
    fn fill_block(&mut self, input: &mut &[u8]) -> bool {
        let data = take(input, BLOCK_BYTES - self.block_bytes);
        let end = self.block_bytes + data.len();
        self.block[self.block_bytes..end].copy_from_slice(data);
        self.block_bytes = end % BLOCK_BYTES;
        end == BLOCK_BYTES
    }

    /// Interprets a header block. Returns the member, unless the header describes the next one.
    fn read_header(&mut self) -> Result<Option<Member>, ArchiveError> {
        let block = self.block;
        let has_overrides = self.overrides.is_set();
        if is_zero_block(&block) {
            if has_overrides {
                return Err(ArchiveError::invalid("the archive ends after an extension header"));
            }
            self.state = ReaderState::SecondEndBlock;
            return Ok(None);
        }

        let header = parse(&block)?;
        let name = header.path_bytes();
        let size = number(&header.as_old().size)
            .ok_or_else(|| ArchiveError::invalid("the size is not a number").at(&name))?;
        if let Some(kind) = extension_kind(header.entry_type()) {
            return self.begin_extension(kind, size).map(|()| None);
        }

        self.members += 1;
        if self.members > MAX_MEMBERS {
            let text = format!("the archive has more than {MAX_MEMBERS} members");
            return Err(ArchiveError::new(ArchiveErrorKind::TooLarge, text));
        }
        let overrides = mem::take(&mut self.overrides);
        let name = overrides.name(header)?;
        let member = self.read_member(header, &name, size, overrides);
        member.map(Some).map_err(|error| error.at(&name))
    }

    fn begin_extension(&mut self, kind: Extension, size: u64) -> Result<(), ArchiveError> {
        let max_bytes = match kind {
            Extension::Pax | Extension::PaxGlobal => MAX_PAX_HEADER_BYTES,
            // With the NUL at the end.
            Extension::GnuLongName | Extension::GnuLongLink => MAX_MEMBER_PATH_BYTES as u64 + 1,
        };
        if size > max_bytes {
            let text = format!(
                "an extension header has {size} bytes, and at most {max_bytes} are accepted"
            );
            return Err(ArchiveError::new(ArchiveErrorKind::TooLarge, text));
        }
        if kind == Extension::PaxGlobal && self.overrides.is_set() {
            let text = "a global PAX header is between an extension header and its member";
            return Err(ArchiveError::invalid(text));
        }
        let remaining = usize::try_from(size).unwrap_or(usize::MAX);
        self.state = ReaderState::Extension { kind, remaining, padding: padding(size) };
        Ok(())
    }

    fn apply_extension(&mut self, kind: Extension) -> Result<(), ArchiveError> {
        let data = mem::take(&mut self.extension);
        let is_repeated = match kind {
            Extension::GnuLongName => {
                self.overrides.long_name.replace(without_final_nul(data)).is_some()
            }
            Extension::GnuLongLink => {
                self.overrides.long_link.replace(without_final_nul(data)).is_some()
            }
            Extension::Pax => self.overrides.pax.replace(PaxRecords::parse(&data)?).is_some(),
            Extension::PaxGlobal => {
                PaxRecords::check_global(&data)?;
                false
            }
        };
        if is_repeated {
            let text = "a member has two extension headers of the same kind";
            return Err(ArchiveError::invalid(text));
        }
        Ok(())
    }

    /// Reads a member, whose name is `name`.
    fn read_member(
        &mut self,
        header: &Header,
        name: &[u8],
        header_size: u64,
        overrides: Overrides,
    ) -> Result<Member, ArchiveError> {
        let size = overrides.size(header_size)?;
        let path = member_path(name)?;
        let kind = match header.entry_type() {
            EntryType::Regular | EntryType::Continuous => {
                if path.is_empty() || name.ends_with(b"/") {
                    let text = "a file has the name of a directory";
                    return Err(ArchiveError::invalid(text));
                }
                self.begin_content(size)?;
                MemberKind::File(size)
            }
            EntryType::Directory => MemberKind::Directory,
            EntryType::Symlink => {
                MemberKind::Symlink(symlink_target(&path, &overrides.target(header)?)?)
            }
            EntryType::Link => MemberKind::HardLink(member_path(&overrides.target(header)?)?),
            other => return Err(unsupported(other)),
        };
        if !matches!(kind, MemberKind::File(_)) && size > 0 {
            return Err(ArchiveError::invalid("a member other than a file has content"));
        }
        if path.is_empty() && kind != MemberKind::Directory {
            return Err(ArchiveError::invalid("the top of the tree is not a directory"));
        }

        let mode = number(&header.as_old().mode).and_then(|mode| u32::try_from(mode).ok());
        let mode = mode.ok_or_else(|| ArchiveError::invalid("the mode is not a number"))?;
        let modified = overrides.pax.as_ref().and_then(|pax| pax.modified).or_else(|| {
            let field = &header.as_old().mtime;
            let is_blank = field.iter().all(|byte| matches!(byte, 0 | b' '));
            let seconds = number(field).filter(|_| !is_blank)?;
            ModifyTime::new((i64::try_from(seconds).ok()?, 0))
        });
        Ok(Member { path, kind, mode: mode & 0o777, modified })
    }

    fn begin_content(&mut self, size: u64) -> Result<(), ArchiveError> {
        self.content_bytes = self.content_bytes.saturating_add(size);
        if self.content_bytes > MAX_CONTENT_BYTES {
            let text = format!("the files have more than {} GiB", MAX_CONTENT_BYTES >> 30);
            return Err(ArchiveError::new(ArchiveErrorKind::TooLarge, text));
        }
        self.state = ReaderState::Content { remaining: size, padding: padding(size) };
        Ok(())
    }
}

impl Default for TarReader {
    fn default() -> Self {
        Self::new()
    }
}

impl Overrides {
    fn is_set(&self) -> bool {
        self.long_name.is_some() || self.long_link.is_some() || self.pax.is_some()
    }

    /// Returns the name of the member.
    fn name(&self, header: &Header) -> Result<Vec<u8>, ArchiveError> {
        let pax = self.pax.as_ref().and_then(|pax| pax.path.as_ref());
        one_of(pax, self.long_name.as_ref(), || header.path_bytes().into_owned())
    }

    /// Returns the target of a link.
    fn target(&self, header: &Header) -> Result<Vec<u8>, ArchiveError> {
        let pax = self.pax.as_ref().and_then(|pax| pax.link_path.as_ref());
        one_of(pax, self.long_link.as_ref(), || {
            header.link_name_bytes().unwrap_or_default().into_owned()
        })
    }

    /// Returns the size of the member. Readers that trust the other of two sizes would find other
    /// members (CVE-2025-62518).
    fn size(&self, header_size: u64) -> Result<u64, ArchiveError> {
        let Some(size) = self.pax.as_ref().and_then(|pax| pax.size) else {
            return Ok(header_size);
        };
        let is_too_large_for_header = size > MAX_OCTAL_SIZE && header_size == 0;
        if size != header_size && !is_too_large_for_header {
            return Err(ArchiveError::invalid(format!(
                "the PAX header has the size {size}, and the ustar header has {header_size}"
            )));
        }
        Ok(size)
    }
}

/// Returns the text of the PAX or the GNU header, or else that of the header itself.
fn one_of(
    pax: Option<&Vec<u8>>,
    gnu: Option<&Vec<u8>>,
    own: impl FnOnce() -> Vec<u8>,
) -> Result<Vec<u8>, ArchiveError> {
    match (pax, gnu) {
        (Some(_), Some(_)) => {
            Err(ArchiveError::invalid("a PAX and a GNU header name the same member"))
        }
        (Some(text), None) | (None, Some(text)) if text.is_empty() => {
            Err(ArchiveError::invalid("an extension header has an empty name"))
        }
        (Some(text), None) | (None, Some(text)) => Ok(text.clone()),
        (None, None) => Ok(own()),
    }
}

fn extension_kind(kind: EntryType) -> Option<Extension> {
    if kind.is_gnu_longname() {
        Some(Extension::GnuLongName)
    } else if kind.is_gnu_longlink() {
        Some(Extension::GnuLongLink)
    } else if kind.is_pax_local_extensions() {
        Some(Extension::Pax)
    } else if kind.is_pax_global_extensions() {
        Some(Extension::PaxGlobal)
    } else {
        None
    }
}

fn unsupported(kind: EntryType) -> ArchiveError {
    let name = if kind.is_character_special() || kind.is_block_special() {
        "a device".to_owned()
    } else if kind.is_fifo() {
        "a FIFO".to_owned()
    } else if kind.is_gnu_sparse() {
        "a sparse file".to_owned()
    } else {
        format!("of the unknown type {:?}", char::from(kind.as_byte()))
    };
    ArchiveError::invalid(format!(
        "the member is {name}: only files, directories and links are accepted"
    ))
}

/// Takes up to `max_bytes` from the input.
fn take<'a>(input: &mut &'a [u8], max_bytes: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at(input.len().min(max_bytes));
    *input = rest;
    taken
}

fn without_final_nul(mut data: Vec<u8>) -> Vec<u8> {
    if data.last() == Some(&0) {
        data.pop();
    }
    data
}

#[cfg(test)]
mod tests;
