//! Warm shells: shells that were executed before their command is known.
//!
//! Most of the time of `sh -c true` is the execution of the shell. After a run of a shell, the init
//! of a recycled sandbox therefore executes the same shell once more, up to its first instruction
//! ([`crate::daemon::sys::warm_shell`]). This *template* makes a copy of itself for each run. The
//! copy receives the command and starts as if it had just been executed.
//!
//! The daemon uses a copy only for a command that it suits ([`Shell::for_command`]). Else the copy ends,
//! and the init starts an ordinary process, which executes the command.
//!
//! The template outlives runs, so no run may change it for those that follow:
//!
//! * It never receives a command, and forgets what it was executed with.
//! * It is not dumpable: no process can open its memory, its descriptors or its files in `/proc`.
//! * The filter reports calls that change limits, priorities or the scheduling of another process,
//!   and the sandbox is not used again ([`super::seccomp`]).
//! * It is in the process group of the init, which no command can join or name.
//! * A signal ends it, stops it, or does nothing. Without an answer in time, the sandbox is not used
//!   again.

use std::{
    ffi::{CStr, CString},
    os::fd::{AsRawFd as _, OwnedFd},
    sync::atomic::{AtomicI32, Ordering},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, memfd_create, open},
    io::{pread, read, retry_on_intr, write},
    pipe::{PipeFlags, pipe_with},
    process::Pid,
    stdio::{dup2_stderr, dup2_stdin, dup2_stdout},
};

use super::{
    blueprint::{Blueprint, SandboxState},
    image::ExecRequest,
    priority,
    stage::Stage,
};
use crate::daemon::sys::{
    Errno,
    fd::{INHERITED_FD_NUMBER, keep_only},
    process::{kill_all, wait_any},
    process_arena::SharedArea,
    signal::unblock_all,
    warm_shell::{LIBRARY, MAX_VARIABLES, execute_waiting},
};

/// A shell that commands use by this path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Shell {
    Sh = 1,
    Bash,
}

/// Bytes of arguments and variables, with what the image of a command has for each: less than a
/// message has room for.
const MAX_LIST_BYTES: usize = 56 << 10;
/// An address and a null byte.
const BYTES_PER_STRING: usize = 9;
/// The children of the init (proc_tid_children(5)).
const CHILDREN_PATH: &CStr = c"/proc/1/task/1/children";
/// Time for a template to start, and to make a copy. Both take less than a millisecond, unless other
/// programs use all CPUs. A command can stop a template.
const START_TIMEOUT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
const COPY_TIMEOUT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

impl Shell {
    pub(super) const ALL: [Self; 2] = [Self::Sh, Self::Bash];

    pub(super) fn path(self) -> &'static CStr {
        match self {
            Self::Sh => c"/bin/sh",
            Self::Bash => c"/bin/bash",
        }
    }

    pub(super) fn with_path(path: &CStr) -> Option<Self> {
        Self::ALL.into_iter().find(|shell| shell.path() == path)
    }

    /// The shell of which a copy becomes what executing `command` would.
    pub(super) fn for_command(command: &ExecRequest) -> Option<Self> {
        Self::ALL.into_iter().find(|shell| shell.suits(command))
    }

    pub(super) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|shell| *shell as u32 == number)
    }

    /// Whether a copy of this shell becomes what executing `command` would.
    fn suits(self, command: &ExecRequest) -> bool {
        let is_self = |string: &CString| string.as_c_str() == self.path();
        let strings = command.argv.iter().chain(&command.envp);
        command.cwd_identity.is_none()
            && matches!(command.programs.as_slice(), [program] if is_self(program))
            && command.argv.first().is_some_and(is_self)
            && command.envp.len() <= MAX_VARIABLES
            && !command.envp.iter().any(|variable| is_read_by_loader(variable))
            && strings.map(|string| string.as_bytes().len() + BYTES_PER_STRING).sum::<usize>()
                <= MAX_LIST_BYTES
    }
}

/// Whether the dynamic loader or the allocator of glibc reads a variable before the program starts
/// (ld.so(8); "Tunables" of the glibc manual).
fn is_read_by_loader(variable: &CStr) -> bool {
    [&b"LD_"[..], b"GLIBC_TUNABLES=", b"MALLOC_"]
        .iter()
        .any(|prefix| variable.to_bytes().starts_with(prefix))
}

/// The warm shell of a sandbox, as its init knows it.
#[derive(Debug, Default)]
pub(super) struct WarmShell {
    template: Option<Template>,
    /// A shell of which no template starts.
    failed: Option<Shell>,
    /// Whether the process of the present command is a copy.
    is_copy: bool,
    /// Where the template and its copy answer. Kept until the copy has ended.
    replies: Option<OwnedFd>,
}

#[derive(Debug)]
struct Template {
    process: Pid,
    shell: Shell,
    requests: OwnedFd,
    /// [`CHILDREN_PATH`].
    children: OwnedFd,
}

