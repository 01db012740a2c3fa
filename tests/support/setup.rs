//! How a daemon is started: as whom, with which arguments, in which surroundings.

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
    process::{Child, Command, Output, Stdio},
    sync::Arc,
    thread,
};

use tempfile::TempDir;
use tokio::sync::mpsc;

use super::{
    daemon::{Daemon, Log},
    wait::{MachineLock, wait_timeout},
};

/// The daemon's binary.
const DAEMON_BINARY: &str = env!("CARGO_BIN_EXE_jigd");
/// A secret in the environment of every daemon.
pub(crate) const SECRET_VARIABLE: (&str, &str) = ("JIG_TEST_SECRET", "in-the-daemons-environment");
/// What every daemon has on its standard input.
pub(crate) const DAEMON_STDIN: &str = "the daemon's own input\n";
/// Mounts a small file system where the workspace is, seen by the daemon only, and executes it.
const SMALL_WORKSPACE_SCRIPT: &str = r#"
    for word; do [ "$last" = --workspace ] && workspace=$word; last=$word; done
    mount -t tmpfs -o size=2m,mode=755 tmpfs "$workspace" && exec "$0" "$@"
"#;
/// As [`ON_SMALL_DISK`], in the state directory.
const SMALL_STATE_SCRIPT: &str = r#"
    for word; do [ "$last" = --state-dir ] && state=$word; last=$word; done
    state=$state/$JIG_TEST_BELOW; mkdir -p "$state"
    mount -t tmpfs -o size=4m,mode=700 tmpfs "$state" && exec "$0" "$@"
"#;

/// How a daemon is to be started.
#[derive(Debug, Clone, Default)]
pub(crate) struct Setup {
    arguments: Vec<OsString>,
    environment: Vec<(String, String)>,
    wrapper: Vec<OsString>,
    user: Option<u32>,
    workspace_owner: Option<u32>,
    tcp: bool,
    exclusive: bool,
    table: Option<String>,
    files: Vec<(String, String)>,
    wrapper_sets_user: bool,
    contained: bool,
    resources: Vec<Arc<dyn Debug + Send + Sync>>,
}

/// Where a daemon lives: its directory, and its test's right to the machine.
#[derive(Debug)]
pub(crate) struct DaemonDirectory {
    folder: TempDir,
    _lock: MachineLock,
}

