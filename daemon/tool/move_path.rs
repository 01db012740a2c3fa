//! `move_path`: a file or directory of the workspace gets another path.

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
pub(crate) struct MovePath;

/// A request, checked.
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

    fn check(
        request: Self::Request,
        scene: &Scene,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Params>, Error> {
        if !violations.is_empty() {
            return Ok(None);
        }
        Ok(Some(Params {
            source: scene.workspace.resolve(&request.source)?,
            destination: scene.workspace.resolve(&request.destination)?,
            overwrite: request.overwrite.unwrap_or_default(),
        }))
    }

    fn files(params: &Self::Params, _scene: &Scene) -> Vec<String> {
        [&params.source, &params.destination].map(|path| path.as_str().to_owned()).into()
    }

    async fn execute(params: Params, work: Work) -> Result<Done<Self::Response>, Error> {
        on_files(work, move |workspace, stop| {
            let replaced =
                workspace.relocate(&params.source, &params.destination, params.overwrite, stop)?;
            Ok(v1::MovePathResponse { replaced })
        })
        .await
    }
}
