//! Files of any size, sent and received in parts; what was lost with a connection is made good.

use std::{
    fs::File,
    io::{self, Seek as _, SeekFrom, Write as _},
    os::unix::fs::FileExt as _,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sha2::{Digest as _, Sha256};
use tonic::{Code, Streaming};

use super::{call::Client, deadline::CallDeadline, error::CallError};
use crate::api::v1::{
    DownloadRequest, DownloadResponse, GetUploadRequest, GetUploadResponse, UploadChunk,
    UploadRequest, UploadResponse, UploadStart, upload_request::Part,
};

/// Bytes in one message of an upload.
const UPLOAD_CHUNK_BYTES: usize = 256 * 1024;
/// Attempts in a row that may bring nothing before a transfer is given up.
const MAX_FRUITLESS_ATTEMPTS: u32 = 8;
/// Attempts to receive a file that is changed each time, before it is given up.
const MAX_CHANGED_ATTEMPTS: u32 = 4;
/// Wait before the second attempt; it doubles from there.
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);

/// The parts of a file, in order and without gaps, checked against the sum of their bytes.
#[derive(Debug)]
pub struct DownloadParts {
    parts: Streaming<DownloadResponse>,
    deadline: CallDeadline,
    next_offset: u64,
    hasher: Sha256,
    complete: bool,
}

/// What was received.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DownloadSummary {
    /// Bytes that were received: all of the file.
    pub size_bytes: u64,
    /// SHA-256 of what was received, in lower-case hexadecimal.
    pub sha256: String,
    /// Permission bits of the file.
    pub mode: u32,
}

/// Why a file was not sent or received to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The file on this side cannot be read or written.
    #[error("the file on this side cannot be used")]
    Local(#[source] io::Error),
}

