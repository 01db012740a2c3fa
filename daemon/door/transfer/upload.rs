//! Receiving a file: chunk by chunk into a draft, which is put into its place when all has come and
//! its checksum is right.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

use super::{
    kept::{Begun, Kept, Lease},
    plan::Plan,
};
use crate::{
    api::v1::{UploadChunk, UploadRequest, UploadResponse, UploadStart, upload_request::Part},
    daemon::{
        call::{Pipeline, admission::Places, context::Incoming, idempotency::Mark, sent::Sent},
        descriptors::{Attempts, ran_out},
        error::{Error, Reason},
        queue::Name,
        task,
        tool::{self, FilePlaces, Tool as _, write_file::WriteFile},
        workspace::{Draft, DraftError, DraftPlace, Stop, Workspace},
    },
};

/// How long the other side of a transfer may be silent. What has come of an upload is kept then.
pub(super) const SILENCE: Duration = Duration::from_secs(60);
/// What a request id was used for that an upload had.
const METHOD: &str = "jig.v1.TransferService/Upload";
/// Most bytes of a chunk.
const LARGEST_CHUNK: usize = 1 << 20;

/// What a call needs to receive a file.
struct Receiving {
    workspace: Arc<Workspace>,
    files: FilePlaces,
    caller: Name,
    kept: Arc<Kept>,
    plan: Plan,
    stream: Streaming<UploadRequest>,
    stop: CancellationToken,
    draining: CancellationToken,
    /// Its step of the session.
    step: u64,
    /// Where it says that the file may be in its place from there on.
    mark: Option<Mark>,
    /// Whether a daemon died that had said so.
    may_be_done: bool,
}

/// An upload, to its end; or, where it was made under the same request id before, its answer.
pub(super) async fn upload(
    pipeline: &Arc<Pipeline>,
    places: &Arc<Places>,
    kept: &Arc<Kept>,
    incoming: Incoming,
    mut stream: Streaming<UploadRequest>,
) -> Result<UploadResponse, Error> {
    let scene = pipeline.scene(&incoming)?;
    let first = timeout(SILENCE, stream.message()).await;
    let first = first.map_err(|_| silent())?.map_err(|status| lost(&status));
    let first = first?.unwrap_or_default();
    // Without the chunks, as any call may send them; and without defaults, for who decides about it.
    let (call, given) = match &first.part {
        Some(Part::Start(start)) => (pipeline.repeatable(&incoming, METHOD, start)?, start.clone()),
        Some(Part::Chunk(_)) | None => (None, UploadStart::default()),
    };
    let first = pipeline.catalog.check("jig.v1.UploadRequest", first)?;
    let Some(Part::Start(start)) = first.part else {
        let text = "must be in the first message: what is to be written, and where";
        return Err(Error::invalid_field("start", text));
    };
    let workspace = Arc::clone(&scene.workspace);
    let plan = Plan::new(start, &workspace, &incoming.call_id)?;
    let is_resumable = plan.record.upload_id.is_some();
    let (places, kept) = (Arc::clone(places), Arc::clone(kept));
    let (files, caller) = (scene.files.clone(), Arc::clone(incoming.principal.lane()));
    incoming.principal.may_call(WriteFile::NAME)?;
    let permit = {
        let (pipeline, path) = (Arc::clone(pipeline), plan.target.path.as_str().to_owned());
        // Who has an id waits for the decision with all who have it: his deadline ends his own wait.
        let incoming =
            Incoming { deadline: incoming.deadline.filter(|_| call.is_none()), ..incoming.clone() };
        async move {
            let (tool, message) = (WriteFile::NAME, "jig.v1.UploadStart");
            let permitted = pipeline.permit_as(tool, &incoming, message, &given, &path);
            permitted.await
        }
    };
    let work = {
        let pipeline = Arc::clone(pipeline);
        async move |sent: Sent| {
            // Taken before the drain is looked at: whoever is let in is waited for.
            let _waited_for = task::hold();
            let permit = places.enter(&incoming.principal, &pipeline.drain)?;
            let recorded =
                pipeline.begin_recorded("upload", incoming, plan.shown(), sent.permitted).await?;
            let receiving = Receiving {
                workspace,
                files,
                caller,
                kept,
                plan,
                stream,
                stop: sent.stop,
                draining: pipeline.drain.end_token(),
                step: recorded.step(),
                mark: sent.mark.filter(|_| is_resumable),
                may_be_done: sent.may_be_done,
            };
            // Who goes away leaves it to its end: what has come is kept then.
            let work = task::spawn_tracked("upload", async move {
                let result = receiving.receive().await;
                drop(permit);
                recorded.end(result, facts)
            });
            work.await.map_err(Error::internal)?
        }
    };
    let sent = pipeline.once_sent(call, METHOD, is_resumable, permit, work);
    sent.await
}

