//! Which URLs can be fetched, and the host and port that a URL names.

use url::Url;

use crate::daemon::netpolicy::rules::host::Host;

const URL_HINT: &str = "give one that begins with http:// or https://, as https://example.com/page";

/// The host and port that a request goes to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FetchTarget {
    pub(crate) host: Host,
    pub(crate) port: u16,
}

impl FetchTarget {
    /// Returns the target of a request for `url`.
    ///
    /// # Errors
    ///
    /// If the URL cannot be fetched. The text completes a sentence that begins with the URL.
    pub(crate) fn from_url(url: &Url) -> Result<Self, &'static str> {
        const NO_HOST: &str = "names no host that can be connected to";
        if !matches!(url.scheme(), "http" | "https") {
            return Err("is neither http nor https");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("holds a user name or a password, which fetch_url does not send");
        }
        let host = match url.host() {
            Some(url::Host::Domain(name)) => Host::parse(name).ok_or(NO_HOST)?,
            Some(url::Host::Ipv4(address)) => Host::Address(address.into()),
            Some(url::Host::Ipv6(address)) => Host::Address(address.into()),
            None => return Err(NO_HOST),
        };
        let port = url.port_or_known_default().filter(|port| *port != 0).ok_or("names port 0")?;
        Ok(Self { host, port })
    }
}

/// Parses a URL that can be fetched.
///
/// # Errors
///
/// What is wrong with the URL, and a hint for a valid one.
pub(crate) fn parse_url(text: &str) -> Result<Url, String> {
    let has_scheme = |scheme: &str| {
        let start = text.get(..scheme.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    if !has_scheme("http://") && !has_scheme("https://") {
        return Err(format!("is not a URL that can be fetched: {URL_HINT}"));
    }
    // URL parsers ignore some of these characters, and do not agree on which.
    let is_ambiguous =
        |letter: char| letter.is_whitespace() || letter.is_control() || letter == '\\';
    if text.contains(is_ambiguous) {
        return Err(format!(
            "is not a URL (it holds a space, a backslash or the like): {URL_HINT}"
        ));
    }

    let url = Url::parse(text)
        .map(strip_final_dot)
        .map_err(|error| format!("is not a URL ({error}): {URL_HINT}"))?;
    match FetchTarget::from_url(&url) {
        Ok(_) => Ok(url),
        Err(problem) => Err(format!("{problem}: {URL_HINT}")),
    }
}

/// Strips the final dot from the host name, so that policy, lookup, `Host` header and TLS use the
/// same name. A second dot remains, and makes the name invalid.
pub(super) fn strip_final_dot(mut url: Url) -> Url {
    let name = url.domain().and_then(|name| name.strip_suffix('.'));
    if let Some(name) = name.filter(|name| !name.ends_with('.')).map(str::to_owned) {
        // A name that is valid with its dot is valid without. After an error, the dot would remain.
        let _set = url.set_host(Some(&name));
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_is_the_host_that_the_client_connects_to() {
        for (text, host, port) in [
            ("http://Example.COM/x?y#z", "example.com", 80),
            ("HTTPS://example.com.", "example.com", 443),
            ("http://example.com:8080", "example.com", 8080),
            ("http://bücher.example/", "xn--bcher-kva.example", 80),
            ("http://127.0.0.1/", "127.0.0.1", 80),
            ("http://2130706433/", "127.0.0.1", 80),
            ("http://0x7f.1/", "127.0.0.1", 80),
            ("http://0177.1/", "127.0.0.1", 80),
            ("http://127.1/", "127.0.0.1", 80),
            ("http://0/", "0.0.0.0", 80),
            ("http://①②⑦.0.0.1/", "127.0.0.1", 80),
            ("http://127.0.0.1./", "127.0.0.1", 80),
            ("http://[::1]/", "[::1]", 80),
            ("http://[::ffff:127.0.0.1]/", "[::ffff:127.0.0.1]", 80),
            ("http://[64:ff9b::7f00:1]/", "[64:ff9b::7f00:1]", 80),
        ] {
            let target = FetchTarget::from_url(&parse_url(text).unwrap()).unwrap();
            assert_eq!((target.host.to_string().as_str(), target.port), (host, port), "{text}");
        }
    }

    #[test]
    fn hosts_are_normalized() {
        for (text, shown) in [
            ("http://Example.COM./a./b", "http://example.com/a./b"),
            ("https://example.com.:8443/", "https://example.com:8443/"),
            ("http://b\u{fc}cher.example\u{3002}/", "http://xn--bcher-kva.example/"),
            ("http://127.0.0.1./", "http://127.0.0.1/"),
        ] {
            assert_eq!(parse_url(text).unwrap().as_str(), shown, "{text}");
        }
        for text in ["http://example.com../", "http://./", "http://../"] {
            assert!(parse_url(text).is_err(), "{text}");
        }
    }

    #[test]
    fn errors_contain_the_problem_and_a_hint() {
        for (text, part) in [
            ("", "is not a URL that can be fetched"),
            ("example.com", "is not a URL that can be fetched"),
            ("file:///etc/passwd", "is not a URL that can be fetched"),
            ("ftp://example.com/", "is not a URL that can be fetched"),
            ("http:example.com", "is not a URL that can be fetched"),
            ("http://", "is not a URL ("),
            ("http://exa mple.com/", "is not a URL ("),
            ("http://[::1/", "is not a URL ("),
            ("http://1.2.3.4.5/", "is not a URL ("),
            ("http://example.com:99999/", "is not a URL ("),
            ("http://example.com:0/", "names port 0"),
            ("http://good.example\\@evil.example/", "a backslash"),
            ("http://good.example\t.evil.example/", "a space"),
            ("http://good.example/\r\nX: y", "a space"),
            ("http://user@example.com/", "holds a user name"),
            ("http://:secret@example.com/", "holds a user name"),
            ("http://example.com@evil.example/", "holds a user name"),
            ("http://-a.example/", "names no host"),
        ] {
            let problem = parse_url(text).unwrap_err();
            assert!(problem.contains(part), "{text}: {problem}");
            assert!(problem.contains("https://example.com/page"), "{problem}");
            assert!(!problem.contains("secret"), "{problem}");
        }
    }
}
