//! Virtual machines with Debian's kernels, under software emulation. Tests run in them that need a
//! kernel other than the host's, or a kernel of their own.
//!
//! The same test program runs on both sides. On the host, a test boots the machine, which runs only
//! that test; in the machine, the test executes its body.
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
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::{
    build_cache::{build_if_stale, run_setup_script, tools_directory},
    program::{compile_all, program_sources},
    setup::daemon_binary,
    signals::kill_and_reap,
    wait::MachineLock,
};

/// Time limit of a machine: several times the duration of the slowest test on a slow host.
const GUEST_TIMEOUT: Duration = Duration::from_secs(900);
const MANIFEST_DIR: &str = env!("CARGO_MANIFEST_DIR");

/// The kernel of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Linux 6.1 of Debian 12: its Landlock has neither network rules nor scopes.
    Debian12,
    /// Linux 6.12 of Debian 13.
    Debian13,
}

/// A machine to boot.
#[derive(Debug, Clone)]
pub(crate) struct Guest {
    kernel: Kernel,
    options: Vec<String>,
}

/// The console output of a machine.
#[derive(Debug)]
pub(crate) struct GuestOutput(String);

pub(crate) fn guest(kernel: Kernel) -> Guest {
    Guest { kernel, options: Vec::new() }
}

/// Whether this process runs in a machine.
pub(crate) fn is_guest() -> bool {
    env::var_os("JIG_TEST_GUEST").is_some()
}

impl Kernel {
    fn version(self) -> &'static str {
        match self {
            Self::Debian12 => "6.1",
            Self::Debian13 => "6.12",
        }
    }

    fn image(self) -> PathBuf {
        let image = tools_directory().join("kernels").join(self.version());
        run_setup_script("tests/kernels/install.sh");
        assert!(image.exists(), "{} is missing", image.display());
        image
    }
}

impl Guest {
    /// Adds an option to the kernel's command line.
    pub(crate) fn kernel_option(mut self, option: &str) -> Self {
        self.options.push(option.to_owned());
        self
    }

    /// On the host, runs the calling test in the machine, fails unless it succeeds, and returns
    /// true. In the machine, returns false. `here` is a closure written in that test: its type
    /// names the test.
    pub(crate) async fn run_current_test<F>(self, _here: F) -> bool {
        if is_guest() {
            return false;
        }

        let path = std::any::type_name::<F>();
        let (_, path) = path.split_once("::").unwrap();
        let path = path.split("::{{closure}}").next().unwrap();
        let output = self.boot(&["--exact", path]).await;
        assert_eq!(output.test_counts(), (1, 0), "{}", output.0);

        true
    }

    /// Boots the machine, runs the tests that `arguments` select, and waits until it halts. Boots
    /// it a second time if its kernel crashed while it patched its own code: on emulated CPUs such
    /// a change is not atomic, as it is on real ones.
    pub(crate) async fn boot(&self, arguments: &[&str]) -> GuestOutput {
        let _lock = MachineLock::acquire(true).await;
        let output = self.boot_once(arguments).await;

        if output.0.contains("Oops: int3") { self.boot_once(arguments).await } else { output }
    }

    async fn boot_once(&self, arguments: &[&str]) -> GuestOutput {
        let image = self.kernel.image();
        let options = [
            // On a loaded host the kernel finds the emulated clock unstable. The code that it then
            // patches has crashed it under emulation.
            "console=ttyS0 quiet panic=-1 lsm=landlock,yama tsc=reliable",
            &self.options.join(" "),
            "--",
            &arguments.join(" "),
        ];

        let ramdisk = build_ramdisk();
        let start = Instant::now();
        let mut machine = Command::new("qemu-system-x86_64")
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
            .stdout(Stdio::piped())
            .spawn()
            .expect("qemu-system-x86_64 is needed");

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

/// Path of the ramdisk, which is rebuilt when one of its parts has changed.
fn build_ramdisk() -> PathBuf {
    let (tests, script) =
        (env::current_exe().unwrap(), Path::new(MANIFEST_DIR).join("tests/kernels/ramdisk.sh"));
    let client = Path::new(env!("CARGO_BIN_EXE_jig"));
    let kernels = tools_directory().join("kernels");
    build_if_stale(
        "ramdisk",
        &[&tests, &script, daemon_binary(), client, &program_sources(), &kernels],
        |to| {
            let programs = TempDir::with_prefix("jig-test-programs-").unwrap();
            compile_all(programs.path());
            let status = Command::new(&script)
                .args([to, &tests, programs.path(), &kernels, daemon_binary(), client])
                .status()
                .unwrap();
            assert!(status.success(), "ramdisk.sh failed");
        },
    )
}