// === impl Receiving ===

impl Receiving {
    async fn receive(mut self) -> Result<UploadResponse, Error> {
        let mut attempts = Attempts::until(None);
        let (lease, draft) = loop {
            match self.open(self.begin().await?).await {
                Ok(Ok(opened)) => break opened,
                Ok(Err(created)) => return Ok(self.plan.response(created, 0)),
                Err(error) if self.again(&mut attempts, &error).await => {}
                Err(error) => return Err(error),
            }
        };
        let before = draft.length();
        let (draft, result) = self.fill(draft, &lease).await?;
        let received = draft.length() - before;
        let result = match result {
            Ok(()) => self.may_be_done().await,
            Err(error) => Err(error),
        };
        let created = match result {
            Ok(()) => self.finish(lease, draft).await?,
            Err(error) => {
                blocking(move || lease.rest(draft)).await?;
                return Err(error);
            }
        };
        Ok(self.plan.response(created, received))
    }

    /// Begins this call's turn at the upload.
    async fn begin(&self) -> Result<Begun, Error> {
        loop {
            let (kept, stop) = (Arc::clone(&self.kept), self.stop.clone());
            let record = self.plan.record.clone();
            let begun = blocking(move || kept.begin(record, &stop)).await??;
            let over = match &begun {
                // It may be in its place, and others may have written there since.
                Begun::New(_) if self.may_be_done => return Err(tool::lost(METHOD)),
                Begun::Busy(over) => over,
                Begun::New(_) | Begun::Resting(..) | Begun::OnDisk(..) | Begun::Complete(_) => {
                    return Ok(begun);
                }
            };
            // The other call's turn ends within a chunk.
            tokio::select! {
                () = over.cancelled() => {}
                () = self.stop.cancelled() => return Err(self.ended(None)),
            }
        }
    }

    /// Whether what failed so is to be tried again; then it is time to.
    async fn again(&self, attempts: &mut Attempts, error: &Error) -> bool {
        tokio::select! {
            again = attempts.another(error) => again,
            () = self.stop.cancelled() => false,
        }
    }

    /// Finds or makes the draft. `Err` of the inner result: the upload is complete already.
    async fn open(&self, begun: Begun) -> Result<Result<(Lease, Draft), bool>, Error> {
        let (workspace, plan) = (Arc::clone(&self.workspace), self.plan.clone());
        self.on_files(move |stop| {
            let prepare = || {
                if plan.create_directories {
                    workspace.create_parents(&plan.target.path, stop)?;
                }
                workspace.look_at(&plan.target, stop)
            };
            let (lease, draft) = match begun {
                Begun::Complete(created) => return Ok(Err(created)),
                Begun::Busy(_) => return Err(Error::internal("the upload is busy")),
                Begun::New(lease) => {
                    prepare()?;
                    let say = |place: &DraftPlace| lease.note(place);
                    let draft = workspace.begin_draft(&plan.target.path, say)?;
                    return Ok(Ok((lease, draft)));
                }
                Begun::Resting(lease, draft) => match workspace.check_draft(&draft) {
                    Ok(()) => (lease, *draft),
                    Err(error) => return Err(leave(lease, *draft, error)),
                },
                Begun::OnDisk(lease, place) => match workspace.reopen_draft(place, stop) {
                    Ok(draft) => (lease, draft),
                    Err(DraftError::Kept(error)) => {
                        lease.put_back();
                        return Err(error);
                    }
                    // Dropping the lease deletes what is left.
                    Err(DraftError::Dropped(error)) => return Err(error),
                },
            };
            match prepare() {
                Ok(()) => Ok(Ok((lease, draft))),
                Err(error) => {
                    lease.rest(draft);
                    Err(error)
                }
            }
        })
        .await?
    }

