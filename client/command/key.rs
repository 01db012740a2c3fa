//! `jig key`: the keys that a daemon on this machine takes.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};

use crate::global::Global;

/// Make, list and revoke the keys that callers of a daemon show. They are in the file that `jigd --keys`
/// names, which it reads when it starts, and at SIGHUP.
#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// The key file.
    #[arg(long, global = true, env = "JIG_KEYS", value_name = "FILE")]
    keys: Option<PathBuf>,
    #[command(subcommand)]
    action: Action,
}

/// What to do with keys.
#[derive(Debug, Subcommand)]
enum Action {
    New(NewArgs),
    /// List the keys: names and rights, never the keys themselves.
    #[command(visible_alias = "ls")]
    List,
    /// Take a key away.
    Revoke {
        /// Its name.
        name: String,
    },
}

/// Make a key, and print it: it cannot be shown again. The file is made where it is missing.
#[derive(Debug, Args)]
struct NewArgs {
    /// What its holder is called in records: letters, digits, dots, underscores and hyphens.
    name: String,
    /// What its holder may do: read (look at the catalog and what goes on), invoke (call tools), admin
    /// (everything, also answer approvals).
    #[arg(long, default_value = "invoke", value_parser = ["read", "invoke", "admin"])]
    role: String,
    /// A workspace that it is for. Can be given several times; without, it is for all.
    #[arg(long, value_name = "NAME")]
    for_workspace: Vec<String>,
    /// A tool that it is for. Can be given several times; without, it is for all.
    #[arg(long, value_name = "NAME")]
    for_tool: Vec<String>,
    /// The daemon's configuration file, where the key is for a tool that it adds.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Calls per second, on average.
    #[arg(long, value_name = "NUMBER")]
    calls_per_second: Option<u32>,
    /// Calls at once; as many as in a second by default.
    #[arg(long, value_name = "NUMBER", requires = "calls_per_second")]
    burst: Option<u32>,
    /// Calls at one time; as many started processes, and as many transfers, beside them.
    #[arg(long, value_name = "NUMBER")]
    concurrent_calls: Option<u32>,
    /// When it stops being a key: `2027-01-31T00:00:00Z`.
    #[arg(long, value_name = "TIME")]
    expires: Option<prost_types::Timestamp>,
}

#[cfg(feature = "daemon")]
pub(crate) fn key(global: &Global, args: KeyArgs) -> ExitCode {
    super::finish(keys::act(args, global.json), global.json)
}

/// Says that there is no daemon in this binary.
#[cfg(not(feature = "daemon"))]
pub(crate) fn key(global: &Global, _: KeyArgs) -> ExitCode {
    let text =
        "this jig was built without the daemon (feature `daemon`), whose files it cannot write";
    let failure = crate::failure::Failure::Usage(text.to_owned());
    super::finish(Err(failure), global.json)
}

#[cfg(feature = "daemon")]
mod keys {
    use std::{fmt::Write as _, path::Path, time::SystemTime};

    use jig::daemon::keys::{self, Grant, KeyFileError};
    use serde_json::{Value, json};

    use super::{Action, KeyArgs, NewArgs};
    use crate::{failure::Failure, local::Local, output};

    pub(super) fn act(args: KeyArgs, as_json: bool) -> Result<(), Failure> {
        let Some(path) = args.keys.filter(|path| !path.as_os_str().is_empty()) else {
            let text = "name the key file with --keys FILE (or JIG_KEYS)";
            return Err(Failure::Usage(text.to_owned()));
        };
        match args.action {
            Action::New(args) => new(&path, args, as_json),
            Action::List => list(&path, as_json),
            Action::Revoke { name } => {
                keys::revoke(&path, &name).map_err(failed)?;
                output::note(&format!(
                    "the key {name:?} is revoked as soon as the daemon reads {} (kill -HUP)",
                    path.display()
                ));
                Ok(())
            }
        }
    }

    fn failed(error: KeyFileError) -> Failure {
        Failure::Local(match error {
            KeyFileError::Refused(message) => {
                Local { code: "FAILED_PRECONDITION", reason: None, message, path: None }
            }
            KeyFileError::Unusable { path, source } => Local::file(Path::new(&path), &source),
        })
    }

    fn new(path: &Path, args: NewArgs, as_json: bool) -> Result<(), Failure> {
        let expires = args.expires.map(SystemTime::try_from).transpose();
        let grant = Grant {
            name: args.name,
            role: args.role,
            workspaces: args.for_workspace,
            tools: args.for_tool,
            calls_per_second: args.calls_per_second,
            burst: args.burst,
            concurrent_calls: args.concurrent_calls,
            expires: expires.map_err(|error| Failure::Usage(error.to_string()))?,
            created: None,
        };
        let key = keys::add(path, &grant, args.config.as_deref()).map_err(failed)?;
        if as_json {
            let mut told = told(&grant);
            told["key"] = key.into();
            return output::json(&told);
        }
        output::stdout(format!("{key}\n").as_bytes())?;
        output::note(&format!(
            "this is the key {:?} ({}), and it is not kept: only its digest is, in {}. A running daemon takes it once it has read that (kill -HUP)",
            grant.name,
            grant.role,
            path.display()
        ));
        Ok(())
    }

    fn list(path: &Path, as_json: bool) -> Result<(), Failure> {
        let grants = keys::list(path).map_err(failed)?;
        if as_json {
            let told: Vec<_> = grants.iter().map(told).collect();
            return output::json(&json!({ "keys": told }));
        }
        let mut text = String::new();
        for grant in &grants {
            line(&mut text, grant);
        }
        output::stdout(text.as_bytes())
    }

    fn line(text: &mut String, grant: &Grant) {
        let listed = |names: &[String]| match names {
            [] => "all".to_owned(),
            names => names.join(","),
        };
        let mut parts = vec![
            format!("workspaces={}", listed(&grant.workspaces)),
            format!("tools={}", listed(&grant.tools)),
        ];
        let numbers = [
            ("calls_per_second", grant.calls_per_second),
            ("burst", grant.burst),
            ("concurrent_calls", grant.concurrent_calls),
        ];
        for (name, number) in numbers {
            parts.extend(number.map(|number| format!("{name}={number}")));
        }
        parts.extend(expires(grant).map(|time| format!("expires={time}")));
        parts.extend(grant.created.iter().map(|time| format!("created={time}")));
        // Writing to a String cannot fail.
        let _written = writeln!(text, "{}\t{}\t{}", grant.name, grant.role, parts.join(" "));
    }

    fn told(grant: &Grant) -> Value {
        json!({
            "name": grant.name,
            "role": grant.role,
            "workspaces": grant.workspaces,
            "tools": grant.tools,
            "calls_per_second": grant.calls_per_second,
            "burst": grant.burst,
            "concurrent_calls": grant.concurrent_calls,
            "expires": expires(grant),
            "created": grant.created,
        })
    }

    fn expires(grant: &Grant) -> Option<String> {
        let time = grant.expires.map(prost_types::Timestamp::from);
        time.map(|time| time.to_string())
    }
}
