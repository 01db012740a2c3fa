//! Landlock rules for a run, or for the daemon: which files, sockets and processes it may reach
//! (Documentation/userspace-api/landlock.rst).
//!
//! For runs with namespaces, the mounts decide already, and these rules are a second layer in case
//! of an unintended mount. TCP is not restricted there: the network namespace is the boundary, and
//! rules would break the loopback interface. A kernel without Landlock is accepted, and `GetInfo`
//! reports it. At L1, Landlock is the boundary.

use std::{ffi::CString, os::fd::AsFd as _};

use rustix::fs::{FileType, Mode, OFlags, fstat, open};

use crate::daemon::sys::{Errno, landlock};

// Rights on files (linux/landlock.h).
const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const REMOVE_FILE: u64 = 1 << 5;
const MAKE_SOCK: u64 = 1 << 9;
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;
/// Connecting or sending to a Unix socket by its path. Sockets made in the same domain need no
/// grant. This right is never granted, so a run reaches only its own sockets: neither the host's
/// nor, because the kernel cannot tell them apart, those of other runs.
const RESOLVE_UNIX: u64 = 1 << 16;
/// The first ABI version with [`REFER`] (Linux 5.19).
const REFER_ABI: u32 = 2;
/// The first ABI version with [`TRUNCATE`] (Linux 6.2).
const TRUNCATE_ABI: u32 = 3;
/// The first ABI version with rights on TCP ports (Linux 6.7).
const TCP_ABI: u32 = 4;
/// The first ABI version with [`IOCTL_DEV`] (Linux 6.10).
const IOCTL_ABI: u32 = 5;
/// The first ABI version with scopes (Linux 6.12).
const SCOPE_ABI: u32 = 6;
/// The first ABI version with [`RESOLVE_UNIX`] (Linux 7.1).
pub(crate) const RESOLVE_UNIX_ABI: u32 = 9;
/// Rights that can be granted on a file that is no directory.
const FILE_RIGHTS: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;

// Rights on the network, from version 4 on.
const BIND_TCP: u64 = 1;
const CONNECT_TCP: u64 = 1 << 1;

// Scopes, from version 6 on.
const SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1;
const SCOPE_SIGNAL: u64 = 1 << 1;

#[derive(Debug, Clone, Copy)]
pub(crate) enum PathAccess {
    /// Read and execute.
    Read,
    /// Read and write existing files.
    Devices,
    /// Create Unix sockets and remove files, as a listener does at its start and end.
    Sockets,
    /// Every right except [`RESOLVE_UNIX`].
    Write,
    /// Only move and link files between directories, as far as other rules allow it. Every ruleset
    /// refuses this unless it grants it, whatever rights it handles.
    MoveOnly,
}

/// The processes that can be signalled, and reached by abstract Unix sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScopeReach {
    /// Processes in the same Landlock domain.
    SameDomain,
    /// Processes in the same Landlock domain, and no TCP.
    SameDomainWithoutTcp,
    /// Processes in the same Landlock domain. Of the rights on files, only moving ([`REFER`]) is
    /// restricted.
    SameDomainAndAllFiles,
    /// Any process, as far as other layers allow it.
    Unrestricted,
}

/// Landlock rules, prepared so that applying them allocates nothing.
#[derive(Debug)]
pub(crate) struct LandlockRules {
    abi: u32,
    attributes: landlock::RulesetAttributes,
    paths: Vec<(CString, u64)>,
    /// Device and inode that a path must have.
    expected_identities: Vec<(CString, (u64, u64))>,
}

/// Returns the rights on files that a ruleset restricts.
fn handled_rights(abi: u32, reach: ScopeReach) -> u64 {
    // Version 1 has the 13 lowest rights.
    let mut handled = REFER - 1;
    for (version, right) in [(REFER_ABI, REFER), (TRUNCATE_ABI, TRUNCATE), (IOCTL_ABI, IOCTL_DEV)] {
        if abi >= version {
            handled |= right;
        }
    }
    if abi >= RESOLVE_UNIX_ABI && reach != ScopeReach::Unrestricted {
        handled |= RESOLVE_UNIX;
    }
    handled
}

/// Returns the rights on TCP ports that a ruleset restricts.
fn handled_tcp_rights(abi: u32, reach: ScopeReach) -> u64 {
    match reach {
        ScopeReach::SameDomainWithoutTcp if abi >= TCP_ABI => BIND_TCP | CONNECT_TCP,
        ScopeReach::SameDomainWithoutTcp
        | ScopeReach::SameDomain
        | ScopeReach::SameDomainAndAllFiles
        | ScopeReach::Unrestricted => 0,
    }
}

/// Returns what a ruleset confines to its domain.
fn scopes(abi: u32, reach: ScopeReach) -> u64 {
    if abi >= SCOPE_ABI && reach != ScopeReach::Unrestricted {
        SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL
    } else {
        0
    }
}

