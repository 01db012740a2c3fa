//! Archives that programs write, and hostile ones.

use super::{
    super::writer::{END_OF_ARCHIVE, pax_record, write_header},
    *,
};

/// A header block with these fields.
fn raw(name: &[u8], kind: u8, size: u64) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_entry_type(EntryType::new(kind));
    header.set_mode(0o4755);
    header.set_size(size);
    header.set_mtime(7);
    header.set_cksum();
    header.as_bytes().to_vec()
}

fn link(name: &[u8], kind: u8, target: &[u8]) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.as_old_mut().linkname[..target.len()].copy_from_slice(target);
    header.set_entry_type(EntryType::new(kind));
    header.set_mode(0o777);
    header.set_size(0);
    header.set_mtime(0);
    header.set_cksum();
    header.as_bytes().to_vec()
}

fn padded(content: &[u8]) -> Vec<u8> {
    let mut padded = content.to_vec();
    padded.resize(content.len() + padding(content.len() as u64), 0);
    padded
}

fn extension(kind: u8, content: &[u8]) -> Vec<u8> {
    [raw(b"extension", kind, content.len() as u64), padded(content)].concat()
}

fn pax(records: &[(&str, &str)]) -> Vec<u8> {
    let records = records.iter().flat_map(|(key, value)| pax_record(key, value.as_bytes()));
    extension(b'x', &records.collect::<Vec<u8>>())
}

/// Reads an archive in pieces of this size. Returns the members with their contents.
fn read(archive: &[u8], piece: usize) -> Result<Vec<(Member, Vec<u8>)>, ArchiveError> {
    let mut reader = TarReader::new();
    let mut members: Vec<(Member, Vec<u8>)> = Vec::new();
    for mut input in archive.chunks(piece) {
        while let Some(event) = reader.next(&mut input)? {
            match event {
                TarEvent::Member(member) => members.push((member, Vec::new())),
                TarEvent::Content(data) => members.last_mut().unwrap().1.extend(data),
                TarEvent::ContentEnd => {
                    let (member, content) = members.last().unwrap();
                    assert_eq!(member.kind, MemberKind::File(content.len() as u64));
                }
            }
        }
        assert!(input.is_empty());
    }
    reader.finish()?;
    Ok(members)
}

fn rejection(parts: &[Vec<u8>]) -> ArchiveError {
    let archive = [parts.concat(), END_OF_ARCHIVE.to_vec()].concat();
    let error = read(&archive, 512).unwrap_err();
    assert_eq!(read(&archive, 7).unwrap_err(), error);
    error
}

#[test]
fn archive_is_read_in_pieces_of_any_size() {
    let long = format!("d/{}", "n".repeat(200));
    let archive = [
        extension(b'g', &pax_record("comment", b"0123")),
        raw(b"./", b'5', 0),
        raw(b"d/", b'5', 0),
        raw(b"d/a", b'0', 5),
        padded(b"hello"),
        raw(b"old", 0, 0),
        extension(b'L', &[long.as_bytes(), b"\0"].concat()),
        raw(b"d/nnn", b'7', 600),
        padded(&[7; 600]),
        pax(&[("path", "d/\u{e9}"), ("size", "3"), ("mtime", "1.5")]),
        raw(b"d/x", b'0', 3),
        padded(b"abc"),
        link(b"d/link", b'2', b"../old"),
        link(b"hard", b'1', b"./d/a"),
        END_OF_ARCHIVE.to_vec(),
        vec![0; 8192],
    ]
    .concat();
    for piece in [1, 13, 511, 512, 513, 100_000] {
        let members = read(&archive, piece).unwrap();
        let paths: Vec<_> = members.iter().map(|(member, _)| member.path.as_str()).collect();
        assert_eq!(paths, ["", "d", "d/a", "old", &long, "d/\u{e9}", "d/link", "hard"]);
        assert_eq!(members[2].1, b"hello");
        assert_eq!(members[2].0.mode, 0o755);
        assert_eq!(members[2].0.modified, ModifyTime::new((7, 0)));
        assert_eq!(members[4].1, [7; 600]);
        assert_eq!(members[5].0.modified, ModifyTime::new((1, 500_000_000)));
        assert_eq!(members[6].0.kind, MemberKind::Symlink("../old".to_owned()));
        assert_eq!(members[7].0.kind, MemberKind::HardLink("d/a".to_owned()));
    }
}

/// Parts of an archive, and the error: kind, text and member.
type HostileCase<'a> = (&'a [Vec<u8>], ArchiveErrorKind, &'a str, Option<&'a str>);

