//! Validates the start message of an upload.

use serde_json::{Value, json};

use super::sessions::MAX_PAUSED_BYTES;
use crate::{
    api::v1::{UploadResponse, UploadStart, WriteMode},
    daemon::{
        checksum::sha256_violation,
        error::{Error, Violation},
        store::uploads::{UploadOptions, UploadRecord},
        workspace::{PartialFileTarget, Workspace},
    },
};

/// A validated upload.
#[derive(Debug, Clone)]
pub(super) struct UploadPlan {
    /// The record that is stored while the upload is incomplete.
    pub(super) record: UploadRecord,
    /// The file to write.
    pub(super) target: PartialFileTarget,
    /// Whether to create missing parent directories.
    pub(super) create_directories: bool,
}

impl UploadPlan {
    /// Validates `start`. Reports all violations.
    pub(super) fn new(
        start: UploadStart,
        workspace: &Workspace,
        call_id: &str,
    ) -> Result<Self, Error> {
        let violations = violations(&start);
        if !violations.is_empty() {
            return Err(Error::invalid(violations));
        }

        let mode = start.mode();
        let expected_sha256 = start.expected_sha256.as_deref().map(str::to_ascii_lowercase);
        let path = workspace.resolve(&start.path)?;
        Ok(Self {
            record: UploadRecord {
                name: call_id.to_owned(),
                upload_id: start.upload_id,
                workspace: workspace.name().to_owned(),
                path: path.as_str().to_owned(),
                size: start.size_bytes,
                sha256: start.sha256.to_ascii_lowercase(),
                options: UploadOptions {
                    create_new: mode == WriteMode::CreateNew,
                    expected_sha256: expected_sha256.clone(),
                    file_mode: start.file_mode,
                },
                partial_name: String::new(),
                partial_identity: None,
                replaces: None,
                complete: None,
                touched: 0,
            },
            target: PartialFileTarget {
                path,
                create_new: mode == WriteMode::CreateNew,
                expected_sha256,
                mode: start.file_mode,
            },
            create_directories: start.create_directories.unwrap_or(true),
        })
    }

    /// The fields of the call's record.
    pub(super) fn audit_fields(&self) -> Value {
        json!({
            "path": self.record.path,
            "size_bytes": self.record.size,
            "sha256": self.record.sha256,
            "upload_id": self.record.upload_id,
            "create_new": self.target.create_new,
            "expected_sha256": self.target.expected_sha256,
            "file_mode": self.target.mode,
        })
    }

    /// The response when the upload is complete.
    pub(super) fn response(&self, created: bool, received_bytes: u64) -> UploadResponse {
        UploadResponse {
            size_bytes: self.record.size,
            sha256: self.record.sha256.clone(),
            created,
            received_bytes,
        }
    }
}

/// Returns everything that is wrong with `start`, except its path.
fn violations(start: &UploadStart) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut report = |name: &str, description: &str| {
        violations.push(Violation::new(format!("start.{name}"), description));
    };
    let mode = start.mode();
    if mode == WriteMode::Append {
        report("mode", "an upload is a whole file and cannot append");
    }
    if mode == WriteMode::CreateNew && start.expected_sha256.is_some() {
        report(
            "expected_sha256",
            "cannot be combined with WRITE_MODE_CREATE_NEW, which requires that no file exists",
        );
    }

    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if let Some(id) = &start.upload_id
        && (id.is_empty() || !id.bytes().all(allowed))
    {
        report("upload_id", "must have 1 to 64 letters, digits, underscores and hyphens");
    }

    if i64::try_from(start.size_bytes).is_err() {
        report("size_bytes", "no file can be that large");
    } else if start.upload_id.is_some() && start.size_bytes > MAX_PAUSED_BYTES {
        // If interrupted, it would be evicted at once.
        let text = format!(
            "must be at most {MAX_PAUSED_BYTES} with an upload_id, because no more is stored for resuming: leave upload_id out"
        );
        report("size_bytes", &text);
    }

    let expected = start.expected_sha256.as_deref();
    violations.extend(sha256_violation("start.sha256", &start.sha256));
    violations.extend(expected.and_then(|sum| sha256_violation("start.expected_sha256", sum)));
    violations
}
