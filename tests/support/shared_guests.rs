//! Virtual machines that several tests share: one boot for each kernel.
//!
//! The first test that needs a machine starts it. A thread then runs the selected tests of
//! [`SHARED_TESTS`] in it, one at a time, so that later ones find their results. Each test gets its
//! own part of the console output.

use std::{
    collections::HashMap,
    env,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Mutex, mpsc},
    thread,
    time::Instant,
};

use tokio::sync::watch;

use super::{
    guest::{
        GUEST_TIMEOUT, Guest, GuestOutput, Kernel, acquire_permit, guest, is_emulation_failure,
    },
    scale::full_size,
    signals::kill_and_reap,
};

/// Variable of the tests in a machine whose host runs tests at full size.
pub(crate) const ALL_ATTACKS_VARIABLE: &str = "JIG_TEST_ALL_ATTACKS";
/// Tests that share a machine with each kernel.
const SHARED_TESTS: &[(Kernel, &[&str])] = &[
    (
        Kernel::Debian13,
        &[
            "bench::clock_that_is_set_back_loses_nothing",
            "kernels::linux_6_12_gives_l3_and_withstands_attacks",
            "kernels::linux_6_12_without_user_namespaces_gives_l1",
            "limits::cgroups::linux_6_12_enforces_limits_in_cgroups",
        ],
    ),
    (
        Kernel::Debian12,
        &[
            "created_workspace_bounds::project_quotas::persistent_directories_count",
            "created_workspace_bounds::project_quotas::project_ids_are_durable_and_free_again",
            "created_workspace_bounds::project_quotas::the_kernel_enforces_bounds",
            "created_workspace_bounds::project_quotas::without_privileges_bounds_are_watched",
            "kernels::linux_6_1_gives_l3_and_withstands_attacks",
            "kernels::linux_6_1_without_user_namespaces_runs_no_command",
            "limits::cgroups::case_n28_daemon_runs_nothing_without_its_limiting_cgroup",
            "limits::cgroups::cgroup_enforces_cpu_share",
            "limits::cgroups::cpu_limit_counts_unreaped_children",
            "limits::cgroups::daemon_leaves_a_shared_cgroup_unchanged",
            "limits::cgroups::daemon_removes_cgroups_of_its_killed_predecessor",
            "limits::cgroups::daemon_returns_the_delegated_cgroup_on_exit",
            "limits::cgroups::delegated_subtree_suffices_for_limits",
            "limits::cgroups::linux_6_1_enforces_limits_in_cgroups",
            "limits::cgroups::operator_can_set_the_largest_limits",
            "limits::cgroups::tight_memory_limit_does_not_kill_the_sandbox",
        ],
    ),
];

/// The part of each test that has run, or the reason why it has none.
type Parts = HashMap<&'static str, Result<GuestOutput, String>>;

/// Waits until the test has run in the shared machine of `kernel`, and returns its part of the
/// output. Fails if it has none.
pub(super) async fn run_shared(kernel: Kernel, test: &str) -> GuestOutput {
    let mut parts = machine(kernel, test);
    // The thread of the machine has ended if this fails. Its own message says why.
    let parts = parts.wait_for(|parts| parts.contains_key(test)).await;
    let parts = parts.unwrap_or_else(|_| panic!("{kernel:?} has ended without running {test}"));

    match &parts[test] {
        Ok(part) => part.clone(),
        Err(reason) => panic!("{reason}"),
    }
}

/// The shared machine of `kernel`, which runs `test`. Starts it if it has not started.
fn machine(kernel: Kernel, test: &str) -> watch::Receiver<Parts> {
    static MACHINES: Mutex<Vec<(Kernel, watch::Receiver<Parts>)>> = Mutex::new(Vec::new());
    let shared = SHARED_TESTS.iter().find(|(of, _)| *of == kernel);
    let shared = shared.map_or(&[][..], |(_, tests)| tests);
    assert!(shared.contains(&test), "SHARED_TESTS does not list {test} for {kernel:?}");

    let mut machines = MACHINES.lock().unwrap();
    if let Some((_, parts)) = machines.iter().find(|(of, _)| *of == kernel) {
        return parts.clone();
    }

    let selected = selected_tests();
    let tests = shared.iter().copied().filter(|test| selected.iter().any(|name| name == test));
    let parts = start_machine(kernel, tests.collect());
    machines.push((kernel, parts.clone()));
    parts
}

