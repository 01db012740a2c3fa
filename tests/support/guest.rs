//! Virtual machines with Debian's kernels, under software emulation. Tests run in them that need a
//! kernel other than the host's, a kernel of their own, or an arm64 processor.
//!
//! The same tests run on both sides. On the host, a test has the machine run only that test; in
//! the machine, the test executes its body. Tests share a machine if it has only a kernel, and
//! neither options nor systemd: [`shared_guests`](super::shared_guests).
//!
//! ```ignore
//! #[tokio::test]
//! async fn limits_of_cgroups_hold() {
//!     if guest(Kernel::Debian12).run_current_test(|| {}).await {
//!         return; // the test has succeeded in the machine
//!     }
//!     // the body, in the machine
//! }
//! ```

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    arm64_programs::Arm64Programs,
    build_cache::{build_if_stale, run_setup_script, tools_directory},
    program::{compile_all, program_sources},
    setup::daemon_binary,
    shared_guests::run_shared,
    signals::kill_and_reap,
    wait::MachineLock,
};

/// Time limit of a machine: several times the duration of the slowest test on a slow host.
pub(super) const GUEST_TIMEOUT: Duration = Duration::from_secs(1800);
/// Machines that run at once. One alone uses little more than one CPU.
const MAX_GUESTS: usize = 2;
/// What the kernel of a machine prints when emulation fails it. On emulated CPUs, a change of its
/// own code is not atomic, as it is on real ones. On a loaded host, its clock may jump.
const EMULATION_FAILURES: [&str; 2] = ["Oops: int3", "rcu_preempt kthread starved"];
const MANIFEST_DIR: &str = env!("CARGO_MANIFEST_DIR");

/// The kernel of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Linux 6.1 of Debian 12: its Landlock has neither network rules nor scopes.
    Debian12,
    /// Linux 6.12 of Debian 13.
    Debian13,
    /// As [`Self::Debian13`] with pages of 16 KiB, which only arm64 has.
    Debian13WithPagesOf16KiB,
}

/// The processor of a machine, and the programs for it.
#[derive(Debug, Clone)]
enum Processor {
    /// That of the host.
    Amd64,
    Arm64(Arc<Arm64Programs>),
}

/// A machine to boot.
#[derive(Debug, Clone)]
pub(crate) struct Guest {
    kernel: Kernel,
    processor: Processor,
    options: Vec<String>,
    has_systemd: bool,
}

/// The console output of a machine, or the part of one test.
#[derive(Debug, Clone)]
pub(crate) struct GuestOutput(String);

/// Permission to run something in a machine.
#[derive(Debug)]
#[expect(dead_code, reason = "a guard releases its permit and its lock when it is dropped")]
pub(super) struct GuestPermit(MachineLock, SemaphorePermit<'static>);

/// Waits until one of [`MAX_GUESTS`] may run, and no test needs the host alone.
pub(super) async fn acquire_permit() -> GuestPermit {
    static RUNNING: Semaphore = Semaphore::const_new(MAX_GUESTS);
    let permit = RUNNING.acquire().await.unwrap();
    GuestPermit(MachineLock::acquire(false).await, permit)
}

pub(crate) fn guest(kernel: Kernel) -> Guest {
    Guest { kernel, processor: Processor::Amd64, options: Vec::new(), has_systemd: false }
}

/// Whether the output of a machine shows one of [`EMULATION_FAILURES`].
pub(super) fn is_emulation_failure(output: &str) -> bool {
    EMULATION_FAILURES.iter().any(|failure| output.contains(failure))
}

/// Whether this process runs in a machine.
fn is_guest() -> bool {
    env::var_os("JIG_TEST_GUEST").is_some()
}

impl Kernel {
    fn version(self) -> &'static str {
        match self {
            Self::Debian12 => "6.1",
            Self::Debian13 => "6.12",
            Self::Debian13WithPagesOf16KiB => "6.12-16k",
        }
    }
}

impl Guest {
    /// Gives the machine an arm64 processor, and these programs.
    pub(crate) fn on_arm64(mut self, programs: &Arc<Arm64Programs>) -> Self {
        self.processor = Processor::Arm64(Arc::clone(programs));
        self
    }

    /// Adds an option to the kernel's command line.
    pub(crate) fn kernel_option(mut self, option: &str) -> Self {
        self.options.push(option.to_owned());
        self
    }

    /// Boots systemd as process 1, with the units of `deploy/systemd` installed. The tests run as a
    /// service.
    pub(crate) fn with_systemd(mut self) -> Self {
        self.has_systemd = true;
        self
    }

