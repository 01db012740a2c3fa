//! The slot keeper: owns the user and network namespace of one slot of the pool, and makes its
//! sandboxes, one after the other.
//!
//! The user namespace is made once per slot, not once per run. It gives each run a process limit of
//! its own, because a slot has one live run at a time. The network namespace belongs to the
//! template's user namespace, so a run has no privileges over it.

use std::{
    ffi::{CStr, CString},
    fs,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::atomic::Ordering,
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open,
    set_dumpable_behavior, set_parent_process_death_signal, wait,
};

use super::{
    blueprint::{Blueprint, MountOptions, OWN_PROCESS_COUNT, SandboxState, ScratchOptions},
    capabilities, command_process,
    init::run_init,
    landlock::{LandlockRules, PathAccess, ScopeReach},
    level::IsolationLevel,
    limits::RunLimits,
    loopback_connection::send_connection,
    masked_proc,
    netns_check::NetnsCheck,
    plan::{
        NetworkMode, PersistentDirectories, SANDBOX_HOME, SANDBOX_TMP, SandboxPlan, WorkspacePlan,
    },
    probe::GuardedTargets,
    proc_masks, proxy_listener, quotas,
    run_meter::RunMeter,
    seccomp::SeccompFilters,
    stage::{Stage, StageFailure, at_stage},
    wire::{
        MeasurementBounds, RunMeasurement, SLOT_KEEPER_REQUEST_BYTES, SandboxIdentity,
        SandboxReport, SetupReply, SlotKeeperRequest, receive_bytes, send, send_bytes, send_reply,
    },
};
use crate::daemon::sys::{
    Errno, from_nix,
    process::{exit_now, wait_any},
    process_arena::ProcessArena,
    set_process_name, signal,
};

/// Sandboxes of one slot that may exist at the same time: the live one, and those being torn down.
const MAX_SANDBOXES_PER_SLOT: usize = 4;
/// Signals that may be queued for a run's processes, including timers.
const MAX_QUEUED_SIGNALS: u64 = 4096;
/// The message that carries a sandbox's pidfd. A descriptor needs a message of at least one byte,
/// whose value has no meaning. At L1 the path of the scratch directory follows.
pub(super) const SANDBOX_HANDLE_MESSAGE: &[u8] = b"t";
/// Maximum length of that message, with the path.
pub(super) const MAX_HANDLE_MESSAGE_BYTES: usize = 256;

/// What a slot keeper makes its sandboxes with.
struct SlotState {
    blueprint: &'static Blueprint,
    netns_check: NetnsCheck,
    arenas: Vec<ProcessArena<SandboxState>>,
    identity: SandboxIdentity,
    /// The persistent directories, which are mounted already.
    persistent: PersistentDirectories,
    /// The newest sandbox: the index of its arena, and its meter.
    newest: Option<(usize, RunMeter)>,
}

/// Runs as a slot keeper: reports to the daemon that it is ready, then serves the daemon's
/// requests, until the daemon closes the socket.
pub(super) fn run(
    socket: BorrowedFd<'_>,
    plan: &SandboxPlan,
    workspace: &WorkspacePlan,
    level: IsolationLevel,
    identity: SandboxIdentity,
    filters: &SeccompFilters,
) -> ! {
    set_process_name(c"jig-slot");
    let prepared = prepare_blueprint(plan, workspace, level, identity, filters)
        .and_then(|blueprint| Ok((blueprint, make_proxy_listener(plan.network)?)))
        .and_then(|(blueprint, listener)| {
            Ok((blueprint, listener, NetnsCheck::for_slot(plan.network, level)?))
        });
    let (blueprint, listener, netns_check) = prepared.unwrap_or_else(|failure| {
        let _daemon_gone = send(socket, &SetupReply::Failed(failure), &[]);
        exit_now(1)
    });

    let ready = SetupReply::Done { workspace: workspace.index, identity };
    let fds: Vec<BorrowedFd<'_>> = listener.iter().map(AsFd::as_fd).collect();
    if send_reply(socket, &ready, &fds, Stage::NetworkNamespace).is_err() {
        exit_now(0);
    }
    // Only the daemon keeps the listener open from here on.
    drop(listener);

    let mut slot = SlotState {
        blueprint: Box::leak(Box::new(blueprint)),
        netns_check,
        arenas: Vec::new(),
        identity,
        persistent: workspace.mounted_persistent(),
        newest: None,
    };
    loop {
        let (mut bytes, mut control) = ([0; SLOT_KEEPER_REQUEST_BYTES], None);
        let received = match receive_bytes(socket, &mut bytes, |fd| control = Some(fd)) {
            Ok(received) if received.length > 0 => received.length,
            _ => exit_now(0),
        };
        let request = SlotKeeperRequest::decode(bytes.get(..received).unwrap_or_default());
        if slot.serve(socket, request, control).is_err() {
            exit_now(0);
        }
    }
}

