//! Suggestions: what to try next, by the reason of an error. The message says what is wrong.

use super::Reason;

impl Reason {
    /// Returns one sentence of advice for the caller.
    pub(crate) fn suggestion(self) -> &'static str {
        match self {
            Self::InvalidParams => "Fix the listed parameters and retry.",
            Self::InvalidGlob | Self::InvalidRegex => "Fix the pattern and retry.",
            Self::PathEscape => "Give a path below the workspace.",
            Self::SymlinkBlocked => "Give a path that passes through no symbolic link.",
            Self::PermissionDenied => "Use another path, or ask the operator for access.",
            Self::PolicyDenied
            | Self::EgressDenied
            | Self::ApprovalDenied
            | Self::ToolDisabled
            | Self::Forbidden => "Do without this, or ask the operator to allow it.",
            Self::Unauthenticated => "Send a valid API key.",
            Self::FileNotFound | Self::DirectoryNotFound => {
                "List the directory to see its entries."
            }
            Self::CommandNotFound => "Use a program that exists, or give its path.",
            Self::UnknownTool => "Call one of the tools that are listed.",
            Self::UnknownWorkspace => "Name one of the workspaces that are listed.",
            Self::ArtifactNotFound
            | Self::UploadNotFound
            | Self::ProcessNotFound
            | Self::ApprovalNotFound
            | Self::RuleNotFound => "List the existing ones, and name one of those.",
            Self::JobNotFound => "Give the id of a job that a response names.",
            Self::CellNotFound => "Read the notebook to see its cells.",
            Self::FileExists => "Choose another path, or allow it to be replaced.",
            Self::NotAFile | Self::NotADirectory => "Check what is at the path.",
            Self::DirectoryNotEmpty => "Empty it first, or delete it recursively.",
            Self::BinaryFile => "Read it as base64.",
            Self::FileTooLarge => "Request a smaller part, or use a command.",
            Self::LineRangeInvalid => "Give a range of lines within the file.",
            Self::PatchHunkFail | Self::StringNotFound | Self::StaleFile => {
                "Read the file again, and make a new change."
            }
            Self::PatchParseError => "Give a unified diff, as git diff writes it.",
            Self::StringNotUnique => {
                "Include more of the surrounding text, or change all occurrences."
            }
            Self::CommandNotExecutable => "Run it by its interpreter, or make it executable.",
            Self::ApprovalDecided => "List the pending approvals.",
            Self::NoCommandHistory => "Run a command first.",
            Self::ProcessEnded | Self::StdinClosed => "Start another process.",
            Self::RequestIdReused => "Give each call an id of its own.",
            Self::ChecksumMismatch => "Send it again.",
            Self::DaemonLost => "Check which effects the call had, if any, before you repeat it.",
            Self::Timeout => "Request less, or allow more time.",
            Self::ResourceExhausted => "Retry after the delay, or request less.",
            Self::Draining => "Wait, and retry.",
            Self::StateLost => {
                "Retry later: the operator must put the daemon's state directory back."
            }
            Self::NoSpace => "Free disk space, and retry.",
            Self::TooManyFiles => "Use a smaller directory.",
            Self::FetchError => "Check the URL, and retry later.",
            Self::SandboxUnavailable | Self::SandboxError | Self::Internal => {
                "Tell the operator: the daemon's log has details."
            }
        }
    }
}
