//! Load of virtual agents whose every answer is checked, with faults if asked for.
//!
//! An agent makes a random mix of calls: commands, changes of files, streams, jobs and calls that
//! need an approval. It knows what each answer must be:
//!
//! * A command appends a line to a file of its call, prints numbers and exits with a chosen code.
//!   Output is compared byte for byte, from the artifact if it was truncated. The file must then
//!   have exactly one line, however often the call was repeated with its request id.
//! * An acknowledged result is asked for again later, and must be the same.
//! * A file has the content of the last acknowledged change. After a change without an answer it
//!   may have the old or the new one.
//! * A stream has no gap, also after its reader attached again. A job ends once, with its output.
//! * A directory that the administrator denied must not exist.
//!
//! A call is *wrong* if its answer contradicts this, *lost* if an acknowledged result or change has
//! gone, and *interrupted* if the daemon reports that it has no result.

mod agent;
mod approvals;
mod caller;
mod faults;
mod files;
mod jobs;
mod leftovers;
mod observed;
mod random;
mod report;
mod streams;
mod tally;
mod watch;
mod work;

use std::{
    net::{SocketAddr, TcpListener},
    num::NonZeroUsize,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use clap::Args;
use jig::client::Client;
use tokio::{sync::oneshot, task::JoinSet};

use self::{
    agent::{Agent, LoadPlan},
    caller::Caller,
    faults::FaultInjector,
    observed::Observed,
    random::SeededRandom,
    report::LoadReport,
    tally::Tally,
    watch::{MAX_REQUEST_BYTES, MAX_SESSION_BYTES, is_alive},
};
use super::{
    daemon::{Daemon, DaemonSettings},
    machine::Machine,
};
use crate::{cli_error::CliError, connection, global::GlobalArgs, output};

/// Interval of samples of memory, descriptors and processes.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(2);
/// Part of the load during which the daemon may be ended. Afterwards one daemon serves to the end,
/// so that its memory can be compared over time.
const RESTARTS_UNTIL: f64 = 0.3;
/// Time in which an idle daemon ends the last processes of its commands.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Make a random mix of calls and check every answer.
///
/// Starts a daemon. With --address, loads that daemon, in a new directory `load-SEED-TIME` of its
/// workspace. Fails if an answer is wrong or an acknowledged result is lost.
#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    /// Duration of the load in seconds.
    #[arg(long, default_value = "60", value_name = "SEC", value_parser = seconds())]
    duration: u64,
    /// Number of agents that call at the same time.
    #[arg(long, default_value = "16", value_name = "N")]
    agents: NonZeroUsize,
    /// Factor of the durations of commands. With 1 they have p50 0.08 s, p90 5.9 s and p99 230 s.
    #[arg(long, default_value = "0.02", value_name = "FACTOR", value_parser = parse_time_scale)]
    time_scale: f64,
    /// Number that determines the calls.
    #[arg(long, default_value = "1", value_name = "N")]
    seed: u64,
    /// Cause faults: kill and restart the daemon, kill its helpers, exhaust its descriptors, and
    /// more.
    #[arg(long)]
    faults: bool,
    /// Seconds between two faults.
    #[arg(long, default_value = "10", value_name = "SEC", value_parser = seconds(), requires = "faults")]
    fault_interval: u64,
    /// Directory on a disk of its own, of at least 512 MiB, for the daemon's state. The fault "full
    /// disk" fills that disk.
    #[arg(long, value_name = "DIR", requires = "faults")]
    fill_disk: Option<PathBuf>,
    /// Set the clock of this machine back by an hour, and forward again, as one of the faults. For
    /// virtual machines.
    #[arg(long, requires = "faults")]
    set_clock: bool,
    /// Program to start as the daemon. Default: this one.
    #[arg(long, value_name = "PROGRAM")]
    daemon: Option<PathBuf>,
}

/// Seconds from 1 to a year.
fn seconds() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..=365 * 24 * 3600)
}

fn parse_time_scale(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| (0.0..=100.0).contains(factor));
    factor.ok_or_else(|| "give a number from 0 to 100".to_owned())
}

/// Runs the load and prints the report.
pub(super) fn bench_load(global: &GlobalArgs, args: &LoadArgs) -> Result<(), CliError> {
    if global.address().is_some() && (args.faults || args.daemon.is_some()) {
        let problem = "faults need a daemon that this command starts: leave --address out";
        return Err(CliError::Usage(problem.to_owned()));
    }

    let report = make_load(global, args)?;
    if global.json {
        output::write_json(&report.to_json())?;
    } else {
        output::write_stdout(report.to_text().as_bytes())?;
    }
    let problems = report.problems();
    if problems.is_empty() { Ok(()) } else { Err(CliError::System(problems.join("; "))) }
}

