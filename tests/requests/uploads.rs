//! Uploads with a request id: calls with one id and one start message are one upload, whichever of
//! them sends the chunks.

use std::{fs, time::Duration};

use jig::api::v1::{
    ApprovalState, Decision, ListApprovalsRequest, UploadRequest, UploadResponse,
    approval_service_client::ApprovalServiceClient, upload_request::Part,
};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::with_request_id;
use crate::{
    approvals::{ASK_POLICY, decide, decide_request, wait_for_pending_approval},
    files::transfer::{
        chunk, pseudo_random_bytes, resumable_start, transfer_client, upload_start,
        wait_for_upload_offset,
    },
    support::{Daemon, Refusal, Setup, eventually, promptly},
};

/// An upload in progress.
pub(super) struct PendingUpload {
    sender: mpsc::Sender<UploadRequest>,
    answer: JoinHandle<Result<UploadResponse, Status>>,
}

impl PendingUpload {
    async fn begin(daemon: &Daemon, id: &str, parts: Vec<Part>) -> Self {
        Self::begin_with_timeout(daemon, id, parts, None).await
    }

    /// As [`Self::begin`], with a timeout.
    async fn begin_with_timeout(
        daemon: &Daemon,
        id: &str,
        parts: Vec<Part>,
        timeout: Option<Duration>,
    ) -> Self {
        let (sender, receiver) = mpsc::channel(16);
        let mut transfers = transfer_client(daemon).await;
        let mut request = with_request_id(id, ReceiverStream::new(receiver));
        if let Some(timeout) = timeout {
            request.set_timeout(timeout);
        }

        let answer = tokio::spawn(async move {
            let answer = transfers.upload(request).await;
            answer.map(tonic::Response::into_inner)
        });
        let upload = Self { sender, answer };
        for part in parts {
            upload.send(part).await;
        }

        upload
    }

    async fn send(&self, part: Part) {
        let message = UploadRequest { part: Some(part) };
        self.sender.send(message).await.unwrap();
    }

    /// Ends the stream and waits for the answer.
    async fn end(self) -> Result<UploadResponse, Refusal> {
        drop(self.sender);
        let answer = promptly("the daemon answers", self.answer).await.unwrap();
        answer.map_err(|status| Refusal::from_status(&status))
    }

    /// Cancels the call.
    async fn abort(self) {
        self.answer.abort();
        let _aborted = self.answer.await;
    }
}

pub(super) async fn upload_whole(
    daemon: &Daemon,
    id: &str,
    parts: Vec<Part>,
) -> Result<UploadResponse, Refusal> {
    PendingUpload::begin(daemon, id, parts).await.end().await
}

#[tokio::test]
async fn completed_upload_is_answered_without_its_data() {
    let bytes = pseudo_random_bytes(1000);
    let mut daemon = Daemon::start().await;
    for (name, begin) in [
        ("plain", Part::Start(upload_start("plain", &bytes))),
        ("named", Part::Start(resumable_start("named", &bytes, "upload"))),
    ] {
        let parts = vec![begin.clone(), chunk(0, &bytes)];
        let first = upload_whole(&daemon, name, parts.clone()).await.unwrap();
        assert!(first.created);
        assert_eq!(first.received_bytes, 1000);
        assert_eq!(fs::read(daemon.file(name)).unwrap(), bytes);
        fs::remove_file(daemon.file(name)).unwrap();
        for _ in 0..2 {
            let repeated = upload_whole(&daemon, name, vec![begin.clone()]).await.unwrap();
            assert_eq!(repeated, first);
            let repeated = upload_whole(&daemon, name, parts.clone()).await.unwrap();
            assert_eq!(repeated, first);
            assert!(!daemon.file(name).exists(), "the upload ran once");
            daemon = daemon.restart().await;
        }
        let other = Part::Start(upload_start("other", &bytes));
        let refusal = upload_whole(&daemon, name, vec![other]).await.unwrap_err();
        assert_eq!(refusal.reason, "REQUEST_ID_REUSED");
    }
}

