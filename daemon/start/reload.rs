//! Reading the configuration and the key file again, at SIGHUP: who may call and what is let in is replaced,
//! as a whole or not at all, while calls go on. Everything else takes a restart; what is wrong with it is told.
//!
//! A terminal that is closed sends SIGHUP, too, to what was started in it: that ends the daemon, as it ends
//! other programs.

use std::{io, sync::Arc};

use rustix::{
    process::{Signal as SignalName, getpid, kill_process},
    stdio::{stderr, stdin, stdout},
    termios::isatty,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::daemon::{
    config::{Config, ConfigError, WorkspaceConfig, args::Args, reload::ReloadedConfig},
    pipeline::{Pipeline, access::unknown_names, policy::decision::CompiledPolicy},
    task,
};

/// What is needed to read it again. SIGHUP is caught from the moment that this exists.
#[derive(Debug)]
pub(super) struct ConfigReloader {
    args: Args,
    sighup: Signal,
    /// What of the file takes a restart, as it was when the daemon started.
    restart_only: String,
    /// Tools that have nothing to do, likewise.
    idle_tools: &'static [&'static str],
    /// What it serves, whatever the file says by now.
    workspaces: Arc<[WorkspaceConfig]>,
    has_terminal: bool,
}

impl ConfigReloader {
    /// Catches the signal from now on. `args` led to `config`.
    pub(super) fn install(args: Args, config: &Config) -> io::Result<Self> {
        Ok(Self {
            args,
            sighup: signal(SignalKind::hangup())?,
            restart_only: config.restart_only.clone(),
            idle_tools: config.idle_tools(),
            workspaces: config.workspaces.clone().into(),
            has_terminal: has_terminal(),
        })
    }

    /// Reads it again each time that the signal comes.
    pub(super) fn spawn(mut self, pipeline: Arc<Pipeline>) {
        task::spawn("reload", async move {
            while self.sighup.recv().await.is_some() {
                if self.has_terminal && !has_terminal() {
                    // As told by the one that was taken away: the server drains.
                    let ended = kill_process(getpid(), SignalName::TERM);
                    tracing::info!(?ended, "the terminal is gone: ending");
                    return;
                }
                match self.reload(&pipeline).await {
                    Ok(()) => {}
                    Err(problems) => {
                        for problem in problems {
                            tracing::error!(
                                problem,
                                "the configuration cannot be read again: the old one stays"
                            );
                        }
                    }
                }
            }
        });
    }

    async fn reload(&self, pipeline: &Pipeline) -> Result<(), Vec<String>> {
        let (args, workspaces) = (self.args.clone(), Arc::clone(&self.workspaces));
        let read = task::spawn_blocking(move || {
            let renewal = ReloadedConfig::read(args.clone(), &workspaces)?;
            Ok((renewal, Config::load(args).err()))
        });
        let (config, unusable) = match read.await {
            Ok(read) => read.map_err(|error: ConfigError| error.0)?,
            Err(panic) => return Err(vec![panic.to_string()]),
        };
        let scenes = pipeline.workspaces.iter();
        let names: Vec<_> = scenes.map(|scene| scene.workspace.name()).collect();
        let (catalog, access) = (&pipeline.catalog, &pipeline.access);
        let settings = CompiledPolicy::new(config.policy, catalog, &names, self.idle_tools);
        let keys = match &config.keys {
            Some(keys) => unknown_names(keys, catalog, &names),
            None if access.requires_key() => vec![
                "keys: there were some, and nobody can be let in without any from now on: restart the daemon".to_owned(),
            ],
            None => Vec::new(),
        };
        let settings = match (settings, keys) {
            (Ok(settings), problems) if problems.is_empty() => settings,
            (settings, problems) => {
                return Err(problems
                    .into_iter()
                    .chain(settings.err().into_iter().flatten())
                    .collect());
            }
        };
        let rules = settings.rules().len();
        let count = config.keys.as_ref().map(|keys| keys.keys.len());
        if let Some(keys) = config.keys {
            access.set_keys(keys, catalog, &names)?;
            // There may have been none before.
            pipeline.keep_headroom();
            pipeline.drop_revoked_replies().await;
        }
        pipeline.policy.replace_policy(settings);
        tracing::info!(rules, keys = count, "the configuration was read again");
        if config.restart_only != self.restart_only {
            tracing::warn!(
                remedy = "restart the daemon",
                "the configuration file was changed in more than its tables policy and approvals, and keys: that does not count yet"
            );
        }
        for problem in unusable.into_iter().flat_map(|error| error.0) {
            tracing::warn!(problem, "the daemon could not be started so again");
        }
        Ok(())
    }
}

/// Whether one of the standard streams is a terminal that is still there.
fn has_terminal() -> bool {
    [stdin(), stdout(), stderr()].into_iter().any(isatty)
}
