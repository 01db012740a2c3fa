//! `delete_path`: deletes a file or directory of the workspace.

use super::{Tool, ToolContext, ToolOutput, WorkspaceContext, file_work::run_on_files};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Violation},
        workspace::RelativePath,
    },
};

#[derive(Debug)]
pub(crate) struct DeletePath;

/// The validated request.
#[derive(Debug)]
pub(crate) struct Params {
    path: RelativePath,
    recursive: bool,
}

impl Tool for DeletePath {
    const NAME: &'static str = "delete_path";
    type Request = v1::DeletePathRequest;
    type Response = v1::DeletePathResponse;
    type Params = Params;

    fn validate(
        request: Self::Request,
        workspace_context: &WorkspaceContext,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Params>, Error> {
        if !violations.is_empty() {
            return Ok(None);
        }
        Ok(Some(Params {
            path: workspace_context.workspace.resolve(&request.path)?,
            recursive: request.recursive.unwrap_or_default(),
        }))
    }

    fn affected_paths(params: &Self::Params, _workspace_context: &WorkspaceContext) -> Vec<String> {
        vec![params.path.as_str().to_owned()]
    }

    async fn execute(
        params: Params,
        context: ToolContext,
    ) -> Result<ToolOutput<Self::Response>, Error> {
        run_on_files(context, move |workspace, cancel| {
            let deleted = workspace.remove(&params.path, params.recursive, cancel)?;
            Ok(v1::DeletePathResponse { deleted_count: u32::try_from(deleted).unwrap_or(u32::MAX) })
        })
        .await
    }
}