impl SlotState {
    /// Serves a request of the daemon. An error means that the daemon is gone.
    fn serve(
        &mut self,
        socket: BorrowedFd<'_>,
        request: Option<SlotKeeperRequest>,
        control: Option<OwnedFd>,
    ) -> Result<(), Errno> {
        match (request, control) {
            (Some(SlotKeeperRequest::BuildSandbox { .. }), Some(_))
                if !self.netns_check.wait_until_clear() =>
            {
                send_bytes(socket, &SandboxReport::NetnsInUse.encode(), &[])
            }
            (Some(SlotKeeperRequest::BuildSandbox { tmp_bytes, tmp_inodes }), Some(control)) => {
                let pidfd = scratch_options(tmp_bytes, tmp_inodes, self.identity, self.persistent)
                    .and_then(|scratch| self.build_sandbox(scratch, control));
                send_sandbox(socket, pidfd)
            }
            (Some(SlotKeeperRequest::Measure(bounds)), None) => {
                let report = SandboxReport::Measured(self.measure(&bounds).unwrap_or_default());
                send_bytes(socket, &report.encode(), &[])
            }
            (Some(SlotKeeperRequest::Connect(port)), None) => {
                send_connection(socket, self.blueprint.network, port)
            }
            _ => exit_now(1),
        }
    }

    /// Starts a sandbox. Returns the pidfd of its init.
    fn build_sandbox(
        &mut self,
        scratch: ScratchOptions,
        control: OwnedFd,
    ) -> Result<OwnedFd, StageFailure> {
        let state = SandboxState::new(self.blueprint, scratch, control.as_raw_fd());
        let (pidfd, init, arena) = start_init(&mut self.arenas, state)?;
        self.newest = Some((arena, RunMeter::new(newest_child().unwrap_or(init))));
        Ok(pidfd)
    }

    /// Measures the present run of the newest sandbox.
    fn measure(&mut self, bounds: &MeasurementBounds) -> Option<RunMeasurement> {
        let file_systems = self.own_file_systems();
        let (arena, meter) = self.newest.as_mut()?;
        if let Some(state) = self.arenas.get(*arena).and_then(ProcessArena::state) {
            meter.start_run_after(state.past_cpu_us.load(Ordering::Acquire));
        }
        Some(meter.measure(bounds, file_systems))
    }

    /// Where a run sees the file systems that are its own.
    fn own_file_systems(&self) -> &'static [&'static str] {
        match self.persistent {
            PersistentDirectories { home: false, tmp: false } => {
                &["/dev/shm", SANDBOX_TMP, SANDBOX_HOME]
            }
            PersistentDirectories { home: true, tmp: false } => &["/dev/shm", SANDBOX_TMP],
            PersistentDirectories { home: false, tmp: true } => &["/dev/shm", SANDBOX_HOME],
            PersistentDirectories { home: true, tmp: true } => &["/dev/shm"],
        }
    }
}

/// Id of the newest child, as `/proc` numbers it. At L2 that is the daemon's `/proc`, whose ids
/// differ from those of this process namespace.
fn newest_child() -> Option<Pid> {
    let children = fs::read_to_string("/proc/thread-self/children").ok()?;
    let newest = children.split_ascii_whitespace().next_back()?;
    newest.parse().ok().and_then(Pid::from_raw)
}

/// Sends a sandbox's pidfd to the daemon, or why there is none.
fn send_sandbox(socket: BorrowedFd<'_>, pidfd: Result<OwnedFd, StageFailure>) -> Result<(), Errno> {
    let send_failure = |stage, errno| {
        let report = SandboxReport::Failed { stage, errno };
        send_bytes(socket, &report.encode(), &[])
    };
    match pidfd {
        // Commands can make this fail, see `send_reply`. A message without descriptors cannot fail
        // so.
        Ok(pidfd) => send_bytes(socket, SANDBOX_HANDLE_MESSAGE, &[pidfd.as_fd()])
            .or_else(|errno| send_failure(Stage::RunNamespaces, errno)),
        Err(failure) => send_failure(failure.stage, failure.wire_errno()),
    }
}

