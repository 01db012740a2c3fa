//! The slot keeper: owns the user and network namespace of one slot of the pool, and makes its
//! sandboxes, one after the other.
//!
//! The user namespace is made once per slot and not once per run; it gives each run a process limit
//! of its own, because a slot has one live run at a time. The network namespace belongs to the
//! template's user namespace, so that a run has no power over it.

use std::{
    ffi::{CStr, CString},
    fs,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
};

use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions, getpid, getrlimit,
    pidfd_open, set_dumpable_behavior, set_parent_process_death_signal, setrlimit, wait,
};

use super::{
    canary::GuardedTargets,
    capabilities, command_process,
    init::{Blueprint, MountOptions, OWN_PROCESS_COUNT, SandboxState, ScratchOptions, run_init},
    landlock::{LandlockRules, PathAccess, ScopeReach},
    level::IsolationLevel,
    limits::RunLimits,
    masked_proc,
    netns_check::NetnsCheck,
    plan::{NetworkMode, SANDBOX_HOME, SandboxPlan, WorkspacePlan},
    proc_masks, proxy_listener, quotas,
    run_meter::RunMeter,
    stage::{Stage, StageFailure, at_stage},
    wire::{
        SLOT_COMMAND_BYTES, SandboxIdentity, SandboxReport, SetupReply, SlotCommand, receive_bytes,
        send, send_bytes, send_reply,
    },
};
use crate::daemon::sys::{
    Errno,
    bpf::Instruction,
    process::{exit_now, wait_any},
    process_arena::ProcessArena,
    set_process_name, signal,
};

/// Sandboxes of one slot that can exist at a time: the live one, and those that are still being
/// torn down.
const MAX_LIVE_SANDBOXES: usize = 4;
/// Signals that may be queued for a run's processes, timers included.
const MAX_QUEUED_SIGNALS: u64 = 4096;
/// What comes with a sandbox's pidfd; at L1, the path of its directory follows.
pub(super) const SANDBOX_TOKEN: &[u8] = b"t";
/// Most bytes of it.
pub(super) const MAX_TOKEN_BYTES: usize = 256;

/// Runs as a slot keeper. Tells the daemon whether it is ready, then makes a sandbox each time it
/// is asked, until the daemon closes the socket.
pub(super) fn run(
    socket: BorrowedFd<'_>,
    plan: &SandboxPlan,
    workspace: &WorkspacePlan,
    level: IsolationLevel,
    identity: SandboxIdentity,
    filter: Vec<Instruction>,
) -> ! {
    set_process_name(c"jig-slot");
    let mut berths: Vec<ProcessArena<SandboxState>> = Vec::new();
    let mut latest = None;
    let keeps_home = workspace.home_bind.is_some();
    let own_file_systems: &[&str] =
        if keeps_home { &["/tmp", "/dev/shm"] } else { &["/tmp", "/dev/shm", SANDBOX_HOME] };
    let prepared = prepare_blueprint(plan, workspace, level, identity, filter)
        .and_then(|blueprint| Ok((blueprint, make_proxy_listener(plan.network)?)))
        .and_then(|made| Ok((made, NetnsCheck::for_slot(plan.network, level)?)));
    let (blueprint, listener, vacancy) = match prepared {
        Ok(((blueprint, listener), vacancy)) => (Box::leak(Box::new(blueprint)), listener, vacancy),
        Err(failure) => {
            let _gone = send(socket, &SetupReply::Failed(failure), &[]);
            exit_now(1);
        }
    };
    let ready = SetupReply::Done { workspace: workspace.index, identity };
    let fds: Vec<BorrowedFd<'_>> = listener.iter().map(AsFd::as_fd).collect();
    if send_reply(socket, &ready, &fds, Stage::NetworkNamespace).is_err() {
        exit_now(0);
    }
    // From here on it is the daemon's alone.
    drop(listener);
    loop {
        let (mut order, mut control) = ([0; SLOT_COMMAND_BYTES], None);
        let received = match receive_bytes(socket, &mut order, |fd| control = Some(fd)) {
            Ok(received) if received.length > 0 => received.length,
            _ => exit_now(0),
        };
        let order = SlotCommand::decode(order.get(..received).unwrap_or_default());
        let sent = match (order, control) {
            (Some(SlotCommand::MakeSandbox { .. }), Some(_)) if !vacancy.wait_until_clear() => {
                send_bytes(socket, &SandboxReport::NetnsInUse.encode(), &[])
            }
            (Some(SlotCommand::MakeSandbox { tmp_bytes, tmp_inodes }), Some(control)) => {
                let made = scratch_options(tmp_bytes, tmp_inodes, identity, keeps_home)
                    .and_then(|scratch| make_sandbox(&mut berths, blueprint, scratch, control));
                let made = made.map(|(pidfd, init)| {
                    latest = Some(RunMeter::new(newest_child().unwrap_or(init)));
                    pidfd
                });
                send_sandbox(socket, made)
            }
            (Some(SlotCommand::Measure(bounds)), None) => {
                let measure = latest.as_mut();
                let measure = measure.map(|meter| meter.measure(&bounds, own_file_systems));
                let report = SandboxReport::Measured(measure.unwrap_or_default());
                send_bytes(socket, &report.encode(), &[])
            }
            _ => exit_now(1),
        };
        if sent.is_err() {
            exit_now(0);
        }
    }
}

