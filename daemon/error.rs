//! What can go wrong with a call, in the terms of the contract. Doors turn it into a gRPC status or
//! whatever their protocol has.

mod suggestion;

use std::{borrow::Cow, error::Error as StdError, fmt, time::Duration};

/// Most fields of one request that are told to break their rules. Once so many are known, no more are
/// looked for: a request can hold a million of them, and who sent it learns the rest when these are right.
pub(crate) const MAX_VIOLATIONS: usize = 20;

/// Metadata of `SYMLINK_BLOCKED` where the links lead out of the workspace.
pub(crate) const LEADS_OUT: &str = "leads_out";

/// The machine-readable reason of an error; its name is what `ErrorInfo.reason` carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reason {
    /// Fields of the request break their rules.
    InvalidParams,
    /// A glob cannot be parsed.
    InvalidGlob,
    /// A regular expression cannot be parsed, or is too large.
    InvalidRegex,
    /// A path leads out of where it may lead.
    PathEscape,
    /// A path passes through a symbolic link.
    SymlinkBlocked,
    /// The operating system refuses access.
    PermissionDenied,
    /// The operator does not allow it.
    PolicyDenied,
    /// The operator does not let anybody fetch from there.
    EgressDenied,
    /// Somebody was asked to approve it, and has not.
    ApprovalDenied,
    /// The caller may not do this.
    Forbidden,
    /// It is not known who calls.
    Unauthenticated,
    /// Nothing is at the path.
    FileNotFound,
    /// No directory is at the path.
    DirectoryNotFound,
    /// The program was not found.
    CommandNotFound,
    /// There is no such tool or method.
    UnknownTool,
    /// No workspace has this name.
    UnknownWorkspace,
    /// The session has no such artifact.
    ArtifactNotFound,
    /// No such upload is kept.
    UploadNotFound,
    /// The notebook has no such cell.
    CellNotFound,
    /// No such process runs, or ended not long ago.
    ProcessNotFound,
    /// No such job is kept.
    JobNotFound,
    /// No such call waits to be approved, nor has waited.
    ApprovalNotFound,
    /// There is no such rule.
    RuleNotFound,
    /// Something is at the path already.
    FileExists,
    /// Something that is not a regular file is at the path.
    NotAFile,
    /// Something that is not a directory is at the path.
    NotADirectory,
    /// The directory holds entries.
    DirectoryNotEmpty,
    /// The file is not text.
    BinaryFile,
    /// The file is too large to be read whole.
    FileTooLarge,
    /// The range of lines lies outside the file.
    LineRangeInvalid,
    /// A hunk of a patch does not fit.
    PatchHunkFail,
    /// A patch cannot be understood.
    PatchParseError,
    /// The file holds the string several times.
    StringNotUnique,
    /// The file does not hold the string.
    StringNotFound,
    /// The program is not in an executable format.
    CommandNotExecutable,
    /// The operator has switched the tool off.
    ToolDisabled,
    /// It was decided before.
    ApprovalDecided,
    /// The session has run no command.
    NoCommandHistory,
    /// The process has ended.
    ProcessEnded,
    /// The standard input of the process is closed.
    StdinClosed,
    /// An id that names one thing was used for another.
    RequestIdReused,
    /// The file has changed since the caller read it.
    StaleFile,
    /// What came is not what its checksum says.
    ChecksumMismatch,
    /// The daemon died while the first call with this request id went on.
    DaemonLost,
    /// The time for the call has passed.
    Timeout,
    /// Too much is going on.
    ResourceExhausted,
    /// A disk is full.
    NoSpace,
    /// A directory holds more than can be listed.
    TooManyFiles,
    /// The isolation that the operator asks for cannot be given.
    SandboxUnavailable,
    /// Building a sandbox failed, or it was lost.
    SandboxError,
    /// Fetching from the web failed on the way.
    FetchError,
    /// The daemon's state directory is not where it was opened.
    StateLost,
    /// The daemon is shutting down.
    Draining,
    /// A defect.
    Internal,
}

/// A field of a request that breaks its rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Path of the field: `cwd`, `argv[3]`, `env["A=B"]`.
    pub(crate) field: String,
    /// What is wrong, and what would be right.
    pub(crate) description: String,
}

/// Why a call failed. Display says what happened and what to do, without the source.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Error {
    /// The reason.
    pub(crate) reason: Reason,
    /// What happened, and what to do about it.
    pub(crate) message: Cow<'static, str>,
    /// The changing parts of the message, by name.
    pub(crate) metadata: Vec<(Cow<'static, str>, String)>,
    /// The fields that break their rules; of those above [`MOST_VIOLATIONS`], one.
    pub(crate) violations: Vec<Violation>,
    /// Whether it is known that nothing was done, whatever the reason: the call may be made again under its id.
    pub(crate) not_started: bool,
    /// How long to wait before trying again, where that helps.
    pub(crate) retry_after: Option<Duration>,
    /// What caused it, for the daemon's log.
    #[source]
    pub(crate) cause: Option<Box<dyn StdError + Send + Sync>>,
}

impl Violation {
    /// Says what is wrong with a field.
    pub(crate) fn new(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self { field: field.into(), description: description.into() }
    }
}

impl Reason {
    /// All of them.
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

    /// The one of this name in the contract.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }

    /// Its name in the contract.
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
    /// An error with nothing but a reason and a message.
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

    /// Fields that break their rules. The message names each of them, up to [`MOST_VIOLATIONS`].
    pub(crate) fn invalid(mut violations: Vec<Violation>) -> Self {
        // With one more it is still known that there are more.
        violations.truncate(MAX_VIOLATIONS + 1);
        let reported = violations.iter().take(MAX_VIOLATIONS);
        let mut list: Vec<String> = reported
            .map(|violation| format!("{}: {}", violation.field, violation.description))
            .collect();
        if violations.len() > MAX_VIOLATIONS {
            let text = format!("more than {MAX_VIOLATIONS} fields break their rules");
            list.insert(0, text);
        }
        Self { violations, ..Self::new(Reason::InvalidParams, list.join("; ")) }
    }

    /// One field that breaks its rules.
    pub(crate) fn invalid_field(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self::invalid(vec![Violation { field: field.into(), description: description.into() }])
    }

    /// A defect of the daemon: the caller learns that there is one, the log learns which.
    pub(crate) fn internal(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(
            Reason::Internal,
            "a defect of the daemon; its log has the details under this call's id",
        )
        .with_cause(cause)
    }

    /// Adds a part of the message by name.
    pub(crate) fn with_metadata(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.metadata.push((name.into(), value.into()));
        self
    }

    /// Adds the cause.
    pub(crate) fn with_cause(mut self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Adds that nothing was done.
    pub(crate) fn not_started(mut self) -> Self {
        self.not_started = true;
        self
    }

    /// Adds how long to wait before trying again.
    pub(crate) fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }
}
