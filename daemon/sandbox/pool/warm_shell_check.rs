//! Checks at start that a warm shell is like one that is executed: only then do commands get one
//! ([`crate::daemon::sandbox::warm_shell`]).

use std::{
    io::{self, Read as _},
    os::fd::AsFd as _,
    sync::Arc,
};

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::{sync::oneshot, time::timeout};

use super::{
    SandboxPool,
    build::{BUILD_TIMEOUT, build_sandbox, build_timeout_failure, io_failure, recycle_sandbox},
};
use crate::daemon::{
    queue::PrincipalName,
    sandbox::{
        image::ExecRequest,
        kill::SlotOutcome,
        limits::RunLimits,
        recycle::{UsedSandbox, WarmShellSwitch},
        running::{CommandEnd, IdleSandbox, SandboxEvent, StdioStreams},
        stage::{Stage, StageFailure},
        warm_shell::Shell,
    },
    sys::{Errno, warm_shell::LIBRARY},
    task,
};

/// Prints what a shell knows about itself, and what the kernel knows about it. Uses no program:
/// a sandbox may have no other than the shell.
const SCRIPT: &std::ffi::CStr = c"
print() { while IFS= read -r line || [ -n \"$line\" ]; do echo \"$line\"; done; }
echo \"$0 $# $- $PWD\"; set; export; umask; ulimit -n; ulimit -f; trap
cd /proc/$$ && print <comm && print <cmdline && print <environ && cd fd && echo *
cd .. && while read -r name value; do
  case $name in
    SigQ:) ;; # of all processes of the user
    Umask:|Sig*|Shd*|Cap*|Uid:|Gid:|NoNewPrivs:|Seccomp*) echo \"$name $value\" ;;
  esac
done <status
exit 7
";

impl SandboxPool {
    /// Starts the check, unless another pool has done it. Until it has passed, no command gets a warm
    /// shell.
    pub(super) fn start_warm_shell_check(self: &Arc<Self>) {
        let context = &self.context;
        let recycles = context.recycle && self.state().level.recycles_sandboxes();
        let is_possible = recycles && !LIBRARY.is_empty();
        if !is_possible || !context.warm_shells.take_check() {
            return;
        }
        let pool = Arc::clone(self);
        task::spawn("warm shell check", async move {
            let checked = timeout(BUILD_TIMEOUT, pool.check_warm_shells()).await;
            match checked.unwrap_or_else(|_| Err(build_timeout_failure(Stage::CommandProcess))) {
                Ok(()) => pool.context.warm_shells.turn_on(),
                Err(failure) => tracing::info!(
                    stage = failure.stage.name(),
                    detail = failure.detail,
                    "commands of shells start the ordinary way: warm shells do not work on this host"
                ),
            }
        });
    }

    /// Compares a copy of each shell with an executed one.
    async fn check_warm_shells(self: &Arc<Self>) -> Result<(), StageFailure> {
        let (slot, mut builder, _) = self.make_slot_with_builder().await?;
        builder.warm_shells = Arc::new(WarmShellSwitch::new(false));
        builder.warm_shells.turn_on();
        let limits = &self.context.limits;

        for shell in Shell::ALL {
            let (sandbox, outcome) = build_sandbox(&slot, &builder, limits).await?;
            let (executed, used) = run_script(shell, sandbox, outcome, limits).await?;
            let Some(expected) = executed else {
                continue; // there is no such shell
            };
            let used = used.ok_or_else(|| failure("a sandbox was not recycled"))?;
            let recycled = recycle_sandbox(used, &builder, limits).await;
            let (sandbox, outcome) =
                recycled.ok_or_else(|| failure("a sandbox was not recycled"))?;
            if sandbox.warm_shell != Some(shell) {
                return Err(failure("a shell did not wait for its command"));
            }
            let (output, _) = run_script(shell, sandbox, outcome, limits).await?;
            if output != Some(expected) {
                return Err(failure("a warm shell differs from another"));
            }
        }
        Ok(())
    }
}

fn failure(why: &str) -> StageFailure {
    StageFailure::other(Stage::CommandProcess, why.to_owned())
}

/// Runs the script. Returns its output, and the sandbox. Without output, there is no such shell.
async fn run_script(
    shell: Shell,
    sandbox: IdleSandbox,
    outcome: oneshot::Receiver<SlotOutcome>,
    limits: &RunLimits,
) -> Result<(Option<String>, Option<UsedSandbox>), StageFailure> {
    let shell = shell.path().to_owned();
    let request = ExecRequest {
        cwd: c"/tmp".to_owned(),
        cwd_identity: None,
        programs: vec![shell.clone()],
        argv: vec![shell, c"-c".to_owned(), SCRIPT.to_owned(), c"".to_owned(), c"two".to_owned()],
        envp: [c"PATH=/usr/bin:/bin", c"EMPTY=", c"odd-name.=1"].map(ToOwned::to_owned).to_vec(),
    };

    let pipe = pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from);
    let (reader, writer) = pipe.map_err(|error| io_failure(&error))?;
    let ends = StdioStreams::Descriptors {
        stdin: None,
        stdout: writer.as_fd(),
        stderr: writer.as_fd(),
        shell_files: None,
    };
    let caller = PrincipalName::from("");
    let mut running = sandbox.dispatch(&request, &ends, None, limits, &caller)?;
    let end = loop {
        if let SandboxEvent::CommandEnded(end) = running.next_event().await {
            break end;
        }
    };
    drop(writer);
    match end {
        CommandEnd::Exited { status, .. } if status == 7 << 8 => {}
        CommandEnd::NotStarted { errno: Errno::NOENT, .. } => return Ok((None, None)),
        CommandEnd::Exited { .. } | CommandEnd::NotStarted { .. } | CommandEnd::SandboxLost => {
            return Err(failure("the script of the check failed"));
        }
    }

    // All processes have ended, and the pipe has room for all of it.
    let mut output = String::new();
    std::fs::File::from(reader).read_to_string(&mut output).map_err(|error| io_failure(&error))?;
    let used = match outcome.await {
        Ok(SlotOutcome::Free(used)) => used,
        Ok(SlotOutcome::Quarantined(_)) | Err(_) => None,
    };
    Ok((Some(output), used))
}