impl Setup {
    /// A daemon that runs as root, on a root-owned workspace, listening on a Unix socket.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds arguments.
    pub(crate) fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(OsString::from));
        self
    }

    /// Adds a flag with its value, unless the test gives another.
    pub(super) fn with_default_argument(self, flag: &'static str, value: &'static str) -> Self {
        let words = self.default_argument(flag, value);
        self.arguments(&words)
    }

    /// Names the workspace by a table of a configuration file, which has these lines too.
    pub(crate) fn workspace_table(mut self, lines: &str) -> Self {
        self.table = Some(lines.to_owned());
        self
    }

    /// Adds a variable to its environment.
    pub(crate) fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Takes a variable out of its environment again.
    pub(super) fn without_variable(mut self, name: &str) -> Self {
        self.environment.retain(|(variable, _)| variable != name);
        self
    }

    /// Starts it as an ordinary user, to whom the workspace belongs then.
    pub(crate) fn user(mut self, user: u32) -> Self {
        self.user = Some(user);
        self
    }

    /// Gives the workspace to somebody.
    pub(crate) fn workspace_owner(mut self, owner: u32) -> Self {
        self.workspace_owner = Some(owner);
        self
    }

    /// To whom the workspace belongs.
    pub(crate) fn workspace_uid(&self) -> u32 {
        self.workspace_owner.or(self.user).unwrap_or(0)
    }

    /// Has a program start it, which must execute its arguments in the process that it is.
    pub(crate) fn wrapped_by<S: Into<OsString>>(
        mut self,
        wrapper: impl IntoIterator<Item = S>,
    ) -> Self {
        self.wrapper = wrapper.into_iter().map(Into::into).collect();
        self
    }

    /// Has that program execute another one first, which must do likewise.
    pub(crate) fn and_wrapped_by<S: Into<OsString>>(
        mut self,
        wrapper: impl IntoIterator<Item = S>,
    ) -> Self {
        self.wrapper.extend(wrapper.into_iter().map(Into::into));
        self
    }

    /// Leaves it to the program that starts it to become its user.
    pub(crate) fn wrapper_sets_user(mut self) -> Self {
        self.wrapper_sets_user = true;
        self
    }

    /// The daemon is not the process that is started, but below it.
    pub(super) fn mark_contained(mut self) -> Self {
        self.contained = true;
        self
    }

    pub(super) fn is_contained(&self) -> bool {
        self.contained
    }

    /// Keeps something for as long as the daemon may be started.
    pub(crate) fn with_resource(mut self, kept: Arc<dyn Debug + Send + Sync>) -> Self {
        self.resources.push(kept);
        self
    }

    /// Starts it in a network namespace of its own, whose loopback interface has the addresses too.
    pub(crate) fn with_network_addresses(self, addresses: &[&str]) -> Self {
        let mut script = "ip link set lo up".to_owned();
        for address in addresses {
            script.push_str(&format!(" && ip address add {address} dev lo"));
        }
        script.push_str(" && exec \"$0\" \"$@\"");
        self.wrapped_by(["unshare", "--net", "sh", "-c", &script])
    }

    /// Gives the workspace a disk of its own, of 2 MiB, which only the daemon and its commands see.
    pub(crate) fn workspace_on_small_disk(self) -> Self {
        self.wrapped_by(["unshare", "--mount", "sh", "-c", SMALL_WORKSPACE_SCRIPT])
    }

    /// Gives the state directory, or a directory in it, a disk of its own, of 4 MiB, which only the
    /// daemon and its commands see.
    pub(crate) fn state_on_small_disk(self, below: &str) -> Self {
        self.environment("JIG_TEST_BELOW", below).wrapped_by([
            "unshare",
            "--mount",
            "sh",
            "-c",
            SMALL_STATE_SCRIPT,
        ])
    }

    /// Has it listen on a free port of 127.0.0.1 too.
    pub(crate) fn listen_tcp(mut self) -> Self {
        self.tcp = true;
        self
    }

    /// Has a file be in the workspace before the daemon is, in a directory of its own.
    pub(crate) fn workspace_file(mut self, path: &str, content: &str) -> Self {
        self.files.push((path.to_owned(), content.to_owned()));
        self
    }

    /// Runs the test while no other runs: it loads the machine.
    pub(crate) fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    /// Starts the daemon and waits until it answers calls.
    ///
    /// Where `JIG_TEST_LEVEL` is `L1` or `L2`, a daemon of which nothing else was asked gives that
    /// level instead of L3: to look at what a test finds there. Not every test holds there. Where
    /// `JIG_TEST_CONTAINER` is `docker` or `podman`, a daemon of root's is in such a container, unless
    /// the test arranges what it may do.
    pub(crate) async fn start(self) -> Daemon {
        let of_root = self.user.is_none() && self.workspace_owner.is_none();
        let plain = of_root && self.wrapper.is_empty();
        let setup = match env::var("JIG_TEST_LEVEL").as_deref() {
            Ok("L1") if plain => self.at_l1(),
            Ok("L2") if plain => self.at_l2(),
            _ => self,
        };
        let setup = match env::var("JIG_TEST_CONTAINER") {
            Ok(engine) if of_root && !setup.specifies_host() => setup.in_engine_container(&engine),
            _ => setup,
        };
        setup.start_unmodified().await
    }

    /// Whether the test says what kind of host the daemon of root's finds.
    fn specifies_host(&self) -> bool {
        self.contained || self.arguments.iter().any(|word| word == "--chown-workspace")
    }

    async fn start_unmodified(self) -> Daemon {
        assert!(rustix::process::geteuid().is_root(), "these tests must run as root");
        let place = Arc::new(DaemonDirectory {
            _lock: MachineLock::acquire(self.exclusive).await,
            folder: tempfile::Builder::new()
                .prefix("jig-test-")
                .permissions(fs::Permissions::from_mode(0o755))
                .tempdir()
                .unwrap(),
        });
        fs::create_dir(place.workspace()).unwrap();
        let owner = Some(self.workspace_uid());
        chown(place.workspace(), owner, owner).unwrap();
        for (path, content) in &self.files {
            let path = place.workspace().join(path);
            let folder = path.parent().unwrap();
            fs::create_dir_all(folder).unwrap();
            fs::write(&path, content).unwrap();
            for made in [folder, &path] {
                chown(made, owner, owner).unwrap();
            }
        }
        chown(place.folder.path(), self.user, self.user).unwrap();
        if self.user.is_some() {
            // The directory of the build may be closed to others.
            copy_program(Path::new(DAEMON_BINARY), &place.binary_copy());
        }
        self.start_in(place).await
    }

    /// Starts the daemon in a place where there was one before.
    pub(super) async fn start_in(self, place: Arc<DaemonDirectory>) -> Daemon {
        let mut child = self.command(&place).spawn().unwrap();
        // It stays open, so that a command that got it would wait for more.
        let mut input = child.stdin.take().unwrap();
        // One that ends at once says why on its standard error.
        let _ended = input.write_all(DAEMON_STDIN.as_bytes());
        let log = Log::default();
        collect_log(child.stderr.take().unwrap(), log.clone());
        let lines = read_lines(child.stdout.take().unwrap());
        let expected = if self.tcp { 2 } else { 1 };
        match read_addresses(lines, expected).await {
            Ok(addresses) => Daemon::new(child, input, addresses, log, place, self),
            Err(why) => {
                kill_and_reap(&mut child);
                panic!("the daemon did not start: {why}\n{}", log.text());
            }
        }
    }

    /// Runs `jigd --check` in a place where a daemon lives, as that was started.
    pub(super) fn run_check_in(&self, place: &DaemonDirectory) -> Output {
        self.command(place).arg("--check").output().unwrap()
    }

    fn workspace_arguments(&self, place: &DaemonDirectory) -> [OsString; 2] {
        let Some(lines) = &self.table else {
            return ["--workspace".into(), place.workspace().into()];
        };
        let path = place.path("jig.toml");
        let workspace = place.workspace();
        let table = format!("[[workspaces]]\npath = {workspace:?}\n{lines}\n");
        fs::write(&path, table).unwrap();
        ["--config".into(), path.into()]
    }

    /// A flag with its value, unless the test gives another.
    fn default_argument(&self, flag: &'static str, value: &'static str) -> Vec<&'static str> {
        if self.arguments.iter().any(|argument| argument == flag) {
            Vec::new()
        } else {
            vec![flag, value]
        }
    }

    fn command(&self, place: &DaemonDirectory) -> Command {
        let binary = match self.user {
            None => PathBuf::from(DAEMON_BINARY),
            Some(_) => place.binary_copy(),
        };
        let mut words = self.wrapper.clone();
        words.push(binary.into());
        let mut command = Command::new(words.remove(0));
        command
            .args(words)
            .arg("--listen")
            .arg(format!("unix:{}", place.socket().display()))
            .args(self.workspace_arguments(place))
            .arg("--state-dir")
            .arg(place.state_dir())
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
    /// The workspace.
    pub(super) fn workspace(&self) -> PathBuf {
        self.folder.path().join("workspace")
    }

    /// The state directory.
    pub(super) fn state_dir(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// The Unix socket.
    pub(super) fn socket(&self) -> PathBuf {
        self.folder.path().join("jigd.sock")
    }

    /// A path for what a test needs beside the daemon.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn binary_copy(&self) -> PathBuf {
        self.folder.path().join("jigd")
    }
}

