//! The first two processes of a sandbox: its init, and the one that becomes the command.
//!
//! ```text
//! init (process 1)                      command's process (process 2)
//!   builds the sandbox
//!   starts process 2 ───────────────▶   says Ready
//!   waits                               receives the request
//!                                       setsid → stdio → cwd → limits → execve
//!   process 2 ended ◀────────────────   … runs …
//!   kills and reaps all others
//!   says Ended, and is gone
//! ```
//!
//! Both share the memory of the slot keeper that made them until the command is executed: nothing
//! here allocates, locks, panics or touches thread-local storage. Everything that does not depend
//! on the request is done before it comes.

use std::{
    convert::Infallible,
    ffi::CStr,
    os::fd::{AsFd as _, OwnedFd},
    sync::atomic::{AtomicI32, AtomicU32, Ordering},
};

use rustix::{
    fs::{Mode, OFlags, open},
    io::dup,
    mount::{MountFlags, mount, mount_bind},
    process::{Pid, Resource, Rlimit, chdir, getrlimit, ioctl_tiocsctty, setrlimit, setsid},
    pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt},
    stdio::{dup2_stderr, dup2_stdin, dup2_stdout},
    termios::{InputModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize},
    thread::{SecureComputingMode, secure_computing_mode},
};

use super::{
    canary::{self, Guarded},
    capabilities,
    image::{HEADER_BYTES, Header, TerminalSize, Wiring},
    landlock::Rules,
    level::Level,
    limits::{Limits, RESOURCES},
    plan::{HOME, Network},
    root::EMPTY,
    stage::Stage,
    wire::{Received, Report, receive_bytes, send_bytes},
};
use crate::daemon::sys::{
    Errno,
    bpf::{Instruction, load_filter},
    exec::ExecImage,
    fd::{keep_only, kept},
    memory::Cabin,
    name_process,
    process::{end_with, exit_now, kill_all, unshare, usage_of_children, wait_any},
    signal::install_relay,
};

/// What a sandbox is built from, prepared by its slot keeper.
#[derive(Debug)]
pub(super) struct Blueprint {
    /// The level of isolation that it gives.
    pub(super) level: Level,
    /// What commands must not reach although they see its name.
    pub(super) guarded: Guarded,
    /// Files of `/proc` that `/dev/null` covers.
    pub(super) masked_files: Vec<&'static CStr>,
    /// Directories of `/proc` that an empty one covers.
    pub(super) masked_directories: Vec<&'static CStr>,
    /// Processes that count beside the run's own.
    pub(super) other_processes: u64,
    /// Limits of the run, as far as its request does not lower them.
    pub(super) limits: Limits,
    /// Landlock rules.
    pub(super) rules: Rules,
    /// The part of the seccomp filter that closes what building needs.
    pub(super) filter: Vec<Instruction>,
    /// Network of the run, for the probe.
    pub(super) network: Network,
    /// Stands for the slot's keeper, with whom the init ends; none at L1, where it has no init.
    pub(super) slot: Option<OwnedFd>,
}

/// Options of the file systems that a run gets for itself (tmpfs(5)); none at L1.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Those of `/tmp` and `/dev/shm`.
    pub(super) shared: MountOptions,
    /// Those of the home directory; none where the workspace's is kept.
    pub(super) home: Option<MountOptions>,
}

/// Text for mount(2) that needs no memory of its own: what a sandbox's memory holds is never freed,
/// only overwritten.
#[derive(Debug)]
pub(super) struct MountOptions([u8; 128]);

impl Default for MountOptions {
    fn default() -> Self {
        Self([0; 128])
    }
}

impl MountOptions {
    /// Answers nothing for a text that is too long.
    pub(super) fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; 128];
        let (place, end) = bytes.split_at_mut_checked(text.len())?;
        place.copy_from_slice(text.as_bytes());
        (!end.is_empty() && !text.contains('\0')).then_some(Self(bytes))
    }

    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// What the two processes tell one another.
#[derive(Debug)]
pub(super) struct State {
    /// What to build.
    pub(super) blueprint: &'static Blueprint,
    /// Its own file systems.
    scratch: Scratch,
    /// Number of the socket to the daemon, as the init inherits it.
    pub(super) control: i32,
    /// The step that the command's process is at; 0 until it has a request.
    stage: AtomicU32,
    /// Why that step failed; 0 while it has not.
    errno: AtomicI32,
}

