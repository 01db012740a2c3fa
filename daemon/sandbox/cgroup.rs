//! Control groups of version 2 (Documentation/admin-guide/cgroup-v2.rst): where the daemon may make
//! them, each run gets one, in which the kernel counts and holds its memory, processes and CPUs.
//!
//! ```text
//! the cgroup that the daemon was started in
//!  ├─ jig-daemon-PID   the daemon and all that makes sandboxes: only leaves may hold processes
//!  └─ jig-runs-PID
//!      └─ N            one run: its command and what that starts
//! ```
//!
//! The init of a run stays outside: it shares its memory with its slot's keeper, and must be there
//! to tell how the run ended when the kernel has killed all of it.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::process::Pid;

use super::limits::RunLimits;

/// What must be there for cgroups to be of use.
const REQUIRED_CONTROLLERS: [&str; 2] = ["memory", "pids"];
/// What is used where it is there.
const OPTIONAL_CONTROLLERS: [&str; 1] = ["cpu"];
/// Share of the CPUs that all runs together have beside the daemon, which has 100: its own processes
/// are answered whatever commands do. As much as `priority` leaves each of them.
const RUNS_CPU_WEIGHT: &str = "10";
/// Time in which a share of the CPUs is given out, in microseconds: the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;
/// From here on `pids.max` takes no number (PID_MAX_LIMIT of linux/threads.h): the kernel has no more.
const MAX_PIDS: u32 = 1 << 22;
/// Processes that the limit of the kernel's other count, which stands behind this one, allows more.
pub(super) const RLIMIT_NPROC_MARGIN: u32 = 64;

/// The cgroups of one daemon.
#[derive(Debug)]
pub(crate) struct Cgroups {
    /// The directory of the runs.
    runs_directory: PathBuf,
    /// What was turned on below, and here.
    _enabled: [EnabledControllers; 2],
    /// Whether shares of CPUs are held.
    has_cpu_controller: bool,
    next_run: AtomicU64,
    /// Those of runs that had not quite ended when they were given up.
    pending_removal: Mutex<Vec<PathBuf>>,
}

/// Why there are none, for people.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CgroupsUnavailable(pub(crate) String);

/// Controllers that were turned on for the children of a cgroup, until this is dropped: as long as they
/// are on, no process can be put into it.
#[derive(Debug)]
struct EnabledControllers {
    /// Open: the daemon cannot open it any more once it is confined.
    control: File,
    /// What turns off those that were not on before.
    undo: String,
}

/// The cgroup of one run. Dropping it kills what is in it and removes it.
#[derive(Debug)]
pub(crate) struct RunCgroup {
    path: PathBuf,
    cgroups: Arc<Cgroups>,
    /// The limits that it has.
    applied_limits: Option<RunLimits>,
}

/// Where the kernel tells the CPU time of a run's processes, those that nobody waited for included.
#[derive(Debug)]
pub(super) struct CpuClock(PathBuf);

/// What a run's cgroup has held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CgroupLimitHits {
    /// Whether it was killed because of its memory.
    pub(crate) memory: bool,
    /// Whether it was refused a process.
    pub(crate) pids: bool,
}

impl Cgroups {
    /// Claims the cgroup that this process is in, if it may be divided. To be called before there
    /// are other processes or threads: what is started later inherits the place.
    pub(crate) fn claim() -> Result<Self, CgroupsUnavailable> {
        let own = own_directory()?;
        let controllers = read_control(&own.join("cgroup.controllers"))?;
        let has = |name: &str| controllers.split_whitespace().any(|known| known == name);
        if let Some(missing) = REQUIRED_CONTROLLERS.iter().find(|name| !has(name)) {
            return Err(CgroupsUnavailable(format!(
                "the controller {missing} is not given to {}",
                own.display()
            )));
        }
        let enabled: Vec<&str> = REQUIRED_CONTROLLERS
            .into_iter()
            .chain(OPTIONAL_CONTROLLERS)
            .filter(|name| has(name))
            .collect();
        let has_cpu = enabled.contains(&"cpu");
        remove_leftovers(&own);
        let id = std::process::id();
        let (daemon, runs) =
            (own.join(format!("jig-daemon-{id}")), own.join(format!("jig-runs-{id}")));
        let claim = || {
            create_cgroup(&daemon)?;
            write_control(&daemon.join("cgroup.procs"), &id.to_string())?;
            let here = EnabledControllers::new(&own, &enabled).map_err(|error| {
                // That other processes are in it is the usual reason.
                CgroupsUnavailable(format!(
                    "{error}: other processes may be in it; the daemon must be alone there"
                ))
            })?;
            create_cgroup(&runs)?;
            if has_cpu {
                // Without it they have what the daemon has.
                let _best_effort = write_control(&runs.join("cpu.weight"), RUNS_CPU_WEIGHT);
            }
            // Those below must be turned off before those here can be.
            Ok([EnabledControllers::new(&runs, &enabled)?, here])
        };
        match claim() {
            Ok(turned_on) => Ok(Self {
                runs_directory: runs,
                _enabled: turned_on,
                has_cpu_controller: has_cpu,
                next_run: AtomicU64::new(0),
                pending_removal: Mutex::default(),
            }),
            Err(error) => {
                // Back to where it was.
                let _best_effort = write_control(&own.join("cgroup.procs"), &id.to_string());
                for made in [&runs, &daemon] {
                    let _best_effort = fs::remove_dir(made);
                }
                Err(error)
            }
        }
    }