impl LandlockRules {
    /// Prepares rules for Landlock ABI version `abi`; 0 means a kernel without Landlock.
    pub(crate) fn new(
        abi: u32,
        reach: ScopeReach,
        paths: impl IntoIterator<Item = (CString, PathAccess)>,
    ) -> Self {
        let handled = handled_rights(abi, reach);
        let rights = |access| match access {
            PathAccess::Read => EXECUTE | READ_FILE | READ_DIR,
            PathAccess::Devices => {
                EXECUTE | READ_FILE | READ_DIR | WRITE_FILE | TRUNCATE | IOCTL_DEV
            }
            PathAccess::Sockets => MAKE_SOCK | REMOVE_FILE,
            PathAccess::Write => !RESOLVE_UNIX,
            PathAccess::MoveOnly => REFER,
        };
        Self {
            abi,
            attributes: landlock::RulesetAttributes {
                handled_access_fs: match reach {
                    ScopeReach::SameDomainAndAllFiles => handled & REFER,
                    ScopeReach::SameDomain
                    | ScopeReach::SameDomainWithoutTcp
                    | ScopeReach::Unrestricted => handled,
                },
                handled_access_net: handled_tcp_rights(abi, reach),
                scoped: scopes(abi, reach),
            },
            paths: paths
                .into_iter()
                .map(|(path, access)| (path, rights(access) & handled))
                .collect(),
            expected_identities: Vec::new(),
        }
    }

    /// Makes [`Self::apply`] fail if `path` is another directory or file by then.
    pub(super) fn expect_identity(mut self, path: CString, identity: (u64, u64)) -> Self {
        self.expected_identities.push((path, identity));
        self
    }

    /// Restricts this process by the rules. Allocates nothing.
    pub(crate) fn apply(&self) -> Result<(), Errno> {
        if self.abi == 0 {
            return Ok(());
        }

        let ruleset = landlock::create_ruleset(&self.attributes, self.abi)?;
        for (path, rights) in &self.paths {
            let parent = open(path.as_c_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            let stat = fstat(&parent)?;
            let is_replaced = |(expected_path, identity): &(CString, (u64, u64))| {
                expected_path == path && *identity != (stat.st_dev, stat.st_ino)
            };
            if self.expected_identities.iter().any(is_replaced) {
                return Err(Errno::STALE);
            }

            let is_directory = FileType::from_raw_mode(stat.st_mode).is_dir();
            let rights = if is_directory { *rights } else { *rights & FILE_RIGHTS };
            landlock::allow_beneath(ruleset.as_fd(), parent.as_fd(), rights)?;
        }
        landlock::restrict_self(ruleset.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::CString, fs, os::unix::fs::MetadataExt as _, thread};

    use super::{Errno, LandlockRules, PathAccess, RESOLVE_UNIX, ScopeReach, landlock};

    #[test]
    fn unix_sockets_of_others_are_refused_if_the_kernel_supports_it() {
        let rules = |abi, reach| {
            let every = [
                PathAccess::Read,
                PathAccess::Devices,
                PathAccess::Sockets,
                PathAccess::Write,
                PathAccess::MoveOnly,
            ];
            LandlockRules::new(abi, reach, every.map(|access| (c"/".to_owned(), access)))
        };
        let handled =
            |rules: &LandlockRules| rules.attributes.handled_access_fs & RESOLVE_UNIX != 0;

        for reach in [ScopeReach::SameDomain, ScopeReach::SameDomainWithoutTcp] {
            assert!(!handled(&rules(8, reach)), "{reach:?}: it would be EINVAL");
            for abi in [9, 10] {
                let rules = rules(abi, reach);
                assert!(handled(&rules), "{reach:?}");
                let mut granted = rules.paths.iter().map(|(_, rights)| rights);
                assert!(granted.all(|rights| rights & RESOLVE_UNIX == 0));
            }
        }

        // The daemon queries name services and sends to collectors.
        assert!(!handled(&rules(9, ScopeReach::Unrestricted)));
    }

    #[test]
    fn a_replaced_directory_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let allowed = directory.path().join("allowed");
        fs::create_dir(&allowed).unwrap();
        let stat = allowed.metadata().unwrap();
        let path = CString::new(allowed.to_str().unwrap()).unwrap();
        let rules = || {
            let paths = [(path.clone(), PathAccess::Write)];
            let rules =
                LandlockRules::new(landlock::abi_version(), ScopeReach::Unrestricted, paths);
            rules.expect_identity(path.clone(), (stat.dev(), stat.ino()))
        };

        // Rules apply to a single thread.
        let apply = |rules: LandlockRules| thread::spawn(move || rules.apply()).join().unwrap();

        apply(rules()).unwrap();

        fs::rename(&allowed, directory.path().join("moved")).unwrap();
        std::os::unix::fs::symlink("/etc", &allowed).unwrap();
        assert_eq!(apply(rules()), Err(Errno::STALE));
    }
}
