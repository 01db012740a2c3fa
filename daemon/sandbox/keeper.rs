//! The keeper: starts the launcher, and starts it again should it die.
//!
//! A process of its own, executed before the daemon has threads, because the daemon must never
//! fork. It stays outside every namespace made here, keeps the rights that the daemon gives up, and
//! does what needs them: becoming another user, mapping the owner of a workspace to that user, and
//! lowering shares of the CPUs. It dies with the daemon.

use std::{
    fs,
    os::fd::{AsFd, BorrowedFd, IntoRawFd as _, OwnedFd},
};

use rustix::{
    mount::{OpenTreeFlags, open_tree},
    process::{
        DumpableBehavior, Pid, Signal, WaitOptions, set_dumpable_behavior,
        set_parent_process_death_signal, setsid, waitpid,
    },
    thread::set_thread_groups,
};

use super::{
    id_map::{self, Owner},
    identity::{self, Rights},
    in_place, launcher, masked_proc,
    plan::{Plan, WorkspacePlan},
    priority, root,
    stage::{Failure, Stage, at},
    wire::{Answer, Identity, Order, StartTemplate, ToKeeper, pair, receive, send, send_answer},
};
use crate::daemon::sys::{
    fd::keep_only,
    mount::{attribute, set_attributes},
    name_process,
    process::{Fork, SingleThreaded, exit_now, fork},
    signal,
};

/// Name by which the binary knows that it is to be the keeper (`argv[0]`).
pub(crate) const ARG0: &str = "jig-launcher";

/// Namespaces that the launcher gets.
const LAUNCHER_NAMESPACES: i32 = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID;

/// What the keeper knows.
struct Keeper {
    plan: Plan,
    /// The workspaces' directories, as the daemon holds them.
    workspaces: Vec<OwnedFd>,
    /// What it may do.
    rights: Rights,
    proof: SingleThreaded,
    launcher: Option<Launcher>,
    /// Templates of workspaces whose commands stay in the daemon's namespaces.
    in_place: Vec<Pid>,
}

/// A running launcher.
struct Launcher {
    socket: OwnedFd,
    pidfd: OwnedFd,
    process: Pid,
    /// As whom the sandboxes of each workspace run.
    identities: Vec<Result<Identity, Failure>>,
}

/// Runs as the keeper, with the socket to the daemon as standard input, until the daemon is gone.
pub(crate) fn run() -> ! {
    name_process(c"jig-keeper");
    let socket = std::io::stdin();
    match prepare(&socket) {
        Ok(mut keeper) => keeper.serve(socket.as_fd()),
        Err(failure) => {
            let _gone = send(&socket, &Answer::Failed(failure), &[]);
            exit_now(1)
        }
    }
}

