//! Messages to the service manager: ready, reloading, stopping, alive (sd_notify(3)).
//!
//! One socket is connected at start and used until the end: a daemon that Landlock confines may be
//! unable to connect later. So the daemon sends by itself: the crate `sd-notify` connects for each
//! message, and knows no abstract sockets.

use std::{
    env,
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram as StdUnixDatagram},
        },
    },
    sync::{Arc, OnceLock},
    time::Duration,
};

use nix::time::{ClockId, clock_gettime};
use tokio::{net::UnixDatagram, sync::OnceCell, time::timeout};

use crate::daemon::{sandbox::level::Isolation, task, tool::WorkspaceContext};

/// How long a message waits while the manager reads none. Afterwards it is lost, with a warning.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval of the messages that extend the stop timeout.
const EXTENSION_INTERVAL: Duration = Duration::from_secs(5);
/// Time that each of them grants: the manager kills a daemon that hangs after this.
const STOP_EXTENSION: Duration = Duration::from_secs(20);
/// Longest status text. Managers show it in one line.
const MAX_STATUS_CHARS: usize = 400;

/// The service manager. Without one, no message is sent.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServiceManager(Option<Arc<ManagerSocket>>);

#[derive(Debug)]
struct ManagerSocket {
    socket: StdUnixDatagram,
    /// The same socket, once the runtime exists.
    registered: OnceCell<UnixDatagram>,
    /// Time without a sign of life after which the manager restarts the daemon.
    watchdog_timeout: Option<Duration>,
    /// Status of a daemon that is ready. Set once it is.
    ready_status: OnceLock<String>,
}

impl ServiceManager {
    /// Connects to the manager that `NOTIFY_SOCKET` names.
    ///
    /// A daemon that cannot reach it starts all the same, and logs a warning: the variable may be
    /// that of another service.
    pub(crate) fn connect() -> Self {
        let Some(address) = env::var_os("NOTIFY_SOCKET").filter(|address| !address.is_empty())
        else {
            return Self(None);
        };

        match connect_datagram(&address) {
            Ok(socket) => Self(Some(Arc::new(ManagerSocket {
                socket,
                registered: OnceCell::new(),
                watchdog_timeout: watchdog_timeout(std::process::id(), |name| env::var(name).ok()),
                ready_status: OnceLock::new(),
            }))),
            Err(error) => {
                tracing::warn!(
                    ?address,
                    %error,
                    "cannot connect to NOTIFY_SOCKET: the service manager gets no messages"
                );
                Self(None)
            }
        }
    }

    /// Reports that calls are answered, and starts the signs of life.
    pub(crate) async fn ready(&self, workspaces: &[Arc<WorkspaceContext>]) {
        let Some(manager) = &self.0 else { return };
        let isolations = workspaces.iter().map(|context| context.isolation.as_ref());
        let status = manager.ready_status.get_or_init(|| describe(isolations));
        self.send(&format!("READY=1\nSTATUS={}", one_line(status))).await;

        if let Some(timeout) = manager.watchdog_timeout {
            self.spawn_watchdog(timeout / 2);
        }
    }