/// The process that this one made last, as its `/proc` counts. At L2 that is the daemon's `/proc`,
/// which does not count as the process namespace of this process does.
fn newest_child() -> Option<Pid> {
    let children = fs::read_to_string("/proc/thread-self/children").ok()?;
    let newest = children.split_ascii_whitespace().next_back()?;
    newest.parse().ok().and_then(Pid::from_raw)
}

/// Sends a sandbox to the daemon, or why there is none.
fn send_sandbox(socket: BorrowedFd<'_>, made: Result<OwnedFd, StageFailure>) -> Result<(), Errno> {
    let failed = |stage, errno| {
        let report = SandboxReport::Failed { stage, errno };
        send_bytes(socket, &report.encode(), &[])
    };
    match made {
        // Commands can make this fail, see `send_answer`. Without descriptors it cannot.
        Ok(pidfd) => send_bytes(socket, SANDBOX_TOKEN, &[pidfd.as_fd()])
            .or_else(|errno| failed(Stage::RunNamespaces, errno)),
        Err(failure) => failed(failure.stage, failure.wire_errno()),
    }
}

/// Options of a sandbox's own file systems.
fn scratch_options(
    tmp_bytes: u64,
    tmp_inodes: u64,
    identity: SandboxIdentity,
    keeps_home: bool,
) -> Result<ScratchOptions, StageFailure> {
    let SandboxIdentity { uid, gid, .. } = identity;
    let options = |mode: &str| {
        let text =
            format!("size={tmp_bytes},nr_inodes={tmp_inodes},mode={mode},uid={uid},gid={gid}");
        MountOptions::new(&text).ok_or_else(|| StageFailure::other(Stage::MountScratch, "options"))
    };
    Ok(ScratchOptions {
        shared_options: options("1777")?,
        home_options: (!keeps_home).then(|| options("0755")).transpose()?,
    })
}

/// What the daemon is to accept connections from, where its runs reach it.
fn make_proxy_listener(network: NetworkMode) -> Result<Option<OwnedFd>, StageFailure> {
    match network {
        NetworkMode::Proxy => proxy_listener::bind_proxy_listener().map(Some),
        NetworkMode::None | NetworkMode::Host => Ok(None),
    }
}

