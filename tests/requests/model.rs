//! Random calls, retries and crashes, compared with a model.

use std::{
    collections::{HashMap, HashSet},
    fs,
    time::Duration,
};

use jig::api::v1::{
    JobState, Outcome, RunRequest, RunResponse, job_service_client::JobServiceClient,
};
use rustix::process::Signal;
use tokio::task::JoinHandle;
use tonic::{Request, Status};

use super::with_request_id;
use crate::{
    jobs::{self, Jobs},
    support::{Daemon, eventually, full_size, shell},
};

/// Number of request ids in use: few, so that calls collide.
const ID_COUNT: u64 = 6;

type PendingCall = JoinHandle<Result<RunResponse, Status>>;

/// The expected state of each id.
#[derive(Debug, Default)]
struct Model {
    /// Ids with an answer.
    answered: HashMap<u64, RunResponse>,
    /// Ids whose work is in progress, with the calls that wait for it.
    in_flight: HashMap<u64, Vec<PendingCall>>,
    /// Ids whose work was in progress when the daemon died.
    lost: HashSet<u64>,
}

/// Pseudorandom numbers (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// The command of an id: appends a line to `runs.ID`, and runs until `go.ID` exists.
fn blocked_command(id: u64) -> Request<RunRequest> {
    let script = format!(
        "echo ran >> runs.{id}; cat /proc/sys/kernel/random/uuid; until [ -e go.{id} ]; do sleep 0.01; done"
    );
    with_request_id(&format!("id {id}"), shell(&script))
}

fn run_count(daemon: &Daemon, id: u64) -> usize {
    let runs = fs::read_to_string(daemon.file(&format!("runs.{id}")));
    runs.unwrap_or_default().lines().count()
}

impl Model {
    /// Calls with an id, for the first time or again.
    async fn call(&mut self, daemon: &Daemon, id: u64) {
        if let Some(answer) = self.answered.get(&id) {
            assert_eq!(daemon.run(blocked_command(id)).await, *answer);
        } else if self.lost.contains(&id) {
            let lost = daemon.run(blocked_command(id)).await;
            assert_eq!(lost.outcome(), Outcome::DaemonLost);
        } else {
            let call = daemon.spawn_run(blocked_command(id));
            self.in_flight.entry(id).or_default().push(call);
            eventually("the command runs", async || run_count(daemon, id) == 1).await;
        }
    }

    /// Lets the work of an id end. All waiting calls get one answer.
    async fn release(&mut self, daemon: &Daemon, id: u64) {
        let Some(calls) = self.in_flight.remove(&id) else {
            return;
        };
        fs::write(daemon.file(&format!("go.{id}")), "").unwrap();
        for call in calls {
            let answer = call.await.unwrap().unwrap();
            assert_eq!(answer.outcome(), Outcome::Exited);
            let first = self.answered.entry(id).or_insert_with(|| answer.clone());
            assert_eq!(answer, *first);
        }
    }

    /// Aborts one of the waiting calls. The last one stays: without callers the work would be
    /// cancelled after a timeout.
    fn drop_one_waiter(&mut self, id: u64) {
        if let Some(calls) = self.in_flight.get_mut(&id)
            && calls.len() > 1
            && let Some(call) = calls.pop()
        {
            call.abort();
        }
    }

    /// Kills the daemon and starts it again.
    async fn crash(&mut self, daemon: Daemon) -> Daemon {
        let daemon = daemon.restart().await;
        for (id, calls) in self.in_flight.drain() {
            for call in calls {
                assert!(call.await.unwrap().is_err());
            }
            self.lost.insert(id);
        }
        daemon
    }
}

