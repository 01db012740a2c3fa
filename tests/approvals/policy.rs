//! Policy: calls that the daemon allows or denies without approval.

use std::{fs, sync::Arc};

use jig::api::v1::{
    DownloadRequest, ListFilesRequest, ReadFileRequest, UploadRequest, UploadStart,
    transfer_service_client::TransferServiceClient, upload_request::Part,
};

use super::{pending_approvals, records_of_type, spawn_write, start_with_policy, write_request};
use crate::support::{
    KeyFile, Refusal, Setup, run_jigd, shell, start_request, with_key, with_metadata,
};

#[tokio::test]
async fn disabled_tool_rejects_every_kind_of_call() {
    for policy in [
        "[policy]\nallow_tools = [\"list_files\"]",
        "[policy]\ndeny_tools = [\"run\", \"write_file\", \"read_file\"]",
    ] {
        let daemon = start_with_policy(policy).await;
        fs::write(daemon.file("f"), "x").unwrap();
        let refusal = daemon.run_failing(shell("touch ran"), "TOOL_DISABLED").await;
        assert_eq!(refusal.metadata["tool"], "run");

        let result = spawn_write(&daemon, write_request("g", "x")).await.unwrap();
        assert_eq!(Refusal::from_status(&result.unwrap_err()).reason, "TOOL_DISABLED");
        assert_eq!(daemon.read_file("f").await.unwrap_err().reason, "TOOL_DISABLED");

        daemon.tools().list_files(ListFilesRequest::default()).await.unwrap();
        let mut transfers = TransferServiceClient::new(daemon.channel());
        let start =
            UploadStart { path: "g".to_owned(), sha256: "0".repeat(64), ..UploadStart::default() };
        let upload = UploadRequest { part: Some(Part::Start(start)) };
        let result = transfers.upload(tokio_stream::iter([upload])).await;
        assert_eq!(Refusal::from_status(&result.unwrap_err()).reason, "TOOL_DISABLED");

        let request = DownloadRequest { path: "f".to_owned(), ..DownloadRequest::default() };
        let result = transfers.download(request).await;
        assert_eq!(Refusal::from_status(&result.unwrap_err()).reason, "TOOL_DISABLED");

        let mut processes =
            jig::api::v1::process_service_client::ProcessServiceClient::new(daemon.channel());
        let result = processes.start(start_request(shell("touch ran"))).await;
        assert_eq!(Refusal::from_status(&result.unwrap_err()).reason, "TOOL_DISABLED");
        assert!(!daemon.file("ran").exists() && !daemon.file("g").exists());

        let denied = records_of_type(&daemon, "tool_call_denied");
        assert_eq!(denied.len(), 6);
        assert_eq!(denied[0]["tool"], "run");
        assert_eq!(denied[0]["principal"], "uid:0");
        assert_eq!(denied[0]["denied_by"], "policy:tool_disabled");
        assert!(!denied[0]["call_id"].as_str().unwrap().is_empty());
        assert_eq!(pending_approvals(&daemon).await.len(), 0);
    }
}

#[tokio::test]
async fn rules_and_risk_levels_decide_calls() {
    let daemon = start_with_policy(
        "[policy]\nread_only = \"deny\"\n[[policy.rules]]\nname = \"no-secrets\"\ntool = \"write_file\"\npattern = '\"path\":\"[^\"]*\\.env\"'\naction = \"deny\"\n[[policy.rules]]\nname = \"tests\"\ntool = \"run\"\npattern = '^{\"argv\":\\[\"true\"\\]}$'\naction = \"allow\"\n[[policy.rules]]\nname = \"readme\"\ntool = \"read_file\"\npattern = '\"path\":\"README\"'\naction = \"allow\"\n[[policy.rules]]\nname = \"off\"\ntool = \"run\"\naction = \"deny\"\nenabled = false\n[[policy.rules]]\nname = \"over\"\ntool = \"run\"\naction = \"deny\"\nexpires = \"2020-01-01T00:00:00Z\"",
    )
    .await;
    spawn_write(&daemon, write_request("README", "x")).await.unwrap().unwrap();
    let result = spawn_write(&daemon, write_request("a/.env", "KEY=1")).await.unwrap();
    let refusal = Refusal::from_status(&result.unwrap_err());
    assert_eq!(refusal.reason, "POLICY_DENIED");
    assert_eq!(refusal.metadata["rule_id"], "file:no-secrets");
    assert!(!daemon.file("a").exists());
    assert_eq!(daemon.read_file("README").await.unwrap(), "x");
    assert_eq!(daemon.read_file("other").await.unwrap_err().reason, "POLICY_DENIED");

    daemon.run(crate::support::argv(&["true"])).await;
    daemon.run(shell("true")).await;
    let started = records_of_type(&daemon, "tool_call_started");
    let deciders: Vec<_> = started.iter().map(|record| record["allowed_by"].as_str()).collect();
    assert_eq!(deciders, [None, Some("rule:file:readme"), Some("rule:file:tests"), None]);

    let denied = records_of_type(&daemon, "tool_call_denied");
    let deciders: Vec<_> = denied.iter().map(|record| record["denied_by"].as_str()).collect();
    assert_eq!(deciders, [Some("rule:file:no-secrets"), Some("risk:read_only")]);
    assert!(denied.iter().all(|record| record["step"] == 0));

    // A denied call was not executed, so its request id may be used again.
    let request = || with_metadata("jig-request-id", "one", write_request("b/.env", "x"));
    for _ in 0..2 {
        let result = spawn_write(&daemon, request()).await.unwrap();
        assert_eq!(Refusal::from_status(&result.unwrap_err()).reason, "POLICY_DENIED");
    }

    assert_eq!(records_of_type(&daemon, "tool_call_denied").len(), 4);
}

