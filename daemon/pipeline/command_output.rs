//! Reads the output of a running command from its artifacts, at the speed of the client.

use std::{fs::File, os::unix::fs::FileExt as _, sync::Arc};

use super::{Pipeline, context::CallContext};
use crate::daemon::{
    error::Error,
    store::{
        session::{OpenedArtifact, SessionId},
        sessions::SessionStore,
    },
    task,
};

/// Maximum output in one message.
const MAX_OUTPUT_CHUNK_BYTES: usize = 64 * 1024;

/// The position in one output of a command.
#[derive(Debug, Default)]
pub(crate) struct OutputCursor {
    /// Offset of the next byte to send.
    offset: u64,
    /// Set once the artifact exists.
    file: Option<Arc<File>>,
}

/// Bytes of an output.
#[derive(Debug)]
pub(crate) struct ArtifactChunk {
    pub(crate) offset: u64,
    pub(crate) data: Vec<u8>,
}

impl OutputCursor {
    pub(crate) fn at(offset: u64) -> Self {
        Self { offset, file: None }
    }

    /// Returns the offset of the next byte to send.
    #[cfg(feature = "fleet")]
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads the next bytes of the artifact `path` of the call's session. Returns `None` if there
    /// are none yet.
    pub(crate) async fn read(
        &mut self,
        pipeline: &Pipeline,
        context: &CallContext,
        path: &str,
    ) -> Result<Option<ArtifactChunk>, Error> {
        if self.file.is_none() {
            self.file = open_artifact(pipeline, context, path.to_owned()).await?;
        }
        let Some(file) = self.file.clone() else { return Ok(None) };

        let data = read_chunk(file, self.offset).await?;
        if data.is_empty() {
            return Ok(None);
        }
        let chunk = ArtifactChunk { offset: self.offset, data };
        self.offset += chunk.data.len() as u64;
        Ok(Some(chunk))
    }
}

/// Opens an artifact of a session. Returns `None` if it is missing or empty.
async fn open_artifact(
    pipeline: &Pipeline,
    context: &CallContext,
    path: String,
) -> Result<Option<Arc<File>>, Error> {
    let open = move |sessions: &SessionStore, workspace: &str, id: &SessionId| {
        let session = sessions.open_existing(workspace, id)?;
        session.map_or(Ok(OpenedArtifact::Missing), |session| session.open_artifact(&path))
    };
    let no_permit = Arc::default() as Arc<()>;
    Ok(match pipeline.query_session(context, &no_permit, open).await? {
        OpenedArtifact::File(file) => Some(Arc::new(file)),
        OpenedArtifact::Empty | OpenedArtifact::Missing => None,
    })
}

async fn read_chunk(file: Arc<File>, offset: u64) -> Result<Vec<u8>, Error> {
    let read = task::spawn_blocking(move || {
        // A client may send an offset beyond what pread(2) accepts.
        if offset >= file.metadata()?.len() {
            return Ok(Vec::new());
        }
        let mut data = vec![0; MAX_OUTPUT_CHUNK_BYTES];
        let length = file.read_at(&mut data, offset)?;
        data.truncate(length);
        Ok::<_, std::io::Error>(data)
    });
    read.await.map_err(Error::internal)?.map_err(Error::internal)
}