/// Names of the tests that this process runs.
fn selected_tests() -> Vec<String> {
    let arguments = env::args_os().skip(1);
    let list = Command::new(env::current_exe().unwrap()).args(arguments).arg("--list").output();
    let list = list.unwrap();
    assert!(list.status.success(), "{list:?}");

    let list = String::from_utf8(list.stdout).unwrap();
    list.lines().filter_map(|line| line.strip_suffix(": test").map(str::to_owned)).collect()
}

fn start_machine(kernel: Kernel, tests: Vec<&'static str>) -> watch::Receiver<Parts> {
    let (parts, receiver) = watch::channel(Parts::new());
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let guest = guest(kernel);
        let mut console = None;
        for test in tests {
            let _permit = runtime.block_on(acquire_permit());
            let part = run_test(&guest, &mut console, test);
            parts.send_modify(|parts| _ = parts.insert(test, part));
        }
    });
    receiver
}

/// Runs a test, in a second machine if emulation failed the first.
fn run_test(
    guest: &Guest,
    console: &mut Option<Console>,
    test: &str,
) -> Result<GuestOutput, String> {
    let result = try_test(guest, console, test);
    let text = result.as_ref().map_or_else(String::as_str, GuestOutput::text);
    if !is_emulation_failure(text) {
        return result;
    }

    *console = None;
    try_test(guest, console, test)
}

/// Runs a test in the machine, which boots if there is none. After a failure there is none.
fn try_test(
    guest: &Guest,
    console: &mut Option<Console>,
    test: &str,
) -> Result<GuestOutput, String> {
    let start = Instant::now();
    let mut machine = match console.take() {
        Some(machine) => machine,
        None => Console::boot(guest)?,
    };

    let all_attacks = full_size(1, 0);
    let program = env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    let command = format!("{ALL_ATTACKS_VARIABLE}={all_attacks} {program} --exact {test}");
    let part = machine.run(&command)?;
    let seconds = start.elapsed().as_secs_f32();
    let part = GuestOutput::new(format!("{}{part}host: {seconds:.1} s\n", machine.header));
    if part.has_succeeded() {
        *console = Some(machine);
    }

    Ok(part)
}

/// A machine that runs the commands that it reads from its console.
struct Console {
    machine: Child,
    input: ChildStdin,
    lines: mpsc::Receiver<String>,
    /// What the machine says about itself.
    header: String,
}

impl Drop for Console {
    fn drop(&mut self) {
        kill_and_reap(&mut self.machine);
    }
}

impl Console {
    fn boot(guest: &Guest) -> Result<Self, String> {
        let mut machine = guest.emulator(&["/serve"]).stdin(Stdio::piped()).spawn().unwrap();
        let input = machine.stdin.take().unwrap();
        let mut output = BufReader::new(machine.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let mut line = Vec::new();
            while output.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
                let text = String::from_utf8_lossy(&line).replace('\r', "");
                if sender.send(text).is_err() {
                    break;
                }
                line.clear();
            }
        });

        let mut console = Self { machine, input, lines, header: String::new() };
        let text = console.read_until("guest: ready")?;
        let header = text.lines().find(|line| line.starts_with("guest: ")).unwrap_or_default();
        console.header = format!("{header}\n");
        Ok(console)
    }

    /// Runs a command and returns its output, with the line of its exit code.
    fn run(&mut self, command: &str) -> Result<String, String> {
        if writeln!(self.input, "{command}").is_err() {
            return Err(format!("the machine ended before it ran {command}"));
        }
        self.read_until("guest: exit code ")
    }

    /// Reads until a line that begins with `start`, or returns all text as the reason.
    fn read_until(&mut self, start: &str) -> Result<String, String> {
        let deadline = Instant::now() + GUEST_TIMEOUT;
        let mut text = String::new();
        loop {
            let rest = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(rest) {
                Ok(line) => {
                    text.push_str(&line);
                    if line.starts_with(start) {
                        return Ok(text);
                    }
                }
                Err(error) => return Err(format!("no line {start:?}: {error}:\n{text}")),
            }
        }
    }
}
