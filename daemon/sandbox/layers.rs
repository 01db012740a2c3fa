//! The layers that a level consists of: what is told about each, whether it is in force or not.

use super::{
    canary,
    cgroup::MemoryAccounting,
    landlock::RESOLVE_UNIX_ABI,
    level::{Isolation, IsolationLevel},
    plan::NetworkMode,
    proxy_listener,
};

/// The layer that says which network commands have.
const NETWORK_NAMESPACE_LAYER: &str = "network_namespace";
/// The layer of the host name.
const UTS_NAMESPACE_LAYER: &str = "uts_namespace";
/// The layer that says how processes are limited.
const PROCESS_LIMIT_LAYER: &str = "process_limit";
/// The layer that says what a run finds of others in its temporary files.
const SCRATCH_LAYER: &str = "scratch";

/// One layer of the sandbox.
#[derive(Debug)]
pub(crate) struct IsolationLayer {
    /// Its name.
    pub(crate) name: &'static str,
    /// Whether it is in force.
    pub(crate) applied: bool,
    /// How, or why not.
    pub(crate) detail: String,
    /// What to change so that it will be.
    pub(crate) remedy: &'static str,
}

/// What a layer is at one level.
#[derive(Debug, Clone, Copy)]
enum LayerState {
    /// In force, in these words.
    On(&'static str),
    /// Not in force; what that means.
    Off(&'static str),
}

use LayerState::{Off, On};

/// What a layer is at L3, L2 and L1.
struct LayerRow(&'static str, [LayerState; 3]);

const fn with_namespaces(name: &'static str, detail: &'static str, at_l1: LayerState) -> LayerRow {
    LayerRow(name, [On(detail), On(detail), at_l1])
}

/// The layers, in the order in which they are applied. Seccomp and Landlock, which depend on more
/// than the level, follow.
const LAYER_ROWS: &[LayerRow] = &[
    with_namespaces(
        "user_namespace",
        "one user, not root, without capabilities",
        Off("commands are a user of the daemon's own namespace"),
    ),
    with_namespaces(
        "mount_namespace",
        "an allowlisted read-only root; the daemon's own root is not mounted",
        Off(
            "commands see the daemon's own root, of which Landlock opens an allowlist; names, sizes and owners of the rest can be seen, and modes, \
             times and attributes of what belongs to the commands' user can be changed",
        ),
    ),
    with_namespaces(
        "pid_namespace",
        "the run's processes only",
        Off(
            "Landlock and seccomp keep commands from signalling, tracing and tuning the daemon's other processes, whose numbers, states and \
             command lines can be read; a supervisor ends what a run leaves behind",
        ),
    ),
    LayerRow(
        "fresh_proc",
        [
            On("a /proc of the run's own"),
            Off(
                "the daemon's /proc, masked and read-only: numbers, states and command lines of the daemon's other processes, and the state of \
                 their network, can be read",
            ),
            Off("the daemon's /proc, read-only"),
        ],
    ),
    LayerRow(
        NETWORK_NAMESPACE_LAYER,
        [
            On("a loopback interface and no route"),
            On("a loopback interface and no route; made anew for each run"),
            Off("no socket can be made, but for pairs of connected ones"),
        ],
    ),
    with_namespaces(
        "ipc_namespace",
        "of the run alone",
        Off("System V and POSIX message passing is refused"),
    ),
    with_namespaces(
        UTS_NAMESPACE_LAYER,
        "host name jig",
        Off("commands see the daemon's host name"),
    ),
    with_namespaces(
        "cgroup_namespace",
        "of the workspace",
        Off("commands see the daemon's control groups"),
    ),
    LayerRow(
        "kernel_quotas",
        [
            On(
                "a share of its own of inotify instances and watches, no namespaces; epoll watches are counted beside the run (limits.epoll_watches). Pipe pages and descriptors in \
                 flight are shared by the runs of one user id: a root daemon has one for each workspace, an ordinary user's daemon its own",
            ),
            Off(
                "/proc/sys is not the daemon's to write: runs share what the kernel counts by user; epoll watches are counted beside each run (limits.epoll_watches)",
            ),
            Off(
                "runs share what the kernel counts by user; epoll watches are counted beside each run (limits.epoll_watches)",
            ),
        ],
    ),
    with_namespaces(
        SCRATCH_LAYER,
        "fresh file systems of limited size for /tmp, /dev/shm and the home directory",
        Off(
            "a fresh directory for temporary files and the home directory, of no limited size; no /dev/shm",
        ),
    ),
    with_namespaces(
        PROCESS_LIMIT_LAYER,
        "RLIMIT_NPROC in the run's own user namespace, and over all runs of one user id half of the machine's process ids; that a run came to it is not reported",
        On(
            "RLIMIT_NPROC, counted over all processes of the commands' user; that a run came to it is not reported",
        ),
    ),
    with_namespaces(
        "capabilities",
        "all five sets empty, securebits locked",
        On("none, and none to be gained by executing a program"),
    ),
    LayerRow("no_new_privs", [On("set-user-id programs gain nothing"); 3]),
];

impl Isolation {
    /// The layers, in the order in which they are applied.
    pub(crate) fn layers(&self) -> Vec<IsolationLayer> {
        let mut layers: Vec<IsolationLayer> =
            LAYER_ROWS.iter().map(|row| self.row_layer(row)).collect();
        let seccomp = match (self.level, self.allow_ptrace) {
            (IsolationLevel::L1, _) => "an allowlist of system calls, without sockets and ptrace",
            (_, true) => "an allowlist of system calls, with ptrace (sandbox.allow_ptrace)",
            (_, false) => "an allowlist of system calls, without ptrace",
        };
        layers.push(self.row_layer(&LayerRow("seccomp", [On(seccomp); 3])));
        layers.extend(self.protected_paths());
        layers.push(self.memory_limit());
        layers.push(self.cpu_share());
        self.describe_network(&mut layers);
        self.describe_process_limit(&mut layers);
        self.describe_home(&mut layers);
        self.describe_host_name(&mut layers);
        layers.push(match (self.landlock_abi, self.level) {
            (0, _) => IsolationLayer {
                name: "landlock",
                applied: false,
                detail: "the kernel does not offer it; the mounts are the only wall on files"
                    .to_owned(),
                remedy: "use Linux 5.13 or newer with landlock in the boot parameter lsm=",
            },
            (abi, IsolationLevel::L0) => IsolationLayer {
                name: "landlock",
                applied: false,
                detail: format!("the kernel offers version {abi}, but no sandbox could be built"),
                remedy: self.remedy(),
            },
            (abi, IsolationLevel::L1) => IsolationLayer {
                name: "landlock",
                applied: true,
                detail: format!("version {abi}: files, TCP, signals and abstract sockets"),
                remedy: "",
            },
            (abi, IsolationLevel::L2 | IsolationLevel::L3) => IsolationLayer {
                name: "landlock",
                applied: true,
                detail: format!("version {abi}; {}", host_sockets_detail(abi)),
                remedy: "",
            },
        });
        layers
    }

    /// Paths of the workspace that commands cannot change, where there are any.
    fn protected_paths(&self) -> Option<IsolationLayer> {
        if self.protected_paths.is_empty() {
            return None;
        }
        let paths = self.protected_paths.join(", ");
        let applied = self.level.has_namespaces();
        let detail = if applied {
            format!("read-only for commands and file tools: {paths}")
        } else {
            format!("file tools refuse to change {paths}; commands can, since that needs a mount")
        };
        Some(self.layer_with_remedy("protected_paths", applied, detail))
    }

    fn memory_limit(&self) -> IsolationLayer {
        let detail = match &self.memory_accounting {
            MemoryAccounting::Cgroups(_) => {
                "cgroup v2: memory.max with memory.oom.group, of all that the run occupies"
                    .to_owned()
            }
            MemoryAccounting::Watchdog(why) => format!(
                "a watchdog: memory of the run's processes, files in memory that they hold, its own file systems, mappings and epoll watches, looked at before they can be \
                 over the limit; what lies in sockets, pipes and System V segments is not counted, nor kernel memory of open files, nor what is shared and not mapped any more. \
                 A daemon for several callers wants cgroups. The kernel would count all of it in cgroups of \
                 version 2, which the daemon cannot make ({why}); with systemd, Delegate=yes lets it"
            ),
        };
        self.layer_with_remedy("memory_limit", self.level > IsolationLevel::L0, detail)
    }

    fn cpu_share(&self) -> IsolationLayer {
        let detail = match &self.memory_accounting {
            MemoryAccounting::Cgroups(cgroups) if cgroups.has_cpu_controller() => {
                "cgroup v2: cpu.weight, all runs together a tenth of the daemon's; cpu.max holds limits.cpus"
            }
            MemoryAccounting::Cgroups(_) | MemoryAccounting::Watchdog(_) => {
                "commands are 10 nicer than the daemon, and so are their sessions where those have shares (autogroup), of which a command can make \
                 more or raise its own again; limits.cpus is held in cgroups of version 2 with the controller cpu alone, which are not there"
            }
        };
        self.layer_with_remedy("cpu_share", self.level > IsolationLevel::L0, detail.to_owned())
    }

    /// Says of the layer that limits processes what is true where the kernel counts them.
    fn describe_process_limit(&self, layers: &mut [IsolationLayer]) {
        let layer =
            layers.iter_mut().find(|layer| layer.name == PROCESS_LIMIT_LAYER && layer.applied);
        if let (Some(layer), MemoryAccounting::Cgroups(_)) = (layer, &self.memory_accounting) {
            layer.detail = "pids.max of cgroup v2, which reports that a run came to it, and RLIMIT_NPROC behind it".to_owned();
        }
    }

    fn row_layer(&self, LayerRow(name, [l3, l2, l1]): &LayerRow) -> IsolationLayer {
        let is = match self.level {
            IsolationLevel::L3 => *l3,
            IsolationLevel::L2 => *l2,
            IsolationLevel::L1 => *l1,
            IsolationLevel::L0 => {
                let why = self.rejected.first();
                let why = why.map(|refused| refused.failure.to_string());
                let detail = format!(
                    "no sandbox could be built for workspace {}: {}",
                    self.workspace,
                    why.unwrap_or_default()
                );
                return self.layer_with_remedy(name, false, detail);
            }
        };
        let (applied, detail) = match is {
            On(detail) => (true, detail),
            Off(detail) => (false, detail),
        };
        self.layer_with_remedy(name, applied, detail.to_owned())
    }

    /// A layer that is in force, or would be at a higher level.
    fn layer_with_remedy(
        &self,
        name: &'static str,
        applied: bool,
        detail: String,
    ) -> IsolationLayer {
        IsolationLayer { name, applied, detail, remedy: if applied { "" } else { self.remedy() } }
    }

    /// What to change so that the level becomes higher.
    fn remedy(&self) -> &'static str {
        let last = self.rejected.last().filter(|_| self.level > IsolationLevel::L0);
        let refused = last.or(self.rejected.first());
        refused.map_or("", |refused| refused.failure.stage.remedy())
    }
}

impl Isolation {
    /// Says that a home directory is kept, where it is.
    fn describe_home(&self, layers: &mut [IsolationLayer]) {
        let scratch = layers.iter_mut().find(|layer| layer.name == SCRATCH_LAYER);
        if let Some(scratch) = scratch.filter(|layer| layer.applied && self.has_persistent_home) {
            scratch.detail = "fresh file systems of limited size for /tmp and /dev/shm; the home directory is the workspace's and kept (sandbox.home), of no limited size: what a run leaves there, later ones find".to_owned();
        }
    }

    /// Says that commands see the daemon's host name, where the sandbox could not have another.
    fn describe_host_name(&self, layers: &mut [IsolationLayer]) {
        let layer = layers.iter_mut().find(|layer| layer.name == UTS_NAMESPACE_LAYER);
        let is_refused = self.waived_checks.contains(&canary::HOST_NAME_CHECK);
        if let Some(layer) = layer.filter(|layer| layer.applied && is_refused) {
            layer.detail = "of the workspace, with the daemon's host name: the name jig was refused (sethostname, by a seccomp profile)".to_owned();
        }
    }

    /// Says of the layer that is the network's what is true of a network other than none.
    fn describe_network(&self, layers: &mut [IsolationLayer]) {
        let layer =
            layers.iter_mut().find(|layer| layer.name == NETWORK_NAMESPACE_LAYER && layer.applied);
        let Some(layer) = layer else {
            return;
        };
        match self.network {
            NetworkMode::None => {}
            NetworkMode::Proxy => {
                layer.detail = format!(
                    "a loopback interface and no route; the daemon's proxy at 127.0.0.1:{} connects to the hosts that proxy.allow_hosts lists",
                    proxy_listener::PROXY_PORT
                );
            }
            NetworkMode::Host => {
                layer.applied = false;
                layer.detail = host_network_detail(self.landlock_abi);
                layer.remedy = "give commands none, or only the hosts that they need: --network none, --network proxy";
            }
        }
    }
}

/// Whether commands reach Unix sockets of the host in what they are shown of it.
fn host_sockets_detail(landlock: u32) -> &'static str {
    if landlock >= RESOLVE_UNIX_ABI {
        "commands connect only to Unix sockets that their own run made"
    } else {
        "commands can connect to Unix sockets of the host below workspaces and binds, which it refuses from version 9 on (Linux 7.1)"
    }
}

/// What commands reach that have the daemon's network.
fn host_network_detail(landlock: u32) -> String {
    let abstract_sockets = if landlock >= 6 {
        "not its abstract Unix sockets, which Landlock keeps apart"
    } else {
        "its abstract Unix sockets among it, which Landlock keeps apart from version 6 on"
    };
    format!(
        "commands have the daemon's network (sandbox.network = \"host\"): all that this host reaches, the metadata service of a cloud and what listens on 127.0.0.1 included, the daemon's own TCP ports too, where nothing but a key would keep a command from calling it; {abstract_sockets}"
    )
}
