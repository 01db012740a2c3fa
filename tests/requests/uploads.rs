//! Uploads with a request id: calls with one id and one start are one upload, whichever of them sends the
//! chunks.

use std::fs;

use jig::api::v1::{UploadRequest, UploadResponse, upload_request::Part};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::under;
use crate::{
    files::transfer::{chunk, comes_to, named, noise, raw, start},
    support::{Daemon, Refusal, eventually, promptly},
};

/// An upload that goes on.
struct Upload {
    sender: mpsc::Sender<UploadRequest>,
    answer: JoinHandle<Result<UploadResponse, Status>>,
}

impl Upload {
    async fn begin(daemon: &Daemon, id: &str, parts: Vec<Part>) -> Self {
        let (sender, receiver) = mpsc::channel(16);
        let mut transfers = raw(daemon).await;
        let request = under(id, ReceiverStream::new(receiver));
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

    /// Ends the stream, and waits for the answer.
    async fn end(self) -> Result<UploadResponse, Refusal> {
        drop(self.sender);
        let answer = promptly("it is answered", self.answer).await.unwrap();
        answer.map_err(|status| Refusal::of(&status))
    }

    /// Breaks the connection off.
    async fn break_off(self) {
        self.answer.abort();
        let _aborted = self.answer.await;
    }
}

async fn whole(daemon: &Daemon, id: &str, parts: Vec<Part>) -> Result<UploadResponse, Refusal> {
    Upload::begin(daemon, id, parts).await.end().await
}

#[tokio::test]
async fn what_is_complete_is_answered_again_and_not_sent_again() {
    let bytes = noise(1000);
    let mut daemon = Daemon::start().await;
    for (name, begin) in [
        ("plain", Part::Start(start("plain", &bytes))),
        ("named", Part::Start(named("named", &bytes, "upload"))),
    ] {
        let parts = vec![begin.clone(), chunk(0, &bytes)];
        let first = whole(&daemon, name, parts.clone()).await.unwrap();
        assert!(first.created);
        assert_eq!(first.received_bytes, 1000);
        assert_eq!(fs::read(daemon.file(name)).unwrap(), bytes);
        fs::remove_file(daemon.file(name)).unwrap();
        for _ in 0..2 {
            let again = whole(&daemon, name, vec![begin.clone()]).await.unwrap();
            assert_eq!(again, first);
            let again = whole(&daemon, name, parts.clone()).await.unwrap();
            assert_eq!(again, first);
            assert!(!daemon.file(name).exists(), "it was done once");
            daemon = daemon.restart().await;
        }
        let other = Part::Start(start("other", &bytes));
        let refusal = whole(&daemon, name, vec![other]).await.unwrap_err();
        assert_eq!(refusal.reason, "REQUEST_ID_REUSED");
    }
}

#[tokio::test]
async fn one_that_was_broken_off_goes_on_under_its_id_also_with_another_daemon() {
    let bytes = noise(1000);
    let mut daemon = Daemon::start().await;
    let begin = || Part::Start(named("file", &bytes, "upload"));
    let first = Upload::begin(&daemon, "id", vec![begin(), chunk(0, &bytes[..400])]).await;
    comes_to(&daemon, "upload", 400).await;
    first.break_off().await;
    let parts = vec![begin(), chunk(400, &bytes[400..500])];
    // It ended too early: that is no answer either.
    let refusal = whole(&daemon, "id", parts).await.unwrap_err();
    assert_eq!(refusal.reason, "INVALID_PARAMS");
    let _killed = Upload::begin(&daemon, "id", vec![begin(), chunk(500, &bytes[500..600])]).await;
    comes_to(&daemon, "upload", 600).await;
    daemon = daemon.restart().await;
    comes_to(&daemon, "upload", 600).await;
    let parts = vec![begin(), chunk(600, &bytes[600..])];
    let last = whole(&daemon, "id", parts).await.unwrap();
    assert_eq!(last.received_bytes, 400);
    assert_eq!(fs::read(daemon.file("file")).unwrap(), bytes);
    assert_eq!(whole(&daemon, "id", vec![begin()]).await.unwrap(), last);
}

#[tokio::test]
async fn one_that_cannot_be_resumed_is_lost_with_its_daemon() {
    let bytes = noise(1000);
    let daemon = Daemon::start().await;
    let begin = || Part::Start(start("file", &bytes));
    let parts = vec![begin(), chunk(0, &bytes[..400])];
    let broken_off = Upload::begin(&daemon, "broken off", parts.clone()).await;
    let drafts = || fs::read_dir(daemon.workspace()).unwrap().count();
    eventually("it begins", async || drafts() == 1).await;
    broken_off.break_off().await;
    eventually("what came is dropped", async || drafts() == 0).await;
    let all = vec![begin(), chunk(0, &bytes)];
    eventually("it can be sent again", async || {
        whole(&daemon, "broken off", all.clone()).await.is_ok()
    })
    .await;
    let _killed = Upload::begin(&daemon, "lost", parts).await;
    eventually("it begins", async || drafts() == 2).await;
    let daemon = daemon.restart().await;
    let refusal = whole(&daemon, "lost", all).await.unwrap_err();
    assert_eq!(refusal.reason, "DAEMON_LOST");
}

#[tokio::test]
async fn who_comes_back_takes_over_and_both_get_the_answer() {
    let bytes = noise(1000);
    let daemon = Daemon::start().await;
    let begin = || Part::Start(named("file", &bytes, "upload"));
    let mut uploads = Vec::new();
    for number in 0..5 {
        let from = number * 100;
        let parts = vec![begin(), chunk(from, &bytes[from..from + 100])];
        uploads.push(Upload::begin(&daemon, "id", parts).await);
        comes_to(&daemon, "upload", from as u64 + 100).await;
    }
    // Those before it send in vain, and are not refused for that.
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
async fn who_comes_second_waits_and_sends_only_if_the_first_is_broken_off() {
    let bytes = noise(1000);
    let daemon = Daemon::start().await;
    let begin = || Part::Start(start("file", &bytes));
    for breaks_off in [false, true] {
        let id = format!("{breaks_off}");
        let first = Upload::begin(&daemon, &id, vec![begin(), chunk(0, &bytes[..400])]).await;
        let drafts = || {
            let names = fs::read_dir(daemon.workspace()).unwrap();
            let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| name.starts_with(".jig-")).count()
        };
        eventually("it begins", async || drafts() == 1).await;
        let mut second = Vec::new();
        for _ in 0..3 {
            let upload = Upload::begin(&daemon, &id, vec![begin(), chunk(0, &bytes)]).await;
            second.push(tokio::spawn(upload.end()));
        }
        let expected = if breaks_off {
            first.break_off().await;
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
        assert_eq!(expected.created, !breaks_off, "the file was there");
        assert_eq!(drafts(), 0);
    }
}