#[tokio::test]
async fn random_calls_and_crashes_run_each_id_once() {
    for seed in 1..=full_size(100, 4) {
        let mut random = Random((seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut daemon = Daemon::start().await;
        let mut model = Model::default();
        for step in 0..30 {
            let id = random.below(ID_COUNT);
            match random.below(10) {
                0 => daemon = model.crash(daemon).await,
                1 | 2 => model.release(&daemon, id).await,
                3 => model.drop_one_waiter(id),
                _ => model.call(&daemon, id).await,
            }
            for id in 0..ID_COUNT {
                assert!(run_count(&daemon, id) <= 1, "seed {seed}, step {step}, id {id}");
            }
        }
    }
}

/// Answers to calls and submissions around the death of a daemon, by their numbers.
#[derive(Debug, Default)]
struct KnownAnswers {
    calls: HashMap<u64, RunResponse>,
    /// The job id of each submission.
    jobs: HashMap<u64, String>,
}

/// A pending call and a pending submission.
type CallAndSubmission = (PendingCall, JoinHandle<Result<String, Status>>);

/// Starts a call and a job submission with request ids of this number.
fn begin_both(daemon: &Daemon, number: u64) -> CallAndSubmission {
    let script = |what: &str| format!("echo ran >> runs.{what}.{number}");
    let call = daemon.spawn_run(with_request_id(&format!("call {number}"), shell(&script("call"))));
    let submission = with_request_id(&format!("job {number}"), jobs::command_job(&script("job")));
    let mut jobs = JobServiceClient::new(daemon.channel());

    let submitted = tokio::spawn(async move {
        let submitted = jobs.submit_job(submission).await?;
        Ok(submitted.into_inner().job.unwrap().job_id)
    });
    (call, submitted)
}

impl KnownAnswers {
    /// Records the answers that arrived. Each must equal an earlier answer to the same id. Returns
    /// whether both arrived.
    async fn record(&mut self, number: u64, (call, submission): CallAndSubmission) -> bool {
        let (call, submission) = (call.await.unwrap(), submission.await.unwrap());
        let both_answered = call.is_ok() && submission.is_ok();
        if let Ok(answer) = call {
            let first = self.calls.entry(number).or_insert_with(|| answer.clone());
            assert_eq!(answer, *first, "call {number}");
        }

        if let Ok(job) = submission {
            let first = self.jobs.entry(number).or_insert_with(|| job.clone());
            assert_eq!(job, *first, "job {number}");
        }

        both_answered
    }

    /// Checks that nothing ran twice, and that what was answered ran.
    fn assert_run_counts(&self, daemon: &Daemon, number: u64) {
        let runs = |what: &str| {
            let runs = fs::read_to_string(daemon.file(&format!("runs.{what}.{number}")));
            runs.unwrap_or_default().lines().count()
        };
        assert!(runs("job") <= 1, "job {number}");
        match self.calls.get(&number).map(RunResponse::outcome) {
            Some(Outcome::Exited) => assert_eq!(runs("call"), 1, "call {number}"),
            Some(Outcome::DaemonLost) | None => assert!(runs("call") <= 1, "call {number}"),
            other => panic!("call {number}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn killed_daemon_repeats_no_request() {
    for seed in 1..=full_size(40, 2) {
        let mut random = Random((seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut daemon = Daemon::start().await;
        let mut answers = KnownAnswers::default();
        let mut newest = 0;
        for _ in 0..full_size(25, 6) {
            // Connect first, so that connecting does not use up the time before the kill.
            daemon.info().await;
            newest += 4;
            let repeated = random.below(newest);
            let numbers = (newest - 4..newest).chain([repeated]);
            let begun: Vec<_> =
                numbers.map(|number| (number, begin_both(&daemon, number))).collect();

            // The kill hits ids being claimed, work starting and ending, and answers being stored.
            tokio::time::sleep(Duration::from_micros(random.below(60_000))).await;
            daemon.signal(Signal::KILL);
            for (number, both) in begun {
                answers.record(number, both).await;
            }

            daemon = daemon.restart().await;
        }

        for number in 0..newest {
            let both = begin_both(&daemon, number);
            assert!(answers.record(number, both).await, "both calls are answered");
        }

        let mut jobs = Jobs::of(&daemon);
        for number in 0..newest {
            let job = jobs.wait(&answers.jobs[&number]).await;
            let is_final = matches!(job.state(), JobState::Succeeded | JobState::Lost);
            assert!(is_final, "seed {seed}: {job:?}");
            answers.assert_run_counts(&daemon, number);
        }
    }
}
