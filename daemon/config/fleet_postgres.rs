//! The PostgreSQL database of a fleet.

use std::path::PathBuf;

use url::Url;

use super::{file::FleetTable, fleet_secret::FleetSecretFile, loopback::is_loopback_host};

/// Connection to the database.
#[derive(Debug, Clone)]
pub(crate) struct PostgresConfig {
    /// URL of the database, without a password.
    pub(crate) url: String,
    pub(crate) password: Option<FleetSecretFile>,
    /// CA certificates of the server. `None`: those of the system.
    pub(crate) ca_file: Option<PathBuf>,
    /// Whether connections are encrypted, and the certificate of the server is verified.
    pub(crate) encrypt: bool,
}

/// Checks the keys of a fleet whose queues are in PostgreSQL.
pub(super) fn parse_postgres(
    table: FleetTable,
    allow_plaintext: bool,
    problems: &mut Vec<String>,
) -> PostgresConfig {
    let for_nats = [
        ("nats", !table.nats.is_empty()),
        ("stream", table.stream.is_some()),
        ("replicas", table.replicas.is_some()),
        ("credentials_file", table.credentials_file.is_some()),
        ("nkey_file", table.nkey_file.is_some()),
        ("signing_key_file", table.signing_key_file.is_some()),
        ("ack_wait", table.ack_wait.is_some()),
    ];
    for (key, _) in for_nats.iter().filter(|(_, is_given)| *is_given) {
        problems.push(format!("fleet.{key}: is not for fleet.postgres: remove one of the two"));
    }

    for queue in table.queues.iter().filter(|queue| queue.key.is_none()) {
        problems.push(format!(
            "fleet.queues {:?}: key: is missing: rows have no signature, so give the key whose rights their jobs get",
            queue.name
        ));
    }

    let url = table.postgres.unwrap_or_default();
    let encrypt = check_url(&url, table.ca_file.is_some(), allow_plaintext);
    let encrypt = encrypt.and_then(|encrypt| check_parameters(&url).map(|()| encrypt));
    let encrypt = encrypt.unwrap_or_else(|problem| {
        problems.push(format!("fleet.postgres: {problem}"));
        true
    });
    let password = table.password_file.as_deref();
    PostgresConfig {
        password: password
            .and_then(|path| FleetSecretFile::open(path, "fleet.password_file", problems)),
        ca_file: table.ca_file,
        encrypt,
        url,
    }
}

/// Checks a URL, whose text is not in errors: it may have a password. Returns whether connections
/// are encrypted.
fn check_url(text: &str, has_ca_file: bool, allow_plaintext: bool) -> Result<bool, String> {
    const FORM: &str = "give postgresql://USER@HOST/DATABASE, or for several servers postgresql:///DATABASE?user=USER&host=HOST&host=HOST";
    let url = Url::parse(text).map_err(|error| format!("{error}: {FORM}"))?;
    if !["postgres", "postgresql"].contains(&url.scheme()) {
        return Err(FORM.to_owned());
    }
    let mut hosts: Vec<String> = url.host_str().map(str::to_owned).into_iter().collect();
    let mut has_password = url.password().is_some();
    let mut ssl_mode = None;
    for (name, value) in url.query_pairs() {
        match &*name {
            "host" | "hostaddr" => hosts.push(value.into_owned()),
            "password" => has_password = true,
            "sslmode" => ssl_mode = Some(value.into_owned()),
            _ => {}
        }
    }
    if has_password {
        return Err("remove the password: use fleet.password_file".to_owned());
    }
    if hosts.iter().any(|host| host.contains(',')) {
        return Err(format!("has several hosts in one: {FORM}"));
    }
    hosts.retain(|host| !host.is_empty());
    if hosts.is_empty() {
        return Err(format!(
            "has no host: {FORM}, or for a socket postgresql:///DATABASE?user=USER&host=/var/run/postgresql"
        ));
    }

    let is_socket = |host: &str| host.starts_with('/') || host.starts_with("%2F");
    let is_local = hosts.iter().all(|host| is_socket(host) || is_loopback_host(host));
    match ssl_mode.as_deref() {
        Some("require") => Ok(true),
        Some("disable") if is_local || allow_plaintext => Ok(false),
        Some("disable") => Err("jobs, and their results, would cross the network unencrypted: remove sslmode=disable, or set allow_plaintext if the network is trusted".to_owned()),
        Some(other) => Err(format!("sslmode={other}: give require, which verifies the server's certificate, or disable")),
        None => Ok(has_ca_file || !is_local),
    }
}

