//! Built files that are reused between test runs until one of their sources changes.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

/// Directory of files that are not part of the repository: `$JIG_TOOLS_DIR`, or `target/tools`.
pub(crate) fn tools_directory() -> PathBuf {
    let tools = env::var_os("JIG_TOOLS_DIR").map(PathBuf::from);
    tools.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools"))
}

/// Runs a setup script of the tests, which adds what is missing in [`tools_directory`].
pub(crate) fn run_setup_script(script: &str) {
    let _guard = lock_builds();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let status = Command::new(&path).stdin(Stdio::null()).status().unwrap();
    assert!(status.success(), "{} failed", path.display());
}

/// Returns the path of the file `name` in [`tools_directory`]. Calls `make` when the file is
/// missing or older than one of `sources`.
pub(crate) fn build_if_stale(name: &str, sources: &[&Path], make: impl FnOnce(&Path)) -> PathBuf {
    let _guard = lock_builds();
    let path = tools_directory().join(name);
    let newest = sources.iter().map(|source| newest_modification(source)).max().unwrap();
    if !path.exists() || newest_modification(&path) < newest {
        fs::create_dir_all(tools_directory()).unwrap();
        // The rename is atomic: other test runs see either the whole file or none.
        let part = tools_directory().join(format!("{name}.{}", std::process::id()));
        make(&part);
        fs::rename(part, &path).unwrap();
    }

    path
}

fn lock_builds() -> MutexGuard<'static, ()> {
    static BUILD_LOCK: Mutex<()> = Mutex::new(());
    BUILD_LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Modification time of a file, or the latest one of a directory and its entries.
fn newest_modification(path: &Path) -> SystemTime {
    let metadata = fs::metadata(path).unwrap();
    let entries = fs::read_dir(path).into_iter().flatten();
    let entries = entries.map(|entry| entry.unwrap().metadata().unwrap());
    let times = entries.chain([metadata]).map(|metadata| metadata.modified().unwrap());
    times.max().unwrap()
}
