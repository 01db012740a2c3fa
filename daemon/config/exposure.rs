//! Parses binds, and checks that commands cannot reach what they must not see of the host.
//!
//! Commands must not reach the state directory, sockets, key files and configuration of the daemon.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
};

use super::{
    WorkspaceConfig, file::FleetTable, listen::ListenAddr, tls::TlsFiles,
    trusted_path::MAX_SYMLINKS,
};
use crate::daemon::sandbox::plan::{BindMount, SANDBOX_HOME, SYSTEM_DIRECTORIES};

/// Bind destinations that are rejected, because the sandbox mounts these itself.
const RESERVED_DESTINATIONS: &[&str] = &["/proc", "/sys", "/dev", "/tmp", "/etc", SANDBOX_HOME];
/// Reserved itself, but binds below it are allowed: programs read configuration files there.
const GENERATED_DIR: &str = "/etc";
/// Files below [`GENERATED_DIR`] that the sandbox creates.
const GENERATED_FILES: &[&str] = &[
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/hosts",
    "/etc/hostname",
    "/etc/shells",
    "/etc/resolv.conf",
];
/// Directories that commands must not see as a whole.
const FORBIDDEN_SOURCES: &[&str] = &["/", "/dev", "/run", "/var/run"];
/// Directories that commands must not see, with everything below them.
const FORBIDDEN_SOURCE_TREES: &[&str] = &["/proc", "/sys"];

/// System directories: `--chown-workspace` refuses them and their parents.
const SYSTEM_DIRS: &[&str] = &[
    "/bin",
    "/boot",
    "/etc",
    "/home",
    "/lib",
    "/lib32",
    "/lib64",
    "/media",
    "/mnt",
    "/opt",
    "/root",
    "/sbin",
    "/srv",
    "/tmp",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/local",
    "/usr/sbin",
    "/usr/share",
    "/usr/src",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/spool",
    "/var/tmp",
];
/// System directories: `--chown-workspace` refuses everything below them too.
const SYSTEM_TREES: &[&str] = &[
    "/bin",
    "/boot",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/sbin",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/sbin",
    "/usr/share",
];

/// A file that gives access to the daemon or to its callers.
#[derive(Debug, Clone, Copy)]
pub(super) struct CredentialFile<'a> {
    path: &'a Path,
    flag: &'static str,
    /// Whether commands may read it.
    is_public: bool,
}

impl<'a> CredentialFile<'a> {
    /// The credential files of a daemon.
    pub(super) fn all(
        key_file: Option<&'a Path>,
        config: Option<&'a Path>,
        tls: impl Iterator<Item = &'a TlsFiles>,
    ) -> Vec<Self> {
        let file = |path, flag, is_public| Self { path, flag, is_public };
        let own = [(key_file, "--keys"), (config, "--config")];
        let own = own.into_iter().filter_map(|(path, flag)| Some(file(path?, flag, false)));
        let tls = tls.flat_map(|files| {
            let client_ca = files.client_ca.as_deref();
            [file(&files.key, "--tls-key", false), file(&files.cert, "--tls-cert", true)]
                .into_iter()
                .chain(client_ca.map(|path| file(path, "--tls-client-ca", true)))
        });
        own.chain(tls).collect()
    }

    /// The files of a fleet.
    pub(super) fn of_fleet(table: &'a FleetTable) -> impl Iterator<Item = Self> {
        table.files().map(|(path, flag, is_public)| Self { path, flag, is_public })
    }
}

/// Checks that no workspace of `--chown-workspace` is a system directory or the home directory.
pub(super) fn check_chown(workspaces: &[WorkspaceConfig], problems: &mut Vec<String>) {
    let home = std::env::home_dir().and_then(|home| fs::canonicalize(home).ok());
    for path in workspaces.iter().map(|workspace| &workspace.path) {
        let mut directories = SYSTEM_DIRS.iter().map(Path::new).chain(home.as_deref());
        let mut trees = SYSTEM_TREES.iter();
        if directories.any(|directory| directory.starts_with(path))
            || trees.any(|tree| path.starts_with(tree))
        {
            problems.push(format!(
                "--chown-workspace: {} is a system directory, whose files keep their owner; give the directory of the project",
                path.display()
            ));
        }
    }
}

