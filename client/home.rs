//! Rejects directories that are hardly meant as a workspace: `/`, the home directory, its parents.
//!
//! Commands could read and change everything in them.

use std::{fs, path::Path};

use crate::cli_error::CliError;

/// Returns an error for `/`. Also for the home directory and its parents, unless `is_allowed`.
pub(crate) fn check(workspace: &Path, is_allowed: bool) -> Result<(), CliError> {
    let canonical = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let home = std::env::home_dir().map(|home| canonical(&home));
    problem(&canonical(workspace), home.as_deref(), is_allowed)
        .map_or(Ok(()), |problem| Err(CliError::Usage(problem)))
}

fn problem(workspace: &Path, home: Option<&Path>, is_allowed: bool) -> Option<String> {
    if workspace == Path::new("/") {
        return Some(
            "the root directory cannot be a workspace: run jig in the directory of the project"
                .to_owned(),
        );
    }
    let holds_home = home.is_some_and(|home| home.starts_with(workspace) && home != Path::new("/"));
    (holds_home && !is_allowed).then(|| {
        format!(
            "{workspace:?} holds your home directory: commands could read and change all of it, including keys and passwords. Run jig in the directory of the project, or allow it with --allow-home"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_and_root_directories_are_rejected() {
        let home = Some(Path::new("/home/me"));
        let is_rejected = |path: &str, allowed| problem(Path::new(path), home, allowed).is_some();
        for path in ["/", "/home", "/home/me"] {
            assert!(is_rejected(path, false), "{path}");
        }
        for path in ["/home/me/project", "/home/you", "/srv"] {
            assert!(!is_rejected(path, false), "{path}");
        }
        assert!(is_rejected("/", true) && !is_rejected("/home/me", true));
        // The home directory `/` of a service account.
        assert!(problem(Path::new("/srv"), Some(Path::new("/")), false).is_none());
    }
}
