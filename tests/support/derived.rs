//! Files that are made from others, and kept from one run of the tests to the next while those have
//! not changed.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

/// Where what is not part of the repository is kept: `$JIG_TOOLS_DIR`, or `target/tools`.
pub(crate) fn tools() -> PathBuf {
    let tools = env::var_os("JIG_TOOLS_DIR").map(PathBuf::from);
    tools.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools"))
}

/// Has a script of the tests put there what is missing.
pub(crate) fn set_up(script: &str) {
    let _guard = one_at_a_time();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let status = Command::new(&path).stdin(Stdio::null()).status().unwrap();
    assert!(status.success(), "{} failed", path.display());
}

/// The file `name` in there; `make` makes it when it is missing, or older than one of `sources`.
pub(crate) fn derived(name: &str, sources: &[&Path], make: impl FnOnce(&Path)) -> PathBuf {
    let _guard = one_at_a_time();
    let path = tools().join(name);
    let newest = sources.iter().map(|source| modified(source)).max().unwrap();
    if !path.exists() || modified(&path) < newest {
        fs::create_dir_all(tools()).unwrap();
        // Other runs of the tests see it whole or not at all.
        let part = tools().join(format!("{name}.{}", std::process::id()));
        make(&part);
        fs::rename(part, &path).unwrap();
    }
    path
}

fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When a file, or the newest in a folder, was changed.
fn modified(path: &Path) -> SystemTime {
    let own = fs::metadata(path).unwrap();
    let entries = fs::read_dir(path).into_iter().flatten();
    let entries = entries.map(|entry| entry.unwrap().metadata().unwrap());
    let times = entries.chain([own]).map(|found| found.modified().unwrap());
    times.max().unwrap()
}