/// Whether `path`, which has no symbolic links, would show the host to commands.
pub(super) fn exposes_host(path: &Path) -> bool {
    FORBIDDEN_SOURCES.iter().any(|revealing| path == Path::new(revealing))
        || FORBIDDEN_SOURCE_TREES.iter().any(|tree| path.starts_with(tree))
}

/// Parses the binds of `flag`. Reports the invalid ones and returns the others.
pub(super) fn parse_binds(
    texts: &[String],
    flag: &str,
    writable: bool,
    problems: &mut Vec<String>,
) -> Vec<BindMount> {
    texts
        .iter()
        .filter_map(|text| {
            parse_bind(text, writable)
                .map_err(|problem| problems.push(format!("{flag} {text}: {problem}")))
                .ok()
        })
        .collect()
}

fn parse_bind(text: &str, writable: bool) -> Result<BindMount, String> {
    let (source, destination) = match text.split_once(':') {
        Some((source, destination)) => (source, destination),
        None => (text, text),
    };
    let path =
        fs::canonicalize(source).map_err(|error| format!("{error}: give an existing path"))?;
    let destination = PathBuf::from(destination);
    check_destination(&destination)?;

    if exposes_host(&path) {
        return Err(format!("{} would show the host to commands", path.display()));
    }
    let metadata = fs::metadata(&path).map_err(|error| error.to_string())?;
    if !metadata.is_dir() && !metadata.is_file() {
        return Err("a socket, FIFO or device cannot be bound".to_owned());
    }
    Ok(BindMount {
        source: path,
        destination,
        writable,
        file_identity: (metadata.dev(), metadata.ino()),
    })
}

/// Checks the destination of a bind, or the mount path of a workspace.
pub(super) fn check_destination(path: &Path) -> Result<(), String> {
    let plain = path
        .components()
        .all(|component| matches!(component, Component::RootDir | Component::Normal(_)));
    if !path.is_absolute() || !plain || path == Path::new("/") {
        return Err(format!("{} must be an absolute path without `.` and `..`", path.display()));
    }

    let is_hidden = |reserved: &&&str| {
        let is_addition = **reserved == GENERATED_DIR && path != Path::new(GENERATED_DIR);
        path.starts_with(reserved) && !is_addition || Path::new(reserved).starts_with(path)
    };
    match RESERVED_DESTINATIONS.iter().chain(GENERATED_FILES).find(is_hidden) {
        Some(reserved) => {
            Err(format!("{} would hide {reserved}, which the sandbox provides", path.display()))
        }
        None => Ok(()),
    }
}

/// Returns the binds below a writable one, where commands could plant symbolic links.
pub(super) fn binds_below_writable(binds: &[BindMount]) -> impl Iterator<Item = (&Path, &Path)> {
    binds.iter().filter(|outer| outer.writable).flat_map(|outer| {
        let below = binds.iter().filter(|inner| {
            inner.destination != outer.destination
                && inner.destination.starts_with(&outer.destination)
        });
        below.map(|inner| (outer.destination.as_path(), inner.destination.as_path()))
    })
}

/// Returns the binds whose destination would have to be created in a directory that is read-only,
/// with this directory.
pub(super) fn binds_without_destination(
    binds: &[BindMount],
) -> impl Iterator<Item = (&Path, &Path)> {
    binds.iter().filter_map(|bind| {
        let path = bind.destination.as_path();
        // Where the sandbox has a directory of the host, and which one.
        let outer = binds.iter().map(|outer| (outer.destination.as_path(), outer.source.as_path()));
        let system = SYSTEM_DIRECTORIES.iter().map(|name| (Path::new(name), Path::new(name)));
        let (outer, source) = outer
            .chain(system)
            .filter(|(outer, _)| path.starts_with(outer) && path != *outer)
            .max_by_key(|(outer, _)| outer.components().count())?;
        let rest = path.strip_prefix(outer).ok()?;
        let is_missing = fs::symlink_metadata(source.join(rest)).is_err();
        is_missing.then_some((path, outer))
    })
}

