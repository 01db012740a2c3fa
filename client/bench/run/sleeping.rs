//! Many commands that sleep at one time: the memory of each, in the kernel too, beyond that of a bare
//! process that does the same.

use std::{
    fs, io,
    process::Child,
    thread,
    time::{Duration, Instant},
};

use jig::{api::v1::RunRequest, client::Client};
use tokio::{runtime::Runtime, task::JoinSet};

use super::{bare, tree::kibibytes};
use crate::failure::Failure;

/// What a run may need before it is not tried on this machine, in bytes: four times what is promised.
const ROOM: u64 = 4 << 20;
/// How long it may take until all sleep, or none.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often is looked whether they do.
const INTERVAL: Duration = Duration::from_millis(50);
/// The machine's memory is taken for settled when it has changed by less than this in an interval, in
/// bytes.
const CALM: u64 = 1 << 20;

/// What was measured.
#[derive(Debug)]
pub(super) struct Sleeping {
    pub(super) runs: usize,
    /// Memory of a bare process that sleeps, in bytes.
    pub(super) bare_bytes: u64,
    /// Memory of a run that sleeps, in bytes.
    pub(super) run_bytes: u64,
}

pub(super) fn measure(
    runtime: &Runtime,
    clients: &[Client],
    runs: usize,
) -> Result<Sleeping, Failure> {
    let count = u64::try_from(runs).map_err(Failure::system)?;
    let room = available()?;
    if room < count * ROOM {
        return Err(Failure::system(format_args!(
            "{runs} runs that sleep are not tried with {} MiB of free memory: give fewer with --sleeping, or 0",
            room >> 20
        )));
    }
    let before = settled()?;
    let children = Children::start(runs).map_err(Failure::system)?;
    let bare_bytes = before.saturating_sub(settled()?) / count;
    drop(children);

    let before = settled()?;
    let mut tasks = JoinSet::new();
    for index in 0..runs {
        let client = clients.get(index % clients.len()).cloned();
        let client = client.ok_or_else(|| Failure::system("there is no client"))?;
        tasks.spawn_on(async move { client.run(request()).await }, runtime.handle());
    }
    let first = clients.first().ok_or_else(|| Failure::system("there is no client"))?;
    until_active(runtime, first, &mut tasks, runs)?;
    let run_bytes = before.saturating_sub(settled()?) / count;
    tasks.abort_all();
    until_active(runtime, first, &mut tasks, 0)?;
    Ok(Sleeping { runs, bare_bytes, run_bytes })
}

fn request() -> RunRequest {
    RunRequest { argv: bare::SLEEP.map(str::to_owned).to_vec(), ..RunRequest::default() }
}

/// Waits until so many runs go on.
fn until_active(
    runtime: &Runtime,
    client: &Client,
    tasks: &mut JoinSet<Result<jig::api::v1::RunResponse, jig::client::CallError>>,
    runs: usize,
) -> Result<(), Failure> {
    let until = Instant::now() + PATIENCE;
    loop {
        // Those that were told to end answer nothing.
        if let Some(Ok(ended)) = tasks.try_join_next() {
            let response = ended?;
            return Err(Failure::system(format_args!(
                "a run that was to sleep has ended with {}: {}",
                response.outcome().as_str_name(),
                response.stderr
            )));
        }
        let counts = runtime.block_on(client.get_info())?.counts;
        let active = counts.unwrap_or_default().runs_active as usize;
        if active == runs {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(Failure::system(format_args!("{active} runs go on instead of {runs}")));
        }
        thread::sleep(INTERVAL);
    }
}

/// Processes that sleep until this is dropped.
struct Children(Vec<Child>);

impl Children {
    fn start(count: usize) -> io::Result<Self> {
        let mut children = Self(Vec::new());
        for _ in 0..count {
            children.0.push(bare::sleep()?);
        }
        Ok(children)
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended by itself is to be waited for all the same.
            let _ended = child.kill();
        }
        for child in &mut self.0 {
            let _reaped = child.wait();
        }
    }
}

/// The machine's free memory, once it does not change any more, in bytes.
fn settled() -> Result<u64, Failure> {
    let until = Instant::now() + PATIENCE;
    let mut last = available()?;
    loop {
        thread::sleep(INTERVAL * 4);
        let now = available()?;
        if now.abs_diff(last) < CALM || Instant::now() > until {
            return Ok(now);
        }
        last = now;
    }
}

/// Memory that could be had without swapping (proc_meminfo(5)), in bytes.
fn available() -> Result<u64, Failure> {
    let text = fs::read_to_string("/proc/meminfo").map_err(Failure::system)?;
    Ok(kibibytes(&text, "MemAvailable:") * 1024)
}
