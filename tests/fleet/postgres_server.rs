//! A PostgreSQL server of one test, with a Unix socket and a port on loopback, and the table of jobs.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Once,
};

use jig::api::v1::{Job, SubmitJobRequest};
use prost::Message as _;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

use super::plain_client::MAX_FLEET_TIME;
use crate::support::{
    CertificateFiles, eventually, eventually_within, run_setup_script, tools_directory,
};

/// The user that runs the server, because it refuses root.
const SERVER_UID: u32 = 65_534;
/// Who may connect: everyone by the socket, and daemons with a password by TLS.
const ACCESS: &str = "local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n";
const PASSWORD: &str = "the password of the daemons";

/// A PostgreSQL server. It ends with the test.
#[derive(Debug)]
pub(super) struct PostgresServer {
    process: Option<Child>,
    directory: TempDir,
    port: u16,
    /// Settings of the server.
    settings: Vec<String>,
}

/// The row of a job.
#[derive(Debug)]
pub(super) struct StoredJob {
    pub(super) state: String,
    pub(super) outcome: Option<String>,
    pub(super) claimed_by: Option<String>,
    pub(super) attempts: i32,
    pub(super) result: Option<Job>,
}

impl PostgresServer {
    pub(super) async fn start() -> Self {
        Self::start_with(None).await
    }

    /// A server with a certificate.
    pub(super) async fn start_with_tls(files: &CertificateFiles) -> Self {
        Self::start_with(Some(files)).await
    }

    async fn start_with(tls: Option<&CertificateFiles>) -> Self {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| run_setup_script("tests/fleet/install.sh"));

