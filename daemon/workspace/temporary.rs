//! Names of the daemon's own files in a workspace: new contents on the way to their places, and old
//! ones on the way out. The tools that list pass them over, and those that write make none.

/// Whether only the daemon gives such a name to a file: `.jig-`, a ULID and `.tmp`, and for a moment
/// also a `~` behind it, where the file system cannot swap two files.
pub(super) fn is_temporary(name: &[u8]) -> bool {
    let name = name.strip_suffix(b"~").unwrap_or(name);
    let id = name.strip_prefix(b".jig-").and_then(|name| name.strip_suffix(b".tmp"));
    // Crockford's Base32, in which ULIDs are written: no I, L, O and U.
    let in_alphabet =
        |byte: &u8| matches!(byte, b'0'..=b'9' | b'A'..=b'Z') && !b"ILOU".contains(byte);
    id.is_some_and(|id| id.len() == 26 && id.iter().all(in_alphabet))
}

#[cfg(test)]
mod tests {
    use super::{super::rename_step::temporary_name, *};

    #[test]
    fn only_what_the_daemon_makes_is_its_own() {
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
