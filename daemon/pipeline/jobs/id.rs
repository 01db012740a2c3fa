//! Ids of jobs in two spellings of the same 128 bits: ULID and UUID.

use std::borrow::Cow;

use ulid::Ulid;

/// Length of a UUID.
const UUID_BYTES: usize = 36;
/// Positions of the hyphens in a UUID.
const UUID_HYPHEN_OFFSETS: [usize; 4] = [8, 13, 18, 23];

/// Converts an id to a UUID. Returns an id that is no ULID unchanged.
pub(crate) fn as_uuid(id: &str) -> String {
    let Ok(id) = Ulid::from_string(id) else {
        return id.to_owned();
    };

    let mut uuid = format!("{:032x}", u128::from(id));
    for offset in UUID_HYPHEN_OFFSETS {
        uuid.insert(offset, '-');
    }
    uuid
}

/// Whether an id has the form of a UUID.
pub(crate) fn is_uuid(id: &str) -> bool {
    let mut bytes = id.bytes().enumerate();
    id.len() == UUID_BYTES
        && bytes.all(|(offset, byte)| {
            if UUID_HYPHEN_OFFSETS.contains(&offset) {
                byte == b'-'
            } else {
                byte.is_ascii_hexdigit()
            }
        })
}

/// Converts an id in either spelling to a ULID. Returns any other id unchanged.
pub(super) fn as_ulid(id: &str) -> Cow<'_, str> {
    if !is_uuid(id) {
        return id.into();
    }

    let bits = u128::from_str_radix(&id.replace('-', ""), 16);
    bits.map_or(id.into(), |bits| Ulid::from(bits).to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_are_the_same_id() {
        for id in [Ulid::generate(), Ulid::from(0), Ulid::from(u128::MAX)] {
            let ulid = id.to_string();
            let uuid = as_uuid(&ulid);
            assert_eq!((uuid.len(), uuid.split('-').count()), (36, 5));
            assert_eq!(as_ulid(&uuid), ulid);
            assert_eq!(as_ulid(&uuid.to_uppercase()), ulid);
            assert_eq!(as_ulid(&ulid), ulid);
        }

        for other in ["", "x", "550e8400-e29b-41d4-a716-44665544000x"] {
            assert_eq!(as_ulid(other), other);
            assert_eq!(as_uuid(other), other);
        }
    }
}
