//! Submits a job of the fleet as a job of this daemon. From then on it survives the death of the
//! daemon, and repeating the submission finds it.

use std::{sync::Arc, time::Instant};

use http::{HeaderMap, HeaderValue};
use ulid::Ulid;

use super::work_source::Work;
use crate::daemon::{
    config::keys::AccessRole,
    error::{Error, Reason},
    pipeline::{
        Pipeline, access::principal::Principal, context::CallContext, jobs::LiveOrEndedJob,
    },
    store::fleet_starts::UNSETTLED_PREFIX,
    telemetry::access_log::AccessLogEntry,
};

/// Prefix of the request ids of fleet jobs whose ends the fleet has.
const SETTLED_PREFIX: &str = "fleet-settled\u{1f}";
/// Name of the submission in errors about the role of a key.
const METHOD: &str = "jig.v1.JobService/SubmitJob";

/// What this daemon has of a piece of work.
pub(super) enum LocalJob {
    Known(LiveOrEndedJob),
    /// It is cancelled, and has not begun.
    Cancelled,
    /// It had the work before, and the database, which has no trace of the job, may have lost some.
    MayHaveBegun,
    /// The database cannot be read.
    Unreadable(Error),
}

/// Finds the job of this daemon for a piece of work, or submits it.
///
/// # Errors
///
/// The job has not begun, and will not.
pub(super) async fn find_or_submit(
    pipeline: &Arc<Pipeline>,
    work: &Work,
    start_id: &str,
) -> Result<LocalJob, Error> {
    if let Some(claimed_by) = &work.resumed_from {
        match find_resumed(pipeline, work, claimed_by, start_id).await {
            Ok(None) => {}
            Ok(Some(found)) => return Ok(found),
            Err(error) => return Ok(LocalJob::Unreadable(error)),
        }
    }
    if work.is_cancelled {
        return Ok(LocalJob::Cancelled);
    }

    let principal = find_principal(pipeline, &work.principal)?;
    principal.require_role(AccessRole::Invoke, METHOD)?;
    if !work.is_rate_counted {
        principal.check_rate(Instant::now())?;
    }
    let context = call_context(pipeline, work, principal)?;
    let submission = pipeline.validate_job_request(&context, work.request.clone())?;
    let job = pipeline.submit_job(&context, submission, false).await?;
    let found = pipeline.jobs.find(&work.workspace, &job.id).await;
    Ok(found.map_or_else(LocalJob::Unreadable, LocalJob::Known))
}

/// Finds the job of a claim that `claimed_by` has made, a start of this daemon. Returns `None` if it has
/// not begun.
async fn find_resumed(
    pipeline: &Pipeline,
    work: &Work,
    claimed_by: &str,
    start_id: &str,
) -> Result<Option<LocalJob>, Error> {
    let (jobs, workspace) = (&pipeline.jobs, &work.workspace);
    for prefix in [UNSETTLED_PREFIX, SETTLED_PREFIX] {
        let request_id = local_request_id(prefix, &work.id, &work.claim_id);
        let found = jobs.find_submitted(&work.principal, workspace, request_id).await?;
        if let Some(job) = found {
            return jobs.find(workspace, &job.id).await.map(|job| Some(LocalJob::Known(job)));
        }
    }

    // After the job was looked for: the database forgets the start when it loses the job.
    let table = jobs.table();
    let starts = table.list_fleet_starts(start_id.to_owned()).await.map_err(Error::internal)?;
    let may_have_begun = !starts.iter().any(|start| start == claimed_by);
    Ok(may_have_begun.then_some(LocalJob::MayHaveBegun))
}

/// The request id of the job at this daemon. Callers cannot give it: theirs have visible characters
/// only. A later claim is another job: the one before was lost, or given back.
fn local_request_id(prefix: &str, id: &str, claim_id: &str) -> String {
    format!("{prefix}{id}\u{1f}{claim_id}")
}

