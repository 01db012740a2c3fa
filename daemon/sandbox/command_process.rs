//! The process of a sandbox that becomes the command: it has everything applied but what depends on
//! the request, receives that, and executes.
//!
//! Its memory is that of the slot keeper, or at L1 of the supervisor, until the command is executed:
//! nothing here allocates, locks, panics or touches thread-local storage.

use std::{
    convert::Infallible,
    os::fd::{AsFd as _, OwnedFd},
    sync::atomic::Ordering,
};

use rustix::{
    fs::{Mode, OFlags, open, stat},
    io::dup,
    process::{Resource, Rlimit, chdir, getrlimit, ioctl_tiocsctty, setrlimit, setsid},
    pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt},
    stdio::{dup2_stderr, dup2_stdin, dup2_stdout},
    termios::{InputModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize},
};

use super::{
    canary,
    image::{HEADER_BYTES, ImageHeader, StdioLayout, TerminalSize},
    init::{SandboxState, send_report},
    limits::RLIMIT_COUNT,
    priority,
    stage::Stage,
    wire::{ReceivedMessage, SandboxReport, receive_bytes, send_bytes},
};
use crate::daemon::sys::{
    Errno, exec::ExecImage, fd::kept_fd, process::exit_now, process_arena::SharedArea,
};

/// Runs as the command's process: leads a session of its own, and waits for the request.
pub(super) fn run(cabin: &'static SharedArea<SandboxState>) -> ! {
    let state = &cabin.state;
    if let Err(errno) = setsid() {
        let stage = Stage::Session;
        send_report(SandboxReport::Failed { stage, errno });
        exit_now(1);
    }
    priority::lower_own_share();
    send_report(SandboxReport::Ready);
    let errno = become_command(cabin);
    state.errno.store(errno.raw_os_error(), Ordering::Release);
    exit_now(127)
}

/// Receives the request and executes it. Returns only when a step fails.
fn become_command(cabin: &'static SharedArea<SandboxState>) -> Errno {
    match try_become_command(cabin) {
        Ok(never) => match never {},
        Err(errno) => errno,
    }
}

fn try_become_command(cabin: &'static SharedArea<SandboxState>) -> Result<Infallible, Errno> {
    let state = &cabin.state;
    let at = |stage: Stage| state.stage.store(stage as u32, Ordering::Release);

    let buffer = cabin.take_image().ok_or(Errno::BUSY)?;
    let mut fds: [Option<OwnedFd>; 5] = [const { None }; 5];
    let mut received = fds.iter_mut();
    let ReceivedMessage { length, .. } = receive_bytes(kept_fd(), buffer, |fd| {
        if let Some(place) = received.next() {
            *place = Some(fd);
        }
    })?;
    if length == 0 {
        exit_now(0); // the daemon dropped the sandbox
    }
    at(Stage::ReceiveRequest);
    let header =
        ImageHeader::parse(buffer.get(..length).ok_or(Errno::BADMSG)?).ok_or(Errno::BADMSG)?;
    if header.is_probe {
        at(Stage::Canary);
        send_report(SandboxReport::Probed {
            failed_checks: canary::run_checks(
                state.blueprint.level,
                &state.blueprint.guarded_targets,
                state.blueprint.network,
            ),
        });
        exit_now(0);
    }
    let mut fds = fds.into_iter().flatten();
    // Closed by the execution: whoever waits for it learns by that, or by what is written before,
    // what has become of it.
    let start = match header.has_exec_pipe {
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
    cabin: &'static SharedArea<SandboxState>,
    buffer: &'static mut [u8],
    length: usize,
    header: &ImageHeader,
    mut fds: impl Iterator<Item = OwnedFd>,
) -> Result<Infallible, Errno> {
    let state = &cabin.state;
    let at = |stage: Stage| state.stage.store(stage as u32, Ordering::Release);
    let descriptors = match header.stdio {
        StdioLayout::Terminal(_) => None,
        StdioLayout::Descriptors { stdin } => {
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

    let (stdin, stdout, stderr) = match (header.stdio, descriptors) {
        (StdioLayout::Terminal(size), _) => {
            at(Stage::Terminal);
            let terminal = open_terminal(size)?;
            let stdout = dup(&terminal)?;
            (Some(terminal), stdout, None)
        }
        (StdioLayout::Descriptors { .. }, Some((stdin, stdout, stderr))) => {
            (stdin, stdout, Some(stderr))
        }
        (StdioLayout::Descriptors { .. }, None) => return Err(Errno::BADF),
    };
    at(Stage::StandardStreams);
    match stdin {
        Some(stdin) => dup2_stdin(stdin)?,
        None => dup2_stdin(open(c"/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)?,
    }
    dup2_stdout(&stdout)?;
    dup2_stderr(stderr.as_ref().unwrap_or(&stdout))?;
    at(Stage::ChangeDirectory);
    chdir(image.string(header.cwd).ok_or(Errno::BADMSG)?)?;
    if let Some(approved) = header.cwd_identity {
        let here = stat(c".")?;
        if (here.st_dev, here.st_ino) != approved {
            return Err(Errno::STALE);
        }
    }
    at(Stage::ResourceLimits);
    set_rlimits(header.rlimits, state.blueprint.other_process_count)?;
    at(Stage::Execute);
    Err(execute_first_program(&image, header))
}

/// Sets the limits that come with the request. None can be above those that the sandbox was built
/// with: nobody here may raise a limit.
fn set_rlimits(
    [processes, files, files_hard, file_size, cpu]: [u64; RLIMIT_COUNT],
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
        let limit = Rlimit { current: Some(current), maximum: Some(maximum) };
        setrlimit(resource, limit)?;
    }
    Ok(())
}

/// Makes a terminal, sends its other end to the daemon, and makes it the controlling terminal of
/// this process, which leads a session.
fn open_terminal(size: TerminalSize) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let daemons_end = open(c"/dev/pts/ptmx", flags, Mode::empty())?;
    unlockpt(&daemons_end)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let terminal = ioctl_tiocgptpeer(&daemons_end, flags)?;
    tcsetwinsize(
        &terminal,
        Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 },
    )?;
    let mut modes = tcgetattr(&terminal)?;
    // So that erasing a character erases all bytes of it.
    modes.input_modes |= InputModes::IUTF8;
    tcsetattr(&terminal, OptionalActions::Now, &modes)?;
    let report = SandboxReport::TerminalOpened.encode();
    send_bytes(kept_fd(), &report, &[daemons_end.as_fd()])?;
    ioctl_tiocsctty(&terminal)?;
    Ok(terminal)
}

/// Tries the programs in order, as execvp(3) does. Returns only when none could be executed.
fn execute_first_program(image: &ExecImage<'_>, header: &ImageHeader) -> Errno {
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
