//! Several PostgreSQL servers of which not all can be used, and a slow link to one.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, TcpListener},
    os::unix::net::UnixStream,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use jig::api::v1::SubmitJobRequest;

use super::{
    plain_client::fleet_job_id,
    postgres::{PostgresFleet, effects},
    postgres_server::PostgresServer,
};
use crate::jobs::command_job;

/// Bytes that the slow link passes to the daemon at once.
const SLOW_CHUNK_BYTES: usize = 16 << 10;
/// Time between two chunks on the slow link, which passes about 1 MB/s.
const SLOW_CHUNK_INTERVAL: Duration = Duration::from_millis(16);

/// As a standby after a failover.
#[tokio::test]
async fn server_that_only_reads_is_skipped() {
    let (mut fleet, standby) = tokio::join!(PostgresFleet::start(), PostgresServer::start());
    let read_only = "ALTER ROLE jigd SET default_transaction_read_only = on";
    standby.connect("postgres").await.batch_execute(read_only).await.unwrap();
    let (directory, port) = standby.socket();
    fleet.use_first(directory, port);
    let _daemon = fleet.start_daemon().await;
    let id = fleet.server.insert("m-1", &command_job("true")).await;
    fleet.expect_end(&id, "succeeded").await;
}

/// As a server that stands still.
#[tokio::test]
async fn server_that_accepts_and_does_not_answer_is_skipped() {
    let mut fleet = PostgresFleet::start().await;
    // The kernel accepts.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    fleet.use_first("127.0.0.1", silent.local_addr().unwrap().port());
    let _daemon = fleet.start_daemon().await;
    let id = fleet.server.insert("m-1", &command_job("true")).await;
    fleet.expect_end(&id, "succeeded").await;
}

/// The requests of all jobs take longer than one statement may.
#[tokio::test]
async fn large_requests_pass_a_slow_link() {
    let mut fleet = PostgresFleet::start().await;
    fleet.use_slow_link();
    fleet.settings = fleet.settings.replace("3s", "60s");
    fleet.queues = fleet.queues.replace("places = 4", "places = 14");
    let request = large_job();
    let mut ids = Vec::new();
    for number in 0..14 {
        ids.push(fleet.server.insert(&format!("m-{number}"), &request).await);
    }
    let started = Instant::now();
    let daemon = fleet.start_daemon().await;
    for id in &ids {
        fleet.expect_end(id, "succeeded").await;
    }
    assert_eq!(effects(&daemon), 14);
    assert!(started.elapsed() > Duration::from_secs(12), "the link is slow");
}

/// The requests of all jobs take longer than a lease.
#[tokio::test]
async fn claims_with_large_requests_pass_a_slow_link() {
    let mut fleet = PostgresFleet::start().await;
    fleet.settings = fleet.settings.replace("3s", "9s");
    let (first, known) = fleet.start_dead_daemon().await;
    let queues = std::mem::take(&mut fleet.queues);
    let _judge = fleet.start_daemon_beside(&first).await;

    let names: Vec<String> = (0..20).map(|number| format!("m-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    fleet.queues = queues;
    fleet.use_slow_link();
    let table = fleet.table();
    fleet.insert_claims_of(&known, &names, &large_job()).await;
    let first = first.restart_with(|setup| setup.workspace_table(&table)).await;
    for name in names {
        assert_eq!(fleet.expect_end(&fleet_job_id(name), "succeeded").await.attempts, 1);
    }
    assert_eq!(effects(&first), 20);
}

/// A job whose request has 900 KB.
fn large_job() -> SubmitJobRequest {
    let mut request = command_job("echo run >> effects");
    request.params_json.insert_str(1, &" ".repeat(900_000));
    request
}

impl PostgresFleet {
    /// Lets daemons connect by a slow link.
    fn use_slow_link(&mut self) {
        let (directory, port) = self.server.socket();
        let socket = PathBuf::from(directory).join(format!(".s.PGSQL.{port}"));
        let url = format!("postgresql://jigd@127.0.0.1:{}/postgres", start_slow_link(socket));
        self.settings = self.settings.replace(&self.server.socket_url(), &url);
    }

    /// Lets daemons try another server before that of the fleet.
    fn use_first(&mut self, host: &str, port: u16) {
        let url = self.server.socket_url_after(host, port);
        self.settings = self.settings.replace(&self.server.socket_url(), &url);
    }
}

/// Starts a slow link to a socket, and returns its port.
fn start_slow_link(socket: PathBuf) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    // The threads run until the test process ends: there are few.
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = UnixStream::connect(&socket).unwrap();
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || {
                let _closed = io::copy(&mut from, &mut to);
                to.shutdown(Shutdown::Both)
            });
            let (mut from, mut to) = (server, client);
            thread::spawn(move || -> io::Result<()> {
                let mut buffer = [0; SLOW_CHUNK_BYTES];
                loop {
                    let size = from.read(&mut buffer)?;
                    if size == 0 {
                        return to.shutdown(Shutdown::Both);
                    }
                    thread::sleep(SLOW_CHUNK_INTERVAL);
                    to.write_all(&buffer[..size])?;
                }
            });
        }
    });
    port
}
