//! A virtual agent: makes calls of a random mix and compares each answer with its model.

use std::{collections::VecDeque, time::Instant};

use jig::{
    api::v1::{LowerLimits, Outcome, RunRequest, RunResponse},
    client::CallError,
};

use super::{
    caller::{Caller, numbers, read},
    files::Files,
    random::SeededRandom,
};

/// Acknowledged runs of an agent that may be repeated.
const MAX_ACKNOWLEDGED: usize = 16;
/// Memory of a command that exceeds it.
const LOW_MEMORY_BYTES: u64 = 32 << 20;
/// Most lines of a command with much output, about 7 bytes each.
const MAX_LINES: u64 = 3_000_000;

/// Properties that all agents share.
#[derive(Debug, Clone)]
pub(super) struct LoadPlan {
    pub(super) caller: Caller,
    /// Directory of the load, relative to the workspace.
    pub(super) directory: String,
    pub(super) time_scale: f64,
    pub(super) end: Instant,
    /// Whether calls below `ask/` are pending approval.
    pub(super) has_approvals: bool,
}

/// An agent with its state.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) plan: LoadPlan,
    pub(super) directory: String,
    pub(super) random: SeededRandom,
    pub(super) files: Files,
    pub(super) acknowledged: VecDeque<(String, RunRequest, RunResponse)>,
    next_call: u64,
}

/// A command and its expected result.
#[derive(Debug)]
struct PlannedRun {
    kind: &'static str,
    request: RunRequest,
    outcome: Outcome,
    exit_code: Option<i32>,
    /// Expected standard output, unless a limit ends the command.
    stdout: Option<String>,
}

impl Agent {
    pub(super) fn new(mut plan: LoadPlan, number: u64, seed: u64) -> Self {
        let directory = format!("{}/{number}", plan.directory);
        plan.caller.options.session = Some(directory.replace('/', "-"));
        Self {
            plan,
            files: Files::new(&directory),
            directory,
            random: SeededRandom::new(seed ^ (number << 32)),
            acknowledged: VecDeque::new(),
            next_call: 0,
        }
    }

    /// Returns a request id, which is a file name too.
    pub(super) fn next_id(&mut self, kind: &str) -> String {
        self.next_call += 1;
        format!("{kind}-{}", self.next_call)
    }

    pub(super) fn request_id(&self, id: &str) -> String {
        format!("{}/{id}", self.directory)
    }

    pub(super) async fn run(&mut self) {
        let id = self.next_id("run");
        let planned = self.plan_run(&id);
        let request_id = self.request_id(&id);
        let caller = self.plan.caller.clone();
        let request = &planned.request;
        let answer = caller
            .call(planned.kind, Some(&request_id), |client| {
                let request = request.clone();
                async move { client.run(request).await }
            })
            .await;

        let effects = self.count_effects(&id).await;
        let tally = &caller.tally;
        let response = match answer {
            Ok(response) => response,
            Err(failure) => {
                tally.interrupted(planned.kind, failure.reason());
                tally.check(effects <= 1, || format!("{request_id} ran {effects} times"));
                return;
            }
        };

        if matches!(response.outcome(), Outcome::DaemonLost | Outcome::Cancelled) {
            tally.interrupted(planned.kind, response.outcome().as_str_name());
            tally.check(effects <= 1, || format!("{request_id} ran {effects} times"));
            return;
        }
        tally.check(effects == 1, || format!("{request_id} ran {effects} times: {response:.300?}"));
        let is_right = response.outcome() == planned.outcome
            && (planned.exit_code.is_none() || response.exit_code == planned.exit_code);
        tally.check(is_right, || format!("{request_id}, {}: {response:.300?}", planned.kind));
        if let Some(expected) = &planned.stdout {
            self.check_output(&request_id, &response, expected).await;
        }

        self.acknowledged.push_back((request_id, planned.request, response));
        if self.acknowledged.len() > MAX_ACKNOWLEDGED {
            self.acknowledged.pop_front();
        }
    }

