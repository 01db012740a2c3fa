//! `create_directory`: a directory of the workspace, with those above it.

use super::{Tool, ToolContext, ToolOutput, WorkspaceContext, run_on_files};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Violation},
        workspace::{CancelToken, RelativePath, Workspace},
    },
};

/// Most bytes of paths that are answered: each path repeats those above it, and clients accept
/// messages of 4 MiB.
const MAX_CREATED_PATH_BYTES: usize = 3 << 20;

/// The tool.
#[derive(Debug)]
pub(crate) struct CreateDirectory;

impl Tool for CreateDirectory {
    const NAME: &'static str = "create_directory";
    type Request = v1::CreateDirectoryRequest;
    type Response = v1::CreateDirectoryResponse;
    type Params = RelativePath;

    fn validate(
        request: Self::Request,
        workspace_context: &WorkspaceContext,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<RelativePath>, Error> {
        if !violations.is_empty() {
            return Ok(None);
        }
        workspace_context.workspace.resolve(&request.path).map(Some)
    }

    fn affected_paths(path: &Self::Params, _scene: &WorkspaceContext) -> Vec<String> {
        vec![path.as_str().to_owned()]
    }

    async fn execute(
        path: RelativePath,
        context: ToolContext,
    ) -> Result<ToolOutput<Self::Response>, Error> {
        run_on_files(context, move |workspace, stop| create_directory(workspace, &path, stop)).await
    }
}

fn create_directory(
    workspace: &Workspace,
    path: &RelativePath,
    stop: &CancelToken,
) -> Result<v1::CreateDirectoryResponse, Error> {
    let mut change = workspace.begin_transaction(std::slice::from_ref(path), stop)?;
    change.create_directories(path)?;
    let response = response(change.created_directories());
    change.commit()?.sync_result()?;
    Ok(response)
}

fn response<'a>(made: impl Iterator<Item = &'a str>) -> v1::CreateDirectoryResponse {
    let mut left = MAX_CREATED_PATH_BYTES;
    let fitting = made.take_while(|path| {
        let less = left.checked_sub(path.len());
        left = less.unwrap_or(0);
        less.is_some()
    });
    v1::CreateDirectoryResponse { created: fitting.map(str::to_owned).collect() }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use prost::Message as _;

    use super::*;
    use crate::daemon::error::Reason as R;

    #[test]
    fn directories_are_made_as_far_as_they_are_missing() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("/tmp", folder.path().join("link")).unwrap();
        let workspace = Workspace::open("w", folder.path(), "/workspace").unwrap();
        for (path, expected) in [
            ("a/b", Ok(vec!["a", "a/b"])),
            ("a/b/c/d", Ok(vec!["a/b/c", "a/b/c/d"])),
            ("a", Ok(vec![])),
            (".", Ok(vec![])),
            ("file", Err(R::FileExists)),
            ("file/x", Err(R::NotADirectory)),
            ("link", Err(R::SymlinkBlocked)),
            ("link/x", Err(R::SymlinkBlocked)),
        ] {
            let path = workspace.resolve(path).unwrap();
            let created = create_directory(&workspace, &path, &CancelToken::new());
            let created = created.map(|response| response.created);
            let expected = expected.map(|paths| paths.into_iter().map(str::to_owned).collect());
            assert_eq!(created.map_err(|error| error.reason), expected, "{path}");
        }
        assert!(folder.path().join("a/b/c/d").is_dir());
    }

    #[test]
    fn the_answer_fits_into_a_message_that_clients_accept() {
        let deepest = ["d"; 2048].join("/");
        let made: Vec<&str> = (1..=2048).map(|depth| &deepest[..2 * depth - 1]).collect();
        assert!(made.concat().len() >= 4 << 20);
        let response = response(made.iter().copied());
        assert!(response.encoded_len() < 4 << 20);
        let created = response.created;
        assert!(created.len() > 1700 && created == made[..created.len()]);
    }
}
