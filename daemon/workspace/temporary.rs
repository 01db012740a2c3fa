//! Names of the daemon's temporary files in a workspace: new contents before they are renamed into
//! place, and old ones before they are deleted. Listings omit them, and file tools cannot create
//! them.

/// Whether a name is reserved for temporary files: `.jig-`, a ULID and `.tmp`. Briefly also with a
/// trailing `~`, on file systems that cannot exchange two files.
pub(super) fn is_temporary(name: &[u8]) -> bool {
    let name = name.strip_suffix(b"~").unwrap_or(name);
    let id = name.strip_prefix(b".jig-").and_then(|name| name.strip_suffix(b".tmp"));
    // Crockford's Base32, the alphabet of ULIDs, without I, L, O and U.
    let in_alphabet =
        |byte: &u8| matches!(byte, b'0'..=b'9' | b'A'..=b'Z') && !b"ILOU".contains(byte);
    id.is_some_and(|id| id.len() == 26 && id.iter().all(in_alphabet))
}

#[cfg(test)]
mod tests {
    use super::{super::rename_step::temporary_name, *};

    #[test]
    fn only_exact_temporary_names_are_reserved() {
        let own = temporary_name();
        assert!(is_temporary(own.as_bytes()), "{own}");
        for (name, is_own) in [
            (".jig-01ARZ3NDEKTSV4RRFFQ69G5FAV.tmp", true),
            (".jig-01ARZ3NDEKTSV4RRFFQ69G5FAV.tmp~", true),
            (".jig-01ARZ3NDEKTSV4RRFFQ69G5FAV.tmp~~", false),
            (".jig-01ARZ3NDEKTSV4RRFFQ69G5FAV.tmp.bak", false),
            (".jig-01ARZ3NDEKTSV4RRFFQ69G5FAV", false),
            (".jig-01ARZ3NDEKTSV4RRFFQ69G5FA.tmp", false),
            (".jig-01ARZ3NDEKTSV4RRFFQ69G5FAVX.tmp", false),
            (".jig-01ARZ3NDEKTSV4RRFFQ69G5FAU.tmp", false),
            (".jig-01arz3ndektsv4rrffq69g5fav.tmp", false),
            ("x.jig-01ARZ3NDEKTSV4RRFFQ69G5FAV.tmp", false),
            (".jig-.tmp", false),
            (".jig.tmp", false),
            ("~", false),
            ("", false),
        ] {
            assert_eq!(is_temporary(name.as_bytes()), is_own, "{name}");
        }
    }
}
