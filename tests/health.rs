//! Health: under which names it is reported, and that it says so when connections cannot be accepted or
//! the state directory is lost.

use std::{collections::BTreeSet, fs, os::unix::net::UnixStream, path::Path, process::Command};

use jig::api::{FILE_DESCRIPTOR_SET, v1::CreateDirectoryRequest};
use prost::Message as _;
use prost_types::FileDescriptorSet;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use tonic::{Code, transport::Channel};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::support::{Daemon, HostProgram, Refusal, Setup, eventually, promptly, shell, with};

/// Has epoll_ctl(2) of the daemon fail as it does when its user has no watches left, while a file is
/// there. The real limit is the machine's: other tests would lack watches too.
const NO_WATCHES: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>
int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event) {
    int (*real)(int, int, int, struct epoll_event *) = dlsym(RTLD_NEXT, "epoll_ctl");
    const char *path = getenv("JIG_TEST_NO_WATCHES");
    if (operation == EPOLL_CTL_ADD && path && access(path, F_OK) == 0) {
        errno = ENOSPC;
        return -1;
    }
    return real(epoll, operation, fd, event);
}
"#;

async fn check(channel: Channel, service: &str) -> Result<ServingStatus, Code> {
    let service = service.to_owned();
    let request = HealthCheckRequest { service };
    let answer = HealthClient::new(channel).check(request).await;
    answer
        .map(|answer| answer.into_inner().status())
        .map_err(|status| status.code())
}

/// The names whose health is one of these.
async fn all_are(daemon: &Daemon, names: &[&str], expected: ServingStatus) -> bool {
    for name in names {
        if check(daemon.channel(), name).await != Ok(expected) {
            return false;
        }
    }
    true
}

/// Waits until all is well, or nothing but that the process lives.
async fn becomes(daemon: &Daemon, expected: ServingStatus) {
    let names = [
        "",
        "readiness",
        "jig.v1.ToolService",
        "jig.v1.CatalogService",
        "jig.v1.DaemonService",
    ];
    eventually("the health is another", async || {
        all_are(daemon, &names, expected).await
    })
    .await;
    let liveness = check(daemon.channel(), "liveness").await;
    assert_eq!(liveness, Ok(ServingStatus::Serving));
}

fn lines<'a>(log: &'a str, text: &str) -> Vec<&'a str> {
    log.lines().filter(|line| line.contains(text)).collect()
}