/// Runs `jigd` with arguments that make it end by itself.
pub(crate) fn run_jigd(arguments: &[&str]) -> Output {
    Command::new(DAEMON_BINARY).args(arguments).env_clear().stdin(Stdio::null()).output().unwrap()
}

/// Copies a program that is to be executed. By a process of its own: a child that another test
/// starts at the same moment would hold this one's descriptor for a while, and what somebody may
/// write cannot be executed.
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

/// Path of the daemon's binary.
pub(crate) fn daemon_binary() -> &'static Path {
    Path::new(DAEMON_BINARY)
}

/// Ends a daemon that is not wanted any more, and takes it from the process table.
pub(super) fn kill_and_reap(child: &mut Child) {
    let _dead_already = child.kill();
    let _reaped = child.wait();
}

async fn read_addresses(
    mut lines: mpsc::Receiver<String>,
    expected: usize,
) -> Result<Vec<String>, String> {
    let mut addresses = Vec::new();
    while addresses.len() < expected {
        let line = tokio::time::timeout(wait_timeout(), lines.recv())
            .await
            .map_err(|_| format!("no word within {:?}", wait_timeout()))?
            .ok_or("it ended")?;
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
            // A test that has its addresses listens no more, and the daemon must not notice.
            let _unheard = sender.blocking_send(line);
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
