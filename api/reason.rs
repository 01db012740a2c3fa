//! Reasons of errors: the one table of their names, gRPC codes, meanings and remedies.

use std::fmt;

use tonic::Code;

/// Defines [`Reason`] from a table. A row is a variant with its meaning as documentation, its name
/// in the contract, its code, advice for the caller, and advice for the operator.
macro_rules! reasons {
    ($(
        #[doc = $meaning:literal]
        $variant:ident = $name:literal, $code:ident,
            $caller:literal,
            $operator:literal;
    )+) => {
        /// The machine-readable reason of an error. `ErrorInfo.reason` carries its name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason {
            $(#[doc = $meaning] $variant,)+
        }

        impl Reason {
            /// All reasons, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Returns the reason's name in the contract.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Returns the gRPC code of errors with this reason.
            pub fn code(self) -> Code {
                match self {
                    $(Self::$variant => Code::$code,)+
                }
            }

            /// Returns what the reason means, in one sentence.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$variant => $meaning.trim_ascii(),)+
                }
            }

            /// Returns one sentence of advice for the caller. The message says what is wrong.
            pub fn suggestion(self) -> &'static str {
                match self {
                    $(Self::$variant => $caller,)+
                }
            }

            /// Returns advice for the operator of the daemon.
            pub fn remedy(self) -> &'static str {
                match self {
                    $(Self::$variant => $operator,)+
                }
            }
        }
    };
}

