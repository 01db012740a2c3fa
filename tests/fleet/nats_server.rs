//! A NATS server of one test, on loopback, with JetStream on disk.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Once,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{eventually, kill_and_reap, run_setup_script, tools_directory};

/// Size of a small disk: enough for a few streams, too small for many messages.
const SMALL_DISK_BYTES: u64 = 24 << 20;
/// Mounts a small file system at the store, in a namespace of its own, and reports that.
const SMALL_DISK_SCRIPT: &str =
    r#"mount -t tmpfs -o size="$0" tmpfs "$1" && echo mounted && exec cat"#;

/// A small disk, which only processes in its mount namespace see.
#[derive(Debug)]
struct SmallDisk {
    /// Lives as long as the disk.
    holder: Child,
}

/// A NATS server. It ends with the test.
#[derive(Debug)]
pub(super) struct NatsServer {
    process: Option<Child>,
    directory: TempDir,
    port: u16,
    has_config: bool,
    small_disk: Option<SmallDisk>,
}

impl NatsServer {
    pub(super) async fn start() -> Self {
        Self::start_with(false, "").await
    }

    /// A server with a configuration file.
    pub(super) async fn start_with_config(config: &str) -> Self {
        Self::start_with(false, config).await
    }

    /// A server whose store is on a disk of 24 MiB.
    pub(super) async fn start_on_small_disk() -> Self {
        Self::start_with(true, "").await
    }

    async fn start_with(has_small_disk: bool, config: &str) -> Self {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| run_setup_script("tests/fleet/install.sh"));

        let directory = TempDir::with_prefix("jig-test-nats-").unwrap();
        fs::create_dir(directory.path().join("store")).unwrap();
        fs::write(directory.path().join("server.conf"), config).unwrap();
        let mut server = Self {
            process: None,
            directory,
            port: 0,
            has_config: !config.is_empty(),
            small_disk: None,
        };
        if has_small_disk {
            server.small_disk = Some(SmallDisk::mount(&server.store()));
        }
        server.restart().await;
        server
    }

    /// The port that the server listens on. A restart changes it.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Replaces the configuration of the running server.
    pub(super) fn reload(&self, config: &str) {
        fs::write(self.directory.path().join("server.conf"), config).unwrap();
        kill_process(Pid::from_raw(self.pid()).unwrap(), Signal::HUP).unwrap();
    }

    /// The server's process id.
    pub(super) fn pid(&self) -> i32 {
        self.process.as_ref().unwrap().id().try_into().unwrap()
    }

    /// Kills the server at once.
    pub(super) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            kill_and_reap(&mut process);
        }
    }

    /// Kills the server if it runs, and starts it on the same store and on another free port.
    pub(super) async fn restart(&mut self) {
        self.kill();
        let process = self.command().spawn().unwrap();
        let ports = self.directory.path().join(format!("nats-server_{}.ports", process.id()));
        self.process = Some(process);

        let mut port = None;
        eventually("the NATS server listens", async || {
            let ended = self.process.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "the NATS server ended:\n{}", self.log());
            port = read_port(&ports);
            port.is_some()
        })
        .await;
        self.port = port.unwrap();
    }

    fn command(&self) -> Command {
        let program = tools_directory().join("bin/nats-server");
        let program = fs::canonicalize(&program).unwrap();
        let store = self.store();
        let mut command = match &self.small_disk {
            Some(disk) => {
                let mut command = Command::new("nsenter");
                command.args(["--mount", "--target", &disk.holder.id().to_string()]).arg(program);
                command
            }
            None => Command::new(program),
        };
        if self.has_config {
            command.arg("--config").arg(self.directory.path().join("server.conf"));
        }

        let log = fs::OpenOptions::new().create(true).append(true).open(self.log_path()).unwrap();
        command
            .args(["--addr", "127.0.0.1", "--port", "-1", "--jetstream", "--store_dir"])
            .arg(store)
            .arg("--ports_file_dir")
            .arg(self.directory.path())
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        command
    }

    /// Fills the small disk of the server.
    pub(super) fn fill_disk(&self) {
        // Fails when the disk is full, as it should.
        let _full = fs::write(self.ballast(), vec![1; SMALL_DISK_BYTES.try_into().unwrap()]);
    }

    /// Frees the small disk of the server.
    pub(super) fn free_disk(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }

    /// A file on the small disk, as the server sees it.
    fn ballast(&self) -> PathBuf {
        let holder = self.small_disk.as_ref().unwrap().holder.id();
        let store = self.store();
        let root = PathBuf::from(format!("/proc/{holder}/root"));
        root.join(store.strip_prefix("/").unwrap()).join("ballast")
    }

    fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }
}

impl SmallDisk {
    fn mount(directory: &Path) -> Self {
        let mut holder = Command::new("unshare")
            .args(["--mount", "sh", "-c", SMALL_DISK_SCRIPT, &SMALL_DISK_BYTES.to_string()])
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "mounted\n");
        Self { holder }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        kill_and_reap(&mut self.holder);
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- log of the NATS server ---\n{}---", self.log());
        }
    }
}

/// The port in a server's file of ports, once it is complete.
fn read_port(path: &Path) -> Option<u16> {
    let text = fs::read_to_string(path).ok()?;
    let ports: Value = serde_json::from_str(&text).ok()?;
    let address = ports["nats"][0].as_str()?;
    address.rsplit_once(':')?.1.parse().ok()
}
