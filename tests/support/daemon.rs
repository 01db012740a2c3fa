//! A daemon under test: its process, its clients, its log. It is killed when the handle is dropped,
//! and its log is shown when the test has failed.

use std::{
    fs,
    path::PathBuf,
    process::{Child, ChildStdin, ExitStatus, Output},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use jig::api::v1::{
    GetInfoRequest, GetInfoResponse, ListFilesRequest, ReadArtifactRequest, ReadFileRequest,
    RunRequest, RunResponse, SandboxFailure, artifact_service_client::ArtifactServiceClient,
    daemon_service_client::DaemonServiceClient, tool_service_client::ToolServiceClient,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::JoinHandle;
use tonic::{
    IntoRequest, Status,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use super::{
    call::{MAX_MESSAGE_BYTES, Refusal, describe_status, shell, with_metadata},
    process_table::{descendants, status_field},
    setup::{DaemonDirectory, Setup, kill_and_reap},
    wait::{eventually, promptly},
};

/// A running daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    _input: ChildStdin,
    addresses: Vec<String>,
    channel: Channel,
    log: Log,
    directory: Arc<DaemonDirectory>,
    setup: Setup,
}

/// What a daemon has written to its standard error.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Daemon {
    /// Starts a daemon as root, on a root-owned workspace.
    pub(crate) async fn start() -> Self {
        Setup::new().start().await
    }

    pub(super) fn new(
        child: Child,
        input: ChildStdin,
        addresses: Vec<String>,
        log: Log,
        place: Arc<DaemonDirectory>,
        setup: Setup,
    ) -> Self {
        let channel = lazy_channel(&format!("unix:{}", place.socket().display()));
        Self { child, _input: input, addresses, channel, log, directory: place, setup }
    }

    // === Calls ===

    /// A client of its tools.
    pub(crate) fn tools(&self) -> ToolServiceClient<Channel> {
        tool_client(self.channel.clone())
    }

    /// The channel to it.
    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// A channel to it of its own.
    pub(crate) fn new_connection(&self) -> Channel {
        lazy_channel(&format!("unix:{}", self.directory.socket().display()))
    }

    /// A client of its tools on a connection of its own.
    pub(crate) fn tools_on_new_connection(&self) -> ToolServiceClient<Channel> {
        tool_client(self.new_connection())
    }

    /// Runs a command, whatever becomes of the call.
    pub(crate) async fn try_run(
        &self,
        request: impl IntoRequest<RunRequest>,
    ) -> Result<RunResponse, Status> {
        let mut tools = self.tools();
        tools.run(request).await.map(tonic::Response::into_inner)
    }

    /// Runs a command that can be run.
    pub(crate) async fn run(&self, request: impl IntoRequest<RunRequest>) -> RunResponse {
        match self.try_run(request).await {
            Ok(response) => response,
            Err(status) => panic!("the command was not run: {}", describe_status(&status)),
        }
    }

    /// Runs a command that exits with 0, and answers what it wrote to its standard output.
    pub(crate) async fn output(&self, request: impl IntoRequest<RunRequest>) -> String {
        let response = self.run(request).await;
        assert_eq!(response.exit_code, Some(0), "{response:?}");
        response.stdout
    }

    /// Starts running a command, and lets the test go on.
    pub(crate) fn spawn_run(
        &self,
        request: impl IntoRequest<RunRequest>,
    ) -> JoinHandle<Result<RunResponse, Status>> {
        let mut tools = self.tools();
        let request = request.into_request();
        tokio::spawn(async move { tools.run(request).await.map(tonic::Response::into_inner) })
    }

    /// Checks that it serves nothing and runs no command. Answers which levels were refused, and why.
    pub(crate) async fn assert_runs_nothing(&self) -> Vec<SandboxFailure> {
        assert_eq!(self.health().await, ServingStatus::NotServing);
        self.run_failing(shell("touch ran"), "SANDBOX_UNAVAILABLE").await;
        assert!(!self.file("ran").exists());
        let isolation = self.info().await.isolation.unwrap();
        assert_eq!(isolation.level, "L0");
        isolation.failed_levels
    }

    /// Runs a command that must be refused, for this reason.
    pub(crate) async fn run_failing(&self, request: RunRequest, reason: &str) -> Refusal {
        let shown = format!("{request:.300?}");
        match self.try_run(request).await {
            Ok(response) => panic!("{shown} was run: {response:?}"),
            Err(status) => {
                let refusal = Refusal::from_status(&status);
                assert_eq!(refusal.reason, reason, "{shown}: {refusal:?}");
                refusal
            }
        }
    }

    /// All bytes of an artifact of the default session, and the size that the daemon tells.
    pub(crate) async fn artifact(&self, path: &str) -> (Vec<u8>, u64) {
        self.artifact_of_session("default", path).await.unwrap()
    }

    /// All bytes of an artifact of a session, and the size that the daemon tells.
    pub(crate) async fn artifact_of_session(
        &self,
        session: &str,
        path: &str,
    ) -> Result<(Vec<u8>, u64), Refusal> {
        let mut artifacts = ArtifactServiceClient::new(self.channel.clone());
        let request =
            ReadArtifactRequest { path: path.to_owned(), ..ReadArtifactRequest::default() };
        let answer = artifacts.read_artifact(with_metadata("jig-session", session, request)).await;
        let mut parts = answer.map_err(|status| Refusal::from_status(&status))?.into_inner();
        let (mut bytes, mut size) = (Vec::new(), None);
        while let Some(part) = parts.message().await.unwrap() {
            assert_eq!(part.offset, bytes.len() as u64, "parts follow one another");
            bytes.extend_from_slice(&part.data);
            size = Some(part.size_bytes);
        }
        Ok((bytes, size.expect("at least one message is sent")))
    }

    /// Content of a file of the workspace, as the tool reads it.
    pub(crate) async fn read_file(&self, path: &str) -> Result<String, Refusal> {
        let request = ReadFileRequest { path: path.to_owned(), ..ReadFileRequest::default() };
        match self.tools().read_file(request).await {
            Ok(response) => Ok(response.into_inner().content),
            Err(status) => Err(Refusal::from_status(&status)),
        }
    }

    /// Files of the workspace, as the tool lists them.
    pub(crate) async fn list_files(&self) -> Vec<String> {
        let response = self.tools().list_files(ListFilesRequest::default()).await;
        response.unwrap().into_inner().files
    }

    /// What the daemon tells about itself.
    pub(crate) async fn info(&self) -> GetInfoResponse {
        let mut client = DaemonServiceClient::new(self.channel.clone());
        let answer = client.get_info(GetInfoRequest {}).await;
        answer.unwrap().into_inner()
    }

    /// The level of isolation that it gives.
    pub(crate) async fn level(&self) -> String {
        self.info().await.isolation.unwrap().level
    }

    /// Health of its tools.
    pub(crate) async fn health(&self) -> ServingStatus {
        let answer = self.health_client().check(tool_health_request()).await;
        answer.unwrap().into_inner().status()
    }

    /// Health of its tools, now and whenever it changes.
    pub(crate) async fn watch_health(
        &self,
    ) -> tonic::Streaming<tonic_health::pb::HealthCheckResponse> {
        let answer = self.health_client().watch(tool_health_request()).await;
        answer.unwrap().into_inner()
    }

    fn health_client(&self) -> HealthClient<Channel> {
        HealthClient::new(self.channel.clone())
    }

    // === What it is ===

    /// Its workspace, on the host.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.directory.workspace()
    }

    /// A path in its workspace, on the host.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.workspace().join(name)
    }

    /// Its state directory.
    pub(crate) fn state_dir(&self) -> PathBuf {
        self.directory.state_dir()
    }

    /// Its Unix socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.socket()
    }

    /// A path beside its workspace, for what the test needs.
    pub(crate) fn sibling_path(&self, name: &str) -> PathBuf {
        self.directory.path(name)
    }

    /// The port of 127.0.0.1, or of all addresses, that it listens on.
    pub(crate) fn port(&self) -> u16 {
        let port = self.addresses.iter().find_map(|address| {
            let mut hosts = ["127.0.0.1:", "0.0.0.0:"].into_iter();
            hosts.find_map(|host| address.strip_prefix(host))
        });
        port.expect("it was set up to").parse().unwrap()
    }

    /// Its process id, as the host counts.
    pub(crate) fn pid(&self) -> i32 {
        let started = i32::try_from(self.child.id()).unwrap();
        if !self.setup.is_contained() {
            return started;
        }
        let named = |pid: &i32| status_field(*pid, "Name").as_deref() == Some("jigd");
        let below = descendants(started).into_iter();
        let mut pids = below.map(|process| process.pid);
        pids.find(named).expect("the daemon runs")
    }

    /// Bytes of memory that it occupies.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.memory_bytes("VmRSS:")
    }

    /// Most bytes of memory that it has occupied.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.memory_bytes("VmHWM:")
    }

    fn memory_bytes(&self, which: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix(which));
        let kib: u64 = line.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
        kib << 10
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        self.log.text()
    }

    // === Its configuration ===

    /// What the log says of a configuration that was read again.
    pub(crate) const RELOADED: &str = "reloaded policy, approvals and keys";
    /// What it says of one that could not be.
    pub(crate) const RELOAD_FAILED: &str = "the old one stays";

    /// Has it read its configuration again, and waits until the log says what came of that.
    pub(crate) async fn reload_config(&self, expected: &str) {
        let count = || self.log().matches(expected).count();
        let before = count();
        self.signal(Signal::HUP);
        eventually("the configuration is read again", async || count() > before).await;
    }

    // === Its end ===

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid()).unwrap(), signal).unwrap();
    }

    /// Waits until it has ended.
    pub(crate) async fn wait_for_exit(&mut self) -> ExitStatus {
        let mut status = None;
        let child = &mut self.child;
        eventually("the daemon ends", async || {
            status = child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap()
    }

    /// Kills it, if it still runs, and starts it again on the same workspace and state.
    pub(crate) async fn restart(mut self) -> Self {
        kill_and_reap(&mut self.child);
        let (setup, place) = (self.setup.clone(), Arc::clone(&self.directory));
        promptly("starting again", setup.start_in(place)).await
    }

    /// What `jigd --check` says with all that it was started with.
    pub(crate) fn run_check(&self) -> Output {
        self.setup.run_check_in(&self.directory)
    }

    /// As [`Self::restart`], without a variable that its environment had.
    pub(crate) async fn restart_without_variable(mut self, variable: &str) -> Self {
        self.setup = self.setup.clone().without_variable(variable);
        self.restart().await
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        kill_and_reap(&mut self.child);
        if thread::panicking() {
            eprintln!("--- log of the daemon ---\n{}---", self.log.text());
        }
    }
}

impl Log {
    /// Adds a line.
    pub(super) fn push_line(&self, line: &[u8]) {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.extend_from_slice(line);
        log.push(b'\n');
    }

    /// All that was written.
    pub(super) fn text(&self) -> String {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&log).into_owned()
    }
}

/// A client of a daemon's tools that takes large answers.
pub(crate) fn tool_client(channel: Channel) -> ToolServiceClient<Channel> {
    ToolServiceClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
}

/// A channel that connects when it is first used.
pub(crate) fn lazy_channel(address: &str) -> Channel {
    Endpoint::from_shared(address.to_owned()).unwrap().connect_lazy()
}

fn tool_health_request() -> HealthCheckRequest {
    HealthCheckRequest { service: "jig.v1.ToolService".to_owned() }
}
