//! Jobs, each with one end.

use std::time::Duration;

use jig::api::v1::{Job, JobState, SubmitJobRequest, WaitJobRequest};
use serde_json::{Value, json};

use super::{
    agent::Agent,
    caller::{CallFailure, Caller, numbers},
};

/// Delay before a job is asked for again that could not be read.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Submits a job, waits for its end and checks its result.
pub(super) async fn job(agent: &mut Agent) {
    let id = agent.next_id("job");
    let request_id = agent.request_id(&id);
    let seconds = agent.random.command_time(agent.plan.time_scale).as_secs_f64();
    let lines = 1 + agent.random.below(100);
    let directory = &agent.directory;
    let command = format!(
        "mkdir -p {directory}/runs; echo ran >> {directory}/runs/{id}; sleep {seconds:.3}; seq 1 {lines}"
    );

    let caller = &agent.plan.caller;
    let Some(job_id) = submit(caller, &request_id, &command).await else { return };
    let Some(job) = wait(caller, &job_id).await else { return };
    let effects = agent.count_effects(&id).await;
    check(caller, &request_id, job, lines, effects);
}

/// Submits a job. Returns its id.
async fn submit(caller: &Caller, request_id: &str, command: &str) -> Option<String> {
    let params_json = json!({ "command": command, "timeout_sec": 600 }).to_string();
    let request =
        SubmitJobRequest { tool: "run".to_owned(), params_json, ..SubmitJobRequest::default() };
    let submitted = caller
        .call("submit_job", Some(request_id), |client| {
            let request = request.clone();
            async move { client.submit_job(request).await }
        })
        .await;
    match submitted {
        Ok(response) => Some(response.job.unwrap_or_default().job_id),
        Err(failure) => {
            caller.tally.interrupted("submit_job", failure.reason());
            None
        }
    }
}

/// Waits until a job has ended. `None` if it is lost, or the daemon no longer answers.
async fn wait(caller: &Caller, job_id: &str) -> Option<Job> {
    loop {
        let request = WaitJobRequest { job_id: job_id.to_owned(), wait_ms: Some(5000) };
        let waited = caller
            .call("wait_job", None, |client| {
                let request = request.clone();
                async move { client.wait_job(request).await }
            })
            .await;
        match waited {
            Ok(response) => {
                let job = response.job.unwrap_or_default();
                if !matches!(job.state(), JobState::Queued | JobState::Running) {
                    return Some(job);
                }
            }
            Err(failure @ CallFailure::GaveUp) => {
                caller.tally.interrupted("wait_job", failure.reason());
                return None;
            }
            // Reading needs a database, which a full disk or a shortage prevents for a while.
            Err(failure) if failure.reason() != "JOB_NOT_FOUND" => {
                caller.tally.interrupted("wait_job", failure.reason());
                tokio::time::sleep(RETRY_DELAY).await;
            }
            Err(failure) => {
                caller.tally.check_stored(false, || format!("{job_id}: {}", failure.reason()));
                return None;
            }
        }
    }
}

/// Checks the result of a job whose command ran `effects` times.
fn check(caller: &Caller, request_id: &str, job: Job, lines: u64, effects: usize) {
    let tally = &caller.tally;
    let state = job.state();
    let result = job.result.unwrap_or_default();
    if state == JobState::Succeeded {
        let response: Value = serde_json::from_str(&result.text).unwrap_or_default();
        let is_right = response["stdout"] == numbers(lines).as_str();
        tally.check(is_right && effects == 1, || {
            format!("{request_id}: {effects} runs, {:.300}", result.text)
        });
        return;
    }

    let reason = match (state, result.error) {
        // The names of reasons are in lower case in results for models.
        (JobState::Failed, Some(error)) => error.error_type.to_uppercase(),
        _ => state.as_str_name().to_owned(),
    };
    tally.interrupted("job", &reason);
    tally.check(effects <= 1, || format!("{request_id} ran {effects} times"));
}
