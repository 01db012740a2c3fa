//! The `[fleet]` table: the queues that several daemons share, and the servers that have them.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    time::Duration,
};

use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use url::Url;

use super::{
    duration::{age_or_default, duration_or_default},
    file::{FleetQueueTable, FleetTable},
    fleet_postgres::{PostgresConfig, parse_postgres},
    fleet_secret::{FleetSecret, FleetSecretFile, read_secret},
    jobs::{JobsConfig, is_queue_name},
    keys::AccessRole,
    loopback::is_loopback_host,
    trusted_path::open_trusted,
};

const DEFAULT_STREAM: &str = "JIG_JOBS";
/// Characters of the name of the stream. Names of buckets add to it.
const MAX_STREAM_NAME_BYTES: usize = 64;
const MAX_DAEMON_ID_BYTES: usize = 64;
/// With these, a majority of the servers remains when one or two fail.
const REPLICAS: [usize; 3] = [1, 3, 5];
const DEFAULT_ACK_WAIT: Duration = Duration::from_secs(30);
/// A shorter time would hand jobs out twice when a daemon is busy.
const MIN_ACK_WAIT: Duration = Duration::from_secs(1);
const DEFAULT_LOST_AFTER: Duration = Duration::from_secs(60);
/// A shorter time would take a daemon for dead while it reconnects.
const MIN_LOST_AFTER: Duration = Duration::from_secs(3);
const DEFAULT_MAX_DELIVER: u32 = 20;
const DEFAULT_RESULT_RETENTION: Duration = Duration::from_secs(24 * 3600);
const MAX_QUEUES: usize = 64;
/// As long as the output of the hash of the signatures.
const MIN_SIGNING_KEY_BYTES: usize = 32;

/// The checked `[fleet]` table.
#[derive(Debug, Clone)]
pub(crate) struct FleetConfig {
    pub(crate) servers: FleetServers,
    /// Key of the signatures of jobs. `None`: this daemon accepts no submissions to the fleet, and
    /// runs only jobs without a signature.
    pub(crate) signing_key: Option<FleetSecret>,
    /// Name of this daemon in the fleet. `None`: one that it keeps in its state directory.
    pub(crate) daemon_id: Option<String>,
    /// Time without a sign of life after which a job is handed out again.
    pub(crate) ack_wait: Duration,
    /// Time without a heartbeat after which a daemon is dead.
    pub(crate) lost_after: Duration,
    /// Attempts to run a job before it is a dead letter.
    pub(crate) max_deliver: u32,
    /// Time that the servers store jobs and their results.
    pub(crate) result_retention: Duration,
    /// The queues that this daemon takes jobs from. Empty: it only submits.
    pub(crate) queues: Vec<FleetQueueConfig>,
}

/// The servers that have the queues.
#[derive(Debug, Clone)]
pub(crate) enum FleetServers {
    Nats(NatsConfig),
    Postgres(PostgresConfig),
}

/// Connection to the NATS servers.
#[derive(Debug, Clone)]
pub(crate) struct NatsConfig {
    /// URLs of the servers. Never empty.
    pub(crate) servers: Vec<String>,
    pub(crate) credentials: NatsCredentials,
    /// CA certificates of the servers. `None`: those of the system.
    pub(crate) ca_file: Option<PathBuf>,
    /// Name of the stream of jobs, and prefix of the names of buckets.
    pub(crate) stream: String,
    /// Servers that store each message. `None`: one, or as many as the operator has chosen.
    pub(crate) replicas: Option<usize>,
}

impl FleetServers {
    fn ca_file(&self) -> Option<&Path> {
        match self {
            Self::Nats(nats) => nats.ca_file.as_deref(),
            Self::Postgres(postgres) => postgres.ca_file.as_deref(),
        }
    }

    /// The files that the daemon reads at each connection to a server.
    pub(crate) fn connection_files(&self) -> impl Iterator<Item = &Path> {
        let secret = match self {
            Self::Nats(nats) => nats.credentials.file(),
            Self::Postgres(postgres) => postgres.password.as_ref(),
        };
        self.ca_file().into_iter().chain(secret.map(FleetSecretFile::path))
    }
}

