//! The isolation layers as reported to operators: whether each is in force, how, and how to get it.

use super::{
    cgroup::MemoryAccounting,
    landlock::RESOLVE_UNIX_ABI,
    level::{Isolation, IsolationLevel},
    plan::{NetworkMode, PersistentDirectories},
    probe, proxy_listener,
};

const NETWORK_NAMESPACE_LAYER: &str = "network_namespace";
const UTS_NAMESPACE_LAYER: &str = "uts_namespace";
const PROCESS_LIMIT_LAYER: &str = "process_limit";
const SCRATCH_LAYER: &str = "scratch";

#[derive(Debug)]
pub(crate) struct IsolationLayer {
    pub(crate) name: &'static str,
    pub(crate) applied: bool,
    /// How the layer works, or what its absence means.
    pub(crate) detail: String,
    /// How to get the layer; empty if it is in force.
    pub(crate) remedy: &'static str,
}

#[derive(Debug, Clone, Copy)]
enum LayerState {
    On(&'static str),
    Off(&'static str),
}

use LayerState::{Off, On};

/// Name of a layer, and its state at L3, L2 and L1.
struct LayerRow(&'static str, [LayerState; 3]);

const fn with_namespaces(name: &'static str, detail: &'static str, at_l1: LayerState) -> LayerRow {
    LayerRow(name, [On(detail), On(detail), at_l1])
}

/// The layers that depend on the level only, in the order in which they are applied.
const LAYER_ROWS: &[LayerRow] = &[
    with_namespaces(
        "user_namespace",
        "one user, not root, without capabilities",
        Off("commands run as a user of the daemon's own namespace"),
    ),
    with_namespaces(
        "mount_namespace",
        "an allowlisted read-only root; the daemon's own root is not mounted",
        Off(
            "commands see the daemon's own root; Landlock opens an allowlist of it. Commands can see names, sizes and owners of other files, and \
             can change modes, times and attributes of files that belong to their user",
        ),
    ),
    with_namespaces(
        "pid_namespace",
        "the run's processes only",
        Off(
            "Landlock and seccomp keep commands from signalling, tracing and tuning other processes of the daemon's namespace. Commands can read \
             the ids, states and command lines of these processes; the init of a run kills what it leaves behind",
        ),
    ),
    LayerRow(
        "fresh_proc",
        [
            On("a /proc of the run's own"),
            Off(
                "the daemon's /proc, masked and read-only: commands can read the ids, states and command lines of other processes of the daemon's \
                 namespace, and the state of their network",
            ),
            Off("the daemon's /proc, read-only"),
        ],
    ),
    LayerRow(
        NETWORK_NAMESPACE_LAYER,
        [
            On("a loopback interface and no route"),
            On("a loopback interface and no route; a new namespace for each run"),
            Off("no sockets, except pairs of connected ones"),
        ],
    ),
    with_namespaces(
        "ipc_namespace",
        "one for each run",
        Off("System V and POSIX message passing is refused"),
    ),
    with_namespaces(
        UTS_NAMESPACE_LAYER,
        "host name jig",
        Off("commands see the daemon's host name"),
    ),
    with_namespaces(
        "cgroup_namespace",
        "one for each workspace",
        Off("commands see the daemon's control groups"),
    ),
    LayerRow(
        "kernel_quotas",
        [
            On(
                "each run has its own share of inotify instances and watches, and can make no namespaces; the daemon counts epoll watches (limits.epoll_watches). Runs of one user id \
                 share pipe pages and descriptors in flight: a root daemon has one user id for each workspace, an ordinary user's daemon has its own",
            ),
            Off(
                "the daemon cannot write /proc/sys: runs share what the kernel counts per user; the daemon counts epoll watches of each run (limits.epoll_watches)",
            ),
            Off(
                "runs share what the kernel counts per user; the daemon counts epoll watches of each run (limits.epoll_watches)",
            ),
        ],
    ),
    with_namespaces(
        SCRATCH_LAYER,
        "fresh file systems of limited size for /tmp, /dev/shm and the home directory",
        Off(
            "a fresh directory for temporary files and the home directory, without a size limit; no /dev/shm",
        ),
    ),
    with_namespaces(
        PROCESS_LIMIT_LAYER,
        "RLIMIT_NPROC in the run's own user namespace, and half of the machine's process ids for all runs of one user id; reaching the limit is not reported",
        On(
            "RLIMIT_NPROC, counted over all processes of the commands' user; reaching the limit is not reported",
        ),
    ),
    with_namespaces(
        "capabilities",
        "all five sets empty, securebits locked",
        On("none, and executing a program gains none"),
    ),
    LayerRow("no_new_privs", [On("set-user-id programs gain nothing"); 3]),
];

impl Isolation {
    /// All layers, in the order in which they are applied.
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
        self.describe_persistent_directories(&mut layers);
        self.describe_host_name(&mut layers);

        layers.push(self.landlock());
        layers
    }

    fn landlock(&self) -> IsolationLayer {
        let (applied, detail, remedy) = match (self.landlock_abi, self.level) {
            (0, _) => (
                false,
                "Landlock is not available; the mounts are the only file boundary".to_owned(),
                "use Linux 5.13 or newer with landlock in the boot parameter lsm=; in a container, a seccomp \
                 profile that allows the landlock_* calls",
            ),
            (abi, IsolationLevel::L0) => (
                false,
                format!("the kernel offers version {abi}, but no sandbox could be built"),
                self.remedy(),
            ),
            (abi, IsolationLevel::L1) => {
                (true, format!("version {abi}: files, TCP, signals and abstract sockets"), "")
            }
            (abi, IsolationLevel::L2 | IsolationLevel::L3) => {
                (true, format!("version {abi}; {}", host_sockets_detail(abi)), "")
            }
        };
        IsolationLayer { name: "landlock", applied, detail, remedy }
    }

    /// The layer `protected_paths`, if the workspace has protected paths.
    fn protected_paths(&self) -> Option<IsolationLayer> {
        if self.protected_paths.is_empty() {
            return None;
        }

        let paths = self.protected_paths.join(", ");
        let applied = self.level.has_namespaces();
        let detail = if applied {
            format!("read-only for commands and file tools: {paths}")
        } else {
            format!(
                "file tools refuse to change {paths}; commands can change them, because protection needs mounts"
            )
        };
        Some(self.layer_with_remedy("protected_paths", applied, detail))
    }

    fn memory_limit(&self) -> IsolationLayer {
        let detail = match &self.memory_accounting {
            MemoryAccounting::Cgroups(_) => {
                "cgroup v2: memory.max with memory.oom.group, for all memory of the run".to_owned()
            }
            MemoryAccounting::Watchdog(why) => format!(
                "a watchdog: it measures memory of the run's processes, memory files that they hold, the run's file systems, mappings and epoll watches, before they can exceed \
                 the limit. It does not count data in sockets, pipes and System V segments, kernel memory of open files, and shared memory that is not mapped any more. \
                 A daemon for several callers should have cgroups: with version 2 the kernel counts all of it, \
                 but the daemon cannot make cgroups ({why}); with systemd, Delegate=yes permits it"
            ),
        };
        self.layer_with_remedy("memory_limit", self.level > IsolationLevel::L0, detail)
    }

    fn cpu_share(&self) -> IsolationLayer {
        let detail = match &self.memory_accounting {
            MemoryAccounting::Cgroups(cgroups) if cgroups.has_cpu_controller() => {
                "cgroup v2: cpu.weight, all runs together a tenth of the daemon's; cpu.max enforces limits.cpus"
            }
            MemoryAccounting::Cgroups(_) | MemoryAccounting::Watchdog(_) => {
                "commands run at nice +10 relative to the daemon, and at nice 19 once they take long; where sessions have shares (autogroup), the commands of a workspace \
                 share one, and a command can make more sessions. limits.cpus needs cgroups of version 2 with the controller cpu, which this daemon does not have"
            }
        };
        self.layer_with_remedy("cpu_share", self.level > IsolationLevel::L0, detail.to_owned())
    }

    /// Corrects the layer `process_limit` where cgroups count processes.
    fn describe_process_limit(&self, layers: &mut [IsolationLayer]) {
        let layer =
            layers.iter_mut().find(|layer| layer.name == PROCESS_LIMIT_LAYER && layer.applied);
        if let (Some(layer), MemoryAccounting::Cgroups(_)) = (layer, &self.memory_accounting) {
            layer.detail = "pids.max of cgroup v2, which reports when a run reaches it, backed by RLIMIT_NPROC".to_owned();
        }
    }

    fn row_layer(&self, LayerRow(name, [l3, l2, l1]): &LayerRow) -> IsolationLayer {
        let state = match self.level {
            IsolationLevel::L3 => *l3,
            IsolationLevel::L2 => *l2,
            IsolationLevel::L1 => *l1,
            IsolationLevel::L0 => {
                let why = self.failed_levels.first().map(|failed| failed.failure.to_string());
                let detail = format!(
                    "no sandbox could be built for workspace {}: {}",
                    self.workspace,
                    why.unwrap_or_default()
                );
                return self.layer_with_remedy(name, false, detail);
            }
        };
        let (applied, detail) = match state {
            On(detail) => (true, detail),
            Off(detail) => (false, detail),
        };
        self.layer_with_remedy(name, applied, detail.to_owned())
    }

    /// A layer whose remedy, if it is not in force, is a higher level.
    fn layer_with_remedy(
        &self,
        name: &'static str,
        applied: bool,
        detail: String,
    ) -> IsolationLayer {
        IsolationLayer { name, applied, detail, remedy: if applied { "" } else { self.remedy() } }
    }

    /// How to get a higher level.
    fn remedy(&self) -> &'static str {
        let last = self.failed_levels.last().filter(|_| self.level > IsolationLevel::L0);
        let failed = last.or(self.failed_levels.first());
        failed.map_or("", |failed| failed.failure.stage.remedy())
    }
}

impl Isolation {
    /// Corrects the layer `scratch` where directories are persistent.
    fn describe_persistent_directories(&self, layers: &mut [IsolationLayer]) {
        let PersistentDirectories { home, tmp } = self.persistent;
        let (fresh, kept) = match (home, tmp) {
            (false, false) => return,
            (true, false) => (
                "/tmp and /dev/shm",
                "the home directory belongs to the workspace and persists (sandbox.home)",
            ),
            (false, true) => (
                "/dev/shm and the home directory",
                "/tmp belongs to the workspace and persists (sandbox.tmp)",
            ),
            (true, true) => (
                "/dev/shm",
                "the home directory and /tmp belong to the workspace and persist (sandbox.home, sandbox.tmp)",
            ),
        };
        let scratch = layers.iter_mut().find(|layer| layer.name == SCRATCH_LAYER);
        if let Some(scratch) = scratch.filter(|layer| layer.applied) {
            scratch.detail = format!(
                "fresh file systems of limited size for {fresh}; {kept}, without a size limit of their own: later runs find what a run leaves there"
            );
        }
    }