/// Notes that the fleet has the end of a claim, or that this daemon no longer has the claim. From then
/// on its job may be removed like any other.
pub(super) async fn mark_settled(pipeline: &Pipeline, id: &str, claim_id: &str) {
    let [from, to] =
        [UNSETTLED_PREFIX, SETTLED_PREFIX].map(|prefix| local_request_id(prefix, id, claim_id));
    if let Err(error) = pipeline.jobs.table().change_request_id(from, to).await {
        // The next start settles it.
        tracing::debug!(%error, job = id, "cannot note that a fleet job is settled");
    }
}

/// A job of the fleet that this daemon has, from an earlier start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredFleetJob {
    /// Id of the fleet job.
    pub(super) id: String,
    pub(super) claim_id: String,
    /// Where this daemon has it.
    pub(super) workspace: String,
    pub(super) local_id: String,
}

/// Lists the jobs of the fleet in the database of this daemon whose ends the fleet may not have.
pub(super) async fn list_stored(pipeline: &Pipeline) -> Result<Vec<StoredFleetJob>, Error> {
    let end = UNSETTLED_PREFIX.replace('\u{1f}', "\u{20}");
    let jobs = pipeline.jobs.list_submitted(UNSETTLED_PREFIX, &end).await?;
    let stored = jobs.into_iter().filter_map(|job| {
        let (id, claim_id) = parse_local_request_id(&job.request_id)?;
        let (id, claim_id) = (id.to_owned(), claim_id.to_owned());
        Some(StoredFleetJob { id, claim_id, workspace: job.workspace, local_id: job.id })
    });
    Ok(stored.collect())
}

/// Splits a request id of [`local_request_id`] into the ids of the fleet job and the claim.
fn parse_local_request_id(request_id: &str) -> Option<(&str, &str)> {
    request_id.strip_prefix(UNSETTLED_PREFIX)?.split_once('\u{1f}')
}

/// Finds the key of a job. The job has the rights that it has at this daemon.
fn find_principal(pipeline: &Pipeline, name: &str) -> Result<Arc<Principal>, Error> {
    pipeline.access.find_principal(name).ok_or_else(|| {
        let text = format!(
            "this daemon has no key for {name}, or it has expired: give all daemons of the fleet the keys of its callers"
        );
        Error::new(Reason::Forbidden, text).with_metadata("principal", name)
    })
}

/// Builds the context of the submission, as if its caller had called this daemon.
fn call_context(
    pipeline: &Pipeline,
    work: &Work,
    principal: Arc<Principal>,
) -> Result<CallContext, Error> {
    let mut headers = HeaderMap::new();
    let traceparent = work.traceparent.as_deref().map(HeaderValue::from_str);
    if let Some(Ok(traceparent)) = traceparent {
        headers.insert("traceparent", traceparent);
    }
    let parent_span = pipeline.telemetry.caller_context(&headers).parent;
    let request_id = local_request_id(UNSETTLED_PREFIX, &work.id, &work.claim_id);
    let get = |key: &str| match key {
        "jig-session" => work.session.as_deref(),
        "jig-request-id" => Some(request_id.as_str()),
        "jig-workspace" => Some(work.workspace.as_str()),
        _ => None,
    };

    let span_and_entry = (parent_span, AccessLogEntry::default());
    CallContext::new(Ulid::generate().to_string(), principal, None, span_and_entry, get)
        .map_err(Error::invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_name_job_and_claim() {
        let request_id = local_request_id(UNSETTLED_PREFIX, "fleet-1", "2.5");
        assert_eq!(parse_local_request_id(&request_id), Some(("fleet-1", "2.5")));
        let settled = local_request_id(SETTLED_PREFIX, "fleet-1", "2.5");
        for other in ["", "fleet-1", "fleet\u{1f}fleet-1", &settled] {
            assert_eq!(parse_local_request_id(other), None, "{other:?}");
        }
    }
}
