//! What commands find in `/etc`: made for them, and a few files and directories of the daemon's that
//! programs look up there and that hold no secrets. What may hold any stays out, however useful:
//! settings of package managers, of git and of shells, where tokens and proxies with passwords are
//! kept, and all that names users and machines.

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

/// Directories of `/etc` that commands see, read-only: what programs look up there that is no
/// secret.
pub(super) const ETC_DIRECTORIES: &[&str] = &[
    "alternatives",
    "ssl/certs",
    "ca-certificates",
    "pki/tls/certs",
    "pki/ca-trust/extracted",
    "fonts",
    // What openssl.cnf and Java of Fedora and its relatives include.
    "crypto-policies",
    // Java of Fedora; that of Debian is found by its prefix.
    "java",
];
/// Files of `/etc`, and directories of small ones, that are copied, so that each does not cost a
/// mount in every sandbox.
pub(super) const ETC_FILES: &[&str] = &[
    // Where libraries lie: the first for the dynamic linker, the others for ld(1), which looks there
    // for what a library needs that it links with.
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    // What time it is here; where the first is a link, it is made anew, as its target has the name.
    "localtime",
    "timezone",
    // Which system this is: scripts choose by it what to do.
    "os-release",
    "lsb-release",
    "debian_version",
    "redhat-release",
    "alpine-release",
    // Numbers and types by name: getservbyname(3), getprotobyname(3), modules of every language.
    "services",
    "protocols",
    "mime.types",
    // Without it openssl makes no requests and no certificates; the last is where Alpine and others
    // have all certificates.
    "ssl/openssl.cnf",
    "pki/tls/openssl.cnf",
    "ssl/cert.pem",
    // Where man(1) looks, and what it formats with.
    "manpath.config",
    "groff",
    // Debian's Maven does not start without; its settings.xml, beside them, may hold passwords.
    "maven/m2.conf",
    "maven/logging/simplelogger.properties",
];
/// The one that is copied where commands have the daemon's network: whom it asks for names.
const RESOLV_CONF: &str = "resolv.conf";
/// Largest file that is copied, in bytes: caches of the dynamic linker are a tenth of it.
const MAX_COPIED_FILE_BYTES: u64 = 2 << 20;
/// Users and groups beside the commands' own. Neither can be become; root is named because archives
/// and packages name it as the owner of what they hold.
const EXTRA_PASSWD_LINES: &str = "root:x:0:0:root:/root:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
const EXTRA_GROUP_LINES: &str = "root:x:0:\nnogroup:x:65534:\n";
/// Debian keeps the configuration of a Java runtime in `/etc/java-VERSION-openjdk`, and no runtime
/// starts without.
pub(super) fn java_directories() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/etc").into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"java-"))
        .map(|entry| entry.path())
}

/// The small files of `/etc`, and the top directories that are symbolic links, read before the
/// scaffold covers their source.
pub(super) struct EtcFiles {
    files: Vec<(PathBuf, Vec<u8>)>,
    links: Vec<(&'static str, PathBuf)>,
}

/// The link to the time zone, where there is one: programs read its name off it.
fn timezone_link() -> Option<(&'static str, PathBuf)> {
    let target = fs::read_link("/etc/localtime").ok()?;
    let path = Path::new("/etc").join(&target);
    // Commands see /usr as it is.
    let found = fs::canonicalize(path).ok()?;
    let is_seen = found.starts_with("/usr/share/zoneinfo");
    is_seen.then_some(("etc/localtime", found))
}

impl EtcFiles {
    /// Reads what there is.
    pub(super) fn read(network: NetworkMode) -> Self {
        let small = |path: &Path| {
            fs::metadata(path)
                .is_ok_and(|metadata| metadata.is_file() && metadata.len() <= MAX_COPIED_FILE_BYTES)
        };
        let read = |path: PathBuf| {
            let content = small(&path).then(|| fs::read(&path).ok()).flatten()?;
            Some((path, content))
        };
        let each = |name: &&'static str| {
            let path = Path::new("/etc").join(name);
            match fs::read_dir(&path) {
                Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
                Err(_) => vec![path],
            }
        };
        let link = |name: &&'static str| {
            let target = fs::read_link(name).ok()?;
            Some((name.trim_start_matches('/'), target))
        };
        let links = SYSTEM_DIRECTORIES.iter().filter_map(link).chain(timezone_link());
        let links: Vec<_> =
            links.chain([("etc/mtab", PathBuf::from("../proc/self/mounts"))]).collect();
        let is_linked = |name: &str| {
            let linked = |(link, _): &(&str, PathBuf)| link.strip_prefix("etc/") == Some(name);
            links.iter().any(linked)
        };
        Self {
            files: ETC_FILES
                .iter()
                .filter(|name| !is_linked(name))
                .chain((network == NetworkMode::Host).then_some(&RESOLV_CONF))
                .flat_map(each)
                .filter_map(read)
                .collect(),
            links,
        }
    }

    /// Writes the files and links below the scaffold, which is the working directory.
    pub(super) fn write(self, identity: SandboxIdentity) -> io::Result<()> {
        for (name, target) in self.links {
            symlink(target, name)?;
        }
        let SandboxIdentity { uid, gid, .. } = identity;
        let made: [(&str, String); 6] = [
            ("passwd", format!("{SANDBOX_USER}:x:{uid}:{gid}:agent:{SANDBOX_HOME}:/bin/sh\n{EXTRA_PASSWD_LINES}")),
            ("group", format!("{SANDBOX_USER}:x:{gid}:\n{EXTRA_GROUP_LINES}")),
            ("nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n".to_owned()),
            ("hosts", "127.0.0.1 localhost jig\n::1 localhost ip6-localhost ip6-loopback\n".to_owned()),
            ("hostname", "jig\n".to_owned()),
            ("shells", "/bin/sh\n/bin/bash\n".to_owned()),
        ];
        let made =
            made.into_iter().map(|(name, text)| (Path::new("/etc").join(name), text.into_bytes()));
        for (path, content) in self.files.into_iter().chain(made) {
            let path = path.strip_prefix("/").unwrap_or(&path);
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            let mut file = fs::File::create(path)?;
            file.write_all(&content)?;
            file.set_permissions(fs::Permissions::from_mode(0o644))?;
        }
        Ok(())
    }
}