/// Gives a daemon a limit of descriptors; returns what it was.
fn limit(daemon: &Daemon, limit: u64) -> u64 {
    let new = Rlimit {
        current: Some(limit),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    let old = prlimit(Pid::from_raw(daemon.pid()), Resource::Nofile, new).unwrap();
    old.current.unwrap_or(1 << 20)
}

#[tokio::test]
async fn every_service_has_a_name() {
    let daemon = Daemon::start().await;
    let files = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap().file;
    let ours = files.iter().filter(|file| file.package() == "jig.v1");
    let services: BTreeSet<_> = ours
        .flat_map(|file| &file.service)
        .map(|service| format!("jig.v1.{}", service.name()))
        .collect();
    assert!(services.len() > 9, "{services:?}");
    let standard = ["", "liveness", "readiness", "grpc.health.v1.Health"];
    for name in services.iter().map(String::as_str).chain(standard) {
        let status = check(daemon.channel(), name).await;
        assert_eq!(status, Ok(ServingStatus::Serving), "{name}");
    }
    let unknown = check(daemon.channel(), "jig.v1.NoService").await;
    assert_eq!(unknown, Err(Code::NotFound));
}

#[tokio::test]
async fn a_daemon_that_runs_no_commands_lives_and_is_not_ready() {
    let wrapper = HostProgram::compile("no_namespaces");
    let daemon = Setup::new().under([&wrapper.path]).start().await;
    let [serving, not_serving] = [
        [
            "liveness",
            "jig.v1.TransferService",
            "jig.v1.CatalogService",
        ]
        .as_slice(),
        &[
            "",
            "readiness",
            "jig.v1.ToolService",
            "jig.v1.InvokeService",
        ],
    ];
    assert!(all_are(&daemon, serving, ServingStatus::Serving).await);
    assert!(all_are(&daemon, not_serving, ServingStatus::NotServing).await);
}

#[tokio::test]
async fn a_daemon_without_descriptors_says_so_once_until_it_accepts_again() {
    let daemon = Setup::new().tcp().start().await;
    // Made before: health is watched on it.
    becomes(&daemon, ServingStatus::Serving).await;
    for episode in 1..=2 {
        let limited = limit(&daemon, 0);
        // Two listeners lack them, one line says so.
        let unix = UnixStream::connect(daemon.socket()).unwrap();
        let tcp = std::net::TcpStream::connect(("127.0.0.1", daemon.port())).unwrap();
        becomes(&daemon, ServingStatus::NotServing).await;
        limit(&daemon, limited);
        becomes(&daemon, ServingStatus::Serving).await;
        drop((unix, tcp));
        let log = daemon.log();
        let said = lines(&log, "no connection can be accepted");
        assert_eq!(said.len(), episode, "{log}");
        assert!(said.iter().all(|line| line.contains("ulimit -n")), "{log}");
        let again = lines(&log, "connections are accepted again");
        assert_eq!(again.len(), episode, "{log}");
    }
    let status = check(daemon.new_connection(), "").await;
    assert_eq!(status, Ok(ServingStatus::Serving));
}

#[tokio::test]
async fn a_daemon_without_epoll_watches_says_so_once_until_it_accepts_again() {
    let folder = tempfile::tempdir().unwrap();
    let [source, library, none_left] =
        ["watches.c", "watches.so", "none-left"].map(|name| folder.path().join(name));
    fs::write(&source, NO_WATCHES).unwrap();
    let flags = ["-shared", "-fPIC", "-Wall", "-Werror", "-o"];
    let built = Command::new("gcc")
        .args(flags)
        .args([&library, &source])
        .status();
    assert!(built.unwrap().success());
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let setup = Setup::new()
        .environment("LD_PRELOAD", &text(&library))
        .environment("JIG_TEST_NO_WATCHES", &text(&none_left));
    let daemon = setup.start().await;
    becomes(&daemon, ServingStatus::Serving).await;
    fs::write(&none_left, "").unwrap();
    // It is accepted, and cannot be driven.
    let lost = check(daemon.new_connection(), "").await;
    assert!(lost.is_err(), "{lost:?}");
    becomes(&daemon, ServingStatus::NotServing).await;
    fs::remove_file(&none_left).unwrap();
    // Also without a client that connects.
    becomes(&daemon, ServingStatus::Serving).await;
    let log = daemon.log();
    let said = lines(&log, "no connection can be accepted");
    assert_eq!(said.len(), 1, "{log}");
    assert!(said[0].contains("fs.epoll.max_user_watches"), "{log}");
    let status = check(daemon.new_connection(), "").await;
    assert_eq!(status, Ok(ServingStatus::Serving));
}

#[tokio::test]
async fn a_state_directory_that_is_gone_is_noticed_and_no_request_id_is_done_twice() {
    let daemon = Daemon::start().await;
    let under = |id: &str, path: &str| {
        let path = path.to_owned();
        with("jig-request-id", id, CreateDirectoryRequest { path })
    };
    daemon
        .tools()
        .create_directory(under("before", "a"))
        .await
        .unwrap();
    let (state, aside) = (daemon.state(), daemon.beside("aside"));
    for replaced in [false, true] {
        fs::rename(&state, &aside).unwrap();
        if replaced {
            let copied = Command::new("cp").arg("-r").args([&aside, &state]).status();
            assert!(copied.unwrap().success());
        }
        // At once, and not only when somebody looks.
        for path in ["b", "a"] {
            let refused = daemon.tools().create_directory(under("after", path)).await;
            let refusal = Refusal::of(&refused.unwrap_err());
            assert_eq!(refusal.reason, "INTERNAL");
            assert!(
                refusal.message.contains("removed or replaced"),
                "{refusal:?}"
            );
        }
        becomes(&daemon, ServingStatus::NotServing).await;
        assert!(!daemon.file("b").exists());
        // What needs no claim goes on.
        daemon.output(shell("true")).await;
        if replaced {
            fs::remove_dir_all(&state).unwrap();
        }
        fs::rename(&aside, &state).unwrap();
        becomes(&daemon, ServingStatus::Serving).await;
    }
    daemon
        .tools()
        .create_directory(under("after", "b"))
        .await
        .unwrap();
    let log = daemon.log();
    assert_eq!(
        lines(&log, "calls that need it are refused").len(),
        2,
        "{log}"
    );
    assert_eq!(lines(&log, "is in place again").len(), 2, "{log}");
    // Noticed without a call, too, also where only the lock is gone, which another daemon would take.
    fs::remove_file(state.join("lock")).unwrap();
    becomes(&daemon, ServingStatus::NotServing).await;
}

#[tokio::test]
async fn a_daemon_that_drains_lives_and_is_not_ready() {
    let daemon = Setup::new()
        .arguments(&["--drain-timeout", "60s"])
        .start()
        .await;
    let mark = daemon.file("goes-on");
    let running = daemon.begin(shell(
        "touch goes-on; while [ ! -e end ]; do sleep 0.1; done",
    ));
    eventually("the command runs", async || mark.exists()).await;
    daemon.signal(Signal::TERM);
    becomes(&daemon, ServingStatus::NotServing).await;
    fs::write(daemon.file("end"), "").unwrap();
    promptly("the command ends", running)
        .await
        .unwrap()
        .unwrap();
}
