//! Faults that a load suffers: deaths, signals, shortages and slow or silent peers.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    net::TcpListener,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit},
    time::{ClockId, clock_gettime, clock_settime},
};

use super::{super::daemon::Daemon, random::SeededRandom, watch::descendants};
use crate::cli_error::CliError;

/// Helpers that are killed at random. The daemon replaces the first four.
const HELPERS: [&str; 5] = ["jig-slot", "jig-template", "jig-init", "jig-launcher", KEEPER];
/// Helper without which the daemon runs no command until it is restarted.
const KEEPER: &str = "jig-keeper";
/// Time for which the daemon serves without its keeper.
const TIME_WITHOUT_KEEPER: Duration = Duration::from_secs(1);
/// Duration of a shortage, of a silent peer and of a silent collector.
const SHORTAGE: Duration = Duration::from_secs(3);
/// Descriptors that the daemon can open during a shortage of them.
const SPARE_DESCRIPTORS: u64 = 4;
/// Connections of peers that send nothing, or half a preface.
const SILENT_PEERS: usize = 50;

/// Peers that read the output of a command slowly, and how much each reads in a second.
const SLOW_READERS: usize = 8;
const SLOW_READER_BYTES: usize = 1 << 10;
/// By how much the clock is set back.
const CLOCK_STEP: Duration = Duration::from_secs(3600);

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    KillHelper,
    Reload,
    Descriptors,
    SilentPeers,
    SlowReaders,
    SilentCollector,
    FullDisk,
    /// The clock of the machine is set back, and later forward again.
    ClockSetBack,
    /// SIGTERM and a restart.
    Drain,
    /// SIGKILL and a restart.
    Kill,
}

impl Fault {
    /// All faults, in the order in which they take turns.
    const ALL: [Self; 10] = [
        Self::ClockSetBack,
        Self::Kill,
        Self::Drain,
        Self::KillHelper,
        Self::Reload,
        Self::Descriptors,
        Self::SilentPeers,
        Self::SlowReaders,
        Self::SilentCollector,
        Self::FullDisk,
    ];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::KillHelper => "kill -9 of a helper",
            Self::Reload => "SIGHUP",
            Self::Descriptors => "no free descriptors",
            Self::SilentPeers => "silent peers",
            Self::SlowReaders => "slow readers",
            Self::SilentCollector => "silent collector",
            Self::FullDisk => "full disk",
            Self::ClockSetBack => "clock set back",
            Self::Drain => "SIGTERM",
            Self::Kill => "kill -9 of the daemon",
        }
    }

    /// Reasons of calls without a result that the fault explains. The daemon also ends at
    /// [`Fault::KillHelper`], if the helper is its keeper.
    pub(super) fn reasons(self) -> &'static [&'static str] {
        match self {
            Self::Kill | Self::Drain | Self::KillHelper => &[
                "DAEMON_LOST",
                "DRAINING",
                "JOB_STATE_LOST",
                "OUTCOME_CANCELLED",
                "OUTCOME_DAEMON_LOST",
                "PROCESS_NOT_FOUND",
                "SANDBOX_ERROR",
                "SANDBOX_UNAVAILABLE",
                "UNAVAILABLE",
            ],
            Self::Descriptors => {
                &["INCOMPLETE", "RESOURCE_EXHAUSTED", "SANDBOX_ERROR", "UNAVAILABLE"]
            }
            Self::FullDisk => &["INCOMPLETE", "NO_SPACE"],
            Self::Reload
            | Self::SilentPeers
            | Self::SlowReaders
            | Self::SilentCollector
            | Self::ClockSetBack => &[],
        }
    }

    /// Beginnings of the ERROR lines in the daemon's log that the fault explains.
    pub(super) fn error_lines(self) -> &'static [&'static str] {
        match self {
            Self::KillHelper => &["no sandbox can be built", "the keeper of sandboxes"],
            Self::Drain => &["some calls did not end"],
            Self::Descriptors => &[
                "cannot accept connections",
                "cannot read the parameters of a job yet",
                "no connection can be accepted",
            ],
            Self::FullDisk => &["cannot record", "cannot store"],
            Self::Kill
            | Self::Reload
            | Self::SilentPeers
            | Self::SlowReaders
            | Self::SilentCollector
            | Self::ClockSetBack => &[],
        }
    }

    fn ends_daemon(self) -> bool {
        matches!(self, Self::Drain | Self::Kill)
    }
}

