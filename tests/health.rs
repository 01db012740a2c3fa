//! Health: the names it is reported under, and how it changes when connections cannot be accepted
//! or the state directory is lost.

use std::{collections::BTreeSet, fs, os::unix::net::UnixStream, process::Command};

use jig::api::{FILE_DESCRIPTOR_SET, v1::CreateDirectoryRequest};
use prost::Message as _;
use prost_types::FileDescriptorSet;
use rustix::process::Signal;
use tonic::{Code, transport::Channel};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::support::{
    Daemon, EpollShortage, HostProgram, Refusal, Setup, eventually, promptly, shell, with_metadata,
};

async fn check_health(channel: Channel, service: &str) -> Result<ServingStatus, Code> {
    let service = service.to_owned();
    let request = HealthCheckRequest { service };
    let answer = HealthClient::new(channel).check(request).await;
    answer.map(|answer| answer.into_inner().status()).map_err(|status| status.code())
}

/// Whether all names have the expected health.
async fn all_have_status(daemon: &Daemon, names: &[&str], expected: ServingStatus) -> bool {
    for name in names {
        if check_health(daemon.channel(), name).await != Ok(expected) {
            return false;
        }
    }
    true
}

/// Waits until all services have the expected health. Liveness must always be serving.
async fn wait_for_health(daemon: &Daemon, expected: ServingStatus) {
    let names =
        ["", "readiness", "jig.v1.ToolService", "jig.v1.CatalogService", "jig.v1.DaemonService"];
    eventually("the health changes", async || all_have_status(daemon, &names, expected).await)
        .await;
    let liveness = check_health(daemon.channel(), "liveness").await;
    assert_eq!(liveness, Ok(ServingStatus::Serving));
}

fn lines_containing<'a>(log: &'a str, text: &str) -> Vec<&'a str> {
    log.lines().filter(|line| line.contains(text)).collect()
}

#[tokio::test]
async fn every_service_reports_its_health() {
    let daemon = Daemon::start().await;

    let files = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap().file;
    let contract_files = files.iter().filter(|file| file.package() == "jig.v1");
    let services: BTreeSet<_> = contract_files
        .flat_map(|file| &file.service)
        .map(|service| format!("jig.v1.{}", service.name()))
        .collect();
    assert!(services.len() > 9, "{services:?}");

    let standard = ["", "liveness", "readiness", "grpc.health.v1.Health"];
    for name in services.iter().map(String::as_str).chain(standard) {
        let status = check_health(daemon.channel(), name).await;
        assert_eq!(status, Ok(ServingStatus::Serving), "{name}");
    }

    let unknown = check_health(daemon.channel(), "jig.v1.NoService").await;
    assert_eq!(unknown, Err(Code::NotFound));
}

#[tokio::test]
async fn daemon_without_sandboxes_is_live_but_not_ready() {
    let wrapper = HostProgram::compile("no_namespaces");
    let daemon = Setup::new().wrapped_by([&wrapper.path]).start().await;
    let [serving, not_serving] = [
        ["liveness", "jig.v1.TransferService", "jig.v1.CatalogService"].as_slice(),
        &["", "readiness", "jig.v1.ToolService", "jig.v1.InvokeService"],
    ];
    assert!(all_have_status(&daemon, serving, ServingStatus::Serving).await);
    assert!(all_have_status(&daemon, not_serving, ServingStatus::NotServing).await);
}

#[tokio::test]
async fn descriptor_shortage_is_logged_once_per_episode() {
    let daemon = Setup::new().listen_tcp().start().await;

    // The connection for health checks opens before the shortage.
    wait_for_health(&daemon, ServingStatus::Serving).await;
    for episode in 1..=2 {
        let usual_limit = daemon.set_descriptor_limit(0);

        // Two listeners lack descriptors, and the log has one line.
        let unix = UnixStream::connect(daemon.socket()).unwrap();
        let tcp = std::net::TcpStream::connect(("127.0.0.1", daemon.port())).unwrap();
        wait_for_health(&daemon, ServingStatus::NotServing).await;

        daemon.set_descriptor_limit(usual_limit);
        wait_for_health(&daemon, ServingStatus::Serving).await;

        drop((unix, tcp));
        eventually("the recovery is logged", async || {
            lines_containing(&daemon.log(), "connections are accepted again").len() == episode
        })
        .await;
        let log = daemon.log();
        let warnings = lines_containing(&log, "no connection can be accepted");
        assert_eq!(warnings.len(), episode, "{log}");
        assert!(warnings.iter().all(|line| line.contains("ulimit -n")), "{log}");

        let recoveries = lines_containing(&log, "connections are accepted again");
        assert_eq!(recoveries.len(), episode, "{log}");
    }

    let status = check_health(daemon.new_connection(), "").await;
    assert_eq!(status, Ok(ServingStatus::Serving));
}

#[tokio::test]
async fn epoll_shortage_is_logged_once_and_recovers() {
    let shortage = EpollShortage::new();
    let daemon = shortage.apply_to(Setup::new()).start().await;
    wait_for_health(&daemon, ServingStatus::Serving).await;

    shortage.begin();

    // The connection is accepted, but cannot be polled.
    let unanswered = check_health(daemon.new_connection(), "").await;
    assert!(unanswered.is_err(), "{unanswered:?}");

    wait_for_health(&daemon, ServingStatus::NotServing).await;
    shortage.end();

    // Also if no client connects.
    wait_for_health(&daemon, ServingStatus::Serving).await;
    let log = daemon.log();
    let warnings = lines_containing(&log, "no connection can be accepted");
    assert_eq!(warnings.len(), 1, "{log}");
    assert!(warnings[0].contains("fs.epoll.max_user_watches"), "{log}");

    let status = check_health(daemon.new_connection(), "").await;
    assert_eq!(status, Ok(ServingStatus::Serving));
}