/// Processes that count in the slot's user namespace beside the command's: the slot's keeper and the
/// init.
pub(super) const PROCESSES_OF_OURS: u64 = 2;

/// A step that failed.
pub(super) struct Broken(pub(super) Stage, pub(super) Errno);

impl State {
    /// The state of a sandbox that is about to be built.
    pub(super) fn new(blueprint: &'static Blueprint, scratch: Scratch, control: i32) -> Self {
        Self {
            blueprint,
            scratch,
            control,
            stage: AtomicU32::new(0),
            errno: AtomicI32::new(0),
        }
    }
}

// === The init ===

/// Runs as process 1.
pub(super) fn run_init(cabin: &'static Cabin<State>) -> ! {
    name_process(c"jig-init");
    let state = &cabin.state;
    if let Err(Broken(stage, errno)) = build(state) {
        tell(Report::Failed { stage, errno });
        exit_now(1);
    }
    let command = match cabin.start_second() {
        Ok(command) => command,
        Err(errno) => {
            tell(Report::Failed {
                stage: Stage::CommandProcess,
                errno,
            });
            exit_now(1);
        }
    };
    see_through(cabin, command);
    exit_now(0)
}

/// Waits until the command has ended, ends whatever it left behind, and tells.
pub(super) fn see_through(cabin: &'static Cabin<State>, command: Pid) {
    let state = &cabin.state;
    let status = wait_for(command);
    let Some(stage) = Stage::from_number(state.stage.load(Ordering::Acquire)) else {
        return; // the daemon dropped the sandbox without a request
    };
    // Kill reaches everything in this process namespace but its init; at L1, everything in this
    // Landlock domain but the supervisor.
    let _none_left = kill_all(libc::SIGKILL);
    while wait_any().is_ok() {}
    cabin.unmap_image();
    tell(match state.errno.load(Ordering::Acquire) {
        0 => Report::Ended {
            status,
            usage: usage_of_children(),
        },
        errno => Report::NotStarted {
            stage,
            errno: Errno::from_raw_os_error(errno),
        },
    });
}

/// Waits until `command` has ended, reaping everybody else who ends meanwhile.
fn wait_for(command: Pid) -> i32 {
    loop {
        match wait_any() {
            Ok((ended, status)) if ended == command => return status,
            Ok(_) => {}
            Err(_) => return libc::SIGKILL, // cannot be: the command is our child and was not waited for
        }
    }
}

/// Builds the sandbox. The order matters: mounts need capabilities and come before Landlock, which
/// forbids them; seccomp comes last.
fn build(state: &State) -> Result<(), Broken> {
    let blueprint = state.blueprint;
    if let Some(slot) = &blueprint.slot {
        end_with(slot.as_fd()).map_err(|errno| Broken(Stage::RunNamespaces, errno))?;
    }
    keep_only(state.control).map_err(|errno| Broken(Stage::RunNamespaces, errno))?;
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(u64::from(blueprint.limits.open_files)),
            maximum: Some(u64::from(blueprint.limits.open_files_hard)),
        },
    )
    .map_err(|errno| Broken(Stage::ResourceLimits, errno))?;

    // At L2, the template's is the only one, and was made read-only by the slot's keeper.
    if blueprint.level == Level::L3 {
        let proc_flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount(c"proc", c"/proc", c"proc", proc_flags, None)
            .map_err(|errno| Broken(Stage::MountProc, errno))?;
    }
    for file in &blueprint.masked_files {
        mount_bind(c"/dev/null", *file).map_err(|errno| Broken(Stage::MaskProc, errno))?;
    }
    for directory in &blueprint.masked_directories {
        mount_bind(EMPTY, *directory).map_err(|errno| Broken(Stage::MaskProc, errno))?;
    }
    for (target, options) in [
        (c"/tmp", Some(&state.scratch.shared)),
        (c"/dev/shm", Some(&state.scratch.shared)),
        (HOME_PATH, state.scratch.home.as_ref()),
    ] {
        let Some(options) = options else {
            continue;
        };
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount(c"tmpfs", target, c"tmpfs", flags, options.as_c_str())
            .map_err(|errno| Broken(Stage::MountScratch, errno))?;
    }

    mount(
        c"devpts",
        c"/dev/pts",
        c"devpts",
        MountFlags::NOSUID | MountFlags::NOEXEC,
        TERMINAL_OPTIONS,
    )
    .map_err(|errno| Broken(Stage::MountTerminals, errno))?;

    capabilities::give_up_all().map_err(|errno| Broken(Stage::Capabilities, errno))?;
    blueprint
        .rules
        .apply()
        .map_err(|errno| Broken(Stage::Landlock, errno))?;
    install_relay().map_err(|errno| Broken(Stage::Seccomp, errno))?;
    load_filter(&blueprint.filter).map_err(|errno| Broken(Stage::Seccomp, errno))?;
    check().map_err(|errno| Broken(Stage::SelfCheck, errno))
}

