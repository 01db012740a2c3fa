//! Versions, ciphers and protocols that a TLS listener accepts, as `openssl s_client` sees them.

use std::process::Command;

use super::{openssl_client, start_tls_daemon};

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

#[tokio::test]
async fn ciphers_have_forward_secrecy_and_authenticate_their_data() {
    let tls = start_tls_daemon().await;
    let listed = Command::new("openssl")
        .args(["ciphers", "-s", "-tls1_2", "ALL:eNULL:@SECLEVEL=0"])
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let ciphers: Vec<&str> =
        listed.trim().split(':').filter(|name| !name.starts_with("TLS_")).collect();
    assert!(ciphers.len() > 20, "{ciphers:?}");

    let accepted = ciphers.iter().filter(|cipher| {
        let cipher = format!("{cipher}:@SECLEVEL=0");
        let output = openssl_client(&tls.daemon, &["-tls1_2", "-cipher", &cipher]);
        output.contains("New, TLSv1.2, Cipher is")
    });
    // The daemon's key is an ECDSA key.
    let mut accepted: Vec<&str> = accepted.copied().collect();
    accepted.sort_unstable();
    assert_eq!(
        accepted,
        [
            "ECDHE-ECDSA-AES128-GCM-SHA256",
            "ECDHE-ECDSA-AES256-GCM-SHA384",
            "ECDHE-ECDSA-CHACHA20-POLY1305"
        ]
    );
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
