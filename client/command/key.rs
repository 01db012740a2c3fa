//! `jig key`: manages the API keys and client certificates in a daemon's key file.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};

use crate::global::GlobalArgs;

/// Create, list and revoke API keys in the key file of a daemon on this machine.
///
/// A daemon with `--keys FILE` reads the file at its start and after SIGHUP.
#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// Key file of the daemon.
    #[arg(long, global = true, env = "JIG_KEYS", value_name = "FILE")]
    keys: Option<PathBuf>,
    #[command(subcommand)]
    action: KeyCommand,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    New(NewArgs),
    /// List the keys: names and permissions, never the keys themselves.
    #[command(visible_alias = "ls")]
    List,
    /// Revoke a key.
    Revoke {
        /// Name of the key.
        name: String,
    },
    /// Print the names of a client certificate that entries of the key file can have: its SHA-256
    /// fingerprint and its alternative names.
    Certificate {
        /// PEM file with the certificate.
        file: PathBuf,
    },
}

/// Create a key and print it once: the file stores only its digest. Creates a missing file.
///
/// Example: `jig key --keys keys.toml new alice --role invoke --concurrent-calls 8`.
#[derive(Debug, Args)]
struct NewArgs {
    /// Name of the key's holder in records: letters, digits, dots, underscores and hyphens.
    name: String,
    /// Role of the key: read (catalog and status), invoke (call tools) or admin (everything,
    /// including approvals).
    #[arg(long, default_value = "invoke", value_parser = ["read", "invoke", "admin"])]
    role: String,
    /// Create an entry for a client certificate instead of a key: `uri:URI`, `dns:NAME`,
    /// `email:ADDRESS`, `sha256:FINGERPRINT`, or a PEM file whose fingerprint is used. Repeatable.
    #[arg(long, value_name = "NAME|FILE")]
    certificate: Vec<String>,
    /// Create a key beside the certificates: the holder can use either.
    #[arg(long, requires = "certificate")]
    with_key: bool,
    /// Workspace that the key is limited to. Repeatable. Default: all workspaces.
    #[arg(long, value_name = "NAME")]
    for_workspace: Vec<String>,
    /// Let the key create workspaces. It sees these, and no others without `--for-workspace`.
    #[arg(long)]
    create_workspaces: bool,
    /// Tool that the key is limited to. Repeatable. Default: all tools.
    #[arg(long, value_name = "NAME")]
    for_tool: Vec<String>,
    /// Configuration file of the daemon, needed if the key is for a tool that the file defines.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Maximum average rate, in calls per second. Default: no limit for the key.
    #[arg(long, value_name = "NUMBER")]
    calls_per_second: Option<u32>,
    /// Maximum burst, in calls. Default: the calls of one second.
    #[arg(long, value_name = "NUMBER", requires = "calls_per_second")]
    burst: Option<u32>,
    /// Maximum number of concurrent calls. The same limit applies to running processes and to
    /// transfers. Default: no limit for the key.
    #[arg(long, value_name = "NUMBER")]
    concurrent_calls: Option<u32>,
    /// Expiry of the key, for example `2027-01-31T00:00:00Z`. Default: never.
    #[arg(long, value_name = "TIME")]
    expires: Option<prost_types::Timestamp>,
}

#[cfg(feature = "daemon")]
pub(crate) fn key(global: &GlobalArgs, args: KeyArgs) -> ExitCode {
    super::report_and_exit(keys::run(args, global.json), global.json)
}

/// Reports that this binary lacks the daemon.
#[cfg(not(feature = "daemon"))]
pub(crate) fn key(global: &GlobalArgs, _: KeyArgs) -> ExitCode {
    let text =
        "this jig was built without the daemon (feature `daemon`) and cannot write its files";
    let failure = crate::cli_error::CliError::Usage(text.to_owned());
    super::report_and_exit(Err(failure), global.json)
}

#[cfg(feature = "daemon")]
mod keys {
    use std::{fmt::Write as _, path::Path, time::SystemTime};

    use jig::daemon::key_admin::{self, KeyFileError, KeyInfo};
    use serde_json::{Value, json};

    use super::{KeyArgs, KeyCommand, NewArgs};
    use crate::{cli_error::CliError, local_error::LocalError, output};

    pub(super) fn run(args: KeyArgs, as_json: bool) -> Result<(), CliError> {
        if let KeyCommand::Certificate { file } = args.action {
            return print_certificate(&file, as_json);
        }
        let Some(path) = args.keys.filter(|path| !path.as_os_str().is_empty()) else {
            let text = "name the key file with --keys FILE (or JIG_KEYS)";
            return Err(CliError::Usage(text.to_owned()));
        };
        match args.action {
            KeyCommand::New(args) => new(&path, args, as_json),
            KeyCommand::List => list(&path, as_json),
            KeyCommand::Certificate { file } => print_certificate(&file, as_json),
            KeyCommand::Revoke { name } => {
                key_admin::revoke(&path, &name).map_err(failed)?;
                output::note(&format!(
                    "the key {:?} is revoked in {}. Send SIGHUP to the daemon to apply it",
                    name,
                    path.display()
                ));
                Ok(())
            }
        }
    }

    fn failed(error: KeyFileError) -> CliError {
        CliError::Local(match error {
            KeyFileError::Invalid(message) => {
                LocalError { code: "FAILED_PRECONDITION", reason: None, message, path: None }
            }
            KeyFileError::Io { path, source } => LocalError::file(Path::new(&path), &source),
        })
    }

