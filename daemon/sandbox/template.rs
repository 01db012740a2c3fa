//! The template of a workspace: a process that has built the workspace's root and pivoted into it,
//! and that makes slots.
//!
//! It is process 1 of its own process namespace, so its end is the end of everything made from it.
//! It keeps one unmasked `/proc` mounted: the kernel lets a new user namespace mount a fresh
//! `/proc` only if a fully visible one is mounted already.

use std::{
    fs,
    mem::ManuallyDrop,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
};

use nix::sched::{CloneFlags, unshare};
use rustix::{
    fs::{Mode, OFlags, open},
    process::{
        DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal, setsid,
        umask,
    },
    system::sethostname,
    thread::{
        LinkNameSpaceType, move_into_link_name_space, set_no_new_privs, set_thread_res_gid,
        set_thread_res_uid,
    },
};

use super::{
    level::IsolationLevel,
    plan::{NetworkMode, SANDBOX_HOST_NAME, SandboxPlan, WorkspacePlan},
    quotas, root,
    seccomp::SeccompFilters,
    slot,
    stage::{Stage, StageFailure, at_stage},
    wire::{
        MakeSlotRequest, SandboxIdentity, SetupReply, receive, send, send_reply, seqpacket_pair,
    },
};
use crate::daemon::sys::{
    Errno,
    bpf::load_filter,
    fd::close_all_except,
    from_nix,
    marked_receive::ReceiveMark,
    network::bring_up_loopback,
    process::{Fork, SingleThreaded, exit_now, fork},
    set_process_name, signal,
};

/// Sysctls of a slot's network namespace. With the first three, no state of a run remains for the
/// next: no socket in TIME_WAIT, no metrics of old connections, no addresses to which TCP Fast Open
/// has failed. The last lets a command listen on any port, which is safe because the interface is its
/// own.
const NETWORK_SYSCTLS: &[(&str, &str)] = &[
    ("/proc/sys/net/ipv4/tcp_max_tw_buckets", "0"),
    ("/proc/sys/net/ipv4/tcp_no_metrics_save", "1"),
    ("/proc/sys/net/ipv4/tcp_fastopen", "0"),
    ("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0"),
];

struct TemplateState<'a> {
    plan: &'a SandboxPlan,
    workspace: &'a WorkspacePlan,
    level: IsolationLevel,
    identity: SandboxIdentity,
    filters: SeccompFilters,
    /// The template's own network namespace, in which nothing runs.
    own_network: OwnedFd,
    single_threaded: SingleThreaded,
}

/// Runs as a template: reports to the daemon that it is ready, then makes a slot for each request,
/// until the daemon closes the socket.
pub(super) fn run(
    socket: OwnedFd,
    plan: &SandboxPlan,
    workspace: &WorkspacePlan,
    level: IsolationLevel,
    identity: SandboxIdentity,
    trees: Vec<OwnedFd>,
    single_threaded: SingleThreaded,
) -> ! {
    set_process_name(c"jig-template");
    // From here on, only `close_all_except` closes it.
    let number = socket.as_raw_fd();
    let socket = ManuallyDrop::new(socket);
    if let Err(failure) = build_root(workspace, plan.network, level, identity, trees) {
        report_failure_and_exit(socket.as_fd(), failure);
    }

    let socket = match close_all_except(number) {
        Ok(socket) => socket,
        Err(errno) => report_failure_and_exit(
            socket.as_fd(),
            StageFailure::from_errno(
                Stage::TemplateNamespaces,
                errno,
                "closing inherited descriptors",
            ),
        ),
    };

    let template = match drop_privileges(plan, workspace, level, identity, single_threaded) {
        Ok(template) => template,
        Err(failure) => report_failure_and_exit(socket, failure),
    };
    // Reaps slot keepers that end, and orphans of theirs.
    if let Err(errno) = signal::enable_auto_reap() {
        let failure = StageFailure::from_errno(
            Stage::TemplateNamespaces,
            errno,
            "enabling automatic reaping",
        );
        report_failure_and_exit(socket, failure);
    }

    serve_slots(socket, workspace, identity, || template.make_slot())
}