impl WarmShell {
    /// Makes a copy of the shell that the last command was. Returns `None` if an ordinary process
    /// must wait for the next command. After an error, the state of the sandbox is not known.
    pub(super) fn copy(
        &mut self,
        area: &'static SharedArea<SandboxState>,
    ) -> Result<Option<Pid>, Errno> {
        let state = &area.state;
        let last_shell = Shell::from_number(state.last_shell.load(Ordering::Acquire));
        let Some(shell) = last_shell.filter(|shell| self.failed != Some(*shell)) else {
            return Ok(None);
        };

        if self.template.as_ref().is_none_or(|template| template.shell != shell) {
            self.template = None;
            end_all();
            match Template::start(area, shell) {
                Ok((template, replies)) => {
                    (self.template, self.replies) = (Some(template), Some(replies));
                }
                Err(_) => {
                    self.failed = Some(shell);
                    return Ok(None);
                }
            }
        }
        let (Some(template), Some(replies)) = (&self.template, &self.replies) else {
            return Ok(None);
        };
        let copy = template.copy(state.blueprint, replies)?;
        self.is_copy = true;
        Ok(Some(copy))
    }

    /// Processes of the sandbox that are not the run's.
    pub(super) fn process_count(&self) -> u64 {
        u64::from(self.template.is_some())
    }

    /// Enters the end of a copy in the state where an ordinary process would have.
    pub(super) fn note_end_of_copy(&mut self, state: &SandboxState) {
        if !std::mem::take(&mut self.is_copy) {
            return;
        }
        // One that has said nothing has not started a command: the init ends.
        let reply = self.replies.as_ref().map(|replies| receive(replies, &NO_TIME));
        let [stage, errno] = reply.and_then(Result::ok).unwrap_or_default();
        state.stage.store(u32::try_from(stage).unwrap_or_default(), Ordering::Release);
        state.errno.store(i32::try_from(errno).unwrap_or(-1), Ordering::Release);
    }

    /// Whether `ended` is the template. A command has ended it: another process can have its number.
    pub(super) fn has_lost_template(&mut self, ended: Pid) -> bool {
        let is_lost = self.template.as_ref().is_some_and(|template| template.process == ended);
        if is_lost {
            self.template = None;
        }
        is_lost
    }

    /// Forgets the template, which is being killed. Returns its process.
    pub(super) fn take_template(&mut self) -> Option<Pid> {
        self.template.take().map(|template| template.process)
    }

    /// Whether the template is all that lives in the sandbox, besides the init.
    ///
    /// All processes are descendants of the init, and the template has no children: copies are those of
    /// the init. New children come last in the list, so none is missed while it is read.
    pub(super) fn is_alone(&self) -> bool {
        let Some(template) = &self.template else {
            return false;
        };
        let mut text = [0; 32];
        let length = pread(&template.children, &mut text, 0);
        let children = str::from_utf8(text.get(..length.unwrap_or(0)).unwrap_or_default());
        children.unwrap_or_default().trim_end().parse()
            == Ok(template.process.as_raw_nonzero().get())
    }
}

