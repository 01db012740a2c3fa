//! The part of the configuration that a running daemon reloads: policy, approvals and keys.
//!
//! Problems in other parts do not prevent a reload, so that an operator can always revoke a key.

use super::{
    ConfigError, WorkspaceConfig,
    args::Args,
    exposure::check_credential_files_hidden,
    file::{self, ParsedFile, ReloadableConfigFile},
    keys::KeyFile,
    policy::{PolicyConfig, parse_policy},
};

/// The reloaded settings.
#[derive(Debug)]
pub(crate) struct ReloadedConfig {
    pub(crate) policy: PolicyConfig,
    /// API keys. Without them, only the daemon's own user and root may call.
    pub(crate) keys: Option<KeyFile>,
    /// The settings of the file that need a restart, as TOML.
    pub(crate) restart_only: String,
}

impl ReloadedConfig {
    /// Reads the files that `args` name, for a daemon that serves `workspaces`.
    ///
    /// # Errors
    ///
    /// Returns all problems and no settings if one of them is invalid.
    pub(crate) fn read(args: Args, workspaces: &[WorkspaceConfig]) -> Result<Self, ConfigError> {
        let args = args.without_empty();
        let parsed = args.config.as_deref().map(file::read_file::<ReloadableConfigFile>);
        let ParsedFile { content, restart_only, renamed_keys: _ } =
            parsed.transpose().map_err(|problem| ConfigError(vec![problem]))?.unwrap_or_default();

        let mut problems = Vec::new();
        let key_file = args.keys.or(content.keys);
        let files = [(key_file.as_deref(), "--keys"), (args.config.as_deref(), "--config")];
        check_credential_files_hidden(workspaces, files, &mut problems);
        let keys = key_file
            .as_deref()
            .and_then(|path| KeyFile::read(path).map_err(|found| problems.extend(found)).ok());
        let policy = parse_policy(content.policy, &content.approvals, &mut problems);

        if problems.is_empty() {
            Ok(Self { policy, keys, restart_only })
        } else {
            Err(ConfigError(problems))
        }
    }
}