    /// Corrects the layer `uts_namespace` where setting the host name was refused.
    fn describe_host_name(&self, layers: &mut [IsolationLayer]) {
        let layer = layers.iter_mut().find(|layer| layer.name == UTS_NAMESPACE_LAYER);
        let is_refused = self.waived_checks.contains(&probe::HOST_NAME_CHECK);
        if let Some(layer) = layer.filter(|layer| layer.applied && is_refused) {
            layer.detail = "one for each workspace, with the daemon's host name: a seccomp profile refused the name jig (sethostname)".to_owned();
        }
    }

    /// Corrects the layer `network_namespace` for networks other than `none`.
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
                    "a loopback interface and no route; the daemon's proxy at 127.0.0.1:{} connects to the hosts in proxy.allow_hosts",
                    proxy_listener::PROXY_PORT
                );
            }
            NetworkMode::Host => {
                layer.applied = false;
                layer.detail = host_network_detail(self.landlock_abi);
                layer.remedy =
                    "use --network none, or --network proxy with the hosts that commands need";
            }
        }
    }
}

/// Whether commands can reach Unix sockets of the host below visible directories.
fn host_sockets_detail(landlock_abi: u32) -> &'static str {
    if landlock_abi >= RESOLVE_UNIX_ABI {
        "commands connect only to Unix sockets that their own run made"
    } else {
        "commands can connect to Unix sockets of the host below workspaces and binds; Landlock refuses that from version 9 on (Linux 7.1)"
    }
}

/// What commands with the network `host` can reach.
fn host_network_detail(landlock_abi: u32) -> String {
    let abstract_sockets = if landlock_abi >= 6 {
        "not its abstract Unix sockets, which Landlock blocks"
    } else {
        "and its abstract Unix sockets, which Landlock blocks only from version 6 on"
    };
    format!(
        "commands have the daemon's network (sandbox.network = \"host\"): everything that this host reaches, including a cloud's metadata service, services on 127.0.0.1 and the daemon's own TCP ports (only a key keeps a command from calling the daemon); {abstract_sockets}"
    )
}
