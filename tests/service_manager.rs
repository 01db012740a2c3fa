//! Messages to the service manager (sd_notify(3)), received by a manager of the test.

use std::{
    collections::BTreeMap,
    fs,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram as StdDatagram},
    },
};

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::net::UnixDatagram;

use crate::support::{Daemon, Setup, eventually, promptly, shell};

/// Variables by which a service manager passes something to its services.
const MANAGER_VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS"];

struct Manager {
    socket: UnixDatagram,
    address: String,
    _directory: TempDir,
}

/// The assignments of one message.
type Message = BTreeMap<String, String>;

impl Manager {
    fn at_path() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = StdDatagram::bind(&path).unwrap();
        Self::new(socket, path.display().to_string(), directory)
    }

    fn at_abstract_name() -> Self {
        let name = format!("jig-test-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = StdDatagram::bind_addr(&address).unwrap();
        Self::new(socket, format!("@{name}"), tempfile::tempdir().unwrap())
    }

    fn new(socket: StdDatagram, address: String, directory: TempDir) -> Self {
        socket.set_nonblocking(true).unwrap();
        let socket = UnixDatagram::from_std(socket).unwrap();
        Self { socket, address, _directory: directory }
    }

    fn setup(&self) -> Setup {
        Setup::new().environment("NOTIFY_SOCKET", &self.address)
    }

    async fn next(&self) -> Message {
        let mut bytes = [0; 4096];
        let length = promptly("a message", self.socket.recv(&mut bytes)).await.unwrap();
        let text = std::str::from_utf8(&bytes[..length]).unwrap();
        let assignments = text.lines().map(|line| line.split_once('=').unwrap());
        assignments.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// The names that the messages received so far assign.
    fn received_names(&self) -> Vec<String> {
        let mut bytes = [0; 4096];
        let mut names = Vec::new();
        while let Ok(length) = self.socket.try_recv(&mut bytes) {
            let text = std::str::from_utf8(&bytes[..length]).unwrap();
            names.extend(text.lines().map(|line| line.split_once('=').unwrap().0.to_owned()));
        }
        names
    }
}

async fn check_ready(manager: &Manager) -> Daemon {
    let daemon = manager.setup().start().await;
    let ready = manager.next().await;
    assert_eq!(ready["READY"], "1");
    assert!(ready["STATUS"].starts_with("serving "), "{ready:?}");
    assert!(ready["STATUS"].contains("isolation L3"), "{ready:?}");
    daemon
}

#[tokio::test]
async fn ready_daemon_notifies_a_path_and_tells_commands_nothing() {
    let manager = Manager::at_path();
    let daemon = check_ready(&manager).await;
    let environment = daemon.output(shell("env")).await;
    for variable in MANAGER_VARIABLES {
        assert!(!environment.contains(variable), "{environment}");
    }
    assert_eq!(manager.received_names(), [""; 0]);
}

#[tokio::test]
async fn ready_daemon_notifies_an_abstract_socket() {
    check_ready(&Manager::at_abstract_name()).await;
}

#[tokio::test]
async fn unreachable_manager_does_not_prevent_the_start() {
    let setup = Setup::new().environment("NOTIFY_SOCKET", "/nowhere/notify");
    let daemon = setup.start().await;
    assert!(daemon.log().contains("cannot connect to NOTIFY_SOCKET"), "{}", daemon.log());
    daemon.run(shell("true")).await;
}

#[tokio::test]
async fn reload_is_announced_and_its_outcome_reported() {
    let manager = Manager::at_path();
    let daemon = manager.setup().workspace_table("").start().await;
    assert_eq!(manager.next().await["READY"], "1");

    let file = daemon.sibling_path("jig.toml");
    let valid = fs::read_to_string(&file).unwrap();
    for (text, status) in [
        (valid.clone(), ", reloaded"),
        (format!("{valid}\nx = ["), "reload rejected, old configuration in effect: "),
        (valid, ", reloaded"),
    ] {
        fs::write(&file, text).unwrap();
        let uptime = uptime_micros();
        daemon.signal(Signal::HUP);

        let reloading = manager.next().await;
        assert_eq!(reloading["RELOADING"], "1");
        let time: u128 = reloading["MONOTONIC_USEC"].parse().unwrap();
        // /proc/uptime counts hundredths of seconds.
        assert!(time + 10_000 >= uptime, "{time} {uptime}");

        let reloaded = manager.next().await;
        assert_eq!(reloaded["READY"], "1");
        assert!(reloaded["STATUS"].contains(status), "{reloaded:?}");
    }
}

fn uptime_micros() -> u128 {
    let uptime = fs::read_to_string("/proc/uptime").unwrap();
    let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
    std::time::Duration::from_secs_f64(seconds).as_micros()
}

#[tokio::test]
async fn watchdog_gets_signs_of_life_only_while_the_daemon_runs() {
    let manager = Manager::at_path();
    let daemon = manager.setup().environment("WATCHDOG_USEC", "400000").start().await;
    assert_eq!(manager.next().await["READY"], "1");
    for _ in 0..3 {
        assert_eq!(manager.next().await["WATCHDOG"], "1");
    }

    daemon.signal(Signal::STOP);
    manager.received_names();
    // Twice the timeout passes, in which a running daemon sends four messages.
    tokio::time::sleep(std::time::Duration::from_millis(800)).await;
    let late = manager.received_names();
    assert!(late.len() <= 1, "{late:?}");
    daemon.signal(Signal::CONT);
    assert_eq!(manager.next().await["WATCHDOG"], "1");
}

#[tokio::test]
async fn shutdown_is_announced_and_extends_its_timeout() {
    let manager = Manager::at_path();
    let mut daemon = manager.setup().arguments(&["--drain-timeout", "60s"]).start().await;
    assert_eq!(manager.next().await["READY"], "1");
    let call = daemon.spawn_run(shell("touch begun; until [ -e end ]; do sleep 0.05; done"));
    eventually("the command runs", async || daemon.file("begun").exists()).await;

    daemon.signal(Signal::TERM);
    let stopping = manager.next().await;
    assert_eq!((stopping["STOPPING"].as_str(), stopping["STATUS"].as_str()), ("1", "draining"));
    for _ in 0..2 {
        assert_eq!(manager.next().await["EXTEND_TIMEOUT_USEC"], "20000000");
    }

    fs::write(daemon.file("end"), "").unwrap();
    assert_eq!(call.await.unwrap().unwrap().exit_code, Some(0));
    assert!(daemon.wait_for_exit().await.success());
}
