//! What the daemon is started for.

/// Decides what the start of the daemon may change on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartMode {
    /// Serves all clients. The daemon is confined to its own files.
    Serve,
    /// Serves one call of the process it runs in. That process is a client and may send any file,
    /// so it is not confined. Its cgroup is not changed.
    Embedded,
    /// Only checks whether the daemon could serve. Another daemon may use the same state directory,
    /// so that is not changed.
    Check,
}