/// Checks that commands cannot reach the daemon's state directory, its audit log if there is one,
/// its sockets and its credential `files`. Each of the `addresses` has the name of its setting.
///
/// Also checks that no bind lies in a writable directory, where commands could replace it, and that
/// no workspace contains another one.
pub(super) fn check_exposure(
    workspaces: &[WorkspaceConfig],
    (state_dir, audit_log): (&Path, Option<&Path>),
    addresses: &[(&ListenAddr, &'static str)],
    files: &[CredentialFile<'_>],
    problems: &mut Vec<String>,
) {
    check_workspaces_disjoint(workspaces, problems);
    check_credential_files_hidden(workspaces, files, problems);

    let visible = visible_paths(workspaces);
    let state_dir = canonicalize_existing(state_dir);
    let sockets = addresses.iter().filter_map(|(address, setting)| match address {
        ListenAddr::Unix(path) => Some((canonicalize_existing(path), *setting)),
        ListenAddr::Tcp(_) => None,
    });
    let audit_log = audit_log.map(|path| (canonicalize_existing(path), "--audit-log"));
    let own = [(state_dir.clone(), "--state-dir")].into_iter().chain(audit_log);
    check_hidden(&visible, sockets.chain(own), problems);

    for visible in visible.iter().filter(|visible| visible.starts_with(&state_dir)) {
        problems.push(format!(
            "{} is in the daemon's state directory {}: choose another one with --state-dir",
            visible.display(),
            state_dir.display()
        ));
    }

    let writable = writable_paths(workspaces);
    for bind in workspaces.iter().flat_map(|workspace| &workspace.binds) {
        let inside = |tree: &&PathBuf| bind.source != **tree && bind.source.starts_with(tree);
        if let Some(tree) = writable.iter().find(inside) {
            problems.push(format!(
                "{} is in {}, where commands could replace it: bind something else",
                bind.source.display(),
                tree.display()
            ));
        }
    }
}

/// Checks that commands cannot reach the credential `files`, or symbolic links on the way to them.
///
/// Commands may read certificates, but not replace them.
pub(super) fn check_credential_files_hidden(
    workspaces: &[WorkspaceConfig],
    files: &[CredentialFile<'_>],
    problems: &mut Vec<String>,
) {
    for (is_public, reachable) in
        [(false, visible_paths(workspaces)), (true, writable_paths(workspaces))]
    {
        let files = files.iter().filter(|file| file.is_public == is_public);
        let paths = files
            .flat_map(|file| symlink_chain(file.path).into_iter().map(|path| (path, file.flag)));
        check_hidden(&reachable, paths, problems);
    }
}

/// Returns the paths of the host that commands can change.
fn writable_paths(workspaces: &[WorkspaceConfig]) -> Vec<PathBuf> {
    let writable = workspaces.iter().flat_map(|workspace| {
        let binds = workspace.binds.iter().filter(|bind| bind.writable);
        std::iter::once(&workspace.path).chain(binds.map(|bind| &bind.source))
    });
    writable.cloned().collect()
}

/// Returns the paths of the host that commands see.
fn visible_paths(workspaces: &[WorkspaceConfig]) -> Vec<PathBuf> {
    let system = SYSTEM_DIRECTORIES.iter().filter_map(|path| fs::canonicalize(path).ok());
    let configured = workspaces.iter().flat_map(|workspace| {
        let sources = workspace.binds.iter().map(|bind| bind.source.clone());
        std::iter::once(workspace.path.clone()).chain(sources)
    });
    system.chain(configured).collect()
}

/// Checks that no path in `own`, each with its flag, is in a `visible` path.
fn check_hidden(
    visible: &[PathBuf],
    own: impl Iterator<Item = (PathBuf, &'static str)>,
    problems: &mut Vec<String>,
) {
    for (path, flag) in own {
        if let Some(visible) = visible.iter().find(|visible| path.starts_with(visible)) {
            problems.push(format!(
                "commands could reach {} through {}: choose a path outside of it with {flag}",
                path.display(),
                visible.display()
            ));
        }
    }
}

/// Checks that a key for one workspace gives no access to another one.
///
/// Workspaces must not share files, and commands of one must not see another.
fn check_workspaces_disjoint(workspaces: &[WorkspaceConfig], problems: &mut Vec<String>) {
    let identity = |path: &Path| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    for (index, one) in workspaces.iter().enumerate() {
        for other in workspaces.iter().skip(index + 1) {
            let overlap = one.path.starts_with(&other.path)
                || other.path.starts_with(&one.path)
                || identity(&one.path).is_some_and(|one| Some(one) == identity(&other.path));
            if overlap {
                problems.push(format!(
                    "the workspaces {} ({}) and {} ({}) share files, so that access to one is access to the other: give separate directories",
                    one.name,
                    one.path.display(),
                    other.name,
                    other.path.display()
                ));
            }
        }
    }
    if workspaces.len() < 2 {
        return;
    }

    let system: Vec<PathBuf> =
        SYSTEM_DIRECTORIES.iter().filter_map(|path| fs::canonicalize(path).ok()).collect();
    for workspace in workspaces {
        let lies_in = |tree: &&PathBuf| workspace.path.starts_with(tree);
        if let Some(tree) = system.iter().find(lies_in) {
            problems.push(format!(
                "the workspace {} is in {}, which commands of all workspaces see: move it, or serve it alone",
                workspace.name,
                tree.display()
            ));
        }
        let others = workspaces.iter().filter(|other| other.name != workspace.name);
        for bind in others.flat_map(|other| &other.binds) {
            if workspace.path.starts_with(&bind.source) {
                problems.push(format!(
                    "the workspace {} is in {}, which is bound for commands of another workspace: bind something else",
                    workspace.name,
                    bind.source.display()
                ));
            }
        }
    }
}

/// Returns the path of a file and of each symbolic link on the way to it.
///
/// A process that can replace one of them can replace the file.
pub(crate) fn symlink_chain(path: &Path) -> Vec<PathBuf> {
    let mut at = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut chain = vec![at.clone()];
    for _ in 0..MAX_SYMLINKS {
        let (Some(directory), Some(name)) = (at.parent(), at.file_name()) else {
            break;
        };
        let path = canonicalize_existing(directory).join(name);
        let target = fs::read_link(&path);
        if !chain.contains(&path) {
            chain.push(path.clone());
        }
        match (target, path.parent()) {
            (Ok(target), Some(directory)) => at = directory.join(target),
            _ => break,
        }
    }
    chain
}

/// Returns `path` without symbolic links in the part that exists.
fn canonicalize_existing(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for ancestor in path.ancestors() {
        if let Ok(real) = fs::canonicalize(ancestor) {
            let rest = path.strip_prefix(ancestor).unwrap_or(Path::new(""));
            let (mut resolved, mut leads_up) = (real, false);
            for name in rest.components() {
                // A missing component is not a link. If it is created, `..` leads out of it.
                if name == Component::ParentDir {
                    leads_up = true;
                    resolved.pop();
                } else {
                    resolved.push(name);
                }
            }
            return if leads_up { canonicalize_existing(&resolved) } else { resolved };
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path};

    use super::{canonicalize_existing, check_destination};

    #[test]
    fn missing_paths_are_resolved() {
        let directory = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(directory.path()).unwrap();
        fs::create_dir(real.join("there")).unwrap();
        symlink(real.join("there"), real.join("link")).unwrap();
        for (path, expected) in [
            ("there", "there"),
            ("link/new/er", "there/new/er"),
            ("none/../there/new", "there/new"),
            ("none/../link/new", "there/new"),
            ("link/../there", "there"),
            ("link/none/../../there/x", "there/x"),
        ] {
            assert_eq!(canonicalize_existing(&real.join(path)), real.join(expected), "{path}");
        }
    }

    #[test]
    fn binds_cannot_hide_paths_of_the_sandbox() {
        for (path, allowed) in [
            ("/cache", true),
            ("/etc/npmrc", true),
            ("/etc/texmf", true),
            ("/home/other", true),
            ("/", false),
            ("/etc", false),
            ("/etc/passwd", false),
            ("/etc/resolv.conf", false),
            ("/etc/../proc", false),
            ("/home", false),
            ("/home/agent", false),
            ("/home/agent/.cache", false),
            ("/proc/1", false),
            ("/tmp/x", false),
            ("relative", false),
        ] {
            assert_eq!(check_destination(Path::new(path)).is_ok(), allowed, "{path}");
        }
    }
}
