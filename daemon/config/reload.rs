//! The part of the configuration that a running daemon reloads: policy, approvals and keys.
//!
//! Problems in other parts do not prevent a reload, so that an operator can always revoke a key.

use super::{
    ConfigError, WorkspaceConfig,
    args::Args,
    exposure::{CredentialFile, check_credential_files_hidden},
    file::{self, ParsedFile, ReloadableConfigFile},
    keys::KeyFile,
    policy::{PolicyConfig, parse_policy},
    tls::{TlsCredentials, TlsFiles},
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

/// Reads the files of TLS again, for a daemon that serves `workspaces`.
///
/// # Errors
///
/// Returns all problems.
pub(crate) fn read_tls_files(
    files: &TlsFiles,
    workspaces: &[WorkspaceConfig],
) -> Result<TlsCredentials, Vec<String>> {
    let mut problems = Vec::new();
    let credential_files = CredentialFile::all(None, None, std::iter::once(files));
    check_credential_files_hidden(workspaces, &credential_files, &mut problems);
    match files.read() {
        Ok(credentials) if problems.is_empty() => Ok(credentials),
        read => Err(problems.into_iter().chain(read.err().into_iter().flatten()).collect()),
    }
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
        let config_path = args.config.as_deref();
        let files = CredentialFile::all(key_file.as_deref(), config_path, std::iter::empty());
        check_credential_files_hidden(workspaces, &files, &mut problems);
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
