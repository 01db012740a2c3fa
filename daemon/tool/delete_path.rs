//! `delete_path`: a file or directory of the workspace is deleted.

use super::{Done, Scene, Tool, Work, on_files};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Violation},
        workspace::RelativePath,
    },
};

/// The tool.
#[derive(Debug)]
pub(crate) struct DeletePath;

/// A request, checked.
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

    fn check(
        request: Self::Request,
        scene: &Scene,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Params>, Error> {
        if !violations.is_empty() {
            return Ok(None);
        }
        Ok(Some(Params {
            path: scene.workspace.resolve(&request.path)?,
            recursive: request.recursive.unwrap_or_default(),
        }))
    }

    fn files(params: &Self::Params, _scene: &Scene) -> Vec<String> {
        vec![params.path.as_str().to_owned()]
    }

    async fn execute(params: Params, work: Work) -> Result<Done<Self::Response>, Error> {
        on_files(work, move |workspace, stop| {
            let deleted = workspace.remove(&params.path, params.recursive, stop)?;
            Ok(v1::DeletePathResponse { deleted_count: u32::try_from(deleted).unwrap_or(u32::MAX) })
        })
        .await
    }
}