impl Client {
    /// Sends the bytes of `file` from `offset` on, as one call. `start` says what they are and
    /// where they go. `progress` is told how many bytes of the file were given to the connection.
    /// Reading the file may block the thread.
    ///
    /// # Errors
    ///
    /// When the call failed or the file could not be read.
    pub async fn upload(
        &self,
        start: UploadStart,
        file: File,
        offset: u64,
        mut progress: impl FnMut(u64) + Send + 'static,
    ) -> Result<UploadResponse, TransferError> {
        let size = start.size_bytes;
        let failed = Arc::new(Mutex::new(None));
        let failure = Arc::clone(&failed);
        let mut at = offset;
        let chunks = std::iter::from_fn(move || {
            if at >= size {
                return None;
            }
            let most = usize::try_from(size - at)
                .map_or(UPLOAD_CHUNK_BYTES, |left| left.min(UPLOAD_CHUNK_BYTES));
            let mut data = vec![0; most];
            match file.read_at(&mut data, at) {
                // Shorter than it was: the daemon says that bytes are missing.
                Ok(0) => return None,
                Ok(read) => data.truncate(read),
                Err(error) => {
                    *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    return None;
                }
            }
            let offset = at;
            at += data.len() as u64;
            progress(at);
            Some(Part::Chunk(UploadChunk { offset, data: data.into() }))
        });
        let parts = std::iter::once(Part::Start(start)).chain(chunks);
        let messages = tokio_stream::iter(parts.map(|part| UploadRequest { part: Some(part) }));
        let mut transfers = self.transfers();
        let answer = self.deadline().enforce(transfers.upload(self.with_context(messages))).await;
        if let Some(error) = failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(TransferError::Local(error));
        }
        Ok(answer?.into_inner())
    }

    /// Asks how far an upload has come.
    ///
    /// # Errors
    ///
    /// When the call failed; `UPLOAD_NOT_FOUND` when there is nothing to resume.
    pub async fn get_upload(
        &self,
        request: GetUploadRequest,
    ) -> Result<GetUploadResponse, CallError> {
        let mut transfers = self.transfers();
        self.unary(request, |request| async move { transfers.get_upload(request).await }).await
    }

    /// Sends a file. Where `start` has an `upload_id`, it goes on where an earlier attempt was
    /// broken off, and makes further ones when the connection is lost.
    ///
    /// # Errors
    ///
    /// When a call failed for another reason, or too many in a row; when the file could not be
    /// read.
    pub async fn send_file(
        &self,
        file: &File,
        start: UploadStart,
        progress: impl FnMut(u64) + Clone + Send + 'static,
    ) -> Result<UploadResponse, TransferError> {
        let mut patience = RetryBudget::default();
        loop {
            let result = match self.resume_offset(&start).await {
                Ok(offset) => {
                    patience.record_progress(offset);
                    let file = file.try_clone().map_err(TransferError::Local)?;
                    self.upload(start.clone(), file, offset, progress.clone()).await
                }
                Err(error) => Err(error.into()),
            };
            match result {
                Err(TransferError::Call(error)) if is_retryable(&error) => {
                    patience.wait_or_fail(error).await?;
                }
                result => return result,
            }
        }
    }

    async fn resume_offset(&self, start: &UploadStart) -> Result<u64, CallError> {
        let Some(id) = &start.upload_id else {
            return Ok(0);
        };
        let request = GetUploadRequest { upload_id: id.clone() };
        match self.get_upload(request).await {
            // Of a complete one nothing is sent; the daemon repeats its answer.
            Ok(known) => Ok(known.offset.min(start.size_bytes)),
            Err(error) if error.reason.as_deref() == Some("UPLOAD_NOT_FOUND") => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Reads a file, part by part.
    ///
    /// # Errors
    ///
    /// When the call failed.
    pub async fn download(&self, request: DownloadRequest) -> Result<DownloadParts, CallError> {
        let deadline = self.deadline();
        let next_offset = request.offset;
        let mut transfers = self.transfers();
        let parts =
            deadline.enforce(transfers.download(self.with_context(request))).await?.into_inner();
        Ok(DownloadParts { parts, deadline, next_offset, hasher: Sha256::new(), complete: false })
    }

    /// Receives the file at `path` of the workspace into `file`, which is empty and open for reading
    /// and writing. Runs of zeros take no room there. Goes on when the connection is lost, and starts
    /// again when the file was changed meanwhile: what comes is the file as it was at one time.
    /// `progress` is told the bytes that came and the size. Writing may block the thread.
    ///
    /// # Errors
    ///
    /// When a call failed for another reason, or too many in a row; `STALE_FILE` when the file was
    /// changed each time; when `file` could not be written.
    pub async fn receive_file(
        &self,
        path: &str,
        file: &mut File,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<DownloadSummary, TransferError> {
        let mut patience = RetryBudget::default();
        let mut version = 1;
        let mut request = DownloadRequest { path: path.to_owned(), ..DownloadRequest::default() };
        loop {
            let began_at = request.offset;
            let result = self.receive_attempt(&mut request, file, &mut progress).await;
            match result {
                Ok(mut whole) => {
                    if began_at > 0 {
                        // The daemon's sum is that of the last call's bytes alone.
                        let sum = sha256_of(file).await.map_err(TransferError::Local)?;
                        whole.sha256 = sum.1;
                    }
                    return Ok(whole);
                }
                Err(TransferError::Call(error)) if is_retryable(&error) => {
                    patience.record_progress(request.offset);
                    patience.wait_or_fail(error).await?;
                }
                Err(TransferError::Call(error)) if error.name() == "STALE_FILE" => {
                    if version == MAX_CHANGED_ATTEMPTS {
                        return Err(changed_each_time_error(path).into());
                    }
                    tokio::time::sleep(INITIAL_BACKOFF * (1 << (version - 1))).await;
                    version += 1;
                    patience.record_progress(0);
                    request.offset = 0;
                    request.expected_version = None;
                    file.set_len(0).map_err(TransferError::Local)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// One attempt; `request` is moved on with what came.
    async fn receive_attempt(
        &self,
        request: &mut DownloadRequest,
        file: &mut File,
        progress: &mut impl FnMut(u64, u64),
    ) -> Result<DownloadSummary, TransferError> {
        let mut parts = self.download(request.clone()).await?;
        file.seek(SeekFrom::Start(request.offset)).map_err(TransferError::Local)?;
        let mut whole = DownloadSummary { size_bytes: 0, sha256: String::new(), mode: 0 };
        let mut size = request.offset;
        while let Some(part) = parts.next().await? {
            let expected = request.expected_version.get_or_insert_with(|| part.version.clone());
            if *expected != part.version {
                return Err(CallError::stale_file(&request.path).into());
            }
            size = part.size_bytes;
            whole.mode = part.mode;
            write_sparse(file, &part.data).map_err(TransferError::Local)?;
            request.offset = part.offset + part.data.len() as u64;
            whole.sha256 = part.sha256.unwrap_or_default();
            progress(request.offset, part.size_bytes);
        }
        // It was cut off before its first bytes were read.
        if request.offset != size {
            return Err(CallError::stale_file(&request.path).into());
        }
        file.set_len(size).map_err(TransferError::Local)?;
        whole.size_bytes = size;
        Ok(whole)
    }
}

impl DownloadParts {
    /// The next part; none after the last.
    ///
    /// # Errors
    ///
    /// When the call failed, a part does not begin where the one before it ended, or the parts are
    /// not what the daemon has sent.
    pub async fn next(&mut self) -> Result<Option<DownloadResponse>, CallError> {
        let Some(part) = self.deadline.enforce(self.parts.message()).await? else {
            if self.complete {
                return Ok(None);
            }
            let text = "the daemon ended the download before its last part";
            return Err(CallError::local(Code::Unavailable, text));
        };
        if part.offset != self.next_offset {
            let text =
                format!("bytes {} to {} of the file did not come", self.next_offset, part.offset);
            return Err(CallError::local(Code::DataLoss, text));
        }
        self.next_offset += part.data.len() as u64;
        self.hasher.update(&part.data);
        if let Some(sha256) = &part.sha256 {
            self.complete = true;
            let came = hex_digest(self.hasher.clone());
            if came != *sha256 {
                let text = format!("what came has the SHA-256 {came}, and {sha256} was sent");
                return Err(CallError::local(Code::DataLoss, text));
            }
        }
        Ok(Some(part))
    }
}

/// Size and SHA-256, in lower-case hexadecimal, of a file on this side. Lets other tasks of the
/// thread go on meanwhile.
///
/// # Errors
///
/// When it cannot be read.
pub async fn sha256_of(file: &File) -> io::Result<(u64, String)> {
    let (mut sum, mut size) = (Sha256::new(), 0);
    let mut buffer = vec![0; UPLOAD_CHUNK_BYTES];
    loop {
        let read = file.read_at(&mut buffer, size)?;
        if read == 0 {
            return Ok((size, hex_digest(sum)));
        }
        sum.update(buffer.get(..read).unwrap_or_default());
        size += read as u64;
        tokio::task::yield_now().await;
    }
}

/// How often it is tried again.
#[derive(Debug, Default)]
struct RetryBudget {
    fruitless_attempts: u32,
    offset: u64,
}

impl RetryBudget {
    /// Attempts that bring something are not counted.
    fn record_progress(&mut self, offset: u64) {
        if offset > self.offset {
            self.fruitless_attempts = 0;
        }
        self.offset = offset;
    }

    async fn wait_or_fail(&mut self, error: CallError) -> Result<(), CallError> {
        self.fruitless_attempts += 1;
        if self.fruitless_attempts >= MAX_FRUITLESS_ATTEMPTS {
            return Err(error);
        }
        let wait = INITIAL_BACKOFF * (1 << (self.fruitless_attempts - 1));
        tokio::time::sleep(error.retry_after.unwrap_or(wait)).await;
        Ok(())
    }
}

/// Whether the same call may go well a moment later: when the connection was lost, the daemon had no
/// room, or heard nothing of this side for a while, as when that was stopped. A daemon whose state
/// directory is lost needs its operator.
fn is_retryable(error: &CallError) -> bool {
    let may_pass = [Code::ResourceExhausted, Code::DeadlineExceeded].contains(&error.code);
    let is_unavailable = error.code == Code::Unavailable && error.name() != "STATE_LOST";
    is_unavailable || may_pass && error.retry_after.is_some()
}

fn changed_each_time_error(path: &str) -> CallError {
    CallError {
        message: format!(
            "{path:?} was changed each of the {MAX_CHANGED_ATTEMPTS} times that it was read: copy it when nothing writes to it"
        ),
        ..CallError::stale_file(path)
    }
}

/// Writes at the position of the file. Zeros become a hole.
fn write_sparse(file: &mut File, data: &[u8]) -> io::Result<()> {
    if is_zero(data) {
        let length = i64::try_from(data.len()).map_err(io::Error::other)?;
        file.seek(SeekFrom::Current(length)).map(drop)
    } else {
        file.write_all(data)
    }
}

fn is_zero(data: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    data.chunks(ZEROS.len()).all(|chunk| ZEROS.starts_with(chunk))
}

fn hex_digest(sum: Sha256) -> String {
    let bytes = sum.finalize();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_go_well_a_moment_later_is_tried_again() {
        let wait = Some(Duration::ZERO);
        for (code, retry_after, again) in [
            (Code::Unavailable, None, true),
            (Code::ResourceExhausted, wait, true),
            (Code::ResourceExhausted, None, false),
            // Silence of this side, and a deadline.
            (Code::DeadlineExceeded, wait, true),
            (Code::DeadlineExceeded, None, false),
            (Code::NotFound, wait, false),
        ] {
            let error = CallError { retry_after, ..CallError::local(code, "x") };
            assert_eq!(is_retryable(&error), again, "{code:?} {retry_after:?}");
        }
        let state_lost = CallError {
            reason: Some("STATE_LOST".to_owned()),
            ..CallError::local(Code::Unavailable, "x")
        };
        assert!(!is_retryable(&state_lost));
    }
}