    fn new(path: &Path, args: NewArgs, as_json: bool) -> Result<(), CliError> {
        let expires = args.expires.map(SystemTime::try_from).transpose();
        let certificates = args.certificate.iter().map(|text| certificate_name(text));
        let certificates: Vec<String> = certificates.collect::<Result<_, _>>()?;
        let has_key = certificates.is_empty() || args.with_key;
        let info = KeyInfo {
            name: args.name,
            role: args.role,
            certificates,
            has_key,
            workspaces: args.for_workspace,
            create_workspaces: args.create_workspaces,
            tools: args.for_tool,
            calls_per_second: args.calls_per_second,
            burst: args.burst,
            concurrent_calls: args.concurrent_calls,
            expires: expires.map_err(|error| CliError::Usage(error.to_string()))?,
            created: None,
        };
        let config = args.config.as_deref();
        if !has_key {
            key_admin::add_certificates(path, &info, config).map_err(failed)?;
            return report_certificates(path, &info, as_json);
        }

        let key = key_admin::add(path, &info, config).map_err(failed)?;
        if as_json {
            let mut json = key_json(&info);
            json["key"] = key.into();
            return output::write_json(&json);
        }

        output::write_stdout(format!("{key}\n").as_bytes())?;
        output::note(&format!(
            "key {:?} ({}) created. It is shown once; {} stores only its digest. A running daemon accepts it after SIGHUP",
            info.name,
            info.role,
            path.display()
        ));
        Ok(())
    }

    /// Reports a new entry that has certificates and no key.
    fn report_certificates(path: &Path, info: &KeyInfo, as_json: bool) -> Result<(), CliError> {
        if as_json {
            return output::write_json(&key_json(info));
        }
        output::note(&format!(
            "entry {:?} ({}) created in {} for {}. A running daemon accepts it after SIGHUP",
            info.name,
            info.role,
            path.display(),
            info.certificates.join(", ")
        ));
        Ok(())
    }

    /// Returns the name of a certificate as it is, or the fingerprint of the certificate in a file.
    fn certificate_name(text: &str) -> Result<String, CliError> {
        const NAME_PREFIXES: [&str; 4] = ["uri:", "dns:", "email:", "sha256:"];
        if NAME_PREFIXES.iter().any(|prefix| text.starts_with(prefix)) {
            return Ok(text.to_owned());
        }
        let names = key_admin::certificate_names(Path::new(text)).map_err(failed)?;
        // The fingerprint is the first one.
        Ok(names.into_iter().next().unwrap_or_default())
    }

    fn print_certificate(file: &Path, as_json: bool) -> Result<(), CliError> {
        let names = key_admin::certificate_names(file).map_err(failed)?;
        if as_json {
            return output::write_json(&json!({ "names": names }));
        }
        output::write_stdout(format!("{}\n", names.join("\n")).as_bytes())
    }

    fn list(path: &Path, as_json: bool) -> Result<(), CliError> {
        let keys = key_admin::list(path).map_err(failed)?;
        if as_json {
            let keys: Vec<_> = keys.iter().map(key_json).collect();
            return output::write_json(&json!({ "keys": keys }));
        }

        let mut text = String::new();
        for key in &keys {
            push_key_line(&mut text, key);
        }

        output::write_stdout(text.as_bytes())
    }

    fn push_key_line(text: &mut String, key: &KeyInfo) {
        let listed = |names: &[String]| match names {
            [] => "all".to_owned(),
            names => names.join(","),
        };
        let mut workspaces = key.workspaces.clone();
        if key.create_workspaces {
            workspaces.push("(own)".to_owned());
        }
        let mut parts: Vec<String> = Vec::new();
        if !key.certificates.is_empty() {
            parts.push(format!("certificates={}", key.certificates.join(",")));
            parts.push(format!("key={}", if key.has_key { "yes" } else { "no" }));
        }
        parts.extend([
            format!("workspaces={}", listed(&workspaces)),
            format!("tools={}", listed(&key.tools)),
        ]);

        let numbers = [
            ("calls_per_second", key.calls_per_second),
            ("burst", key.burst),
            ("concurrent_calls", key.concurrent_calls),
        ];
        for (name, number) in numbers {
            parts.extend(number.map(|number| format!("{name}={number}")));
        }

        parts.extend(expiry_text(key).map(|time| format!("expires={time}")));
        parts.extend(key.created.iter().map(|time| format!("created={time}")));
        // Writing to a String cannot fail.
        let _written = writeln!(text, "{}\t{}\t{}", key.name, key.role, parts.join(" "));
    }

    fn key_json(key: &KeyInfo) -> Value {
        json!({
            "name": key.name,
            "role": key.role,
            "certificates": key.certificates,
            "has_key": key.has_key,
            "workspaces": key.workspaces,
            "create_workspaces": key.create_workspaces,
            "tools": key.tools,
            "calls_per_second": key.calls_per_second,
            "burst": key.burst,
            "concurrent_calls": key.concurrent_calls,
            "expires": expiry_text(key),
            "created": key.created,
        })
    }

    fn expiry_text(key: &KeyInfo) -> Option<String> {
        let time = key.expires.map(prost_types::Timestamp::from);
        time.map(|time| time.to_string())
    }
}
