//! The events that the audit log reports.

/// What a line reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuditEvent {
    DaemonStarted,
    DaemonStopped,
    ConfigReloaded,
    /// A caller was not authenticated.
    AuthFailed,
    /// A call was denied.
    CallDenied,
    ApprovalRequested,
    ApprovalDecided,
    /// A tool call ended.
    ToolCall,
    /// An RPC ended.
    Call,
    JobEnded,
    /// The daemon has claimed a job of a fleet, or has settled it.
    FleetJob,
    /// The daemon removed a created workspace without a call.
    WorkspaceRemoved,
    /// Lines were lost.
    LinesLost,
}

impl AuditEvent {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::DaemonStarted => "daemon_started",
            Self::DaemonStopped => "daemon_stopped",
            Self::ConfigReloaded => "config_reloaded",
            Self::AuthFailed => "auth_failed",
            Self::CallDenied => "call_denied",
            Self::ApprovalRequested => "approval_requested",
            Self::ApprovalDecided => "approval_decided",
            Self::ToolCall => "tool_call",
            Self::Call => "call",
            Self::JobEnded => "job_ended",
            Self::FleetJob => "fleet_job",
            Self::WorkspaceRemoved => "workspace_removed",
            Self::LinesLost => "lines_lost",
        }
    }
}
