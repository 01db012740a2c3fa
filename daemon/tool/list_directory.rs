//! `list_dir`: lists the entries of one directory, page by page.

use super::{
    Tool, ToolContext, ToolOutput, WorkspaceContext,
    file_work::run_on_files,
    page_token::{PageFilterHash, decode_page_token, encode_page_token},
    wire_file::{file_type, modify_time},
};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Violation},
        workspace::{CancelToken, RelativePath, Workspace},
    },
};

/// Entries on a page, by default.
const DEFAULT_PAGE_ENTRIES: u32 = 1000;

#[derive(Debug)]
pub(crate) struct ListDirectory;

impl Tool for ListDirectory {
    const NAME: &'static str = "list_dir";
    type Request = v1::ListDirectoryRequest;
    type Response = v1::ListDirectoryResponse;
    type Params = v1::ListDirectoryRequest;

    fn validate(
        request: Self::Request,
        workspace_context: &WorkspaceContext,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Self::Params>, Error> {
        let workspace = &workspace_context.workspace;
        let base = workspace.resolve(request.path.as_deref().unwrap_or("."));
        if let Ok(base) = &base
            && let Err(error) = page_start(&request, &filter_hash(workspace, base))
        {
            violations.extend(error.violations);
        }
        if !violations.is_empty() {
            return Ok(None);
        }

        base?;
        Ok(Some(request))
    }

    async fn execute(
        request: Self::Request,
        context: ToolContext,
    ) -> Result<ToolOutput<Self::Response>, Error> {
        run_on_files(context, move |workspace, cancel| list_directory(workspace, &request, cancel))
            .await
    }
}

fn list_directory(
    workspace: &Workspace,
    request: &v1::ListDirectoryRequest,
    cancel: &CancelToken,
) -> Result<v1::ListDirectoryResponse, Error> {
    let base = workspace.resolve(request.path.as_deref().unwrap_or("."))?;
    let filters = filter_hash(workspace, &base);
    let after = page_start(request, &filters)?;
    // A page of the largest size fits into 4 MiB even with names of maximal length.
    let page_size = request.page_size.unwrap_or(DEFAULT_PAGE_ENTRIES).max(1);
    let page_size = usize::try_from(page_size).unwrap_or(usize::MAX);

    let page = workspace.read_directory_page(&base, after.as_deref(), page_size, cancel)?;
    let entries = page.entries.into_iter().map(|(name, metadata)| v1::DirectoryEntry {
        name,
        r#type: file_type(metadata.kind).into(),
        size_bytes: metadata.size,
        modify_time: modify_time(&metadata),
        mode: metadata.mode,
    });
    Ok(v1::ListDirectoryResponse {
        entries: entries.collect(),
        file_count: page.files,
        directory_count: page.directories,
        next_page_token: page
            .continue_after
            .map_or_else(String::new, |last| encode_page_token(&filters, &last)),
        skipped_names: page.skipped_names,
    })
}

fn filter_hash(workspace: &Workspace, base: &RelativePath) -> PageFilterHash {
    PageFilterHash::new(&["list_dir", workspace.name(), base.as_str()], &[])
}

/// The name after which the page starts; `None` for the first page.
fn page_start(
    request: &v1::ListDirectoryRequest,
    filters: &PageFilterHash,
) -> Result<Option<String>, Error> {
    match request.page_token.as_deref() {
        None | Some("") => Ok(None),
        Some(token) => decode_page_token(token, filters).map(Some),
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
                let page = list_directory(&workspace, &request, &CancelToken::new()).unwrap();
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
            let other = list_directory(&workspace, &request, &CancelToken::new());
            if request.page_token.is_some() {
                assert_eq!(other.unwrap_err().reason, Reason::InvalidParams);
            }
        }
    }

    #[test]
    fn large_directory_is_listed_without_holding_all_names() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..6000 {
            fs::write(directory.path().join(format!("{number:04}")), "").unwrap();
        }

        let workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();
        let request = v1::ListDirectoryRequest { page_size: Some(3), ..Default::default() };
        let page = list_directory(&workspace, &request, &CancelToken::new()).unwrap();
        let names: Vec<_> = page.entries.iter().map(|entry| &entry.name).collect();
        assert_eq!(names, ["0000", "0001", "0002"]);
        assert_eq!(page.file_count, 6000);

        let cancel = CancelToken::new();
        cancel.cancel();
        let error = list_directory(&workspace, &request, &cancel).unwrap_err();
        assert_eq!(error.reason, Reason::Timeout);
    }
}
