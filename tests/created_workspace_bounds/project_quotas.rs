//! Bounds that the kernel enforces: project quotas of ext4 and XFS, in a virtual machine whose kernel
//! has them.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use tempfile::TempDir;
use tokio::task::JoinSet;

use super::{Bounded, KIB, MIB, assert_full, assert_full_clone, named};
use crate::support::{DAEMON_UID, Kernel, guest};

/// A mounted file system with project quotas.
#[derive(Debug)]
struct QuotaDisk {
    directory: TempDir,
    /// What programs report beyond a quota.
    refusal: &'static str,
}

impl QuotaDisk {
    fn ext4() -> Arc<Self> {
        let features = ["-t", "ext4", "-O", "quota,project", "-E", "quotatype=prjquota"];
        Self::mount(64 << 20, Command::new("mke2fs").arg("-q").args(features), "quota exceeded")
    }

    fn xfs() -> Arc<Self> {
        // mkfs.xfs(8) makes no smaller one.
        Self::mount(300 << 20, Command::new("mkfs.xfs").arg("-q"), "No space left on device")
    }

    /// Mounts a disk of `size` bytes that `format` formats.
    fn mount(size: u64, format: &mut Command, refusal: &'static str) -> Arc<Self> {
        let directory = TempDir::with_prefix_in("jig-test-quota-", "/var/tmp").unwrap();
        // Daemons of other users have to reach the file system in it.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let disk = directory.path().join("disk");
        fs::File::create(&disk).unwrap().set_len(size).unwrap();
        let target = directory.path().join("mounted");
        fs::create_dir(&target).unwrap();
        let [disk, target] = [&disk, &target].map(|path| path.to_str().unwrap());
        run(format.arg(disk));
        run(Command::new("mount").args(["-o", "loop,prjquota", disk, target]));
        Arc::new(Self { directory, refusal })
    }

    /// A new directory on the file system.
    fn directory(&self, owner: u32) -> PathBuf {
        let path = self.directory.path().join("mounted");
        let path = tempfile::Builder::new().prefix("d").tempdir_in(path).unwrap().keep();
        std::os::unix::fs::chown(&path, Some(owner), Some(owner)).unwrap();
        path
    }
}

impl Drop for QuotaDisk {
    fn drop(&mut self) {
        run(Command::new("umount").arg("-l").arg(self.directory.path().join("mounted")));
    }
}

fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The project of a directory.
fn project_of(directory: &Path) -> u32 {
    let text = run(Command::new("lsattr").arg("-pd").arg(directory));
    text.split_whitespace().next().unwrap().parse().unwrap()
}

