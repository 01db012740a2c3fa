//! What commands may be shown of the host, and where: binds, and what must stay out of their reach.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
};

use super::{WorkspaceConfig, listen::ListenAddr};
use crate::daemon::sandbox::plan::{BindMount, SANDBOX_HOME, SYSTEM_DIRECTORIES};

/// Where nothing may be bound: the sandbox mounts these itself.
const RESERVED_DESTINATIONS: &[&str] = &["/proc", "/sys", "/dev", "/tmp", "/etc", SANDBOX_HOME];
/// Below which more may be bound all the same: what programs of the operator's are configured by.
const GENERATED_DIR: &str = "/etc";
/// What of it the sandbox makes or decides.
const GENERATED_FILES: &[&str] = &[
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/hosts",
    "/etc/hostname",
    "/etc/shells",
    "/etc/resolv.conf",
];
/// What must not be shown to commands as a whole.
const FORBIDDEN_SOURCES: &[&str] = &["/", "/dev", "/run", "/var/run"];
/// What must not be shown to commands, nor anything below it.
const FORBIDDEN_SOURCE_TREES: &[&str] = &["/proc", "/sys"];

/// Where the system keeps what is its own: neither these nor what they lie in may change hands.
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
/// Below which nothing may change hands either.
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

/// Checks that workspaces whose files are to change hands are no directories of the system's.
pub(super) fn check_chown(workspaces: &[WorkspaceConfig], problems: &mut Vec<String>) {
    let home = std::env::home_dir().and_then(|home| fs::canonicalize(home).ok());
    for path in workspaces.iter().map(|workspace| &workspace.path) {
        let mut own = SYSTEM_DIRS.iter().map(Path::new).chain(home.as_deref());
        let mut trees = SYSTEM_TREES.iter();
        if own.any(|own| own.starts_with(path)) || trees.any(|tree| path.starts_with(tree)) {
            problems.push(format!(
                "--chown-workspace: {} is a directory of the system's, whose files stay as they are; give the directory of the project",
                path.display()
            ));
        }
    }
}

/// Whether `path`, without symbolic links, would show commands the host.
pub(super) fn exposes_host(path: &Path) -> bool {
    FORBIDDEN_SOURCES.iter().any(|revealing| path == Path::new(revealing))
        || FORBIDDEN_SOURCE_TREES.iter().any(|tree| path.starts_with(tree))
}

/// Reads binds, as `flag` was given them.
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
    let path = fs::canonicalize(source).map_err(|error| format!("{error}: give what is there"))?;
    let destination = PathBuf::from(destination);
    check_destination(&destination)?;
    if exposes_host(&path) {
        return Err(format!("{} would show the host to commands", path.display()));
    }
    let metadata = fs::metadata(&path).map_err(|error| error.to_string())?;
    if !metadata.is_dir() && !metadata.is_file() {
        return Err("a socket, FIFO or device cannot be given to commands".to_owned());
    }
    Ok(BindMount {
        source: path,
        destination,
        writable,
        file_identity: (metadata.dev(), metadata.ino()),
    })
}

/// Checks a path at which commands are to see something.
pub(super) fn check_destination(path: &Path) -> Result<(), String> {
    let plain = path
        .components()
        .all(|component| matches!(component, Component::RootDir | Component::Normal(_)));
    let shown = path.display();
    if !path.is_absolute() || !plain || path == Path::new("/") {
        return Err(format!("{shown} must be an absolute path without `.` and `..`"));
    }
    let hidden = |reserved: &&&str| {
        let within = path.starts_with(reserved);
        let is_addition = **reserved == GENERATED_DIR && path != Path::new(GENERATED_DIR);
        within && !is_addition || Path::new(reserved).starts_with(path)
    };
    match RESERVED_DESTINATIONS.iter().chain(GENERATED_FILES).find(hidden) {
        Some(reserved) => {
            Err(format!("{shown} would hide {reserved}, which every sandbox has for itself"))
        }
        None => Ok(()),
    }
}

/// Binds to be made below a writable one, where commands could have planted links.
pub(super) fn binds_below_writable(binds: &[BindMount]) -> impl Iterator<Item = (&Path, &Path)> {
    binds.iter().filter(|outer| outer.writable).flat_map(|outer| {
        let below = binds.iter().filter(|inner| {
            inner.destination != outer.destination
                && inner.destination.starts_with(&outer.destination)
        });
        below.map(|inner| (outer.destination.as_path(), inner.destination.as_path()))
    })
}

/// Links that are followed, as in the kernel (path_resolution(7)).
const MAX_SYMLINKS: usize = 40;