/// Runs the load, on a daemon of its own unless an address is given.
fn make_load(global: &GlobalArgs, args: &LoadArgs) -> Result<LoadReport, CliError> {
    let collector = free_address()?;
    let own = match global.address() {
        Some(_) => None,
        None => Some(Daemon::start_with_settings(&settings(args, collector))?),
    };
    let address = match (&own, global.address()) {
        (Some(daemon), _) => daemon.address(),
        (None, address) => address.unwrap_or_default(),
    };

    let start = Instant::now();
    let time = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
    let plan = LoadPlan {
        caller: Caller {
            address: address.into(),
            options: global.client_options(),
            tally: Arc::new(Tally::default()),
        },
        // A daemon answers the request ids of an earlier load with its answers.
        directory: format!("load-{}-{time}", args.seed),
        time_scale: args.time_scale,
        end: start + Duration::from_secs(args.duration),
        has_approvals: false,
    };

    let has_ended = Arc::new(AtomicBool::new(false));
    let (failed, observer_failed) = oneshot::channel();
    let observer = own.map(|daemon| {
        let has_ended = Arc::clone(&has_ended);
        let injector = args.faults.then(|| fault_injector(args, collector));
        let (length, interval) = (args.duration, Duration::from_secs(args.fault_interval));
        thread::spawn(move || {
            let observed = observe(daemon, start, length, interval, injector, &has_ended);
            if observed.is_err() {
                let _ended = failed.send(());
            }
            observed
        })
    });

    let loaded = run_agents(&plan, args, observer_failed);
    has_ended.store(true, Ordering::Relaxed);
    let observed = match observer.map(thread::JoinHandle::join) {
        None => Observed::default(),
        Some(Ok(observed)) => observed?,
        Some(Err(_)) => return Err(CliError::system("the observer of the daemon panicked")),
    };

    Ok(LoadReport {
        machine: Machine::detect(),
        agents: args.agents.get(),
        seed: args.seed,
        time_scale: args.time_scale,
        elapsed: start.elapsed(),
        has_approvals: loaded?,
        counts: plan.caller.tally.snapshot(),
        observed,
    })
}

fn fault_injector(args: &LoadArgs, collector: SocketAddr) -> FaultInjector {
    FaultInjector {
        disk: args.fill_disk.clone(),
        can_set_clock: args.set_clock,
        collector,
        random: SeededRandom::new(!args.seed),
        next: 0,
    }
}

fn settings(args: &LoadArgs, collector: SocketAddr) -> DaemonSettings {
    let mut environment = Vec::new();
    if args.faults {
        environment.push(("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{collector}")));
    }
    DaemonSettings {
        program: args.daemon.clone(),
        state_dir: args.fill_disk.as_ref().map(|disk| disk.join("state")),
        config: format!(
            "[sessions]\nmax_bytes = {MAX_SESSION_BYTES}\n\
             [requests]\nmax_bytes = {MAX_REQUEST_BYTES}\n"
        ),
        environment,
        creates_workspaces: false,
    }
}

/// Returns an address at which nothing listens.
fn free_address() -> Result<SocketAddr, CliError> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(CliError::system)?;
    listener.local_addr().map_err(CliError::system)
}

/// Lets the agents call until the end, or until the observer has failed: then there is no daemon.
/// Returns whether calls were subject to approvals.
fn run_agents(
    plan: &LoadPlan,
    args: &LoadArgs,
    observer_failed: oneshot::Receiver<()>,
) -> Result<bool, CliError> {
    connection::runtime()?.block_on(async {
        let client = Client::connect(&plan.caller.address, plan.caller.options.clone()).await?;
        // Without the right to create rules, the load has no approvals.
        let has_approvals = approvals::create_rule(&client, &plan.directory).await.is_ok();
        let plan = LoadPlan { has_approvals, ..plan.clone() };

        let mut administrator = JoinSet::new();
        if has_approvals {
            administrator.spawn(approvals::decide_all(plan.clone()));
        }
        let mut agents = JoinSet::new();
        for number in 0..args.agents.get() as u64 {
            agents.spawn(work::work(Agent::new(plan.clone(), number, args.seed)));
        }
        let all_ended = async {
            while let Some(ended) = agents.join_next().await {
                ended.map_err(CliError::system)?;
            }
            Ok(has_approvals)
        };
        tokio::select! {
            ended = all_ended => ended,
            Ok(()) = observer_failed => Ok(has_approvals),
        }
    })
}

/// Samples the daemon and causes faults until the load ends. Then stops the daemon and looks for
/// processes that remain.
fn observe(
    mut daemon: Daemon,
    start: Instant,
    seconds: u64,
    fault_interval: Duration,
    mut injector: Option<FaultInjector>,
    has_ended: &AtomicBool,
) -> Result<Observed, CliError> {
    let length = Duration::from_secs(seconds);
    let state_dir = daemon.state_dir();
    let mut observed = Observed::default();
    let mut next_fault = start + fault_interval;
    while !has_ended.load(Ordering::Relaxed) {
        observed.sample(daemon.process(), &state_dir, start);
        if let Some(injector) = &mut injector
            && Instant::now() >= next_fault
            && start.elapsed() < length
        {
            let spare_daemon = start.elapsed() > length.mul_f64(RESTARTS_UNTIL);
            let past = injector.inject(&mut daemon, start, spare_daemon)?;
            observed.faults.push(past);
            next_fault = Instant::now() + fault_interval;
        }
        thread::sleep(SAMPLE_INTERVAL.min(fault_interval));
    }

    let idle_deadline = Instant::now() + IDLE_TIMEOUT;
    let mut commands = observed.sample(daemon.process(), &state_dir, start);
    while commands > 0 && Instant::now() < idle_deadline {
        thread::sleep(SAMPLE_INTERVAL);
        commands = observed.sample(daemon.process(), &state_dir, start);
    }
    if commands > 0 {
        let below = watch::descendants(daemon.process());
        observed.busy = below.into_iter().map(|process| process.name).collect();
    }

    observed.log = daemon.log();
    let directories = [state_dir, daemon.workspace()];
    let last = daemon.process();
    drop(daemon);
    let mut earlier = observed.daemons();
    earlier.remove(&last);
    observed.leftovers = leftovers::find(&earlier, last, &directories);
    // Those of the daemon end after it.
    let end_deadline = Instant::now() + IDLE_TIMEOUT;
    loop {
        let alive = observed.processes.iter().filter(|(id, _)| is_alive(id));
        observed.leaked = alive.map(|(id, name)| format!("{} {name}", id.pid)).collect();
        if observed.leaked.is_empty() || Instant::now() >= end_deadline {
            return Ok(observed);
        }
        thread::sleep(SAMPLE_INTERVAL);
    }
}