    /// On the host, runs the calling test in the machine, fails unless it succeeds, and returns
    /// true. In the machine, returns false. `here` is a closure written in that test: its type
    /// names the test.
    pub(crate) async fn run_current_test<F>(self, here: F) -> bool {
        self.output_of_current_test(here).await.is_some()
    }

    /// As [`Self::run_current_test`], with the output of the test in the machine.
    pub(crate) async fn output_of_current_test<F>(self, _here: F) -> Option<GuestOutput> {
        if is_guest() {
            return None;
        }

        let path = std::any::type_name::<F>();
        let (_, path) = path.split_once("::").unwrap();
        let path = path.split("::{{closure}}").next().unwrap();
        let output = if self.is_shared() {
            run_shared(self.kernel, path).await
        } else {
            self.boot(&["--exact", path]).await
        };
        assert!(output.tests_ending_in(" ... ok").contains(&path), "{}", output.0);
        assert_eq!(output.failed_tests(), [""; 0], "{}", output.0);
        assert!(output.has_succeeded(), "{}", output.0);

        Some(output)
    }

    /// Whether other tests may run in the same machine.
    fn is_shared(&self) -> bool {
        matches!(self.processor, Processor::Amd64) && self.options.is_empty() && !self.has_systemd
    }

    /// Boots the machine and runs the tests that `arguments` select.
    pub(crate) async fn boot(&self, arguments: &[&str]) -> GuestOutput {
        let tests = self.processor.tests();
        self.boot_program(&tests, arguments).await
    }

    /// Boots the machine, runs a program with `arguments`, and waits until it halts. Boots it a
    /// second time after one of [`EMULATION_FAILURES`].
    pub(crate) async fn boot_program(&self, program: &Path, arguments: &[&str]) -> GuestOutput {
        let words: Vec<&str> =
            [program.to_str().unwrap()].into_iter().chain(arguments.iter().copied()).collect();
        let _permit = acquire_permit().await;
        let output = self.boot_once(&words).await;

        if is_emulation_failure(&output.0) { self.boot_once(&words).await } else { output }
    }

    /// The command that boots the machine, which runs the program and arguments in `words`. The
    /// machine ends with the thread that boots it. It has a lower priority than other tests, whose
    /// time limits are shorter.
    pub(super) fn emulator(&self, words: &[&str]) -> Command {
        run_setup_script("tests/kernels/install.sh");
        let image = self.processor.kernels().join(self.kernel.version());
        let options = [self.processor.kernel_options(), &self.options.join(" ")];
        let options = [&options.join(" "), "--", &words.join(" ")];

        let base = build_ramdisk(&self.processor);
        let ramdisk = if self.has_systemd { build_systemd_ramdisk(&base) } else { base };
        let (emulator, hardware) = self.processor.emulator();
        let mut command = Command::new("nice");
        command
            .args(["-n", "5", "setpriv", "--pdeathsig", "KILL", emulator])
            .args(hardware)
            .args(["-accel", "tcg,thread=multi", "-m", "2048", "-smp", "2"])
            .args(["-display", "none", "-monitor", "none", "-serial", "stdio"])
            .args(["-no-reboot", "-net", "none"])
            .arg("-kernel")
            .arg(image)
            .arg("-initrd")
            .arg(ramdisk)
            .arg("-append")
            .arg(options.join(" "))
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command
    }

    async fn boot_once(&self, words: &[&str]) -> GuestOutput {
        let mut emulator = self.emulator(words);
        let start = Instant::now();
        let mut machine = emulator.spawn().unwrap();

        let mut output = machine.stdout.take().unwrap();
        let reader = tokio::task::spawn_blocking(move || {
            let mut text = Vec::new();
            std::io::Read::read_to_end(&mut output, &mut text).unwrap();
            String::from_utf8_lossy(&text).replace('\r', "")
        });
        let console = tokio::time::timeout(GUEST_TIMEOUT, reader).await;
        kill_and_reap(&mut machine);

        let text = console.expect("the machine did not halt in time").unwrap();
        let (_, text) = text
            .split_once("guest: ")
            .unwrap_or_else(|| panic!("the machine did not boot:\n{text}"));
        let seconds = start.elapsed().as_secs_f32();

        GuestOutput(format!("guest: {text}host: {seconds:.1} s\n"))
    }
}

impl GuestOutput {
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    /// Whether the program in the machine ended with the exit code 0.
    pub(super) fn has_succeeded(&self) -> bool {
        self.0.contains("\nguest: exit code 0\n")
    }

