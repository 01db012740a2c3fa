//! The `/etc` of commands: generated files, and a few of the host's files and directories that
//! programs need and that hold no secrets.
//!
//! Files that may hold secrets stay out, however useful: settings of package managers, git and
//! shells, which can contain tokens and proxy passwords, and everything that names users and
//! machines.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use super::{
    plan::{NetworkMode, SANDBOX_HOME, SANDBOX_USER, SYSTEM_DIRECTORIES},
    wire::SandboxIdentity,
};

/// Directories of the host's `/etc` that commands see read-only.
pub(super) const ETC_DIRECTORIES: &[&str] = &[
    "alternatives",
    "ssl/certs",
    "ca-certificates",
    "pki/tls/certs",
    "pki/ca-trust/extracted",
    "fonts",
    // Included by openssl.cnf and Java of Fedora and its relatives.
    "crypto-policies",
    // Java of Fedora. Debian's is found by its prefix.
    "java",
];
/// Files of the host's `/etc`, and directories of small files. They are copied, because each mount
/// costs time in every sandbox.
pub(super) const ETC_FILES: &[&str] = &[
    // Library paths. The first is for the dynamic linker, the others for ld(1), which resolves
    // dependencies of linked libraries with them.
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    // The time zone. If `localtime` is a link, it is created as a link, because its target names
    // the zone.
    "localtime",
    "timezone",
    // The distribution. Scripts branch on it.
    "os-release",
    "lsb-release",
    "debian_version",
    "redhat-release",
    "alpine-release",
    // Ports, protocols and media types by name: getservbyname(3), getprotobyname(3), and libraries
    // of every language.
    "services",
    "protocols",
    "mime.types",
    // openssl cannot create requests or certificates without openssl.cnf. `cert.pem` holds all
    // certificates on Alpine and others.
    "ssl/openssl.cnf",
    "pki/tls/openssl.cnf",
    "ssl/cert.pem",
    // Search paths of man(1), and its formatter's files.
    "manpath.config",
    "groff",
    // Debian's Maven does not start without these. Its settings.xml beside them may hold passwords.
    "maven/m2.conf",
    "maven/logging/simplelogger.properties",
];
/// Copied only with the network `host`: the name servers.
const RESOLV_CONF: &str = "resolv.conf";
/// Largest file that is copied, in bytes. Caches of the dynamic linker take a tenth of it.
const MAX_COPIED_FILE_BYTES: u64 = 2 << 20;
/// Git's check of who owns a repository is off (safe.directory in git-config(1)). It protects a user
/// from repositories of other users, and in a sandbox there are none: only files of the workspace
/// whose owners have no name there, such as those of an `emptyDir` volume.
const GITCONFIG: &str = "[safe]\n\tdirectory = *\n";
/// Further users and groups. Commands cannot change to either. Root is named because archives and
/// packages name it as the owner of files.
const EXTRA_PASSWD_LINES: &str = "root:x:0:0:root:/root:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
const EXTRA_GROUP_LINES: &str = "root:x:0:\nnogroup:x:65534:\n";

/// Directories `/etc/java-VERSION-openjdk`, where Debian keeps the configuration of Java runtimes.
/// No runtime starts without it.
pub(super) fn java_directories() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/etc").into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"java-"))
        .map(|entry| entry.path())
}

/// Files to copy and links to create in the new root, read before the root covers their source.
pub(super) struct EtcFiles {
    files: Vec<(PathBuf, Vec<u8>)>,
    links: Vec<(&'static str, PathBuf)>,
}

/// The link to the time zone, if `/etc/localtime` is a link. Programs read the zone's name from it.
fn timezone_link() -> Option<(&'static str, PathBuf)> {
    let target = fs::read_link("/etc/localtime").ok()?;
    let path = Path::new("/etc").join(&target);
    // Commands see the host's /usr.
    let resolved = fs::canonicalize(path).ok()?;
    let is_visible = resolved.starts_with("/usr/share/zoneinfo");
    is_visible.then_some(("etc/localtime", resolved))
}

impl EtcFiles {
    /// Reads the files that exist.
    pub(super) fn read(network: NetworkMode) -> Self {
        let links = read_links();
        let is_link =
            |name: &str| links.iter().any(|(link, _)| link.strip_prefix("etc/") == Some(name));
        let files = ETC_FILES
            .iter()
            .filter(|name| !is_link(name))
            .chain((network == NetworkMode::Host).then_some(&RESOLV_CONF))
            .flat_map(|name| files_at(&Path::new("/etc").join(name)))
            .filter_map(|path| read_small_file(&path).map(|content| (path, content)))
            .collect();
        Self { files, links }
    }

    /// Writes the files and links below the working directory, which is the new root.
    pub(super) fn write(self, identity: SandboxIdentity) -> io::Result<()> {
        for (name, target) in self.links {
            symlink(target, name)?;
        }

        let SandboxIdentity { uid, gid, .. } = identity;
        let generated: [(&str, String); 7] = [
            ("passwd", format!("{SANDBOX_USER}:x:{uid}:{gid}:agent:{SANDBOX_HOME}:/bin/sh\n{EXTRA_PASSWD_LINES}")),
            ("group", format!("{SANDBOX_USER}:x:{gid}:\n{EXTRA_GROUP_LINES}")),
            ("nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n".to_owned()),
            ("hosts", "127.0.0.1 localhost jig\n::1 localhost ip6-localhost ip6-loopback\n".to_owned()),
            ("hostname", "jig\n".to_owned()),
            ("gitconfig", GITCONFIG.to_owned()),
            ("shells", "/bin/sh\n/bin/bash\n".to_owned()),
        ];
        let generated = generated
            .into_iter()
            .map(|(name, text)| (Path::new("/etc").join(name), text.into_bytes()));

        for (path, content) in self.files.into_iter().chain(generated) {
            let path = path.strip_prefix("/").unwrap_or(&path);
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            let mut file = fs::File::create(path)?;
            file.write_all(&content)?;
            file.set_permissions(fs::Permissions::from_mode(0o644))?;
        }
        Ok(())
    }
}

/// The links of the new root: system directories that are links on the host, the time zone, and
/// `/etc/mtab`.
fn read_links() -> Vec<(&'static str, PathBuf)> {
    let system_links = SYSTEM_DIRECTORIES
        .iter()
        .filter_map(|name| Some((name.trim_start_matches('/'), fs::read_link(name).ok()?)));
    let mtab = ("etc/mtab", PathBuf::from("../proc/self/mounts"));
    system_links.chain(timezone_link()).chain([mtab]).collect()
}

/// The files in the directory at `path`, or `path` itself.
fn files_at(path: &Path) -> Vec<PathBuf> {
    match fs::read_dir(path) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(_) => vec![path.to_owned()],
    }
}

/// Reads a regular file of at most [`MAX_COPIED_FILE_BYTES`].
fn read_small_file(path: &Path) -> Option<Vec<u8>> {
    let metadata = fs::metadata(path).ok()?;
    let is_small = metadata.is_file() && metadata.len() <= MAX_COPIED_FILE_BYTES;
    is_small.then(|| fs::read(path).ok()).flatten()
}