/// How the daemon authenticates to the servers.
#[derive(Debug, Clone)]
pub(crate) enum NatsCredentials {
    None,
    /// A credentials file: a JWT and the seed of its key.
    File(FleetSecretFile),
    /// A file with the seed of an nkey.
    Nkey(FleetSecretFile),
}

impl NatsCredentials {
    fn file(&self) -> Option<&FleetSecretFile> {
        match self {
            Self::None => None,
            Self::File(file) | Self::Nkey(file) => Some(file),
        }
    }
}

/// A queue that this daemon takes jobs from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FleetQueueConfig {
    pub(crate) name: String,
    /// Name of the key whose rights jobs without a signature have. `None`: they are rejected.
    pub(crate) key: Option<String>,
    /// Workspaces whose jobs this daemon takes. Never empty. Jobs without a workspace run in the
    /// first.
    pub(crate) workspaces: Vec<String>,
    /// Jobs of the queue that this daemon runs at once.
    pub(crate) places: u32,
}

/// What the rest of the configuration says about queues and servers.
#[derive(Debug, Clone, Copy)]
pub(super) struct FleetContext<'a> {
    pub(super) jobs: &'a JobsConfig,
    /// Names of the configured workspaces.
    pub(super) workspaces: &'a [&'a str],
    /// Whether callers can create workspaces, so that other names may exist later.
    pub(super) creates_workspaces: bool,
    /// Names of the keys and their roles, if there is a key file.
    pub(super) keys: Option<&'a [(&'a str, AccessRole)]>,
    /// Whether connections may be unencrypted.
    pub(super) allow_plaintext: bool,
}

impl FleetTable {
    /// The files of the table, each with its key and whether commands may read it.
    pub(super) fn files(&self) -> impl Iterator<Item = (&Path, &'static str, bool)> {
        [
            (&self.credentials_file, "fleet.credentials_file", false),
            (&self.nkey_file, "fleet.nkey_file", false),
            (&self.signing_key_file, "fleet.signing_key_file", false),
            (&self.password_file, "fleet.password_file", false),
            (&self.ca_file, "fleet.ca_file", true),
        ]
        .into_iter()
        .filter_map(|(path, key, is_public)| Some((path.as_deref()?, key, is_public)))
    }
}

/// Checks the table, and reads the secrets.
pub(super) fn parse_fleet(
    table: FleetTable,
    context: FleetContext<'_>,
    problems: &mut Vec<String>,
) -> FleetConfig {
    if !cfg!(feature = "fleet") {
        problems.push("fleet: this jigd was built without fleets: build it with the feature fleet, or remove the table".to_owned());
    }
    let ack_wait = duration_or_default(
        DEFAULT_ACK_WAIT,
        table.ack_wait.as_deref(),
        "fleet.ack_wait",
        problems,
    );
    let lost_after = duration_or_default(
        DEFAULT_LOST_AFTER,
        table.lost_after.as_deref(),
        "fleet.lost_after",
        problems,
    );
    for (key, value, minimum) in
        [("ack_wait", ack_wait, MIN_ACK_WAIT), ("lost_after", lost_after, MIN_LOST_AFTER)]
    {
        if value < minimum {
            problems.push(format!("fleet.{key} must be at least {}s", minimum.as_secs()));
        }
    }
    let result_retention = age_or_default(
        DEFAULT_RESULT_RETENTION,
        table.result_retention.as_deref(),
        "fleet.result_retention",
        problems,
    );
    // The job of a dead daemon would expire before another daemon knows that.
    if result_retention < ack_wait.max(lost_after) {
        problems.push(
            "fleet.result_retention must be at least as long as fleet.ack_wait and fleet.lost_after"
                .to_owned(),
        );
    }
    let max_deliver = table.max_deliver.unwrap_or(DEFAULT_MAX_DELIVER);
    if max_deliver == 0 {
        problems.push("fleet.max_deliver must be at least 1".to_owned());
    }
    let signing_key = table.signing_key_file.as_deref();
    let signing_key = signing_key.and_then(|path| read_signing_key(path, problems));

    FleetConfig {
        signing_key,
        daemon_id: parse_daemon_id(table.daemon_id.clone(), problems),
        ack_wait,
        lost_after,
        max_deliver,
        result_retention,
        queues: parse_queues(&table.queues, context, problems),
        servers: parse_servers(table, context.allow_plaintext, problems),
    }
}