    /// Numbers of succeeded and of failed tests.
    pub(crate) fn test_counts(&self) -> (usize, usize) {
        (self.tests_ending_in(" ... ok").len(), self.failed_tests().len())
    }

    /// Names of the failed tests.
    pub(crate) fn failed_tests(&self) -> Vec<&str> {
        self.tests_ending_in(" ... FAILED")
    }

    /// The console output.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    fn tests_ending_in(&self, suffix: &str) -> Vec<&str> {
        let names = self.0.lines().filter_map(|line| {
            let name = line.strip_prefix("test ")?.strip_suffix(suffix)?;
            Some(name.trim_end_matches(" - should panic"))
        });
        names.collect()
    }
}

impl Processor {
    /// The name of the processor in Debian.
    fn name(&self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64(_) => "arm64",
        }
    }

    /// The C compiler of the host for this processor.
    fn compiler(&self) -> &'static str {
        match self {
            Self::Amd64 => "gcc",
            Self::Arm64(_) => "aarch64-linux-gnu-gcc",
        }
    }

    /// The program that emulates the processor, and the hardware that it emulates.
    fn emulator(&self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Amd64 => ("qemu-system-x86_64", &[]),
            // It has pages of 4, 16 and 64 KiB, and executes 32-bit programs.
            Self::Arm64(_) => {
                ("qemu-system-aarch64", &["-machine", "virt,gic-version=3", "-cpu", "neoverse-n1"])
            }
        }
    }

    fn kernel_options(&self) -> &'static str {
        match self {
            // On a loaded host the kernel finds the emulated clock unstable. The code that it then
            // patches has crashed it under emulation.
            Self::Amd64 => "console=ttyS0 quiet panic=-1 lsm=landlock,yama tsc=reliable",
            Self::Arm64(_) => "console=ttyAMA0 quiet panic=-1 lsm=landlock,yama",
        }
    }

    /// Directory of the kernels for this processor.
    fn kernels(&self) -> PathBuf {
        match self {
            Self::Amd64 => tools_directory().join("kernels"),
            Self::Arm64(_) => tools_directory().join("arm64/kernels"),
        }
    }

    /// Path of the integration tests.
    fn tests(&self) -> PathBuf {
        match self {
            Self::Amd64 => env::current_exe().unwrap(),
            Self::Arm64(programs) => programs.integration_tests.clone(),
        }
    }

    /// Programs of this package that the machine has, at their paths on the host.
    fn programs(&self) -> Vec<PathBuf> {
        match self {
            Self::Amd64 => {
                vec![self.tests(), daemon_binary().to_owned(), env!("CARGO_BIN_EXE_jig").into()]
            }
            Self::Arm64(programs) => programs.paths().into(),
        }
    }
}

/// Path of the ramdisk, which is rebuilt when one of its parts has changed.
fn build_ramdisk(processor: &Processor) -> PathBuf {
    let (programs, kernels) = (processor.programs(), processor.kernels());
    let scripts = Path::new(MANIFEST_DIR).join("tests/kernels");
    let sources = program_sources();
    let parts: Vec<&Path> =
        [&scripts, &kernels, &sources].into_iter().chain(&programs).map(PathBuf::as_path).collect();

    // Machines with fewer programs have a ramdisk of their own.
    let name = format!("ramdisk-{}-{}", processor.name(), programs.len());
    build_if_stale(&name, &parts, |to| {
        let compiled = TempDir::with_prefix("jig-test-programs-").unwrap();
        compile_all(processor.compiler(), compiled.path());
        let status = Command::new(scripts.join("ramdisk.sh"))
            .arg(processor.name())
            .args([to, compiled.path(), &kernels])
            .args(&programs)
            .status()
            .unwrap();
        assert!(status.success(), "ramdisk.sh failed");
    })
}

/// Path of the ramdisk with systemd and the shipped units, for the processor of this machine.
fn build_systemd_ramdisk(base: &Path) -> PathBuf {
    let manifest = Path::new(MANIFEST_DIR);
    let (script, units) =
        (manifest.join("tests/systemd/ramdisk.sh"), manifest.join("deploy/systemd"));
    let client = Path::new(env!("CARGO_BIN_EXE_jig"));
    build_if_stale("ramdisk-systemd", &[base, &script, &units], |to| {
        let status = Command::new(&script)
            .args([to, base, &units, daemon_binary(), client])
            .status()
            .unwrap();
        assert!(status.success(), "ramdisk.sh failed");
    })
}
