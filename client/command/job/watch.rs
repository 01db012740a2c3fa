//! `jig job watch`: prints the output of a job, and derives the exit code.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jig::{
    api::v1::{Job, JobOutput, JobState, RunResponse, WatchJobRequest, watch_job_response::Event},
    client::Client,
};
use serde_json::{Value, json};

use super::print::{job_json, state_name};
use crate::{
    cli_error::CliError, command::exit_note, connection, envelope, exit, global::GlobalArgs, output,
};

/// Prints the output of a job's command until it has ended. As JSON: one event per line.
pub(super) fn watch(
    address: &str,
    global: &GlobalArgs,
    request: WatchJobRequest,
) -> Result<u8, CliError> {
    let mut received = [request.stdout_offset, request.stderr_offset];
    let [stdout_end, stderr_end] = &mut received;

    let last = connection::call_address(address, global, async |client: Client| {
        let mut events = client.watch_job(request).await?;
        let mut last = None;

        while let Some(event) = events.next().await? {
            if global.json {
                event_json(&event).map_or(Ok(()), |line| output::write_json(&line))?;
            }
            match event {
                Event::Job(job) => last = Some(job),
                Event::Stdout(part) => {
                    *stdout_end = part.offset + part.data.len() as u64;
                    if !global.json {
                        output::write_stdout(&part.data)?;
                    }
                }
                Event::Stderr(part) => {
                    *stderr_end = part.offset + part.data.len() as u64;
                    if !global.json {
                        output::write_stderr(&part.data);
                    }
                }
                Event::KeepAlive(_) => {}
            }
        }
        Ok(last)
    })?;

    let job = last.ok_or_else(|| CliError::Daemon("the response has no job".to_owned()))?;

    if !global.json {
        for note in notes(&job, received) {
            output::note(&note);
        }
    }
    Ok(exit_code(&job))
}

fn event_json(event: &Event) -> Option<Value> {
    let part =
        |part: &JobOutput| json!({ "offset": part.offset, "data": STANDARD.encode(&part.data) });
    Some(match event {
        Event::Job(job) => json!({ "job": job_json(job) }),
        Event::Stdout(output) => json!({ "stdout": part(output) }),
        Event::Stderr(output) => json!({ "stderr": part(output) }),
        Event::KeepAlive(_) => return None,
    })
}

/// Returns notes on what output and exit code do not show. `received`: the end offset of each
/// stream.
fn notes(job: &Job, received: [u64; 2]) -> Vec<String> {
    let Some(command) = command_result(job) else {
        let result = job.result.clone().unwrap_or_default();
        return vec![format!("{}: {}", state_name(job.state()), result.text)];
    };

    let written = [command.stdout_bytes, command.stderr_bytes];
    let mut notes: Vec<_> = if job.fleet && received == [0, 0] && written != received {
        let id = &job.job_id;
        vec![format!("the output cannot be watched here: jig job wait {id} prints the result")]
    } else {
        let names = ["standard output", "standard error"];
        let streams = names.into_iter().zip(received.into_iter().zip(written));
        streams
            .filter(|(_, (received, written))| received < written)
            .map(|(name, (received, written))| {
                format!("{name} has {written} bytes, of which the first {received} are stored")
            })
            .collect()
    };

    notes.extend(exit_note::exit_note(command.outcome, &command.signal, &command.limit));
    notes
}

/// Returns the exit code for a job: that of `jig run`, if the job ran a command.
pub(super) fn exit_code(job: &Job) -> u8 {
    match command_result(job) {
        Some(command) => exit::of_run(&command),
        None if has_succeeded(job) => exit::SUCCESS,
        None => exit::FAILURE,
    }
}

/// Returns how the command of a job ended, without its output. `None` if the job ran no command, or
/// if the job failed after its command succeeded.
fn command_result(job: &Job) -> Option<RunResponse> {
    let command = job.result.as_ref().and_then(envelope::command_result);
    command.filter(|command| has_succeeded(job) || exit::of_run(command) != exit::SUCCESS)
}

fn has_succeeded(job: &Job) -> bool {
    match job.state() {
        JobState::Succeeded | JobState::Queued | JobState::Running => true,
        JobState::Failed | JobState::Cancelled | JobState::Lost | JobState::Unspecified => false,
    }
}

#[cfg(test)]
mod tests {
    use jig::api::v1::{InvokeResponse, Outcome};
    use prost_types::{Struct, Value as WireValue, value::Kind};

    use super::*;

    fn job(state: JobState, ended: Option<(Outcome, &str, Option<i32>)>) -> Job {
        let (outcome, signal, exit_code) = ended.unwrap_or_default();
        let kind = Some(Kind::NumberValue(20.0));
        Job {
            state: state.into(),
            result: Some(InvokeResponse {
                data: Some(Struct {
                    fields: [("stdout_bytes".to_owned(), WireValue { kind })].into(),
                }),
                outcome: outcome.into(),
                signal: signal.to_owned(),
                exit_code,
                text: "why".to_owned(),
                ..InvokeResponse::default()
            }),
            ..Job::default()
        }
    }

    #[test]
    fn exit_code_and_notes_follow_the_command() {
        use JobState::{Cancelled, Failed, Lost, Succeeded};
        let exited = |code| Some((Outcome::Exited, "", Some(code)));
        let killed = Some((Outcome::Signaled, "SIGKILL", None));
        let timed_out = Some((Outcome::TimedOut, "SIGTERM", None));
        let cancelled = Some((Outcome::Cancelled, "SIGKILL", None));
        let missing = "standard output has 20 bytes, of which the first 10 are stored";
        let (timeout_note, cancel_note) = ("ended: timed out", "ended: cancelled");
        for (job, expected, notes_expected) in [
            (job(Succeeded, exited(3)), 3, &[missing][..]),
            (job(Succeeded, killed), 137, &[missing]),
            (job(Failed, killed), 137, &[missing]),
            (job(Succeeded, timed_out), 124, &[missing, timeout_note]),
            (job(Failed, timed_out), 124, &[missing, timeout_note]),
            (job(Cancelled, cancelled), 130, &[missing, cancel_note]),
            (job(Failed, exited(0)), 1, &["failed: why"]),
            (job(Failed, None), 1, &["failed: why"]),
            (job(Lost, None), 1, &["lost: why"]),
            (job(Cancelled, None), 1, &["cancelled: why"]),
            (job(Succeeded, None), 0, &["succeeded: why"]),
        ] {
            assert_eq!(exit_code(&job), expected, "{job:?}");
            assert_eq!(notes(&job, [10, 0]), notes_expected, "{job:?}");
        }

        let fleet_job =
            Job { fleet: true, job_id: "fleet-1".to_owned(), ..job(Succeeded, exited(0)) };
        let elsewhere = "the output cannot be watched here: jig job wait fleet-1 prints the result";
        assert_eq!(notes(&fleet_job, [0, 0]), [elsewhere]);
        assert_eq!(notes(&fleet_job, [10, 0]), [missing]);
    }
}
