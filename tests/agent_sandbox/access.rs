//! Keys, other callers, web pages and remote addresses.

use std::{process::Command, sync::Arc};

use jig::api::process_v1::{
    ResizeTtyRequest, SendSignalRequest, Signal, WriteStdinRequest, write_stdin_request::Payload,
};
use tonic::Code;

use super::{
    Started, TABLE, execute, execute_shell, processes, rest, rest_error, runtime_setup,
    start_runtime, start_shell,
};
use crate::support::{
    CertificateAuthority, Daemon, KeyFile, Setup, eventually, lazy_channel, run_jigd, with_key,
};

async fn start_with_keys(keys: &Arc<KeyFile>) -> Daemon {
    let path = keys.path().display().to_string();
    let setup = runtime_setup().arguments(&["--keys", &path]);
    setup.with_resource(Arc::clone(keys) as Arc<_>).start().await
}

#[tokio::test]
async fn callers_need_a_key_of_the_right_role() {
    let keys = Arc::new(KeyFile::new());
    let invoke = keys.add_key("agent", "invoke", &[]);
    let read = keys.add_key("reader", "read", &[]);
    let daemon = start_with_keys(&keys).await;
    let header = |key: &str| format!("authorization: Bearer {key}");

    // Probes need none.
    assert_eq!(rest(&daemon, &[], "/v1/health").status, 200);
    for path in ["/v1/files/", "/v1/metadata", "/v1/files/x", "/openapi.json"] {
        for arguments in [&[][..], &["-H", &header("wrong")]] {
            let (status, code) = rest_error(&daemon, arguments, path);
            assert_eq!((status, &*code), (401, "UNAUTHENTICATED"), "{arguments:?} {path}");
        }
    }
    let with_read = ["-H", &header(&read), "-X", "PUT", "--data-binary", "x"];
    assert_eq!(rest_error(&daemon, &with_read, "/v1/files/x").0, 403);
    let with_invoke = ["-H", &header(&invoke), "-X", "PUT", "--data-binary", "x"];
    assert_eq!(rest(&daemon, &with_invoke, "/v1/files/x").status, 204);

    let status = execute(&daemon, execute_shell("true")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    let status = execute(&daemon, with_key("wrong", execute_shell("true"))).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    let status = execute(&daemon, with_key(&read, execute_shell("true"))).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    let response = execute(&daemon, with_key(&invoke, execute_shell("echo ran"))).await.unwrap();
    assert_eq!(&*response.stdout, b"ran\n");
}

#[tokio::test]
async fn processes_of_other_callers_are_not_found() {
    let keys = Arc::new(KeyFile::new());
    let (owner, other) = (keys.add_key("a", "invoke", &[]), keys.add_key("b", "admin", &[]));
    let daemon = start_with_keys(&keys).await;
    let mut client = processes(&daemon);
    let mut started =
        Started::new(&mut client, with_key(&owner, start_shell("echo ready; cat"))).await;
    started.wait_for("ready").await;

    let process_id = started.process_id;
    let write = |data: &'static [u8]| WriteStdinRequest {
        process_id,
        payload: Some(Payload::Input(data.into())),
    };
    let kill = SendSignalRequest { process_id, signal: Signal::Sigkill.into() };
    let resize = ResizeTtyRequest { process_id, cols: 1, rows: 1 };
    for status in [
        client.write_stdin(with_key(&other, write(b"theirs"))).await.unwrap_err(),
        client.send_signal(with_key(&other, kill)).await.unwrap_err(),
        client.resize_tty(with_key(&other, resize)).await.unwrap_err(),
    ] {
        assert_eq!(status.code(), Code::NotFound, "{status}");
    }
    client.write_stdin(with_key(&owner, write(b"own\n"))).await.unwrap();
    started.wait_for("own").await;
    let eof = WriteStdinRequest { process_id, payload: Some(Payload::Eof(())) };
    client.write_stdin(with_key(&owner, eof)).await.unwrap();
    assert_eq!(started.finish().await, (String::new(), String::new(), 0));
}

#[tokio::test]
async fn workspace_is_that_of_the_request() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("a", "invoke", &[]);
    let second = tempfile::tempdir().unwrap();
    let path = keys.path().display().to_string();
    let table = format!("{TABLE}\n[[workspaces]]\nname = \"second\"\npath = {:?}", second.path());
    let setup = Setup::new().workspace_table(&table).arguments(&["--keys", &path]);
    let daemon = setup.with_resource(Arc::clone(&keys) as Arc<_>).start().await;

    let authorization = format!("authorization: Bearer {key}");
    let put = ["-H", &authorization, "-X", "PUT", "--data-binary", "x"];
    assert_eq!(rest(&daemon, &put, "/v1/files/first").status, 204);
    assert!(daemon.file("first").exists());
    let in_second = [&put[..], &["-H", "jig-workspace: second"]].concat();
    assert_eq!(rest(&daemon, &in_second, "/v1/files/other").status, 204);
    assert!(second.path().join("other").exists() && !daemon.file("other").exists());

    let mut request = with_key(&key, execute_shell("ls"));
    request.metadata_mut().insert("jig-workspace", "second".parse().unwrap());
    assert_eq!(&*execute(&daemon, request).await.unwrap().stdout, b"other\n");
    let unknown = [&put[..], &["-H", "jig-workspace: none"]].concat();
    assert_eq!(rest_error(&daemon, &unknown, "/v1/files/other").0, 404);
}