#[tokio::test]
async fn rule_applies_only_to_its_workspaces() {
    let directory = tempfile::tempdir().unwrap();
    let keys = Arc::new(KeyFile::new());
    let [key, other_key] =
        ["workspace", "other"].map(|name| keys.add_key(name, "invoke", &["--for-workspace", name]));
    let path = keys.path().display().to_string();
    let tables = format!(
        "[[workspaces]]\nname = \"other\"\npath = {:?}\n[[policy.rules]]\nname = \"closed\"\ntool = \"run\"\naction = \"deny\"\nworkspaces = [\"other\"]",
        directory.path()
    );
    let setup = Setup::new().workspace_table(&tables).arguments(&["--keys", &path]);
    let daemon = setup.with_resource(keys).start().await;

    daemon.run(with_key(&key, shell("true"))).await;
    let result = daemon.try_run(with_key(&other_key, shell("true"))).await;
    let refusal = Refusal::from_status(&result.unwrap_err());
    assert_eq!(refusal.reason, "POLICY_DENIED");

    let read = ReadFileRequest { path: "none".to_owned(), ..ReadFileRequest::default() };
    let read = daemon.tools().read_file(with_key(&other_key, read)).await;
    assert_eq!(Refusal::from_status(&read.unwrap_err()).reason, "FILE_NOT_FOUND");
}

#[tokio::test]
async fn daemon_reports_every_policy_error() {
    let directory = tempfile::tempdir().unwrap();
    let [workspace, config] = ["w", "jig.toml"].map(|name| directory.path().join(name));
    fs::create_dir(&workspace).unwrap();
    fs::write(
        &config,
        "[policy]\nallow_tools = [\"dance\"]\n[[policy.rules]]\nname = \"x\"\ntool = \"sing\"\npattern = \"(\"\naction = \"deny\"\nworkspaces = [\"nowhere\"]\n",
    )
    .unwrap();
    let text = |path: &std::path::Path| path.display().to_string();

    for flags in [&[][..], &["--check"]] {
        let state = directory.path().join("s");
        let arguments = [
            "--workspace",
            &text(&workspace),
            "--config",
            &text(&config),
            "--state-dir",
            &text(&state),
            "--listen",
            "127.0.0.1:0",
        ];

        let output = run_jigd(&[&arguments[..], flags].concat());
        assert_eq!(output.status.code(), Some(78), "{output:?}");

        let stderr = String::from_utf8(output.stderr).unwrap();
        for part in ["\"dance\"", "\"sing\"", "\"nowhere\"", "unclosed group"] {
            assert!(stderr.contains(part), "{part}: {stderr}");
        }
    }
}

#[tokio::test]
async fn tool_key_allows_only_transfers_of_its_tools() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("lister", "invoke", &["--for-tool", "list_files"]);
    let reader = keys.add_key("reader", "invoke", &["--for-tool", "read_file"]);
    let path = keys.path().display().to_string();
    let setup = Setup::new().arguments(&["--keys", &path]).with_resource(keys);
    let daemon = setup.start().await;
    fs::write(daemon.file("f"), "x").unwrap();
    let mut transfers = TransferServiceClient::new(daemon.channel());
    let request = || DownloadRequest { path: "f".to_owned(), ..DownloadRequest::default() };
    let result = transfers.download(with_key(&key, request())).await;
    assert_eq!(Refusal::from_status(&result.unwrap_err()).reason, "FORBIDDEN");

    transfers.download(with_key(&reader, request())).await.unwrap();
    let start =
        UploadStart { path: "g".to_owned(), sha256: "0".repeat(64), ..UploadStart::default() };
    let upload = UploadRequest { part: Some(Part::Start(start)) };
    let upload = with_key(&reader, tokio_stream::iter([upload]));
    let result = transfers.upload(upload).await;
    assert_eq!(Refusal::from_status(&result.unwrap_err()).reason, "FORBIDDEN");
}
