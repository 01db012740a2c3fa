//! The record of a call: a line of the access log (`--log-calls`) and of the audit log, written when
//! the call ends.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::Serialize;
use serde_json::Value;

/// The record of a running call, shared by layers, pipeline and tools.
#[derive(Debug, Clone, Default)]
pub(crate) struct AccessLogEntry(Arc<Mutex<CallRecord>>);

/// What the logs say about a call. `None` if unknown or not applicable.
///
/// The access log has the fields up to `trace_id`; the audit log has all.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct CallRecord {
    /// The RPC method. Absent for a job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) method: Option<String>,
    /// Name of the tool in the contract or the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool: Option<String>,
    /// The dialect of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dialect: Option<&'static str>,
    /// Name of the tool in that dialect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) called_name: Option<String>,
    /// Name of the principal, such as `key:ci` or `uid:1000`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) principal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) workspace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session: Option<String>,
    /// The gRPC status code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<&'static str>,
    /// The reason of the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Outcome of the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outcome: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) duration_sec: Option<f64>,
    /// Id of the call. A job has its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) call_id: Option<String>,
    /// The caller's `jig-request-id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request_id: Option<String>,
    /// The model's id of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model_call_id: Option<String>,
    /// The job that makes the call, or that the call is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) job_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace_id: Option<String>,
    /// Address of the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<String>,
    /// The step of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) step: Option<u64>,
    /// The parameters of a tool call, redacted and truncated. Of another RPC, what it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) params: Option<Value>,
    /// The rule or the approval that allowed the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allowed_by: Option<String>,
    /// What denied the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) denied_by: Option<String>,
    /// The process that the call is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) process_id: Option<String>,
    /// The approval that the call is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) approval_id: Option<String>,
    /// How the call ended, if another line of the audit log reports that.
    #[serde(skip)]
    pub(crate) reported: Option<ReportedEnd>,
}

/// The end of a call that the audit log has reported: the reason of its error, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReportedEnd(pub(crate) Option<&'static str>);

impl AccessLogEntry {
    /// Changes fields.
    pub(crate) fn update(&self, change: impl FnOnce(&mut CallRecord)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the fields as they are now.
    pub(crate) fn snapshot(&self) -> CallRecord {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl CallRecord {
    /// Sets the duration.
    pub(crate) fn set_duration(&mut self, duration: Duration) {
        self.duration_sec = Some(duration.as_secs_f64());
    }

    /// Whether another line of the audit log says how this call ended: it succeeded after a tool
    /// call, or failed for the same reason.
    pub(crate) fn is_reported(&self) -> bool {
        let is_success = self.reason.is_none() && self.status == Some("OK");
        self.reported.is_some_and(|ReportedEnd(reason)| {
            is_success || self.reason.is_some() && self.reason.as_deref() == reason
        })
    }

    /// Writes the line of the access log.
    pub(crate) fn log(&self) {
        tracing::info!(
            method = self.method,
            tool = self.tool,
            dialect = self.dialect,
            called_name = self.called_name,
            principal = self.principal,
            workspace = self.workspace,
            session = self.session,
            status = self.status,
            reason = self.reason,
            outcome = self.outcome,
            duration_sec = self.duration_sec,
            call_id = self.call_id,
            request_id = self.request_id,
            model_call_id = self.model_call_id,
            job_id = self.job_id,
            trace_id = self.trace_id,
            "call"
        );
    }
}