reasons! {
    // Fix the request.
    /// Fields of the request are invalid.
    InvalidParams = "INVALID_PARAMS", InvalidArgument,
        "Fix the listed parameters and retry.",
        "Nothing to do. If all calls of an agent fail, it was built for another version of the contract.";
    /// An archive is malformed or ambiguous, or has a member that is not accepted.
    InvalidArchive = "INVALID_ARCHIVE", InvalidArgument,
        "Leave out the member that the message names, or archive the tree with another program.",
        "Nothing to do. Many of these from one caller can be an attack.";
    /// A glob cannot be parsed.
    InvalidGlob = "INVALID_GLOB", InvalidArgument,
        "Fix the pattern and retry.",
        "Nothing to do.";
    /// A regular expression cannot be parsed, or is too large.
    InvalidRegex = "INVALID_REGEX", InvalidArgument,
        "Fix the pattern and retry.",
        "Nothing to do.";

    // Request something else, or ask the operator for permission.
    /// A path leads out of the workspace or another allowed directory.
    PathEscape = "PATH_ESCAPE", PermissionDenied,
        "Give a path below the workspace.",
        "Serve the directory as a workspace of its own if the agent needs it. Many of these from one caller can be an attack.";
    /// A path passes through a symbolic link.
    SymlinkBlocked = "SYMLINK_BLOCKED", PermissionDenied,
        "Give a path that passes through no symbolic link.",
        "Set `symlinks = \"within\"` for the workspace to follow links that stay in it.";
    /// The operating system denies access.
    PermissionDenied = "PERMISSION_DENIED", PermissionDenied,
        "Use another path, or ask the operator for access.",
        "Check the owner and the mode of the path, and whether its file system is read-only. The daemon accesses files as its own user.";
    /// The operator's policy does not allow it.
    PolicyDenied = "POLICY_DENIED", PermissionDenied,
        "Do without this, or ask the operator to allow it.",
        "`denied_by` in the records of the call names the rule. Change `[policy]`, the rules of `jig rules` or the `protected` paths if the call is legitimate.";
    /// The operator does not allow fetching from this host.
    EgressDenied = "EGRESS_DENIED", PermissionDenied,
        "Do without this, or ask the operator to allow it.",
        "Add the host to `fetch.hosts`, and an internal address to `fetch.allow_addresses`, if agents may fetch from it.";
    /// The call needed approval and was not approved, or an approved directory was replaced.
    ApprovalDenied = "APPROVAL_DENIED", PermissionDenied,
        "Do without this, or ask the operator to allow it.",
        "Decide with `jig approvals` before `approvals.timeout`. Make it a rule if the answer is always the same.";
    /// The caller is not authorized.
    Forbidden = "FORBIDDEN", PermissionDenied,
        "Do without this, or ask the operator to allow it.",
        "The role, the tools or the workspaces of the key do not include the call. Issue another key with `jig key new`.";

    // Send a key.
    /// The caller is not authenticated.
    Unauthenticated = "UNAUTHENTICATED", Unauthenticated,
        "Send a valid API key.",
        "Check that the key is in the key file and has not expired. Without keys, only the daemon's own user and root may call.";

    // List what exists.
    /// No file is at the path.
    FileNotFound = "FILE_NOT_FOUND", NotFound,
        "List the directory to see its entries.",
        "Nothing to do.";
    /// No directory is at the path.
    DirectoryNotFound = "DIRECTORY_NOT_FOUND", NotFound,
        "List the directory to see its entries.",
        "Nothing to do.";
    /// The program was not found.
    CommandNotFound = "COMMAND_NOT_FOUND", NotFound,
        "Use a program that exists, or give its path.",
        "Install the program on the daemon's host or image, or add its directory with `--bind-ro` and `--path`.";
    /// No such tool or method exists.
    UnknownTool = "UNKNOWN_TOOL", NotFound,
        "Call one of the tools that are listed.",
        "Check the dialect that the agent uses, and the names of `[[tools]]`.";
    /// No workspace of this name exists.
    UnknownWorkspace = "UNKNOWN_WORKSPACE", NotFound,
        "Name one of the workspaces that are listed.",
        "Check `jig-workspace` of the client and `[[workspaces]]`. Behind a router, the call may have reached another daemon.";
    /// A workspace of this name exists.
    WorkspaceExists = "WORKSPACE_EXISTS", AlreadyExists,
        "Choose another name, or leave the choice to the daemon.",
        "Nothing to do.";
    /// The daemon cannot create workspaces.
    WorkspacesDisabled = "WORKSPACES_DISABLED", FailedPrecondition,
        "Use a workspace that exists, or ask the operator.",
        "Set `workspaces_on_demand.directory`.";
    /// The session has no such artifact.
    ArtifactNotFound = "ARTIFACT_NOT_FOUND", NotFound,
        "List the existing ones, and name one of those.",
        "Artifacts end with their session. Raise `[sessions]` retention if agents need them for longer.";
    /// No such upload is stored.
    UploadNotFound = "UPLOAD_NOT_FOUND", NotFound,
        "List the existing ones, and name one of those.",
        "The daemon removes interrupted uploads after 24 hours.";
    /// The notebook has no such cell.
    CellNotFound = "CELL_NOT_FOUND", NotFound,
        "Read the notebook to see its cells.",
        "Nothing to do.";
    /// No such approval is pending or stored.
    ApprovalNotFound = "APPROVAL_NOT_FOUND", NotFound,
        "List the existing ones, and name one of those.",
        "The approval was removed after `approvals.retention`, or belongs to another daemon.";
    /// No such policy rule exists.
    RuleNotFound = "RULE_NOT_FOUND", NotFound,
        "List the existing ones, and name one of those.",
        "`jig rules` lists the rules.";
    /// No such process is running or ended recently.
    ProcessNotFound = "PROCESS_NOT_FOUND", NotFound,
        "List the existing ones, and name one of those.",
        "Processes end with the daemon, and ended ones are kept for `limits.process_retention`.";
    /// No such job is stored.
    JobNotFound = "JOB_NOT_FOUND", NotFound,
        "Give the id of a job that a response names.",
        "Ended jobs are kept for `jobs.retention`. Behind a router, the call may have reached another daemon.";

    /// The path exists already.
    FileExists = "FILE_EXISTS", AlreadyExists,
        "Choose another path, or allow it to be replaced.",
        "Nothing to do.";
    /// A request id was reused for a different call.
    RequestIdReused = "REQUEST_ID_REUSED", AlreadyExists,
        "Give each call an id of its own.",
        "The client makes its ids wrongly. Tell its authors.";

    // Read the current state and decide again.
    /// The file has changed since the caller read it.
    StaleFile = "STALE_FILE", Aborted,
        "Read the file again, and make a new change.",
        "Nothing to do. Many of these mean that several agents change the same files: give each a workspace.";
    /// The content does not match its checksum.
    ChecksumMismatch = "CHECKSUM_MISMATCH", Aborted,
        "Send it again.",
        "If it recurs, something between client and daemon changes data.";
    /// A server in a sandbox reset a connection.
    ConnectionReset = "CONNECTION_RESET", Aborted,
        "Connect again.",
        "Nothing to do.";
    /// The daemon died during the first call with this request id, or lost data of a job.
    DaemonLost = "DAEMON_LOST", Aborted,
        "Check which effects the call had, if any, before you repeat it.",
        "Find out why the daemon ended: its log, the kernel's log for the OOM killer, the restarts of its pod.";

    // Change the state of the workspace or the daemon first.
    /// The path is not a regular file.
    NotAFile = "NOT_A_FILE", FailedPrecondition,
        "Check what is at the path.",
        "Nothing to do.";
    /// The path is not a directory.
    NotADirectory = "NOT_A_DIRECTORY", FailedPrecondition,
        "Check what is at the path.",
        "Nothing to do.";
    /// The directory is not empty.
    DirectoryNotEmpty = "DIRECTORY_NOT_EMPTY", FailedPrecondition,
        "Empty it first, or delete it recursively.",
        "Nothing to do.";
    /// The file is not text.
    BinaryFile = "BINARY_FILE", FailedPrecondition,
        "Read it as base64.",
        "Nothing to do.";
    /// The file is too large to be read as a whole.
    FileTooLarge = "FILE_TOO_LARGE", FailedPrecondition,
        "Request a smaller part, or use a command.",
        "Nothing to do. The limits are constants.";
    /// An archive exceeds a limit: members, bytes, length of names or expansion.
    ArchiveTooLarge = "ARCHIVE_TOO_LARGE", FailedPrecondition,
        "Send the tree in parts, or a large file by itself.",
        "Nothing to do. The limits are constants. Many of these from one caller can be an attack.";
    /// The range of lines is outside the file.
    LineRangeInvalid = "LINE_RANGE_INVALID", FailedPrecondition,
        "Give a range of lines within the file.",
        "Nothing to do.";
    /// A hunk of a patch does not apply.
    PatchHunkFail = "PATCH_HUNK_FAIL", FailedPrecondition,
        "Read the file again, and make a new change.",
        "Nothing to do.";
    /// A patch cannot be parsed.
    PatchParseError = "PATCH_PARSE_ERROR", FailedPrecondition,
        "Give a unified diff, as git diff writes it.",
        "Nothing to do.";
    /// The file contains the string more than once.
    StringNotUnique = "STRING_NOT_UNIQUE", FailedPrecondition,
        "Include more of the surrounding text, or change all occurrences.",
        "Nothing to do.";
    /// The file does not contain the string.
    StringNotFound = "STRING_NOT_FOUND", FailedPrecondition,
        "Read the file again, and make a new change.",
        "Nothing to do.";
    /// The program is not in an executable format.
    CommandNotExecutable = "COMMAND_NOT_EXECUTABLE", FailedPrecondition,
        "Run it by its interpreter, or make it executable.",
        "Check that the program is for the architecture of the host.";
    /// The operator has disabled the tool.
    ToolDisabled = "TOOL_DISABLED", FailedPrecondition,
        "Do without this, or ask the operator to allow it.",
        "Remove the tool from `policy.deny_tools` if agents may use it.";
    /// The approval was decided before.
    ApprovalDecided = "APPROVAL_DECIDED", FailedPrecondition,
        "List the pending approvals.",
        "Nothing to do. Another administrator was faster, or the approval expired.";
    /// The session has run no command.
    NoCommandHistory = "NO_COMMAND_HISTORY", FailedPrecondition,
        "Run a command first.",
        "Nothing to do.";
    /// The process has ended.
    ProcessEnded = "PROCESS_ENDED", FailedPrecondition,
        "Start another process.",
        "Nothing to do.";
    /// The standard input of the process is closed.
    StdinClosed = "STDIN_CLOSED", FailedPrecondition,
        "Start another process.",
        "Nothing to do.";
    /// Nothing listens on the port of the process, or the server accepts no connection.
    PortRefused = "PORT_REFUSED", FailedPrecondition,
        "Wait until the server listens on 127.0.0.1 or ::1, and retry.",
        "Nothing to do.";
    /// The run of the process has no network of its own, whose ports could be forwarded.
    ForwardingUnavailable = "FORWARDING_UNAVAILABLE", FailedPrecondition,
        "Do without this, or ask the operator for another isolation level or network.",
        "Ports are forwarded at the isolation levels L2 and L3, with the networks `none` and `proxy`.";
    /// The required isolation level is not available.
    SandboxUnavailable = "SANDBOX_UNAVAILABLE", FailedPrecondition,
        "Tell the operator: the daemon's log has details.",
        "`jigd --check` names the missing layer and its remedy. The metadata `remedy` of the error has it too.";

    // Allow more time, or request less.
    /// A deadline passed, the call was interrupted, or the client sent or read too slowly.
    Timeout = "TIMEOUT", DeadlineExceeded,
        "Request less, or allow more time.",
        "Raise `limits.run_timeout` or the deadline of the client if the work needs it. If waits grew, the daemon is saturated.";

    // Wait, then retry.
    /// A limit of concurrency, queues or kernel resources was reached.
    ResourceExhausted = "RESOURCE_EXHAUSTED", ResourceExhausted,
        "Retry after the delay, or request less.",
        "The metadata `limit_kind` or the message names the limit. Raise it in `[limits]` or `[jobs]`, or add a daemon.";
    /// A disk is full, or a workspace with bounds.
    NoSpace = "NO_SPACE", ResourceExhausted,
        "Free disk space, and retry. With the metadata `limit_kind`, delete files of the workspace.",
        "Free space on the disk that the message names. The daemon continues by itself. Lower `[sessions]` retention if its own data fills it. With the metadata `limit_kind` `workspace_bytes` or `workspace_files`, raise that bound in `[workspaces_on_demand]`.";
    /// A directory has more entries than can be listed.
    TooManyFiles = "TOO_MANY_FILES", ResourceExhausted,
        "Use a smaller directory.",
        "Nothing to do. The limit is a constant.";

    // Retry later, or with another daemon.
    /// The daemon's state directory was removed or replaced.
    StateLost = "STATE_LOST", Unavailable,
        "Retry later: the operator must put the daemon's state directory back.",
        "Put the state directory back, or restart the daemon to begin with an empty one. Check what removes files there.";
    /// The daemon is shutting down.
    Draining = "DRAINING", Unavailable,
        "Wait, and retry.",
        "Nothing to do during a restart. `--shutdown-delay` lets load balancers stop sending calls first.";

    /// The server of the fleet does not answer, or a daemon of the fleet.
    FleetUnavailable = "FLEET_UNAVAILABLE", Unavailable,
        "Retry later, with the same request id.",
        "Check that the servers of `fleet.nats` or `fleet.postgres` run, and can be reached from the daemon's host with its credentials. The daemon connects again by itself.";

    // Report to the operator, or check the server that was fetched from.
    /// A sandbox could not be created, or was lost.
    SandboxError = "SANDBOX_ERROR", Internal,
        "Tell the operator: the daemon's log has details.",
        "The metadata `stage` and `errno` name the failed step. Check memory, process and namespace limits of the host, and the kernel's log.";
    /// Fetching from the web failed.
    FetchError = "FETCH_ERROR", Internal,
        "Check the URL, and retry later.",
        "Check that the daemon's host can resolve and reach the server.";
    /// A bug in the daemon, or an unexpected failure.
    Internal = "INTERNAL", Internal,
        "Tell the operator: the daemon's log has details.",
        "Find the call id in the log, and report the bug with the lines around it.";
}

impl Reason {
    /// Returns the reason of a name in the contract.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.name() == name)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns a status code as gRPC spells it, for example `NOT_FOUND`.
#[must_use]
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