/// Checks the parameters of a URL that is valid otherwise.
#[cfg(feature = "fleet")]
fn check_parameters(url: &str) -> Result<(), String> {
    let parsed = url.parse::<tokio_postgres::Config>().map_err(|error| {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        cause.unwrap_or_else(|| error.to_string())
    })?;
    let (hosts, ports) = (parsed.get_hosts().len(), parsed.get_ports().len());
    if ports > 1 && ports != hosts {
        return Err(format!(
            "has {hosts} hosts and {ports} ports: give one port, or one for each host"
        ));
    }
    Ok(())
}

/// Without the feature, the table is rejected.
#[cfg(not(feature = "fleet"))]
fn check_parameters(_url: &str) -> Result<(), String> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_leave_the_machine_are_encrypted() {
        for (url, encrypted) in [
            ("postgresql://jig@db.example.com/jig", true),
            ("postgres://jig@192.0.2.1:5433/jig?sslmode=require", true),
            ("postgresql://jig@127.0.0.1/jig", false),
            ("postgresql://jig@localhost/jig?sslmode=disable", false),
            ("postgresql://jig@[::1]/jig", false),
            ("postgresql:///jig?user=jig&host=/var/run/postgresql", false),
            ("postgresql:///jig?user=jig&host=/var/run/postgresql&host=db.example.com", true),
            ("postgresql://jig@%2Fvar%2Frun%2Fpostgresql/jig", false),
        ] {
            assert_eq!(check_url(url, false, false), Ok(encrypted), "{url}");
        }
        assert_eq!(check_url("postgresql://jig@127.0.0.1/jig", true, false), Ok(true));

        let plain = "postgresql://jig@db.example.com/jig?sslmode=disable";
        assert!(check_url(plain, false, false).unwrap_err().contains("unencrypted"));
        assert_eq!(check_url(plain, false, true), Ok(false));
    }

    #[test]
    fn every_problem_is_reported() {
        for (url, part) in [
            ("jig", "postgresql://USER@HOST/DATABASE"),
            ("mysql://jig@h/jig", "postgresql://USER@HOST/DATABASE"),
            ("postgresql://jig:secret@h/jig", "fleet.password_file"),
            ("postgresql://jig@h/jig?password=secret", "fleet.password_file"),
            ("postgresql:///jig", "has no host"),
            ("postgresql://jig@h/jig?sslmode=prefer", "sslmode=prefer"),
            ("postgresql://jig@h:1,h:2/jig", "host=HOST&host=HOST"),
            ("postgresql:///jig?user=jig&host=g,h", "host=HOST&host=HOST"),
            ("postgresql:///jig?user=jig&host=g&host=h&port=1,2,3", "2 hosts and 3 ports"),
            ("postgresql:///jig?host=h&host=h&port=1,x", "port"),
            ("postgresql://jig@h/jig?foo=1", "foo"),
        ] {
            let table = format!(
                "postgres = {url:?}\nnats = [\"tls://h\"]\nstream = \"S\"\nreplicas = 3\nack_wait = \"1s\"\n\
                 credentials_file = \"/c\"\nnkey_file = \"/n\"\nsigning_key_file = \"/s\"\n\
                 password_file = \"/nowhere/password\""
            );
            let mut problems = Vec::new();
            parse_postgres(toml::from_str(&table).unwrap(), false, &mut problems);
            assert_eq!(problems.len(), 9, "{problems:#?}");
            assert!(problems.iter().any(|problem| problem.contains(part)), "{url}: {problems:#?}");
            assert!(problems.iter().all(|problem| !problem.contains("secret@")), "{problems:#?}");
        }
    }
}