/// A fault that happened.
#[derive(Debug, Clone)]
pub(super) struct PastFault {
    pub(super) time: Duration,
    pub(super) fault: Fault,
    pub(super) detail: String,
}

/// Causes faults, one after the other.
#[derive(Debug)]
pub(super) struct FaultInjector {
    /// Directory of a file system that may be filled.
    pub(super) disk: Option<PathBuf>,
    /// Whether the clock of this machine may be set.
    pub(super) can_set_clock: bool,
    /// Address of the collector, which listens now and then.
    pub(super) collector: std::net::SocketAddr,
    pub(super) random: SeededRandom,
    pub(super) next: usize,
}

impl FaultInjector {
    /// Causes the next fault. With `spare_daemon`, the daemon is not ended.
    pub(super) fn inject(
        &mut self,
        daemon: &mut Daemon,
        start: Instant,
        spare_daemon: bool,
    ) -> Result<PastFault, CliError> {
        let fault = loop {
            let fault = Fault::ALL[self.next % Fault::ALL.len()];
            self.next += 1;
            let is_possible = (fault != Fault::FullDisk || self.disk.is_some())
                && (fault != Fault::ClockSetBack || self.can_set_clock);
            if is_possible && !(spare_daemon && fault.ends_daemon()) {
                break fault;
            }
        };

        let time = start.elapsed();
        let detail = match fault {
            Fault::Kill => daemon.restart(Signal::KILL).map(|()| String::new())?,
            Fault::Drain => daemon.restart(Signal::TERM).map(|()| String::new())?,
            Fault::Reload => {
                signal(daemon.process(), Signal::HUP)?;
                String::new()
            }
            Fault::KillHelper => {
                let name = self.kill_helper(daemon.process(), spare_daemon)?;
                if name == KEEPER {
                    thread::sleep(TIME_WITHOUT_KEEPER);
                    daemon.restart(Signal::TERM)?;
                }
                name.to_owned()
            }
            Fault::Descriptors => limit_descriptors(daemon.process())?,
            Fault::SilentPeers => open_silent_peers(daemon.address()),
            Fault::SlowReaders => read_slowly(daemon.address()),
            Fault::ClockSetBack => set_clock_back()?,
            Fault::SilentCollector => {
                let listener = TcpListener::bind(self.collector).map_err(CliError::system)?;
                thread::sleep(SHORTAGE);
                drop(listener);
                String::new()
            }
            Fault::FullDisk => self.disk.as_deref().map_or(Ok(String::new()), fill_disk)?,
        };
        Ok(PastFault { time, fault, detail })
    }

    /// Kills a helper, and returns its name.
    fn kill_helper(&mut self, daemon: i32, spare_keeper: bool) -> Result<&'static str, CliError> {
        let count = HELPERS.len() - usize::from(spare_keeper);
        let first = usize::try_from(self.random.below(count as u64)).unwrap_or_default();
        let below = descendants(daemon);
        for offset in 0..count {
            let name = HELPERS[(first + offset) % count];
            let candidates: Vec<_> = below.iter().filter(|process| process.name == name).collect();
            let chosen = self.random.below(candidates.len() as u64);
            if let Some(process) = candidates.get(usize::try_from(chosen).unwrap_or_default()) {
                signal(process.id.pid, Signal::KILL)?;
                return Ok(name);
            }
        }
        Ok("none")
    }
}

/// Sends a signal to a process, which may have ended.
fn signal(pid: i32, signal: Signal) -> Result<(), CliError> {
    let pid = Pid::from_raw(pid).ok_or_else(|| CliError::system("no process"))?;
    match kill_process(pid, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(CliError::system(error)),
    }
}

