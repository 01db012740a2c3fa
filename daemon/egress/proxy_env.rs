//! The environment variables that point programs to the proxy.

use crate::daemon::sandbox::proxy_listener::PROXY_PORT;

/// Both spellings of each variable: programs read one or the other, most the lower case first.
/// `ALL_PROXY` is not among them: it would send protocols other than HTTP to the proxy.
const PROXY_VARIABLES: [[&str; 2]; 2] =
    [["http_proxy", "HTTP_PROXY"], ["https_proxy", "HTTPS_PROXY"]];
/// Both spellings, for hosts to reach directly.
const NO_PROXY_VARIABLES: [&str; 2] = ["no_proxy", "NO_PROXY"];
/// The run's own loopback interface.
const LOOPBACK_HOSTS: &str = "localhost,127.0.0.1,::1";

/// Returns the variables to add to a command's environment. If one spelling is set, it adds
/// neither: the added one might take precedence over the caller's.
pub(crate) fn proxy_variables(is_set: impl Fn(&str) -> bool) -> Vec<(&'static str, String)> {
    let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
    let pairs = PROXY_VARIABLES.map(|pair| (pair, proxy.as_str()));
    pairs
        .into_iter()
        .chain([(NO_PROXY_VARIABLES, LOOPBACK_HOSTS)])
        .filter(|(pair, _)| !pair.iter().any(|name| is_set(name)))
        .flat_map(|(pair, value)| pair.map(|name| (name, value.to_owned())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_caller_are_not_overridden() {
        let names = |set: &[&str]| -> Vec<_> {
            let missing = proxy_variables(|name| set.contains(&name));
            missing.into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names(&[]).len(), 6);
        assert_eq!(names(&["HTTP_PROXY", "no_proxy"]), ["https_proxy", "HTTPS_PROXY"]);
    }
}
