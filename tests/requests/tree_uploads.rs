//! Uploads of trees with a request id, and clients that stop sending.

use std::{fs, time::Duration};

use jig::api::v1::{
    UploadTreeRequest, UploadTreeResponse, UploadTreeStart, upload_tree_request::Part,
};
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status};

use super::with_request_id;
use crate::{
    files::{
        transfer::{partial_files, pseudo_random_bytes, transfer_client},
        trees::{Archive, tree_start},
    },
    support::{Daemon, Refusal, eventually, full_size, promptly},
};

/// An upload of a tree in progress.
struct PendingTree {
    sender: mpsc::Sender<UploadTreeRequest>,
    answer: JoinHandle<Result<UploadTreeResponse, Status>>,
}

impl PendingTree {
    async fn begin(daemon: &Daemon, id: &str, start: UploadTreeStart, archive: &[u8]) -> Self {
        Self::begin_with(daemon, |messages| with_request_id(id, messages), start, archive).await
    }

    /// Begins a call that `to_request` makes.
    async fn begin_with(
        daemon: &Daemon,
        to_request: impl FnOnce(
            ReceiverStream<UploadTreeRequest>,
        ) -> Request<ReceiverStream<UploadTreeRequest>>,
        start: UploadTreeStart,
        archive: &[u8],
    ) -> Self {
        let (sender, receiver) = mpsc::channel(64);
        let mut transfers = transfer_client(daemon).await;
        let request = to_request(ReceiverStream::new(receiver));
        let answer = tokio::spawn(async move {
            transfers.upload_tree(request).await.map(tonic::Response::into_inner)
        });
        let upload = Self { sender, answer };
        upload.send(Part::Start(start)).await;
        for data in archive.chunks(100_000) {
            upload.send(Part::Data(data.to_vec().into())).await;
        }
        upload
    }

    async fn send(&self, part: Part) {
        self.sender.send(UploadTreeRequest { part: Some(part) }).await.unwrap();
    }

    /// Ends the stream and waits for the answer.
    async fn end(self) -> Result<UploadTreeResponse, Refusal> {
        drop(self.sender);
        let answer = promptly("the daemon answers", self.answer).await.unwrap();
        answer.map_err(|status| Refusal::from_status(&status))
    }
}

async fn upload_whole(
    daemon: &Daemon,
    id: &str,
    start: UploadTreeStart,
    archive: &[u8],
) -> Result<UploadTreeResponse, Refusal> {
    PendingTree::begin(daemon, id, start, archive).await.end().await
}

/// A tree with a file that is written as it arrives.
fn large_archive() -> Vec<u8> {
    Archive::new().file("a", b"1").file("large", &pseudo_random_bytes(3_000_000)).finish()
}

/// Waits until the daemon receives the large file into the directory `t`.
async fn wait_for_partial_file(daemon: &Daemon) {
    eventually("the large file is being received", async || {
        daemon.file("t/a").exists() && partial_files(&daemon.file("t")).len() == 1
    })
    .await;
}

#[tokio::test]
async fn completed_tree_is_answered_without_its_archive() {
    let mut daemon = Daemon::start().await;
    let archive = large_archive();
    let first = upload_whole(&daemon, "id", tree_start("t"), &archive).await.unwrap();
    assert_eq!(first.files, 2);
    fs::remove_dir_all(daemon.file("t")).unwrap();
    for archive in [&archive[..], &[], b"no archive"] {
        let repeated = upload_whole(&daemon, "id", tree_start("t"), archive).await.unwrap();
        assert_eq!(repeated, first);
        assert!(!daemon.file("t").exists(), "the tree is uploaded once");
        daemon = daemon.restart().await;
    }
    let refusal = upload_whole(&daemon, "id", tree_start("u"), &archive).await.unwrap_err();
    assert_eq!(refusal.reason, "REQUEST_ID_REUSED");
}