/// Becomes the user of the slot's own user namespace and prepares what its sandboxes are built
/// from.
fn prepare_blueprint(
    plan: &SandboxPlan,
    workspace: &WorkspacePlan,
    level: IsolationLevel,
    identity: SandboxIdentity,
    filter: Vec<Instruction>,
) -> Result<Blueprint, StageFailure> {
    let in_stage = |stage| move |errno: Errno| StageFailure::from_errno(stage, errno, "slot");
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(in_stage(Stage::SlotNamespace))?;
    signal::disable_auto_reap().map_err(in_stage(Stage::SlotNamespace))?;
    // While a process is not dumpable, its files in /proc belong to root and it could not write its
    // own maps.
    set_dumpable_behavior(DumpableBehavior::Dumpable).map_err(in_stage(Stage::SlotNamespace))?;
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
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(in_stage(Stage::SlotNamespace))?;
    if level == IsolationLevel::L3 {
        quotas::set_quotas()?;
    } else {
        masked_proc::make_read_only()?;
    }
    capabilities::forbid_privilege_gain().map_err(in_stage(Stage::Capabilities))?;
    let limits = plan.limits;
    set_limits(limits).map_err(in_stage(Stage::ResourceLimits))?;
    let writable =
        workspace.binds.iter().filter(|bind| bind.writable).map(|bind| bind.destination.clone());
    let paths =
        [("/", PathAccess::Read), ("/proc", PathAccess::Devices), ("/dev", PathAccess::Devices)]
            .into_iter()
            .chain([
                ("/dev/shm", PathAccess::Write),
                ("/tmp", PathAccess::Write),
                (SANDBOX_HOME, PathAccess::Write),
            ])
            .map(|(path, access)| (path.into(), access))
            .chain([(workspace.mount_path.clone(), PathAccess::Write)])
            .chain(writable.map(|path| (path, PathAccess::Write)))
            .map(|(path, access)| {
                let path = CString::new(path.into_os_string().into_encoded_bytes());
                path.map(|path| (path, access))
                    .map_err(|_| StageFailure::other(Stage::Landlock, "a path holds a NUL"))
            })
            .collect::<Result<Vec<_>, _>>()?;
    let masks = (level == IsolationLevel::L3).then(proc_masks::readable_masks);
    let (masked_directories, masked_files) =
        masks.into_iter().flatten().partition::<Vec<_>, _>(|(_, directory)| *directory);
    let names =
        |masks: Vec<(&'static CStr, bool)>| masks.into_iter().map(|(path, _)| path).collect();
    Ok(Blueprint {
        level,
        guarded_targets: if level == IsolationLevel::L3 {
            GuardedTargets::default()
        } else {
            GuardedTargets::collect(plan, level)?
        },
        masked_files: names(masked_files),
        masked_directories: names(masked_directories),
        other_process_count: OWN_PROCESS_COUNT,
        limits,
        rules: LandlockRules::new(plan.landlock_abi, ScopeReach::SameDomain, paths),
        filter,
        network: plan.network,
        slot_pidfd: Some(
            pidfd_open(getpid(), PidfdFlags::empty()).map_err(in_stage(Stage::SlotNamespace))?,
        ),
    })
}

/// Sets the limits that sandboxes inherit. Their init sets the one on open files, which must not be
/// the slot keeper's too: what a process may open bounds what it may send while its user has
/// descriptors in flight (unix(7), ETOOMANYREFS), and commands fill that up to their own limit. The
/// one on processes is set last of all, by the command's own process: that it can be is seen here.
pub(super) fn set_limits(limits: RunLimits) -> Result<(), Errno> {
    let processes = getrlimit(Resource::Nproc).maximum;
    if processes.is_some_and(|most| most < u64::from(limits.processes)) {
        return Err(Errno::PERM);
    }
    let same = |value: u64| Rlimit { current: Some(value), maximum: Some(value) };
    // A core pattern that pipes to a program is run whatever the limit, but for 1 (fs/coredump.c).
    setrlimit(Resource::Core, same(1))?;
    setrlimit(Resource::Fsize, same(limits.file_size_bytes))?;
    // What the daemon may do about its turns, commands may not.
    for turns in [Resource::Nice, Resource::Rtprio] {
        setrlimit(turns, same(0))?;
    }
    // Counted by user over all runs, like the quotas above.
    let signals = getrlimit(Resource::Sigpending).current.unwrap_or(u64::MAX);
    setrlimit(Resource::Sigpending, same(signals.min(MAX_QUEUED_SIGNALS)))
}

fn make_sandbox(
    berths: &mut Vec<ProcessArena<SandboxState>>,
    blueprint: &'static Blueprint,
    scratch: ScratchOptions,
    control: OwnedFd,
) -> Result<(OwnedFd, Pid), StageFailure> {
    let in_stage = |errno| at_stage(Stage::RunNamespaces, "slot")(errno);
    while let Ok(Some((ended, _))) = wait(WaitOptions::NOHANG) {
        berths.iter_mut().for_each(|berth| berth.on_child_ended(ended));
    }
    let free = loop {
        if let Some(free) = berths.iter().position(|berth| !berth.is_occupied()) {
            break free;
        }
        if berths.len() < MAX_LIVE_SANDBOXES {
            berths.push(ProcessArena::new().map_err(in_stage)?);
            continue;
        }
        let (ended, _) = wait_any().map_err(in_stage)?;
        berths.iter_mut().for_each(|berth| berth.on_child_ended(ended));
    };
    let berth = berths
        .get_mut(free)
        .ok_or_else(|| StageFailure::other(Stage::RunNamespaces, "no berth"))?;
    let namespaces = libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWIPC;
    berth
        .start(
            SandboxState::new(blueprint, scratch, control.as_raw_fd()),
            run_init,
            command_process::run,
            namespaces,
        )
        .map_err(in_stage)
}
