//! Streams and buckets with three replicas: a fleet survives the loss of a server.

use async_nats::{ConnectOptions, jetstream::stream::Info};
use jig::api::v1::JobState;

use super::{
    TestFleet,
    nats_cluster::start_cluster,
    nats_server::NatsServer,
    plain_client::{JobMessage, MAX_FLEET_TIME, PlainClient, fleet_job_id},
};
use crate::{
    jobs::command_job,
    support::{Daemon, eventually_within, full_size},
};

/// The streams of all objects of a fleet.
const STREAMS: [&str; 5] = [
    "JIG_JOBS",
    "JIG_JOBS_dead",
    "KV_JIG_JOBS_records",
    "KV_JIG_JOBS_daemons",
    "OBJ_JIG_JOBS_results",
];

/// A fleet on three servers.
struct ReplicatedFleet {
    fleet: TestFleet,
    /// The servers after the first, which the fleet has.
    others: Vec<NatsServer>,
    /// URLs of all servers.
    urls: Vec<String>,
}

impl ReplicatedFleet {
    async fn start() -> Self {
        let mut others = start_cluster().await;
        let url = |server: &NatsServer| format!("nats://127.0.0.1:{}", server.port());
        let urls = others.iter().map(url).collect();
        let first = others.remove(0);
        let client = PlainClient::connect(first.port(), ConnectOptions::new()).await;
        Self { fleet: TestFleet::with_client(first, client), others, urls }
    }

    async fn start_daemon(&mut self, replicas: usize, beside: Option<&Daemon>) -> Daemon {
        // Longer than the election of new leaders takes.
        self.fleet.set_times("5s", "60s");
        self.fleet.add_settings(&format!("replicas = {replicas}\n"));
        let urls: Vec<&str> = self.urls.iter().map(String::as_str).collect();
        let setup = self.fleet.setup(&urls, &self.fleet.queues);
        match beside {
            Some(other) => setup.beside(other).start().await,
            None => setup.start().await,
        }
    }

    fn server(&mut self, index: usize) -> &mut NatsServer {
        match index.checked_sub(1) {
            Some(index) => &mut self.others[index],
            None => &mut self.fleet.server,
        }
    }

    /// Kills a server, and connects the test to another one.
    fn kill(&mut self, index: usize) {
        self.server(index).kill();
        let port = self.server((index + 1) % 3).port();
        self.fleet.client.proxy().set_server_port(port);
    }

    async fn info(&self, stream: &str) -> Option<Info> {
        let stream = self.fleet.client.jetstream().get_stream(stream).await.ok()?;
        Some(stream.cached_info().clone())
    }

    /// The server that leads the stream of jobs.
    async fn leader(&self) -> usize {
        let mut leader = None;
        eventually_within(MAX_FLEET_TIME, "the stream of jobs has a leader", async || {
            let cluster = self.info("JIG_JOBS").await.and_then(|info| info.cluster);
            leader = cluster.and_then(|cluster| cluster.leader);
            leader.is_some()
        })
        .await;

        leader.unwrap().parse().unwrap()
    }

    /// Waits until all servers have all messages of all streams.
    async fn wait_for_replicas(&self) {
        for stream in STREAMS {
            let what = format!("the replicas of {stream} are current");
            eventually_within(MAX_FLEET_TIME, &what, async || {
                let cluster = self.info(stream).await.and_then(|info| info.cluster);
                let replicas = cluster.map(|cluster| cluster.replicas).unwrap_or_default();
                replicas.len() == 2 && replicas.iter().all(|peer| peer.current && !peer.offline)
            })
            .await;
        }
    }

    /// Publishes jobs, kills a server when some of them have run, and waits for the end of all.
    async fn run_jobs_without(&mut self, index: usize, daemons: &[&Daemon], prefix: &str) {
        let count = full_size(2_000, 60);
        let names: Vec<String> = (0..count).map(|number| format!("{prefix}-{number}")).collect();
        let client = self.fleet.client.clone();
        for name in &names {
            let job = command_job(&format!("echo {name} >> effects"));
            client.publish(&JobMessage::new(name, &job)).await;
        }
        eventually_within(MAX_FLEET_TIME, "some jobs have run", async || {
            effects(daemons, prefix).len() > count / 10
        })
        .await;
        self.kill(index);

        let ids: Vec<String> = names.iter().map(|name| fleet_job_id(name)).collect();
        for (id, record) in client.wait_for_ends(&ids).await {
            assert_eq!(record.job.unwrap().state(), JobState::Succeeded, "{id}");
        }
        let mut expected = names;
        expected.sort();
        assert_eq!(effects(daemons, prefix), expected);
    }
}

/// The sorted lines of all daemons' files of effects with a prefix.
fn effects(daemons: &[&Daemon], prefix: &str) -> Vec<String> {
    let read = |daemon: &&Daemon| std::fs::read_to_string(daemon.file("effects"));
    let texts: Vec<String> = daemons.iter().filter_map(|daemon| read(daemon).ok()).collect();
    let lines = texts.iter().flat_map(|text| text.lines());
    let mut lines: Vec<String> =
        lines.filter(|line| line.starts_with(prefix)).map(str::to_owned).collect();
    lines.sort();
    lines
}

#[tokio::test]
async fn jobs_continue_when_a_server_of_three_dies() {
    let mut replicated = ReplicatedFleet::start().await;
    let first = replicated.start_daemon(3, None).await;
    let second = replicated.start_daemon(3, Some(&first)).await;
    replicated.wait_for_replicas().await;
    for stream in STREAMS {
        let config = replicated.info(stream).await.unwrap().config;
        assert_eq!(config.num_replicas, 3, "{stream}");
    }

    let daemons = [&first, &second];
    let leader = replicated.leader().await;
    replicated.run_jobs_without(leader, &daemons, "leader").await;
    replicated.server(leader).restart().await;
    replicated.wait_for_replicas().await;
    // The next one in turn may be the new leader, or not.
    replicated.run_jobs_without((leader + 1) % 3, &daemons, "next").await;

    // A daemon with another setting changes nothing, and says why.
    let third = replicated.start_daemon(1, Some(&first)).await;
    let text = "has num_replicas (fleet.replicas) 3, and this daemon needs 1";
    eventually_within(MAX_FLEET_TIME, text, async || third.log().contains(text)).await;
}
