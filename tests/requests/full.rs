//! A daemon that is started again while its disk is full.

use std::{
    fs,
    io::Read as _,
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::Arc,
};

use jig::api::v1::{Decision, JobState};
use rustix::process::Signal;

use super::{run, runs};
use crate::{
    approvals::{decide, decision, file, wait_for_one, write},
    jobs::{Jobs, command},
    support::{Daemon, Refusal, Setup, binary, eventually},
};

/// Has a program see the disks of another, with one of its own, of 4 MiB, for the state directory.
const STATE_ON_THEIR_DISK: &str = r#"
    for word; do [ "$last" = --state-dir ] && state=$word; last=$word; done
    mkdir -p "$state"
    mountpoint -q "$state" || mount -t tmpfs -o size=4m,mode=700 tmpfs "$state"
    exec "$0" "$@"
"#;

/// Disks that outlive the daemons that see them.
#[derive(Debug)]
struct Disks {
    holder: Child,
    /// The holder ends with it.
    _input: ChildStdin,
}

impl Disks {
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

    /// A file of the state directory, on its disk.
    fn state(&self, daemon: &Daemon, name: &str) -> PathBuf {
        let (holder, state) = (self.holder.id(), daemon.state());
        PathBuf::from(format!("/proc/{holder}/root{}", state.display())).join(name)
    }

    fn fill(&self, daemon: &Daemon) {
        let filled = fs::write(self.state(daemon, "filler"), vec![0; 8 << 20]);
        assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        let _dead_already = self.holder.kill();
        let _reaped = self.holder.wait();
    }
}

#[tokio::test]
async fn a_daemon_that_died_is_started_again_and_tells_what_was_lost() {
    let disks = Arc::new(Disks::new());
    let namespace = format!("--mount=/proc/{}/ns/mnt", disks.holder.id());
    let daemon = Setup::new()
        .under(["nsenter", &namespace, "sh", "-c", STATE_ON_THEIR_DISK])
        .keeping(Arc::<Disks>::clone(&disks))
        .workspace_table("[policy]\ndangerous = \"allow\"\nsafe_write = \"ask\"")
        .start()
        .await;
    run(&daemon, "before").await;
    let mut jobs = Jobs::of(&daemon);
    let id = jobs.submit(command("touch begun; exec sleep 1000")).await;
    eventually("the job runs", async || daemon.file("begun").exists()).await;
    let asked = write(&daemon, file("asked", ""));
    let approval = wait_for_one(&daemon).await;
    disks.fill(&daemon);
    daemon.signal(Signal::KILL);
    let daemon = daemon.restart().await;
    assert!(asked.await.unwrap().is_err());
    let mut jobs = Jobs::of(&daemon);
    let lost = jobs.get(&id).await;
    assert_eq!(lost.state(), JobState::Lost);
    assert!(lost.end_time.is_some());
    let refused = decide(&daemon, decision(&approval, Decision::Allow)).await;
    assert_eq!(Refusal::of(&refused.unwrap_err()).reason, "APPROVAL_DECIDED");
    fs::remove_file(disks.state(&daemon, "filler")).unwrap();
    let daemon = daemon.restart().await;
    let again = Jobs::of(&daemon).get(&id).await;
    assert_eq!(again.state(), JobState::Lost);
    run(&daemon, "before").await;
    assert_eq!(runs(&daemon), 1);
}

/// Executes a program while the disk of a directory, which is empty then, is full.
const ON_FULL_DISK: &str = r#"
    mount -t tmpfs -o size=64k tmpfs "$1"
    head -c 1M /dev/zero > "$1/filler" 2> /dev/null
    shift
    exec "$@"
"#;

#[test]
fn a_new_state_directory_is_refused_for_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let [disk, workspace] = ["disk", "workspace"].map(|name| folder.path().join(name));
    for path in [&disk, &workspace] {
        fs::create_dir(path).unwrap();
    }
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", ON_FULL_DISK, "sh"])
        .arg(&disk)
        .arg(binary())
        .args(["--listen", "127.0.0.1:0", "--workspace"])
        .arg(&workspace)
        .arg("--state-dir")
        .arg(disk.join("state"))
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{told}");
    assert!(told.contains("its disk is full: make room there"), "{told}");
    assert!(!told.contains("writable"), "{told}");
}
