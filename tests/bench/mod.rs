//! Load with faults: `jig bench load` on a daemon of its own, with a state directory on a small
//! disk. The simulation of fleets, in `fleet_simulation`, has tests of its own, in Python.
//!
//! The command checks every answer; client/bench/load says how. The tests check its report, and
//! that the faults happened. `JIG_FULL=1` runs it for 30 minutes instead of 80 seconds. A virtual
//! machine has a clock that can be set.

use std::{
    collections::BTreeSet,
    process::{Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Kernel, full_size, guest};

/// Mounts a disk for the state directory, which only the load and its daemon see.
const SMALL_DISK_SCRIPT: &str = r#"
    mount -t tmpfs -o size=768m,mode=700 tmpfs "$1" && exec "$0" bench load --json --faults \
        --fill-disk "$1" --duration "$2" --fault-interval "$3" --agents 8
"#;

#[tokio::test]
async fn load_with_faults_loses_and_leaks_nothing() {
    let disk = TempDir::with_prefix("jig-test-disk-").unwrap();
    let duration = full_size(30 * 60, 80).to_string();
    let interval = full_size(10, 3).to_string();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", SMALL_DISK_SCRIPT, env!("CARGO_BIN_EXE_jig")]);
    command.arg(disk.path()).args([&duration, &interval]);

    let report = run_load(&mut command);
    let calls: BTreeSet<_> = names(&report["calls"], "call");
    for call in ["run, sleeps", "write_file", "start, attach", "submit_job", "decide_approval"] {
        assert!(calls.contains(call), "{call} was not called: {calls:?}");
    }
    let faults: BTreeSet<_> = names(&report["faults"], "fault");
    assert_eq!(faults.len(), 9, "{faults:?}");
    assert!(report["checks"].as_u64().unwrap() > 100, "{report:#}");

    let faults = report["faults"].as_array().unwrap();
    let slow = faults.iter().find(|fault| fault["fault"] == "slow readers").unwrap();
    let detail = slow["detail"].as_str().unwrap();
    let kib = detail.strip_prefix("8 readers, ").unwrap().trim_end_matches(" KiB");
    assert!(kib.parse::<u64>().unwrap() > 8, "not even a KiB each: {detail}");
}

#[tokio::test]
async fn clock_that_is_set_back_loses_nothing() {
    if guest(Kernel::Debian13).run_current_test(|| {}).await {
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_jig"));
    command.args(["bench", "load", "--json", "--faults", "--set-clock", "--agents", "2"]);
    command.args(["--time-scale", "0.005", "--duration", "25", "--fault-interval", "1"]);

    let report = run_load(&mut command);
    let faults: BTreeSet<_> = names(&report["faults"], "fault");
    assert!(faults.contains("clock set back"), "{faults:?}");
    assert!(report["checks"].as_u64().unwrap() > 20, "{report:#}");
}

#[test]
fn simulation_of_fleets_agrees_with_theory_and_measurements() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bench/fleet_simulation");
    let mut command = Command::new("python3");
    // Without files of bytecode beside the sources.
    command.args(["-B", "-m", "unittest", "discover", "-s", directory]).stdin(Stdio::null());

    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs a load, and checks that it reports no problem. Returns its report.
fn run_load(command: &mut Command) -> Value {
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    // If there are problems, an error follows the report.
    let report = output.stdout.split(|byte| *byte == b'\n').next().unwrap();
    let report: Value = serde_json::from_slice(report).expect(&errors);
    assert_eq!(report["problems"], Value::Array(Vec::new()));
    assert!(output.status.success(), "{errors}");
    report
}

fn names<'a>(entries: &'a Value, field: &str) -> BTreeSet<&'a str> {
    entries.as_array().unwrap().iter().filter_map(|entry| entry[field].as_str()).collect()
}
