//! Random calls, retries and crashes, compared with a model of what must come of them.

use std::{
    collections::{HashMap, HashSet},
    fs,
};

use jig::api::v1::{Outcome, RunRequest, RunResponse};
use tokio::task::JoinHandle;
use tonic::{Request, Status};

use super::under;
use crate::support::{Daemon, eventually, full_size, shell};

/// Ids that are used: few, so that they meet.
const IDS: u64 = 6;

type Call = JoinHandle<Result<RunResponse, Status>>;

/// What must be true of each id.
#[derive(Debug, Default)]
struct Model {
    /// Those that were answered.
    answered: HashMap<u64, RunResponse>,
    /// Those whose work goes on, and the calls that wait for it.
    going: HashMap<u64, Vec<Call>>,
    /// Those whose work went on when the daemon died.
    lost: HashSet<u64>,
}

/// Numbers that only look random (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// The command of an id: leaves a line when it runs, and goes on until it is let go.
fn command(id: u64) -> Request<RunRequest> {
    let script = format!(
        "echo ran >> runs.{id}; cat /proc/sys/kernel/random/uuid; until [ -e go.{id} ]; do sleep 0.01; done"
    );
    under(&format!("id {id}"), shell(&script))
}

fn runs(daemon: &Daemon, id: u64) -> usize {
    let runs = fs::read_to_string(daemon.file(&format!("runs.{id}")));
    runs.unwrap_or_default().lines().count()
}

impl Model {
    /// Calls with an id, for the first time or again.
    async fn call(&mut self, daemon: &Daemon, id: u64) {
        if let Some(answer) = self.answered.get(&id) {
            assert_eq!(daemon.run(command(id)).await, *answer);
        } else if self.lost.contains(&id) {
            let lost = daemon.run(command(id)).await;
            assert_eq!(lost.outcome(), Outcome::DaemonLost);
        } else {
            let call = daemon.begin(command(id));
            self.going.entry(id).or_default().push(call);
            eventually("it runs", async || runs(daemon, id) == 1).await;
        }
    }

    /// Lets the work of an id end; all who wait get one answer.
    async fn let_go(&mut self, daemon: &Daemon, id: u64) {
        let Some(calls) = self.going.remove(&id) else {
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

    /// One of those who wait leaves.
    fn leave(&mut self, id: u64) {
        // The last one stays, as the work would end some time after him.
        if let Some(calls) = self.going.get_mut(&id)
            && calls.len() > 1
            && let Some(call) = calls.pop()
        {
            call.abort();
        }
    }

    /// The daemon dies, and is started again.
    async fn crash(&mut self, daemon: Daemon) -> Daemon {
        let daemon = daemon.restart().await;
        for (id, calls) in self.going.drain() {
            for call in calls {
                assert!(call.await.unwrap().is_err());
            }
            self.lost.insert(id);
        }
        daemon
    }
}

#[tokio::test]
async fn whatever_happens_each_id_is_done_once() {
    for seed in 1..=full_size(100, 4) {
        let mut random = Random((seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut daemon = Daemon::start().await;
        let mut model = Model::default();
        for step in 0..30 {
            let id = random.below(IDS);
            match random.below(10) {
                0 => daemon = model.crash(daemon).await,
                1 | 2 => model.let_go(&daemon, id).await,
                3 => model.leave(id),
                _ => model.call(&daemon, id).await,
            }
            for id in 0..IDS {
                assert!(runs(&daemon, id) <= 1, "seed {seed}, step {step}, id {id}");
            }
        }
    }
}
