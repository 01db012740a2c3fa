//! `stat`: what is at a path.

use super::{
    Done, Scene, Tool, Work,
    description::{file_type, modify_time},
    on_files,
};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Violation},
        workspace::{Stop, Workspace},
    },
};

/// The tool.
#[derive(Debug)]
pub(crate) struct StatPath;

impl Tool for StatPath {
    const NAME: &'static str = "stat";
    type Request = v1::StatPathRequest;
    type Response = v1::StatPathResponse;
    type Params = v1::StatPathRequest;

    fn check(
        request: Self::Request,
        scene: &Scene,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Self::Params>, Error> {
        if !violations.is_empty() {
            return Ok(None);
        }
        scene.workspace.resolve(&request.path)?;
        Ok(Some(request))
    }

    fn files(request: &Self::Params, scene: &Scene) -> Vec<String> {
        let path = scene.workspace.resolve(&request.path);
        path.iter().map(|path| path.as_str().to_owned()).collect()
    }

    async fn execute(request: Self::Request, work: Work) -> Result<Done<Self::Response>, Error> {
        on_files(work, move |workspace, stop| stat_path(workspace, &request.path, stop)).await
    }
}

fn stat_path(
    workspace: &Workspace,
    path: &str,
    stop: &Stop,
) -> Result<v1::StatPathResponse, Error> {
    let (description, sha256) = workspace.describe(&workspace.resolve(path)?, stop)?;
    Ok(v1::StatPathResponse {
        r#type: file_type(description.kind).into(),
        size_bytes: description.size,
        mode: description.mode,
        modify_time: modify_time(&description),
        sha256,
    })
}
