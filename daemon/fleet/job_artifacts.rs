//! The artifacts of ended jobs of this daemon, for sources that store them.

use std::{fs::File, io, os::unix::fs::FileExt as _, sync::Arc, time::SystemTime};

use bytes::Bytes;

use crate::daemon::{
    error::Error,
    pipeline::Pipeline,
    store::{
        jobs::Job,
        session::{OpenedArtifact, SessionId, StepId},
        sessions::SessionStore,
    },
    task,
};

/// The artifacts of a job. They are opened only if a source stores them.
#[derive(Debug, Clone)]
pub(crate) struct JobArtifacts {
    pipeline: Arc<Pipeline>,
    workspace: String,
    session: SessionId,
    step: u64,
}

/// An artifact at this daemon.
#[derive(Debug)]
pub(crate) struct LocalArtifact {
    pub(crate) path: String,
    /// `None` if it is empty.
    pub(crate) file: Option<ArtifactFile>,
}

/// The file of an artifact that is not empty.
#[derive(Debug, Clone)]
pub(crate) struct ArtifactFile {
    file: Arc<File>,
    pub(crate) size_bytes: u64,
    pub(crate) modified: SystemTime,
}

impl JobArtifacts {
    /// Returns the artifacts of a job, or `None` if it never began.
    pub(super) fn new(pipeline: Arc<Pipeline>, job: &Job) -> Option<Self> {
        let session = SessionId::parse(&job.session)?;
        Some(Self { pipeline, workspace: job.workspace.clone(), session, step: job.step? })
    }

    /// Workspace of the job.
    pub(super) fn workspace(&self) -> &str {
        &self.workspace
    }

    /// Paths that the artifacts can have.
    pub(super) fn paths(&self) -> [String; 3] {
        StepId::artifact_paths(self.step)
    }

    /// Opens the artifacts, in the order of their paths.
    pub(super) async fn open(&self) -> Result<Vec<LocalArtifact>, Error> {
        let paths = self.paths();
        let open = move |sessions: &SessionStore, workspace: &str, id: &SessionId| {
            let Some(session) = sessions.open_existing(workspace, id)? else {
                return Ok(Vec::new());
            };
            let open = |path: &String| {
                let file = match session.open_artifact(path) {
                    Ok(OpenedArtifact::File(file)) => ArtifactFile::new(file),
                    Ok(OpenedArtifact::Empty) => Ok(None),
                    Ok(OpenedArtifact::Missing) => return None,
                    Err(error) => Err(error),
                };
                Some(file.map(|file| LocalArtifact { path: path.clone(), file }))
            };
            paths.iter().filter_map(open).collect::<io::Result<Vec<_>>>()
        };
        let nothing_held = Arc::default() as Arc<()>;
        let session = (self.workspace.as_str(), &self.session);
        self.pipeline.query_stored_session(session, None, &nothing_held, open).await
    }
}

impl ArtifactFile {
    fn new(file: File) -> io::Result<Option<Self>> {
        let metadata = file.metadata()?;
        let (size_bytes, modified) = (metadata.len(), metadata.modified()?);
        Ok((size_bytes > 0).then(|| Self { file: Arc::new(file), size_bytes, modified }))
    }

    /// Reads at most `max` bytes from `offset`. They are empty at the end of the artifact.
    pub(super) async fn read(&self, offset: u64, max: usize) -> io::Result<Bytes> {
        let remaining = self.size_bytes.saturating_sub(offset);
        let length = usize::try_from(remaining).unwrap_or(max).min(max);
        let file = Arc::clone(&self.file);
        let read = task::spawn_blocking(move || {
            let mut data = vec![0; length];
            file.read_exact_at(&mut data, offset)?;
            Ok(data.into())
        });
        read.await.map_err(io::Error::other)?
    }
}
