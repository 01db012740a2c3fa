//! Fleets: daemons that take jobs from the queues of a NATS server. Each test has a server of its
//! own, with JetStream on disk, and each daemon a proxy of its own between it and the server.

mod absent;
mod artifacts;
mod buckets;
mod capacity;
mod credentials;
mod dead_letters;
mod deaths;
mod decentralized_auth;
mod deduplication;
mod drain;
mod events;
mod full_disk;
mod hostile;
mod malformed_headers;
mod many_jobs;
mod messages;
mod nats_cluster;
mod nats_proxy;
mod nats_server;
mod network;
mod plain_client;
mod postgres;
mod postgres_claims;
mod postgres_deaths;
mod postgres_hosts;
mod postgres_outages;
mod postgres_rows;
mod postgres_server;
mod recovery;
mod replicas;
mod same_names;
mod server_access;
mod starts;
mod submissions;
mod throughput;
mod wait_tool;
mod watch;

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, sync::Arc};

use async_nats::ConnectOptions;
use jig::api::v1::{
    CancelJobRequest, GetJobRequest, Job, SubmitJobRequest, WaitJobRequest,
    job_service_client::JobServiceClient,
};
use rustix::process::Signal;
use tempfile::TempDir;
use tonic::{Request, transport::Channel};

use self::{nats_proxy::NatsProxy, nats_server::NatsServer, plain_client::PlainClient};
use crate::{
    jobs::command_job,
    support::{Daemon, KeyFile, Refusal, Setup, eventually_within, full_size, with_key},
};

/// The key in the signing key file.
const SIGNING_KEY: &[u8] = b"a signing key of the fleet, 32+ bytes";
/// A command that appends to the file of effects, then runs until the file `go` exists.
const COUNTED_WAIT: &str = "echo run >> effects; until [ -e go ]; do sleep 0.05; done";

/// A NATS server, and what the daemons of its fleet share.
#[derive(Debug)]
struct TestFleet {
    server: NatsServer,
    client: PlainClient,
    keys: Arc<KeyFile>,
    /// Secret of the key `ci`, which the queue maps to.
    ci: String,
    directory: Arc<TempDir>,
    /// Lines of the table `[fleet]`.
    settings: String,
    /// Tables of the queues.
    queues: String,
}

/// A daemon of a fleet.
#[derive(Debug)]
struct Member {
    daemon: Daemon,
    proxy: NatsProxy,
}

impl TestFleet {
    async fn start() -> Self {
        Self::with_server(NatsServer::start().await).await
    }

    async fn with_server(server: NatsServer) -> Self {
        let client = PlainClient::connect(server.port(), ConnectOptions::new()).await;
        Self::with_client(server, client)
    }

    fn with_client(server: NatsServer, client: PlainClient) -> Self {
        let keys = Arc::new(KeyFile::new());
        let ci = keys.add_key("ci", "invoke", &[]);
        let directory = Arc::new(TempDir::with_prefix("jig-test-fleet-").unwrap());
        fs::create_dir(directory.path().join("other")).unwrap();
        let key_file = directory.path().join("fleet.key");
        fs::write(&key_file, [SIGNING_KEY, b"\n"].concat()).unwrap();
        fs::set_permissions(&key_file, fs::Permissions::from_mode(0o600)).unwrap();
        let settings = "ack_wait = \"1s\"\nlost_after = \"3s\"\nmax_deliver = 3\n".to_owned();
        let queues = "[[fleet.queues]]\nname = \"build\"\nkey = \"ci\"\n\
            workspaces = [\"main\"]\nplaces = 4\n"
            .to_owned();

        Self { server, client, keys, ci, directory, settings, queues }
    }

    /// Replaces the tables of the queues for daemons that start from now on.
    fn set_queues(&mut self, tables: &str) {
        tables.clone_into(&mut self.queues);
    }

    /// Replaces settings for daemons that start from now on.
    fn set_times(&mut self, ack_wait: &str, lost_after: &str) {
        self.settings =
            format!("ack_wait = \"{ack_wait}\"\nlost_after = \"{lost_after}\"\nmax_deliver = 3\n");
    }

    /// Adds lines to the table `[fleet]` of daemons that start from now on.
    fn add_settings(&mut self, lines: &str) {
        self.settings += lines;
    }

    fn signing_key_file(&self) -> PathBuf {
        self.directory.path().join("fleet.key")
    }

    /// A daemon of the fleet, which is not started yet.
    fn setup(&self, urls: &[&str], queues: &str) -> Setup {
        let keys = self.keys.path().display().to_string();
        let key_file = self.signing_key_file();
        let other = self.directory.path().join("other");
        let settings = &self.settings;
        let table = format!(
            "name = \"main\"\n[[workspaces]]\nname = \"other\"\npath = {other:?}\n[fleet]\nnats = {urls:?}\n\
             signing_key_file = {key_file:?}\n{settings}{queues}"
        );
        Setup::new()
            .workspace_table(&table)
            .arguments(&["--keys", &keys])
            .with_resource(Arc::clone(&self.keys) as _)
            .with_resource(Arc::clone(&self.directory) as _)
    }

    /// Starts the first daemon of the test.
    async fn start_member(&self) -> Member {
        self.start_member_with(|setup| setup).await
    }

