//! Errors of calls, in the terms of the contract. The frontends map them to their protocol, such as
//! a gRPC status.

mod suggestion;

use std::{borrow::Cow, error::Error as StdError, fmt, time::Duration};

/// Violations that one error reports. Validation stops at that number: a request can have a million
/// invalid fields, and the caller learns of the others once these are fixed.
pub(crate) const MAX_VIOLATIONS: usize = 20;

/// Metadata of `RESOURCE_EXHAUSTED` from an admission queue: which of its limits was reached, as
/// `concurrency`, `queue`, `pending_bytes` or `queue_timeout`.
pub(crate) const LIMIT_KIND: &str = "limit_kind";

/// Metadata of `SYMLINK_BLOCKED` if the links lead out of the workspace.
pub(crate) const LEADS_OUT: &str = "leads_out";

/// The machine-readable reason of an error. `ErrorInfo.reason` carries its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reason {
    /// Fields of the request are invalid.
    InvalidParams,
    /// A glob cannot be parsed.
    InvalidGlob,
    /// A regular expression cannot be parsed, or is too large.
    InvalidRegex,
    /// A path leads out of the workspace or another allowed directory.
    PathEscape,
    /// A path passes through a symbolic link.
    SymlinkBlocked,
    /// The operating system denies access.
    PermissionDenied,
    /// The operator's policy does not allow it.
    PolicyDenied,
    /// The operator does not allow fetching from this host.
    EgressDenied,
    /// The call needed approval and was not approved, or an approved directory was replaced.
    ApprovalDenied,
    /// The caller is not authorized.
    Forbidden,
    /// The caller is not authenticated.
    Unauthenticated,
    /// No file is at the path.
    FileNotFound,
    /// No directory is at the path.
    DirectoryNotFound,
    /// The program was not found.
    CommandNotFound,
    /// No such tool or method exists.
    UnknownTool,
    /// No workspace of this name exists.
    UnknownWorkspace,
    /// The session has no such artifact.
    ArtifactNotFound,
    /// No such upload is stored.
    UploadNotFound,
    /// The notebook has no such cell.
    CellNotFound,
    /// No such process is running or ended recently.
    ProcessNotFound,
    /// No such job is stored.
    JobNotFound,
    /// No such approval is pending or stored.
    ApprovalNotFound,
    /// No such policy rule exists.
    RuleNotFound,
    /// The path exists already.
    FileExists,
    /// The path is not a regular file.
    NotAFile,
    /// The path is not a directory.
    NotADirectory,
    /// The directory is not empty.
    DirectoryNotEmpty,
    /// The file is not text.
    BinaryFile,
    /// The file is too large to be read as a whole.
    FileTooLarge,
    /// The range of lines is outside the file.
    LineRangeInvalid,
    /// A hunk of a patch does not apply.
    PatchHunkFail,
    /// A patch cannot be parsed.
    PatchParseError,
    /// The file contains the string more than once.
    StringNotUnique,
    /// The file does not contain the string.
    StringNotFound,
    /// The program is not in an executable format.
    CommandNotExecutable,
    /// The operator has disabled the tool.
    ToolDisabled,
    /// The approval was decided before.
    ApprovalDecided,
    /// The session has run no command.
    NoCommandHistory,
    /// The process has ended.
    ProcessEnded,
    /// The standard input of the process is closed.
    StdinClosed,
    /// A request id was reused for a different call.
    RequestIdReused,
    /// The file has changed since the caller read it.
    StaleFile,
    /// The content does not match its checksum.
    ChecksumMismatch,
    /// The daemon died during the first call with this request id, or lost data of a job.
    DaemonLost,
    /// A deadline passed, the call was interrupted, or the client sent or read too slowly.
    Timeout,
    /// A limit of concurrency, queues or kernel resources was reached.
    ResourceExhausted,
    /// A disk is full.
    NoSpace,
    /// A directory has more entries than can be listed.
    TooManyFiles,
    /// The required isolation level is not available.
    SandboxUnavailable,
    /// A sandbox could not be created, or was lost.
    SandboxError,
    /// Fetching from the web failed.
    FetchError,
    /// The daemon's state directory was removed or replaced.
    StateLost,
    /// The daemon is shutting down.
    Draining,
    /// A bug in the daemon, or an unexpected failure.
    Internal,
}

