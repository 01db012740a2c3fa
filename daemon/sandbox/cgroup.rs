//! Control groups (cgroup v2, Documentation/admin-guide/cgroup-v2.rst). If the daemon may make
//! them, each run gets one, in which the kernel counts and limits memory, processes and CPU.
//!
//! ```text
//! the cgroup that the daemon was started in
//!  ├─ jig-daemon-PID   the daemon and all processes that make sandboxes
//!  └─ jig-runs-PID
//!      └─ N            one run: its command and the command's descendants
//! ```
//!
//! Only leaf cgroups may hold processes, so the daemon moves into one of its own.
//!
//! The init of a run stays outside: it shares memory with its slot keeper, and must report how the
//! run ended after the kernel has killed all of it.

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

const REQUIRED_CONTROLLERS: [&str; 2] = ["memory", "pids"];
const OPTIONAL_CONTROLLERS: [&str; 1] = ["cpu"];
/// CPU weight of all runs together; the daemon has 100. So the daemon's own processes respond even
/// while commands use all CPUs. The nice increment of `priority` gives a process the same tenth.
const RUNS_CPU_WEIGHT: &str = "10";
/// Period of a CPU quota in microseconds: the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;
/// `pids.max` accepts no number from here on (PID_MAX_LIMIT of linux/threads.h): the kernel has no
/// more process ids.
const MAX_PIDS: u32 = 1 << 22;
/// Processes by which RLIMIT_NPROC, the second limit, is higher than `pids.max`.
pub(super) const RLIMIT_NPROC_MARGIN: u32 = 64;

#[derive(Debug)]
pub(crate) struct Cgroups {
    runs_directory: PathBuf,
    /// Controllers that were enabled for the runs, and in the daemon's own cgroup.
    _enabled: [EnabledControllers; 2],
    has_cpu_controller: bool,
    next_run: AtomicU64,
    /// Cgroups of runs that still held processes when they were dropped.
    pending_removal: Mutex<Vec<PathBuf>>,
}

/// Why cgroups cannot be used, for people.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CgroupsUnavailable(pub(crate) String);

/// Controllers enabled for the children of a cgroup, until this is dropped. While they are enabled,
/// no process can be moved into the cgroup itself.
#[derive(Debug)]
struct EnabledControllers {
    /// Kept open: the daemon cannot open it once it is confined.
    control: File,
    /// Text that disables the controllers that were not enabled before.
    undo: String,
}

/// The cgroup of one run. Dropping it kills the processes in it and removes it.
#[derive(Debug)]
pub(crate) struct RunCgroup {
    path: PathBuf,
    cgroups: Arc<Cgroups>,
    applied_limits: Option<RunLimits>,
}

/// CPU time of a run's processes from the kernel, including processes that were not waited for.
#[derive(Debug)]
pub(super) struct CpuClock(PathBuf);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CgroupLimitHits {
    /// Whether the run was killed for its memory.
    pub(crate) memory: bool,
    /// Whether the run was refused a process.
    pub(crate) pids: bool,
}