    /// The directory that must stay writable for the daemon.
    pub(crate) fn directory(&self) -> &Path {
        &self.runs_directory
    }

    /// Whether shares of CPUs are held.
    pub(crate) fn has_cpu_controller(&self) -> bool {
        self.has_cpu_controller
    }

    /// Makes the cgroup of a run, and puts the process that is to become its command into it.
    pub(super) fn create_run(
        self: &Arc<Self>,
        limits: &RunLimits,
        command: Pid,
    ) -> Result<RunCgroup, CgroupsUnavailable> {
        self.remove_finished();
        let number = self.next_run.fetch_add(1, Ordering::Relaxed);
        let path = self.runs_directory.join(number.to_string());
        create_cgroup(&path)?;
        let mut run = RunCgroup { path, cgroups: Arc::clone(self), applied_limits: None };
        run.set_limits(limits)?;
        // All of it is killed at once, and nothing of it is put off to a disk.
        run.write("memory.oom.group", "1")?;
        let swap = run.path.join("memory.swap.max");
        if swap.exists() {
            write_control(&swap, "0")?;
        }
        let command = command.as_raw_nonzero().to_string();
        run.write("cgroup.procs", &command)?;
        Ok(run)
    }

    /// Removes what has ended meanwhile.
    fn remove_finished(&self) {
        let mut ending = self.pending_removal.lock().unwrap_or_else(PoisonError::into_inner);
        ending.retain(|path| !try_remove(path));
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        self.remove_finished();
        // The next one here finds what is left, as the daemon's own, which nobody can remove himself,
        // and the directory of the runs where it was confined.
        let _best_effort = fs::remove_dir(&self.runs_directory);
    }
}

impl EnabledControllers {
    fn new(group: &Path, controllers: &[&str]) -> Result<Self, CgroupsUnavailable> {
        let path = group.join("cgroup.subtree_control");
        let on_before = read_control(&path)?;
        let opened = fs::OpenOptions::new().write(true).open(&path);
        let control = opened.map_err(|error| unavailable("writing", &path, &error))?;
        let all = |sign: char, names: &mut dyn Iterator<Item = &&str>| -> String {
            names.map(|name| format!("{sign}{name} ")).collect()
        };
        let is_new = |name: &&&str| !on_before.split_whitespace().any(|known| known == **name);
        let written = (&control).write_all(all('+', &mut controllers.iter()).as_bytes());
        written.map_err(|error| unavailable("writing", &path, &error))?;
        Ok(Self { control, undo: all('-', &mut controllers.iter().filter(is_new)) })
    }
}

impl Drop for EnabledControllers {
    fn drop(&mut self) {
        if !self.undo.is_empty() {
            // Others may need them by now.
            let _best_effort = (&self.control).write_all(self.undo.as_bytes());
        }
    }
}

impl RunCgroup {
    /// Sets the limits. Most runs have those that their sandbox was built for: then there is nothing
    /// to be written while their callers wait.
    pub(super) fn set_limits(&mut self, limits: &RunLimits) -> Result<(), CgroupsUnavailable> {
        if self.applied_limits == Some(*limits) {
            return Ok(());
        }
        self.write("memory.max", &limits.memory_bytes.to_string())?;
        let processes = match limits.processes {
            MAX_PIDS.. => "max".to_owned(),
            processes => processes.to_string(),
        };
        self.write("pids.max", &processes)?;
        if let (true, Some(millis)) = (self.cgroups.has_cpu_controller, limits.cpu_millis) {
            let quota = u64::from(millis) * CPU_PERIOD_US / 1000;
            self.write("cpu.max", &format!("{quota} {CPU_PERIOD_US}"))?;
        }
        self.applied_limits = Some(*limits);
        Ok(())
    }

    /// Tells of the CPU time of the run, as long as that goes on.
    pub(super) fn cpu_clock(&self) -> CpuClock {
        CpuClock(self.path.join("cpu.stat"))
    }

