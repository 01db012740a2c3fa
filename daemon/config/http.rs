//! The `[http]` table: names under which, and web pages from which, the daemon may be called.

use http::{
    HeaderValue, Uri,
    uri::{Authority, PathAndQuery},
};

use super::file;

/// Checked settings of `[http]`.
#[derive(Debug, Clone, Default)]
pub(crate) struct HttpConfig {
    /// Names of the daemon in the header `host`, in lower case, beside those of the loopback
    /// interface.
    pub(crate) allowed_hosts: Vec<String>,
    /// Origins of web pages that may call the daemon.
    pub(crate) allowed_origins: Vec<HeaderValue>,
}

/// Checks the table.
pub(super) fn parse_http(table: file::HttpTable, problems: &mut Vec<String>) -> HttpConfig {
    let file::HttpTable { allowed_hosts, allowed_origins } = table;
    let mut config = HttpConfig::default();
    for host in allowed_hosts {
        let is_host = host.parse::<Authority>().is_ok_and(|authority| authority.host() == host);
        if is_host && !host.contains('*') {
            config.allowed_hosts.push(host.to_ascii_lowercase());
        } else {
            problems.push(format!(
                "http.allowed_hosts {host:?}: give a host name or an address, without a port"
            ));
        }
    }
    for origin in allowed_origins {
        match parse_origin(&origin) {
            Some(value) => config.allowed_origins.push(value),
            None => problems.push(format!(
                "http.allowed_origins {origin:?}: give a scheme and a host, as \"https://app.example\""
            )),
        }
    }
    config
}

/// The origin, if it is written as browsers send it.
fn parse_origin(origin: &str) -> Option<HeaderValue> {
    let uri: Uri = origin.parse().ok()?;
    let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
    let has_path =
        uri.path_and_query().map(PathAndQuery::as_str) != Some("/") || origin.ends_with('/');
    let is_exact = is_web && !has_path && !origin.contains(['@', '*']);
    let is_lower_case = !origin.contains(|letter: char| letter.is_ascii_uppercase());
    HeaderValue::from_str(origin).ok().filter(|_| is_exact && is_lower_case)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hosts_and_origins_are_accepted() {
        let check = |hosts: &[&str], origins: &[&str]| {
            let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
            let table =
                file::HttpTable { allowed_hosts: owned(hosts), allowed_origins: owned(origins) };
            let mut problems = Vec::new();
            let config = parse_http(table, &mut problems);
            (config.allowed_hosts.len() + config.allowed_origins.len(), problems.len())
        };
        let hosts = ["jig.internal", "JIG", "10.0.0.1", "[::1]"];
        let origins = ["https://app.example", "http://localhost:3000", "http://[::1]:3000"];
        assert_eq!(check(&hosts, &origins), (7, 0));

        let hosts = ["", "jig:50051", "*", "*.example", "http://a", "a/b", "a@b"];
        let origins = [
            "",
            "*",
            "null",
            "app.example",
            "https://a.example/",
            "https://a/x",
            "ftp://a",
            "https://A",
        ];
        assert_eq!(check(&hosts, &origins), (0, 15));
    }
}
