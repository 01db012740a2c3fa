//! Artifacts of the session, for tools that read files. A path that names no file of the workspace
//! may name an artifact. Files of the workspace take precedence, so artifacts hide none of them.

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
    /// Tools whose artifacts the caller may read; `None` for all tools.
    allowed_tools: Option<Arc<[String]>>,
}

impl SessionArtifacts {
    /// The artifacts that the caller of this call may read.
    pub(super) fn for_call(context: &ToolContext) -> Self {
        Self { session: Arc::clone(&context.session), allowed_tools: context.allowed_tools.clone() }
    }

    /// Whether this path is the name of an artifact, whether it exists or not.
    pub(super) fn is_artifact_path(path: &str) -> bool {
        StepId::from_artifact_path(path).is_some()
    }

    /// Splits a path that names a part of an artifact into name and offset:
    /// `logs/tool_step_0001_stdout.txt@1048576`.
    pub(super) fn split_offset(path: &str) -> Option<(&str, u64)> {
        let (name, offset) = path.split_once('@')?;
        Self::is_artifact_path(name).then_some((name, offset.parse().ok()?))
    }

    /// Opens the artifact at `path` if the workspace has no such file. Blocks.
    ///
    /// `not_opened` is the error of the workspace. It is returned if there is no artifact either.
    pub(super) fn open_fallback(
        &self,
        path: &str,
        not_opened: Error,
    ) -> Result<RegularFile, Error> {
        // Behind a symbolic link there is no file that the caller could read either.
        let no_file = matches!(not_opened.reason, Reason::FileNotFound | Reason::SymlinkBlocked);
        if no_file && let Some(file) = self.open(path)? {
            return Ok(file);
        }
        if not_opened.reason == Reason::FileNotFound && StepId::is_beside_artifacts(path) {
            return Err(no_output_error(path));
        }
        Err(not_opened)
    }

    fn open(&self, path: &str) -> Result<Option<RegularFile>, Error> {
        let Some(step) = StepId::from_artifact_path(path) else {
            return Ok(None);
        };
        let find = || {
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

        find().map_err(|error| {
            if fd_exhaustion::is_fd_exhaustion(&error) {
                fd_exhaustion::fd_exhausted_error(error, path)
            } else {
                Error::internal(error)
            }
        })
    }
}

/// Neither the workspace nor the session has a file at a path where artifacts are. No tool lists
/// those paths.
fn no_output_error(path: &str) -> Error {
    let text = format!(
        "no file is at {path:?} in the workspace, and no output of this session has that name: give a path from the result of a command, or one of the workspace"
    );
    Error::new(Reason::FileNotFound, text).with_metadata("path", path)
}