#[tokio::test]
async fn revoked_key_ends_its_processes() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("a", "invoke", &[]);
    let daemon = start_with_keys(&keys).await;
    let mut client = processes(&daemon);
    let mut started =
        Started::new(&mut client, with_key(&key, start_shell("echo ready; cat"))).await;
    started.wait_for("ready").await;

    let output = keys.run_jig_key(&["revoke", "a"]);
    assert!(output.status.success(), "{output:?}");
    daemon.signal(rustix::process::Signal::HUP);
    let status = started.events.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    eventually("calls are rejected", async || {
        execute(&daemon, with_key(&key, execute_shell("true"))).await.is_err()
    })
    .await;
}

#[tokio::test]
async fn page_of_another_site_cannot_call_the_runtime() {
    let daemon = start_runtime().await;
    for header in ["origin: https://evil.example", "host: evil.example"] {
        let put = ["-H", header, "-X", "PUT", "--data-binary", "x"];
        let (status, code) = rest_error(&daemon, &put, "/v1/files/x");
        assert_eq!((status, &*code), (403, "PERMISSION_DENIED"), "{header}");
        let output = Command::new("curl")
            .args(["--silent", "--write-out", "%{http_code}", "-H", header, "-d", "x"])
            .arg(format!("http://{}/", daemon.agent_sandbox_address("gRPC")))
            .output()
            .unwrap();
        assert!(String::from_utf8(output.stdout).unwrap().ends_with("403"), "{header}");
    }
    assert!(!daemon.file("x").exists());
}

#[tokio::test]
async fn remote_addresses_need_keys_and_tls() {
    let keys = KeyFile::new();
    keys.add_key("a", "invoke", &[]);
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::create_dir(path("workspace")).unwrap();
    let key_path = keys.path().display().to_string();

    for setting in ["grpc_listen = \"0.0.0.0:0\"", "rest_listen = \"[::]:0\""] {
        std::fs::write(path("jig.toml"), format!("[agent_sandbox]\n{setting}\n")).unwrap();
        let (config, workspace, state) = (path("jig.toml"), path("workspace"), path("state"));
        let base =
            ["--check", "--config", &config, "--workspace", &workspace, "--state-dir", &state];
        let with_keys = ["--keys", &key_path];
        for (flags, expected) in [
            (&[][..], "no keys to authenticate callers"),
            (&["--allow-plaintext"], "no keys to authenticate callers"),
            (&["--trust-loopback"], "no keys to authenticate callers"),
            (&with_keys, "without TLS"),
        ] {
            let output = run_jigd(&[&base[..], flags].concat());
            let text = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(78), "{flags:?}: {text}");
            assert!(text.contains("agent_sandbox.") && text.contains(expected), "{text}");
        }
        let allowed = run_jigd(&[&base[..], &with_keys, &["--allow-plaintext"]].concat());
        assert!(allowed.status.success(), "{allowed:?}");
    }
}

#[tokio::test]
async fn flag_serves_the_ports_of_the_standard_on_the_loopback_interface() {
    // In a network of its own, in which the ports are free.
    let setup = Setup::new().arguments(&["--agent-sandbox"]).with_network_addresses(&[]);
    let daemon = setup.start().await;
    assert_eq!(daemon.agent_sandbox_address("gRPC"), "127.0.0.1:9090");
    assert_eq!(daemon.agent_sandbox_address("REST"), "127.0.0.1:8080");
}

#[tokio::test]
async fn listeners_speak_tls() {
    let ca = CertificateAuthority::new();
    let server = ca.issue_server();
    let table = format!("{TABLE}\ntls_cert = {:?}\ntls_key = {:?}", server.cert, server.key);
    let daemon = Setup::new().workspace_table(&table).start().await;
    let url = format!("https://{}/v1/health", daemon.agent_sandbox_address("REST"));
    let output = Command::new("curl").args(["--silent", "--cacert", &ca.ca(), &url]).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(text.contains("\"ok\""), "{text}");

    let plaintext = format!("http://{}", daemon.agent_sandbox_address("gRPC"));
    let mut client = jig::api::process_v1::process_service_client::ProcessServiceClient::new(
        lazy_channel(&plaintext),
    );
    assert!(client.execute(execute_shell("true")).await.is_err());
}
