//! Client certificates: the entries that name them, and their end.

use std::{fs, sync::Arc};

use jig::api::v1::{
    GetInfoRequest, WatchEventsRequest, daemon_service_client::DaemonServiceClient,
    event_service_client::EventServiceClient,
};
use tonic::{Code, Request, Status, transport::Channel};

use super::{TlsDaemon, start_daemon_with_client_ca};
use crate::support::{
    CertificateAuthority, CertificateFiles, Daemon, KeyFile, Refusal, Validity, promptly, shell,
    tool_client, with_key,
};

const BUILDER: &str = "spiffe://example.org/builder";

impl TlsDaemon {
    fn channel(&self, client: Option<&CertificateFiles>) -> Channel {
        self.ca.channel(self.daemon.port(), client)
    }

    /// Calls a method for the role `read`.
    async fn read_info(
        &self,
        client: Option<&CertificateFiles>,
        key: Option<&str>,
    ) -> Result<(), Status> {
        let mut service = DaemonServiceClient::new(self.channel(client));
        let request = match key {
            Some(key) => with_key(key, GetInfoRequest {}),
            None => Request::new(GetInfoRequest {}),
        };
        promptly("the call ends", service.get_info(request)).await.map(drop)
    }
}

/// Adds an entry with a certificate to the key file.
fn add_certificate(keys: &KeyFile, name: &str, role: &str, certificate: &str) {
    let arguments = ["new", name, "--role", role, "--certificate", certificate];
    let output = keys.run_jig_key(&arguments);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
}

#[tokio::test]
async fn certificate_is_the_principal_with_its_role() {
    let keys = Arc::new(KeyFile::new());
    add_certificate(&keys, "builder", "invoke", &format!("uri:{BUILDER}"));
    let key = keys.add_key("other", "admin", &[]);
    let tls = start_daemon_with_client_ca(&keys).await;
    let builder = tls.ca.issue("builder", &[BUILDER], Validity::Now);
    let reader = tls.ca.issue("reader", &["reader.example"], Validity::Now);
    let stranger = tls.ca.issue("stranger", &["spiffe://example.org/stranger"], Validity::Now);
    // By the fingerprint of the file.
    add_certificate(&keys, "reader", "read", reader.cert.to_str().unwrap());
    tls.daemon.reload_config(Daemon::RELOADED).await;

    let run = async |client: &CertificateFiles| {
        let mut tools = tool_client(tls.channel(Some(client)));
        tools.run(shell("true")).await.map(drop).map_err(|status| status.code())
    };
    assert_eq!(run(&builder).await, Ok(()));
    assert_eq!(run(&reader).await, Err(Code::PermissionDenied));
    assert_eq!(run(&stranger).await, Err(Code::Unauthenticated));
    tls.read_info(Some(&reader), None).await.unwrap();

    for (client, key, expected) in [
        (None, None, "requires a key"),
        (Some(&stranger), None, "no entry of the key file"),
        (Some(&builder), Some(key.as_str()), "different callers"),
        (Some(&builder), Some("jig_wrong"), "unknown or revoked"),
    ] {
        let refusal = Refusal::from_status(&tls.read_info(client, key).await.unwrap_err());
        assert_eq!(refusal.reason, "UNAUTHENTICATED");
        assert!(refusal.message.contains(expected), "{refusal:?}");
    }
    // A key over TLS, with and without a certificate that no entry names.
    for client in [None, Some(&stranger)] {
        tls.read_info(client, Some(&key)).await.unwrap();
    }
}

