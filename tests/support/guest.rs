//! Virtual machines with kernels of Debian's, under software emulation, in which tests run that need
//! another kernel than the host's, or one to themselves.
//!
//! A test is the same program here and there: on the host it boots the machine, which runs that test
//! alone; in the machine it goes on to its body.
//!
//! ```ignore
//! #[tokio::test]
//! async fn limits_of_cgroups_hold() {
//!     if guest(Kernel::Debian12).runs(|| {}).await {
//!         return; // the host has seen it succeed there
//!     }
//!     // in the machine
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
    build_cache::{build_if_stale, run_setup_script, tools_folder},
    program::{compile_all, program_sources},
    setup::daemon_binary,
    wait::MachineLock,
};

/// How long a machine may run: several times what the slowest test needs on a slow host.
const GUEST_TIMEOUT: Duration = Duration::from_secs(900);
const MANIFEST_DIR: &str = env!("CARGO_MANIFEST_DIR");

/// A kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Linux 6.1 of Debian 12: Landlock without rules for the network and without scopes.
    Debian12,
    /// Linux 6.12 of Debian 13.
    Debian13,
}

/// A machine that is not booted yet.
#[derive(Debug, Clone)]
pub(crate) struct Guest {
    kernel: Kernel,
    options: Vec<String>,
}

/// What a machine has printed.
#[derive(Debug)]
pub(crate) struct GuestOutput(String);

/// A machine with this kernel.
pub(crate) fn guest(kernel: Kernel) -> Guest {
    Guest { kernel, options: Vec::new() }
}

/// Whether this is the inside of a machine.
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
        let image = tools_folder().join("kernels").join(self.version());
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

    /// On the host, runs the test in which `here` was written in the machine, sees that it succeeds,
    /// and answers true. In the machine, answers false.
    pub(crate) async fn run_current_test<F>(self, _here: F) -> bool {
        if is_guest() {
            return false;
        }
        let path = std::any::type_name::<F>();
        let (_, path) = path.split_once("::").unwrap();
        let path = path.split("::{{closure}}").next().unwrap();
        let printed = self.boot(&["--exact", path]).await;
        assert_eq!(printed.test_counts(), (1, 0), "{}", printed.0);
        true
    }

    /// Boots the machine, has it run the tests that `arguments` select, and waits for its end. Once more
    /// where its kernel has stumbled over what it changes in its own code: to the emulated CPUs that is not
    /// one step, as it is to real ones.
    pub(crate) async fn boot(&self, arguments: &[&str]) -> GuestOutput {
        let _turn = MachineLock::acquire(true).await;
        let printed = self.boot_once(arguments).await;
        match printed.0.contains("Oops: int3") {
            true => self.boot_once(arguments).await,
            false => printed,
        }
    }

    async fn boot_once(&self, arguments: &[&str]) -> GuestOutput {
        let image = self.kernel.image();
        let options = [
            // On a loaded machine the emulated clock is found to be unstable; what the kernel then
            // changes in its own code has made it stumble under emulation.
            "console=ttyS0 quiet panic=-1 lsm=landlock,yama tsc=reliable",
            &self.options.join(" "),
            "--",
            &arguments.join(" "),
        ];
        let ramdisk = build_ramdisk();
        let began = Instant::now();
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
        let ended = tokio::time::timeout(GUEST_TIMEOUT, reader).await;
        let _dead_already = machine.kill();
        machine.wait().unwrap();
        let text = ended.expect("the machine ends in time").unwrap();
        let (_, text) = text
            .split_once("guest: ")
            .unwrap_or_else(|| panic!("the machine did not boot:\n{text}"));
        let seconds = began.elapsed().as_secs_f32();
        GuestOutput(format!("guest: {text}host: {seconds:.1} s\n"))
    }
}

impl GuestOutput {
    /// How many tests have succeeded, and how many have failed.
    pub(crate) fn test_counts(&self) -> (usize, usize) {
        (self.tests_ending_in(" ... ok").len(), self.failed_tests().len())
    }

    /// The tests that have failed.
    pub(crate) fn failed_tests(&self) -> Vec<&str> {
        self.tests_ending_in(" ... FAILED")
    }

    /// What was printed.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    fn tests_ending_in(&self, how: &str) -> Vec<&str> {
        let names = self.0.lines().filter_map(|line| {
            let name = line.strip_prefix("test ")?.strip_suffix(how)?;
            Some(name.trim_end_matches(" - should panic"))
        });
        names.collect()
    }
}

/// The ramdisk, made when something in it has changed.
fn build_ramdisk() -> PathBuf {
    let (tests, script) =
        (env::current_exe().unwrap(), Path::new(MANIFEST_DIR).join("tests/kernels/ramdisk.sh"));
    let client = Path::new(env!("CARGO_BIN_EXE_jig"));
    let kernels = tools_folder().join("kernels");
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
            assert!(status.success(), "the ramdisk is made");
        },
    )
}
