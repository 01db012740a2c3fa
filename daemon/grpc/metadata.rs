//! What the layers leave with a request for its door.

use std::{sync::Arc, time::Instant};

use opentelemetry::Context;
use tonic::{Request, Status};

use super::status::to_status;
use crate::daemon::{
    error::{Error, Violation},
    pipeline::{access::principal::Principal, context::CallContext},
    telemetry::access_log::AccessLogEntry,
};

/// Left by the trace layer: the call's id, its span, and when it came.
#[derive(Debug, Clone)]
pub(crate) struct RequestTrace {
    /// Id of the call.
    pub(crate) call_id: String,
    /// The span of the RPC.
    pub(crate) context: Context,
    /// What its line in the log says.
    pub(crate) facts: AccessLogEntry,
}

/// Left by the deadline layer: when the caller stops waiting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestDeadline(pub(crate) Instant);

/// Reads the call's context from a request.
pub(crate) fn call_context<T>(request: &Request<T>) -> Result<CallContext, Status> {
    let arrival = request.extensions().get::<RequestTrace>().cloned();
    let Some(RequestTrace { call_id, context, facts }) = arrival else {
        return Err(missing_extension());
    };
    let principal = principal(request)?;
    let deadline = request.extensions().get::<RequestDeadline>().map(|deadline| deadline.0);
    let metadata = request.metadata();
    // What is there but cannot be read must not count as not there, nor one of two for the other: the
    // call would go elsewhere.
    let unclear: Vec<Violation> = ["jig-workspace", "jig-session", "jig-request-id"]
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
    if !unclear.is_empty() {
        return Err(to_status(&Error::invalid(unclear)));
    }
    CallContext::new(call_id, principal, deadline, (context, facts), |key| {
        metadata.get(key).and_then(|value| value.to_str().ok())
    })
    .map_err(|violations| to_status(&Error::invalid(violations)))
}

/// Who makes a request.
pub(crate) fn principal<T>(request: &Request<T>) -> Result<Arc<Principal>, Status> {
    let principal = request.extensions().get::<Arc<Principal>>();
    principal.cloned().ok_or_else(missing_extension)
}

fn missing_extension() -> Status {
    to_status(&Error::internal("a request came around the layers"))
}
