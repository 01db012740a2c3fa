//! Watching a job: what its command writes, how it has ended, and the exit code that says so.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jig::{
    api::v1::{Job, JobOutput, JobState, RunResponse, WatchJobRequest, watch_job_response::Event},
    client::Client,
};
use serde_json::{Value, json};

use super::print::{to_json, word};
use crate::{command::ended, connection, envelope, exit, failure::Failure, global::Global, output};

/// Prints what the command of a job writes, until it has ended. As JSON: each event, in a line.
pub(super) fn watch(
    address: &str,
    global: &Global,
    request: WatchJobRequest,
) -> Result<u8, Failure> {
    let mut came = [request.stdout_offset, request.stderr_offset];
    let [stdout_end, stderr_end] = &mut came;
    let last = connection::call_at(address, global, async |client: Client| {
        let mut events = client.watch_job(request).await?;
        let mut last = None;
        while let Some(event) = events.next().await? {
            if global.json {
                to_line(&event).map_or(Ok(()), |line| output::json(&line))?;
            }
            match event {
                Event::Job(job) => last = Some(job),
                Event::Stdout(written) => {
                    *stdout_end = written.offset + written.data.len() as u64;
                    if !global.json {
                        output::stdout(&written.data)?;
                    }
                }
                Event::Stderr(written) => {
                    *stderr_end = written.offset + written.data.len() as u64;
                    if !global.json {
                        output::stderr(&written.data);
                    }
                }
                Event::KeepAlive(_) => {}
            }
        }
        Ok(last)
    })?;
    let job = last.ok_or_else(|| Failure::Daemon("the answer has no job".to_owned()))?;
    if !global.json {
        for note in notes(&job, came) {
            output::note(&note);
        }
    }
    Ok(code(&job))
}

fn to_line(event: &Event) -> Option<Value> {
    let part = |written: &JobOutput| json!({ "offset": written.offset, "data": STANDARD.encode(&written.data) });
    Some(match event {
        Event::Job(job) => json!({ "job": to_json(job) }),
        Event::Stdout(written) => json!({ "stdout": part(written) }),
        Event::Stderr(written) => json!({ "stderr": part(written) }),
        Event::KeepAlive(_) => return None,
    })
}

/// What neither the output nor the exit code tells. `came`: where the output ended that came.
fn notes(job: &Job, came: [u64; 2]) -> Vec<String> {
    let Some(ran) = ran(job) else {
        let result = job.result.clone().unwrap_or_default();
        return vec![format!("{}: {}", word(job.state()), result.text)];
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
    notes.extend(ended::how(ran.outcome, &ran.signal, &ran.limit));
    notes
}

/// The exit code that says how a job has ended: as that of `jig run`, where it ran a command.
pub(super) fn code(job: &Job) -> u8 {
    let of_dialect = job.result.as_ref().filter(|_| !job.dialect.is_empty());
    let exit_code = of_dialect.and_then(|result| u8::try_from(result.exit_code?).ok());
    match (ran(job), exit_code, job.state()) {
        (Some(ran), ..) => exit::of_run(&ran),
        (None, Some(code), _) => code,
        (None, None, JobState::Succeeded) if is_run(job) => exit::FAILURE,
        (None, None, JobState::Succeeded | JobState::Queued | JobState::Running) => exit::SUCCESS,
        (
            None,
            None,
            JobState::Failed | JobState::Cancelled | JobState::Lost | JobState::Unspecified,
        ) => exit::FAILURE,
    }
}

/// How the command of a job has ended, if it ran one, without what it wrote.
fn ran(job: &Job) -> Option<RunResponse> {
    let result = job.result.as_ref().filter(|_| is_run(job));
    result.and_then(envelope::ran)
}

/// Whether it is one of the tool of the contract that runs commands. Others have tools of that name.
fn is_run(job: &Job) -> bool {
    job.dialect.is_empty() && job.tool == "run"
}

#[cfg(test)]
mod tests {
    use jig::api::v1::InvokeResponse;
    use prost_types::{Struct, Value as WireValue, value::Kind};

    use super::*;

    fn job(state: JobState, tool: &str, data: &[(&str, &str)], exit_code: Option<i32>) -> Job {
        let fields = data.iter().map(|(name, value)| {
            // As the daemon writes them.
            let kind = match value.parse() {
                Ok(number) => Kind::NumberValue(number),
                Err(_) => Kind::StringValue((*value).to_owned()),
            };
            ((*name).to_owned(), WireValue { kind: Some(kind) })
        });
        let data = (!data.is_empty()).then(|| Struct {
            fields: fields.collect(),
        });
        Job {
            tool: tool.to_owned(),
            state: state.into(),
            result: Some(InvokeResponse {
                data,
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
        let exited = &[("outcome", "OUTCOME_EXITED"), ("stdout_bytes", "20")][..];
        let killed = &[("outcome", "OUTCOME_SIGNALED"), ("signal", "SIGKILL")][..];
        let late = &[("outcome", "OUTCOME_TIMED_OUT"), ("signal", "SIGTERM")][..];
        let ended = &[("outcome", "OUTCOME_CANCELLED"), ("signal", "SIGKILL")][..];
        let cut = "standard output has 20 bytes, of which those from 10 on are not kept";
        for (job, expected, notes_expected) in [
            (job(Succeeded, "run", exited, Some(3)), 3, &[cut][..]),
            (job(Succeeded, "run", killed, None), 137, &[]),
            (
                job(Succeeded, "run", late, None),
                124,
                &["ended: its time was up"],
            ),
            (
                job(Cancelled, "run", ended, None),
                130,
                &["ended: cancelled"],
            ),
            (job(Failed, "run", &[], None), 1, &["failed: why"]),
            (job(Lost, "run", &[], None), 1, &["lost: why"]),
            (job(Cancelled, "run", &[], None), 1, &["cancelled: why"]),
            (
                Job {
                    dialect: "agentbench".to_owned(),
                    ..job(Succeeded, "run", &[("stdout_path", "x")], Some(2))
                },
                2,
                &["succeeded: why"],
            ),
            (
                Job {
                    dialect: "agentbench".to_owned(),
                    ..job(Succeeded, "run", &[("stdout_path", "x")], None)
                },
                0,
                &["succeeded: why"],
            ),
            (
                job(Succeeded, "stat", &[("path", "x")], None),
                0,
                &["succeeded: why"],
            ),
        ] {
            assert_eq!(code(&job), expected, "{job:?}");
            assert_eq!(notes(&job, [10, 0]), notes_expected, "{job:?}");
        }
    }
}
