//! Versions, ciphers and protocols that a TLS listener accepts, as `openssl s_client` sees them.

use std::process::Command;

use super::{openssl_client, start_tls_daemon, tls_setup};
use crate::support::{CertificateAuthority, Daemon, shell, tool_client};

#[tokio::test]
async fn only_tls_1_2_and_1_3_are_accepted() {
    let tls = start_tls_daemon().await;
    for (flag, version) in [
        ("-tls1", None),
        ("-tls1_1", None),
        ("-tls1_2", Some("TLSv1.2")),
        ("-tls1_3", Some("TLSv1.3")),
    ] {
        // Without this, OpenSSL itself refuses the old versions.
        let output = openssl_client(&tls.daemon, &[flag, "-cipher", "ALL:@SECLEVEL=0"]);
        match version {
            Some(version) => {
                assert!(output.contains(&format!("New, {version}, Cipher is")), "{output}");
            }
            None => {
                assert!(output.contains("Cipher is (NONE)"), "{flag}: {output}");
                assert!(output.contains("SSL alert number"), "{flag}: {output}");
            }
        }
    }
}

/// The ciphers of OpenSSL that a daemon accepts, of TLS 1.3 or 1.2.
fn accepted_ciphers(daemon: &Daemon, version: &str) -> Vec<String> {
    let listed = Command::new("openssl")
        .args(["ciphers", "-s", "-tls1_2", "ALL:eNULL:@SECLEVEL=0"])
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let before_1_3 = listed.trim().split(':').filter(|name| !name.starts_with("TLS_"));
    let (mut offered, flag): (Vec<_>, _) = match version {
        "TLSv1.3" => (TLS_1_3_CIPHERS.to_vec(), "-tls1_3"),
        _ => (before_1_3.collect(), "-tls1_2"),
    };
    assert!(offered.len() >= TLS_1_3_CIPHERS.len(), "{offered:?}");

    // The daemon selects one of all ciphers, then one of the others, until it accepts none.
    let mut accepted = Vec::new();
    while !offered.is_empty() {
        let list = offered.join(":");
        let old = format!("{list}:@SECLEVEL=0");
        let selected = if flag == "-tls1_3" { ["-ciphersuites", &list] } else { ["-cipher", &old] };
        let output = openssl_client(daemon, &[&[flag], &selected[..]].concat());
        let Some(cipher) = offered
            .iter()
            .position(|cipher| output.contains(&format!("New, {version}, Cipher is {cipher}\n")))
        else {
            assert!(output.contains("SSL alert number 40"), "{output}");
            break;
        };
        accepted.push(offered.remove(cipher).to_owned());
    }
    accepted.sort_unstable();
    accepted
}

/// All ciphers of TLS 1.3 that OpenSSL has.
const TLS_1_3_CIPHERS: [&str; 5] = [
    "TLS_AES_128_CCM_8_SHA256",
    "TLS_AES_128_CCM_SHA256",
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
];

#[tokio::test]
async fn ciphers_have_forward_secrecy_and_authenticate_their_data() {
    let ca = CertificateAuthority::new();
    for (server, kind) in [(ca.issue_server(), "ECDSA"), (ca.issue_rsa_server(), "RSA")] {
        let daemon = tls_setup(&server).start().await;
        let expected = ["AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305"]
            .map(|cipher| format!("ECDHE-{kind}-{cipher}"));
        assert_eq!(accepted_ciphers(&daemon, "TLSv1.2"), expected);
        assert_eq!(accepted_ciphers(&daemon, "TLSv1.3"), TLS_1_3_CIPHERS[2..]);

        let mut tools = tool_client(ca.channel(daemon.port(), None));
        tools.run(shell("true")).await.unwrap();
    }
}

#[tokio::test]
async fn protocol_is_negotiated() {
    let tls = start_tls_daemon().await;
    for (offered, expected) in [
        ("h2", "ALPN protocol: h2"),
        ("http/1.1", "ALPN protocol: http/1.1"),
        ("http/1.1,h2", "ALPN protocol: h2"),
        ("spdy/3", "no application protocol"),
    ] {
        let output = openssl_client(&tls.daemon, &["-alpn", offered]);
        assert!(output.contains(expected), "{offered}: {output}");
    }
    let output = openssl_client(&tls.daemon, &[]);
    assert!(output.contains("No ALPN negotiated"), "{output}");
}
