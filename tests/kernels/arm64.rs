//! An arm64 processor: static programs of the cross build. At full size, virtual machines run them
//! with Debian's kernels; otherwise they are only compiled, which takes a third of the time.
//! The program, the tests and the C programs that attack it are those for arm64.

use std::{path::Path, sync::Arc};

use super::{attack_arguments, check_attacks, print_attacks, print_to_stderr};
use crate::support::{Arm64Programs, Kernel, full_size, guest};

/// What to expect of a kernel on arm64.
struct Expected {
    kernel: Kernel,
    landlock: &'static str,
    page_bytes: &'static str,
    /// How a 32-bit program ends. Kernels with larger pages execute none.
    foreign_call: &'static str,
}

const KERNELS: [Expected; 3] = [
    Expected {
        kernel: Kernel::Debian13,
        landlock: "version 6",
        page_bytes: "4096",
        foreign_call: "SIGSYS",
    },
    Expected {
        kernel: Kernel::Debian12,
        landlock: "version 2",
        page_bytes: "4096",
        foreign_call: "SIGSYS",
    },
    Expected {
        kernel: Kernel::Debian13WithPagesOf16KiB,
        landlock: "version 6",
        page_bytes: "16384",
        foreign_call: "ENOEXEC",
    },
];

/// C programs that attack the filter, with the number of their attempts. All attempts fail. The
/// integration tests know the error of each.
const PROGRAMS: &[(&str, usize)] =
    &[("foreign_calls", 11), ("kernel_flaws", 20), ("refused", 30), ("set_id", 17)];
/// Errors by which the filter refuses a call.
const REFUSALS: [&str; 3] = ["EPERM", "ENOSYS", "EAFNOSUPPORT"];

/// The lines of a section of the output of smoke.sh.
fn section<'a>(output: &'a str, name: &str) -> Vec<&'a str> {
    let header = format!("== {name}");
    let lines = output.lines().skip_while(|line| *line != header).skip(1);
    lines.take_while(|line| !line.starts_with("== ") && !line.starts_with("guest: ")).collect()
}

/// Boots a kernel and checks that the daemon gives L3 as root and as an ordinary user, and that
/// attacks on the filter fail.
async fn check_filter(expected: &Expected, programs: &Arc<Arm64Programs>) {
    let names = PROGRAMS.iter().map(|(name, _)| *name);
    let arguments: Vec<&str> =
        [programs.client.to_str().unwrap()].into_iter().chain(names).collect();
    let machine = guest(expected.kernel).on_arm64(programs);
    let output = machine.boot_program(Path::new("/smoke"), &arguments).await;
    let output = output.text();

    assert!(output.contains("guest: exit code 0\n"), "{output}");
    for user in ["root", "user"] {
        let report = section(output, &format!("jigd --check, {user}"));
        assert!(report.iter().any(|line| line.ends_with(": isolation L3 ok")), "{output}");
        let landlock = report.iter().find(|line| line.starts_with("  landlock "));
        assert!(landlock.is_some_and(|line| line.contains(expected.landlock)), "{output}");
    }
    assert_eq!(section(output, "uname"), ["aarch64", expected.page_bytes], "{output}");

    for (program, attempts) in PROGRAMS {
        let answers = section(output, program);
        assert_eq!(answers.len(), *attempts, "{program}:\n{output}");
        for answer in answers {
            let (attempt, error) = answer.rsplit_once(": ").unwrap();
            let is_refused = if attempt.contains("32-bit") {
                error == expected.foreign_call
            } else {
                REFUSALS.contains(&error)
            };
            assert!(is_refused, "{program}: {answer}\n{output}");
        }
    }

    let (first, last) = (output.lines().next(), output.lines().last());
    print_to_stderr(&format!("{}; {}", first.unwrap_or_default(), last.unwrap_or_default()));
}

/// Runs the unit tests of the sandbox and of the system calls.
async fn run_unit_tests(programs: &Arc<Arm64Programs>) {
    let machine = guest(Kernel::Debian13).on_arm64(programs);
    let output =
        machine.boot_program(&programs.unit_tests, &["daemon::sandbox::", "daemon::sys::"]).await;

    assert_eq!(output.failed_tests(), [""; 0], "{}", output.text());
    assert!(output.test_counts().0 >= 20, "{}", output.text());
}

#[tokio::test]
async fn arm64_builds_and_at_full_size_withstands_attacks() {
    if full_size(1, 0) == 0 {
        Arm64Programs::check();
        print_to_stderr("arm64: compiled. Virtual machines run it with JIG_FULL=1 only");
        return;
    }

    let programs = Arc::new(Arm64Programs::build());
    for expected in &KERNELS {
        check_filter(expected, &programs).await;
        let machine = guest(expected.kernel).on_arm64(&programs);
        let output = machine.boot(&attack_arguments(true)).await;
        check_attacks(&output, true);
        print_attacks(&output);
    }
    run_unit_tests(&programs).await;
}
