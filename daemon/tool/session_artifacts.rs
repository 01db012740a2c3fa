//! What the calls of a session left behind, for tools that read files: a path that names no file of the workspace
//! may name an artifact of the session. A file of the workspace comes first, so that none is hidden.

use std::sync::Arc;

use super::ToolContext;
use crate::daemon::{
    error::{Error, Reason},
    fd_exhaustion,
    store::session::{OpenedArtifact, Session, StepId},
    workspace::RegularFile,
};

/// The artifacts of a session that one caller may read.
#[derive(Debug, Clone)]
pub(super) struct SessionArtifacts {
    session: Arc<Session>,
    /// Tools whose artifacts the caller may read; without, those of all tools.
    allowed_tools: Option<Arc<[String]>>,
}

impl SessionArtifacts {
    /// Those that the caller of this work may read.
    pub(super) fn for_call(context: &ToolContext) -> Self {
        Self { session: Arc::clone(&context.session), allowed_tools: context.allowed_tools.clone() }
    }

    /// Whether this path is the name of an artifact, existing or not.
    pub(super) fn is_artifact_path(path: &str) -> bool {
        StepId::from_artifact_path(path).is_some()
    }

    /// Takes the `@OFFSET` off a path that names a part of an artifact: `logs/tool_step_0001_stdout.txt@1048576`.
    pub(super) fn part(path: &str) -> Option<(&str, u64)> {
        let (name, offset) = path.split_once('@')?;
        Self::is_artifact_path(name).then_some((name, offset.parse().ok()?))
    }

    /// Opens the artifact of this name where the workspace `failed` to open a file of it, because there is none. Blocks.
    pub(super) fn open_fallback(&self, path: &str, failed: Error) -> Result<RegularFile, Error> {
        // Behind a link lies nothing that a caller could read instead.
        let is_nothing = matches!(failed.reason, Reason::FileNotFound | Reason::SymlinkBlocked);
        match is_nothing.then(|| self.open(path)).transpose()?.flatten() {
            Some(file) => Ok(file),
            None if failed.reason == Reason::FileNotFound && StepId::is_beside_artifacts(path) => {
                Err(no_output(path))
            }
            None => Err(failed),
        }
    }

    fn open(&self, path: &str) -> Result<Option<RegularFile>, Error> {
        let Some(step) = StepId::from_artifact_path(path) else {
            return Ok(None);
        };
        let look = || {
            if let Some(tools) = &self.allowed_tools {
                let tool = self.session.tool_of_step(step)?;
                if !tool.is_some_and(|tool| tools.contains(&tool)) {
                    return Ok(None);
                }
            }
            let file = match self.session.open_artifact(path)? {
                OpenedArtifact::File(file) => Some(file),
                OpenedArtifact::Empty => None,
                OpenedArtifact::Missing => return Ok(None),
            };
            RegularFile::from_external(file, path).map(Some)
        };
        look().map_err(|error| match fd_exhaustion::is_fd_exhaustion(&error) {
            true => fd_exhaustion::fd_exhausted_error(error, path),
            false => Error::internal(error),
        })
    }
}

/// That neither the workspace nor the session has a file where artifacts lie. No tool lists these.
fn no_output(path: &str) -> Error {
    let text = format!(
        "no file is at {path:?} in the workspace, and no output of this session has that name: give a path that the result of a command names, or one of the workspace"
    );
    Error::new(Reason::FileNotFound, text).with_metadata("path", path)
}