    /// Starts another daemon.
    async fn start_member_beside(&self, other: &Member) -> Member {
        self.start_member_with(|setup| setup.beside(&other.daemon)).await
    }

    /// Starts a daemon with other settings.
    async fn start_member_with(&self, change: impl FnOnce(Setup) -> Setup) -> Member {
        let proxy = NatsProxy::start(self.server.port());
        let setup = self.setup(&[&proxy.url()], &self.queues);
        Member { daemon: change(setup).start().await, proxy }
    }

    /// Starts the first daemon of the test, which submits and watches jobs but takes none.
    async fn start_observer(&self) -> Member {
        let proxy = NatsProxy::start(self.server.port());
        Member { daemon: self.setup(&[&proxy.url()], "").start().await, proxy }
    }

    /// Starts the server again, on another port, and connects the proxies to it.
    async fn restart_server(&mut self, members: &[&Member]) {
        self.server.restart().await;
        let proxies = members.iter().map(|member| &member.proxy);
        for proxy in proxies.chain([self.client.proxy()]) {
            proxy.set_server_port(self.server.port());
        }
    }

    /// A client of a daemon's job service on a new connection, which calls with the key `ci`.
    fn jobs(&self, member: &Member) -> FleetJobs {
        FleetJobs {
            client: JobServiceClient::new(member.daemon.new_connection()),
            key: self.ci.clone(),
        }
    }
}

impl Member {
    /// Lines of a file of the workspace, which commands of jobs have appended.
    fn lines(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.daemon.file(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Kills the daemon. Its files stay.
    async fn kill(&mut self) {
        self.daemon.signal(Signal::KILL);
        self.daemon.wait_for_exit().await;
    }

    /// Kills the daemon if it still runs, and starts it again on the same state.
    async fn restart(self) -> Self {
        Self { daemon: self.daemon.restart().await, proxy: self.proxy }
    }

    /// Lets the commands that wait for the file `go` end.
    fn go(&self) {
        fs::write(self.daemon.file("go"), "").unwrap();
    }

    /// Waits until a command of a job has begun.
    async fn wait_for_effects(&self, count: usize) {
        let what = format!("{count} jobs run here");
        let limit = plain_client::MAX_FLEET_TIME;
        eventually_within(limit, &what, async || self.lines("effects").len() == count).await;
    }
}

/// Effects of jobs on all daemons.
fn all_effects(members: &[&Member]) -> Vec<String> {
    members.iter().flat_map(|member| member.lines("effects")).collect()
}

/// A client of a daemon's job service.
struct FleetJobs {
    client: JobServiceClient<Channel>,
    key: String,
}

impl FleetJobs {
    fn with_key(mut self, key: &str) -> Self {
        key.clone_into(&mut self.key);
        self
    }

    async fn try_submit(
        &mut self,
        request_id: &str,
        request: SubmitJobRequest,
    ) -> Result<Job, Refusal> {
        let request = self.request(request_id, request);
        match self.client.submit_job(request).await {
            Ok(response) => Ok(response.into_inner().job.unwrap()),
            Err(status) => Err(Refusal::from_status(&status)),
        }
    }

    fn request<T>(&self, request_id: &str, message: T) -> Request<T> {
        let mut request = with_key(&self.key, message);
        request.metadata_mut().insert("jig-request-id", request_id.parse().unwrap());
        request
    }

    async fn submit(&mut self, request_id: &str, request: SubmitJobRequest) -> Job {
        self.try_submit(request_id, request).await.unwrap()
    }

    async fn try_get(&mut self, id: &str) -> Result<Job, Refusal> {
        let request = with_key(&self.key, GetJobRequest { job_id: id.to_owned() });
        match self.client.get_job(request).await {
            Ok(response) => Ok(response.into_inner().job.unwrap()),
            Err(status) => Err(Refusal::from_status(&status)),
        }
    }

    /// Cancels a job, and waits for its end.
    async fn try_cancel(&mut self, id: &str) -> Result<Job, Refusal> {
        let request = with_key(&self.key, CancelJobRequest { job_id: id.to_owned() });
        match self.client.cancel_job(request).await {
            Ok(response) => Ok(response.into_inner().job.unwrap()),
            Err(status) => Err(Refusal::from_status(&status)),
        }
    }

    async fn wait(&mut self, id: &str) -> Job {
        self.try_wait(id).await.unwrap()
    }

    async fn try_wait(&mut self, id: &str) -> Result<Job, Refusal> {
        let request = WaitJobRequest { job_id: id.to_owned(), wait_ms: None };
        let call = self.client.wait_job(with_key(&self.key, request));
        match tokio::time::timeout(plain_client::MAX_FLEET_TIME, call).await.unwrap() {
            Ok(response) => Ok(response.into_inner().job.unwrap()),
            Err(status) => Err(Refusal::from_status(&status)),
        }
    }
}

/// A submission to the queue `build` of the fleet.
fn fleet_job(command: &str) -> SubmitJobRequest {
    SubmitJobRequest { queue: Some("build".to_owned()), fleet: true, ..command_job(command) }
}

/// Number of jobs of a test with faults.
fn job_count() -> usize {
    full_size(10_000, 300)
}
