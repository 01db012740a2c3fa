//! How a daemon is started: user, arguments, environment and host.

use std::{
    env,
    ffi::OsString,
    fmt::Debug,
    fs,
    io::{BufRead as _, BufReader, Read, Write as _},
    os::unix::{
        fs::{PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{Arc, LazyLock},
    thread,
};

use tempfile::TempDir;
use tokio::sync::mpsc;

use super::{
    daemon::{Daemon, Log},
    signals::kill_and_reap,
    wait::{MachineLock, wait_timeout},
};

/// The daemon that tests start. `JIG_TEST_JIGD` names another one, such as that of an archive.
static DAEMON_BINARY: LazyLock<PathBuf> = LazyLock::new(|| {
    env::var_os("JIG_TEST_JIGD").map_or_else(|| env!("CARGO_BIN_EXE_jigd").into(), PathBuf::from)
});
/// A secret in the environment of each daemon.
pub(crate) const SECRET_VARIABLE: (&str, &str) = ("JIG_TEST_SECRET", "in-the-daemons-environment");
/// The standard input of each daemon.
pub(crate) const DAEMON_STDIN: &str = "the daemon's own input\n";
/// Mounts a small file system at the workspace, which only the daemon sees, and executes the
/// daemon.
const SMALL_WORKSPACE_SCRIPT: &str = r#"
    for word; do [ "$last" = --workspace ] && workspace=$word; last=$word; done
    mount -t tmpfs -o size=2m,mode=755 tmpfs "$workspace" && exec "$0" "$@"
"#;
/// As [`SMALL_WORKSPACE_SCRIPT`], for the state directory.
const SMALL_STATE_SCRIPT: &str = r#"
    for word; do [ "$last" = --state-dir ] && state=$word; last=$word; done
    state=$state/$JIG_TEST_BELOW; mkdir -p "$state"
    mount -t tmpfs -o size=4m,mode=700 tmpfs "$state" && exec "$0" "$@"
"#;

/// Settings of a daemon to start.
#[derive(Debug, Clone, Default)]
pub(crate) struct Setup {
    pub(super) arguments: Vec<OsString>,
    environment: Vec<(String, String)>,
    wrapper: Vec<OsString>,
    user: Option<u32>,
    workspace_owner: Option<u32>,
    tcp: bool,
    exclusive: bool,
    pub(super) table: Option<String>,
    files: Vec<(String, String)>,
    wrapper_sets_user: bool,
    contained: bool,
    listens_by_file: bool,
    shared_lock: Option<Arc<MachineLock>>,
    resources: Vec<Arc<dyn Debug + Send + Sync>>,
}

/// Directory of a daemon, and its test's lock on the machine.
#[derive(Debug)]
pub(crate) struct DaemonDirectory {
    root: TempDir,
    lock: Arc<MachineLock>,
}

impl Setup {
    /// A daemon as root, on a workspace owned by root, listening on a Unix socket.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(OsString::from));
        self
    }

    /// Adds a flag with its value, unless the test has set the flag.
    pub(super) fn with_default_argument(self, flag: &'static str, value: &'static str) -> Self {
        let argument = self.default_argument(flag, value);
        self.arguments(&argument)
    }

    /// Sets the workspace by a table of a configuration file, with `lines` in the table.
    pub(crate) fn workspace_table(mut self, lines: &str) -> Self {
        self.table = Some(lines.to_owned());
        self
    }

    /// Adds a variable to the daemon's environment.
    pub(crate) fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Removes a variable from the daemon's environment.
    pub(crate) fn without_variable(mut self, name: &str) -> Self {
        self.environment.retain(|(variable, _)| variable != name);
        self
    }

    /// Starts the daemon as an ordinary user, which owns the workspace.
    pub(crate) fn user(mut self, user: u32) -> Self {
        self.user = Some(user);
        self
    }

    /// Sets the workspace's owner.
    pub(crate) fn workspace_owner(mut self, owner: u32) -> Self {
        self.workspace_owner = Some(owner);
        self
    }

    /// User id of the workspace's owner.
    pub(crate) fn workspace_uid(&self) -> u32 {
        self.workspace_owner.or(self.user).unwrap_or(0)
    }

    /// Sets a wrapper program, which must execute its arguments in its own process.
    pub(crate) fn wrapped_by<S: Into<OsString>>(
        mut self,
        wrapper: impl IntoIterator<Item = S>,
    ) -> Self {
        self.wrapper = wrapper.into_iter().map(Into::into).collect();
        self
    }

    /// Adds a second wrapper program after the first, with the same obligation.
    pub(crate) fn and_wrapped_by<S: Into<OsString>>(
        mut self,
        wrapper: impl IntoIterator<Item = S>,
    ) -> Self {
        self.wrapper.extend(wrapper.into_iter().map(Into::into));
        self
    }

    /// Leaves the change of the user to the wrapper.
    pub(crate) fn wrapper_sets_user(mut self) -> Self {
        self.wrapper_sets_user = true;
        self
    }

    /// Marks the daemon as a descendant of the started process.
    pub(super) fn mark_contained(mut self) -> Self {
        self.contained = true;
        self
    }

    pub(super) fn is_contained(&self) -> bool {
        self.contained
    }

    /// Stores a value for as long as the daemon can be started.
    pub(crate) fn with_resource(mut self, resource: Arc<dyn Debug + Send + Sync>) -> Self {
        self.resources.push(resource);
        self
    }

    /// Starts the daemon in its own network namespace, with further addresses on the loopback
    /// interface.
    pub(crate) fn with_network_addresses(self, addresses: &[&str]) -> Self {
        let mut script = "ip link set lo up".to_owned();
        for address in addresses {
            script.push_str(&format!(" && ip address add {address} dev lo"));
        }
        script.push_str(" && exec \"$0\" \"$@\"");
        self.wrapped_by(["unshare", "--net", "sh", "-c", &script])
    }

    /// Puts the workspace on its own file system of 2 MiB, which only the daemon and its commands
    /// see.
    pub(crate) fn workspace_on_small_disk(self) -> Self {
        self.wrapped_by(["unshare", "--mount", "sh", "-c", SMALL_WORKSPACE_SCRIPT])
    }

    /// Puts the state directory, or the directory `below` in it, on its own file system of 4 MiB,
    /// which only the daemon and its commands see.
    pub(crate) fn state_on_small_disk(self, below: &str) -> Self {
        self.environment("JIG_TEST_BELOW", below).wrapped_by([
            "unshare",
            "--mount",
            "sh",
            "-c",
            SMALL_STATE_SCRIPT,
        ])
    }

    /// Adds a listener on a free port of 127.0.0.1.
    pub(crate) fn listen_tcp(mut self) -> Self {
        self.tcp = true;
        self
    }

    /// Creates a file of the workspace, and its directory, before the daemon starts.
    pub(crate) fn workspace_file(mut self, path: &str, content: &str) -> Self {
        self.files.push((path.to_owned(), content.to_owned()));
        self
    }

    /// Starts the daemon with the listeners of its configuration file only.
    pub(crate) fn without_listen_flag(mut self) -> Self {
        self.listens_by_file = true;
        self
    }

    /// Runs the test while no other test runs, as it loads the machine.
    pub(crate) fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    /// Starts the daemon beside another one of its test, with the same lock on the machine: a second
    /// lock could wait for a test that waits for the first.
    pub(crate) fn beside(mut self, other: &Daemon) -> Self {
        self.shared_lock = Some(other.machine_lock());
        self
    }

    /// Starts the daemon and waits until it listens.
    ///
    /// If `JIG_TEST_LEVEL` is `L1` or `L2`, a daemon without other settings runs at that level
    /// instead of L3, for experiments: not every test holds there. If `JIG_TEST_CONTAINER` is
    /// `docker` or `podman`, a daemon as root runs in such a container, unless the test specifies
    /// its host. For `JIG_TEST_RECYCLE`, see `recycling`.
    pub(crate) async fn start(self) -> Daemon {
        let is_root = self.user.is_none() && self.workspace_owner.is_none();
        let is_plain = is_root && self.wrapper.is_empty();
        let setup = match env::var("JIG_TEST_LEVEL").as_deref() {
            Ok("L1") if is_plain => self.at_l1(),
            Ok("L2") if is_plain => self.at_l2(),
            _ => self,
        };
        let setup = match env::var("JIG_TEST_CONTAINER") {
            Ok(engine) if is_root && !setup.specifies_host() => setup.in_engine_container(&engine),
            _ => setup,
        };

        let daemon = setup.with_chosen_recycling().start_unmodified().await;
        daemon.make_hostile_runs().await;
        daemon
    }

    /// Whether the test specifies the host of a daemon as root.
    fn specifies_host(&self) -> bool {
        self.contained || self.arguments.iter().any(|word| word == "--chown-workspace")
    }

    async fn start_unmodified(self) -> Daemon {
        assert!(rustix::process::geteuid().is_root(), "these tests must run as root");

        let lock = match &self.shared_lock {
            Some(lock) => Arc::clone(lock),
            None => Arc::new(MachineLock::acquire(self.exclusive).await),
        };
        let directory = Arc::new(DaemonDirectory {
            lock,
            root: tempfile::Builder::new()
                .prefix("jig-test-")
                .permissions(fs::Permissions::from_mode(0o755))
                .tempdir()
                .unwrap(),
        });

        fs::create_dir(directory.workspace()).unwrap();
        let owner = Some(self.workspace_uid());
        chown(directory.workspace(), owner, owner).unwrap();

        for (path, content) in &self.files {
            let path = directory.workspace().join(path);
            let parent = path.parent().unwrap();
            fs::create_dir_all(parent).unwrap();
            fs::write(&path, content).unwrap();
            for created in [parent, &path] {
                chown(created, owner, owner).unwrap();
            }
        }

        chown(directory.root.path(), self.user, self.user).unwrap();
        if self.user.is_some() {
            // Other users may have no access to the build's directory.
            copy_program(daemon_binary(), &directory.binary_copy());
        }

        self.start_in(directory).await
    }

    /// Starts the daemon in a directory, which an earlier daemon may have used.
    pub(super) async fn start_in(self, directory: Arc<DaemonDirectory>) -> Daemon {
        let mut child = self.command(&directory).spawn().unwrap();

        // The input stays open: a command that inherited it would wait for more.
        let mut input = child.stdin.take().unwrap();

        // A daemon that exits at once reports the reason on its standard error.
        let _exited = input.write_all(DAEMON_STDIN.as_bytes());
        let log = Log::default();
        collect_log(child.stderr.take().unwrap(), log.clone());

        let lines = read_lines(child.stdout.take().unwrap());
        let has_flag = self.arguments.iter().any(|argument| argument == "--agent-sandbox");
        let has_table = self.table.iter().any(|table| table.contains("[agent_sandbox]"));
        let agent_sandbox_addresses = if has_flag || has_table { 2 } else { 0 };
        let expected = 1 + usize::from(self.tcp) + agent_sandbox_addresses;
        match read_addresses(lines, expected).await {
            Ok(addresses) => Daemon::new(child, input, addresses, log, directory, self),
            Err(reason) => {
                kill_and_reap(&mut child);
                panic!("the daemon did not start: {reason}\n{}", log.text());
            }
        }
    }

    /// Runs the daemon in the directory of another one that has exited, at most 30 seconds.
    pub(super) fn run_in(&self, directory: &DaemonDirectory) -> Output {
        let mut setup = self.clone();
        setup.wrapper.splice(0..0, ["timeout".into(), "30".into()]);
        setup.command(directory).output().unwrap()
    }

    /// Runs `jigd --check` with this setup in the directory of a daemon.
    pub(super) fn run_check_in(&self, directory: &DaemonDirectory) -> Output {
        self.command(directory).arg("--check").output().unwrap()
    }

    fn listen_arguments(&self, directory: &DaemonDirectory) -> Vec<String> {
        if self.listens_by_file {
            return Vec::new();
        }
        vec!["--listen".to_owned(), format!("unix:{}", directory.socket().display())]
    }

    fn workspace_arguments(&self, directory: &DaemonDirectory) -> [OsString; 2] {
        let Some(lines) = &self.table else {
            return ["--workspace".into(), directory.workspace().into()];
        };
        let path = directory.path("jig.toml");
        let workspace = directory.workspace();
        let table = format!("[[workspaces]]\npath = {workspace:?}\n{lines}\n");
        fs::write(&path, table).unwrap();

        ["--config".into(), path.into()]
    }

    /// A flag with its value, or nothing if the test has set the flag.
    fn default_argument(&self, flag: &'static str, value: &'static str) -> Vec<&'static str> {
        if self.arguments.iter().any(|argument| argument == flag) {
            Vec::new()
        } else {
            vec![flag, value]
        }
    }

    fn command(&self, directory: &DaemonDirectory) -> Command {
        let binary = match self.user {
            None => daemon_binary().to_owned(),
            Some(_) => directory.binary_copy(),
        };
        let mut command_line = self.wrapper.clone();
        command_line.push(binary.into());
        let mut command = Command::new(command_line.remove(0));
        command
            .args(command_line)
            .args(self.listen_arguments(directory))
            .args(self.workspace_arguments(directory))
            .arg("--state-dir")
            .arg(directory.state_dir())
            .args(self.default_argument("--log", "json"))
            .args(self.default_argument("--drain-timeout", "2s"))
            .args(self.tcp.then_some(["--listen", "127.0.0.1:0"]).iter().flatten())
            .args(&self.arguments)
            .current_dir("/")
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("RUST_BACKTRACE", "1")
            .env(SECRET_VARIABLE.0, SECRET_VARIABLE.1)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(user) = self.user.filter(|_| !self.wrapper_sets_user) {
            command.uid(user).gid(user);
        }

        command
    }
}

