//! The keeper: starts the launcher, and restarts it if it dies.
//!
//! It is a process of its own, executed before the daemon has threads, because the daemon must
//! never fork. It stays outside every namespace made here and keeps the privileges that the daemon
//! drops. It does what needs them: changing to another user, mapping the owner of a workspace to
//! that user, and lowering CPU shares. It dies with the daemon.

use std::{
    fs,
    os::fd::{AsFd, BorrowedFd, IntoRawFd as _, OwnedFd},
};

use rustix::{
    mount::{OpenTreeFlags, open_tree},
    process::{
        DumpableBehavior, Pid, Signal, set_dumpable_behavior, set_parent_process_death_signal,
        setsid,
    },
    thread::set_thread_groups,
};

use super::{
    id_map::{self, DirectoryOwner},
    identity::{self, KeeperPrivileges},
    launcher,
    launcher_process::LauncherProcess,
    masked_proc, no_namespaces,
    plan::SandboxPlan,
    priority, project_limits, root, run_meter,
    stage::{Stage, StageFailure, at_stage},
    wire::{
        KeeperRequest, SandboxIdentity, SetupReply, StartTemplateRequest, TemplateSpec, receive,
        send, send_reply, seqpacket_pair,
    },
    workspace_source::WorkspaceSource,
};
use crate::daemon::sys::{
    fd::close_all_except,
    mount::{attribute, set_attributes},
    process::{Fork, Namespaces, SingleThreaded, exit_now, fork},
    set_process_name, signal,
};

/// The `argv[0]` that makes the binary run as the keeper.
pub(crate) const KEEPER_ARG0: &str = "jig-keeper";

const LAUNCHER_NAMESPACES: i32 = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID;

struct KeeperState {
    plan: SandboxPlan,
    /// The workspaces of the plan, in its order.
    workspaces: Vec<WorkspaceSource>,
    /// The directory that holds created workspaces, with the plan that they have in common.
    created_workspaces: Option<WorkspaceSource>,
    privileges: KeeperPrivileges,
    single_threaded: SingleThreaded,
    launcher: Option<LauncherProcess>,
}

/// A template that was started.
struct StartedTemplate {
    /// The user that its sandboxes run as.
    identity: SandboxIdentity,
    /// The daemon's end of its socket.
    socket: OwnedFd,
    pidfd: OwnedFd,
}

/// Runs as the keeper until the daemon is gone. Standard input is the socket to the daemon.
pub(crate) fn run() -> ! {
    set_process_name(c"jig-keeper");
    let socket = std::io::stdin();
    match prepare(&socket) {
        Ok(mut keeper) => keeper.serve(socket.as_fd()),
        Err(failure) => {
            let _gone = send(&socket, &SetupReply::Failed(failure), &[]);
            exit_now(1)
        }
    }
}

