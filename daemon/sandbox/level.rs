//! Levels of isolation, and what is told about the one in force.

use std::{fmt, str::FromStr};

use super::{entrance, plan::Network, stage::Failure};
use crate::daemon::sys::landlock;

/// The layer that says which network commands have.
const NETWORK_NAMESPACE: &str = "network_namespace";

/// How strongly commands are isolated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
pub(crate) enum Level {
    /// Not at all: no command is run.
    L0,
    /// Landlock and seccomp in the daemon's own namespaces.
    L1,
    /// All namespaces, without a fresh `/proc`.
    L2,
    /// All namespaces, with a fresh `/proc`.
    L3,
}

/// What the probe at start has found.
#[derive(Debug, Clone)]
pub(crate) struct Isolation {
    /// The level in force.
    pub(crate) level: Level,
    /// The level below which no command is run.
    pub(crate) minimum: Level,
    /// Why the level is not higher, with the name of the workspace.
    pub(crate) failure: Option<(String, Failure)>,
    /// Whether debuggers work inside a run.
    pub(crate) allow_ptrace: bool,
    /// Network that commands have.
    pub(crate) network: Network,
}

/// One layer of the sandbox.
#[derive(Debug)]
pub(crate) struct Layer {
    /// Its name.
    pub(crate) name: &'static str,
    /// Whether it is in force.
    pub(crate) applied: bool,
    /// How, or why not.
    pub(crate) detail: String,
    /// What to change so that it will be.
    pub(crate) remedy: &'static str,
}

impl Isolation {
    /// Whether commands are run.
    pub(crate) fn is_ready(&self) -> bool {
        self.level >= self.minimum && self.level > Level::L0
    }

    /// The layers, in the order in which they are applied.
    pub(crate) fn layers(&self) -> Vec<Layer> {
        const NAMESPACES: &[(&str, &str)] = &[
            ("user_namespace", "one user, not root, without capabilities"),
            (
                "mount_namespace",
                "an allowlisted read-only root; the daemon's own root is not mounted",
            ),
            (
                "pid_namespace",
                "a fresh /proc with the run's processes only",
            ),
            (NETWORK_NAMESPACE, "a loopback interface and no route"),
            ("ipc_namespace", "of the run alone"),
            ("uts_namespace", "host name jig"),
            ("cgroup_namespace", "of the workspace"),
            (
                "process_limit",
                "RLIMIT_NPROC in the run's own user namespace; that a run came to it is not reported",
            ),
            ("capabilities", "all five sets empty, securebits locked"),
            ("no_new_privs", "set-user-id programs gain nothing"),
        ];
        let seccomp = if self.allow_ptrace {
            "an allowlist of system calls, with ptrace (sandbox.allow_ptrace)"
        } else {
            "an allowlist of system calls, without ptrace"
        };
        let mut layers: Vec<Layer> = NAMESPACES
            .iter()
            .chain([&("seccomp", seccomp)])
            .map(|(name, detail)| match &self.failure {
                None => Layer {
                    name,
                    applied: true,
                    detail: (*detail).to_owned(),
                    remedy: "",
                },
                Some((workspace, failure)) => Layer {
                    name,
                    applied: false,
                    detail: format!(
                        "no sandbox could be built for workspace {workspace}: {failure}"
                    ),
                    remedy: failure.stage.remedy(),
                },
            })
            .collect();
        layers.push(Layer {
            name: "memory_limit",
            applied: self.failure.is_none(),
            detail: "a watchdog: memory of the run's processes, files in memory that they hold, and its own file systems, looked at \
                     before they can be over the limit; what lies in sockets, pipes and System V segments is not counted"
                .to_owned(),
            remedy: "run the daemon where it may make cgroups (cgroup v2, and with systemd Delegate=yes): then the kernel counts all of it",
        });
        self.tell_network(&mut layers);
        layers.push(match (landlock::abi(), &self.failure) {
            (0, _) => Layer {
                name: "landlock",
                applied: false,
                detail: "the kernel does not offer it; the mounts are the only wall on files"
                    .to_owned(),
                remedy: "use Linux 5.13 or newer with landlock in the boot parameter lsm=",
            },
            (abi, None) => Layer {
                name: "landlock",
                applied: true,
                detail: format!("version {abi}"),
                remedy: "",
            },
            (abi, Some((_, failure))) => Layer {
                name: "landlock",
                applied: false,
                detail: format!("the kernel offers version {abi}, but no sandbox could be built"),
                remedy: failure.stage.remedy(),
            },
        });
        layers
    }
}

impl Isolation {
    /// Says of the layer that is the network's what is true of a network other than none.
    fn tell_network(&self, layers: &mut [Layer]) {
        let layer = layers
            .iter_mut()
            .find(|layer| layer.name == NETWORK_NAMESPACE && layer.applied);
        let Some(layer) = layer else {
            return;
        };
        match self.network {
            Network::None => {}
            Network::Proxy => {
                layer.detail = format!(
                    "a loopback interface and no route; the daemon's proxy at 127.0.0.1:{} connects to the hosts that proxy.allow_hosts lists",
                    entrance::PORT
                );
            }
            Network::Host => {
                layer.applied = false;
                layer.detail = host_network(landlock::abi());
                layer.remedy = "give commands none, or only the hosts that they need: --network none, --network proxy";
            }
        }
    }
}

/// What commands reach that have the daemon's network.
fn host_network(landlock: u32) -> String {
    let abstract_sockets = if landlock >= 6 {
        "not its abstract Unix sockets, which Landlock keeps apart"
    } else {
        "its abstract Unix sockets among it, which Landlock keeps apart from version 6 on"
    };
    format!(
        "commands have the daemon's network (sandbox.network = \"host\"): all that this host reaches, the metadata service of a cloud and what listens on 127.0.0.1 included, the daemon's own TCP ports too, where nothing but a key would keep a command from calling it; {abstract_sockets}"
    )
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::L0 => "L0",
            Self::L1 => "L1",
            Self::L2 => "L2",
            Self::L3 => "L3",
        })
    }
}

impl FromStr for Level {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "L0" => Ok(Self::L0),
            "L1" => Ok(Self::L1),
            "L2" => Ok(Self::L2),
            "L3" => Ok(Self::L3),
            _ => Err(()),
        }
    }
}
