//! Directories that nobody means as a workspace: commands may read and change all that is in it.

use std::{fs, path::Path};

use crate::cli_error::CliError;

/// Refuses the root directory, and the home directory and those above it unless that is insisted on.
pub(crate) fn check(workspace: &Path, is_allowed: bool) -> Result<(), CliError> {
    let canonical = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let home = jig::daemon::home_dir().map(|home| canonical(&home));
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
            "{workspace:?} holds your home directory: commands could read and change all of it, also keys and passwords. Run jig in the directory of the project, or insist with --allow-home"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_directory_is_no_project() {
        let home = Some(Path::new("/home/me"));
        let is_refused = |path: &str, allowed| problem(Path::new(path), home, allowed).is_some();
        for path in ["/", "/home", "/home/me"] {
            assert!(is_refused(path, false), "{path}");
        }
        for path in ["/home/me/project", "/home/you", "/srv"] {
            assert!(!is_refused(path, false), "{path}");
        }
        assert!(is_refused("/", true) && !is_refused("/home/me", true));
        // That of a service that has none.
        assert!(problem(Path::new("/srv"), Some(Path::new("/")), false).is_none());
    }
}
