//! Names of what the fleet has on its NATS servers.

use async_nats::HeaderMap;

/// Subjects of all jobs.
pub(super) const ALL_JOBS_SUBJECT: &str = "jig.jobs.>";
/// Prefix of the subjects of jobs: `jig.jobs.QUEUE`, or `jig.jobs.QUEUE.WORKSPACE`.
const JOBS_PREFIX: &str = "jig.jobs.";
/// Subjects of all dead letters.
pub(super) const ALL_DEAD_LETTERS_SUBJECT: &str = "jig.dead.>";

/// Header of a message. The stream drops a second one with the same value for some time, whatever its
/// subject. It is the request id of a job without [`REQUEST_ID_HEADER`].
pub(super) const MESSAGE_ID_HEADER: &str = "Nats-Msg-Id";
/// Header of a job with its request id.
pub(super) const REQUEST_ID_HEADER: &str = "Jig-Request-Id";
/// Header of a job with its session.
pub(super) const SESSION_HEADER: &str = "Jig-Session";
/// Header of a job with the name of its principal.
pub(super) const PRINCIPAL_HEADER: &str = "Jig-Principal";
/// Header of a job with its signature.
pub(super) const SIGNATURE_HEADER: &str = "Jig-Signature";
/// Header of a job with its trace context.
pub(super) const TRACEPARENT_HEADER: &str = "traceparent";
/// Header of a dead letter: why no daemon runs the job, as the reason of an error.
pub(super) const DEAD_LETTER_REASON_HEADER: &str = "Jig-Reason";
/// Header of a dead letter: the message of that error.
pub(super) const DEAD_LETTER_MESSAGE_HEADER: &str = "Jig-Message";
/// Header of a dead letter: the id of the job, if it has one.
pub(super) const DEAD_LETTER_JOB_ID_HEADER: &str = "Jig-Job-Id";
/// Header of a dead letter: the subject of the job.
pub(super) const DEAD_LETTER_SUBJECT_HEADER: &str = "Jig-Subject";

/// Returns the subject of the jobs of a queue, in a workspace or in the first one of each daemon.
pub(super) fn job_subject(queue: &str, workspace: Option<&str>) -> String {
    match workspace {
        Some(workspace) => format!("{JOBS_PREFIX}{queue}.{workspace}"),
        None => format!("{JOBS_PREFIX}{queue}"),
    }
}

/// Splits the subject of a job into queue and workspace.
pub(super) fn parse_job_subject(subject: &str) -> Option<(&str, Option<&str>)> {
    let rest = subject.strip_prefix(JOBS_PREFIX)?;
    Some(match rest.split_once('.') {
        Some((queue, workspace)) => (queue, Some(workspace)),
        None => (rest, None),
    })
}

/// Returns the name of the durable consumer of a subject.
///
/// Names of queues contain no `@`, so two subjects have two names.
pub(super) fn consumer_name(queue: &str, workspace: Option<&str>) -> String {
    match workspace {
        Some(workspace) => format!("{queue}@{workspace}"),
        None => queue.to_owned(),
    }
}

/// Returns the subject on which a daemon is asked for the output of its jobs.
pub(super) fn watch_subject(daemon_id: &str) -> String {
    format!("jig.watch.{daemon_id}")
}

/// Returns the subject on which a daemon is asked to cancel a job.
pub(super) fn cancel_subject(daemon_id: &str) -> String {
    format!("jig.cancel.{daemon_id}")
}

/// Returns the subject of the dead letters of a queue.
pub(super) fn dead_letter_subject(queue: &str) -> String {
    format!("jig.dead.{queue}")
}

/// Name of the stream of dead letters.
pub(super) fn dead_letter_stream(stream: &str) -> String {
    format!("{stream}_dead")
}

/// Name of the bucket of the records of jobs.
pub(super) fn records_bucket(stream: &str) -> String {
    format!("{stream}_records")
}

/// Name of the bucket of heartbeats.
pub(super) fn daemons_bucket(stream: &str) -> String {
    format!("{stream}_daemons")
}

/// Name of the object store of large results.
pub(super) fn results_bucket(stream: &str) -> String {
    format!("{stream}_results")
}

/// Returns the value of a header. Returns an error if there are several.
pub(super) fn single_header<'a>(
    headers: Option<&'a HeaderMap>,
    name: &'static str,
) -> Result<Option<&'a str>, String> {
    let mut values = headers.into_iter().flat_map(|headers| headers.get_all(name));
    match (values.next(), values.next()) {
        (value, None) => Ok(value.map(async_nats::HeaderValue::as_str)),
        (_, Some(_)) => Err(format!("the header {name} occurs twice: give it once")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_name_queue_and_workspace() {
        for (queue, workspace, subject, consumer) in [
            ("build", None, "jig.jobs.build", "build"),
            ("build", Some("main"), "jig.jobs.build.main", "build@main"),
        ] {
            assert_eq!(job_subject(queue, workspace), subject);
            assert_eq!(parse_job_subject(subject), Some((queue, workspace)));
            assert_eq!(consumer_name(queue, workspace), consumer);
        }
        assert_eq!(parse_job_subject("jig.dead.build"), None);
    }
}
