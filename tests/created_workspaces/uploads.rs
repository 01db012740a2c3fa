//! Uploads to workspaces that are deleted.

use jig::api::v1::{
    GetUploadRequest, UploadRequest, UploadTreeRequest,
    transfer_service_client::TransferServiceClient, upload_request::Part, upload_tree_request,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use super::{Creating, in_workspace, named};
use crate::{
    files::{
        transfer::{chunk, resumable_start},
        trees::tree_start,
    },
    support::{Refusal, Setup, eventually},
};

const ID: &str = "U1";

impl Creating {
    fn transfers(&self) -> TransferServiceClient<Channel> {
        TransferServiceClient::new(self.daemon.channel())
    }

    /// Bytes of the upload `ID` to `w`, or the reason why there is none.
    async fn upload_offset(&self) -> Result<u64, String> {
        let request = in_workspace("w", GetUploadRequest { upload_id: ID.to_owned() });
        let found = self.transfers().get_upload(request).await;
        let found = found.map_err(|status| Refusal::from_status(&status).reason)?;
        Ok(found.into_inner().offset)
    }

    async fn upload_to_w(&self, parts: Vec<Part>) -> Result<(), Refusal> {
        let messages: Vec<_> =
            parts.into_iter().map(|part| UploadRequest { part: Some(part) }).collect();
        let request = in_workspace("w", tokio_stream::iter(messages));
        let uploaded = self.transfers().upload(request).await;
        uploaded.map(drop).map_err(|status| Refusal::from_status(&status))
    }
}

#[tokio::test]
async fn a_new_workspace_has_no_uploads_of_the_deleted_one() {
    let start = || Part::Start(resumable_start("file", b"data", ID));
    let creating = Creating::start(Setup::new(), "").await;
    for parts in [vec![start(), chunk(0, b"data")], vec![start(), chunk(0, b"da")]] {
        creating.create(named("w")).await;
        let is_complete = creating.upload_to_w(parts).await.is_ok();
        assert_eq!(creating.upload_offset().await, Ok(if is_complete { 4 } else { 2 }));
        creating.delete("w").await.unwrap();

        creating.create(named("w")).await;
        assert_eq!(creating.upload_offset().await, Err("UPLOAD_NOT_FOUND".to_owned()));
        creating.upload_to_w(vec![start(), chunk(0, b"data")]).await.unwrap();
        assert_eq!(creating.output_in("w", "cat file").await, "data");
        creating.delete("w").await.unwrap();
    }

    let Creating { daemon, directory } = creating;
    let creating = Creating { daemon: daemon.restart().await, directory };
    creating.create(named("w")).await;
    assert_eq!(creating.upload_offset().await, Err("UPLOAD_NOT_FOUND".to_owned()));
}

#[tokio::test]
async fn deletion_ends_uploads_in_progress() {
    let creating = Creating::start(Setup::new(), "").await;
    creating.create(named("w")).await;
    let (file, messages) = mpsc::channel(4);
    let mut transfers = creating.transfers();
    let upload = tokio::spawn(async move {
        transfers.upload(in_workspace("w", ReceiverStream::new(messages))).await
    });
    for part in [Part::Start(resumable_start("file", b"data", ID)), chunk(0, b"d")] {
        file.send(UploadRequest { part: Some(part) }).await.unwrap();
    }
    let (tree, messages) = mpsc::channel(4);
    let mut transfers = creating.transfers();
    let tree_upload = tokio::spawn(async move {
        transfers.upload_tree(in_workspace("w", ReceiverStream::new(messages))).await
    });
    let start = upload_tree_request::Part::Start(tree_start("new/directory"));
    tree.send(UploadTreeRequest { part: Some(start) }).await.unwrap();
    eventually("both uploads run", async || {
        creating.upload_offset().await == Ok(1)
            && creating.output_in("w", "ls -d new 2>/dev/null; true").await == "new\n"
    })
    .await;

    // Neither stream ends.
    creating.delete("w").await.unwrap();
    let refused = upload.await.unwrap().unwrap_err();
    assert_eq!(Refusal::from_status(&refused).reason, "UNKNOWN_WORKSPACE");
    let refused = tree_upload.await.unwrap().unwrap_err();
    assert_eq!(Refusal::from_status(&refused).reason, "UNKNOWN_WORKSPACE");
    assert!(creating.directories().is_empty());
    drop((file, tree));
    creating.create(named("w")).await;
    assert_eq!(creating.upload_offset().await, Err("UPLOAD_NOT_FOUND".to_owned()));
}
