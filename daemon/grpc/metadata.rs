//! Request metadata: what the server's layers add to a request, and the caller's `jig-*` keys.

use std::{sync::Arc, time::Instant};

use opentelemetry::Context;
use tonic::{Request, Status};

use super::status::to_status;
use crate::daemon::{
    error::{Error, Violation},
    pipeline::{access::principal::Principal, context::CallContext},
    telemetry::access_log::AccessLogEntry,
};

/// Extension of the trace layer.
#[derive(Debug, Clone)]
pub(crate) struct RequestTrace {
    pub(crate) call_id: String,
    /// The span of the RPC.
    pub(crate) context: Context,
    /// Fields of the call's access log line.
    pub(crate) access_log_entry: AccessLogEntry,
}

/// Extension of the deadline layer: when the client stops waiting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestDeadline(pub(crate) Instant);

/// Builds the call context from the extensions and the metadata of a request.
///
/// # Errors
///
/// Rejects `jig-*` keys that occur twice or have no visible ASCII value.
pub(crate) fn call_context<T>(request: &Request<T>) -> Result<CallContext, Status> {
    let trace = request.extensions().get::<RequestTrace>().cloned();
    let RequestTrace { call_id, context, access_log_entry } =
        trace.ok_or_else(missing_extension)?;
    let principal = principal(request)?;
    let deadline = request.extensions().get::<RequestDeadline>().map(|deadline| deadline.0);

    // Ignoring an unreadable value, or one of two values, would send the call to another workspace
    // or session.
    let metadata = request.metadata();
    let violations: Vec<Violation> = ["jig-workspace", "jig-session", "jig-request-id"]
        .into_iter()
        .filter_map(|key| {
            let mut values = metadata.get_all(key).iter();
            let first = values.next()?;
            let problem = match (first.to_str(), values.next()) {
                (_, Some(_)) => "must be given once",
                (Err(_), None) => "must be of visible ASCII characters",
                (Ok(_), None) => return None,
            };
            Some(Violation { field: key.to_owned(), description: problem.to_owned() })
        })
        .collect();
    if !violations.is_empty() {
        return Err(to_status(&Error::invalid(violations)));
    }

    CallContext::new(call_id, principal, deadline, (context, access_log_entry), |key| {
        metadata.get(key).and_then(|value| value.to_str().ok())
    })
    .map_err(|violations| to_status(&Error::invalid(violations)))
}

/// The authenticated caller of a request.
pub(crate) fn principal<T>(request: &Request<T>) -> Result<Arc<Principal>, Status> {
    let principal = request.extensions().get::<Arc<Principal>>();
    principal.cloned().ok_or_else(missing_extension)
}

fn missing_extension() -> Status {
    to_status(&Error::internal("a request has bypassed the server's layers"))
}
