//! The process of a sandbox that becomes the command. All restrictions that do not depend on the
//! request are in force when it starts. It receives the request and executes it.
//!
//! It shares the memory of the slot keeper (at L1, of the L1 init) until the command is
//! executed: nothing here allocates, locks, panics or touches thread-local storage.

use std::{
    convert::Infallible,
    os::fd::{AsFd, OwnedFd},
    sync::atomic::Ordering,
};

use rustix::{
    fs::{Mode, OFlags, open, stat},
    io::dup,
    process::{
        Resource, Rlimit, chdir, getpid, getrlimit, ioctl_tiocsctty, setpgid, setrlimit, setsid,
    },
    pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt},
    stdio::{dup2_stderr, dup2_stdin, dup2_stdout},
    termios::{InputModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize},
};

use super::{
    blueprint::SandboxState,
    image::{HEADER_BYTES, ImageHeader, SHELL_FILE_NUMBERS, StdioLayout, TerminalSize},
    init::send_report,
    limits::RLIMIT_COUNT,
    priority, probe,
    stage::Stage,
    warm_shell::{self, Shell},
    wire::{SandboxReport, send_bytes},
};
use crate::daemon::sys::{
    Errno,
    exec::ExecImage,
    fd::{INHERITED_FD_NUMBER, close_all_except, inherit_as, inherited_fd},
    marked_receive::receive_marked,
    process::exit_now,
    process_arena::SharedArea,
    signal::unblock_all,
};

/// Runs as the command's process: reports Ready, and waits for the request.
pub(super) fn run(area: &'static SharedArea<SandboxState>) -> ! {
    let state = &area.state;
    if let Some(shell) = Shell::from_number(state.template_shell.load(Ordering::Acquire)) {
        let _errno = warm_shell::become_template(state, shell);
        exit_now(1);
    }

    // The init's descriptor for reported calls is not for commands, nor are its blocked signals.
    if let Err(errno) = close_all_except(INHERITED_FD_NUMBER).and_then(|_| unblock_all()) {
        send_report(SandboxReport::Failed { stage: Stage::CommandProcess, errno });
        exit_now(1);
    }

    priority::lower_own_share();
    send_report(SandboxReport::Ready { vpid: getpid().as_raw_nonzero().get(), warm_shell: 0 });

    let errno = become_command(area);
    state.errno.store(errno.raw_os_error(), Ordering::Release);
    exit_now(127)
}

/// Receives the request and executes it. Returns only if a step fails.
fn become_command(area: &'static SharedArea<SandboxState>) -> Errno {
    match try_become_command(area) {
        Ok(never) => match never {},
        Err(errno) => errno,
    }
}

fn try_become_command(area: &'static SharedArea<SandboxState>) -> Result<Infallible, Errno> {
    let state = &area.state;
    let set_stage = |stage: Stage| state.stage.store(stage as u32, Ordering::Release);

    let buffer = area.take_image().ok_or(Errno::BUSY)?;
    let mut fds: [Option<OwnedFd>; 6] = [const { None }; 6];
    let mut free_entries = fds.iter_mut();
    let mark = state.blueprint.receive_mark;
    let length = receive_marked(inherited_fd(), mark, buffer, |fd| {
        if let Some(entry) = free_entries.next() {
            *entry = Some(fd);
        }
    })?;
    if length == 0 {
        exit_now(0); // the daemon dropped the sandbox
    }

    set_stage(Stage::ReceiveRequest);
    let header =
        ImageHeader::parse(buffer.get(..length).ok_or(Errno::BADMSG)?).ok_or(Errno::BADMSG)?;
    if header.is_probe {
        set_stage(Stage::Probe);
        send_report(SandboxReport::Probed {
            failed_checks: probe::run_checks(
                state.blueprint.level,
                &state.blueprint.guarded_targets,
                state.blueprint.network,
            ),
        });
        exit_now(0);
    }

    let mut fds = fds.into_iter().flatten();
    // A successful execve(2) closes the pipe. On failure, the error number is written to it first.
    let exec_pipe = if header.has_exec_pipe { Some(fds.next().ok_or(Errno::BADF)?) } else { None };
    let result = connect_and_execute(area, buffer, length, &header, fds);
    if let (Some(exec_pipe), Err(errno)) = (exec_pipe, &result) {
        let _reader_gone = rustix::io::write(exec_pipe, &errno.raw_os_error().to_ne_bytes());
    }
    result
}

