//! `move_path`: moves or renames a file or directory of the workspace.

use super::{Tool, ToolContext, ToolOutput, WorkspaceContext, file_work::run_on_files};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Violation},
        workspace::RelativePath,
    },
};

#[derive(Debug)]
pub(crate) struct MovePath;

/// The validated request.
#[derive(Debug)]
pub(crate) struct Params {
    source: RelativePath,
    destination: RelativePath,
    overwrite: bool,
}

impl Tool for MovePath {
    const NAME: &'static str = "move_path";
    type Request = v1::MovePathRequest;
    type Response = v1::MovePathResponse;
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
            source: workspace_context.workspace.resolve(&request.source)?,
            destination: workspace_context.workspace.resolve(&request.destination)?,
            overwrite: request.overwrite.unwrap_or_default(),
        }))
    }

    fn affected_paths(params: &Self::Params, _workspace_context: &WorkspaceContext) -> Vec<String> {
        [&params.source, &params.destination].map(|path| path.as_str().to_owned()).into()
    }

    async fn execute(
        params: Params,
        context: ToolContext,
    ) -> Result<ToolOutput<Self::Response>, Error> {
        run_on_files(context, move |workspace, cancel| {
            let replaced = workspace.move_path(
                &params.source,
                &params.destination,
                params.overwrite,
                cancel,
            )?;
            Ok(v1::MovePathResponse { replaced })
        })
        .await
    }
}