impl Template {
    /// Starts a template, and waits until it is ready. Returns where it and its copies answer.
    fn start(
        area: &'static SharedArea<SandboxState>,
        shell: Shell,
    ) -> Result<(Self, OwnedFd), Errno> {
        let children = open(CHILDREN_PATH, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let library = memfd_create(c"jig-shell", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        if LIBRARY.is_empty() || write(&library, LIBRARY)? != LIBRARY.len() {
            return Err(Errno::NOSYS);
        }
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        fcntl_add_seals(&library, seals)?;
        let (template_requests, requests) = pipe_with(PipeFlags::CLOEXEC)?;
        let (replies, template_replies) = pipe_with(PipeFlags::CLOEXEC)?;

        let inherited = [&library, &template_requests, &template_replies];
        for (entry, fd) in area.state.template_fds.iter().zip(inherited) {
            entry.store(fd.as_raw_fd(), Ordering::Release);
        }
        area.state.template_shell.store(shell as u32, Ordering::Release);
        let process = area.start_second();
        drop((library, template_requests, template_replies));

        let started = process.and_then(|process| {
            receive(&replies, &START_TIMEOUT)
                .map(|_| (Self { process, shell, requests, children }, replies))
        });
        if started.is_err() {
            end_all();
        }
        area.state.template_shell.store(0, Ordering::Release);
        started
    }

    /// Makes a copy. Returns its process.
    fn copy(&self, blueprint: &Blueprint, replies: &OwnedFd) -> Result<Pid, Errno> {
        // The template counts too.
        let process_count = blueprint.other_process_count + 1;
        let request =
            [process_count, u64::from(self.shell as u32), blueprint.receive_mark.to_number()];
        let mut bytes = [0; 24];
        for (chunk, value) in bytes.chunks_exact_mut(8).zip(request) {
            chunk.copy_from_slice(&value.to_ne_bytes());
        }
        write(&self.requests, &bytes)?;
        let [copy, _] = receive(replies, &COPY_TIMEOUT)?;
        let number = i32::try_from(copy).ok().filter(|number| *number > 0);
        number.and_then(Pid::from_raw).ok_or(Errno::AGAIN)
    }
}

/// Receives a message of a template or a copy: two numbers.
fn receive(replies: &OwnedFd, timeout: &Timespec) -> Result<[i64; 2], Errno> {
    let mut polled = [PollFd::new(replies, PollFlags::IN)];
    let mut bytes = [0; 16];
    // The daemon may have sent a signal for a command that has just ended.
    let ready = retry_on_intr(|| poll(&mut polled, Some(timeout)))?;
    if ready == 0 || retry_on_intr(|| read(replies, &mut bytes))? < bytes.len() {
        return Err(Errno::TIMEDOUT);
    }
    let (first, second) = bytes.split_at(8);
    let number = |bytes: &[u8]| bytes.try_into().map(i64::from_ne_bytes).unwrap_or_default();
    Ok([number(first), number(second)])
}

/// Kills and reaps everything in the sandbox, between two commands.
fn end_all() {
    let _none_left = kill_all(libc::SIGKILL);
    while wait_any().is_ok() {}
}

/// Runs as a template. Returns only if it cannot be one.
pub(super) fn become_template(state: &SandboxState, shell: Shell) -> Errno {
    match prepare_template(state) {
        Ok(()) => execute_waiting(shell.path()),
        Err(errno) => errno,
    }
}

fn prepare_template(state: &SandboxState) -> Result<(), Errno> {
    let null = open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)?;
    drop(null); // `keep_only` would close it
    let [library, requests, replies] = &state.template_fds;
    let number = |entry: &AtomicI32| entry.load(Ordering::Acquire);
    keep_only([INHERITED_FD_NUMBER, number(library), number(requests), number(replies)])?;
    unblock_all()?;
    priority::lower_own_share();
    Ok(())
}

const _: () = assert!(
    Stage::ResourceLimits as u32 == 25
        && Stage::ReceiveRequest as u32 == 29
        && Stage::StandardStreams as u32 == 32
        && Stage::ChangeDirectory as u32 == 33
        && Stage::Execute as u32 == 34,
    "warm_shell.c has these numbers"
);

#[cfg(test)]
mod tests {
    use super::*;

    fn command(programs: &[&CStr], argv: &[&CStr], envp: &[&CStr]) -> ExecRequest {
        let owned = |strings: &[&CStr]| strings.iter().map(|string| (*string).to_owned()).collect();
        ExecRequest {
            cwd: c"/workspace".to_owned(),
            cwd_identity: None,
            programs: owned(programs),
            argv: owned(argv),
            envp: owned(envp),
        }
    }

    #[test]
    fn copy_suits_only_what_it_can_become() {
        let suits = |programs: &[&CStr], argv: &[&CStr], envp: &[&CStr]| {
            Shell::Sh.suits(&command(programs, argv, envp))
        };
        let (sh, script) = ([c"/bin/sh"], [c"/bin/sh", c"-c", c"true"]);
        assert!(suits(&sh, &script, &[c"HOME=/", c"LDFLAGS=-g", c"MALLOC=1"]));
        assert!(suits(&sh, &[c"/bin/sh", c"-e", c"script", c"argument"], &[]));

        assert!(!suits(&[c"/bin/bash"], &script, &[]), "another program");
        assert!(!suits(&[c"/bin/sh", c"/usr/bin/sh"], &script, &[]), "one of several programs");
        assert!(!suits(&sh, &[c"sh", c"-c", c"true"], &[]), "another name");
        assert!(!suits(&sh, &[], &[]), "no name");
        for variable in [c"LD_PRELOAD=x", c"LD_=", c"MALLOC_ARENA_MAX=1", c"GLIBC_TUNABLES=x"] {
            assert!(!suits(&sh, &script, &[variable]), "{variable:?}");
        }
        assert!(suits(&sh, &script, &[c"A=b"; MAX_VARIABLES]));
        assert!(!suits(&sh, &script, &[c"A=b"; MAX_VARIABLES + 1]));

        let long = CString::new("x".repeat(MAX_LIST_BYTES)).unwrap();
        assert!(!suits(&sh, &[c"/bin/sh", c"-c", &long], &[]));
        let many = [&[c"/bin/sh"][..], &[c""; 8000]].concat();
        assert!(!suits(&sh, &many, &[]), "many arguments");
        let checked = ExecRequest { cwd_identity: Some((1, 2)), ..command(&sh, &script, &[]) };
        assert!(!Shell::Sh.suits(&checked), "a directory that is checked");
    }
}
