//! `stat`: returns the metadata of a path.

use super::{
    Tool, ToolContext, ToolOutput, WorkspaceContext,
    file_work::run_on_files,
    wire_file::{file_type, modify_time},
};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Violation},
        workspace::{CancelToken, Workspace},
    },
};

#[derive(Debug)]
pub(crate) struct StatPath;

impl Tool for StatPath {
    const NAME: &'static str = "stat";
    type Request = v1::StatPathRequest;
    type Response = v1::StatPathResponse;
    type Params = v1::StatPathRequest;

    fn validate(
        request: Self::Request,
        workspace_context: &WorkspaceContext,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Self::Params>, Error> {
        if !violations.is_empty() {
            return Ok(None);
        }

        workspace_context.workspace.resolve(&request.path)?;
        Ok(Some(request))
    }

    fn affected_paths(request: &Self::Params, workspace_context: &WorkspaceContext) -> Vec<String> {
        let path = workspace_context.workspace.resolve(&request.path);
        path.iter().map(|path| path.as_str().to_owned()).collect()
    }

    async fn execute(
        request: Self::Request,
        context: ToolContext,
    ) -> Result<ToolOutput<Self::Response>, Error> {
        run_on_files(context, move |workspace, cancel| stat_path(workspace, &request.path, cancel))
            .await
    }
}

fn stat_path(
    workspace: &Workspace,
    path: &str,
    cancel: &CancelToken,
) -> Result<v1::StatPathResponse, Error> {
    let (metadata, sha256) = workspace.metadata(&workspace.resolve(path)?, cancel)?;
    Ok(v1::StatPathResponse {
        r#type: file_type(metadata.kind).into(),
        size_bytes: metadata.size,
        mode: metadata.mode,
        modify_time: modify_time(&metadata),
        sha256,
    })
}