fn scratch_options(
    tmp_bytes: u64,
    tmp_inodes: u64,
    identity: SandboxIdentity,
    persistent: PersistentDirectories,
) -> Result<ScratchOptions, StageFailure> {
    let SandboxIdentity { uid, gid, .. } = identity;
    let options = |mode: &str| {
        let text =
            format!("size={tmp_bytes},nr_inodes={tmp_inodes},mode={mode},uid={uid},gid={gid}");
        MountOptions::new(&text).ok_or_else(|| {
            StageFailure::other(Stage::MountScratch, "the mount options are too long")
        })
    };
    Ok(ScratchOptions {
        shared_options: options("1777")?,
        is_tmp_persistent: persistent.tmp,
        home_options: (!persistent.home).then(|| options("0755")).transpose()?,
    })
}

/// Makes the listener that the daemon accepts proxy connections from, with the network `proxy`.
fn make_proxy_listener(network: NetworkMode) -> Result<Option<OwnedFd>, StageFailure> {
    match network {
        NetworkMode::Proxy => proxy_listener::bind_proxy_listener().map(Some),
        NetworkMode::None | NetworkMode::Host => Ok(None),
    }
}

/// Changes to the user of the slot's own user namespace, and prepares what its sandboxes are built
/// from.
fn prepare_blueprint(
    plan: &SandboxPlan,
    workspace: &WorkspacePlan,
    level: IsolationLevel,
    identity: SandboxIdentity,
    filters: &SeccompFilters,
) -> Result<Blueprint, StageFailure> {
    let failed = |stage| at_stage(stage, "preparing the slot keeper");
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed(Stage::SlotNamespace))?;
    signal::disable_auto_reap().map_err(failed(Stage::SlotNamespace))?;
    write_own_id_maps(identity)?;

    if level == IsolationLevel::L3 {
        quotas::set_quotas()?;
    } else {
        masked_proc::make_read_only()?;
    }
    capabilities::forbid_privilege_gain().map_err(failed(Stage::Capabilities))?;
    set_limits(plan.limits).map_err(from_nix).map_err(failed(Stage::ResourceLimits))?;

    let guarded_targets = if level == IsolationLevel::L3 {
        GuardedTargets::default()
    } else {
        GuardedTargets::collect(plan, level)?
    };

    let masks = (level == IsolationLevel::L3).then(proc_masks::readable_masks);
    let (masked_directories, masked_files) =
        masks.into_iter().flatten().partition::<Vec<_>, _>(|(_, is_directory)| *is_directory);
    let paths =
        |masks: Vec<(&'static CStr, bool)>| masks.into_iter().map(|(path, _)| path).collect();

    let slot_pidfd =
        pidfd_open(getpid(), PidfdFlags::empty()).map_err(failed(Stage::SlotNamespace))?;
    Ok(Blueprint {
        level,
        guarded_targets,
        masked_files: paths(masked_files),
        masked_directories: paths(masked_directories),
        other_process_count: OWN_PROCESS_COUNT,
        limits: plan.limits,
        rules: LandlockRules::new(
            plan.landlock_abi,
            ScopeReach::SameDomain,
            landlock_paths(workspace)?,
        ),
        filter: filters.closing.clone(),
        reporting_filter: (plan.recycle_sandboxes && level.recycles_sandboxes())
            .then(|| filters.closing_and_reporting.clone()),
        receive_mark: filters.receive_mark,
        network: plan.network,
        slot_pidfd: Some(slot_pidfd),
    })
}

/// Writes the id maps of this process's new user namespace.
fn write_own_id_maps(identity: SandboxIdentity) -> Result<(), StageFailure> {
    let set_dumpable = |behavior| {
        set_dumpable_behavior(behavior)
            .map_err(at_stage(Stage::SlotNamespace, "setting the dumpable flag"))
    };

    // The files in /proc of a process that is not dumpable belong to root.
    set_dumpable(DumpableBehavior::Dumpable)?;
    for (file, text) in [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("{0} {0} 1\n", identity.uid)),
        ("/proc/self/gid_map", format!("{0} {0} 1\n", identity.gid)),
    ] {
        fs::write(file, text).map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            StageFailure::from_errno(Stage::SlotNamespace, errno, file)
        })?;
    }
    set_dumpable(DumpableBehavior::NotDumpable)
}

