//! `list_dir`: the entries of one directory, page by page.

use super::{
    Done, Scene, Tool, Work,
    description::{file_type, modify_time},
    on_files,
    page_token::{Filters, read_token, write_token},
};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Violation},
        workspace::{RelativePath, Stop, Workspace},
    },
};

/// Entries on a page that says nothing about it.
const DEFAULT_ENTRIES: u32 = 1000;

/// The tool.
#[derive(Debug)]
pub(crate) struct ListDirectory;

impl Tool for ListDirectory {
    const NAME: &'static str = "list_dir";
    type Request = v1::ListDirectoryRequest;
    type Response = v1::ListDirectoryResponse;
    type Params = v1::ListDirectoryRequest;

    fn check(
        request: Self::Request,
        scene: &Scene,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Self::Params>, Error> {
        let base = scene.workspace.resolve(request.path.as_deref().unwrap_or("."));
        if let Ok(base) = &base
            && let Err(error) = after(&request, &filters(&scene.workspace, base))
        {
            violations.extend(error.violations);
        }
        if !violations.is_empty() {
            return Ok(None);
        }
        base?;
        Ok(Some(request))
    }

    async fn execute(request: Self::Request, work: Work) -> Result<Done<Self::Response>, Error> {
        on_files(work, move |workspace, stop| list_directory(workspace, &request, stop)).await
    }
}

fn list_directory(
    workspace: &Workspace,
    request: &v1::ListDirectoryRequest,
    stop: &Stop,
) -> Result<v1::ListDirectoryResponse, Error> {
    let base = workspace.resolve(request.path.as_deref().unwrap_or("."))?;
    let filters = filters(workspace, &base);
    let after = after(request, &filters)?;
    // With its names as long as they can be, a page of the largest size fits into 4 MiB.
    let most = request.page_size.unwrap_or(DEFAULT_ENTRIES).max(1);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let contents = workspace.contents(&base, after.as_deref(), most, stop)?;
    let entries = contents.entries.into_iter().map(|(name, description)| v1::DirectoryEntry {
        name,
        r#type: file_type(description.kind).into(),
        size_bytes: description.size,
        modify_time: modify_time(&description),
        mode: description.mode,
    });
    Ok(v1::ListDirectoryResponse {
        entries: entries.collect(),
        file_count: contents.files,
        directory_count: contents.directories,
        next_page_token: contents
            .more_behind
            .map_or_else(String::new, |last| write_token(&filters, &last)),
        skipped_names: contents.skipped,
    })
}

fn filters(workspace: &Workspace, base: &RelativePath) -> Filters {
    Filters::new(&["list_dir", workspace.name(), base.as_str()], &[])
}

/// The name behind which the page begins.
fn after(request: &v1::ListDirectoryRequest, filters: &Filters) -> Result<Option<String>, Error> {
    match request.page_token.as_deref() {
        None | Some("") => Ok(None),
        Some(token) => read_token(token, filters).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt as _};

    use super::*;
    use crate::daemon::error::Reason;

    #[test]
    fn every_page_size_gives_every_entry_once() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &[u8]| directory.path().join(OsStr::from_bytes(name));
        let mut expected =
            vec!["a", "a b", "b", ".git", ".hidden", "\u{e9}", "z", "directory", "B", "link"];
        for name in &expected {
            match *name {
                ".git" | "directory" => fs::create_dir(at(name.as_bytes())).unwrap(),
                "link" => std::os::unix::fs::symlink("/", at(b"link")).unwrap(),
                _ => fs::write(at(name.as_bytes()), "").unwrap(),
            }
        }
        fs::write(at(b"\xff"), "").unwrap();
        expected.sort_unstable();
        let workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();
        for size in 1..=11 {
            let mut request =
                v1::ListDirectoryRequest { page_size: Some(size), ..Default::default() };
            let mut names = Vec::new();
            loop {
                let page = list_directory(&workspace, &request, &Stop::new()).unwrap();
                assert_eq!((page.file_count, page.directory_count), (8, 2));
                assert_eq!(page.skipped_names, 1);
                assert!(page.entries.len() <= usize::try_from(size).unwrap());
                names.extend(page.entries.into_iter().map(|entry| entry.name));
                if page.next_page_token.is_empty() {
                    break;
                }
                request.page_token = Some(page.next_page_token);
            }
            assert_eq!(names, expected, "{size}");
            request.path = Some("directory".to_owned());
            let other = list_directory(&workspace, &request, &Stop::new());
            if request.page_token.is_some() {
                assert_eq!(other.unwrap_err().reason, Reason::InvalidParams);
            }
        }
    }

    #[test]
    fn the_first_names_of_a_large_directory_are_found_without_holding_all() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..6000 {
            fs::write(directory.path().join(format!("{number:04}")), "").unwrap();
        }
        let workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();
        let request = v1::ListDirectoryRequest { page_size: Some(3), ..Default::default() };
        let page = list_directory(&workspace, &request, &Stop::new()).unwrap();
        let names: Vec<_> = page.entries.iter().map(|entry| &entry.name).collect();
        assert_eq!(names, ["0000", "0001", "0002"]);
        assert_eq!(page.file_count, 6000);
        let stop = Stop::new();
        stop.stop();
        let error = list_directory(&workspace, &request, &stop).unwrap_err();
        assert_eq!(error.reason, Reason::Timeout);
    }
}
