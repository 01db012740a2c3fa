//! The reader of archives, and the decoder of Zstandard.

use std::path::{Component, Path};

use tar::Header;

use crate::archive::{
    ArchiveError, BLOCK_BYTES, MAX_MEMBER_PATH_BYTES, Member, MemberKind, TarEvent, TarReader,
    ZstdDecoder, write_header,
};

/// Start of a Zstandard frame.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Position of the magic text in a header.
const MAGIC_FIELD: std::ops::Range<usize> = 257..263;
/// Bytes that one step of the decoder may return: a window, and a block of literals.
const MAX_DECODED_BYTES: usize = (8 << 20) + (2 << 20);

/// Reads an archive, which is compressed if it starts like Zstandard.
///
/// - The size of the pieces in which it arrives does not matter.
/// - Names and targets of members stay in the tree, and contents have their sizes.
/// - A header that is written for a member is read as that member.
/// - A header with a wrong checksum is read as well: its checksum is set before.
pub fn archive(data: &[u8]) {
    let data = &with_checksums(data)[..];
    let whole = read_archive(data, data.len().max(1));
    assert_eq!(read_archive(data, 7), whole);
    for (member, content_bytes) in whole.iter().flatten() {
        check_member(member, *content_bytes);
        let mut header = Vec::new();
        write_header(member, &mut header);
        let mut input = header.as_slice();
        let read = TarReader::new().next(&mut input);
        assert!(matches!(read, Ok(Some(TarEvent::Member(ref same))) if same == member));
    }
}

fn with_checksums(data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    if !data.starts_with(&ZSTD_MAGIC) {
        for block in data.chunks_exact_mut(BLOCK_BYTES) {
            if block[MAGIC_FIELD].starts_with(b"ustar") {
                let mut header = Header::from_byte_slice(block).clone();
                header.set_cksum();
                block.copy_from_slice(header.as_bytes());
            }
        }
    }
    data
}

/// Members with the bytes of their contents, or why the archive is rejected.
fn read_archive(data: &[u8], piece: usize) -> Result<Vec<(Member, u64)>, ArchiveError> {
    let mut decoder = data.starts_with(&ZSTD_MAGIC).then(ZstdDecoder::new);
    let (mut reader, mut members, mut block) = (TarReader::new(), Vec::new(), Vec::new());
    for piece in data.chunks(piece) {
        let Some(decoder) = &mut decoder else {
            read_members(&mut reader, piece, &mut members)?;
            continue;
        };
        decoder.push(piece);
        while decoder.decode(&mut block)? {
            assert!(block.len() <= MAX_DECODED_BYTES);
            read_members(&mut reader, &block, &mut members)?;
        }
    }
    decoder.map_or(Ok(()), |decoder| decoder.finish())?;
    reader.finish()?;
    Ok(members)
}

fn read_members(
    reader: &mut TarReader,
    mut data: &[u8],
    members: &mut Vec<(Member, u64)>,
) -> Result<(), ArchiveError> {
    while let Some(event) = reader.next(&mut data)? {
        match (event, members.last_mut()) {
            (TarEvent::Member(member), _) => members.push((member, 0)),
            (TarEvent::Content(data), Some((_, bytes))) => *bytes += data.len() as u64,
            (TarEvent::ContentEnd, Some((member, bytes))) => {
                assert_eq!(member.kind, MemberKind::File(*bytes));
            }
            (event, None) => panic!("{event:?} before a member"),
        }
    }
    assert!(data.is_empty());
    Ok(())
}

fn check_member(member: &Member, content_bytes: u64) {
    assert!(content_bytes == 0 || matches!(member.kind, MemberKind::File(_)));
    assert_eq!(member.mode & !0o777, 0);
    let is_inside = |path: &str| {
        path.len() <= MAX_MEMBER_PATH_BYTES
            && !path.contains('\0')
            && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
    };
    assert!(is_inside(&member.path), "{member:?}");
    match &member.kind {
        MemberKind::File(_) | MemberKind::Directory => {}
        MemberKind::HardLink(target) => assert!(is_inside(target), "{member:?}"),
        MemberKind::Symlink(target) => {
            let from = Path::new("/").join(&member.path);
            let up = Path::new(target).components().filter(|part| *part == Component::ParentDir);
            assert!(!target.starts_with('/') && !target.contains('\0'), "{member:?}");
            assert!(up.count() < from.components().count() - 1, "{member:?}");
        }
    }
}