    /// Reports the start of a reload. One that starts before the daemon is ready is not reported.
    pub(crate) async fn reloading(&self) {
        if self.ready_status().is_none() {
            return;
        }
        // The manager compares it with the time of its signal, to recognize the answer.
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC)
            .map(|now| Duration::from(now).as_micros())
            .unwrap_or_default();
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={now}\nSTATUS=reloading")).await;
    }

    /// Reports the end of a reload, and its problem.
    pub(crate) async fn reloaded(&self, problem: Option<&str>) {
        let Some(ready) = self.ready_status() else { return };
        let status = match problem {
            Some(problem) => format!("reload rejected, old configuration in effect: {problem}"),
            None => format!("{ready}, reloaded"),
        };
        self.send(&format!("READY=1\nSTATUS={}", one_line(&status))).await;
    }

    /// Reports that shutdown has begun, and extends the stop timeout until the process ends.
    pub(crate) fn stopping(&self) {
        if self.0.is_none() {
            return;
        }
        let manager = self.clone();
        task::spawn("stop timeout", async move {
            manager.send("STOPPING=1\nSTATUS=draining").await;
            let extension = format!("EXTEND_TIMEOUT_USEC={}", STOP_EXTENSION.as_micros());
            loop {
                manager.send(&extension).await;
                tokio::time::sleep(EXTENSION_INTERVAL).await;
            }
        });
    }

    /// Sends a sign of life in each interval, from the runtime that answers calls.
    ///
    /// It proves that the runtime fires timers and polls tasks. It says nothing about disks and
    /// sandboxes: a restart would end running commands and repair neither.
    fn spawn_watchdog(&self, interval: Duration) {
        let manager = self.clone();
        task::spawn("watchdog", async move {
            loop {
                manager.send("WATCHDOG=1").await;
                tokio::time::sleep(interval).await;
            }
        });
    }

    fn ready_status(&self) -> Option<&String> {
        self.0.as_ref()?.ready_status.get()
    }

    async fn send(&self, message: &str) {
        let Some(manager) = &self.0 else { return };
        let sent = timeout(SEND_TIMEOUT, manager.send(message)).await;
        if let Err(error) = sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            tracing::warn!(message, %error, "the service manager did not get a message");
        }
    }
}

impl ManagerSocket {
    async fn send(&self, message: &str) -> io::Result<()> {
        let register = async || UnixDatagram::from_std(self.socket.try_clone()?);
        self.registered.get_or_try_init(register).await?.send(message.as_bytes()).await?;
        Ok(())
    }
}

/// Connects to a path, or to an abstract name after `@`.
fn connect_datagram(address: &OsStr) -> io::Result<StdUnixDatagram> {
    let address = match address.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let socket = StdUnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Reads the timeout of the watchdog, if it applies to the process `pid` (sd_watchdog_enabled(3)).
fn watchdog_timeout(pid: u32, variable: impl Fn(&str) -> Option<String>) -> Option<Duration> {
    let number = |name: &str| variable(name)?.parse::<u64>().ok();
    if variable("WATCHDOG_PID").is_some() && number("WATCHDOG_PID") != Some(pid.into()) {
        return None;
    }
    number("WATCHDOG_USEC").filter(|micros| *micros > 0).map(Duration::from_micros)
}

/// Status of a daemon that is ready: its workspaces, and how commands are isolated and limited.
fn describe<'a>(isolations: impl Iterator<Item = &'a Isolation>) -> String {
    let workspaces: Vec<_> = isolations
        .map(|isolation| {
            let limits = match isolation.memory_accounting.cgroups() {
                Some(_) => "limits by cgroups",
                None => "no cgroups",
            };
            let commands = if isolation.is_ready() { "" } else { ", commands are rejected" };
            format!("{}: isolation {}, {limits}{commands}", isolation.workspace, isolation.level)
        })
        .collect();
    format!("serving {}", workspaces.join("; "))
}

/// Text without line breaks, each of which would end the assignment. Long text is cut.
fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(MAX_STATUS_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_of_another_process_is_ignored() {
        let timeout = |pid: Option<&str>, micros: &str| {
            let (pid, micros) = (pid.map(str::to_owned), micros.to_owned());
            watchdog_timeout(7, move |name| match name {
                "WATCHDOG_PID" => pid.clone(),
                _ => Some(micros.clone()),
            })
        };
        assert_eq!(timeout(None, "3000000"), Some(Duration::from_secs(3)));
        assert_eq!(timeout(Some("7"), "1"), Some(Duration::from_micros(1)));
        for other in ["8", "", "x"] {
            assert_eq!(timeout(Some(other), "1"), None);
        }
        assert_eq!(timeout(None, "0"), None);
        assert_eq!(timeout(None, "x"), None);
    }

    #[test]
    fn status_is_one_short_line() {
        assert_eq!(one_line("line 1:\n  |\n READY=1"), "line 1: | READY=1");
        assert_eq!(one_line(&"é".repeat(MAX_STATUS_CHARS + 1)).chars().count(), MAX_STATUS_CHARS);
    }
}
