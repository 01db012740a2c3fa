//! PAX extended headers (POSIX.1-2024, pax): records that replace fields of the next header.

use super::{
    error::{ArchiveError, ArchiveErrorKind},
    member::ModifyTime,
};

/// Value of `hdrcharset` for names in UTF-8. Names of the other charset must be UTF-8 as well.
const CHARSETS: [&[u8]; 2] = [b"ISO-IR 10646 2000 UTF-8", b"BINARY"];

/// Records that matter for the next member. All others are ignored: owners, access times, extended
/// attributes and comments.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct PaxRecords {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link_path: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) modified: Option<ModifyTime>,
}

impl PaxRecords {
    /// Parses the records of the next member. No record may occur twice.
    pub(super) fn parse(data: &[u8]) -> Result<Self, ArchiveError> {
        let mut records = Self::default();
        for_each_record(data, |key, value| {
            match key {
                b"path" => set_once(&mut records.path, key, value.to_vec()),
                b"linkpath" => set_once(&mut records.link_path, key, value.to_vec()),
                b"size" => set_once(&mut records.size, key, parse_size(value)?),
                // A time that cannot be represented is left out.
                b"mtime" => {
                    records.modified = parse_time(value);
                    Ok(())
                }
                _ => check_ignored(key, value),
            }
        })?;
        Ok(records)
    }

    /// Checks the records for all further members, such as the comment of `git archive`. Such
    /// records cannot change names, links and sizes: readers disagree about the order of precedence.
    pub(super) fn check_global(data: &[u8]) -> Result<(), ArchiveError> {
        for_each_record(data, |key, value| match key {
            b"path" | b"linkpath" | b"size" => {
                let key = String::from_utf8_lossy(key);
                Err(ArchiveError::invalid(format!(
                    "a global PAX header has {key:?}, which would apply to all members"
                )))
            }
            _ => check_ignored(key, value),
        })
    }
}

/// Calls `record` with the key and value of each record: `LENGTH KEY=VALUE\n`.
fn for_each_record(
    data: &[u8],
    mut record: impl FnMut(&[u8], &[u8]) -> Result<(), ArchiveError>,
) -> Result<(), ArchiveError> {
    let malformed = || ArchiveError::invalid("a PAX header is malformed");
    let mut rest = data;
    while !rest.is_empty() {
        let space = rest.iter().take(20).position(|byte| *byte == b' ').ok_or_else(malformed)?;
        let length = parse_decimal(&rest[..space]).and_then(|length| usize::try_from(length).ok());
        let length = length.filter(|length| *length > space + 1).ok_or_else(malformed)?;
        let (line, next) = rest.split_at_checked(length).ok_or_else(malformed)?;

        let line = line[space + 1..].strip_suffix(b"\n").ok_or_else(malformed)?;
        let equals = line.iter().position(|byte| *byte == b'=').ok_or_else(malformed)?;
        record(&line[..equals], &line[equals + 1..])?;
        rest = next;
    }
    Ok(())
}

fn set_once<T>(slot: &mut Option<T>, key: &[u8], value: T) -> Result<(), ArchiveError> {
    if slot.replace(value).is_some() {
        let key = String::from_utf8_lossy(key);
        return Err(ArchiveError::invalid(format!("a PAX header has {key:?} twice")));
    }
    Ok(())
}

/// Rejects the ignored records that change the meaning of others.
fn check_ignored(key: &[u8], value: &[u8]) -> Result<(), ArchiveError> {
    if key.starts_with(b"GNU.sparse.") || key.starts_with(b"SUN.holesdata") {
        let text = "sparse files are not accepted: archive them without --sparse";
        return Err(ArchiveError::invalid(text));
    }
    if key == b"hdrcharset" && !CHARSETS.contains(&value) {
        return Err(ArchiveError::invalid("names in a charset other than UTF-8 are not accepted"));
    }
    Ok(())
}