/// An invalid field of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Path of the field: `cwd`, `argv[3]`, `env["A=B"]`.
    pub(crate) field: String,
    /// What is wrong, and what would be valid.
    pub(crate) description: String,
}

/// Why a call failed. Display says what happened and what to do, without the source.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Error {
    pub(crate) reason: Reason,
    /// What happened, and what to do about it.
    pub(crate) message: Cow<'static, str>,
    /// The variable parts of the message, by name.
    pub(crate) metadata: Vec<(Cow<'static, str>, String)>,
    /// The first [`MAX_VIOLATIONS`] invalid fields, and one more to show that there are others.
    /// Clients get at most [`MAX_VIOLATIONS`].
    pub(crate) violations: Vec<Violation>,
    /// Whether nothing was done, so the call may be repeated with its request id.
    pub(crate) not_started: bool,
    /// How long to wait before retrying, if that helps.
    pub(crate) retry_after: Option<Duration>,
    /// For the daemon's log only.
    #[source]
    pub(crate) cause: Option<Box<dyn StdError + Send + Sync>>,
}

impl Violation {
    pub(crate) fn new(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self { field: field.into(), description: description.into() }
    }
}

impl Reason {
    const ALL: [Self; 54] = [
        Self::InvalidParams,
        Self::InvalidGlob,
        Self::InvalidRegex,
        Self::PathEscape,
        Self::SymlinkBlocked,
        Self::PermissionDenied,
        Self::PolicyDenied,
        Self::EgressDenied,
        Self::ApprovalDenied,
        Self::Forbidden,
        Self::Unauthenticated,
        Self::FileNotFound,
        Self::DirectoryNotFound,
        Self::CommandNotFound,
        Self::UnknownTool,
        Self::UnknownWorkspace,
        Self::ArtifactNotFound,
        Self::UploadNotFound,
        Self::CellNotFound,
        Self::ProcessNotFound,
        Self::JobNotFound,
        Self::ApprovalNotFound,
        Self::RuleNotFound,
        Self::FileExists,
        Self::NotAFile,
        Self::NotADirectory,
        Self::DirectoryNotEmpty,
        Self::BinaryFile,
        Self::FileTooLarge,
        Self::LineRangeInvalid,
        Self::PatchHunkFail,
        Self::PatchParseError,
        Self::StringNotUnique,
        Self::StringNotFound,
        Self::CommandNotExecutable,
        Self::ToolDisabled,
        Self::ApprovalDecided,
        Self::NoCommandHistory,
        Self::ProcessEnded,
        Self::StdinClosed,
        Self::RequestIdReused,
        Self::StaleFile,
        Self::ChecksumMismatch,
        Self::DaemonLost,
        Self::Timeout,
        Self::ResourceExhausted,
        Self::NoSpace,
        Self::TooManyFiles,
        Self::SandboxUnavailable,
        Self::SandboxError,
        Self::FetchError,
        Self::StateLost,
        Self::Draining,
        Self::Internal,
    ];

    /// Returns the reason of a name in the contract.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }

