//! What to try next, by the reason of an error: the message says what is wrong with this one.

use super::Reason;

impl Reason {
    /// One sentence for whoever made the call.
    pub(crate) fn suggestion(self) -> &'static str {
        match self {
            Self::InvalidParams => "Mend the parameters that are named, and call again.",
            Self::InvalidGlob | Self::InvalidRegex => "Mend the pattern, and call again.",
            Self::PathEscape => "Give a path below the workspace.",
            Self::SymlinkBlocked => "Give a path that passes through no symbolic link.",
            Self::PermissionDenied => "Use another path, or ask the operator for access.",
            Self::PolicyDenied
            | Self::EgressDenied
            | Self::ApprovalDenied
            | Self::ToolDisabled
            | Self::Forbidden
            | Self::Unauthenticated => "Do without this, or ask the operator to allow it.",
            Self::FileNotFound | Self::DirectoryNotFound => {
                "List the directory to see what is there."
            }
            Self::CommandNotFound => "Use a program that is there, or give its path.",
            Self::UnknownTool => "Call one of the tools that are listed.",
            Self::UnknownWorkspace => "Name one of the workspaces that are listed.",
            Self::ArtifactNotFound
            | Self::UploadNotFound
            | Self::ProcessNotFound
            | Self::ApprovalNotFound
            | Self::RuleNotFound => "Look at what there is, and name one of those.",
            Self::JobNotFound => "Give the id of a job that an answer names.",
            Self::CellNotFound => "Read the notebook to see its cells.",
            Self::FileExists => "Choose another path, or allow it to be replaced.",
            Self::NotAFile | Self::NotADirectory => "Look at what is at the path.",
            Self::DirectoryNotEmpty => "Empty it first, or delete it recursively.",
            Self::BinaryFile => "Read it as base64.",
            Self::FileTooLarge | Self::LineRangeInvalid => {
                "Read a smaller range that the file has."
            }
            Self::PatchHunkFail | Self::StringNotFound | Self::StaleFile => {
                "Read the file again, and make the change anew."
            }
            Self::PatchParseError => "Give a unified diff, as git diff writes it.",
            Self::StringNotUnique => "Give more of the text around it, or change all occurrences.",
            Self::CommandNotExecutable => "Run it by its interpreter, or make it executable.",
            Self::ApprovalDecided => "Look at what waits now.",
            Self::NoCommandHistory => "Run a command first.",
            Self::ProcessEnded | Self::StdinClosed => "Start another process.",
            Self::RequestIdReused => "Give each call an id of its own.",
            Self::ChecksumMismatch => "Send it again.",
            Self::DaemonLost => "Look at how far it came before you do it again.",
            Self::Timeout => "Ask for less, or allow more time.",
            Self::ResourceExhausted | Self::Draining => "Wait, and try again.",
            Self::StateLost => {
                "Try again later: the operator must put the daemon's state directory back."
            }
            Self::NoSpace => "Make room, and try again.",
            Self::TooManyFiles => "Ask for a smaller directory.",
            Self::FetchError => "Check the URL, and try again later.",
            Self::SandboxUnavailable | Self::SandboxError | Self::Internal => {
                "Tell the operator: the daemon's log says more."
            }
        }
    }
}
