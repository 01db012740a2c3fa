//! Access log: one line for each call (`--log-calls`), written when the call ends.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// The access log fields of a running call, shared by layers, pipeline and tools.
#[derive(Debug, Clone, Default)]
pub(crate) struct AccessLogEntry(Arc<Mutex<AccessLogFields>>);

/// Fields of an access log line. `None` if unknown or not applicable.
#[derive(Debug, Clone, Default)]
pub(crate) struct AccessLogFields {
    /// Name of the principal, such as `key:ci` or `uid:1000`.
    pub(crate) principal: Option<String>,
    pub(crate) workspace: Option<String>,
    pub(crate) session: Option<String>,
    /// The caller's `jig-request-id`.
    pub(crate) request_id: Option<String>,
    /// The model's id of the call.
    pub(crate) model_call_id: Option<String>,
    /// The job that makes the call.
    pub(crate) job_id: Option<String>,
    /// Name of the tool in the contract or the configuration.
    pub(crate) tool: Option<String>,
    /// The dialect of the call.
    pub(crate) dialect: Option<&'static str>,
    /// Name of the tool in that dialect.
    pub(crate) called_name: Option<String>,
    /// Outcome of the tool.
    pub(crate) outcome: Option<String>,
}

/// How an RPC or a job ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallCompletion<'a> {
    /// The RPC method. `None` for a job.
    pub(crate) method: Option<&'a str>,
    /// Id of the call. A job has its own.
    pub(crate) call_id: Option<&'a str>,
    pub(crate) trace_id: Option<&'a str>,
    /// The gRPC status code.
    pub(crate) status: Option<&'a str>,
    /// The reason of the error.
    pub(crate) reason: Option<&'a str>,
    pub(crate) duration: Duration,
}

impl AccessLogEntry {
    /// Changes fields.
    pub(crate) fn update(&self, change: impl FnOnce(&mut AccessLogFields)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the fields as they are now.
    pub(crate) fn snapshot(&self) -> AccessLogFields {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl AccessLogFields {
    /// Writes the log line.
    pub(crate) fn log(&self, end: CallCompletion<'_>) {
        tracing::info!(
            method = end.method,
            tool = self.tool,
            dialect = self.dialect,
            called_name = self.called_name,
            principal = self.principal,
            workspace = self.workspace,
            session = self.session,
            status = end.status,
            reason = end.reason,
            outcome = self.outcome,
            duration_sec = end.duration.as_secs_f64(),
            call_id = end.call_id,
            request_id = self.request_id,
            model_call_id = self.model_call_id,
            job_id = self.job_id,
            trace_id = end.trace_id,
            "call"
        );
    }
}