#[tokio::test]
async fn lost_state_directory_rejects_calls_with_request_ids() {
    let daemon = Daemon::start().await;

    let create_request = |id: &str, path: &str| {
        let path = path.to_owned();
        with_metadata("jig-request-id", id, CreateDirectoryRequest { path })
    };
    daemon.tools().create_directory(create_request("before", "a")).await.unwrap();
    let (state, aside) = (daemon.state_dir(), daemon.sibling_path("aside"));

    for replaced in [false, true] {
        fs::rename(&state, &aside).unwrap();
        if replaced {
            let copied = Command::new("cp").arg("-r").args([&aside, &state]).status();
            assert!(copied.unwrap().success());
        }

        // Calls are rejected at once, before the next health check.
        for path in ["b", "a"] {
            let refused = daemon.tools().create_directory(create_request("after", path)).await;
            let refusal = Refusal::from_status(&refused.unwrap_err());
            assert_eq!(refusal.reason, "STATE_LOST");
            assert!(refusal.message.contains("removed or replaced"), "{refusal:?}");
        }

        wait_for_health(&daemon, ServingStatus::NotServing).await;
        assert!(!daemon.file("b").exists());

        // Calls without a request id still work.
        daemon.output(shell("true")).await;
        if replaced {
            fs::remove_dir_all(&state).unwrap();
        }

        fs::rename(&aside, &state).unwrap();
        wait_for_health(&daemon, ServingStatus::Serving).await;
    }

    daemon.tools().create_directory(create_request("after", "b")).await.unwrap();
    let log = daemon.log();
    assert_eq!(lines_containing(&log, "rejecting calls that need it").len(), 2, "{log}");
    assert_eq!(lines_containing(&log, "is in place again").len(), 2, "{log}");
    assert_eq!(lines_containing(&log, "internal error in a call"), [""; 0]);

    // Also noticed without a call, and if only the lock file is missing, which another daemon would
    // take.
    fs::remove_file(state.join("lock")).unwrap();
    wait_for_health(&daemon, ServingStatus::NotServing).await;
}

/// Runs `jig`, which must fail with `code`, and returns its output.
fn run_failing_jig(daemon: &Daemon, arguments: &[&str], code: i32) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_jig"))
        .arg("--json")
        .args(arguments)
        .current_dir(daemon.workspace())
        .env_clear()
        .env("JIG_ADDRESS", format!("unix:{}", daemon.socket().display()))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[tokio::test]
async fn calls_without_request_ids_report_a_lost_state_directory() {
    let change = "--- a/old\n+++ b/old\n@@ -1 +1 @@\n-old\n+new\n";
    let changes: [(&[&str], i32); 5] = [
        (&["write", "new", "--text", "x"], 1),
        (&["edit", "old", "--old", "old", "--new", "new"], 1),
        (&["patch", "change"], 1),
        (&["cp", "change", ":copy"], 1),
        (&["job", "submit", "run", "command=true"], 1),
    ];
    let session_changes: [(&[&str], i32); 2] =
        [(&["mkdir", "directory"], 1), (&["exec", "true"], 125)];

    for (was_used, is_replaced) in [(false, false), (true, false), (true, true)] {
        let daemon = Daemon::start().await;

        fs::write(daemon.file("old"), "old\n").unwrap();
        fs::write(daemon.file("change"), change).unwrap();
        if was_used {
            daemon.output(shell("true")).await;
        }

        fs::remove_dir_all(daemon.state_dir()).unwrap();
        if is_replaced {
            fs::create_dir(daemon.state_dir()).unwrap();
        }

        wait_for_health(&daemon, ServingStatus::NotServing).await;

        // A session that is already open can still be recorded.
        let session_changes = session_changes.iter().filter(|_| !was_used);
        for (arguments, code) in changes.iter().chain(session_changes) {
            let report = run_failing_jig(&daemon, arguments, *code);
            assert!(
                report.contains("STATE_LOST"),
                "{was_used} {is_replaced} {arguments:?}: {report}"
            );
        }
        assert_eq!(fs::read_to_string(daemon.file("old")).unwrap(), "old\n");
        assert!(!daemon.file("new").exists() && !daemon.file("copy").exists());
        assert_eq!(daemon.state_dir().exists(), is_replaced);

        let log = daemon.log();
        assert_eq!(lines_containing(&log, "internal error in a call"), [""; 0], "{log}");
    }
}

#[tokio::test]
async fn draining_daemon_is_live_but_not_ready() {
    let daemon = Setup::new().arguments(&["--drain-timeout", "60s"]).start().await;
    let mark = daemon.file("running");
    let running = daemon.spawn_run(shell("touch running; while [ ! -e end ]; do sleep 0.1; done"));
    eventually("the command runs", async || mark.exists()).await;
    daemon.signal(Signal::TERM);
    wait_for_health(&daemon, ServingStatus::NotServing).await;
    fs::write(daemon.file("end"), "").unwrap();
    promptly("the command ends", running).await.unwrap().unwrap();
}