/// The paths of the Landlock rules, with the access that commands have below each.
fn landlock_paths(workspace: &WorkspacePlan) -> Result<Vec<(CString, PathAccess)>, StageFailure> {
    let fixed = [
        ("/", PathAccess::Read),
        ("/proc", PathAccess::Devices),
        ("/dev", PathAccess::Devices),
        ("/dev/shm", PathAccess::Write),
        (SANDBOX_TMP, PathAccess::Write),
        (SANDBOX_HOME, PathAccess::Write),
    ];

    let writable_binds = workspace.binds.iter().filter(|bind| bind.writable);
    fixed
        .into_iter()
        .map(|(path, access)| (PathBuf::from(path), access))
        .chain([(workspace.mount_path.clone(), PathAccess::Write)])
        .chain(writable_binds.map(|bind| (bind.destination.clone(), PathAccess::Write)))
        .map(|(path, access)| {
            let path = CString::new(path.into_os_string().into_encoded_bytes());
            path.map(|path| (path, access))
                .map_err(|_| StageFailure::other(Stage::Landlock, "a path holds a NUL"))
        })
        .collect()
}

/// Sets the resource limits that sandboxes inherit, except two.
///
/// RLIMIT_NOFILE is set by each init, because the slot keeper needs a higher one. A process's limit
/// on open files also bounds what it may send while its user has descriptors in flight (unix(7),
/// ETOOMANYREFS). Commands can fill that up to their own limit. RLIMIT_NPROC is set last, by the
/// command's own process. This function only checks that it can be.
pub(super) fn set_limits(limits: RunLimits) -> nix::Result<()> {
    let (_, max_processes) = getrlimit(Resource::RLIMIT_NPROC)?;
    if max_processes < u64::from(limits.processes) {
        return Err(nix::errno::Errno::EPERM);
    }

    // Counted per user over all runs, like the quotas.
    let (max_signals, _) = getrlimit(Resource::RLIMIT_SIGPENDING)?;
    for (resource, limit) in [
        // A core pattern that pipes to a program is run whatever the limit, except at 1
        // (fs/coredump.c).
        (Resource::RLIMIT_CORE, 1),
        (Resource::RLIMIT_FSIZE, limits.file_size_bytes),
        // The daemon's scheduling privileges are not for commands.
        (Resource::RLIMIT_NICE, 0),
        (Resource::RLIMIT_RTPRIO, 0),
        (Resource::RLIMIT_SIGPENDING, max_signals.min(MAX_QUEUED_SIGNALS)),
    ] {
        setrlimit(resource, limit, limit)?;
    }
    Ok(())
}

/// Starts a sandbox's init in a free arena, and waits for one if all are occupied. Returns its pidfd,
/// its id, and the index of the arena.
fn start_init(
    arenas: &mut Vec<ProcessArena<SandboxState>>,
    state: SandboxState,
) -> Result<(OwnedFd, Pid, usize), StageFailure> {
    let failed = |errno| at_stage(Stage::RunNamespaces, "starting the init")(errno);

    while let Ok(Some((ended, _))) = wait(WaitOptions::NOHANG) {
        arenas.iter_mut().for_each(|arena| arena.on_child_ended(ended));
    }

    let free = loop {
        if let Some(free) = arenas.iter().position(|arena| !arena.is_occupied()) {
            break free;
        }
        if arenas.len() < MAX_SANDBOXES_PER_SLOT {
            arenas.push(ProcessArena::new().map_err(failed)?);
            continue;
        }
        let ended = wait_any().map_err(failed)?;
        arenas.iter_mut().for_each(|arena| arena.on_child_ended(ended.pid));
    };
    let arena = arenas
        .get_mut(free)
        .ok_or_else(|| StageFailure::other(Stage::RunNamespaces, "no free arena"))?;

    let namespaces = libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWIPC;
    let (pidfd, init) =
        arena.start(state, run_init, command_process::run, namespaces).map_err(failed)?;
    Ok((pidfd, init, free))
}