impl Cgroups {
    /// Claims this process's cgroup, if it may be divided.
    ///
    /// Called before there are other processes or threads: processes that are started later inherit
    /// the cgroup.
    pub(crate) fn claim() -> Result<Self, CgroupsUnavailable> {
        let own = own_directory()?;
        let controllers = read_control(&own.join("cgroup.controllers"))?;
        let has = |name: &str| controllers.split_whitespace().any(|known| known == name);
        if let Some(missing) = REQUIRED_CONTROLLERS.iter().find(|name| !has(name)) {
            return Err(CgroupsUnavailable(format!(
                "the controller {missing} is not available in {}",
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
        let daemon = own.join(format!("jig-daemon-{id}"));
        let runs = own.join(format!("jig-runs-{id}"));
        let claim = || {
            create_cgroup(&daemon)?;
            write_control(&daemon.join("cgroup.procs"), &id.to_string())?;
            let own_controllers = EnabledControllers::new(&own, &enabled).map_err(|error| {
                // Other processes in the cgroup are the usual reason.
                CgroupsUnavailable(format!(
                    "{error}: other processes may be in it; the daemon must be alone there"
                ))
            })?;
            create_cgroup(&runs)?;
            if has_cpu {
                // If this fails, runs have the daemon's weight.
                let _best_effort = write_control(&runs.join("cpu.weight"), RUNS_CPU_WEIGHT);
            }
            // Dropped in this order: controllers must be disabled in the children first.
            Ok([EnabledControllers::new(&runs, &enabled)?, own_controllers])
        };

        match claim() {
            Ok(controllers) => Ok(Self {
                runs_directory: runs,
                _enabled: controllers,
                has_cpu_controller: has_cpu,
                next_run: AtomicU64::new(0),
                pending_removal: Mutex::default(),
            }),
            Err(error) => {
                // Undone: this process returns to its cgroup.
                let _best_effort = write_control(&own.join("cgroup.procs"), &id.to_string());
                for created in [&runs, &daemon] {
                    let _best_effort = fs::remove_dir(created);
                }
                Err(error)
            }
        }
    }

    /// The directory that must stay writable for the daemon.
    pub(crate) fn directory(&self) -> &Path {
        &self.runs_directory
    }

    pub(crate) fn has_cpu_controller(&self) -> bool {
        self.has_cpu_controller
    }

    /// Makes the cgroup of a run, and moves `command`, the process that becomes the command, into
    /// it.
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
        // Out of memory, all of the run is killed at once. None of it is swapped.
        run.write("memory.oom.group", "1")?;
        let swap = run.path.join("memory.swap.max");
        if swap.exists() {
            write_control(&swap, "0")?;
        }

        run.add(command)?;
        Ok(run)
    }

    /// Removes the cgroups that are empty by now.
    fn remove_finished(&self) {
        let mut pending = self.pending_removal.lock().unwrap_or_else(PoisonError::into_inner);
        pending.retain(|path| !try_remove(path));
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        self.remove_finished();
        // The next daemon removes what is left: this daemon's own cgroup, which no process can
        // remove from within, and the runs' directory if the daemon was confined.
        let _best_effort = fs::remove_dir(&self.runs_directory);
    }
}

impl EnabledControllers {
    fn new(group: &Path, controllers: &[&str]) -> Result<Self, CgroupsUnavailable> {
        let path = group.join("cgroup.subtree_control");
        let failed = |error: io::Error| unavailable("writing", &path, &error);
        let enabled_before = read_control(&path)?;
        let control = fs::OpenOptions::new().write(true).open(&path).map_err(failed)?;

        let enable: String = controllers.iter().map(|name| format!("+{name} ")).collect();
        (&control).write_all(enable.as_bytes()).map_err(failed)?;

        let undo = controllers
            .iter()
            .filter(|name| !enabled_before.split_whitespace().any(|known| known == **name))
            .map(|name| format!("-{name} "))
            .collect();
        Ok(Self { control, undo })
    }
}

impl Drop for EnabledControllers {
    fn drop(&mut self) {
        if !self.undo.is_empty() {
            // Can fail: other processes may need the controllers by now.
            let _best_effort = (&self.control).write_all(self.undo.as_bytes());
        }
    }
}

impl RunCgroup {
    /// Sets the limits. Most runs have the limits that their sandbox was built for. Then nothing is
    /// written while the caller waits.
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
        if let Some(millis) = limits.milli_cpus.filter(|_| self.cgroups.has_cpu_controller) {
            let quota = u64::from(millis) * CPU_PERIOD_US / 1000;
            self.write("cpu.max", &format!("{quota} {CPU_PERIOD_US}"))?;
        }
        self.applied_limits = Some(*limits);
        Ok(())
    }

    /// Moves a process into this cgroup.
    pub(super) fn add(&self, process: Pid) -> Result<(), CgroupsUnavailable> {
        self.write("cgroup.procs", &process.as_raw_nonzero().to_string())
    }

    /// The run's CPU clock, valid while the cgroup exists.
    pub(super) fn cpu_clock(&self) -> CpuClock {
        CpuClock(self.path.join("cpu.stat"))
    }

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

        // Processes are left in it. Linux before 5.14 has no cgroup.kill, but the end of the run's
        // init kills them too.
        let _best_effort = self.write("cgroup.kill", "1");
        if !try_remove(&self.path) {
            let mut pending =
                self.cgroups.pending_removal.lock().unwrap_or_else(PoisonError::into_inner);
            pending.push(self.path.clone());
        }
    }
}

impl CpuClock {
    pub(super) fn micros(&self) -> u64 {
        keyed_number(&self.0, "usage_usec ").unwrap_or(0)
    }
}

/// The number after `name` in a file of lines `name number`.
fn keyed_number(path: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

/// Removes a cgroup. Returns false if it still holds processes.
fn try_remove(path: &Path) -> bool {
    match fs::remove_dir(path) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Directory of this process's cgroup (cgroups(7)).
fn own_directory() -> Result<PathBuf, CgroupsUnavailable> {
    let groups = read_control(Path::new("/proc/self/cgroup"))?;
    let Some(own) = groups.lines().find_map(|line| line.strip_prefix("0::")) else {
        return Err(CgroupsUnavailable("this host has no cgroups of version 2".to_owned()));
    };

    let mounts = read_control(Path::new("/proc/self/mountinfo"))?;
    for line in mounts.lines() {
        // proc_pid_mountinfo(5): the root and mount point are fields 4 and 5. The type is the first
        // field after " - ".
        let Some((before, after)) = line.split_once(" - ") else {
            continue;
        };
        let mut fields = before.split(' ').skip(3);
        let (Some(root), Some(point)) = (fields.next(), fields.next()) else {
            continue;
        };
        if !after.starts_with("cgroup2 ") {
            continue;
        }

        let below = Path::new(own).strip_prefix(root).unwrap_or(Path::new(own));
        let below = below.strip_prefix("/").unwrap_or(below);
        return Ok(Path::new(point).join(below));
    }
    Err(CgroupsUnavailable("no cgroup2 file system is mounted".to_owned()))
}

/// Removes the empty cgroups that earlier daemons have left.
fn remove_leftovers(own: &Path) {
    let own_id = std::process::id().to_string();
    for entry in fs::read_dir(own).into_iter().flatten().flatten() {
        let file_name = entry.file_name();
        let name = file_name.to_string_lossy();
        let id = name.strip_prefix("jig-daemon-").or_else(|| name.strip_prefix("jig-runs-"));
        let Some(id) = id else { continue };
        // Its daemon may be starting. A daemon with this process's id is gone.
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

/// Writes in one write(2), as the kernel requires.
fn write_control(path: &Path, text: &str) -> Result<(), CgroupsUnavailable> {
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| unavailable("writing", path, &error))
}

fn unavailable(what: &str, path: &Path, error: &io::Error) -> CgroupsUnavailable {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    CgroupsUnavailable(format!("{what} {} failed: {text}", path.display()))
}

/// How the memory limit of runs is enforced.
#[derive(Debug, Clone)]
pub(crate) enum MemoryAccounting {
    /// By the kernel, in a cgroup for each run.
    Cgroups(Arc<Cgroups>),
    /// By sampling the run's processes, because cgroups cannot be used for this reason.
    Watchdog(CgroupsUnavailable),
}

impl MemoryAccounting {
    pub(crate) fn cgroups(&self) -> Option<&Arc<Cgroups>> {
        match self {
            Self::Cgroups(cgroups) => Some(cgroups),
            Self::Watchdog(_) => None,
        }
    }
}
