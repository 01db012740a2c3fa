//! Processes of the machine, as root sees them in /proc.

use std::{
    collections::HashMap,
    fs,
    sync::atomic::{AtomicU32, Ordering},
};

use jig::api::v1::{RunRequest, StartRequest};

use super::wait::eventually;

/// Environment variable that holds a mark.
const MARK_VARIABLE: &str = "JIG_TEST_MARK";

/// A value in the environment of a command and of all its descendants. A test finds
/// them by it wherever they have moved.
#[derive(Debug)]
pub(crate) struct Mark(String);

/// A process. The start time distinguishes it from a later one with the same id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    /// The process id on the host.
    pub(crate) pid: i32,
    start_time: u64,
}

impl Mark {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self(format!("{}-{count}", std::process::id()))
    }

    /// Adds the mark to a command.
    pub(crate) fn on(&self, mut request: RunRequest) -> RunRequest {
        request.env.insert(MARK_VARIABLE.to_owned(), self.0.clone());
        request
    }

    /// Adds the mark to a command that `Start` runs.
    pub(crate) fn on_start(&self, mut request: StartRequest) -> StartRequest {
        request.env.insert(MARK_VARIABLE.to_owned(), self.0.clone());
        request
    }

    /// The mark as a variable `NAME=value`, for `jig exec --env`.
    pub(crate) fn variable(&self) -> String {
        format!("{MARK_VARIABLE}={}", self.0)
    }

    /// Ids of the processes with this mark.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let entry = self.variable();
        let has_mark = |pid: &i32| {
            fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
                environment.split(|byte| *byte == 0).any(|variable| variable == entry.as_bytes())
            })
        };

        pids().filter(has_mark).collect()
    }

    /// Waits until at least `count` processes have the mark, and returns their ids.
    pub(crate) async fn wait_for_processes(&self, count: usize) -> Vec<i32> {
        let mut pids = Vec::new();
        eventually("the command runs", async || {
            pids = self.processes();
            pids.len() >= count
        })
        .await;

        pids
    }

    /// Waits until no process has the mark.
    pub(crate) async fn wait_until_gone(&self) {
        eventually("all processes of the command have ended", async || self.processes().is_empty())
            .await;
    }

    /// Fails if a process has the mark now.
    pub(crate) fn assert_gone(&self) {
        let processes: Vec<String> = self.processes().into_iter().map(describe_process).collect();
        assert!(processes.is_empty(), "processes still run: {processes:?}");
    }
}

/// Number of processes with a mark.
pub(crate) fn count_marked_processes(mark: &Mark) -> usize {
    mark.processes().len()
}

/// All descendants of a process, without the process itself.
pub(crate) fn descendants(ancestor: i32) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for (process, parent) in pids().filter_map(read_stat) {
        children.entry(parent).or_default().push(process);
    }

    let mut descendants = children.remove(&ancestor).unwrap_or_default();
    let mut next = 0;
    while let Some(process) = descendants.get(next) {
        let children_of_process = children.remove(&process.pid).unwrap_or_default();
        descendants.extend(children_of_process);
        next += 1;
    }

    descendants
}

/// A descendant of a process with a name, if there is one.
pub(crate) fn find_descendant(ancestor: i32, name: &str) -> Option<Process> {
    let has_name = |process: &Process| status_field(process.pid, "Name").as_deref() == Some(name);
    descendants(ancestor).into_iter().find(has_name)
}

/// The live processes of the session of `leader`.
pub(crate) fn session_processes(leader: i32) -> Vec<Process> {
    let is_in = |process: &Process| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid)).unwrap_or_default();
        let rest = stat.rsplit_once(')').map(|(_, rest)| rest.to_owned());
        let session = rest.and_then(|rest| rest.split_whitespace().nth(3)?.parse().ok());
        session == Some(leader)
    };

    let processes = pids().filter_map(read_stat).map(|(process, _)| process);
    processes.filter(is_in).filter(is_alive).collect()
}

/// Whether a process exists and is not a zombie.
pub(crate) fn is_alive(process: &Process) -> bool {
    let is_dead = |pid: i32| status_field(pid, "State").is_none_or(|state| state.starts_with('Z'));
    read_stat(process.pid).is_some_and(|(current, _)| current == *process) && !is_dead(process.pid)
}

/// A field of /proc/PID/status, as the host sees it.
pub(crate) fn status_field(pid: i32, field: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.map(|value| value.trim().to_owned())
}

fn describe_process(pid: i32) -> String {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    format!("{pid} {}", String::from_utf8_lossy(&command).replace('\0', " "))
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// A process and its parent, from proc_pid_stat(5). The name in parentheses may contain any
/// character, so fields are counted after it.
fn read_stat(pid: i32) -> Option<(Process, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let parent = fields.get(1)?.parse().ok()?;
    let start_time = fields.get(19)?.parse().ok()?;
    Some((Process { pid, start_time }, parent))
}