/// Terminals of the run alone, fewer than the machine has for all (devpts, kernel documentation
/// filesystems/devpts.rst).
const TERMINAL_OPTIONS: &CStr = c"newinstance,ptmxmode=0666,mode=0620,max=64";
const HOME_PATH: &CStr = c"/home/agent";
const _: () = assert!(
    HOME_PATH.to_bytes().len() == HOME.len(),
    "the two spellings of the home directory are one path"
);

/// Reads back what must be in force in every sandbox; the probe of [`canary`] looks further, once.
pub(super) fn check() -> Result<(), Errno> {
    capabilities::check_given_up()?;
    if secure_computing_mode()? != SecureComputingMode::Filter {
        return Err(Errno::PERM);
    }
    match unshare(libc::CLONE_NEWUSER) {
        Err(Errno::PERM) => Ok(()),
        _ => Err(Errno::PERM),
    }
}

pub(super) fn tell(report: Report) {
    // A daemon that is gone needs no answer: this process dies with it.
    let _sent = send_bytes(kept(), &report.encode(), &[]);
}

// === The command's process ===

/// Runs as process 2.
pub(super) fn run_command(cabin: &'static Cabin<State>) -> ! {
    let state = &cabin.state;
    tell(Report::Ready);
    let errno = become_command(cabin);
    state.errno.store(errno.raw_os_error(), Ordering::Release);
    exit_now(127)
}

/// Receives the request and executes it. Returns only when a step fails.
fn become_command(cabin: &'static Cabin<State>) -> Errno {
    match try_become_command(cabin) {
        Ok(never) => match never {},
        Err(errno) => errno,
    }
}

fn try_become_command(cabin: &'static Cabin<State>) -> Result<Infallible, Errno> {
    let state = &cabin.state;
    let at = |stage: Stage| state.stage.store(stage as u32, Ordering::Release);

    let buffer = cabin.take_image().ok_or(Errno::BUSY)?;
    let mut fds: [Option<OwnedFd>; 5] = [const { None }; 5];
    let mut received = fds.iter_mut();
    let Received { length, .. } = receive_bytes(kept(), buffer, |fd| {
        if let Some(place) = received.next() {
            *place = Some(fd);
        }
    })?;
    if length == 0 {
        exit_now(0); // the daemon dropped the sandbox
    }
    at(Stage::ReceiveRequest);
    let header = Header::parse(buffer.get(..length).ok_or(Errno::BADMSG)?).ok_or(Errno::BADMSG)?;
    if header.probe {
        at(Stage::Canary);
        tell(Report::Probed {
            failed: canary::run(
                state.blueprint.level,
                &state.blueprint.guarded,
                state.blueprint.network,
            ),
        });
        exit_now(0);
    }
    let mut fds = fds.into_iter().flatten();
    // Closed by the execution: whoever waits for it learns by that, or by what is written before,
    // what has become of it.
    let start = match header.has_start {
        true => Some(fds.next().ok_or(Errno::BADF)?),
        false => None,
    };
    let result = connect_and_execute(cabin, buffer, length, &header, fds);
    if let (Some(start), Err(errno)) = (start, &result) {
        let _nobody_waits = rustix::io::write(start, &errno.raw_os_error().to_ne_bytes());
    }
    result
}