        let directory = TempDir::with_prefix("jig-test-pg-").unwrap();
        give_to_server(directory.path());
        let mut server = Self { process: None, directory, port: 0, settings: Vec::new() };
        server.run(
            "initdb",
            &["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--pgdata"],
        );
        fs::write(server.data().join("pg_hba.conf"), ACCESS).unwrap();
        if let Some(files) = tls {
            for (name, from) in [("cert", &files.cert), ("key", &files.key)] {
                let path = server.data().join(format!("server.{name}"));
                fs::copy(from, &path).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
                give_to_server(&path);
                server.settings.push(format!("ssl_{name}_file={}", path.display()));
            }
            server.settings.push("ssl=on".to_owned());
        }
        server.restart().await;
        server.create_table().await;
        server
    }

    /// Creates roles, and the table as operators do.
    async fn create_table(&self) {
        let roles = format!("CREATE ROLE jigd LOGIN PASSWORD '{PASSWORD}'; CREATE ROLE ci LOGIN;");
        self.connect("postgres").await.batch_execute(&roles).await.unwrap();
        for _repeated in 0..2 {
            self.run_fleet_script("postgres").unwrap();
        }
    }

    /// Runs the script that creates the table. Returns what it writes if it fails.
    pub(super) fn run_fleet_script(&self, database: &str) -> Result<(), String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/postgres/fleet.sql");
        let output = Command::new(program("psql"))
            .args(["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1"])
            .args(["--set=daemons=jigd", "--set=submitters=ci", "--username=postgres"])
            .arg(format!("--host={}", self.directory.path().display()))
            .arg(format!("--port={}", self.port))
            .arg(format!("--file={}", script.display()))
            .arg(format!("--dbname={database}"))
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(errors) }
    }

    /// Kills the server at once: it recovers when it starts again.
    pub(super) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let pid = Pid::from_child(&process);
            let _dead_already = kill_process(pid, Signal::QUIT);
            let _reaped = process.wait();
        }
    }

    /// Signals the server and the processes of its connections.
    pub(super) fn signal_all(&self, signal: Signal) {
        let server = Pid::from_child(self.process.as_ref().unwrap());
        let id = server.as_raw_nonzero();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        let children = children.split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?));
        for process in [server].into_iter().chain(children) {
            // A connection may have ended.
            let _signalled = kill_process(process, signal);
        }
    }

    /// Kills the server if it runs, and starts it on the same data and the same port, if it is free.
    pub(super) async fn restart(&mut self) {
        self.kill();
        if self.port == 0 {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            self.port = free.local_addr().unwrap().port();
        }
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log_path()).unwrap();
        let mut command = self.command("postgres");
        for setting in &self.settings {
            command.args(["-c", setting]);
        }
        let process = command
            .arg(format!("-p{}", self.port))
            .arg("-D")
            .arg(self.data())
            .args(["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"])
            .arg("-c")
            .arg(format!("unix_socket_directories={}", self.directory.path().display()))
            .stderr(log)
            .spawn()
            .unwrap();
        self.process = Some(process);
        eventually_within(MAX_FLEET_TIME, "the PostgreSQL server answers", async || {
            let ended = self.process.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "the PostgreSQL server ended:\n{}", self.log());
            self.try_connect("postgres").await.is_some()
        })
        .await;
    }

    /// Runs a program of the server on its data.
    fn run(&self, name: &str, arguments: &[&str]) {
        let output = self.command(name).args(arguments).arg(self.data()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// A program of the server, as the user that runs it.
    fn command(&self, name: &str) -> Command {
        let program = program(name);
        let mut command = if geteuid().is_root() {
            let id = SERVER_UID.to_string();
            let mut command = Command::new("setpriv");
            command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command
            .current_dir(self.directory.path())
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    }

    /// URL by which daemons connect to the socket.
    pub(super) fn socket_url(&self) -> String {
        let (directory, port) = (self.directory.path().display(), self.port);
        format!("postgresql:///postgres?user=jigd&host={directory}&port={port}")
    }

    /// URL by which daemons connect to the socket if they cannot use another server. `host` may be the
    /// directory of a socket.
    pub(super) fn socket_url_after(&self, host: &str, port: u16) -> String {
        let (directory, own_port) = (self.directory.path().display(), self.port);
        format!(
            "postgresql:///postgres?user=jigd&host={host}&host={directory}&port={port},{own_port}"
        )
    }

    /// Directory of the socket, and its port.
    pub(super) fn socket(&self) -> (&str, u16) {
        (self.directory.path().to_str().unwrap(), self.port)
    }

    /// URL by which daemons connect by TLS, and the password.
    pub(super) fn tls_url(&self) -> (String, &'static str) {
        (format!("postgresql://jigd@127.0.0.1:{}/postgres", self.port), PASSWORD)
    }

    /// Connects by the socket, as a role.
    pub(super) async fn connect(&self, role: &str) -> Client {
        let mut client = None;
        eventually("the test connects to PostgreSQL", async || {
            client = self.try_connect(role).await;
            client.is_some()
        })
        .await;

        client.unwrap()
    }

    async fn try_connect(&self, role: &str) -> Option<Client> {
        let connecting = tokio_postgres::Config::new()
            .host_path(self.directory.path())
            .port(self.port)
            .user(role)
            .dbname("postgres")
            .connect(NoTls)
            .await;
        let (client, connection) = connecting.ok()?;
        tokio::spawn(connection);
        Some(client)
    }

    /// Inserts a job into the queue `build`, as a program without a daemon does. Returns its id.
    pub(super) async fn insert(&self, request_id: &str, request: &SubmitJobRequest) -> String {
        let client = self.connect("ci").await;
        let body = request.encode_to_vec();
        let statement = "INSERT INTO jig_jobs (queue, workspace, request_id, request) \
             VALUES ('build', 'main', $1, $2) RETURNING id";
        client.query_one(statement, &[&request_id, &body]).await.unwrap().get(0)
    }

    pub(super) async fn job(&self, id: &str) -> StoredJob {
        let client = self.connect("ci").await;
        let statement =
            "SELECT state, outcome, claimed_by, attempts, result FROM jig_jobs WHERE id = $1";
        let row = client.query_one(statement, &[&id]).await.unwrap();
        let result: Option<Vec<u8>> = row.get(4);
        StoredJob {
            state: row.get(0),
            outcome: row.get(1),
            claimed_by: row.get(2),
            attempts: row.get(3),
            result: result.map(|result| Job::decode(result.as_slice()).unwrap()),
        }
    }

    /// Waits until a job has ended, and returns it.
    pub(super) async fn wait_for_end(&self, id: &str) -> StoredJob {
        eventually_within(MAX_FLEET_TIME, &format!("{id} has ended"), async || {
            self.job(id).await.state == "ended"
        })
        .await;
        let job = self.job(id).await;
        assert!(job.result.as_ref().unwrap().end_time.is_some(), "{job:?}");
        job
    }

    /// Counts the rows with a condition.
    pub(super) async fn count(&self, condition: &str) -> i64 {
        let statement = format!("SELECT count(*) FROM jig_jobs WHERE {condition}");
        self.connect("ci").await.query_one(&statement, &[]).await.unwrap().get(0)
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- log of the PostgreSQL server ---\n{}---", self.log());
        }
    }
}

/// A program of PostgreSQL, which the setup script has found.
fn program(name: &str) -> PathBuf {
    fs::canonicalize(tools_directory().join("postgresql").join(name)).unwrap()
}

fn give_to_server(path: &Path) {
    if geteuid().is_root() {
        chown(path, Some(SERVER_UID), Some(SERVER_UID)).unwrap();
    }
}
