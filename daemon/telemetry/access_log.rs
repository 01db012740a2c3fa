//! The line that the log has for each call (`--log-calls`): what is known of the call by its end.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Facts of a call, noted on its way.
#[derive(Debug, Clone, Default)]
pub(crate) struct AccessLogEntry(Arc<Mutex<AccessLogFields>>);

/// The same. What is not known, or is not of this call, is none.
#[derive(Debug, Clone, Default)]
pub(crate) struct AccessLogFields {
    /// The principal.
    pub(crate) caller: Option<String>,
    /// Name of the workspace.
    pub(crate) workspace: Option<String>,
    /// The session.
    pub(crate) session: Option<String>,
    /// The caller's `jig-request-id`.
    pub(crate) request_id: Option<String>,
    /// The id that the model gave.
    pub(crate) model_call_id: Option<String>,
    /// The job that makes it.
    pub(crate) job_id: Option<String>,
    /// The tool of the contract, or of the configuration.
    pub(crate) tool: Option<String>,
    /// The dialect that it was called in.
    pub(crate) dialect: Option<&'static str>,
    /// What it was called as there.
    pub(crate) called_name: Option<String>,
    /// What came of the tool.
    pub(crate) outcome: Option<String>,
}

/// How an RPC, or a job, has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallCompletion<'a> {
    /// The RPC; for a job, none.
    pub(crate) method: Option<&'a str>,
    /// Id of the call; a job has that of its own.
    pub(crate) call_id: Option<&'a str>,
    /// The trace that it is part of.
    pub(crate) trace_id: Option<&'a str>,
    /// The status of the RPC.
    pub(crate) status: Option<&'a str>,
    /// Why it was refused.
    pub(crate) reason: Option<&'a str>,
    /// How long it took.
    pub(crate) duration: Duration,
}

impl AccessLogEntry {
    /// Notes what is known now.
    pub(crate) fn update(&self, note: impl FnOnce(&mut AccessLogFields)) {
        note(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// What is known.
    pub(crate) fn snapshot(&self) -> AccessLogFields {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl AccessLogFields {
    /// Writes the line.
    pub(crate) fn log(&self, end: CallCompletion<'_>) {
        tracing::info!(
            method = end.method,
            tool = self.tool,
            dialect = self.dialect,
            called_name = self.called_name,
            caller = self.caller,
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
