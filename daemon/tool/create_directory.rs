//! `create_directory`: creates a directory of the workspace and its missing parents.

use super::{Tool, ToolContext, ToolOutput, WorkspaceContext, file_work::run_on_files};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Violation},
        workspace::{CancelToken, RelativePath, Workspace},
    },
};

/// Most bytes of paths in a response. Each path repeats its parents, and clients accept messages of
/// 4 MiB by default.
const MAX_CREATED_PATH_BYTES: usize = 3 << 20;

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

    fn affected_paths(path: &Self::Params, _workspace_context: &WorkspaceContext) -> Vec<String> {
        vec![path.as_str().to_owned()]
    }

    async fn execute(
        path: RelativePath,
        context: ToolContext,
    ) -> Result<ToolOutput<Self::Response>, Error> {
        run_on_files(context, move |workspace, cancel| create_directory(workspace, &path, cancel))
            .await
    }
}

fn create_directory(
    workspace: &Workspace,
    path: &RelativePath,
    cancel: &CancelToken,
) -> Result<v1::CreateDirectoryResponse, Error> {
    let mut transaction = workspace.begin_transaction(std::slice::from_ref(path), cancel)?;
    transaction.create_directories(path)?;
    let response = response(transaction.created_directories());
    transaction.commit()?.sync_result()?;
    Ok(response)
}

/// The response, with as many of the created paths as fit.
fn response<'a>(created: impl Iterator<Item = &'a str>) -> v1::CreateDirectoryResponse {
    let mut remaining_bytes = MAX_CREATED_PATH_BYTES;
    let fitting = created.take_while(|path| {
        let rest = remaining_bytes.checked_sub(path.len());
        remaining_bytes = rest.unwrap_or(0);
        rest.is_some()
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
    fn missing_directories_are_created() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("/tmp", directory.path().join("link")).unwrap();
        let workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();

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
            let created = create_directory(&workspace, &path, &CancelToken::new())
                .map(|response| response.created);
            let expected = expected.map(|paths| paths.into_iter().map(str::to_owned).collect());
            assert_eq!(created.map_err(|error| error.reason), expected, "{path}");
        }
        assert!(directory.path().join("a/b/c/d").is_dir());
    }

    #[test]
    fn response_fits_into_a_default_message() {
        let deepest = ["d"; 2048].join("/");
        let made: Vec<&str> = (1..=2048).map(|depth| &deepest[..2 * depth - 1]).collect();
        assert!(made.concat().len() >= 4 << 20);

        let response = response(made.iter().copied());
        assert!(response.encoded_len() < 4 << 20);
        let created = response.created;
        assert!(created.len() > 1700 && created == made[..created.len()]);
    }
}
