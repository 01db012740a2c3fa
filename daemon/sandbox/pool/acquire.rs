//! Acquires sandboxes from a pool, fairly between callers.

use std::{io, sync::Arc};

use super::{
    SandboxPool, build::replace_warm_shell, command_pipes::CommandPipe, pool_closed_failure,
};
use crate::daemon::{
    queue::{Limiter, PrincipalName, Sharing},
    sandbox::{
        image::ExecRequest, limits::RunLimits, running::IdleSandbox, stage::StageFailure,
        warm_shell::Shell,
    },
};

impl SandboxPool {
    /// Permanently reserves headroom for callers that use little. Called when several callers have
    /// keys.
    pub(crate) fn reserve_headroom(&self) {
        self.limiter.set_sharing(Sharing::KeepHeadroom);
    }

    /// Permits to hold a sandbox, released when the sandbox is returned. The number of waiters is
    /// not limited here: each holds a permit for calls or for started processes.
    pub(crate) fn limiter(&self) -> &Arc<Limiter> {
        &self.limiter
    }

    /// Returns a pipe for the output of a command.
    pub(crate) fn take_pipe(&self) -> io::Result<CommandPipe> {
        self.pipes.take()
    }

    /// Takes a sandbox with these limits for a run of `caller`, who must hold a permit of
    /// [`Self::limiter`]. A warm shell can run it only if it is `command`.
    ///
    /// Waits until a sandbox is built, and fails when building fails.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        limits: &RunLimits,
        caller: &PrincipalName,
        command: Option<&ExecRequest>,
    ) -> Result<IdleSandbox, StageFailure> {
        let shell = command.and_then(Shell::for_command);
        loop {
            let permits_run = |sandbox: &IdleSandbox| sandbox.history.permits_run_of(caller);
            let mut sandbox = self.take_idle(permits_run).await?;

            if !limits.has_same_scratch_as(&self.context.limits) || !permits_run(&sandbox) {
                let rebuilt = sandbox.rebuild_for(*limits).await;
                sandbox = rebuilt.unwrap_or_else(|| Err(pool_closed_failure()))?;
            }

            sandbox.uses_warm_shells &= shell.is_some();
            if sandbox.warm_shell.is_some()
                && sandbox.warm_shell != shell
                && let Err(failure) = replace_warm_shell(&mut sandbox).await
            {
                tracing::debug!(%failure, "a sandbox is dropped unused");
                continue;
            }

            // A sandbox from before a protected file was replaced does not protect that file. It is
            // dropped unused.
            if !sandbox.level.has_namespaces() || sandbox.generation == self.check_protected_files()
            {
                return Ok(sandbox);
            }
        }
    }

    /// Returns the generation of protected files that a sandbox must have mounted.
    fn check_protected_files(&self) -> u64 {
        let (generation, is_new) = self.protected_files.check();

        // The sandbox that is being acquired counts as in use.
        let others = self.in_use_count().saturating_sub(1);
        if is_new && others > 0 {
            tracing::warn!(
                commands = others,
                remedy = "check the protected paths, and change them only while no command runs",
                "a protected path was replaced while commands ran: these commands can change it until they end"
            );
        }
        generation
    }
}
