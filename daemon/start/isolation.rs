//! Probes the isolation of each workspace at start, and reports the result to log and `--check`.

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

/// The keeper process and the environment that it was started in.
pub(super) struct StartedKeeper {
    pub(super) process: KeeperProcess,
    pub(super) environment: KeeperEnvironment,
}

/// The environment that sandboxes are built in.
pub(super) struct KeeperEnvironment {
    /// How the memory of runs is limited.
    pub(super) accounting: MemoryAccounting,
    pub(super) host_environment: HostEnvironment,
}

/// The sandbox pools, and the probe result of each workspace in order.
pub(super) struct ProbedSandboxes {
    pub(super) sandboxes: Arc<SandboxPools>,
    pub(super) results: Vec<ProbedIsolation>,
}

/// Creates the sandbox pools and has each prove its isolation level.
pub(super) async fn probe_workspaces(
    keeper: KeeperProcess,
    accounting: &MemoryAccounting,
    config: &Config,
) -> io::Result<ProbedSandboxes> {
    let protected_files = config.workspaces.iter().map(|workspace| {
        let names = workspace.protection.path_names().into_iter();
        ProtectedFiles::new(names.map(|name| workspace.path.join(name)).collect())
    });
    let sandboxes = SandboxPools::new(
        keeper,
        protected_files.collect(),
        config.concurrent_runs,
        config.limits,
        config.recycle_sandboxes,
        config.warm_shells,
        accounting.cgroups().cloned(),
    )?;

    let mut results = Vec::new();
    for index in 0..config.workspaces.len() {
        let Some(pool) = sandboxes.pool(index) else {
            return Err(io::Error::other("a workspace has no sandboxes"));
        };
        results.push(pool.probe_levels(config.minimum_level).await);
    }
    Ok(ProbedSandboxes { sandboxes: Arc::new(sandboxes), results })
}

/// Combines probe result, configuration and host environment of a workspace.
pub(super) fn workspace_isolation(
    config: &Config,
    keeper: &KeeperEnvironment,
    workspace: &str,
    probe: &ProbedIsolation,
) -> Isolation {
    let workspace_config = config.workspaces.iter().find(|config| config.name == workspace);
    let created = config.created_workspaces.as_ref();
    let persistent = workspace_config
        .map(|config| config.persistent)
        .or(created.map(|created| created.common.persistent));
    Isolation {
        level: probe.level,
        minimum: config.minimum_level,
        workspace: workspace.to_owned(),
        failed_levels: probe.failed_levels.clone(),
        best_below_minimum: probe.best_below_minimum,
        waived_checks: probe.waived_checks.clone(),
        host_environment: keeper.host_environment.clone(),
        landlock_abi: landlock::abi_version(),
        allow_ptrace: config.allow_ptrace,
        network: config.network,
        memory_accounting: keeper.accounting.clone(),
        persistent: persistent.unwrap_or_default(),
        protected_paths: workspace_config
            .map(|config| config.protection.path_names())
            .unwrap_or_default(),
    }
}

/// Sets the path at which commands see the workspace: without namespaces (L1), its own path.
pub(super) fn set_command_path(workspace: &mut Workspace, isolation: &Isolation) {
    if isolation.level == IsolationLevel::L1 {
        workspace.mount_in_place();
    }
}

/// Logs the probe result. `failures` is false in an embedded daemon, whose call reports failures.
pub(super) fn log_isolation(isolation: &Isolation, failures: bool) {
    let workspace = isolation.workspace.as_str();
    if let Some(summary) = isolation.summary().filter(|_| failures) {
        tracing::warn!(workspace, "{summary}");
    }

    if isolation.is_ready() {
        tracing::info!(workspace, isolation = %isolation.level, "commands are isolated");
        for failed in &isolation.failed_levels {
            tracing::warn!(
                workspace,
                level = %failed.level,
                stage = failed.failure.stage.name(),
                errno = failed.failure.errno_name(),
                failure = %failed.failure,
                remedy = failed.failure.stage.remedy(),
                "this host does not support a higher isolation level; the configuration allows this one"
            );
        }
    } else if failures {
        for failed in &isolation.failed_levels {
            tracing::error!(
                workspace,
                level = %failed.level,
                stage = failed.failure.stage.name(),
                errno = failed.failure.errno_name(),
                failure = %failed.failure,
                remedy = failed.failure.stage.remedy(),
                "commands cannot be isolated and are not run"
            );
        }
    }
}

/// Formats what `--check` prints about a workspace.
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
        report += &format!("  commands run as uid {}\n", identity.uid);
    }

    for failed in &isolation.failed_levels {
        report += &format!(
            "  {}: {}\n  remedy: {}\n",
            failed.level,
            failed.failure,
            failed.failure.stage.remedy()
        );
    }

    for layer in isolation.layers().iter().filter(|_| ready) {
        let mark = if layer.applied { "yes" } else { "no" };
        report += &format!("  {:<18} {mark:<4} {}\n", layer.name, layer.detail);
        // With a failed level, its remedy is reported above.
        if !layer.remedy.is_empty() && isolation.failed_levels.is_empty() {
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