/// Sees that commands cannot reach the daemon's state, its sockets or the `files` that say who may call
/// what, nor replace what they are to be shown by something else; and that no workspace shows another.
pub(super) fn check_exposure(
    workspaces: &[WorkspaceConfig],
    state_dir: &Path,
    listen: &[ListenAddr],
    files: [(Option<&Path>, &'static str); 2],
    problems: &mut Vec<String>,
) {
    check_workspaces_disjoint(workspaces, problems);
    check_credential_files_hidden(workspaces, files, problems);
    let visible = visible_paths(workspaces);
    let state_dir = canonicalize_existing(state_dir);
    let sockets = listen.iter().filter_map(|address| match address {
        ListenAddr::Unix(path) => Some((canonicalize_existing(path), "--listen unix:")),
        ListenAddr::Tcp(_) => None,
    });
    let own = [(state_dir.clone(), "--state-dir")];
    check_hidden(&visible, sockets.chain(own), problems);
    for visible in visible.iter().filter(|visible| visible.starts_with(&state_dir)) {
        problems.push(format!(
            "{} lies in the daemon's state directory {}: choose another with --state-dir",
            visible.display(),
            state_dir.display()
        ));
    }
    let writable = workspaces.iter().flat_map(|workspace| {
        let binds = workspace.binds.iter().filter(|bind| bind.writable);
        std::iter::once(&workspace.path).chain(binds.map(|bind| &bind.source))
    });
    let writable: Vec<&PathBuf> = writable.collect();
    for bind in workspaces.iter().flat_map(|workspace| &workspace.binds) {
        let inside = |tree: &&&PathBuf| bind.source != ***tree && bind.source.starts_with(tree);
        if let Some(tree) = writable.iter().find(inside) {
            problems.push(format!(
                "{} lies in {}, where commands could replace it: bind something else",
                bind.source.display(),
                tree.display()
            ));
        }
    }
}

/// Sees that commands cannot reach the `files` that say who may call what, nor the links that lead to them.
pub(super) fn check_credential_files_hidden(
    workspaces: &[WorkspaceConfig],
    files: [(Option<&Path>, &'static str); 2],
    problems: &mut Vec<String>,
) {
    let files = files.into_iter().filter_map(|(file, flag)| Some((file?, flag)));
    let places = files
        .flat_map(|(file, flag)| symlink_chain(file).into_iter().map(move |place| (place, flag)));
    check_hidden(&visible_paths(workspaces), places, problems);
}

/// What commands see of the host.
fn visible_paths(workspaces: &[WorkspaceConfig]) -> Vec<PathBuf> {
    let system = SYSTEM_DIRECTORIES.iter().filter_map(|path| fs::canonicalize(path).ok());
    let shown = workspaces.iter().flat_map(|workspace| {
        let sources = workspace.binds.iter().map(|bind| bind.source.clone());
        std::iter::once(workspace.path.clone()).chain(sources)
    });
    system.chain(shown).collect()
}

/// Sees that nothing of what is `own` lies in what is `visible`.
fn check_hidden(
    visible: &[PathBuf],
    own: impl Iterator<Item = (PathBuf, &'static str)>,
    problems: &mut Vec<String>,
) {
    for (path, flag) in own {
        if let Some(visible) = visible.iter().find(|visible| path.starts_with(visible)) {
            problems.push(format!(
                "commands could reach {} through {}: choose a place outside of it with {flag}",
                path.display(),
                visible.display()
            ));
        }
    }
}

/// Sees that no key for one workspace is one for another, too.
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
                    "the workspaces {} ({}) and {} ({}) hold the same files, so that who may see one sees the other: give directories that lie apart",
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
    let system = SYSTEM_DIRECTORIES.iter().filter_map(|path| fs::canonicalize(path).ok());
    let system: Vec<PathBuf> = system.collect();
    for workspace in workspaces {
        let lies_in = |tree: &&PathBuf| workspace.path.starts_with(tree);
        if let Some(tree) = system.iter().find(lies_in) {
            problems.push(format!(
                "the workspace {} lies in {}, which the commands of every workspace see: beside others it must lie elsewhere",
                workspace.name,
                tree.display()
            ));
        }
        let others = workspaces.iter().filter(|other| other.name != workspace.name);
        for bind in others.flat_map(|other| &other.binds) {
            if workspace.path.starts_with(&bind.source) {
                problems.push(format!(
                    "the workspace {} lies in {}, which is bound for commands of another: bind something else",
                    workspace.name,
                    bind.source.display()
                ));
            }
        }
    }
}

/// Where a file lies: as it is named, and where each of the links lies that lead to it, of which who can
/// replace one can replace the file.
pub(crate) fn symlink_chain(path: &Path) -> Vec<PathBuf> {
    let mut at = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut places = vec![at.clone()];
    for _ in 0..MAX_SYMLINKS {
        let (Some(folder), Some(name)) = (at.parent(), at.file_name()) else {
            break;
        };
        let place = canonicalize_existing(folder).join(name);
        let target = fs::read_link(&place);
        if !places.contains(&place) {
            places.push(place.clone());
        }
        match (target, place.parent()) {
            (Ok(target), Some(folder)) => at = folder.join(target),
            _ => break,
        }
    }
    places
}

/// `path` without symbolic links, as far as it exists.
fn canonicalize_existing(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for ancestor in path.ancestors() {
        if let Ok(real) = fs::canonicalize(ancestor) {
            let rest = path.strip_prefix(ancestor).unwrap_or(Path::new(""));
            let (mut whole, mut returns) = (real, false);
            for name in rest.components() {
                // What is not there has no links in it, and may be made: then this leads out of it.
                if name == Component::ParentDir {
                    returns = true;
                    whole.pop();
                } else {
                    whole.push(name);
                }
            }
            return if returns { canonicalize_existing(&whole) } else { whole };
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path};

    use super::{canonicalize_existing, check_destination};

    #[test]
    fn where_a_path_leads_is_known_before_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(folder.path()).unwrap();
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
    fn what_the_sandbox_makes_is_not_hidden() {
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