fn prepare(socket: &impl AsFd) -> Result<KeeperState, StageFailure> {
    let stage = Stage::Launcher;
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(at_stage(stage, "setting the death signal"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(at_stage(stage, "setting the dumpable flag"))?;
    signal::reset_all()
        .and_then(|()| signal::ignore_termination_signals())
        // The launcher inherits this. Templates end when a workspace is idle, and there may not be a
        // request afterwards.
        .and_then(|()| signal::enable_auto_reap())
        .map_err(at_stage(stage, "resetting signals"))?;
    // A terminal's Ctrl-C is for the daemon only.
    setsid().map_err(at_stage(stage, "starting a session"))?;
    let single_threaded =
        SingleThreaded::check().map_err(|error| StageFailure::other(stage, error.to_string()))?;
    run_meter::check_process_tree_is_readable()?;

    let (message, directories) = receive(socket)
        .map_err(at_stage(stage, "receiving the plan"))?
        .ok_or_else(|| StageFailure::other(stage, "the daemon is gone"))?;
    let KeeperRequest::Plan(mut plan) = message else {
        return Err(StageFailure::other(stage, "the plan must come first"));
    };
    plan.daemon_processes.push(std::process::id());
    // Resolved once: a symbolic link within a workspace could change between runs.
    plan.temporary_directory =
        fs::canonicalize(&plan.temporary_directory).unwrap_or(plan.temporary_directory);
    if directories.len() != plan.workspaces.len() + usize::from(plan.created_workspaces.is_some()) {
        return Err(StageFailure::other(stage, "each workspace must come with its directory"));
    }

    let mut directories = directories.into_iter();
    let first_id = plan.workspaces.first().map_or(0, |first| first.sandbox_id);
    let privileges = KeeperPrivileges::detect(first_id)
        .map_err(|error| StageFailure::other(stage, error.to_string()))?;
    for workspace in &mut plan.workspaces {
        // A container's user namespace may have fewer ids than there are workspaces.
        if !id_map::id_exists(workspace.sandbox_id) {
            workspace.sandbox_id = first_id;
        }
    }
    if let Some(created) = &mut plan.created_workspaces {
        created.sandbox_ids.retain(|id| id_map::id_exists(*id));
        created.model.sandbox_id = created.sandbox_ids.first().copied().unwrap_or(first_id);
    }
    if privileges.can_set_user {
        // Sandboxes would inherit supplementary groups. An ordinary user cannot drop its own.
        set_thread_groups(&[])
            .map_err(at_stage(Stage::SetUser, "dropping supplementary groups"))?;
    }

    let workspaces = plan.workspaces.iter().zip(directories.by_ref());
    let workspaces = workspaces
        .map(|(plan, directory)| WorkspaceSource { plan: plan.clone(), directory })
        .collect();
    let created_workspaces = plan
        .created_workspaces
        .as_ref()
        .zip(directories.next())
        .map(|(created, directory)| WorkspaceSource { plan: created.model.clone(), directory });

    Ok(KeeperState {
        plan: *plan,
        workspaces,
        created_workspaces,
        privileges,
        single_threaded,
        launcher: None,
    })
}

// === impl KeeperState ===

impl KeeperState {
    /// Serves the daemon's requests until the daemon is gone.
    fn serve(&mut self, daemon: BorrowedFd<'_>) -> ! {
        loop {
            let spec = match receive(daemon) {
                Ok(Some((KeeperRequest::StartTemplate(spec), _))) => spec,
                Ok(Some((KeeperRequest::LowerCpuShare(command), _))) => {
                    if let Some(command) = Pid::from_raw(command) {
                        priority::lower_share_of_long_run(command);
                    }
                    continue;
                }
                Ok(Some((KeeperRequest::LimitProject(limit), _))) => {
                    let plan = self.plan.created_workspaces.as_ref();
                    let source = self.created_workspaces.as_ref().zip(plan);
                    if send(daemon, &project_limits::apply(limit, source), &[]).is_ok() {
                        continue;
                    }
                    exit_now(0)
                }
                // The launcher's death signal ends it with this process.
                _ => exit_now(0),
            };

            let workspace = spec.workspace;
            let sent = match self.start_template(&spec) {
                Ok(StartedTemplate { identity, socket, pidfd }) => {
                    let reply = SetupReply::Done { workspace, identity };
                    let fds = [socket.as_fd(), pidfd.as_fd()];
                    send_reply(daemon, &reply, &fds, Stage::Launcher)
                }
                Err(failure) => send(daemon, &SetupReply::Failed(failure), &[]),
            };
            if sent.is_err() {
                exit_now(0);
            }
        }
    }

    /// Starts a template. Starts the launcher first if it does not run.
    fn start_template(&mut self, spec: &TemplateSpec) -> Result<StartedTemplate, StageFailure> {
        let opened;
        let source = match &spec.created {
            Some(created) => {
                let parent = self.created_workspaces.as_ref().ok_or_else(unknown_workspace)?;
                let plans = self.plan.created_workspaces.as_ref().ok_or_else(unknown_workspace)?;
                let number = spec.workspace.max(self.workspaces.len());
                opened = WorkspaceSource::open_created(parent, plans.plan_of(number, created))?;
                &opened
            }
            None => self.workspaces.get(spec.workspace).ok_or_else(unknown_workspace)?,
        };
        if !spec.level.has_namespaces() {
            return self.start_no_namespaces_template(source);
        }

        if self.launcher.as_ref().is_none_or(|launcher| !launcher.is_alive()) {
            self.launcher = None;
            self.launcher = Some(self.start_launcher()?);
        }

        let launcher = self.launcher.as_ref().ok_or_else(unknown_workspace)?;
        let identity = match &spec.created {
            Some(_) => self.created_identity(launcher, source)?,
            None => {
                launcher.identities.get(spec.workspace).ok_or_else(unknown_workspace)?.clone()?
            }
        };
        let trees = if self.privileges.can_map_owners {
            self.open_trees(source, identity)?
        } else {
            Vec::new()
        };

        let (daemon, template) =
            seqpacket_pair().map_err(at_stage(Stage::Launcher, "creating a socket pair"))?;
        let request = StartTemplateRequest {
            workspace: source.plan.clone(),
            level: spec.level,
            identity,
            has_trees: self.privileges.can_map_owners,
        };
        let fds: Vec<BorrowedFd<'_>> =
            std::iter::once(template.as_fd()).chain(trees.iter().map(AsFd::as_fd)).collect();
        send(&launcher.socket, &request, &fds)
            .map_err(at_stage(Stage::Launcher, "requesting a template"))?;

        match receive(&launcher.socket).map_err(at_stage(Stage::Launcher, "receiving a reply"))? {
            Some((SetupReply::Done { identity, .. }, fds)) => {
                let pidfd = fds.into_iter().next();
                let missing = || StageFailure::other(Stage::Launcher, "a reply without a pidfd");
                Ok(StartedTemplate { identity, socket: daemon, pidfd: pidfd.ok_or_else(missing)? })
            }
            Some((SetupReply::Failed(failure), _)) => Err(failure),
            None => Err(StageFailure::other(Stage::Launcher, "the launcher died")),
        }
    }

    /// The user that the sandboxes of a created workspace run as.
    fn created_identity(
        &self,
        launcher: &LauncherProcess,
        source: &WorkspaceSource,
    ) -> Result<SandboxIdentity, StageFailure> {
        let common = launcher.created_identity.clone().ok_or_else(unknown_workspace)??;
        if common.id_mapped {
            let id = source.plan.sandbox_id;
            return Ok(SandboxIdentity { id_mapped: true, ..SandboxIdentity::unmapped(id, id) });
        }

        let parent = self.created_workspaces.as_ref().ok_or_else(unknown_workspace)?;
        if source.owner()? != parent.owner()? && self.privileges.can_set_user {
            let text = "the workspace belongs to another user than the directory that holds it";
            return Err(StageFailure::other(Stage::WorkspaceOwner, text));
        }
        Ok(common)
    }

    /// Starts the template of a workspace at L1.
    fn start_no_namespaces_template(
        &self,
        source: &WorkspaceSource,
    ) -> Result<StartedTemplate, StageFailure> {
        let (owner, id) = (source.owner()?, source.plan.sandbox_id);
        let identity = identity::choose_identity_without_namespaces(self.privileges, id, owner)?;

        let (daemon, template) =
            seqpacket_pair().map_err(at_stage(Stage::NoNamespaces, "creating a socket pair"))?;
        match fork(&self.single_threaded, 0)
            .map_err(at_stage(Stage::NoNamespaces, "cloning the L1 template"))?
        {
            Fork::Parent { pidfd, .. } => Ok(StartedTemplate { identity, socket: daemon, pidfd }),
            Fork::Child => no_namespaces::template::run(
                template,
                &self.plan,
                &source.plan,
                identity,
                &self.single_threaded.for_fork(),
            ),
        }
    }

    fn start_launcher(&self) -> Result<LauncherProcess, StageFailure> {
        let identities: Vec<_> =
            self.workspaces.iter().map(|source| self.sandbox_identity(source)).collect();
        let created_identity =
            self.created_workspaces.as_ref().map(|source| self.sandbox_identity(source));
        let Some(first) = identities.iter().flatten().next().copied() else {
            let none = || StageFailure::other(Stage::Identity, "no workspace");
            return Err(identities.into_iter().find_map(Result::err).unwrap_or_else(none));
        };

        // A process with CAP_SYS_ADMIN can mount a fresh /proc where the old one is masked, but not
        // from a user namespace below. The launcher then passes through intermediate namespaces.
        let needs_fresh_proc = self.privileges.can_map_owners && masked_proc::is_masked()?;
        let namespaces =
            if needs_fresh_proc { launcher::INTERMEDIATE_NAMESPACES } else { LAUNCHER_NAMESPACES };
        let (socket, launcher_socket) =
            seqpacket_pair().map_err(at_stage(Stage::Launcher, "creating a socket pair"))?;
        let (process, pidfd) = match self.fork_dumpable(namespaces)? {
            Fork::Parent { child, pidfd } => (child, pidfd),
            Fork::Child => {
                drop(socket);
                self.become_launcher(launcher_socket, first, needs_fresh_proc);
            }
        };
        drop(launcher_socket);

        let launcher = LauncherProcess { socket, pidfd, process, identities, created_identity };
        if needs_fresh_proc {
            launcher.receive_reply()?;
        }
        let created = self.plan.created_workspaces.as_ref();
        launcher.write_id_maps(created.map_or(&[], |created| &created.sandbox_ids))?;
        send(&launcher.socket, &(), &[])
            .map_err(at_stage(Stage::Launcher, "starting the launcher"))?;
        launcher.receive_reply()?;
        Ok(launcher)
    }

    /// Forks a child that is dumpable, so that the keeper can write the child's id maps: the files
    /// in `/proc` of a process that is not dumpable belong to root.
    fn fork_dumpable(&self, namespaces: Namespaces) -> Result<Fork, StageFailure> {
        let set_dumpable = |behavior| {
            set_dumpable_behavior(behavior)
                .map_err(at_stage(Stage::Launcher, "setting the dumpable flag"))
        };
        set_dumpable(DumpableBehavior::Dumpable)?;
        let forked = fork(&self.single_threaded, namespaces);
        if !matches!(forked, Ok(Fork::Child)) {
            set_dumpable(DumpableBehavior::NotDumpable)?;
        }
        forked.map_err(at_stage(Stage::UserNamespace, "cloning the launcher"))
    }

    /// Continues as the launcher, in the child that [`Self::start_launcher`] forked.
    fn become_launcher(
        &self,
        socket: OwnedFd,
        identity: SandboxIdentity,
        needs_fresh_proc: bool,
    ) -> ! {
        if needs_fresh_proc {
            let entered = launcher::enter_intermediate_namespaces();
            let failed = entered.is_err();
            let reply = entered
                .map_or_else(SetupReply::Failed, |()| SetupReply::Done { workspace: 0, identity });
            if send(&socket, &reply, &[]).is_err() || failed {
                exit_now(1);
            }
        }

        // The keeper sends one message when it has written the id maps. Nothing works before that.
        match receive::<()>(&socket) {
            Ok(Some(_)) => {}
            _ => exit_now(0),
        }
        if set_dumpable_behavior(DumpableBehavior::NotDumpable).is_err() {
            exit_now(1);
        }
        match close_all_except(socket.into_raw_fd()) {
            Ok(socket) => {
                launcher::run(socket, &self.plan, identity, &self.single_threaded.for_fork())
            }
            Err(_) => exit_now(1),
        }
    }

    /// The user that the sandboxes of a workspace run as.
    fn sandbox_identity(&self, source: &WorkspaceSource) -> Result<SandboxIdentity, StageFailure> {
        let (owner, id) = (source.owner()?, source.plan.sandbox_id);
        let identity = identity::choose_identity(self.privileges, id, owner, || {
            self.open_workspace(source, Some(id)).map(drop)
        })?;

        // In all other cases the template, which runs as the commands' user, opens the binds.
        let can_open_persistent =
            self.privileges.can_map_owners || self.privileges.is_user(identity.host_ids.0);
        if let Some(stage) = source.plan.persistent.stage().filter(|_| !can_open_persistent) {
            let text = format!(
                "commands run as uid {}, which cannot enter the state directory: start the daemon with CAP_SYS_ADMIN, or set home and tmp to \"ephemeral\"",
                identity.uid
            );
            return Err(StageFailure::other(stage, text));
        }
        Ok(identity)
    }

    /// Opens the mount trees of a workspace and its binds, with owners mapped. The launcher does
    /// not have the privileges for this.
    fn open_trees(
        &self,
        source: &WorkspaceSource,
        identity: SandboxIdentity,
    ) -> Result<Vec<OwnedFd>, StageFailure> {
        let map_to = identity.id_mapped.then_some(identity.uid);
        let mut trees = vec![self.open_workspace(source, map_to)?];

        for bind in source.plan.all_binds() {
            let name = bind.source.display().to_string();
            let tree = root::open_detached(&bind.source)?;
            root::check_source_identity(&bind.source, bind.file_identity, &tree)?;

            let owner =
                DirectoryOwner::of(tree.as_fd()).map_err(at_stage(Stage::OpenSource, &name))?;
            let stage = bind.persistent_stage(&source.plan);
            if let Some(stage) = stage.filter(|_| map_to.is_none() && owner.uid != identity.uid) {
                let text = format!(
                    "{name} belongs to uid {}, but commands run as uid {uid}: change its owner (chown -R {uid} {name}), or remove it",
                    owner.uid,
                    uid = identity.uid
                );
                return Err(StageFailure::other(stage, text));
            }

            let map = if bind.writable { self.owner_map(owner, map_to)? } else { None };
            set_attributes(
                tree.as_fd(),
                root::bind_attributes(bind),
                map.as_ref().map(AsFd::as_fd),
            )
            .map_err(at_stage(Stage::MapOwner, &name))?;
            trees.push(tree);
        }
        Ok(trees)
    }

    fn open_workspace(
        &self,
        source: &WorkspaceSource,
        map_to: Option<u32>,
    ) -> Result<OwnedFd, StageFailure> {
        let plan = &source.plan;
        let name = plan.path.display().to_string();
        root::refuse_host_revealing_mounts(&plan.path)?;

        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::AT_EMPTY_PATH;
        let tree =
            open_tree(&source.directory, "", flags).map_err(at_stage(Stage::OpenSource, &name))?;
        root::check_source_identity(&plan.path, plan.file_identity, &tree)?;

        let owner = DirectoryOwner::of(tree.as_fd()).map_err(at_stage(Stage::OpenSource, &name))?;
        let map = self.owner_map(owner, map_to)?;
        set_attributes(
            tree.as_fd(),
            attribute::NOSUID | attribute::NODEV,
            map.as_ref().map(AsFd::as_fd),
        )
        .map_err(at_stage(Stage::MapOwner, &name))?;
        Ok(tree)
    }

    /// Makes a user namespace that maps `owner` to the sandboxes' user `map_to`. Returns `None` if
    /// they are the same or no mapping is wanted.
    fn owner_map(
        &self,
        owner: DirectoryOwner,
        map_to: Option<u32>,
    ) -> Result<Option<OwnedFd>, StageFailure> {
        match map_to {
            Some(id) if owner != (DirectoryOwner { uid: id, gid: id }) => {
                id_map::create_user_namespace(&self.single_threaded, owner, id).map(Some)
            }
            _ => Ok(None),
        }
    }
}

fn unknown_workspace() -> StageFailure {
    StageFailure::other(Stage::Launcher, "no such workspace")
}