fn parse_size(value: &[u8]) -> Result<u64, ArchiveError> {
    parse_decimal(value).ok_or_else(|| {
        let value = String::from_utf8_lossy(value).into_owned();
        let text = format!("a PAX header has the size {value:?}, which is not a number of bytes");
        ArchiveError::new(ArchiveErrorKind::Invalid, text)
    })
}

/// Parses decimal digits, without a sign.
fn parse_decimal(digits: &[u8]) -> Option<u64> {
    let is_decimal = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_decimal.then(|| str::from_utf8(digits).ok()?.parse().ok())?
}

/// Parses seconds since 1970 with an optional fraction, such as `-1.5`.
fn parse_time(value: &[u8]) -> Option<ModifyTime> {
    let (is_negative, digits) = match value {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let mut parts = digits.splitn(2, |byte| *byte == b'.');
    let seconds = i64::try_from(parse_decimal(parts.next()?)?).ok()?;

    let fraction = parts.next().unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let nanos = (0..9).fold(0_u32, |nanos, index| {
        nanos * 10 + fraction.get(index).map_or(0, |digit| u32::from(digit - b'0'))
    });

    ModifyTime::new(match (is_negative, nanos) {
        (false, nanos) => (seconds, nanos),
        (true, 0) => (-seconds, 0),
        (true, nanos) => (-seconds - 1, 1_000_000_000 - nanos),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str, value: &str) -> Vec<u8> {
        super::super::writer::pax_record(key, value.as_bytes())
    }

    #[test]
    fn records_are_read_by_their_length() {
        let mut data = record("path", "a\nb=c d");
        data.extend(record("size", "12"));
        data.extend(record("mtime", "-1.5"));
        data.extend(record("SCHILY.xattr.user.x", "ignored"));
        let records = PaxRecords::parse(&data).unwrap();
        assert_eq!(records.path.as_deref(), Some(&b"a\nb=c d"[..]));
        assert_eq!((records.size, records.link_path), (Some(12), None));
        assert_eq!(records.modified, ModifyTime::new((-2, 500_000_000)));
    }

    #[test]
    fn malformed_and_ambiguous_records_are_rejected() {
        let twice = [record("size", "1"), record("size", "2")].concat();
        for (data, text) in [
            (&b"x"[..], "malformed"),
            (b"5 a=b", "malformed"),
            (b"6 a=b\nx", "malformed"),
            (b"99 a=b\n", "malformed"),
            (b"2 \n", "malformed"),
            (b"0 a=b\n", "malformed"),
            (b"+6 a=b\n", "malformed"),
            (b"6 a b\n", "malformed"),
            (b"99999999999999999999999 a=b\n", "malformed"),
            (&twice, "twice"),
            (&record("size", "-1"), "not a number"),
            (&record("size", "99999999999999999999"), "not a number"),
            (&record("GNU.sparse.map", "0,1"), "sparse"),
            (&record("hdrcharset", "ISO-8859-1"), "charset"),
        ] {
            let error = PaxRecords::parse(data).unwrap_err();
            assert!(error.message.contains(text), "{:?}: {error}", String::from_utf8_lossy(data));
        }
    }

    #[test]
    fn global_records_cannot_rename_members() {
        assert_eq!(PaxRecords::check_global(&record("comment", "0123abcd")), Ok(()));
        for key in ["path", "linkpath", "size", "GNU.sparse.name"] {
            assert!(PaxRecords::check_global(&record(key, "1")).is_err(), "{key}");
        }
    }

    #[test]
    fn times_are_parsed() {
        for (text, expected) in [
            ("0", Some((0, 0))),
            ("1.000000001", Some((1, 1))),
            ("1.0000000019", Some((1, 1))),
            ("-2", Some((-2, 0))),
            ("1.", Some((1, 0))),
            ("", None),
            ("x", None),
            ("1.x", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(parse_time(text.as_bytes()), expected.and_then(ModifyTime::new), "{text}");
        }
    }
}
