//! Reloads the configuration file, the key file and the files of TLS on SIGHUP.
//!
//! Keys, policy and approvals are replaced atomically while calls run. All other settings need a
//! restart; errors in them are logged.
//!
//! The kernel also sends SIGHUP when the terminal that the daemon was started in is closed. Then
//! the daemon ends, as other programs do.

use std::{io, sync::Arc};

use rustix::{
    process::{Signal as SignalName, getpid, kill_process},
    stdio::{stderr, stdin, stdout},
    termios::isatty,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::tls_reload::TlsReloader;
use crate::daemon::{
    config::{Config, ConfigError, WorkspaceConfig, args::Args, reload::ReloadedConfig},
    pipeline::{Pipeline, access::unknown_names, policy::decision::CompiledPolicy},
    server::{service_manager::ServiceManager, tls::ListenerTls},
    task,
    telemetry::audit::AuditEvent,
};

/// Handles SIGHUP. The signal is caught from the moment that this value exists.
#[derive(Debug)]
pub(super) struct ConfigReloader {
    args: Args,
    sighup: Signal,
    /// The settings that need a restart, as they were when the daemon started.
    restart_only: String,
    /// Tools that could not work with the configuration of the daemon's start.
    unconfigured_tools: &'static [&'static str],
    /// The workspaces that the daemon serves, whatever the file says by now.
    workspaces: Arc<[WorkspaceConfig]>,
    has_terminal: bool,
    service_manager: ServiceManager,
}

impl ConfigReloader {
    /// Catches SIGHUP from now on. `args` are the arguments that `config` was loaded from.
    pub(super) fn install(
        args: Args,
        config: &Config,
        service_manager: ServiceManager,
    ) -> io::Result<Self> {
        Ok(Self {
            args,
            sighup: signal(SignalKind::hangup())?,
            restart_only: config.restart_only.clone(),
            unconfigured_tools: config.unconfigured_tools(),
            workspaces: config.workspaces.clone().into(),
            has_terminal: has_terminal(),
            service_manager,
        })
    }

    /// Starts a task that reloads the configuration on each SIGHUP, and the files of TLS whenever
    /// they change.
    pub(super) fn spawn(mut self, pipeline: Arc<Pipeline>, tls: &[Arc<ListenerTls>]) {
        let tls = TlsReloader::new(tls, Arc::clone(&self.workspaces));
        tls.clone().spawn_watch();
        task::spawn("reload", async move {
            while self.sighup.recv().await.is_some() {
                if self.has_terminal && !has_terminal() {
                    // Drain the server, as SIGTERM does.
                    let ended = kill_process(getpid(), SignalName::TERM);
                    tracing::info!(?ended, "the terminal was closed: shutting down");
                    return;
                }
                self.service_manager.reloading().await;
                let audit = pipeline.telemetry.audit();
                audit.reopen();
                let tls_problems = tls.reload().await;
                let problems = self.reload(&pipeline).await.err().unwrap_or_default();
                let is_success = problems.is_empty() && tls_problems.is_empty();
                audit.report(
                    AuditEvent::ConfigReloaded,
                    [("status", if is_success { "success" } else { "error" }.into())],
                );
                for problem in &problems {
                    tracing::error!(
                        problem,
                        "the configuration cannot be reloaded: the old one stays in effect"
                    );
                }
                let problem = problems.iter().chain(&tls_problems).next();
                self.service_manager.reloaded(problem.map(String::as_str)).await;
            }
        });
    }

    /// Reads the files, checks them, and replaces keys and policy. Changes nothing on errors.
    async fn reload(&self, pipeline: &Pipeline) -> Result<(), Vec<String>> {
        let (args, workspaces) = (self.args.clone(), Arc::clone(&self.workspaces));
        let read = task::spawn_blocking(move || {
            let reloaded = ReloadedConfig::read(args.clone(), &workspaces)?;
            Ok((reloaded, Config::load(args).err()))
        });
        let (config, restart_errors) = match read.await {
            Ok(read) => read.map_err(|error: ConfigError| error.0)?,
            Err(panic) => return Err(vec![panic.to_string()]),
        };

        let workspaces = pipeline.workspaces.configured().iter();
        let names: Vec<_> = workspaces.map(|context| context.workspace.name()).collect();
        let (catalog, access) = (&pipeline.catalog, &pipeline.access);
        let policy = CompiledPolicy::new(config.policy, catalog, &names, self.unconfigured_tools);
        let key_problems = match &config.keys {
            Some(keys) => unknown_names(keys, catalog, &names),
            None if access.requires_key() => vec![
                "keys: the daemon was started with keys and cannot serve without any: restart the daemon".to_owned(),
            ],
            None => Vec::new(),
        };
        let policy = match policy {
            Ok(policy) if key_problems.is_empty() => policy,
            policy => {
                let policy_problems = policy.err().into_iter().flatten();
                return Err(key_problems.into_iter().chain(policy_problems).collect());
            }
        };

        let rules = policy.rules().len();
        let count = config.keys.as_ref().map(|keys| keys.keys.len());
        if let Some(keys) = config.keys {
            access.set_keys(keys, catalog, &names)?;
            // These may be the first keys.
            pipeline.reserve_headroom();
            pipeline.drop_revoked_replies().await;
        }
        pipeline.policy.replace_policy(policy);

        tracing::info!(rules, keys = count, "reloaded policy, approvals and keys");
        if config.restart_only != self.restart_only {
            tracing::warn!(
                remedy = "restart the daemon",
                "other settings of the configuration file changed too: they need a restart to take effect"
            );
        }
        for problem in restart_errors.into_iter().flat_map(|error| error.0) {
            tracing::warn!(problem, "the daemon would not start with this configuration");
        }
        Ok(())
    }
}

/// Whether one of the standard streams is a terminal that is still open.
fn has_terminal() -> bool {
    [stdin(), stdout(), stderr()].into_iter().any(isatty)
}