#[tokio::test]
async fn interrupted_upload_resumes_under_its_id_after_restart() {
    let bytes = pseudo_random_bytes(1000);
    let mut daemon = Daemon::start().await;
    let begin = || Part::Start(resumable_start("file", &bytes, "upload"));
    let first = PendingUpload::begin(&daemon, "id", vec![begin(), chunk(0, &bytes[..400])]).await;
    wait_for_upload_offset(&daemon, "upload", 400).await;
    first.abort().await;

    let parts = vec![begin(), chunk(400, &bytes[400..500])];

    // A stream that ends too early is rejected, and its rejection is not stored as the answer.
    let refusal = upload_whole(&daemon, "id", parts).await.unwrap_err();
    assert_eq!(refusal.reason, "INVALID_PARAMS");

    let _killed =
        PendingUpload::begin(&daemon, "id", vec![begin(), chunk(500, &bytes[500..600])]).await;
    wait_for_upload_offset(&daemon, "upload", 600).await;

    daemon = daemon.restart().await;
    wait_for_upload_offset(&daemon, "upload", 600).await;
    let parts = vec![begin(), chunk(600, &bytes[600..])];
    let last = upload_whole(&daemon, "id", parts).await.unwrap();
    assert_eq!(last.received_bytes, 400);
    assert_eq!(fs::read(daemon.file("file")).unwrap(), bytes);
    assert_eq!(upload_whole(&daemon, "id", vec![begin()]).await.unwrap(), last);
}

#[tokio::test]
async fn unnamed_upload_is_lost_with_its_daemon() {
    let bytes = pseudo_random_bytes(1000);
    let daemon = Daemon::start().await;
    let begin = || Part::Start(upload_start("file", &bytes));
    let parts = vec![begin(), chunk(0, &bytes[..400])];
    let aborted = PendingUpload::begin(&daemon, "aborted", parts.clone()).await;
    let partial_files = || fs::read_dir(daemon.workspace()).unwrap().count();
    eventually("the upload creates its partial file", async || partial_files() == 1).await;

    aborted.abort().await;
    eventually("the partial file is removed", async || partial_files() == 0).await;

    let all = vec![begin(), chunk(0, &bytes)];
    eventually("the upload can be repeated", async || {
        upload_whole(&daemon, "aborted", all.clone()).await.is_ok()
    })
    .await;

    let _killed = PendingUpload::begin(&daemon, "lost", parts).await;
    eventually("the upload creates its partial file", async || partial_files() == 2).await;

    let daemon = daemon.restart().await;
    let refusal = upload_whole(&daemon, "lost", all).await.unwrap_err();
    assert_eq!(refusal.reason, "DAEMON_LOST");
}

#[tokio::test]
async fn latest_upload_takes_over_and_all_get_the_answer() {
    let bytes = pseudo_random_bytes(1000);
    let daemon = Daemon::start().await;
    let begin = || Part::Start(resumable_start("file", &bytes, "upload"));
    let mut uploads = Vec::new();
    for number in 0..5 {
        let from = number * 100;
        let parts = vec![begin(), chunk(from, &bytes[from..from + 100])];
        uploads.push(PendingUpload::begin(&daemon, "id", parts).await);
        wait_for_upload_offset(&daemon, "upload", from as u64 + 100).await;
    }

    // Chunks of superseded calls are ignored, and the calls are not rejected for them.
    uploads[0].send(chunk(100, &bytes[100..200])).await;
    uploads[4].send(chunk(500, &bytes[500..])).await;
    let last = uploads.pop().unwrap().end().await.unwrap();
    assert_eq!(last.received_bytes, 600);

    for upload in uploads {
        assert_eq!(upload.end().await.unwrap(), last);
    }
    assert_eq!(fs::read(daemon.file("file")).unwrap(), bytes);
}