fn parse_servers(
    table: FleetTable,
    allow_plaintext: bool,
    problems: &mut Vec<String>,
) -> FleetServers {
    if let Some(path) = &table.ca_file
        && let Err(problem) = check_ca_file(path)
    {
        problems.push(format!("fleet.ca_file {}: {problem}", path.display()));
    }
    if table.postgres.is_some() {
        FleetServers::Postgres(parse_postgres(table, allow_plaintext, problems))
    } else {
        FleetServers::Nats(parse_nats(table, allow_plaintext, problems))
    }
}

fn check_ca_file(path: &Path) -> Result<(), String> {
    const REMEDY: &str = "give the PEM file of the CA of the servers";
    let file = open_trusted(path).map_err(|error| error.explain(REMEDY))?;
    match CertificateDer::pem_reader_iter(file).next() {
        Some(Ok(_certificate)) => Ok(()),
        Some(Err(error)) => Err(format!("{error}: {REMEDY}")),
        None => Err(format!("has no certificate: {REMEDY}")),
    }
}

fn parse_nats(table: FleetTable, allow_plaintext: bool, problems: &mut Vec<String>) -> NatsConfig {
    if table.nats.is_empty() {
        problems.push(
            "fleet.nats: give the URLs of the NATS servers, such as tls://nats.example.com:4222, or fleet.postgres"
                .to_owned(),
        );
    }
    if table.password_file.is_some() {
        problems.push(
            "fleet.password_file: is for fleet.postgres: use fleet.credentials_file or fleet.nkey_file"
                .to_owned(),
        );
    }
    // A server at a nats:// URL can require TLS too, and a CA file says that it does.
    let allow_plaintext = allow_plaintext || table.ca_file.is_some();
    for url in &table.nats {
        if let Err(problem) = check_server_url(url, allow_plaintext) {
            problems.push(format!("fleet.nats {url:?}: {problem}"));
        }
    }

    let credentials = match (&table.credentials_file, &table.nkey_file) {
        (Some(_), Some(_)) => {
            problems
                .push("fleet.credentials_file and fleet.nkey_file: give one of the two".to_owned());
            NatsCredentials::None
        }
        (Some(path), None) => FleetSecretFile::open(path, "fleet.credentials_file", problems)
            .map_or(NatsCredentials::None, NatsCredentials::File),
        (None, Some(path)) => FleetSecretFile::open(path, "fleet.nkey_file", problems)
            .map_or(NatsCredentials::None, NatsCredentials::Nkey),
        (None, None) => NatsCredentials::None,
    };
    let stream = table.stream.unwrap_or_else(|| DEFAULT_STREAM.to_owned());
    if !is_token(&stream, MAX_STREAM_NAME_BYTES) {
        problems.push(format!(
            "fleet.stream {stream:?}: give 1 to {MAX_STREAM_NAME_BYTES} letters, digits, _ and -"
        ));
    }
    if let Some(replicas) = table.replicas
        && !REPLICAS.contains(&replicas)
    {
        problems.push(format!("fleet.replicas {replicas}: give 1, 3 or 5"));
    }
    NatsConfig {
        servers: table.nats,
        credentials,
        ca_file: table.ca_file,
        stream,
        replicas: table.replicas,
    }
}

/// Checks the URL of a server. Credentials are in files of their own, which the daemon protects.
fn check_server_url(text: &str, allow_plaintext: bool) -> Result<(), String> {
    let url = Url::parse(text).map_err(|error| format!("{error}: give tls://HOST:PORT"))?;
    if !["tls", "nats"].contains(&url.scheme()) || url.host().is_none() {
        return Err("give tls://HOST:PORT or nats://HOST:PORT".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            "remove user and password: use fleet.credentials_file or fleet.nkey_file".to_owned()
        );
    }

    let is_loopback = url.host_str().is_some_and(is_loopback_host);
    if url.scheme() == "nats" && !is_loopback && !allow_plaintext {
        return Err("jobs, and their results, would cross the network unencrypted: use tls://, or allow_plaintext if the network is trusted".to_owned());
    }
    Ok(())
}

fn parse_daemon_id(id: Option<String>, problems: &mut Vec<String>) -> Option<String> {
    let id = id.filter(|id| !id.is_empty())?;
    if !is_token(&id, MAX_DAEMON_ID_BYTES) {
        problems.push(format!(
            "fleet.daemon_id {id:?}: give 1 to {MAX_DAEMON_ID_BYTES} letters, digits, _ and -"
        ));
    }
    Some(id)
}

