//! The keys `home` and `tmp`: directories that all runs of a workspace share.

use crate::daemon::sandbox::plan::PersistentDirectories;

/// Reads which of the home directory and `/tmp` all runs of a workspace share: the values of the
/// keys `home` and `tmp`, whose table `prefix` names.
pub(super) fn parse_persistent_directories(
    [home, tmp]: [Option<&str>; 2],
    prefix: &str,
    defaults: PersistentDirectories,
    problems: &mut Vec<String>,
) -> PersistentDirectories {
    let mut parse = |text: Option<&str>, key: &str, default: bool| match text {
        None => default,
        Some("ephemeral") => false,
        Some("persistent") => true,
        Some(other) => {
            problems.push(format!("{prefix}{key} = {other:?}: give \"ephemeral\" for an empty directory at each run, or \"persistent\" for one that all runs of a workspace share"));
            false
        }
    };
    PersistentDirectories {
        home: parse(home, "home", defaults.home),
        tmp: parse(tmp, "tmp", defaults.tmp),
    }
}

#[cfg(test)]
mod tests {
    use super::{PersistentDirectories, parse_persistent_directories};

    #[test]
    fn a_directory_is_persistent_only_on_request() {
        for (text, expected, is_problem) in [
            (None, false, false),
            (Some("ephemeral"), false, false),
            (Some("persistent"), true, false),
            (Some("Persistent"), false, true),
            (Some(""), false, true),
        ] {
            let mut problems = Vec::new();
            let mut parse = |texts, defaults| {
                parse_persistent_directories(texts, "sandbox.", defaults, &mut problems)
            };
            let defaults = PersistentDirectories::default();
            assert_eq!(parse([text, None], defaults).home, expected, "{text:?}");
            assert_eq!(parse([None, text], defaults).tmp, expected, "{text:?}");
            let defaults = PersistentDirectories { home: true, tmp: true };
            let parsed = parse([text, None], defaults);
            assert_eq!((parsed.home, parsed.tmp), (expected || text.is_none(), true), "{text:?}");
            assert_eq!(!problems.is_empty(), is_problem, "{text:?}");
        }
    }
}