#[tokio::test]
async fn second_upload_sends_only_if_the_first_aborts() {
    let bytes = pseudo_random_bytes(1000);
    let daemon = Daemon::start().await;
    let begin = || Part::Start(upload_start("file", &bytes));

    for aborts in [false, true] {
        let id = format!("{aborts}");
        let first =
            PendingUpload::begin(&daemon, &id, vec![begin(), chunk(0, &bytes[..400])]).await;
        let partial_files = || {
            let names = fs::read_dir(daemon.workspace()).unwrap();
            let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| name.starts_with(".jig-")).count()
        };
        eventually("the upload creates its partial file", async || partial_files() == 1).await;

        let mut second = Vec::new();
        for _ in 0..3 {
            let upload = PendingUpload::begin(&daemon, &id, vec![begin(), chunk(0, &bytes)]).await;
            second.push(tokio::spawn(upload.end()));
        }

        let expected = if aborts {
            first.abort().await;
            None
        } else {
            first.send(chunk(400, &bytes[400..])).await;
            Some(first.end().await.unwrap())
        };
        let mut answers = Vec::new();
        for upload in second {
            answers.push(upload.await.unwrap().unwrap());
        }

        let expected = expected.unwrap_or_else(|| answers[0].clone());
        for answer in answers {
            assert_eq!(answer, expected);
        }
        assert_eq!(expected.received_bytes, 1000);
        assert_eq!(expected.created, !aborts, "the file exists since the first round");
        assert_eq!(partial_files(), 0);
    }
}

/// The states of the decided approvals.
async fn approval_states(daemon: &Daemon) -> Vec<ApprovalState> {
    let request = ListApprovalsRequest { decided: true, ..ListApprovalsRequest::default() };
    let mut approvals = ApprovalServiceClient::new(daemon.channel());
    let listed = approvals.list_approvals(request).await.unwrap();
    let listed = listed.into_inner().approvals.into_iter();
    listed.map(|approval| approval.state()).collect()
}

#[tokio::test]
async fn repeated_upload_waits_for_the_same_approval() {
    let bytes = pseudo_random_bytes(1000);
    let daemon = Setup::new().workspace_table(ASK_POLICY).start().await;
    for (name, begin) in [
        ("plain", Part::Start(upload_start("plain", &bytes))),
        ("named", Part::Start(resumable_start("named", &bytes, "upload"))),
    ] {
        let parts = || vec![begin.clone(), chunk(0, &bytes)];
        let before = approval_states(&daemon).await.len();
        // The first call times out, and the second one is aborted.
        let timeout = Some(Duration::from_millis(1500));
        let first = PendingUpload::begin_with_timeout(&daemon, name, parts(), timeout).await;
        let approval = wait_for_pending_approval(&daemon).await;
        let second = PendingUpload::begin(&daemon, name, parts()).await;
        let third = PendingUpload::begin(&daemon, name, parts()).await;
        let answer = promptly("the first call times out", first.answer).await.unwrap();
        assert!(answer.is_err(), "{answer:?}");
        second.abort().await;
        let fourth = PendingUpload::begin(&daemon, name, parts()).await;
        assert_eq!(wait_for_pending_approval(&daemon).await, approval);
        decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();
        // One of the two sends the chunks and ends its stream.
        let (third, fourth) = tokio::join!(third.end(), fourth.end());
        let answer = third.unwrap();
        assert!(answer.created);
        assert_eq!(fourth.unwrap(), answer);
        assert_eq!(fs::read(daemon.file(name)).unwrap(), bytes);
        let decisions = approval_states(&daemon).await;
        assert_eq!(decisions.len(), before + 1, "{decisions:?}");
        assert_eq!(decisions[0], ApprovalState::Allowed);
    }
}

#[tokio::test]
async fn takeover_of_approved_upload_needs_no_new_approval() {
    let bytes = pseudo_random_bytes(1000);
    let daemon = Setup::new().workspace_table(ASK_POLICY).start().await;
    let begin = || Part::Start(resumable_start("file", &bytes, "upload"));
    let first = PendingUpload::begin(&daemon, "id", vec![begin(), chunk(0, &bytes[..400])]).await;
    let approval = wait_for_pending_approval(&daemon).await;
    decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();

    wait_for_upload_offset(&daemon, "upload", 400).await;
    let second =
        PendingUpload::begin(&daemon, "id", vec![begin(), chunk(400, &bytes[400..])]).await;
    let answer = second.end().await.unwrap();
    assert_eq!(answer.received_bytes, 600);
    assert_eq!(first.end().await.unwrap(), answer);
    assert_eq!(approval_states(&daemon).await, [ApprovalState::Allowed]);
}
