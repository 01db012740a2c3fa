//! What to try next, by the reason of an error: the message says what is wrong with this one.

use crate::daemon::error::Reason;

/// One sentence for whoever made the call.
pub(crate) fn suggestion(reason: Reason) -> &'static str {
    match reason {
        Reason::InvalidParams => "Mend the parameters that are named, and call again.",
        Reason::InvalidGlob | Reason::InvalidRegex => "Mend the pattern, and call again.",
        Reason::PathEscape => "Give a path below the workspace.",
        Reason::SymlinkBlocked => "Give a path that passes through no symbolic link.",
        Reason::PermissionDenied => "Use another path, or ask the operator for access.",
        Reason::PolicyDenied
        | Reason::ApprovalDenied
        | Reason::ToolDisabled
        | Reason::Forbidden
        | Reason::Unauthenticated => "Do without this, or ask the operator to allow it.",
        Reason::FileNotFound | Reason::DirectoryNotFound => {
            "List the directory to see what is there."
        }
        Reason::CommandNotFound => "Use a program that is there, or give its path.",
        Reason::UnknownTool => "Call one of the tools that are listed.",
        Reason::UnknownWorkspace => "Name one of the workspaces that are listed.",
        Reason::ArtifactNotFound
        | Reason::UploadNotFound
        | Reason::ProcessNotFound
        | Reason::JobNotFound
        | Reason::ApprovalNotFound
        | Reason::RuleNotFound => "Look at what there is, and name one of those.",
        Reason::CellNotFound => "Read the notebook to see its cells.",
        Reason::FileExists => "Choose another path, or allow it to be replaced.",
        Reason::NotAFile | Reason::NotADirectory => "Look at what is at the path.",
        Reason::DirectoryNotEmpty => "Empty it first, or delete it recursively.",
        Reason::BinaryFile => "Read it as base64.",
        Reason::FileTooLarge | Reason::LineRangeInvalid => {
            "Read a smaller range that the file has."
        }
        Reason::PatchHunkFail | Reason::StringNotFound | Reason::StaleFile => {
            "Read the file again, and make the change anew."
        }
        Reason::PatchParseError => "Give a unified diff, as git diff writes it.",
        Reason::StringNotUnique => "Give more of the text around it, or change all occurrences.",
        Reason::CommandNotExecutable => "Run it by its interpreter, or make it executable.",
        Reason::ApprovalDecided => "Look at what waits now.",
        Reason::NoCommandHistory => "Run a command first.",
        Reason::ProcessEnded | Reason::StdinClosed => "Start another process.",
        Reason::RequestIdReused => "Give each call an id of its own.",
        Reason::ChecksumMismatch => "Send it again.",
        Reason::DaemonLost => "Look at how far it came before you do it again.",
        Reason::Timeout => "Ask for less, or allow more time.",
        Reason::ResourceExhausted | Reason::Draining => "Wait, and try again.",
        Reason::NoSpace => "Make room, and try again.",
        Reason::TooManyFiles => "Ask for a smaller directory.",
        Reason::SandboxUnavailable | Reason::SandboxError | Reason::Internal => {
            "Tell the operator: the daemon's log says more."
        }
    }
}
