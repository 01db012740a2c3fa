//! Memory of concurrent runs that sleep, compared with bare processes that sleep.
//!
//! Includes kernel memory.

use std::{
    fs, io,
    process::Child,
    thread,
    time::{Duration, Instant},
};

use jig::{api::v1::RunRequest, client::Client};
use tokio::{runtime::Runtime, task::JoinSet};

use super::{bare, tree::kibibytes};
use crate::cli_error::CliError;

/// Free memory that is required per run: four times the target.
const MAX_BYTES_PER_RUN: u64 = 4 << 20;
/// Maximum time until all runs sleep, or have ended.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);
/// Interval at which that is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Change per interval below which the machine's free memory counts as settled.
const MAX_SETTLED_CHANGE_BYTES: u64 = 1 << 20;

/// Results of the measurement.
#[derive(Debug)]
pub(super) struct SleepingMemory {
    pub(super) runs: usize,
    /// Memory of a sleeping bare process, in bytes.
    pub(super) bare_bytes: u64,
    /// Memory of a sleeping run, in bytes.
    pub(super) run_bytes: u64,
}

pub(super) fn measure(
    runtime: &Runtime,
    clients: &[Client],
    runs: usize,
) -> Result<SleepingMemory, CliError> {
    let count = u64::try_from(runs).map_err(CliError::system)?;
    let available = available_memory()?;
    if available < count * MAX_BYTES_PER_RUN {
        return Err(CliError::system(format_args!(
            "{runs} sleeping runs need {} MiB of memory, but only {} MiB are free: use a smaller --sleeping, or 0",
            (count * MAX_BYTES_PER_RUN) >> 20,
            available >> 20
        )));
    }

    let before = settled_available_memory()?;
    let children = SleepingProcesses::start(runs).map_err(CliError::system)?;
    let bare_bytes = before.saturating_sub(settled_available_memory()?) / count;
    drop(children);

    let before = settled_available_memory()?;
    let mut tasks = JoinSet::new();
    for index in 0..runs {
        let client = clients
            .get(index % clients.len())
            .cloned()
            .ok_or_else(|| CliError::system("no clients"))?;
        tasks.spawn_on(async move { client.run(request()).await }, runtime.handle());
    }
    let first = clients.first().ok_or_else(|| CliError::system("no clients"))?;

    wait_until_active(runtime, first, &mut tasks, runs)?;
    let run_bytes = before.saturating_sub(settled_available_memory()?) / count;
    tasks.abort_all();
    wait_until_active(runtime, first, &mut tasks, 0)?;
    Ok(SleepingMemory { runs, bare_bytes, run_bytes })
}

fn request() -> RunRequest {
    RunRequest { argv: bare::SLEEP_COMMAND.map(str::to_owned).to_vec(), ..RunRequest::default() }
}

/// Waits until exactly `runs` runs are active.
fn wait_until_active(
    runtime: &Runtime,
    client: &Client,
    tasks: &mut JoinSet<Result<jig::api::v1::RunResponse, jig::client::CallError>>,
    runs: usize,
) -> Result<(), CliError> {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    loop {
        // Cancelled runs return no response.
        if let Some(Ok(ended)) = tasks.try_join_next() {
            let response = ended?;
            return Err(CliError::system(format_args!(
                "a sleeping run ended early with {}: {}",
                response.outcome().as_str_name(),
                response.stderr
            )));
        }

        let counts = runtime.block_on(client.get_info())?.counts;
        let active = counts.unwrap_or_default().runs_active as usize;
        if active == runs {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(CliError::system(format_args!(
                "{active} runs are active instead of {runs}"
            )));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Sleeping processes. Dropping this ends them.
struct SleepingProcesses(Vec<Child>);

impl SleepingProcesses {
    fn start(count: usize) -> io::Result<Self> {
        let mut children = Self(Vec::new());
        for _ in 0..count {
            children.0.push(bare::spawn_sleep()?);
        }
        Ok(children)
    }
}

impl Drop for SleepingProcesses {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // `wait` is needed even if the process has already ended.
            let _ended = child.kill();
        }
        for child in &mut self.0 {
            let _reaped = child.wait();
        }
    }
}

/// Returns the machine's free memory in bytes, once it no longer changes.
fn settled_available_memory() -> Result<u64, CliError> {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    let mut last = available_memory()?;
    loop {
        thread::sleep(POLL_INTERVAL * 4);
        let now = available_memory()?;
        if now.abs_diff(last) < MAX_SETTLED_CHANGE_BYTES || Instant::now() > deadline {
            return Ok(now);
        }
        last = now;
    }
}

/// Returns the memory that is available without swapping, in bytes (proc_meminfo(5)).
fn available_memory() -> Result<u64, CliError> {
    let text = fs::read_to_string("/proc/meminfo").map_err(CliError::system)?;
    Ok(kibibytes(&text, "MemAvailable:") * 1024)
}