    /// Takes chunks until the stream ends. The draft has all that came in order, whatever happens.
    async fn fill(
        &mut self,
        mut draft: Draft,
        lease: &Lease,
    ) -> Result<(Draft, Result<(), Error>), Error> {
        let size = self.plan.record.size;
        loop {
            let message = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok((draft, Err(self.ended(Some(lease))))),
                message = timeout(SILENCE, self.stream.message()) => message,
            };
            let chunk = match message {
                Err(_) => Err(silent()),
                Ok(Err(status)) => Err(lost(&status)),
                Ok(Ok(message)) => new_bytes(message, draft.length(), size),
            };
            let data = match chunk {
                Ok(Some(data)) => data,
                Ok(None) => return Ok((draft, Ok(()))),
                Err(error) => return Ok((draft, Err(error))),
            };
            let appended = blocking(move || {
                let result = draft.append(&data);
                (draft, result)
            });
            let result;
            (draft, result) = appended.await?;
            if let Err(error) = result {
                return Ok((draft, Err(error)));
            }
            lease.came_to(draft.length());
        }
    }

    /// Says that the file may be in its place from here on: nobody puts it there again who does not find
    /// what has come of it.
    async fn may_be_done(&self) -> Result<(), Error> {
        match &self.mark {
            Some(mark) => mark.begin(self.step).await,
            None => Ok(()),
        }
    }

    /// Checks what has come and puts it into its place.
    async fn finish(&self, mut lease: Lease, mut draft: Draft) -> Result<bool, Error> {
        let mut attempts = Attempts::until(None);
        loop {
            let error;
            (lease, draft, error) = match self.put(lease, draft).await? {
                Ok(created) => return Ok(created),
                Err(left) => left,
            };
            if !self.again(&mut attempts, &error).await {
                return Err(blocking(move || leave(lease, draft, error.into())).await?);
            }
        }
    }

    /// As [`Self::finish`], once. `Err` of the inner result: there were no descriptors, and nothing was done.
    async fn put(
        &self,
        lease: Lease,
        mut draft: Draft,
    ) -> Result<Result<bool, (Lease, Draft, Error)>, Error> {
        let (workspace, plan) = (Arc::clone(&self.workspace), self.plan.clone());
        self.on_files(move |stop| {
            let sha256 = draft.sha256();
            if sha256 != plan.record.sha256 {
                draft.discard();
                let message = format!(
                    "the bytes that came have the SHA-256 {sha256} and not {}, and are dropped: start again from the first byte",
                    plan.record.sha256
                );
                return Err(Error::new(Reason::ChecksumMismatch, message).with("sha256", sha256));
            }
            let say = |place: &DraftPlace| lease.note(place);
            match workspace.put(&mut draft, &plan.target, say, stop) {
                Ok(created) => {
                    lease.complete(created);
                    Ok(Ok(created))
                }
                Err(DraftError::Kept(error)) if ran_out(&error) => Ok(Err((lease, draft, error))),
                Err(error) => Err(leave(lease, draft, error)),
            }
        })
        .await?
    }

    /// Runs a function that blocks, and tells it to stop when the call is to end.
    async fn on_files<R: Send + 'static>(
        &self,
        function: impl FnOnce(&Stop) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let occupied = tokio::select! {
            occupied = self.files.occupy(&self.caller) => occupied?,
            () = self.stop.cancelled() => return Err(self.ended(None)),
        };
        Stop::at(occupied, self.stop.cancelled(), function).await
    }

    /// Why the call was told to end.
    fn ended(&self, lease: Option<&Lease>) -> Error {
        if lease.is_some_and(|lease| lease.was_taken_over()) {
            let text = "is being resumed by another call, which has taken over";
            return Error::invalid_field("start.upload_id", text);
        }
        if self.draining.is_cancelled() {
            let text = "the daemon is shutting down: resume the upload when it is back";
            return Error::new(Reason::Draining, text);
        }
        let text = "the caller has gone: with an upload_id, the upload can be resumed";
        Error::new(Reason::Timeout, text)
    }
}

