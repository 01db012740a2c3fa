//! Jobs, for people and as JSON.

use std::fmt::Write as _;

use jig::api::v1::{InvokeResponse, InvokeStatus, Job, JobState, ToolError};
use prost_types::Timestamp;
use serde_json::{Value, json};

use crate::{escape, failure::Failure, output, structure::json_of};

/// Prints a job and what came of it.
pub(super) fn print_job(job: &Job, as_json: bool) -> Result<(), Failure> {
    if as_json {
        return output::json(&to_json(job));
    }
    let mut text = String::new();
    line(&mut text, job);
    if let Some(result) = &job.result {
        // What commands have written may be anything.
        text.push_str(&escape::text(result.text.trim_end()));
        text.push('\n');
    }
    output::stdout(text.as_bytes())
}

/// Prints a line for each job.
pub(super) fn print_list(jobs: &[Job]) -> Result<(), Failure> {
    let mut text = String::new();
    for job in jobs {
        line(&mut text, job);
    }
    output::stdout(text.as_bytes())
}

fn line(text: &mut String, job: &Job) {
    let submitted = time(job.submit_time).unwrap_or_default();
    let (state, tool, queue) = (word(job.state()), &job.tool, &job.queue);
    // Writing to a String cannot fail.
    let _written = writeln!(
        text,
        "{}  {state:<9}  {tool}  queue={queue} priority={} session={} submitted={submitted}",
        job.job_id, job.priority, job.session,
    );
}

/// A state, as people call it.
pub(super) fn word(state: JobState) -> &'static str {
    match state {
        JobState::Unspecified => "?",
        JobState::Queued => "queued",
        JobState::Running => "running",
        JobState::Succeeded => "succeeded",
        JobState::Failed => "failed",
        JobState::Cancelled => "cancelled",
        JobState::Lost => "lost",
    }
}

/// A job, by the names of the contract.
pub(super) fn to_json(job: &Job) -> Value {
    json!({
        "job_id": job.job_id,
        "state": job.state().as_str_name(),
        "tool": job.tool,
        "queue": job.queue,
        "priority": job.priority,
        "session": job.session,
        "principal": job.principal,
        "step": job.step,
        "submit_time": time(job.submit_time),
        "start_time": time(job.start_time),
        "end_time": time(job.end_time),
        "result": job.result.as_ref().map(result),
    })
}

fn result(result: &InvokeResponse) -> Value {
    let status = InvokeStatus::try_from(result.status).unwrap_or_default();
    json!({
        "request_id": result.request_id,
        "tool": result.tool,
        "status": status.as_str_name(),
        "started_at": time(result.started_at),
        "ended_at": time(result.ended_at),
        "duration_sec": result.duration_sec,
        "data": result.data.as_ref().map(json_of),
        "text": result.text,
        "error": result.error.as_ref().map(error),
        "exit_code": result.exit_code,
        "stdout_path": result.stdout_path,
        "stderr_path": result.stderr_path,
        "job_id": result.job_id,
        "pending": result.pending,
        "truncated": result.truncated,
    })
}

fn error(error: &ToolError) -> Value {
    json!({
        "error_type": error.error_type,
        "message": error.message,
        "suggestion": error.suggestion,
        "details": error.details.as_ref().map(json_of),
    })
}

fn time(time: Option<Timestamp>) -> Option<String> {
    time.map(|time| time.to_string())
}

#[cfg(test)]
mod tests {
    use prost_reflect::DescriptorPool;

    use super::*;

    #[test]
    fn every_field_of_the_contract_is_printed() {
        let pool = DescriptorPool::decode(jig::api::FILE_DESCRIPTOR_SET).unwrap();
        let check = |message: &str, value: &Value| {
            let descriptor = pool.get_message_by_name(message).unwrap();
            let fields = descriptor.fields().map(|field| field.name().to_owned());
            let mut fields: Vec<_> = fields.collect();
            fields.sort();
            let found: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
            assert_eq!(found, fields, "{message}");
        };
        let job = to_json(&Job {
            result: Some(InvokeResponse {
                error: Some(ToolError::default()),
                ..InvokeResponse::default()
            }),
            ..Job::default()
        });
        check("jig.v1.Job", &job);
        check("jig.v1.InvokeResponse", &job["result"]);
        check("jig.v1.ToolError", &job["result"]["error"]);
    }
}
