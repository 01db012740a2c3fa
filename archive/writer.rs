//! Writes the headers of members: ustar, with a PAX header where a field does not fit.

use tar::{EntryType, Header};

use super::{
    limits::BLOCK_BYTES,
    member::{Member, MemberKind, ModifyTime},
};

/// The end of an archive: two blocks of zeros.
pub const END_OF_ARCHIVE: [u8; 2 * BLOCK_BYTES] = [0; 2 * BLOCK_BYTES];
/// Largest number in a field of 11 octal digits, for sizes and times.
const MAX_OCTAL: u64 = 0o77_777_777_777;
/// Bytes of the fields for the name and the target of a link.
const NAME_FIELD_BYTES: usize = 100;

/// Appends the header of a member, and a PAX header before it if it needs one. Owners are 0.
pub fn write_header(member: &Member, archive: &mut Vec<u8>) {
    let mut records = Vec::new();
    let (kind, size, target) = match &member.kind {
        MemberKind::File(size) => (EntryType::Regular, *size, None),
        MemberKind::Directory => (EntryType::Directory, 0, None),
        MemberKind::Symlink(target) => (EntryType::Symlink, 0, Some(target)),
        MemberKind::HardLink(target) => (EntryType::Link, 0, Some(target)),
    };
    let mut name = member.path.clone();
    if member.kind == MemberKind::Directory {
        name.push('/');
    }

    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(member.mode);
    header.set_uid(0);
    header.set_gid(0);
    set_text(&mut header.as_old_mut().name, &name, "path", &mut records);
    if let Some(target) = target {
        set_text(&mut header.as_old_mut().linkname, target, "linkpath", &mut records);
    }
    if size > MAX_OCTAL {
        records.extend(pax_record("size", size.to_string().as_bytes()));
    }
    header.set_size(if size > MAX_OCTAL { 0 } else { size });
    set_time(&mut header, member.modified, &mut records);
    header.set_cksum();

    if !records.is_empty() {
        let mut pax = Header::new_ustar();
        pax.set_entry_type(EntryType::XHeader);
        pax.set_mode(0o644);
        pax.set_uid(0);
        pax.set_gid(0);
        pax.set_mtime(0);
        pax.set_size(records.len() as u64);
        let name = b"PaxHeaders/member";
        pax.as_old_mut().name[..name.len()].copy_from_slice(name);
        pax.set_cksum();
        archive.extend_from_slice(pax.as_bytes());
        archive.extend_from_slice(&records);
        archive.resize(archive.len() + padding(records.len() as u64), 0);
    }
    archive.extend_from_slice(header.as_bytes());
}

/// Returns the number of zeros after a content, up to the next block.
#[must_use]
pub fn padding(content_bytes: u64) -> usize {
    // The remainder is less than a block.
    let used = usize::try_from(content_bytes % BLOCK_BYTES as u64).unwrap_or(0);
    (BLOCK_BYTES - used) % BLOCK_BYTES
}

/// Returns a PAX record. Its length counts its own digits.
pub(super) fn pax_record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3; // the space, `=` and the newline
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    let mut record = format!("{length} {key}=").into_bytes();
    record.extend_from_slice(value);
    record.push(b'\n');
    record
}

/// Writes a text into its field. If it does not fit or is not ASCII, a record has it.
fn set_text(field: &mut [u8; NAME_FIELD_BYTES], text: &str, key: &str, records: &mut Vec<u8>) {
    if text.len() > NAME_FIELD_BYTES || !text.is_ascii() {
        records.extend(pax_record(key, text.as_bytes()));
    }
    let ascii = text.bytes().map(|byte| if byte.is_ascii() { byte } else { b'_' });
    for (slot, byte) in field.iter_mut().zip(ascii) {
        *slot = byte;
    }
}

fn set_time(header: &mut Header, time: Option<ModifyTime>, records: &mut Vec<u8>) {
    let Some(time) = time else {
        header.as_old_mut().mtime.fill(0); // blank
        return;
    };
    let (seconds, nanos) = (time.seconds(), time.nanos());
    let octal = u64::try_from(seconds).ok().filter(|seconds| *seconds <= MAX_OCTAL);
    header.set_mtime(octal.unwrap_or(0));
    if octal.is_some() && nanos == 0 {
        return;
    }

    let text = match (seconds < 0, nanos) {
        (false, nanos) => format!("{seconds}.{nanos:09}"),
        (true, 0) => seconds.to_string(),
        (true, nanos) => format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanos),
    };
    records.extend(pax_record("mtime", text.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::{
        super::reader::{TarEvent, TarReader},
        *,
    };

    #[test]
    fn record_lengths_count_themselves() {
        assert_eq!(pax_record("a", b"b"), b"6 a=b\n");
        for length in [1, 2, 90, 91, 92, 93, 94, 95, 990, 991, 992, 993, 994, 995] {
            let record = pax_record("k", &vec![b'v'; length]);
            let text = String::from_utf8(record.clone()).unwrap();
            assert_eq!(text.split(' ').next().unwrap().parse(), Ok(record.len()));
        }
    }

    #[test]
    fn headers_are_read_as_they_were_written() {
        let time = |seconds, nanos| ModifyTime::new((seconds, nanos));
        let member = |path: &str, kind, modified| Member {
            path: path.to_owned(),
            kind,
            mode: 0o640,
            modified,
        };
        for member in [
            member("a", MemberKind::File(0), time(1, 0)),
            member("a\nb", MemberKind::File(0), time(1, 5)),
            member("long/".repeat(50).trim_end_matches('/'), MemberKind::Directory, time(-1, 0)),
            member(&"n".repeat(100), MemberKind::Directory, time(-5, 7)),
            member("d/\u{e9}\u{1f600}", MemberKind::Symlink("x/\u{e9}".into()), time(1 << 34, 0)),
            member("l", MemberKind::Symlink("t".repeat(300)), time(0, 0)),
            member("h", MemberKind::HardLink("a".into()), time(0, 0)),
            member("large", MemberKind::File(MAX_OCTAL + 1), time(9, 0)),
            member("now", MemberKind::File(0), None),
        ] {
            let mut archive = Vec::new();
            write_header(&member, &mut archive);
            assert!(archive.len().is_multiple_of(BLOCK_BYTES));
            let mut input = archive.as_slice();
            let event = TarReader::new().next(&mut input).unwrap();
            assert_eq!(event, Some(TarEvent::Member(member)));
            assert!(input.is_empty());
        }
    }
}
