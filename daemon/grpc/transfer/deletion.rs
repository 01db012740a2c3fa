//! Ends the uploads of a workspace that is being deleted.

use tokio_util::sync::CancellationToken;

use crate::daemon::{error::Error, tool::WorkspaceContext};

/// Runs an upload. When the workspace is being deleted, cancels `stop` and waits until the upload
/// has ended.
pub(super) async fn until_deletion<R>(
    workspace_context: &WorkspaceContext,
    stop: &CancellationToken,
    upload: impl Future<Output = Result<R, Error>>,
) -> Result<R, Error> {
    let mut upload = std::pin::pin!(upload);
    tokio::select! {
        result = &mut upload => return result,
        () = workspace_context.wait_for_deletion() => stop.cancel(),
    }

    upload.await.map_err(|_| workspace_context.deleted_error())
}