impl DaemonDirectory {
    pub(super) fn workspace(&self) -> PathBuf {
        self.root.path().join("workspace")
    }

    pub(super) fn state_dir(&self) -> PathBuf {
        self.root.path().join("state")
    }

    /// The test's lock on the machine.
    pub(super) fn machine_lock(&self) -> Arc<MachineLock> {
        Arc::clone(&self.lock)
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.root.path().join("jigd.sock")
    }

    /// A path for files of the test, beside the workspace.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn binary_copy(&self) -> PathBuf {
        self.root.path().join("jigd")
    }
}

/// Runs `jigd` with arguments that make it exit.
pub(crate) fn run_jigd(arguments: &[&str]) -> Output {
    Command::new(daemon_binary()).args(arguments).env_clear().stdin(Stdio::null()).output().unwrap()
}

/// Copies a program for execution, in a process of its own. If this process wrote the copy, a child
/// that another test starts at the same moment would hold the descriptor for a while; a file that
/// is open for writing cannot be executed.
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

pub(crate) fn daemon_binary() -> &'static Path {
    DAEMON_BINARY.as_path()
}

async fn read_addresses(
    mut lines: mpsc::Receiver<String>,
    expected: usize,
) -> Result<Vec<String>, String> {
    let mut addresses = Vec::new();
    while addresses.len() < expected {
        let line = tokio::time::timeout(wait_timeout(), lines.recv())
            .await
            .map_err(|_| format!("no address within {:?}", wait_timeout()))?
            .ok_or("it exited")?;
        match line.strip_prefix("listening on ") {
            Some(address) => addresses.push(address.to_owned()),
            None => return Err(format!("unexpected line: {line}")),
        }
    }

    Ok(addresses)
}

fn read_lines(stream: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(16);
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            // A test that has its addresses drops the receiver. The daemon must not notice.
            let _dropped = sender.blocking_send(line);
        }
    });

    receiver
}

fn collect_log(stream: impl Read + Send + 'static, log: Log) {
    thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            log.push_line(&line);
        }
    });
}
