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
use crate::cli_error::CliError;

/// What a run may need before it is not tried on this machine, in bytes: four times what is promised.
const MAX_BYTES_PER_RUN: u64 = 4 << 20;
/// How long it may take until all sleep, or none.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);
/// How often is looked whether they do.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The machine's memory is taken for settled when it has changed by less than this in an interval, in
/// bytes.
const MAX_SETTLED_CHANGE_BYTES: u64 = 1 << 20;

/// What was measured.
#[derive(Debug)]
pub(super) struct SleepingMemory {
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
) -> Result<SleepingMemory, CliError> {
    let count = u64::try_from(runs).map_err(CliError::system)?;
    let room = available_memory()?;
    if room < count * MAX_BYTES_PER_RUN {
        return Err(CliError::system(format_args!(
            "{runs} runs that sleep are not tried with {} MiB of free memory: give fewer with --sleeping, or 0",
            room >> 20
        )));
    }
    let before = settled_available_memory()?;
    let children = SleepingProcesses::start(runs).map_err(CliError::system)?;
    let bare_bytes = before.saturating_sub(settled_available_memory()?) / count;
    drop(children);

    let before = settled_available_memory()?;
    let mut tasks = JoinSet::new();
    for index in 0..runs {
        let client = clients.get(index % clients.len()).cloned();
        let client = client.ok_or_else(|| CliError::system("there is no client"))?;
        tasks.spawn_on(async move { client.run(request()).await }, runtime.handle());
    }
    let first = clients.first().ok_or_else(|| CliError::system("there is no client"))?;
    wait_until_active(runtime, first, &mut tasks, runs)?;
    let run_bytes = before.saturating_sub(settled_available_memory()?) / count;
    tasks.abort_all();
    wait_until_active(runtime, first, &mut tasks, 0)?;
    Ok(SleepingMemory { runs, bare_bytes, run_bytes })
}

fn request() -> RunRequest {
    RunRequest { argv: bare::SLEEP_COMMAND.map(str::to_owned).to_vec(), ..RunRequest::default() }
}

/// Waits until so many runs go on.
fn wait_until_active(
    runtime: &Runtime,
    client: &Client,
    tasks: &mut JoinSet<Result<jig::api::v1::RunResponse, jig::client::CallError>>,
    runs: usize,
) -> Result<(), CliError> {
    let until = Instant::now() + SETTLE_TIMEOUT;
    loop {
        // Those that were told to end answer nothing.
        if let Some(Ok(ended)) = tasks.try_join_next() {
            let response = ended?;
            return Err(CliError::system(format_args!(
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
            return Err(CliError::system(format_args!("{active} runs go on instead of {runs}")));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Processes that sleep until this is dropped.
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
            // One that has ended by itself is to be waited for all the same.
            let _ended = child.kill();
        }
        for child in &mut self.0 {
            let _reaped = child.wait();
        }
    }
}

/// The machine's free memory, once it does not change any more, in bytes.
fn settled_available_memory() -> Result<u64, CliError> {
    let until = Instant::now() + SETTLE_TIMEOUT;
    let mut last = available_memory()?;
    loop {
        thread::sleep(POLL_INTERVAL * 4);
        let now = available_memory()?;
        if now.abs_diff(last) < MAX_SETTLED_CHANGE_BYTES || Instant::now() > until {
            return Ok(now);
        }
        last = now;
    }
}

/// Memory that could be had without swapping (proc_meminfo(5)), in bytes.
fn available_memory() -> Result<u64, CliError> {
    let text = fs::read_to_string("/proc/meminfo").map_err(CliError::system)?;
    Ok(kibibytes(&text, "MemAvailable:") * 1024)
}