/// Reports that the template is ready, then makes a slot for each request, until the daemon is gone.
pub(super) fn serve_slots(
    socket: BorrowedFd<'_>,
    workspace: &WorkspacePlan,
    identity: SandboxIdentity,
    make_slot: impl Fn() -> Result<OwnedFd, StageFailure>,
) -> ! {
    let ready = SetupReply::Done { workspace: workspace.index, identity };
    if send(socket, &ready, &[]).is_err() {
        exit_now(0);
    }

    loop {
        match receive::<MakeSlotRequest>(socket) {
            Ok(Some(_)) => {}
            _ => exit_now(0),
        }

        let sent = match make_slot() {
            Ok(slot) => send_reply(socket, &ready, &[slot.as_fd()], Stage::SlotNamespace),
            Err(failure) => send(socket, &SetupReply::Failed(failure), &[]),
        };
        if sent.is_err() {
            exit_now(0);
        }
    }
}

/// Reports why this process failed, and exits.
pub(super) fn report_failure_and_exit(socket: BorrowedFd<'_>, failure: StageFailure) -> ! {
    // A daemon that is gone needs no report.
    let _sent = send(socket, &SetupReply::Failed(failure), &[]);
    exit_now(1)
}

/// Changes to the sandboxes' user and builds their root.
fn build_root(
    workspace: &WorkspacePlan,
    network: NetworkMode,
    level: IsolationLevel,
    identity: SandboxIdentity,
    trees: Vec<OwnedFd>,
) -> Result<(), StageFailure> {
    // CPU shares of commands count within it: see `priority`.
    setsid().map_err(at_stage(Stage::TemplateNamespaces, "starting a session"))?;
    become_user(identity)?;
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(at_stage(Stage::TemplateNamespaces, "setting the death signal"))?;
    signal::reset_all()
        .and_then(|()| signal::ignore_termination_signals())
        .map_err(at_stage(Stage::TemplateNamespaces, "resetting signals"))?;
    umask(Mode::from_raw_mode(0o022));

    // When memory runs out, the kernel must kill runs first. Raising the score needs no privilege,
    // but while a process is not dumpable its files in /proc belong to root. `drop_privileges`
    // makes it not dumpable again.
    set_dumpable_behavior(DumpableBehavior::Dumpable)
        .map_err(at_stage(Stage::TemplateNamespaces, "setting the dumpable flag"))?;
    let _best_effort = fs::write("/proc/self/oom_score_adj", "1000");

    root::build_root(workspace, network, level, identity, trees)?;
    // Container engines' seccomp profiles refuse this. The probe checks the name.
    let _refused = sethostname(SANDBOX_HOST_NAME.as_bytes());
    replace_standard_streams()
}