#[test]
fn hostile_members_are_rejected_by_name() {
    use ArchiveErrorKind as K;
    let cases: &[HostileCase] = &[
        (&[raw(b"/etc/passwd", b'0', 0)], K::Escape, "absolute", Some("/etc/passwd")),
        (&[raw(b"a/../../b", b'0', 0)], K::Escape, "`..`", Some("a/../../b")),
        (&[pax(&[("path", "../x")]), raw(b"a", b'0', 0)], K::Escape, "`..`", Some("../x")),
        (&[pax(&[("path", "a\0b")]), raw(b"a", b'0', 0)], K::Invalid, "NUL", Some("a\0b")),
        (&[extension(b'L', b"a\0b\0"), raw(b"a", b'0', 0)], K::Invalid, "NUL", Some("a\0b")),
        (&[raw(b"\xff", b'0', 0)], K::Invalid, "UTF-8", Some("\u{fffd}")),
        (&[raw(b"null", b'3', 0)], K::Invalid, "a device", Some("null")),
        (&[raw(b"disk", b'4', 0)], K::Invalid, "a device", Some("disk")),
        (&[raw(b"pipe", b'6', 0)], K::Invalid, "a FIFO", Some("pipe")),
        (&[raw(b"holes", b'S', 0)], K::Invalid, "a sparse file", Some("holes")),
        (&[raw(b"disk", b'V', 0)], K::Invalid, "unknown type 'V'", Some("disk")),
        (&[pax(&[("GNU.sparse.major", "1")])], K::Invalid, "sparse", None),
        (&[link(b"out", b'2', b"../x")], K::Escape, "out of the tree", Some("out")),
        (&[link(b"out", b'2', b"/etc")], K::Escape, "absolute", Some("out")),
        (&[link(b"out", b'1', b"../x")], K::Escape, "`..`", Some("out")),
        (&[link(b"out", b'1', b"/etc/passwd")], K::Escape, "absolute", Some("out")),
        (&[raw(b"dir/", b'0', 0)], K::Invalid, "name of a directory", Some("dir/")),
        (&[raw(b".", b'0', 0)], K::Invalid, "name of a directory", Some(".")),
        (&[link(b"./", b'2', b"x")], K::Invalid, "not a directory", Some("./")),
        (&[raw(b"d", b'5', 512), padded(b"x")], K::Invalid, "has content", Some("d")),
        // TARmageddon: a reader that trusts the ustar size finds a smuggled member.
        (
            &[pax(&[("size", "512")]), raw(b"a", b'0', 0), raw(b"smuggled", b'0', 0)],
            K::Invalid,
            "the size 512, and the ustar header has 0",
            Some("a"),
        ),
        (&[pax(&[("size", "0")]), raw(b"a", b'0', 512)], K::Invalid, "has the size 0", Some("a")),
        (&[pax(&[("path", "x")]), pax(&[("path", "y")])], K::Invalid, "two extension", None),
        (
            &[extension(b'L', b"x\0"), pax(&[("path", "y")]), raw(b"a", b'0', 0)],
            K::Invalid,
            "a PAX and a GNU header",
            None,
        ),
        (&[pax(&[("path", "")]), raw(b"a", b'0', 0)], K::Invalid, "empty name", None),
        (&[pax(&[("path", "x")])], K::Invalid, "ends after an extension", None),
        (
            &[pax(&[("path", "x")]), extension(b'g', b""), raw(b"a", b'0', 0)],
            K::Invalid,
            "between an extension header",
            None,
        ),
        (&[extension(b'g', &pax_record("path", b"x"))], K::Invalid, "all members", None),
        (&[raw(b"x", b'x', 65_537)], K::TooLarge, "65537 bytes", None),
        (&[raw(b"x", b'L', 5000)], K::TooLarge, "5000 bytes", None),
        (&[raw(b"x", b'g', u64::MAX)], K::TooLarge, "extension header", None),
        (&[raw(b"huge", b'0', 1 << 63)], K::TooLarge, "more than 64 GiB", Some("huge")),
        (&[END_OF_ARCHIVE.to_vec(), raw(b"late", b'0', 0)], K::Invalid, "follows the end", None),
        (&[vec![0; 512], raw(b"late", b'0', 0)], K::Invalid, "follows the end", None),
    ];
    for (parts, kind, text, member) in cases {
        let error = rejection(parts);
        assert_eq!((error.kind, error.member.as_deref()), (*kind, *member), "{error}");
        assert!(error.message.contains(text), "{text}: {error}");
    }
}

#[test]
fn damaged_and_truncated_archives_are_rejected() {
    let mut archive = [raw(b"a", b'0', 5), padded(b"hello"), END_OF_ARCHIVE.to_vec()].concat();
    assert_eq!(read(&archive, 512).unwrap().len(), 1);
    for length in [0, 1, 511, 512, 515, 1024, 1536, archive.len() - 1] {
        let error = read(&archive[..length], 512).unwrap_err();
        assert!(error.message.contains("incomplete"), "{length}: {error}");
    }
    archive[0] = b'b';
    assert!(read(&archive, 512).unwrap_err().message.contains("checksum"));
}

#[test]
fn members_and_bytes_are_limited() {
    let mut reader = TarReader { members: MAX_MEMBERS - 1, ..TarReader::new() };
    let member = raw(b"a", b'0', 0);
    assert!(reader.next(&mut member.as_slice()).is_ok());
    let mut reader = TarReader { members: MAX_MEMBERS, ..TarReader::new() };
    let error = reader.next(&mut member.as_slice()).unwrap_err();
    assert_eq!(error.kind, ArchiveErrorKind::TooLarge);

    let mut reader = TarReader { content_bytes: MAX_CONTENT_BYTES - 4, ..TarReader::new() };
    let error = reader.next(&mut raw(b"a", b'0', 5).as_slice()).unwrap_err();
    assert_eq!(error.kind, ArchiveErrorKind::TooLarge);
}

#[test]
fn size_beyond_eight_gibibytes_may_be_in_the_pax_header_alone() {
    let member = Member {
        path: "a".to_owned(),
        kind: MemberKind::File(MAX_OCTAL_SIZE + 1),
        mode: 0o644,
        modified: None,
    };
    let mut archive = Vec::new();
    write_header(&member, &mut archive);
    let event = TarReader::new().next(&mut archive.as_slice()).unwrap();
    assert!(matches!(event, Some(TarEvent::Member(read)) if read.kind == member.kind));
}
