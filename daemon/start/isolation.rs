//! What the probes at start have found, and how it is told.

use std::{io, sync::Arc};

use super::host_sockets::{self, HostSockets};
use crate::daemon::{
    config::Config,
    sandbox::{
        cgroup::MemoryAccounting,
        host_environment::HostEnvironment,
        keeper_process::KeeperProcess,
        level::{Isolation, IsolationLevel},
        level_probe::ProbedIsolation,
        pools::SandboxPools,
        protected_files::ProtectedFiles,
        wire::SandboxIdentity,
    },
    sys::landlock,
    workspace::Workspace,
};

/// What makes sandboxes, and what it was found in.
pub(super) struct StartedKeeper {
    pub(super) process: KeeperProcess,
    pub(super) environment: KeeperEnvironment,
}

/// What sandboxes are made in.
pub(super) struct KeeperEnvironment {
    /// What counts what they use.
    pub(super) accounting: MemoryAccounting,
    /// What the daemon runs in.
    pub(super) surroundings: HostEnvironment,
}

/// The sandboxes, and what the probe has found in each workspace.
pub(super) struct ProbedSandboxes {
    pub(super) sandboxes: Arc<SandboxPools>,
    pub(super) results: Vec<ProbedIsolation>,
}

/// Has each workspace's pool prove what isolation it gives.
pub(super) async fn probe_workspaces(
    keeper: KeeperProcess,
    accounting: &MemoryAccounting,
    config: &Config,
) -> io::Result<ProbedSandboxes> {
    let count = config.workspaces.len();
    let protected_files = config.workspaces.iter().map(|workspace| {
        let names = workspace.protection.path_names().into_iter();
        ProtectedFiles::new(names.map(|name| workspace.path.join(name)).collect())
    });
    let sandboxes = SandboxPools::new(
        keeper,
        protected_files.collect(),
        config.concurrent_runs,
        config.limits,
        accounting.cgroups().cloned(),
    )?;
    let mut results = Vec::new();
    for index in 0..count {
        let Some(pool) = sandboxes.pool(index) else {
            return Err(io::Error::other("a workspace has no sandboxes"));
        };
        results.push(pool.probe_levels(config.minimum_level).await);
    }
    Ok(ProbedSandboxes { sandboxes: Arc::new(sandboxes), results })
}

/// What is true of a workspace's commands.
pub(super) fn workspace_isolation(
    config: &Config,
    keeper: &KeeperEnvironment,
    workspace: &str,
    found: &ProbedIsolation,
) -> Isolation {
    let of_workspace = config.workspaces.iter().find(|config| config.name == workspace);
    Isolation {
        level: found.level,
        minimum: config.minimum_level,
        workspace: workspace.to_owned(),
        rejected: found.rejected.clone(),
        best_below_minimum: found.best_below_minimum,
        waived_checks: found.waived_checks.clone(),
        host_environment: keeper.surroundings.clone(),
        landlock_abi: landlock::abi_version(),
        allow_ptrace: config.allow_ptrace,
        network: config.network,
        memory_accounting: keeper.accounting.clone(),
        has_persistent_home: of_workspace.is_some_and(|config| config.persistent_home),
        protected_paths: of_workspace
            .map(|config| config.protection.path_names())
            .unwrap_or_default(),
    }
}

/// Has a workspace be where its commands see it: without namespaces, at its own path.
pub(super) fn set_command_path(workspace: &mut Workspace, isolation: &Isolation) {
    if isolation.level == IsolationLevel::L1 {
        workspace.mount_in_place();
    }
}

/// Tells the log what was found. Whoever embeds the daemon is told of failures by its answer.
pub(super) fn log_isolation(isolation: &Isolation, failures: bool) {
    let workspace = isolation.workspace.as_str();
    if let Some(summary) = isolation.summary().filter(|_| failures) {
        tracing::warn!(workspace, "{summary}");
    }
    if isolation.is_ready() {
        tracing::info!(workspace, isolation = %isolation.level, "commands are isolated");
        for refused in &isolation.rejected {
            tracing::warn!(
                workspace,
                level = %refused.level,
                stage = refused.failure.stage.name(),
                errno = refused.failure.errno_name(),
                failure = %refused.failure,
                remedy = refused.failure.stage.remedy(),
                "this host does not give a higher level of isolation, and the operator allows the lower"
            );
        }
    } else if failures {
        for refused in &isolation.rejected {
            tracing::error!(
                workspace,
                level = %refused.level,
                stage = refused.failure.stage.name(),
                errno = refused.failure.errno_name(),
                failure = %refused.failure,
                remedy = refused.failure.stage.remedy(),
                "commands cannot be isolated and are not run"
            );
        }
    }
}

/// What `--check` prints about a workspace.
pub(super) fn isolation_report(
    workspace: &Workspace,
    isolation: &Isolation,
    identity: Option<SandboxIdentity>,
    sockets: &HostSockets,
) -> String {
    let ready = isolation.is_ready();
    let mut report = format!(
        "workspace {} at {}: isolation {} {}\n",
        workspace.name(),
        workspace.path().display(),
        isolation.level,
        if ready { "ok" } else { "NOT READY" }
    );
    if let Some(summary) = isolation.summary() {
        report += &format!("  {summary}\n");
    }
    if let Some(identity) = identity.filter(|_| ready) {
        report += &format!("  commands are user {}\n", identity.uid);
    }
    for refused in &isolation.rejected {
        report += &format!(
            "  {}: {}\n  remedy: {}\n",
            refused.level,
            refused.failure,
            refused.failure.stage.remedy()
        );
    }
    for layer in isolation.layers().iter().filter(|_| ready) {
        let mark = if layer.applied { "yes" } else { "no" };
        report += &format!("  {:<18} {mark:<4} {}\n", layer.name, layer.detail);
        // That of a level was told above.
        if !layer.remedy.is_empty() && isolation.rejected.is_empty() {
            report += &format!("  {:<23} remedy: {}\n", "", layer.remedy);
        }
    }
    if let Some(sockets) = sockets.describe() {
        report += &format!(
            "  {:<18} no   commands can connect to these of the host: {sockets}\n  {:<23} remedy: {}\n",
            "host_unix_sockets",
            "",
            host_sockets::REMEDY
        );
    }
    report
}