/// Blocks of all files below a directory.
fn disk_usage(directory: &Path) -> u64 {
    let text = run(Command::new("du").args(["-s", "-B1"]).arg(directory));
    text.split_whitespace().next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn the_kernel_enforces_bounds() {
    if guest(Kernel::Debian12).run_current_test(|| {}).await {
        return;
    }
    enforces_bounds(QuotaDisk::ext4()).await;
    enforces_bounds(QuotaDisk::xfs()).await;
}

async fn enforces_bounds(disk: Arc<QuotaDisk>) {
    let root = disk.directory(0);
    let bounded = Bounded::start_in(root, Arc::clone(&disk) as _, 0, 2 * MIB, 40).await;
    let info = bounded.daemon.info().await.workspaces_on_demand.unwrap();
    assert_eq!(info.quota, "project_quota");

    let created = bounded.create(named("w")).await.unwrap();
    assert_eq!((&*created.quota, created.used_files), ("project_quota", Some(1)));
    let directory = bounded.directories().pop().unwrap();
    let project = project_of(&directory);
    assert!((1_000_000_000..=1_000_199_999).contains(&project), "{project}");

    // File tools get an error with the bound.
    bounded.write("w", "d/f", MIB).await.unwrap();
    assert_full(&bounded.write("w", "g", 2 * MIB).await.unwrap_err(), "workspace_bytes");
    assert_eq!(bounded.usage("w").await.1, 3);

    // Commands get an error of the kernel, however many write at once, and continue.
    let mut runs = JoinSet::new();
    let bounded = Arc::new(bounded);
    for number in 0..8 {
        let bounded = Arc::clone(&bounded);
        let command = format!("head -c 1M /dev/zero > r{number}; echo $?");
        runs.spawn(async move { bounded.run("w", &command).await });
    }
    let runs = runs.join_all().await;
    let failed = runs.iter().filter(|run| run.stderr.contains(disk.refusal)).count();
    assert!(failed >= 7, "{runs:?}");
    assert!(disk_usage(&directory) <= 2 * MIB);
    let many = bounded.run("w", "rm r*; for i in $(seq 50); do touch e$i || exit 7; done").await;
    assert_eq!(many.exit_code, Some(7), "{many:?}");
    assert_eq!(bounded.usage("w").await.1, 40);
    assert_full(&bounded.write("w", "h", 0).await.unwrap_err(), "workspace_files");
    assert_eq!(bounded.run("w", "rm e*; truncate -s 1G sparse; echo ok").await.stdout, "ok\n");
    bounded.write("w", "h", 100 * KIB).await.unwrap();

    // A command cannot take its files out of the project.
    let hostile =
        bounded.run("w", "chattr -p 7 h; chattr -p 0 d; chattr -P d; lsattr -pd d h").await;
    let projects = hostile.stdout.lines().filter(|line| line.contains(&project.to_string()));
    assert_eq!(projects.count(), 2, "{hostile:?}");

    let copy = CopyOf { max_bytes: MIB / 2 }.request();
    assert_full_clone(&bounded.create(copy).await.unwrap_err());
    assert_eq!(bounded.directories().len(), 1);
}

/// A request for a copy of `w` with lower bounds.
struct CopyOf {
    max_bytes: u64,
}

impl CopyOf {
    fn request(self) -> jig::api::v1::CreateWorkspaceRequest {
        jig::api::v1::CreateWorkspaceRequest {
            clone_of: Some("w".to_owned()),
            max_bytes: Some(self.max_bytes),
            ..named("copy")
        }
    }
}

#[tokio::test]
async fn project_ids_are_durable_and_free_again() {
    if guest(Kernel::Debian12).run_current_test(|| {}).await {
        return;
    }
    let disk = QuotaDisk::ext4();
    let root = disk.directory(0);
    // Another program uses the first id.
    let other = disk.directory(DAEMON_UID);
    run(Command::new("chattr").args(["-p", "1000000000", "+P"]).arg(&other));
    let bounded = Bounded::start_in(root, Arc::clone(&disk) as _, 0, MIB, 20).await;
    bounded.create(named("a")).await.unwrap();
    let a = bounded.directories().pop().unwrap();
    bounded.create(named("b")).await.unwrap();
    let [first, second] = {
        let mut projects: Vec<_> = bounded.directories().iter().map(|it| project_of(it)).collect();
        projects.sort_unstable();
        projects.try_into().unwrap()
    };
    assert!(first > 1_000_000_000 && second > first, "{first} {second}");
    let project = project_of(&a);
    bounded.write("a", "f", 600 * KIB).await.unwrap();

    let bounded = bounded.restart().await;
    assert_eq!(project_of(&a), project);
    assert_full(&bounded.write("a", "g", 600 * KIB).await.unwrap_err(), "workspace_bytes");
    let run_beyond = bounded.run("a", "head -c 1M /dev/zero > h").await;
    assert!(run_beyond.stderr.contains("quota exceeded"), "{run_beyond:?}");

    // The project of a deleted workspace has no limits.
    bounded.remove("a").await;
    run(Command::new("chattr").args(["-p", &project.to_string(), "+P"]).arg(&other));
    let file = other.join("f");
    let write = format!("head -c 2M /dev/zero > {}", file.display());
    let uid = DAEMON_UID.to_string();
    run(Command::new("setpriv").args(["--reuid", &uid, "--clear-groups", "sh", "-c", &write]));
    assert_eq!(fs::metadata(file).unwrap().len(), 2 << 20);
}

#[tokio::test]
async fn persistent_directories_count() {
    if guest(Kernel::Debian12).run_current_test(|| {}).await {
        return;
    }
    let disk = QuotaDisk::ext4();
    let root = disk.directory(0);
    let lines =
        "max_bytes = 1048576\nmax_files = 100\ntmp = \"persistent\"\nhome = \"persistent\"\n";
    let bounded = Bounded::start_with(root, Arc::clone(&disk) as _, 0, lines).await;
    bounded.create(named("w")).await.unwrap();
    let directories = bounded.directories();
    let is_persistent = |path: &&PathBuf| path.extension().is_some();
    let persistent = directories.iter().find(is_persistent).unwrap();
    let files = directories.iter().find(|path| !is_persistent(path)).unwrap();
    let project = project_of(files);
    assert!(project >= 1_000_000_000, "{project}");
    for directory in [persistent.clone(), persistent.join("home"), persistent.join("tmp")] {
        assert_eq!(project_of(&directory), project, "{directory:?}");
    }

    let bounded = bounded.restart().await;
    assert_eq!(bounded.usage("w").await.1, 4);
    let filled = bounded.run("w", "head -c 600K /dev/zero > /tmp/f && echo ok").await;
    assert_eq!(filled.stdout, "ok\n", "{filled:?}");
    for target in ["~/f", "/tmp/g", "f"] {
        let beyond = bounded.run("w", &format!("head -c 600K /dev/zero > {target}")).await;
        assert!(beyond.stderr.contains("quota exceeded"), "{target}: {beyond:?}");
        bounded.run("w", &format!("rm {target}")).await;
    }
    let (bytes, _) = bounded.usage("w").await;
    assert!((600 * KIB..MIB).contains(&bytes), "{bytes}");
}

/// The daemon of an ordinary user cannot set quotas, and watches the bounds.
#[tokio::test]
async fn without_privileges_bounds_are_watched() {
    if guest(Kernel::Debian12).run_current_test(|| {}).await {
        return;
    }
    let disk = QuotaDisk::ext4();
    let root = disk.directory(DAEMON_UID);
    let bounded = Bounded::start_in(root, Arc::clone(&disk) as _, DAEMON_UID, MIB, 20).await;
    let info = bounded.daemon.info().await.workspaces_on_demand.unwrap();
    assert_eq!(info.quota, "watched");
    bounded.create(named("w")).await.unwrap();
    assert_full(&bounded.write("w", "g", 2 * MIB).await.unwrap_err(), "workspace_bytes");
}
