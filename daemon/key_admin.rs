//! Administration of the key file, for `jig key`.

use std::{collections::BTreeSet, io, path::Path, time::SystemTime};

use rustls::pki_types::{CertificateDer, pem::PemObject as _};

use super::{
    catalog::Catalog,
    config::{
        client_certificate::{CERTIFICATE_NAME_RULE, CertificateName, ClientCertificate},
        keys::{self, AccessRole, ApiKey, KeyFileEditError, KeyLimits, RateLimit},
        tools::load_tools,
    },
};

/// Why a key file was not changed, or cannot be listed. Display says what to do.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The requested key or the content of the file is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The file or its directory cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file or directory.
        path: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Settings of a key, to add or to list. The secret is not part of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyInfo {
    /// Name of the key's holder in records: 1 to 64 letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// `read`, `invoke` or `admin`.
    pub role: String,
    /// Names of client certificates that authenticate the holder, such as
    /// `uri:spiffe://example.org/builder` or `sha256:` and a fingerprint.
    pub certificates: Vec<String>,
    /// Whether a key authenticates the holder. Ignored by [`add`].
    pub has_key: bool,
    /// Workspaces that the key gives access to; empty for all, or for none with
    /// `create_workspaces`.
    pub workspaces: Vec<String>,
    /// Whether the key may create workspaces, and use those.
    pub create_workspaces: bool,
    /// Tools that the key gives access to; empty for all.
    pub tools: Vec<String>,
    /// Average number of calls per second.
    pub calls_per_second: Option<u32>,
    /// Calls in one burst. Needs `calls_per_second`.
    pub burst: Option<u32>,
    /// Calls that may run at the same time.
    pub concurrent_calls: Option<u32>,
    /// When the key expires.
    pub expires: Option<SystemTime>,
    /// When the key was created, as written in the file.
    pub created: Option<String>,
}

/// Adds a key to the file at `path`, and creates the file if it is missing. Blocks.
///
/// `config` is the daemon's configuration file; it is needed if the key names a tool defined there.
/// Returns the secret, which is not stored and cannot be read again.
///
/// # Errors
///
/// Rejects unknown roles, unknown tools, malformed names of certificates, and a burst without a
/// rate.
pub fn add(path: &Path, info: &KeyInfo, config: Option<&Path>) -> Result<String, KeyFileError> {
    let secret = keys::add(path, &to_api_key(info, config)?)?;
    Ok(secret.reveal().to_owned())
}

/// As [`add`], for a holder that only client certificates authenticate.
pub fn add_certificates(
    path: &Path,
    info: &KeyInfo,
    config: Option<&Path>,
) -> Result<(), KeyFileError> {
    Ok(keys::add_entry(path, &to_api_key(info, config)?)?)
}

/// Returns the names that entries can have for the first certificate of a PEM file: its SHA-256
/// fingerprint, then its alternative names.
pub fn certificate_names(path: &Path) -> Result<Vec<String>, KeyFileError> {
    let pem = std::fs::read(path)
        .map_err(|source| KeyFileError::Io { path: path.display().to_string(), source })?;
    let invalid = |problem: &dyn std::fmt::Display| {
        KeyFileError::Invalid(format!(
            "{}: {problem}: give a PEM file with a certificate",
            path.display()
        ))
    };
    let certificate = CertificateDer::from_pem_slice(&pem).map_err(|error| invalid(&error))?;
    let certificate = ClientCertificate::from_der(&certificate).map_err(|error| invalid(&error))?;
    Ok(certificate.names().iter().map(ToString::to_string).collect())
}

fn to_api_key(info: &KeyInfo, config: Option<&Path>) -> Result<ApiKey, KeyFileError> {
    let invalid = |text: String| Err(KeyFileError::Invalid(text));
    let mut roles = [AccessRole::Read, AccessRole::Invoke, AccessRole::Admin].into_iter();
    let Some(role) = roles.find(|role| role.name() == info.role) else {
        return invalid(format!("role {:?}: give read, invoke or admin", info.role));
    };
    if info.burst.is_some() && info.calls_per_second.is_none() {
        return invalid("a burst needs a number of calls per second".to_owned());
    }

    // A daemon would reject the whole file because of one unknown tool.
    let catalog =
        load_catalog(config).map_err(|problems| KeyFileError::Invalid(problems.join("\n")))?;
    if let Some(unknown) = info.tools.iter().find(|tool| !catalog.has_tool(tool)) {
        let text = catalog.unknown_tool_message(unknown);
        return invalid(match config {
            Some(_) => text,
            None => format!("{text}; name the file that has [[tools]] with --config"),
        });
    }

    let certificates: Option<BTreeSet<_>> =
        info.certificates.iter().map(|name| CertificateName::parse(name)).collect();
    let Some(certificates) = certificates else {
        return invalid(format!("the name of a certificate is malformed: {CERTIFICATE_NAME_RULE}"));
    };

    let names = |names: &[String]| -> Option<BTreeSet<String>> {
        (!names.is_empty()).then(|| names.iter().cloned().collect())
    };
    Ok(ApiKey {
        name: info.name.clone(),
        role,
        digest: None,
        certificates,
        workspaces: names(&info.workspaces),
        create_workspaces: info.create_workspaces,
        tools: names(&info.tools),
        limits: KeyLimits {
            rate: info.calls_per_second.map(|per_second| RateLimit {
                per_second,
                burst: info.burst.unwrap_or(per_second),
            }),
            concurrent_calls: info.concurrent_calls,
        },
        expires: info.expires,
    })
}

/// The canonical tools, and those that a configuration file defines.
fn load_catalog(config: Option<&Path>) -> Result<Catalog, Vec<String>> {
    let tools = config.map(load_tools).transpose()?.unwrap_or_default();
    let catalog = Catalog::load().map_err(|error| vec![error.to_string()])?;
    catalog.with_custom_tools(tools)
}

/// Removes the key named `name` from the file at `path`. Blocks.
pub fn revoke(path: &Path, name: &str) -> Result<(), KeyFileError> {
    Ok(keys::revoke(path, name)?)
}

/// Lists the keys of the file at `path`. Blocks.
pub fn list(path: &Path) -> Result<Vec<KeyInfo>, KeyFileError> {
    let names = |names: Option<BTreeSet<String>>| names.into_iter().flatten().collect();
    let infos = keys::list(path)?.into_iter().map(|(key, created)| KeyInfo {
        name: key.name,
        role: key.role.name().to_owned(),
        certificates: key.certificates.iter().map(ToString::to_string).collect(),
        has_key: key.digest.is_some(),
        workspaces: names(key.workspaces),
        create_workspaces: key.create_workspaces,
        tools: names(key.tools),
        calls_per_second: key.limits.rate.map(|rate| rate.per_second),
        burst: key.limits.rate.map(|rate| rate.burst),
        concurrent_calls: key.limits.concurrent_calls,
        expires: key.expires,
        created,
    });
    Ok(infos.collect())
}

impl From<KeyFileEditError> for KeyFileError {
    fn from(error: KeyFileEditError) -> Self {
        match error {
            KeyFileEditError::Invalid(text) => Self::Invalid(text),
            KeyFileEditError::Io { path, source } => Self::Io { path, source },
        }
    }
}