#[tokio::test]
async fn rejected_tree_is_the_final_result() {
    let daemon = Daemon::start().await;
    let hostile = Archive::new().file("a", b"1").symlink("b", "../../x").finish();
    let first = upload_whole(&daemon, "id", tree_start("t"), &hostile).await.unwrap_err();
    assert_eq!((first.reason.as_str(), &*first.metadata["member"]), ("PATH_ESCAPE", "b"));
    let archive = Archive::new().file("c", b"1").finish();
    let repeated = upload_whole(&daemon, "id", tree_start("t"), &archive).await.unwrap_err();
    assert_eq!((repeated.reason, repeated.message), (first.reason, first.message));
    assert!(daemon.file("t/a").exists() && !daemon.file("t/c").exists());
}

#[tokio::test]
async fn second_tree_is_extracted_only_if_the_first_aborts() {
    let daemon = Daemon::start().await;
    let archive = large_archive();
    let (sent, rest) = archive.split_at(2_000_000);
    for aborts in [false, true] {
        let id = aborts.to_string();
        let first = PendingTree::begin(&daemon, &id, tree_start("t"), sent).await;
        wait_for_partial_file(&daemon).await;
        let second = PendingTree::begin(&daemon, &id, tree_start("t"), &archive).await;
        let second = tokio::spawn(second.end());

        let expected = if aborts {
            first.answer.abort();
            None
        } else {
            first.send(Part::Data(rest.to_vec().into())).await;
            Some(first.end().await.unwrap())
        };
        let answer = second.await.unwrap().unwrap();
        assert_eq!(answer.files, 2);
        assert!(expected.is_none_or(|expected| expected == answer));
        assert_eq!(partial_files(&daemon.file("t")), [""; 0]);
        fs::remove_dir_all(daemon.file("t")).unwrap();
    }
}

#[tokio::test]
async fn tree_is_lost_with_its_daemon() {
    let daemon = Daemon::start().await;
    let archive = large_archive();
    let _killed = PendingTree::begin(&daemon, "id", tree_start("t"), &archive[..2_000_000]).await;
    wait_for_partial_file(&daemon).await;
    let daemon = daemon.restart().await;
    let refusal = upload_whole(&daemon, "id", tree_start("t"), &archive).await.unwrap_err();
    assert_eq!(refusal.reason, "DAEMON_LOST");
    assert_eq!(partial_files(&daemon.file("t")), [""; 0]);
}

#[tokio::test]
async fn client_that_stops_sending_loses_its_upload() {
    let daemon = Daemon::start().await;
    let archive = large_archive();
    // At full size, the silence of a client without a deadline ends its upload.
    let deadline = (full_size(1, 0) == 0).then_some(Duration::from_secs(2));
    let to_request = |messages| {
        let mut request = Request::new(messages);
        if let Some(deadline) = deadline {
            request.set_timeout(deadline);
        }
        request
    };
    let start = tree_start("t");
    let silent = PendingTree::begin_with(&daemon, to_request, start, &archive[..2_000_000]).await;
    wait_for_partial_file(&daemon).await;

    let answer = timeout(Duration::from_secs(90), silent.answer).await.expect("the upload ends");
    let status = answer.unwrap().unwrap_err();
    assert!([Code::DeadlineExceeded, Code::Cancelled].contains(&status.code()), "{status:?}");
    if deadline.is_none() {
        let refusal = Refusal::from_status(&status);
        assert_eq!(refusal.reason, "TIMEOUT");
        assert_eq!(refusal.metadata["extracted_members"], "1");
    }
    eventually("the partial file is removed", async || partial_files(&daemon.file("t")).is_empty())
        .await;
    assert!(daemon.file("t/a").exists() && !daemon.file("t/large").exists());
    drop(silent.sender);
    assert_eq!(upload_whole(&daemon, "id", tree_start("t"), &archive).await.unwrap().files, 2);
}
