//! The Landlock rules of L1 commands: what they may open.

use std::{
    ffi::{CString, NulError},
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use super::super::{
    etc::{ETC_DIRECTORIES, ETC_FILES, java_directories},
    landlock::{LandlockRules, PathAccess, ScopeReach},
    plan::{SYSTEM_DIRECTORIES, WorkspacePlan},
    root::DEVICE_NODES,
    stage::{Stage, StageFailure},
};
use crate::daemon::sys::Errno;

/// Files of the host's `/etc` that commands read at L1. At the higher levels they are generated.
const READABLE_ETC_FILES: &[&str] =
    &["passwd", "group", "nsswitch.conf", "hosts", "hostname", "shells"];

/// Rules with scopes only: signals and abstract sockets are confined to this process's descendants.
pub(super) fn scope_rules(abi: u32) -> LandlockRules {
    LandlockRules::new(
        abi,
        ScopeReach::SameDomainAndAllFiles,
        [(c"/".to_owned(), PathAccess::MoveOnly)],
    )
}

pub(super) fn command_rules(
    abi: u32,
    workspace: &WorkspacePlan,
    scratch: &Path,
) -> Result<LandlockRules, StageFailure> {
    check_source_identities(workspace)?;

    let etc = ETC_DIRECTORIES
        .iter()
        .chain(ETC_FILES)
        .chain(READABLE_ETC_FILES)
        .map(|name| Path::new("/etc").join(name));
    let readable = SYSTEM_DIRECTORIES
        .iter()
        .map(PathBuf::from)
        .chain(etc)
        .chain(java_directories())
        .chain([PathBuf::from("/proc")]);
    // A container's /dev can hold anything under these names.
    let devices = DEVICE_NODES.iter().filter_map(|(name, (major, minor))| {
        let path = Path::new("/dev").join(name);
        let metadata = fs::metadata(&path).ok()?;
        let is_device = metadata.file_type().is_char_device()
            && metadata.rdev() == rustix::fs::makedev(*major, *minor);
        is_device.then_some(path)
    });
    let binds = workspace.binds.iter().map(|bind| {
        let access = if bind.writable { PathAccess::Write } else { PathAccess::Read };
        (bind.source.clone(), access)
    });
    let own = [workspace.path.clone(), scratch.to_owned()];

    let paths = readable
        .map(|path| (path, PathAccess::Read))
        .chain(devices.map(|path| (path, PathAccess::Devices)))
        .filter(|(path, _)| path.exists())
        .chain(binds)
        .chain(own.map(|path| (path, PathAccess::Write)))
        .map(|(path, access)| {
            let path = CString::new(path.into_os_string().into_encoded_bytes());
            path.map(|path| (path, access)).map_err(nul_failure)
        })
        .collect::<Result<Vec<_>, _>>()?;

    let mut rules = LandlockRules::new(abi, ScopeReach::SameDomainWithoutTcp, paths);
    // Checked again when they are opened: in between, a run of an enclosing workspace could replace
    // them.
    for (path, identity) in source_identities(workspace) {
        let path = CString::new(path.as_os_str().as_encoded_bytes());
        rules = rules.expect_identity(path.map_err(nul_failure)?, identity);
    }
    Ok(rules)
}

fn nul_failure(_: NulError) -> StageFailure {
    StageFailure::other(Stage::Landlock, "a path holds a NUL")
}

/// The paths of the workspace and its binds, with the identities that they had at startup.
fn source_identities(workspace: &WorkspacePlan) -> impl Iterator<Item = (&PathBuf, (u64, u64))> {
    let binds = workspace.binds.iter().map(|bind| (&bind.source, bind.file_identity));
    binds.chain([(&workspace.path, workspace.file_identity)])
}

/// Checks that the workspace and its binds were not replaced since startup.
fn check_source_identities(workspace: &WorkspacePlan) -> Result<(), StageFailure> {
    for (path, identity) in source_identities(workspace) {
        let current = fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()));
        if current.ok() != Some(identity) {
            let text = format!(
                "{} was replaced after the daemon started: restart the daemon",
                path.display()
            );
            return Err(StageFailure::from_errno(Stage::OpenSource, Errno::STALE, text));
        }
    }
    Ok(())
}