    fn plan_run(&mut self, id: &str) -> PlannedRun {
        let time = self.random.command_time(self.plan.time_scale);
        let seconds = time.as_secs_f64();
        let code = i32::try_from(self.random.below(4)).unwrap_or_default();
        let lines = 1 + self.random.below(200);
        let directory = &self.directory;
        let count = format!("mkdir -p {directory}/runs; echo ran >> {directory}/runs/{id}; ");
        let kind;
        let mut request = RunRequest { timeout_sec: Some(600), ..RunRequest::default() };
        let (mut outcome, mut exit_code) = (Outcome::Exited, Some(code));
        let mut stdout = Some(numbers(lines));
        let command = match self.random.below(100) {
            0..55 => {
                kind = "run, sleeps";
                format!("sleep {seconds:.3}; seq 1 {lines}; exit {code}")
            }
            55..80 => {
                kind = "run, computes";
                let milliseconds = time.as_millis();
                // Clock of the sandbox in nanoseconds; the loop uses the CPU until then.
                format!(
                    "end=$(( $(date +%s%N) + {milliseconds}000000 )); \
                     while [ $(date +%s%N) -lt $end ]; do i=0; \
                     while [ $i -lt 2000 ]; do i=$((i+1)); done; done; seq 1 {lines}; exit {code}"
                )
            }
            80..86 => {
                kind = "run, much output";
                let lines = 1000 + self.random.below(MAX_LINES);
                stdout = Some(numbers(lines));
                format!("seq 1 {lines}; exit {code}")
            }
            86..93 => {
                kind = "run, leaves children";
                format!(
                    "sleep 1000 & (setsid sleep 1000 > /dev/null 2>&1 &); seq 1 {lines}; exit {code}"
                )
            }
            93..95 => {
                kind = "run, exceeds its time";
                request.timeout_sec = Some(3);
                (outcome, exit_code, stdout) = (Outcome::TimedOut, None, None);
                "sleep 1000".to_owned()
            }
            95..97 => {
                kind = "run, exceeds its memory";
                let memory_bytes = Some(LOW_MEMORY_BYTES);
                request.limits = Some(LowerLimits { memory_bytes, ..LowerLimits::default() });
                (outcome, exit_code, stdout) = (Outcome::OomKilled, None, None);
                "head -c 512M /dev/zero | tail; sleep 10".to_owned()
            }
            _ => {
                kind = "run, exceeds its output";
                let output_bytes = Some(100_000);
                request.limits = Some(LowerLimits { output_bytes, ..LowerLimits::default() });
                (outcome, exit_code, stdout) = (Outcome::OutputLimit, None, None);
                "yes".to_owned()
            }
        };

        request.command = Some(count + &command);
        PlannedRun { kind, request, outcome, exit_code, stdout }
    }

    /// Returns how often the command of a call ran.
    pub(super) async fn count_effects(&self, id: &str) -> usize {
        let path = format!("{}/runs/{id}", self.directory);
        let answer = read(&self.plan.caller, &path).await;
        match answer {
            Ok(content) => content.lines().count(),
            Err(failure) if failure.reason() == "FILE_NOT_FOUND" => 0,
            Err(failure) => {
                let tally = &self.plan.caller.tally;
                tally.check(false, || format!("{path} cannot be read: {}", failure.reason()));
                0
            }
        }
    }

    /// Compares standard output with the expected text, in its artifact if it was truncated.
    async fn check_output(&self, id: &str, response: &RunResponse, expected: &str) {
        let caller = &self.plan.caller;
        if !response.stdout_truncated {
            caller.tally.check(response.stdout == expected, || format!("{id}: wrong output"));
            return;
        }
        caller.tally.check(response.stdout_bytes == expected.len() as u64, || {
            format!("{id}: {} of {} bytes", response.stdout_bytes, expected.len())
        });
        // A full disk prevents an artifact or its end, and the answer says so.
        let is_complete = response.artifact_error.is_empty();
        if !is_complete {
            caller.tally.interrupted("artifact", "INCOMPLETE");
        }
        if response.stdout_path.is_empty() {
            caller.tally.check(!is_complete, || format!("{id}: no artifact"));
            return;
        }

        let stored = caller
            .call("read_artifact", None, |client| async move {
                let request = jig::api::v1::ReadArtifactRequest {
                    path: response.stdout_path.clone(),
                    ..jig::api::v1::ReadArtifactRequest::default()
                };
                let (mut parts, mut bytes) = (client.read_artifact(request).await?, Vec::new());
                while let Some(part) = parts.next().await? {
                    bytes.extend_from_slice(&part.data);
                }
                Ok::<_, CallError>(bytes)
            })
            .await;
        match stored {
            Ok(bytes) => {
                let is_right = expected.as_bytes().starts_with(&bytes)
                    && (!is_complete || bytes.len() == expected.len());
                caller.tally.check(is_right, || {
                    let (stored, expected) = (bytes.len(), expected.len());
                    format!("{id}: wrong artifact, {stored} bytes of {expected}")
                });
            }
            Err(failure) => {
                caller.tally.check_stored(false, || format!("{id}: artifact: {}", failure.reason()))
            }
        }
    }

    /// Repeats an acknowledged call, which must have the same answer and no further effect.
    pub(super) async fn repeat(&mut self) {
        if self.acknowledged.is_empty() {
            return self.run().await;
        }
        let chosen = self.random.below(self.acknowledged.len() as u64);
        let chosen = usize::try_from(chosen).unwrap_or_default();
        if let Some((id, request, response)) = self.acknowledged.get(chosen).cloned() {
            self.repeat_run(&id, request, &response).await;
        }
    }

    pub(super) async fn repeat_run(&self, id: &str, request: RunRequest, first: &RunResponse) {
        let caller = &self.plan.caller;
        let answer = caller
            .call("run, repeated", Some(id), |client| {
                let request = request.clone();
                async move { client.run(request).await }
            })
            .await;
        match answer {
            Ok(again) => {
                caller.tally.check_stored(again == *first, || {
                    format!("{id}: {first:.200?} became {again:.200?}")
                });
                let name = id.rsplit('/').next().unwrap_or_default();
                let effects = self.count_effects(name).await;
                caller.tally.check(effects == 1, || format!("{id} ran {effects} times"));
            }
            Err(failure) => {
                caller.tally.check_stored(false, || format!("{id}, repeated: {}", failure.reason()))
            }
        }
    }
}