/// Leaves a draft that could not be used. Blocks.
fn leave(lease: Lease, draft: Draft, error: DraftError) -> Error {
    match error {
        DraftError::Kept(error) => {
            lease.rest(draft);
            error
        }
        DraftError::Dropped(error) => {
            draft.discard();
            drop(lease); // which forgets the upload
            error
        }
    }
}

/// The bytes of a message that are not there yet; none when the stream has ended as it should.
fn new_bytes(
    message: Option<UploadRequest>,
    length: u64,
    size: u64,
) -> Result<Option<bytes::Bytes>, Error> {
    let Some(message) = message else {
        if length < size {
            let text = format!(
                "the stream ended after {length} of {size} bytes: send the rest; with an upload_id, resume from there"
            );
            return Err(Error::invalid_field("chunk", text));
        }
        return Ok(None);
    };
    let Some(Part::Chunk(UploadChunk { offset, mut data })) = message.part else {
        let text = "must be in each message after the first";
        return Err(Error::invalid_field("chunk", text));
    };
    if data.len() > LARGEST_CHUNK {
        let text = format!("must have at most {LARGEST_CHUNK} bytes");
        return Err(Error::invalid_field("chunk.data", text));
    }
    if offset > length {
        let text = format!("leaves a gap: the next byte is that at {length}");
        return Err(Error::invalid_field("chunk.offset", text));
    }
    let bytes = data.len() as u64;
    if offset.checked_add(bytes).is_none_or(|end| end > size) {
        let text = format!("goes beyond the {size} bytes of size_bytes");
        return Err(Error::invalid_field("chunk.data", text));
    }
    // Sent before the connection was lost.
    let known = usize::try_from((length - offset).min(bytes)).unwrap_or(data.len());
    Ok(Some(data.split_off(known)))
}

fn facts(response: &UploadResponse) -> Map<String, Value> {
    let mut facts = Map::new();
    facts.insert("created".to_owned(), response.created.into());
    facts.insert("received_bytes".to_owned(), response.received_bytes.into());
    facts
}

fn silent() -> Error {
    let text = format!(
        "nothing came for {} seconds: with an upload_id, the upload can be resumed",
        SILENCE.as_secs()
    );
    Error::new(Reason::Timeout, text).retry_after(Duration::ZERO)
}

/// What a stream that breaks off means.
fn lost(status: &Status) -> Error {
    let code = status.code();
    if [Code::OutOfRange, Code::ResourceExhausted, Code::Internal].contains(&code) {
        return Error::invalid_field("chunk", format!("cannot be read: {}", status.message()));
    }
    let text = "the connection was lost: with an upload_id, the upload can be resumed";
    Error::new(Reason::Timeout, text)
}

async fn blocking<R: Send + 'static>(
    function: impl FnOnce() -> R + Send + 'static,
) -> Result<R, Error> {
    task::blocking(function).await.map_err(Error::internal)
}
