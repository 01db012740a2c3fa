//! What of the configuration a daemon takes over while it runs: who may call, and what becomes of calls. What
//! is wrong with anything else of it keeps no key from being taken away.

use super::{
    ConfigError, WorkspaceConfig,
    args::Args,
    exposure::check_credential_files_hidden,
    file,
    keys::KeyFile,
    policy::{PolicyConfig, parse_policy},
};

/// What it takes over.
#[derive(Debug)]
pub(crate) struct ReloadedConfig {
    /// What becomes of calls.
    pub(crate) policy: PolicyConfig,
    /// Who may call; without, the daemon's own user and root.
    pub(crate) keys: Option<KeyFile>,
    /// What else the file says, as text.
    pub(crate) restart_only: String,
}

impl ReloadedConfig {
    /// Reads it as `args` say, for a daemon that serves `workspaces`: all of it, or none.
    pub(crate) fn read(args: Args, workspaces: &[WorkspaceConfig]) -> Result<Self, ConfigError> {
        let args = args.without_empty();
        let read = args.config.as_deref().map(file::read_file::<file::ReloadableConfigFile>);
        let (file, fixed) =
            read.transpose().map_err(|problem| ConfigError(vec![problem]))?.unwrap_or_default();
        let mut problems = Vec::new();
        let key_file = args.keys.or(file.keys);
        let files = [(key_file.as_deref(), "--keys"), (args.config.as_deref(), "--config")];
        check_credential_files_hidden(workspaces, files, &mut problems);
        let keys = key_file
            .as_deref()
            .and_then(|path| KeyFile::read(path).map_err(|found| problems.extend(found)).ok());
        let policy = parse_policy(file.policy, &file.approvals, &mut problems);
        if !problems.is_empty() {
            return Err(ConfigError(problems));
        }
        Ok(Self { policy, keys, restart_only: fixed })
    }
}