/// Lowers the limit of open descriptors for a while.
fn limit_descriptors(daemon: i32) -> Result<String, CliError> {
    let pid = Pid::from_raw(daemon);
    let open = fs::read_dir(format!("/proc/{daemon}/fd")).map_err(CliError::system)?.count();
    let limit = open as u64 + SPARE_DESCRIPTORS;
    // The daemon inherited the maximum of this process.
    let low = Rlimit { current: Some(limit), ..getrlimit(Resource::Nofile) };
    let old = prlimit(pid, Resource::Nofile, low).map_err(CliError::system)?;
    thread::sleep(SHORTAGE);
    prlimit(pid, Resource::Nofile, old).map_err(CliError::system)?;
    Ok(format!("at most {limit}"))
}

/// Connects peers that send nothing or half of the HTTP/2 preface, and holds them for a while.
fn open_silent_peers(address: &str) -> String {
    let path = address.trim_start_matches("unix:");
    let mut peers = Vec::new();
    for number in 0..SILENT_PEERS {
        if let Ok(mut peer) = UnixStream::connect(path) {
            // The daemon may have closed the connection.
            let _sent = if number % 2 == 0 { peer.write_all(b"PRI * HTTP/2") } else { Ok(()) };
            peers.push(peer);
        }
    }
    thread::sleep(SHORTAGE);
    format!("{} connections", peers.len())
}

/// Starts commands with much output, and reads little of it before the connections break.
fn read_slowly(address: &str) -> String {
    let path = address.trim_start_matches("unix:");
    let mut readers: Vec<_> = (0..SLOW_READERS).filter_map(|_| start_stream(path).ok()).collect();
    let mut bytes = 0;
    for _ in 0..SHORTAGE.as_secs() {
        for reader in &mut readers {
            let mut part = [0; SLOW_READER_BYTES];
            bytes += reader.read(&mut part).unwrap_or_default();
        }
        thread::sleep(Duration::from_secs(1));
    }
    format!("{} readers, {} KiB", readers.len(), bytes >> 10)
}

/// Starts a command with much output by Connect, without a client.
fn start_stream(path: &str) -> io::Result<UnixStream> {
    let message = r#"{"command":"seq 1 3000000"}"#;
    // The envelope of a message: no flags, and its length.
    let length = u32::try_from(message.len()).unwrap_or_default().to_be_bytes();
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(SHORTAGE))?;
    write!(
        stream,
        "POST /jig.v1.ProcessService/Start HTTP/1.1\r\nHost: localhost\r\n\
         Content-Type: application/connect+json\r\nConnect-Protocol-Version: 1\r\n\
         Content-Length: {}\r\n\r\n\0",
        1 + length.len() + message.len(),
    )?;
    stream.write_all(&length)?;
    stream.write_all(message.as_bytes())?;
    Ok(stream)
}

/// Sets the clock of this machine back for a while.
fn set_clock_back() -> Result<String, CliError> {
    let step = i64::try_from(CLOCK_STEP.as_secs()).unwrap_or_default();
    for change in [-step, step] {
        let mut now = clock_gettime(ClockId::Realtime);
        now.tv_sec += change;
        clock_settime(ClockId::Realtime, now).map_err(CliError::system)?;
        if change < 0 {
            thread::sleep(SHORTAGE);
        }
    }
    Ok(format!("{} s", CLOCK_STEP.as_secs()))
}

/// Fills a file system for a while.
fn fill_disk(directory: &Path) -> Result<String, CliError> {
    let path = directory.join("filler");
    let mut file = File::create(&path).map_err(CliError::system)?;
    let block = vec![1; 1 << 16];
    let mut bytes = 0;
    let end = Instant::now() + SHORTAGE;
    // The daemon frees space meanwhile, so the disk is filled again and again.
    while Instant::now() < end {
        match file.write(&block) {
            Ok(count) => bytes += count,
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
    drop(file);
    fs::remove_file(&path).map_err(CliError::system)?;
    Ok(format!("{} MiB", bytes >> 20))
}