fn parse_queues(
    tables: &[FleetQueueTable],
    context: FleetContext<'_>,
    problems: &mut Vec<String>,
) -> Vec<FleetQueueConfig> {
    if tables.len() > MAX_QUEUES {
        problems.push(format!("fleet.queues: {} are given, of at most {MAX_QUEUES}", tables.len()));
    }
    let mut names = HashSet::new();
    tables
        .iter()
        .map(|table| {
            if !names.insert(&table.name) {
                problems.push(format!("fleet.queues: two queues are named {:?}", table.name));
            }
            parse_queue(table, context, problems)
        })
        .collect()
}

fn parse_queue(
    table: &FleetQueueTable,
    context: FleetContext<'_>,
    problems: &mut Vec<String>,
) -> FleetQueueConfig {
    let FleetQueueTable { name, key, workspaces, places } = table;
    let mut report = |problem: String| problems.push(format!("fleet.queues {name:?}: {problem}"));
    if !is_queue_name(name) || name.contains('.') {
        report(
            "is not the name of a fleet's queue: give 1 to 80 lower-case letters, digits and _ : -"
                .to_owned(),
        );
    }

    let workspaces = match (workspaces.as_slice(), context.workspaces) {
        ([], [first, ..]) => vec![(*first).to_owned()],
        (given, _) => given.to_vec(),
    };
    for workspace in &workspaces {
        if !is_subject_token(workspace) {
            report(format!(
                "workspaces: {workspace:?} cannot be part of a subject: it has a dot, a * or a >"
            ));
        } else if !context.creates_workspaces && !context.workspaces.contains(&workspace.as_str()) {
            report(format!("workspaces: {workspace:?} is no workspace of this daemon"));
        }
    }
    if workspaces.iter().collect::<HashSet<_>>().len() < workspaces.len() {
        report("workspaces: give each once".to_owned());
    }

    if let Some(key) = key {
        match context.keys {
            Some(keys) => match keys.iter().find(|(name, _)| name == key) {
                Some((_, role)) if *role < AccessRole::Invoke => report(format!(
                    "key: {key:?} has the role {role}, and jobs need the role invoke"
                )),
                Some(_) => {}
                None => report(format!("key: the key file has no key {key:?}")),
            },
            None => report("key: names a key of a key file: give --keys".to_owned()),
        }
    }

    // The daemon's own queue of this name runs the jobs, in each of the workspaces.
    let own = context.jobs.queues.get(name).copied();
    let own = own.unwrap_or(context.jobs.queue_concurrency);
    let default = own.min(context.jobs.concurrency);
    let places = places.unwrap_or(default);
    let maximum = u32::try_from(workspaces.len()).unwrap_or(u32::MAX).saturating_mul(own);
    let maximum = maximum.min(context.jobs.concurrency);
    if places == 0 || places > maximum {
        report(format!(
            "places must be from 1 to {maximum}: jobs.concurrency, and the limit of the daemon's own queue of this name (jobs.queues, jobs.queue_concurrency) in each of its workspaces, allow no more"
        ));
    }
    FleetQueueConfig { name: name.clone(), key: key.clone(), workspaces, places }
}

/// Whether a text can be a name on the servers, and a part of names.
fn is_token(text: &str, max_bytes: usize) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    (1..=max_bytes).contains(&text.len()) && text.bytes().all(allowed)
}

/// Whether a text can be one token of a subject, and part of the name of a consumer.
pub(crate) fn is_subject_token(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_graphic() && !b".*>/\\".contains(&byte);
    !text.is_empty() && text.bytes().all(allowed)
}

fn read_signing_key(path: &Path, problems: &mut Vec<String>) -> Option<FleetSecret> {
    let key = read_secret(path, "fleet.signing_key_file", problems)?;
    if key.bytes().len() < MIN_SIGNING_KEY_BYTES {
        problems.push(format!(
            "fleet.signing_key_file {}: has {} bytes, of at least {MIN_SIGNING_KEY_BYTES}: create it with: openssl rand -hex 32",
            path.display(),
            key.bytes().len()
        ));
        return None;
    }
    Some(key)
}

#[cfg(test)]
mod tests;
