//! Fields of a header block, read strictly.

use tar::Header;

use super::{error::ArchiveError, limits::BLOCK_BYTES};

/// Position of the checksum in a header.
const CHECKSUM_FIELD: std::ops::Range<usize> = 148..156;

/// Whether a block is all zeros, as the end of an archive is.
pub(super) fn is_zero_block(block: &[u8; BLOCK_BYTES]) -> bool {
    block.iter().all(|byte| *byte == 0)
}

/// Interprets a block as a header, after a check of its checksum.
pub(super) fn parse(block: &[u8; BLOCK_BYTES]) -> Result<&Header, ArchiveError> {
    let header = Header::from_byte_slice(block);
    let stored = number(&header.as_old().cksum);
    let sum: u64 = block
        .iter()
        .enumerate()
        .map(|(index, byte)| u64::from(if CHECKSUM_FIELD.contains(&index) { b' ' } else { *byte }))
        .sum();
    if stored != Some(sum) {
        return Err(ArchiveError::invalid(
            "the data is not a tar archive, or is damaged: the checksum of a header is wrong",
        ));
    }
    Ok(header)
}

/// Reads a numeric field: octal digits, or a binary number after a byte `0x80`. `None` for anything
/// that readers understand differently, such as signs and overlong numbers.
pub(super) fn number(field: &[u8]) -> Option<u64> {
    if let [0x80, binary @ ..] = field {
        return binary.iter().try_fold(0_u64, |number, byte| {
            number.checked_mul(256)?.checked_add(u64::from(*byte))
        });
    }

    let digits = field.trim_ascii_start();
    let length = digits.iter().position(|byte| matches!(byte, 0 | b' ')).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(length);
    if rest.iter().any(|byte| !matches!(byte, 0 | b' ')) {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, byte| match byte {
        b'0'..=b'7' => number.checked_mul(8)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_interpretation() {
        for (field, expected) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"    644 ", Some(0o644)),
            (b"644\0 \0 \0", Some(0o644)),
            (b"77777777", Some(0o77_777_777)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"        ", Some(0)),
            (b"\x80\0\0\0\0\0\x01\0", Some(256)),
            (b"\x80\0\0\0\x02\0\0\0\0\0\0\0", Some(2 << 56)),
            // Larger than 64 bits, negative, signs, other digits, text after the end.
            (b"\x80\0\0\x01\0\0\0\0\0\0\0\0", None),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff", None),
            (b"\x81\0\0\0\0\0\0\0", None),
            (b"-0000644", None),
            (b"+0000644", None),
            (b"0x00644\0", None),
            (b"00008\0\0\0", None),
            (b"644\x00777", None),
            (b"6 4\0\0\0\0\0", None),
        ] {
            assert_eq!(number(field), expected, "{:?}", String::from_utf8_lossy(field));
        }
    }
}