/// Connects the command's standard streams, and executes the command.
fn connect_and_execute(
    area: &'static SharedArea<SandboxState>,
    buffer: &'static mut [u8],
    length: usize,
    header: &ImageHeader,
    mut fds: impl Iterator<Item = OwnedFd>,
) -> Result<Infallible, Errno> {
    let state = &area.state;
    let set_stage = |stage: Stage| state.stage.store(stage as u32, Ordering::Release);

    let descriptors = take_descriptors(header.stdio, &mut fds)?;
    let shell_files = if header.has_shell_files {
        Some([fds.next().ok_or(Errno::BADF)?, fds.next().ok_or(Errno::BADF)?])
    } else {
        None
    };

    // An image that does not fit in one message comes as a memory file. The message has its header.
    let image: &'static mut [u8] = if length == HEADER_BYTES && header.length > length {
        area.map_image(fds.next().ok_or(Errno::BADF)?, header.length)?
    } else {
        buffer.get_mut(..length).ok_or(Errno::BADMSG)?
    };
    let image = ExecImage::relocate(image, header.argv, header.argc, header.envp, header.envc)
        .ok_or(Errno::BADMSG)?;

    let program = image.string(header.programs).filter(|_| header.uses_warm_shells);
    let shell = program.and_then(Shell::with_path).map_or(0, |shell| shell as u32);
    state.last_shell.store(shell, Ordering::Release);

    set_stage(Stage::Session);
    match header.stdio {
        // A session of its own would be scheduled as a group of its own. Where many commands end
        // soon, some of them then wait for tens of milliseconds.
        StdioLayout::Descriptors { .. } if state.blueprint.level.has_namespaces() => {
            setpgid(None, None)?;
        }
        // At L1, the session keeps the command from the group of the init.
        StdioLayout::Descriptors { .. } | StdioLayout::Terminal(_) => setsid().map(drop)?,
    }

    let (stdin, stdout, stderr) = match (header.stdio, descriptors) {
        (StdioLayout::Terminal(size), _) => {
            set_stage(Stage::Terminal);
            let terminal = open_terminal(size)?;
            let stdout = dup(&terminal)?;
            (Some(terminal), stdout, None)
        }
        (StdioLayout::Descriptors { .. }, Some((stdin, stdout, stderr))) => {
            (stdin, stdout, Some(stderr))
        }
        (StdioLayout::Descriptors { .. }, None) => return Err(Errno::BADF),
    };
    set_stage(Stage::StandardStreams);
    match stdin {
        Some(stdin) => dup2_stdin(stdin)?,
        None => dup2_stdin(open(c"/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)?,
    }
    dup2_stdout(&stdout)?;
    dup2_stderr(stderr.as_ref().unwrap_or(&stdout))?;
    if let Some(files) = &shell_files {
        inherit_as(files.each_ref().map(AsFd::as_fd), SHELL_FILE_NUMBERS)?;
    }

    set_stage(Stage::ChangeDirectory);
    chdir(image.string(header.cwd).ok_or(Errno::BADMSG)?)?;
    if let Some(expected) = header.cwd_identity {
        let cwd = stat(c".")?;
        if (cwd.st_dev, cwd.st_ino) != expected {
            return Err(Errno::STALE);
        }
    }

    set_stage(Stage::ResourceLimits);
    let templates = state.template_count.load(Ordering::Acquire);
    set_rlimits(header.rlimits, state.blueprint.other_process_count.saturating_add(templates))?;

    set_stage(Stage::Execute);
    Err(execute_first_program(&image, header))
}

/// Takes the descriptors of stdin, stdout and stderr. Returns `None` with a terminal.
fn take_descriptors(
    stdio: StdioLayout,
    fds: &mut impl Iterator<Item = OwnedFd>,
) -> Result<Option<(Option<OwnedFd>, OwnedFd, OwnedFd)>, Errno> {
    let StdioLayout::Descriptors { stdin } = stdio else {
        return Ok(None);
    };
    let mut take = || fds.next().ok_or(Errno::BADF);
    let stdin = if stdin { Some(take()?) } else { None };
    Ok(Some((stdin, take()?, take()?)))
}

/// Sets the limits of the request. None can exceed those that the sandbox was built with: this
/// process has no privilege to raise a limit.
fn set_rlimits(
    [processes, files, files_hard, file_size, cpu]: [u64; RLIMIT_COUNT],
    other_processes: u64,
) -> Result<(), Errno> {
    // The run's own processes are within the hard limit, which `set_limits` of the slot has
    // checked. Adding the other processes that count must not exceed it.
    let hard_limit = getrlimit(Resource::Nproc).maximum.unwrap_or(u64::MAX);
    let processes = processes.saturating_add(other_processes).min(hard_limit);

    let limits = [
        (Resource::Nproc, processes, processes),
        (Resource::Nofile, files, files_hard),
        (Resource::Fsize, file_size, file_size),
        // At the soft limit the process receives SIGXCPU. One second later it is killed.
        (Resource::Cpu, cpu, cpu.saturating_add(1)),
    ];
    for (resource, current, maximum) in limits {
        if resource == Resource::Cpu && current == 0 {
            continue; // no limit
        }
        let limit = Rlimit { current: Some(current), maximum: Some(maximum) };
        setrlimit(resource, limit)?;
    }
    Ok(())
}

/// Opens a terminal, sends the daemon's end to the daemon, and makes it the controlling terminal of
/// this process, which leads a session.
fn open_terminal(size: TerminalSize) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let daemon_end = open(c"/dev/pts/ptmx", flags, Mode::empty())?;
    unlockpt(&daemon_end)?;

    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let terminal = ioctl_tiocgptpeer(&daemon_end, flags)?;
    tcsetwinsize(
        &terminal,
        Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 },
    )?;
    let mut modes = tcgetattr(&terminal)?;
    // Erasing a character then erases all its bytes.
    modes.input_modes |= InputModes::IUTF8;
    tcsetattr(&terminal, OptionalActions::Now, &modes)?;

    let report = SandboxReport::TerminalOpened.encode();
    send_bytes(inherited_fd(), &report, &[daemon_end.as_fd()])?;
    ioctl_tiocsctty(&terminal)?;
    Ok(terminal)
}

/// Tries the programs in order, as execvp(3) does. Returns only if none could be executed.
fn execute_first_program(image: &ExecImage<'_>, header: &ImageHeader) -> Errno {
    let mut offset = header.programs;
    let mut denied = None;
    let mut last = Errno::NOENT;

    for _ in 0..header.program_count {
        let Some(program) = image.string(offset) else {
            return Errno::BADMSG;
        };

        last = image.execute(program);
        match last {
            Errno::ACCESS => denied = Some(last),
            Errno::NOENT | Errno::NOTDIR => {}
            _ => return last,
        }
        offset += program.to_bytes_with_nul().len();
    }
    denied.unwrap_or(last)
}