    /// Returns the reason's name in the contract.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::InvalidParams => "INVALID_PARAMS",
            Self::InvalidGlob => "INVALID_GLOB",
            Self::InvalidRegex => "INVALID_REGEX",
            Self::PathEscape => "PATH_ESCAPE",
            Self::SymlinkBlocked => "SYMLINK_BLOCKED",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::PolicyDenied => "POLICY_DENIED",
            Self::EgressDenied => "EGRESS_DENIED",
            Self::ApprovalDenied => "APPROVAL_DENIED",
            Self::Forbidden => "FORBIDDEN",
            Self::Unauthenticated => "UNAUTHENTICATED",
            Self::FileNotFound => "FILE_NOT_FOUND",
            Self::DirectoryNotFound => "DIRECTORY_NOT_FOUND",
            Self::CommandNotFound => "COMMAND_NOT_FOUND",
            Self::UnknownTool => "UNKNOWN_TOOL",
            Self::UnknownWorkspace => "UNKNOWN_WORKSPACE",
            Self::ArtifactNotFound => "ARTIFACT_NOT_FOUND",
            Self::UploadNotFound => "UPLOAD_NOT_FOUND",
            Self::CellNotFound => "CELL_NOT_FOUND",
            Self::ProcessNotFound => "PROCESS_NOT_FOUND",
            Self::JobNotFound => "JOB_NOT_FOUND",
            Self::ApprovalNotFound => "APPROVAL_NOT_FOUND",
            Self::RuleNotFound => "RULE_NOT_FOUND",
            Self::FileExists => "FILE_EXISTS",
            Self::NotAFile => "NOT_A_FILE",
            Self::NotADirectory => "NOT_A_DIRECTORY",
            Self::DirectoryNotEmpty => "DIRECTORY_NOT_EMPTY",
            Self::BinaryFile => "BINARY_FILE",
            Self::FileTooLarge => "FILE_TOO_LARGE",
            Self::LineRangeInvalid => "LINE_RANGE_INVALID",
            Self::PatchHunkFail => "PATCH_HUNK_FAIL",
            Self::PatchParseError => "PATCH_PARSE_ERROR",
            Self::StringNotUnique => "STRING_NOT_UNIQUE",
            Self::StringNotFound => "STRING_NOT_FOUND",
            Self::CommandNotExecutable => "COMMAND_NOT_EXECUTABLE",
            Self::ToolDisabled => "TOOL_DISABLED",
            Self::ApprovalDecided => "APPROVAL_DECIDED",
            Self::NoCommandHistory => "NO_COMMAND_HISTORY",
            Self::ProcessEnded => "PROCESS_ENDED",
            Self::StdinClosed => "STDIN_CLOSED",
            Self::RequestIdReused => "REQUEST_ID_REUSED",
            Self::StaleFile => "STALE_FILE",
            Self::ChecksumMismatch => "CHECKSUM_MISMATCH",
            Self::DaemonLost => "DAEMON_LOST",
            Self::Timeout => "TIMEOUT",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::NoSpace => "NO_SPACE",
            Self::TooManyFiles => "TOO_MANY_FILES",
            Self::SandboxUnavailable => "SANDBOX_UNAVAILABLE",
            Self::SandboxError => "SANDBOX_ERROR",
            Self::FetchError => "FETCH_ERROR",
            Self::StateLost => "STATE_LOST",
            Self::Draining => "DRAINING",
            Self::Internal => "INTERNAL",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Error {
    pub(crate) fn new(reason: Reason, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reason,
            message: message.into(),
            metadata: Vec::new(),
            violations: Vec::new(),
            not_started: false,
            retry_after: None,
            cause: None,
        }
    }

    /// Creates an error for invalid fields. The message names at most [`MAX_VIOLATIONS`] of them.
    pub(crate) fn invalid(mut violations: Vec<Violation>) -> Self {
        // One more shows that there are more.
        violations.truncate(MAX_VIOLATIONS + 1);

        let mut list: Vec<String> = violations
            .iter()
            .take(MAX_VIOLATIONS)
            .map(|violation| format!("{}: {}", violation.field, violation.description))
            .collect();
        if violations.len() > MAX_VIOLATIONS {
            list.insert(0, format!("more than {MAX_VIOLATIONS} fields are invalid"));
        }
        Self { violations, ..Self::new(Reason::InvalidParams, list.join("; ")) }
    }

    /// Creates an error for one invalid field.
    pub(crate) fn invalid_field(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self::invalid(vec![Violation::new(field, description)])
    }

    /// Creates an internal error. The caller learns that it happened; only the log has the cause.
    pub(crate) fn internal(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(
            Reason::Internal,
            "internal error of the daemon: its log has the details under the id of this call (jig-call-id)",
        )
        .with_cause(cause)
    }

    /// Adds a variable part of the message by name.
    pub(crate) fn with_metadata(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.metadata.push((name.into(), value.into()));
        self
    }

    pub(crate) fn with_cause(mut self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Declares that nothing was done.
    pub(crate) fn with_not_started(mut self) -> Self {
        self.not_started = true;
        self
    }

    /// Sets how long to wait before retrying.
    pub(crate) fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }
}
