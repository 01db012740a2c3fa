//! Prints jobs as text and as JSON.

use std::fmt::Write as _;

use jig::api::v1::{Job, JobState};
use serde_json::{Value, json};

use crate::{
    cli_error::CliError,
    envelope::{self, timestamp_text},
    escape, output,
};

/// Prints a job and its result.
pub(super) fn print_job(job: &Job, as_json: bool) -> Result<(), CliError> {
    if as_json {
        return output::write_json(&job_json(job));
    }
    let mut text = String::new();
    push_job_line(&mut text, job);
    if let Some(result) = &job.result {
        // The output of commands is untrusted.
        text.push_str(&escape::text(result.text.trim_end()));
        text.push('\n');
    }
    output::write_stdout(text.as_bytes())
}

/// Prints a line per job.
pub(super) fn print_list(jobs: &[Job]) -> Result<(), CliError> {
    let mut text = String::new();
    for job in jobs {
        push_job_line(&mut text, job);
    }
    output::write_stdout(text.as_bytes())
}

fn push_job_line(text: &mut String, job: &Job) {
    let submitted = timestamp_text(job.submit_time).unwrap_or_default();
    let (state, tool, queue) = (state_name(job.state()), &job.tool, &job.queue);
    let dialect = match job.dialect.as_str() {
        "" => String::new(),
        dialect => format!("dialect={dialect} "),
    };
    let daemon = match job.daemon_id.as_str() {
        "" => String::new(),
        daemon => format!(" daemon={daemon}"),
    };
    // Writing to a String cannot fail.
    let _written = writeln!(
        text,
        "{}  {state:<9}  {tool}  {dialect}queue={queue} priority={} session={} submitted={submitted}{daemon}",
        job.job_id, job.priority, job.session,
    );
}

/// Returns the name of a state for people.
pub(super) fn state_name(state: JobState) -> &'static str {
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

/// Converts a job, with the field names of the contract.
pub(super) fn job_json(job: &Job) -> Value {
    json!({
        "job_id": job.job_id,
        "state": job.state().as_str_name(),
        "tool": job.tool,
        "dialect": job.dialect,
        "approval_id": job.approval_id,
        "queue": job.queue,
        "priority": job.priority,
        "session": job.session,
        "principal": job.principal,
        "step": job.step,
        "submit_time": timestamp_text(job.submit_time),
        "start_time": timestamp_text(job.start_time),
        "end_time": timestamp_text(job.end_time),
        "retention": job.retention.map(|retention| retention.to_string()),
        "fleet": job.fleet,
        "daemon_id": job.daemon_id,
        "result": job.result.as_ref().map(envelope::to_json),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::has_all_fields;

    #[test]
    fn every_field_of_the_contract_is_printed() {
        has_all_fields("jig.v1.Job", &job_json(&Job::default()));
    }
}
