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
pub(crate) fn tools_folder() -> PathBuf {
    let tools = env::var_os("JIG_TOOLS_DIR").map(PathBuf::from);
    tools.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools"))
}

/// Has a script of the tests put there what is missing.
pub(crate) fn run_setup_script(script: &str) {
    let _guard = lock_builds();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let status = Command::new(&path).stdin(Stdio::null()).status().unwrap();
    assert!(status.success(), "{} failed", path.display());
}

/// The file `name` in there; `make` makes it when it is missing, or older than one of `sources`.
pub(crate) fn build_if_stale(name: &str, sources: &[&Path], make: impl FnOnce(&Path)) -> PathBuf {
    let _guard = lock_builds();
    let path = tools_folder().join(name);
    let newest = sources.iter().map(|source| newest_modification(source)).max().unwrap();
    if !path.exists() || newest_modification(&path) < newest {
        fs::create_dir_all(tools_folder()).unwrap();
        // Other runs of the tests see it whole or not at all.
        let part = tools_folder().join(format!("{name}.{}", std::process::id()));
        make(&part);
        fs::rename(part, &path).unwrap();
    }
    path
}

fn lock_builds() -> MutexGuard<'static, ()> {
    static BUILD_LOCK: Mutex<()> = Mutex::new(());
    BUILD_LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When a file, or the newest in a folder, was changed.
fn newest_modification(path: &Path) -> SystemTime {
    let own = fs::metadata(path).unwrap();
    let entries = fs::read_dir(path).into_iter().flatten();
    let entries = entries.map(|entry| entry.unwrap().metadata().unwrap());
    let times = entries.chain([own]).map(|found| found.modified().unwrap());
    times.max().unwrap()
}
