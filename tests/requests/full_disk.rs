//! Daemons that start while their disk is full.

use std::{
    fs,
    io::Read as _,
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::Arc,
};

use jig::api::v1::{Decision, JobState};
use rustix::process::Signal;

use super::{run_count, run_counted};
use crate::{
    approvals::{decide, decide_request, spawn_write, wait_for_pending_approval, write_request},
    jobs::{Jobs, command_job},
    support::{Daemon, Refusal, Setup, daemon_binary, eventually, kill_and_reap},
};

/// Runs a program in the mount namespace of another, with a disk of 4 MiB for the state directory.
const MOUNT_STATE_DISK_SCRIPT: &str = r#"
    for word; do [ "$last" = --state-dir ] && state=$word; last=$word; done
    mkdir -p "$state"
    mountpoint -q "$state" || mount -t tmpfs -o size=4m,mode=700 tmpfs "$state"
    exec "$0" "$@"
"#;

/// A mount namespace whose disks outlive the daemons that use them.
#[derive(Debug)]
struct MountNamespace {
    holder: Child,
    /// The holder exits when this closes.
    _input: ChildStdin,
}

impl MountNamespace {
    fn new() -> Self {
        let mut holder = Command::new("unshare")
            .args(["--mount", "sh", "-c", "echo ready; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        let output = holder.stdout.as_mut().unwrap();
        output.read_exact(&mut ready).unwrap();

        let _input = holder.stdin.take().unwrap();
        Self { holder, _input }
    }

    /// A file of the state directory, as seen in this namespace.
    fn state_file(&self, daemon: &Daemon, name: &str) -> PathBuf {
        let (holder, state) = (self.holder.id(), daemon.state_dir());
        PathBuf::from(format!("/proc/{holder}/root{}", state.display())).join(name)
    }

    fn fill_disk(&self, daemon: &Daemon) {
        let filled = fs::write(self.state_file(daemon, "filler"), vec![0; 8 << 20]);
        assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    }
}

impl Drop for MountNamespace {
    fn drop(&mut self) {
        kill_and_reap(&mut self.holder);
    }
}

#[tokio::test]
async fn daemon_restarts_on_full_disk_and_reports_losses() {
    let disks = Arc::new(MountNamespace::new());
    let namespace = format!("--mount=/proc/{}/ns/mnt", disks.holder.id());
    let daemon = Setup::new()
        .wrapped_by(["nsenter", &namespace, "sh", "-c", MOUNT_STATE_DISK_SCRIPT])
        .with_resource(Arc::<MountNamespace>::clone(&disks))
        .workspace_table("[policy]\ndangerous = \"allow\"\nsafe_write = \"ask\"")
        .start()
        .await;
    run_counted(&daemon, "before").await;
    let mut jobs = Jobs::of(&daemon);
    let id = jobs.submit(command_job("touch begun; exec sleep 1000")).await;
    eventually("the job runs", async || daemon.file("begun").exists()).await;

    let pending_write = spawn_write(&daemon, write_request("asked", ""));
    let approval = wait_for_pending_approval(&daemon).await;
    disks.fill_disk(&daemon);

    daemon.signal(Signal::KILL);
    let daemon = daemon.restart().await;
    assert!(pending_write.await.unwrap().is_err());

    let mut jobs = Jobs::of(&daemon);
    let lost_job = jobs.get(&id).await;
    assert_eq!(lost_job.state(), JobState::Lost);
    assert!(lost_job.end_time.is_some());

    let refused = decide(&daemon, decide_request(&approval, Decision::Allow)).await;
    assert_eq!(Refusal::from_status(&refused.unwrap_err()).reason, "APPROVAL_DECIDED");

    fs::remove_file(disks.state_file(&daemon, "filler")).unwrap();
    let daemon = daemon.restart().await;
    let lost_again = Jobs::of(&daemon).get(&id).await;
    assert_eq!(lost_again.state(), JobState::Lost);

    run_counted(&daemon, "before").await;
    assert_eq!(run_count(&daemon), 1);
}

/// Runs a program with a full disk mounted on an empty directory.
const FULL_DISK_SCRIPT: &str = r#"
    mount -t tmpfs -o size=64k tmpfs "$1"
    head -c 1M /dev/zero > "$1/filler" 2> /dev/null
    shift
    exec "$@"
"#;

#[test]
fn new_state_directory_on_full_disk_is_reported() {
    let directory = tempfile::tempdir().unwrap();

    let [disk, workspace] = ["disk", "workspace"].map(|name| directory.path().join(name));
    for path in [&disk, &workspace] {
        fs::create_dir(path).unwrap();
    }

    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", FULL_DISK_SCRIPT, "sh"])
        .arg(&disk)
        .arg(daemon_binary())
        .args(["--listen", "127.0.0.1:0", "--workspace"])
        .arg(&workspace)
        .arg("--state-dir")
        .arg(disk.join("state"))
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{stderr}");
    assert!(stderr.contains("its disk is full: make room there"), "{stderr}");
    assert!(!stderr.contains("writable"), "{stderr}");
}
