//! File transfer of any size in chunks. Uploads and downloads resume after a lost connection.

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

/// Size of the data in one upload message.
const UPLOAD_CHUNK_BYTES: usize = 256 * 1024;
/// Consecutive attempts without progress after which a transfer fails.
const MAX_FRUITLESS_ATTEMPTS: u32 = 8;
/// Attempts to download a file that changes each time, after which the download fails.
const MAX_CHANGED_ATTEMPTS: u32 = 4;
/// Delay before the second attempt. It doubles with each further one.
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);

/// Parts of a file, in order and without gaps, verified against the daemon's SHA-256.
#[derive(Debug)]
pub struct DownloadParts {
    parts: Streaming<DownloadResponse>,
    deadline: CallDeadline,
    next_offset: u64,
    hasher: Sha256,
    complete: bool,
}

/// Result of a download.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DownloadSummary {
    /// Size of the file.
    pub size_bytes: u64,
    /// SHA-256 of the received bytes, in lower-case hexadecimal.
    pub sha256: String,
    /// Permission bits of the file.
    pub mode: u32,
}

/// Reason why a file was not transferred completely.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The local file cannot be read or written.
    #[error("the local file cannot be read or written")]
    Local(#[source] io::Error),
}

impl Client {
    /// Uploads the bytes of `file` from `offset` on, in one call.
    ///
    /// `start` has the size, the destination and other properties. `progress` receives the number
    /// of bytes of the file that were passed to the connection. Reading the file may block the
    /// thread.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails or the file cannot be read.
    pub async fn upload(
        &self,
        start: UploadStart,
        file: File,
        offset: u64,
        mut progress: impl FnMut(u64) + Send + 'static,
    ) -> Result<UploadResponse, TransferError> {
        let size = start.size_bytes;

        let read_error = Arc::new(Mutex::new(None));
        let read_error_slot = Arc::clone(&read_error);
        let mut at = offset;

        let chunks = std::iter::from_fn(move || {
            if at >= size {
                return None;
            }
            let length = usize::try_from(size - at)
                .map_or(UPLOAD_CHUNK_BYTES, |rest| rest.min(UPLOAD_CHUNK_BYTES));
            let mut data = vec![0; length];

            match file.read_at(&mut data, at) {
                // The file became shorter. The daemon reports the missing bytes.
                Ok(0) => return None,
                Ok(read) => data.truncate(read),
                Err(error) => {
                    *read_error_slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
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
        let response = self.deadline().enforce(transfers.upload(self.with_context(messages))).await;

        if let Some(error) = read_error.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(TransferError::Local(error));
        }
        Ok(response?.into_inner())
    }

    /// Returns the progress of an upload.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails; the reason is `UPLOAD_NOT_FOUND` if there is nothing to
    /// resume.
    pub async fn get_upload(
        &self,
        request: GetUploadRequest,
    ) -> Result<GetUploadResponse, CallError> {
        let mut transfers = self.transfers();
        self.unary(request, |request| async move { transfers.get_upload(request).await }).await
    }

    /// Uploads a file, with retries.
    ///
    /// If `start` has an `upload_id`, the upload resumes where an earlier attempt stopped, and is
    /// retried after a lost connection. The daemon stores the bytes of an interrupted upload for 24
    /// hours.
    ///
    /// # Errors
    ///
    /// Returns an error if a call fails for another reason or too often in a row, or if the file
    /// cannot be read.
    pub async fn send_file(
        &self,
        file: &File,
        start: UploadStart,
        progress: impl FnMut(u64) + Clone + Send + 'static,
    ) -> Result<UploadResponse, TransferError> {
        let mut retry_budget = RetryBudget::default();
        loop {
            let result = match self.resume_offset(&start).await {
                Ok(offset) => {
                    retry_budget.record_progress(offset);
                    let file = file.try_clone().map_err(TransferError::Local)?;
                    self.upload(start.clone(), file, offset, progress.clone()).await
                }
                Err(error) => Err(error.into()),
            };

            match result {
                Err(TransferError::Call(error)) if is_retryable(&error) => {
                    retry_budget.wait_or_fail(error).await?;
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
            // A complete upload sends nothing. The daemon repeats its response.
            Ok(upload) => Ok(upload.offset.min(start.size_bytes)),
            Err(error) if error.reason.as_deref() == Some("UPLOAD_NOT_FOUND") => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Downloads a file as a stream of parts.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails.
    pub async fn download(&self, request: DownloadRequest) -> Result<DownloadParts, CallError> {
        let deadline = self.deadline();
        let next_offset = request.offset;
        let mut transfers = self.transfers();
        let parts =
            deadline.enforce(transfers.download(self.with_context(request))).await?.into_inner();
        Ok(DownloadParts { parts, deadline, next_offset, hasher: Sha256::new(), complete: false })
    }

    /// Downloads the workspace file at `path` into `file`, with retries.
    ///
    /// `file` must be empty, and open for reading and writing. Runs of zeros become holes in it.
    /// The download resumes after a lost connection, and restarts if the file changed: the result
    /// is the file as it was at one time. `progress` receives the bytes received so far and the
    /// size of the file. Writing may block the thread.
    ///
    /// # Errors
    ///
    /// Returns an error if a call fails for another reason or too often in a row, or if `file`
    /// cannot be written. The reason is `STALE_FILE` if the file changed during each attempt.
    pub async fn receive_file(
        &self,
        path: &str,
        file: &mut File,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<DownloadSummary, TransferError> {
        let mut retry_budget = RetryBudget::default();
        let mut attempt = 1;
        let mut request = DownloadRequest { path: path.to_owned(), ..DownloadRequest::default() };
        loop {
            let start_offset = request.offset;
            let result = self.receive_attempt(&mut request, file, &mut progress).await;
            match result {
                Ok(mut summary) => {
                    if start_offset > 0 {
                        // The daemon's checksum covers only the bytes of the last call.
                        let (_, sha256) = sha256_of(file).await.map_err(TransferError::Local)?;
                        summary.sha256 = sha256;
                    }
                    return Ok(summary);
                }
                Err(TransferError::Call(error)) if is_retryable(&error) => {
                    retry_budget.record_progress(request.offset);
                    retry_budget.wait_or_fail(error).await?;
                }
                Err(TransferError::Call(error)) if error.name() == "STALE_FILE" => {
                    if attempt == MAX_CHANGED_ATTEMPTS {
                        return Err(changed_each_time_error(path).into());
                    }
                    tokio::time::sleep(INITIAL_BACKOFF * (1 << (attempt - 1))).await;

                    attempt += 1;
                    retry_budget.record_progress(0);
                    request.offset = 0;
                    request.expected_version = None;
                    file.set_len(0).map_err(TransferError::Local)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Downloads once, from the offset of `request` on. Advances `request` by what arrives.
    async fn receive_attempt(
        &self,
        request: &mut DownloadRequest,
        file: &mut File,
        progress: &mut impl FnMut(u64, u64),
    ) -> Result<DownloadSummary, TransferError> {
        let mut parts = self.download(request.clone()).await?;
        file.seek(SeekFrom::Start(request.offset)).map_err(TransferError::Local)?;
        let mut summary = DownloadSummary { size_bytes: 0, sha256: String::new(), mode: 0 };
        let mut size = request.offset;

        while let Some(part) = parts.next().await? {
            let expected = request.expected_version.get_or_insert_with(|| part.version.clone());
            if *expected != part.version {
                return Err(CallError::stale_file(&request.path).into());
            }
            size = part.size_bytes;
            summary.mode = part.mode;
            write_sparse(file, &part.data).map_err(TransferError::Local)?;
            request.offset = part.offset + part.data.len() as u64;
            summary.sha256 = part.sha256.unwrap_or_default();
            progress(request.offset, part.size_bytes);
        }

        // The file was truncated before its first bytes were read.
        if request.offset != size {
            return Err(CallError::stale_file(&request.path).into());
        }

        file.set_len(size).map_err(TransferError::Local)?;
        summary.size_bytes = size;
        Ok(summary)
    }
}

impl DownloadParts {
    /// Waits for the next part. Returns `None` after the last one.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails, if a part does not start where the previous one ended,
    /// or if the checksum does not match.
    pub async fn next(&mut self) -> Result<Option<DownloadResponse>, CallError> {
        let Some(part) = self.deadline.enforce(self.parts.message()).await? else {
            if self.complete {
                return Ok(None);
            }
            let text = "the daemon ended the download before its last part: retry";
            return Err(CallError::local(Code::Unavailable, text));
        };
        if part.offset != self.next_offset {
            let text =
                format!("bytes {} to {} of the file are missing", self.next_offset, part.offset);
            return Err(CallError::local(Code::DataLoss, text));
        }

        self.next_offset += part.data.len() as u64;
        self.hasher.update(&part.data);
        if let Some(sha256) = &part.sha256 {
            self.complete = true;
            let received = hex_digest(self.hasher.clone());
            if received != *sha256 {
                let text = format!("the received bytes have the SHA-256 {received}, not {sha256}");
                return Err(CallError::local(Code::DataLoss, text));
            }
        }
        Ok(Some(part))
    }
}

/// Returns the size of a local file and its SHA-256, in lower-case hexadecimal.
///
/// Yields to other tasks between reads.
///
/// # Errors
///
/// Returns an error if the file cannot be read.
pub async fn sha256_of(file: &File) -> io::Result<(u64, String)> {
    let (mut hasher, mut size) = (Sha256::new(), 0);
    let mut buffer = vec![0; UPLOAD_CHUNK_BYTES];
    loop {
        let read = file.read_at(&mut buffer, size)?;
        if read == 0 {
            return Ok((size, hex_digest(hasher)));
        }
        hasher.update(buffer.get(..read).unwrap_or_default());
        size += read as u64;
        tokio::task::yield_now().await;
    }
}

/// Computes the SHA-256 of bytes that arrive in parts.
#[derive(Debug, Clone, Default)]
pub struct Sha256Sum(Sha256);

impl Sha256Sum {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the checksum, in lower-case hexadecimal.
    #[must_use]
    pub fn finish(self) -> String {
        hex_digest(self.0)
    }
}

/// Limits the consecutive attempts without progress.
#[derive(Debug, Default)]
struct RetryBudget {
    fruitless_attempts: u32,
    offset: u64,
}

impl RetryBudget {
    /// Resets the count if the transfer has advanced.
    fn record_progress(&mut self, offset: u64) {
        if offset > self.offset {
            self.fruitless_attempts = 0;
        }
        self.offset = offset;
    }

    /// Waits before the next attempt, or returns `error` if too many failed.
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

/// Returns whether a retry may succeed.
///
/// It may after a lost connection, or while the daemon is saturated. It also may if the daemon
/// heard nothing from this client for a while, for example because the client was stopped. A daemon
/// without its state directory needs its operator.
fn is_retryable(error: &CallError) -> bool {
    let is_transient = [Code::ResourceExhausted, Code::DeadlineExceeded].contains(&error.code);
    let is_unavailable = error.code == Code::Unavailable && error.name() != "STATE_LOST";
    is_unavailable || is_transient && error.retry_after.is_some()
}

fn changed_each_time_error(path: &str) -> CallError {
    CallError {
        message: format!(
            "{path:?} changed during each of {MAX_CHANGED_ATTEMPTS} attempts to read it: copy it when nothing writes to it"
        ),
        ..CallError::stale_file(path)
    }
}

/// Writes at the file's position. A block of zeros becomes a hole.
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

pub(super) fn hex_digest(hasher: Sha256) -> String {
    let bytes = hasher.finalize();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transient_errors_are_retried() {
        let wait = Some(Duration::ZERO);
        for (code, retry_after, expected) in [
            (Code::Unavailable, None, true),
            (Code::ResourceExhausted, wait, true),
            (Code::ResourceExhausted, None, false),
            // The client was silent for too long; or a deadline passed.
            (Code::DeadlineExceeded, wait, true),
            (Code::DeadlineExceeded, None, false),
            (Code::NotFound, wait, false),
        ] {
            let error = CallError { retry_after, ..CallError::local(code, "x") };
            assert_eq!(is_retryable(&error), expected, "{code:?} {retry_after:?}");
        }
        let state_lost = CallError {
            reason: Some("STATE_LOST".to_owned()),
            ..CallError::local(Code::Unavailable, "x")
        };
        assert!(!is_retryable(&state_lost));
    }
}