    /// What it has held until now.
    pub(super) fn limit_hits(&self) -> CgroupLimitHits {
        let count = |file: &str, name: &str| keyed_number(&self.path.join(file), name).unwrap_or(0);
        CgroupLimitHits {
            memory: count("memory.events", "oom_kill ") > 0,
            pids: count("pids.events", "max ") > 0,
        }
    }

    fn write(&self, file: &str, text: &str) -> Result<(), CgroupsUnavailable> {
        write_control(&self.path.join(file), text)
    }
}

impl Drop for RunCgroup {
    fn drop(&mut self) {
        if try_remove(&self.path) {
            return;
        }
        // Something is in it that was not waited for. Linux before 5.14 has no such file, and the end
        // of the run's init kills all of it as well.
        let _best_effort = self.write("cgroup.kill", "1");
        if !try_remove(&self.path) {
            let ending = self.cgroups.pending_removal.lock();
            ending.unwrap_or_else(PoisonError::into_inner).push(self.path.clone());
        }
    }
}

impl CpuClock {
    /// Microseconds until now.
    pub(super) fn micros(&self) -> u64 {
        keyed_number(&self.0, "usage_usec ").unwrap_or(0)
    }
}

/// The number behind `name` in a file of lines `name number`.
fn keyed_number(path: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

/// Removes a cgroup, unless something is in it.
fn try_remove(path: &Path) -> bool {
    match fs::remove_dir(path) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// The directory of the cgroup that this process is in (cgroups(7)).
fn own_directory() -> Result<PathBuf, CgroupsUnavailable> {
    let groups = read_control(Path::new("/proc/self/cgroup"))?;
    let Some(own) = groups.lines().find_map(|line| line.strip_prefix("0::")) else {
        return Err(CgroupsUnavailable("this host has no cgroups of version 2".to_owned()));
    };
    let mounts = read_control(Path::new("/proc/self/mountinfo"))?;
    for line in mounts.lines() {
        // proc_pid_mountinfo(5): root and mount point are fields 4 and 5, the type comes first
        // behind " - ".
        let Some((before, behind)) = line.split_once(" - ") else {
            continue;
        };
        let mut fields = before.split(' ').skip(3);
        let (Some(root), Some(point)) = (fields.next(), fields.next()) else {
            continue;
        };
        if !behind.starts_with("cgroup2 ") {
            continue;
        }
        let below = Path::new(own).strip_prefix(root).unwrap_or(Path::new(own));
        let below = below.strip_prefix("/").unwrap_or(below);
        return Ok(Path::new(point).join(below));
    }
    Err(CgroupsUnavailable("no cgroup2 file system is mounted".to_owned()))
}

/// Removes what daemons before this one have left, as far as nothing is in it.
fn remove_leftovers(own: &Path) {
    let own_id = std::process::id().to_string();
    for entry in fs::read_dir(own).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let id = name.strip_prefix("jig-daemon-").or_else(|| name.strip_prefix("jig-runs-"));
        let Some(id) = id else { continue };
        // It may be one that starts; one with the number of this process is not there any more.
        if id != own_id && Path::new("/proc").join(id).exists() {
            continue;
        }
        let runs = fs::read_dir(entry.path()).into_iter().flatten().flatten();
        for path in runs.map(|run| run.path()).filter(|path| path.is_dir()) {
            let _in_use = fs::remove_dir(path);
        }
        let _in_use = fs::remove_dir(entry.path());
    }
}

fn read_control(path: &Path) -> Result<String, CgroupsUnavailable> {
    fs::read_to_string(path).map_err(|error| unavailable("reading", path, &error))
}

fn create_cgroup(path: &Path) -> Result<(), CgroupsUnavailable> {
    fs::create_dir(path).map_err(|error| unavailable("making", path, &error))
}

/// Writes in one piece, as the kernel wants it.
fn write_control(path: &Path, text: &str) -> Result<(), CgroupsUnavailable> {
    let opened = fs::OpenOptions::new().write(true).open(path);
    let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| unavailable("writing", path, &error))
}

fn unavailable(what: &str, path: &Path, error: &io::Error) -> CgroupsUnavailable {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    CgroupsUnavailable(format!("{what} {} failed: {text}", path.display()))
}

/// How the memory of runs is held.
#[derive(Debug, Clone)]
pub(crate) enum MemoryAccounting {
    /// By the kernel, in a cgroup of each run.
    Cgroups(Arc<Cgroups>),
    /// By looking at them, because there are no cgroups for this reason.
    Watchdog(CgroupsUnavailable),
}

impl MemoryAccounting {
    /// The cgroups, where there are any.
    pub(crate) fn cgroups(&self) -> Option<&Arc<Cgroups>> {
        match self {
            Self::Cgroups(cgroups) => Some(cgroups),
            Self::Watchdog(_) => None,
        }
    }
}