fn prepare(socket: &impl AsFd) -> Result<Keeper, Failure> {
    let stage = Stage::Launcher;
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(at(stage, "death signal"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(at(stage, "dumpable"))?;
    signal::reset_all()
        .and_then(|()| signal::outlive_the_daemons_signals())
        .map_err(at(stage, "signals"))?;
    // A terminal's Ctrl-C is meant for the daemon.
    setsid().map_err(at(stage, "session"))?;
    let proof =
        SingleThreaded::check().map_err(|error| Failure::other(stage, error.to_string()))?;
    let (message, workspaces) = receive(socket)
        .map_err(at(stage, "plan"))?
        .ok_or_else(|| Failure::other(stage, "the daemon is gone"))?;
    let ToKeeper::Plan(mut plan) = message else {
        return Err(Failure::other(stage, "the plan must come first"));
    };
    plan.processes.push(std::process::id());
    // A link to it that lies in a workspace could lead elsewhere by the next run.
    plan.temporary = fs::canonicalize(&plan.temporary).unwrap_or(plan.temporary);
    if workspaces.len() != plan.workspaces.len() {
        return Err(Failure::other(stage, "each workspace must come with its directory"));
    }
    let first = plan.workspaces.first().map_or(0, |first| first.sandbox_id);
    let rights = Rights::find(first).map_err(at(stage, "capabilities"))?;
    for workspace in &mut plan.workspaces {
        // In a container's user namespace there may be fewer ids than workspaces.
        if !id_map::exists(workspace.sandbox_id) {
            workspace.sandbox_id = first;
        }
    }
    if rights.become_others {
        // Supplementary groups would stay with every sandbox; an ordinary user cannot drop its own.
        set_thread_groups(&[]).map_err(at(Stage::SetUser, "groups"))?;
    }
    Ok(Keeper { plan, workspaces, rights, proof, launcher: None, in_place: Vec::new() })
}

// === impl Keeper ===

impl Keeper {
    fn serve(&mut self, daemon: BorrowedFd<'_>) -> ! {
        loop {
            let order = match receive(daemon) {
                Ok(Some((ToKeeper::Template(order), _))) => order,
                Ok(Some((ToKeeper::Lower(command), _))) => {
                    if let Some(command) = Pid::from_raw(command) {
                        priority::lower_session(command);
                    }
                    continue;
                }
                // The launcher's death signal ends it with this process.
                _ => exit_now(0),
            };
            let sent = match self.start_template(order) {
                Ok((identity, socket)) => {
                    let answer = Answer::Done { workspace: order.workspace, identity };
                    send_answer(daemon, &answer, &[socket.as_fd()], Stage::Launcher)
                }
                Err(failure) => send(daemon, &Answer::Failed(failure), &[]),
            };
            if sent.is_err() {
                exit_now(0);
            }
        }
    }

    /// Starts a template, and before it the launcher where it is not running. Answers the daemon's
    /// end of the template's socket.
    fn start_template(&mut self, order: Order) -> Result<(Identity, OwnedFd), Failure> {
        let Order { workspace, level } = order;
        if !level.has_namespaces() {
            return self.start_in_place(workspace);
        }
        if self.launcher.as_ref().is_none_or(|launcher| !launcher.is_alive()) {
            self.launcher = None;
            self.launcher = Some(self.start_launcher()?);
        }
        let malformed = || Failure::other(Stage::Launcher, "no such workspace");
        let launcher = self.launcher.as_ref().ok_or_else(malformed)?;
        let identity = launcher.identities.get(workspace).ok_or_else(malformed)?.clone()?;
        let trees =
            if self.rights.map_owners { self.open_trees(workspace, identity)? } else { Vec::new() };
        let (daemon, template) = pair().map_err(at(Stage::Launcher, "socket"))?;
        let order = StartTemplate { order, identity, with_trees: self.rights.map_owners };
        let fds: Vec<BorrowedFd<'_>> =
            std::iter::once(template.as_fd()).chain(trees.iter().map(AsFd::as_fd)).collect();
        send(&launcher.socket, &order, &fds).map_err(at(Stage::Launcher, "ordering a template"))?;
        match receive(&launcher.socket).map_err(at(Stage::Launcher, "answer"))? {
            Some((Answer::Done { identity, .. }, _)) => Ok((identity, daemon)),
            Some((Answer::Failed(failure), _)) => Err(failure),
            None => Err(Failure::other(Stage::Launcher, "it died")),
        }
    }

    /// Starts the template of a workspace whose commands stay in the daemon's namespaces.
    fn start_in_place(&mut self, workspace: usize) -> Result<(Identity, OwnedFd), Failure> {
        self.in_place
            .retain(|template| matches!(waitpid(Some(*template), WaitOptions::NOHANG), Ok(None)));
        let owner = self.owner(workspace)?;
        let id = self.workspace(workspace)?.sandbox_id;
        let identity = identity::choose_in_place(self.rights, id, owner)?;
        let (daemon, template) = pair().map_err(at(Stage::InPlace, "socket"))?;
        match fork(&self.proof, 0).map_err(at(Stage::InPlace, "clone"))? {
            Fork::Parent { child, .. } => {
                self.in_place.push(child);
                Ok((identity, daemon))
            }
            Fork::Child => in_place::template::run(
                template,
                &self.plan,
                self.workspace(workspace)?,
                identity,
                &self.proof.in_copy(),
            ),
        }
    }

    fn start_launcher(&self) -> Result<Launcher, Failure> {
        let identities: Vec<_> =
            (0..self.plan.workspaces.len()).map(|workspace| self.identify(workspace)).collect();
        let Some(first) = identities.iter().flatten().next().copied() else {
            let none = || Failure::other(Stage::Identity, "no workspace");
            return Err(identities.into_iter().find_map(Result::err).unwrap_or_else(none));
        };
        let (keeper, socket) = pair().map_err(at(Stage::Launcher, "socket"))?;
        // A masked /proc can be mounted afresh by who has CAP_SYS_ADMIN, but not from a user
        // namespace below.
        let antechamber = self.rights.map_owners && masked_proc::is_masked()?;
        let namespaces = if antechamber { launcher::ANTECHAMBER } else { LAUNCHER_NAMESPACES };
        // While a process is not dumpable, its files in /proc belong to root, and only root could
        // write the launcher's maps. The launcher inherits this from here.
        let dumpable =
            |behavior| set_dumpable_behavior(behavior).map_err(at(Stage::Launcher, "dumpable"));
        dumpable(DumpableBehavior::Dumpable)?;
        let forked = fork(&self.proof, namespaces);
        if !matches!(forked, Ok(Fork::Child)) {
            dumpable(DumpableBehavior::NotDumpable)?;
        }
        let (process, pidfd) = match forked.map_err(at(Stage::UserNamespace, "clone"))? {
            Fork::Parent { child, pidfd } => (child, pidfd),
            Fork::Child => {
                drop(keeper);
                if antechamber {
                    let entered = launcher::pass_antechamber();
                    let failed = entered.is_err();
                    let answer = entered.map_or_else(Answer::Failed, |()| Answer::Done {
                        workspace: 0,
                        identity: first,
                    });
                    if send(&socket, &answer, &[]).is_err() || failed {
                        exit_now(1);
                    }
                }
                // Its maps must be there before it does anything: the keeper sends one message when
                // they are.
                match receive::<()>(&socket) {
                    Ok(Some(_)) => {}
                    _ => exit_now(0),
                }
                if set_dumpable_behavior(DumpableBehavior::NotDumpable).is_err() {
                    exit_now(1);
                }
                match keep_only(socket.into_raw_fd()) {
                    Ok(socket) => launcher::run(socket, &self.plan, first, &self.proof.in_copy()),
                    Err(_) => exit_now(1),
                }
            }
        };
        drop(socket);
        let launcher = Launcher { socket: keeper, pidfd, process, identities };
        if antechamber {
            launcher.answer()?;
        }
        launcher.write_maps()?;
        send(&launcher.socket, &(), &[]).map_err(at(Stage::Launcher, "starting it"))?;
        launcher.answer()?;
        Ok(launcher)
    }

    /// As whom the sandboxes of a workspace run.
    fn identify(&self, workspace: usize) -> Result<Identity, Failure> {
        let id = self.workspace(workspace)?.sandbox_id;
        let owner = self.owner(workspace)?;
        let identity = identity::choose(self.rights, id, owner, || {
            self.open_workspace(workspace, Some(id)).map(drop)
        })?;
        // The others open what they bind themselves.
        let opens = self.rights.map_owners || self.rights.is(identity.outside.0);
        if !opens && self.workspace(workspace)?.keeps_home {
            let text = format!(
                "commands are user {}, who cannot enter the state directory, and without CAP_SYS_ADMIN the daemon cannot open the home directory there for them",
                identity.uid
            );
            return Err(Failure::other(Stage::KeptHome, text));
        }
        Ok(identity)
    }

    /// To whom a workspace belongs, or will when the daemon serves it.
    fn owner(&self, workspace: usize) -> Result<Owner, Failure> {
        let owner = Owner::of(self.directory(workspace)?)
            .map_err(at(Stage::Identity, "owner of the workspace"))?;
        let given_to = self.workspace(workspace)?.given_to;
        Ok(match given_to.filter(|_| owner.uid == 0) {
            Some(id) => Owner { uid: id, gid: id },
            None => owner,
        })
    }

    fn directory(&self, workspace: usize) -> Result<BorrowedFd<'_>, Failure> {
        self.workspaces
            .get(workspace)
            .map(AsFd::as_fd)
            .ok_or_else(|| Failure::other(Stage::Launcher, "no such workspace"))
    }

    fn workspace(&self, workspace: usize) -> Result<&WorkspacePlan, Failure> {
        self.plan
            .workspaces
            .get(workspace)
            .ok_or_else(|| Failure::other(Stage::Launcher, "no such workspace"))
    }

    /// Opens the trees of a workspace and its binds, owners mapped, with the rights that the
    /// launcher does not have.
    fn open_trees(&self, workspace: usize, identity: Identity) -> Result<Vec<OwnedFd>, Failure> {
        let map_to = identity.id_mapped.then_some(identity.uid);
        let mut trees = vec![self.open_workspace(workspace, map_to)?];
        let workspace = self.workspace(workspace)?;
        for bind in workspace.all_binds() {
            let name = bind.source.display().to_string();
            let tree = root::detached(&bind.source)?;
            root::check_identity(&bind.source, bind.identity, &tree)?;
            let owner = Owner::of(tree.as_fd()).map_err(at(Stage::OpenSource, &name))?;
            let is_home = workspace.kept_home.as_ref() == Some(bind);
            if is_home && map_to.is_none() && owner.uid != identity.uid {
                let text = format!(
                    "{name} belongs to user {}, and commands are user {}: give it to them (chown -R), or remove it",
                    owner.uid, identity.uid
                );
                return Err(Failure::other(Stage::KeptHome, text));
            }
            let map = if bind.writable { self.map(owner, map_to)? } else { None };
            set_attributes(
                tree.as_fd(),
                root::bind_attributes(bind),
                map.as_ref().map(AsFd::as_fd),
            )
            .map_err(at(Stage::MapOwner, &name))?;
            trees.push(tree);
        }
        Ok(trees)
    }

    fn open_workspace(&self, workspace: usize, map_to: Option<u32>) -> Result<OwnedFd, Failure> {
        let plan = self.workspace(workspace)?;
        let name = plan.path.display().to_string();
        root::refuse_revealing_mounts(&plan.path)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = open_tree(self.directory(workspace)?, "", flags)
            .map_err(at(Stage::OpenSource, &name))?;
        root::check_identity(&plan.path, plan.identity, &tree)?;
        let owner = Owner::of(tree.as_fd()).map_err(at(Stage::OpenSource, &name))?;
        let map = self.map(owner, map_to)?;
        set_attributes(
            tree.as_fd(),
            attribute::NOSUID | attribute::NODEV,
            map.as_ref().map(AsFd::as_fd),
        )
        .map_err(at(Stage::MapOwner, &name))?;
        Ok(tree)
    }

    /// A user namespace that maps `owner` to the sandboxes' user; nothing where they are the same,
    /// or no mapping is wanted.
    fn map(&self, owner: Owner, map_to: Option<u32>) -> Result<Option<OwnedFd>, Failure> {
        match map_to {
            Some(id) if owner != (Owner { uid: id, gid: id }) => {
                id_map::user_namespace(&self.proof, owner, id).map(Some)
            }
            _ => Ok(None),
        }
    }
}

// === impl Launcher ===

impl Launcher {
    fn is_alive(&self) -> bool {
        signal::send(self.pidfd.as_fd(), 0).is_ok()
            && matches!(waitpid(Some(self.process), WaitOptions::NOHANG), Ok(None))
    }

    /// Waits until it says that it has done what it is to do.
    fn answer(&self) -> Result<(), Failure> {
        match receive(&self.socket).map_err(at(Stage::Launcher, "answer"))? {
            Some((Answer::Done { .. }, _)) => Ok(()),
            Some((Answer::Failed(failure), _)) => Err(failure),
            None => Err(Failure::other(Stage::Launcher, "it died before it was ready")),
        }
    }

    /// Writes the launcher's maps: each user id that sandboxes run as, to what it is outside.
    fn write_maps(&self) -> Result<(), Failure> {
        let known = || self.identities.iter().flatten();
        let mut users: Vec<_> = known().map(|id| (id.uid, id.outside.0)).collect();
        let mut groups: Vec<_> = known().map(|id| (id.gid, id.outside.1)).collect();
        for ids in [&mut users, &mut groups] {
            ids.sort_unstable();
            ids.dedup();
        }
        let process = self.process.as_raw_nonzero();
        for (file, text) in [
            ("setgroups", "deny".to_owned()),
            ("uid_map", id_map::lines(&users)),
            ("gid_map", id_map::lines(&groups)),
        ] {
            id_map::write(&format!("/proc/{process}/{file}"), &text)?;
        }
        Ok(())
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // It may be dead already; then this only takes it from the process table.
        let _dead = signal::send(self.pidfd.as_fd(), libc::SIGKILL);
        // Without waiting: a process that hangs in the kernel would hold up its successor.
        let _reaped = waitpid(Some(self.process), WaitOptions::NOHANG);
    }
}