#[tokio::test]
async fn unverified_certificates_end_the_handshake() {
    let keys = Arc::new(KeyFile::new());
    add_certificate(&keys, "builder", "invoke", &format!("uri:{BUILDER}"));
    let key = keys.add_key("key", "invoke", &[]);
    let tls = start_daemon_with_client_ca(&keys).await;

    let forger = CertificateAuthority::new();
    for client in [
        tls.ca.issue("expired", &[BUILDER], Validity::Expired),
        tls.ca.issue("future", &[BUILDER], Validity::NotYet),
        forger.issue("forged", &[BUILDER], Validity::Now),
    ] {
        for key in [None, Some(key.as_str())] {
            let status = tls.read_info(Some(&client), key).await.unwrap_err();
            let is_transport_error = [Code::Unavailable, Code::Unknown].contains(&status.code());
            assert!(is_transport_error, "{client:?}: {status:?}");
        }
    }
    tls.read_info(None, Some(&key)).await.unwrap();
}

#[tokio::test]
async fn certificate_that_is_removed_is_a_revoked_key() {
    let keys = Arc::new(KeyFile::new());
    add_certificate(&keys, "builder", "invoke", &format!("uri:{BUILDER}"));
    let stays = keys.add_key("stays", "invoke", &[]);
    let tls = start_daemon_with_client_ca(&keys).await;
    let builder = tls.ca.issue("builder", &[BUILDER], Validity::Now);

    // One connection carries both the stream and the calls.
    let channel = tls.channel(Some(&builder));
    let mut events = EventServiceClient::new(channel.clone());
    let mut stream = events.watch_events(WatchEventsRequest::default()).await.unwrap().into_inner();
    let command = shell("touch begun; until [ -e go ]; do sleep 0.01; done; echo done");
    let mut tools = tool_client(channel.clone());
    let running = tokio::spawn(async move { tools.run(command).await });
    crate::support::eventually("the command runs", async || tls.daemon.file("begun").exists())
        .await;

    assert!(keys.run_jig_key(&["revoke", "builder"]).status.success());
    tls.daemon.reload_config(Daemon::RELOADED).await;

    let ended = promptly("the stream ends", async {
        loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without an error"),
                Err(status) => return status,
            }
        }
    });
    assert_eq!(Refusal::from_status(&ended.await).reason, "UNAUTHENTICATED");
    fs::write(tls.daemon.file("go"), "").unwrap();
    assert_eq!(running.await.unwrap().unwrap().into_inner().stdout, "done\n");

    let refused = tool_client(channel).run(shell("true")).await.unwrap_err();
    assert_eq!(Refusal::from_status(&refused).reason, "UNAUTHENTICATED");
    tls.read_info(Some(&builder), Some(&stays)).await.unwrap();
}

#[tokio::test]
async fn names_of_a_certificate_are_printed_and_listed() {
    let ca = CertificateAuthority::new();
    let names = [BUILDER, "builder.example"];
    let builder = ca.issue("builder", &names, Validity::Now);
    let keys = KeyFile::new();
    let printed = keys.run_jig_key(&["certificate", builder.cert.to_str().unwrap()]);
    let printed = String::from_utf8(printed.stdout).unwrap();
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines[0].starts_with("sha256:") && lines[0].len() == 71, "{printed}");
    assert!(lines.contains(&format!("uri:{BUILDER}").as_str()), "{printed}");
    assert!(lines.contains(&"dns:builder.example"), "{printed}");

    add_certificate(&keys, "one", "invoke", lines[0]);
    let with_key = ["new", "two", "--certificate", lines[1], "--with-key"];
    let key = String::from_utf8(keys.run_jig_key(&with_key).stdout).unwrap();
    assert!(key.starts_with("jig_"), "{key}");
    let listed = String::from_utf8(keys.run_jig_key(&["list"]).stdout).unwrap();
    assert!(listed.contains(&format!("certificates={} key=no", lines[0])), "{listed}");
    assert!(listed.contains(&format!("certificates={} key=yes", lines[1])), "{listed}");

    for (arguments, expected) in [
        (["new", "x", "--certificate", "cn:x"], "cn:x"),
        (["new", "x", "--certificate", "sha256:00"], "64 hexadecimal digits"),
        (["new", "x", "--certificate", lines[0]], "two entries are for the same certificate"),
    ] {
        let output = keys.run_jig_key(&arguments);
        assert!(!output.status.success(), "{arguments:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(expected), "{stderr}");
    }
}