/// Connects the command to what it reads and writes, and executes it.
fn connect_and_execute(
    cabin: &'static Cabin<State>,
    buffer: &'static mut [u8],
    length: usize,
    header: &Header,
    mut fds: impl Iterator<Item = OwnedFd>,
) -> Result<Infallible, Errno> {
    let state = &cabin.state;
    let at = |stage: Stage| state.stage.store(stage as u32, Ordering::Release);
    let descriptors = match header.wiring {
        Wiring::Terminal(_) => None,
        Wiring::Descriptors { stdin } => {
            let stdin = match stdin {
                true => Some(fds.next().ok_or(Errno::BADF)?),
                false => None,
            };
            let stdout = fds.next().ok_or(Errno::BADF)?;
            Some((stdin, stdout, fds.next().ok_or(Errno::BADF)?))
        }
    };
    // What does not fit in one message comes as a memory file, its header in the message.
    let image: &'static mut [u8] = if length == HEADER_BYTES && header.length > length {
        cabin.map_image(fds.next().ok_or(Errno::BADF)?, header.length)?
    } else {
        buffer.get_mut(..length).ok_or(Errno::BADMSG)?
    };
    let image = ExecImage::relocate(image, header.argv, header.argc, header.envp, header.envc)
        .ok_or(Errno::BADMSG)?;

    at(Stage::Session);
    setsid()?;
    let (stdin, stdout, stderr) = match (header.wiring, descriptors) {
        (Wiring::Terminal(size), _) => {
            at(Stage::Terminal);
            let terminal = make_terminal(size)?;
            let stdout = dup(&terminal)?;
            (Some(terminal), stdout, None)
        }
        (Wiring::Descriptors { .. }, Some((stdin, stdout, stderr))) => {
            (stdin, stdout, Some(stderr))
        }
        (Wiring::Descriptors { .. }, None) => return Err(Errno::BADF),
    };
    at(Stage::StandardStreams);
    match stdin {
        Some(stdin) => dup2_stdin(stdin)?,
        None => dup2_stdin(open(
            c"/dev/null",
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?)?,
    }
    dup2_stdout(&stdout)?;
    dup2_stderr(stderr.as_ref().unwrap_or(&stdout))?;
    at(Stage::ChangeDirectory);
    chdir(image.string(header.cwd).ok_or(Errno::BADMSG)?)?;
    at(Stage::ResourceLimits);
    set_resources(header.resources, state.blueprint.other_processes)?;
    at(Stage::Execute);
    Err(execute(&image, header))
}

/// Sets the limits that come with the request. None can be above those that the sandbox was built
/// with: nobody here may raise a limit.
fn set_resources(
    [processes, files, files_hard, file_size, cpu]: [u64; RESOURCES],
    other_processes: u64,
) -> Result<(), Errno> {
    // The run's own are no more than may be (see `set_limits` of the slot); with those that count beside
    // them they may be.
    let most = getrlimit(Resource::Nproc).maximum.unwrap_or(u64::MAX);
    let processes = processes.saturating_add(other_processes).min(most);
    let limits = [
        (Resource::Nproc, processes, processes),
        (Resource::Nofile, files, files_hard),
        (Resource::Fsize, file_size, file_size),
        // A process is told when its time is up (SIGXCPU), and killed when it goes on.
        (Resource::Cpu, cpu, cpu.saturating_add(1)),
    ];
    for (resource, current, maximum) in limits {
        if resource == Resource::Cpu && current == 0 {
            continue; // no limit
        }
        let limit = Rlimit {
            current: Some(current),
            maximum: Some(maximum),
        };
        setrlimit(resource, limit)?;
    }
    Ok(())
}

/// Makes a terminal, sends its other end to the daemon, and makes it the controlling terminal of
/// this process, which leads a session.
fn make_terminal(size: TerminalSize) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let daemons_end = open(c"/dev/pts/ptmx", flags, Mode::empty())?;
    unlockpt(&daemons_end)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let terminal = ioctl_tiocgptpeer(&daemons_end, flags)?;
    tcsetwinsize(
        &terminal,
        Winsize {
            ws_row: size.rows,
            ws_col: size.columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        },
    )?;
    let mut modes = tcgetattr(&terminal)?;
    // So that erasing a character erases all bytes of it.
    modes.input_modes |= InputModes::IUTF8;
    tcsetattr(&terminal, OptionalActions::Now, &modes)?;
    let report = Report::Terminal.encode();
    send_bytes(kept(), &report, &[daemons_end.as_fd()])?;
    ioctl_tiocsctty(&terminal)?;
    Ok(terminal)
}

/// Tries the programs in order, as execvp(3) does. Returns only when none could be executed.
fn execute(image: &ExecImage<'_>, header: &Header) -> Errno {
    let mut offset = header.programs;
    let mut refused = None;
    let mut last = Errno::NOENT;
    for _ in 0..header.program_count {
        let Some(program) = image.string(offset) else {
            return Errno::BADMSG;
        };
        last = image.execute(program);
        match last {
            Errno::ACCESS => refused = Some(last),
            Errno::NOENT | Errno::NOTDIR => {}
            _ => return last,
        }
        offset += program.to_bytes_with_nul().len();
    }
    refused.unwrap_or(last)
}
