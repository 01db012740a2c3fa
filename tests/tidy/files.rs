//! The files of this repository.

use std::{fs, path::Path};

use super::imports::Sources;

/// The Rust sources of the package without its tests.
pub(super) fn package_files() -> Sources {
    rust_files()
        .into_iter()
        .filter(|(file, _)| {
            let directory = file.split_once('/').map(|(directory, _)| directory);
            matches!(directory, None | Some("api" | "archive" | "client" | "daemon" | "mcp"))
        })
        .collect()
}

/// All Rust files of the repository.
pub(super) fn rust_files() -> Sources {
    committed_files().into_iter().filter(|(file, _)| file.ends_with(".rs")).collect()
}

/// All text files of the repository that `.gitignore` does not exclude.
pub(super) fn committed_files() -> Sources {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    ignore::WalkBuilder::new(root)
        .hidden(false)
        .parents(false)
        .require_git(false)
        .git_global(false)
        .filter_entry(|entry| entry.file_name() != ".git")
        .build()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().is_some_and(|kind| kind.is_file()))
        .filter_map(|entry| {
            let file = entry.path().strip_prefix(root).unwrap();
            let text = fs::read_to_string(entry.path()).ok()?;
            Some((file.to_str().unwrap().to_owned(), text))
        })
        .collect()
}

/// Reads one file of the repository.
pub(super) fn read_file(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}
