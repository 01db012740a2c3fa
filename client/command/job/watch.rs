//! Watching a job: what its command writes, how it has ended, and the exit code that says so.

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

/// Prints what the command of a job writes, until it has ended. As JSON: each event, in a line.
pub(super) fn watch(
    address: &str,
    global: &GlobalArgs,
    request: WatchJobRequest,
) -> Result<u8, CliError> {
    let mut came = [request.stdout_offset, request.stderr_offset];
    let [stdout_end, stderr_end] = &mut came;
    let last = connection::call_address(address, global, async |client: Client| {
        let mut events = client.watch_job(request).await?;
        let mut last = None;
        while let Some(event) = events.next().await? {
            if global.json {
                event_json(&event).map_or(Ok(()), |line| output::write_json(&line))?;
            }
            match event {
                Event::Job(job) => last = Some(job),
                Event::Stdout(written) => {
                    *stdout_end = written.offset + written.data.len() as u64;
                    if !global.json {
                        output::write_stdout(&written.data)?;
                    }
                }
                Event::Stderr(written) => {
                    *stderr_end = written.offset + written.data.len() as u64;
                    if !global.json {
                        output::write_stderr(&written.data);
                    }
                }
                Event::KeepAlive(_) => {}
            }
        }
        Ok(last)
    })?;
    let job = last.ok_or_else(|| CliError::Daemon("the answer has no job".to_owned()))?;
    if !global.json {
        for note in notes(&job, came) {
            output::note(&note);
        }
    }
    Ok(exit_code(&job))
}

fn event_json(event: &Event) -> Option<Value> {
    let part = |written: &JobOutput| json!({ "offset": written.offset, "data": STANDARD.encode(&written.data) });
    Some(match event {
        Event::Job(job) => json!({ "job": job_json(job) }),
        Event::Stdout(written) => json!({ "stdout": part(written) }),
        Event::Stderr(written) => json!({ "stderr": part(written) }),
        Event::KeepAlive(_) => return None,
    })
}

/// What neither the output nor the exit code tells. `came`: where the output ended that came.
fn notes(job: &Job, came: [u64; 2]) -> Vec<String> {
    let Some(ran) = command_result(job) else {
        let result = job.result.clone().unwrap_or_default();
        return vec![format!("{}: {}", state_name(job.state()), result.text)];
    };
    let written = [ran.stdout_bytes, ran.stderr_bytes];
    let names = ["standard output", "standard error"];
    let streams = names.into_iter().zip(came.into_iter().zip(written));
    let missing = streams.filter(|(_, (came, written))| came < written);
    let mut notes: Vec<_> = missing
        .map(|(name, (came, written))| {
            format!("{name} has {written} bytes, of which those from {came} on are not kept")
        })
        .collect();
    notes.extend(exit_note::exit_note(ran.outcome, &ran.signal, &ran.limit));
    notes
}

/// The exit code that says how a job has ended: as that of `jig run`, where it ran a command.
pub(super) fn exit_code(job: &Job) -> u8 {
    match command_result(job) {
        Some(ran) => exit::of_run(&ran),
        None if has_succeeded(job) => exit::SUCCESS,
        None => exit::FAILURE,
    }
}

/// How the command of a job has ended, without what it wrote, if it ran one, and has not failed behind it.
fn command_result(job: &Job) -> Option<RunResponse> {
    let ran = job.result.as_ref().and_then(envelope::command_result);
    ran.filter(|ran| has_succeeded(job) || exit::of_run(ran) != exit::SUCCESS)
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
    fn it_ends_as_the_command_did() {
        use JobState::{Cancelled, Failed, Lost, Succeeded};
        let exited = |code| Some((Outcome::Exited, "", Some(code)));
        let killed = Some((Outcome::Signaled, "SIGKILL", None));
        let late = Some((Outcome::TimedOut, "SIGTERM", None));
        let ended = Some((Outcome::Cancelled, "SIGKILL", None));
        let cut = "standard output has 20 bytes, of which those from 10 on are not kept";
        let (up, gone) = ("ended: its time was up", "ended: cancelled");
        for (job, expected, notes_expected) in [
            (job(Succeeded, exited(3)), 3, &[cut][..]),
            (job(Succeeded, killed), 137, &[cut]),
            (job(Failed, killed), 137, &[cut]),
            (job(Succeeded, late), 124, &[cut, up]),
            (job(Failed, late), 124, &[cut, up]),
            (job(Cancelled, ended), 130, &[cut, gone]),
            (job(Failed, exited(0)), 1, &["failed: why"]),
            (job(Failed, None), 1, &["failed: why"]),
            (job(Lost, None), 1, &["lost: why"]),
            (job(Cancelled, None), 1, &["cancelled: why"]),
            (job(Succeeded, None), 0, &["succeeded: why"]),
        ] {
            assert_eq!(exit_code(&job), expected, "{job:?}");
            assert_eq!(notes(&job, [10, 0]), notes_expected, "{job:?}");
        }
    }
}