/// Drops the privileges that making slots does not need.
fn drop_privileges<'a>(
    plan: &'a SandboxPlan,
    workspace: &'a WorkspacePlan,
    level: IsolationLevel,
    identity: SandboxIdentity,
    single_threaded: SingleThreaded,
) -> Result<TemplateState<'a>, StageFailure> {
    set_no_new_privs(true).map_err(at_stage(Stage::NoNewPrivileges, ""))?;
    quotas::limit_total_processes(plan.max_processes_of_all_runs)?;
    let mark =
        ReceiveMark::generate().map_err(at_stage(Stage::Seccomp, "making a random number"))?;
    let user = (identity.uid, identity.gid);
    let filters = SeccompFilters::new(plan.allow_ptrace, user, mark);
    load_filter(&filters.inherited).map_err(at_stage(Stage::Seccomp, "the inherited part"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(at_stage(Stage::TemplateNamespaces, "setting the dumpable flag"))?;
    let own_network = open_network_namespace()?;
    Ok(TemplateState { plan, workspace, level, identity, filters, own_network, single_threaded })
}

/// Changes to the user and group of the sandboxes. Ids are mapped one to one, so they are the same
/// inside and outside.
pub(super) fn become_user(identity: SandboxIdentity) -> Result<(), StageFailure> {
    let (uid, gid) =
        (rustix::fs::Uid::from_raw(identity.uid), rustix::fs::Gid::from_raw(identity.gid));
    set_thread_res_gid(gid, gid, gid).map_err(at_stage(Stage::SetUser, "setting the group id"))?;
    set_thread_res_uid(uid, uid, uid).map_err(at_stage(Stage::SetUser, "setting the user id"))
}

/// Replaces the standard streams by `/dev/null`: nothing of a sandbox may reach the daemon's
/// terminal or log.
pub(super) fn replace_standard_streams() -> Result<(), StageFailure> {
    let failed = |errno| StageFailure::from_errno(Stage::StandardStreams, errno, "/dev/null");
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    rustix::stdio::dup2_stdin(&null).map_err(failed)?;
    rustix::stdio::dup2_stdout(&null).map_err(failed)?;
    rustix::stdio::dup2_stderr(&null).map_err(failed)
}

fn open_network_namespace() -> Result<OwnedFd, StageFailure> {
    open("/proc/self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(at_stage(Stage::NetworkNamespace, "/proc/self/ns/net"))
}

impl TemplateState<'_> {
    /// Makes a slot: a network namespace, unless runs have the daemon's, and in it a slot keeper
    /// with its own user and mount namespace. Returns the daemon's end of the slot's socket.
    fn make_slot(&self) -> Result<OwnedFd, StageFailure> {
        let (daemon, keeper) =
            seqpacket_pair().map_err(at_stage(Stage::SlotNamespace, "creating a socket pair"))?;
        let network = match self.plan.network {
            NetworkMode::None | NetworkMode::Proxy => enter_new_network(self.level),
            // This process is in the daemon's network, whose settings are not ours to change.
            NetworkMode::Host => Ok(()),
        };

        let forked = network.and_then(|()| {
            fork(&self.single_threaded, libc::CLONE_NEWUSER | libc::CLONE_NEWNS)
                .map_err(at_stage(Stage::SlotNamespace, "cloning the slot keeper"))
        });
        if let Ok(Fork::Child) = forked {
            self.run_slot_keeper(keeper.as_raw_fd());
        }

        if self.plan.network != NetworkMode::Host {
            self.return_to_own_network()?;
        }
        forked.map(|_| daemon)
    }

    fn run_slot_keeper(&self, socket: i32) -> ! {
        match close_all_except(socket) {
            Ok(socket) => slot::run(
                socket,
                self.plan,
                self.workspace,
                self.level,
                self.identity,
                &self.filters,
            ),
            Err(_) => exit_now(1),
        }
    }

    fn return_to_own_network(&self) -> Result<(), StageFailure> {
        move_into_link_name_space(self.own_network.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(at_stage(
                Stage::NetworkNamespace,
                "returning to the previous network namespace",
            ))
    }
}

/// Moves this process into a new network namespace with only a loopback interface.
fn enter_new_network(level: IsolationLevel) -> Result<(), StageFailure> {
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(from_nix)
        .map_err(at_stage(Stage::NetworkNamespace, "unsharing the network namespace"))?;
    bring_up_loopback().map_err(at_stage(Stage::NetworkNamespace, "bringing up lo"))?;

    if !level.reuses_network_namespaces() {
        return Ok(()); // at L2 the settings cannot be written
    }
    for (path, value) in NETWORK_SYSCTLS {
        fs::write(path, value).map_err(|error| {
            StageFailure::from_errno(
                Stage::NetworkNamespace,
                Errno::from_io_error(&error).unwrap_or(Errno::IO),
                *path,
            )
        })?;
    }
    Ok(())
}
