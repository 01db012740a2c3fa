//! A daemon under test: its process, clients and log. Dropping the handle kills the daemon, and
//! prints its log if the test has failed.

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
    process_table::find_descendant,
    setup::{DaemonDirectory, Setup},
    signals::kill_and_reap,
    wait::{MachineLock, eventually, promptly},
};

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

/// The daemon's standard error so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Daemon {
    /// Starts a daemon as root on a workspace owned by root.
    pub(crate) async fn start() -> Self {
        Setup::new().start().await
    }

    pub(super) fn new(
        child: Child,
        input: ChildStdin,
        addresses: Vec<String>,
        log: Log,
        directory: Arc<DaemonDirectory>,
        setup: Setup,
    ) -> Self {
        let channel = lazy_channel(&format!("unix:{}", directory.socket().display()));
        Self { child, _input: input, addresses, channel, log, directory, setup }
    }

    // === Calls ===

    /// A client of the tool service.
    pub(crate) fn tools(&self) -> ToolServiceClient<Channel> {
        tool_client(self.channel.clone())
    }

    /// The channel that the daemon's clients share.
    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// A new channel to the daemon.
    pub(crate) fn new_connection(&self) -> Channel {
        lazy_channel(&format!("unix:{}", self.directory.socket().display()))
    }

    /// A client of the tool service on a new connection.
    pub(crate) fn tools_on_new_connection(&self) -> ToolServiceClient<Channel> {
        tool_client(self.new_connection())
    }

    /// Runs a command and returns the result of the call.
    pub(crate) async fn try_run(
        &self,
        request: impl IntoRequest<RunRequest>,
    ) -> Result<RunResponse, Status> {
        let mut tools = self.tools();
        tools.run(request).await.map(tonic::Response::into_inner)
    }

    /// Runs a command. Fails if the call fails.
    pub(crate) async fn run(&self, request: impl IntoRequest<RunRequest>) -> RunResponse {
        match self.try_run(request).await {
            Ok(response) => response,
            Err(status) => panic!("the command was not run: {}", describe_status(&status)),
        }
    }

    /// Runs a command that must exit with 0, and returns its standard output.
    pub(crate) async fn output(&self, request: impl IntoRequest<RunRequest>) -> String {
        let response = self.run(request).await;
        assert_eq!(response.exit_code, Some(0), "{response:?}");
        response.stdout
    }

    /// Starts running a command in a task.
    pub(crate) fn spawn_run(
        &self,
        request: impl IntoRequest<RunRequest>,
    ) -> JoinHandle<Result<RunResponse, Status>> {
        let mut tools = self.tools();
        let request = request.into_request();
        tokio::spawn(async move { tools.run(request).await.map(tonic::Response::into_inner) })
    }

    /// Checks that the daemon is not serving and runs no command. Returns the rejected isolation
    /// levels with their reasons.
    pub(crate) async fn assert_runs_nothing(&self) -> Vec<SandboxFailure> {
        assert_eq!(self.health().await, ServingStatus::NotServing);
        self.run_failing(shell("touch ran"), "SANDBOX_UNAVAILABLE").await;
        assert!(!self.file("ran").exists());
        let isolation = self.info().await.isolation.unwrap();
        assert_eq!(isolation.level, "L0");
        isolation.failed_levels
    }

    /// Runs a command. Fails unless the call fails with `reason`.
    pub(crate) async fn run_failing(&self, request: RunRequest, reason: &str) -> Refusal {
        let description = format!("{request:.300?}");
        match self.try_run(request).await {
            Ok(response) => panic!("{description} was run: {response:?}"),
            Err(status) => {
                let refusal = Refusal::from_status(&status);
                assert_eq!(refusal.reason, reason, "{description}: {refusal:?}");
                refusal
            }
        }
    }

    /// The content of an artifact of the default session, and the size that the daemon reports.
    pub(crate) async fn artifact(&self, path: &str) -> (Vec<u8>, u64) {
        self.artifact_of_session("default", path).await.unwrap()
    }

    /// The content of an artifact of a session, and the size that the daemon reports.
    pub(crate) async fn artifact_of_session(
        &self,
        session: &str,
        path: &str,
    ) -> Result<(Vec<u8>, u64), Refusal> {
        let mut artifacts = ArtifactServiceClient::new(self.channel.clone());
        let request =
            ReadArtifactRequest { path: path.to_owned(), ..ReadArtifactRequest::default() };
        let response =
            artifacts.read_artifact(with_metadata("jig-session", session, request)).await;

        let mut messages = response.map_err(|status| Refusal::from_status(&status))?.into_inner();
        let (mut bytes, mut size) = (Vec::new(), None);
        while let Some(message) = messages.message().await.unwrap() {
            assert_eq!(message.offset, bytes.len() as u64, "messages are contiguous");
            bytes.extend_from_slice(&message.data);
            size = Some(message.size_bytes);
        }

        Ok((bytes, size.expect("the stream had no message")))
    }

    /// Reads a file of the workspace with the tool.
    pub(crate) async fn read_file(&self, path: &str) -> Result<String, Refusal> {
        let request = ReadFileRequest { path: path.to_owned(), ..ReadFileRequest::default() };
        match self.tools().read_file(request).await {
            Ok(response) => Ok(response.into_inner().content),
            Err(status) => Err(Refusal::from_status(&status)),
        }
    }

    /// Lists the files of the workspace with the tool.
    pub(crate) async fn list_files(&self) -> Vec<String> {
        let response = self.tools().list_files(ListFilesRequest::default()).await;
        response.unwrap().into_inner().files
    }

    /// The response of `GetInfo`.
    pub(crate) async fn info(&self) -> GetInfoResponse {
        let mut client = DaemonServiceClient::new(self.channel.clone());
        let response = client.get_info(GetInfoRequest {}).await;
        response.unwrap().into_inner()
    }

    /// The daemon's isolation level.
    pub(crate) async fn level(&self) -> String {
        self.info().await.isolation.unwrap().level
    }

    /// Health of the tool service.
    pub(crate) async fn health(&self) -> ServingStatus {
        let response = self.health_client().check(tool_health_request()).await;
        response.unwrap().into_inner().status()
    }

    /// Health of the tool service, as a stream of changes.
    pub(crate) async fn watch_health(
        &self,
    ) -> tonic::Streaming<tonic_health::pb::HealthCheckResponse> {
        let response = self.health_client().watch(tool_health_request()).await;
        response.unwrap().into_inner()
    }

    fn health_client(&self) -> HealthClient<Channel> {
        HealthClient::new(self.channel.clone())
    }

    // === Process and files ===

    /// The workspace, on the host.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.directory.workspace()
    }

    /// A path in the workspace, on the host.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.workspace().join(name)
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.directory.state_dir()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.socket()
    }

    /// A path beside the workspace, for files of the test.
    pub(crate) fn sibling_path(&self, name: &str) -> PathBuf {
        self.directory.path(name)
    }

    /// The lock on the machine that the daemon's test holds.
    pub(super) fn machine_lock(&self) -> Arc<MachineLock> {
        self.directory.machine_lock()
    }

    /// The TCP port that the daemon listens on, at 127.0.0.1 or at all addresses.
    pub(crate) fn port(&self) -> u16 {
        let port = self.addresses.iter().find_map(|address| {
            let mut hosts = ["127.0.0.1:", "0.0.0.0:"].into_iter();
            hosts.find_map(|host| address.strip_prefix(host))
        });
        port.expect("the daemon does not listen on TCP").parse().unwrap()
    }

    /// The TCP address of the agent-sandbox runtime, for `gRPC` or `REST`.
    pub(crate) fn agent_sandbox_address(&self, api: &str) -> String {
        let suffix = format!(" for agent-sandbox {api}");
        let address = self.addresses.iter().find_map(|address| address.strip_suffix(&suffix));
        address.expect("the daemon does not serve the runtime").to_owned()
    }

    /// The daemon's process id on the host.
    pub(crate) fn pid(&self) -> i32 {
        let child = i32::try_from(self.child.id()).unwrap();
        if !self.setup.is_contained() {
            return child;
        }

        find_descendant(child, "jigd").expect("the daemon does not run").pid
    }

    /// Resident memory of the daemon, in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.memory_bytes("VmRSS:")
    }

    /// Peak resident memory of the daemon, in bytes.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.memory_bytes("VmHWM:")
    }

    fn memory_bytes(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix(field));
        let kib: u64 = line.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
        kib << 10
    }

    /// The daemon's log so far.
    pub(crate) fn log(&self) -> String {
        self.log.text()
    }

    // === Configuration ===

    /// Log text of a successful reload.
    pub(crate) const RELOADED: &str = "reloaded policy, approvals and keys";
    /// Log text of a failed reload.
    pub(crate) const RELOAD_FAILED: &str = "the old one stays";

    /// Reloads the configuration (SIGHUP) and waits until the log has `expected` once more.
    pub(crate) async fn reload_config(&self, expected: &str) {
        let count = || self.log().matches(expected).count();
        let before = count();
        self.signal(Signal::HUP);
        eventually("the configuration is reloaded", async || count() > before).await;
    }

    // === Shutdown ===

    /// Sends a signal to the daemon.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid()).unwrap(), signal).unwrap();
    }

    /// Waits until the daemon has exited.
    pub(crate) async fn wait_for_exit(&mut self) -> ExitStatus {
        let mut status = None;
        let child = &mut self.child;
        eventually("the daemon exits", async || {
            status = child.try_wait().unwrap();
            status.is_some()
        })
        .await;

        status.unwrap()
    }

    /// Kills the daemon if it still runs, and starts it again on the same workspace and state.
    pub(crate) async fn restart(mut self) -> Self {
        kill_and_reap(&mut self.child);
        let (setup, directory) = (self.setup.clone(), Arc::clone(&self.directory));
        promptly("the daemon restarts", setup.start_in(directory)).await
    }

    /// Kills the daemon, and starts it again, which must fail within 30 seconds. Returns the output.
    pub(crate) fn fail_to_restart(&mut self) -> Output {
        kill_and_reap(&mut self.child);
        let output = self.setup.run_in(&self.directory);
        assert!(![Some(0), Some(124)].contains(&output.status.code()), "{output:?}");
        output
    }

    /// Runs `jigd --check` with the daemon's arguments and environment.
    pub(crate) fn run_check(&self) -> Output {
        self.setup.run_check_in(&self.directory)
    }

    /// As [`Self::restart`], with other settings.
    pub(crate) async fn restart_with(mut self, change: impl FnOnce(Setup) -> Setup) -> Self {
        self.setup = change(self.setup.clone());
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
    /// Appends a line.
    pub(super) fn push_line(&self, line: &[u8]) {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.extend_from_slice(line);
        log.push(b'\n');
    }

    pub(super) fn text(&self) -> String {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&log).into_owned()
    }
}

/// A client of the tool service that accepts large messages.
pub(crate) fn tool_client(channel: Channel) -> ToolServiceClient<Channel> {
    ToolServiceClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
}

/// A channel that connects on its first use.
pub(crate) fn lazy_channel(address: &str) -> Channel {
    Endpoint::from_shared(address.to_owned()).unwrap().connect_lazy()
}

fn tool_health_request() -> HealthCheckRequest {
    HealthCheckRequest { service: "jig.v1.ToolService".to_owned() }
}
