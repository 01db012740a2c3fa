//! Keys and secrets in requests are not written to any file, log or span.

use std::{fs, path::Path, sync::Arc};

use jig::api::v1::{SubmitJobRequest, WaitJobRequest, job_service_client::JobServiceClient};
use serde_json::json;

use super::start_daemon_with_keys;
use crate::support::{Collector, KeyFile, Setup, promptly, shell, with_key};

/// Whether bytes contain a text.
fn contains_text(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// Paths of the files below a directory that contain a text.
fn files_containing(directory: &Path, text: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            paths.extend(files_containing(&path, text));
        } else if fs::read(&path).is_ok_and(|bytes| contains_text(&bytes, text)) {
            paths.push(path.display().to_string());
        }
    }

    paths
}

#[tokio::test]
async fn keys_and_secrets_are_written_nowhere() {
    let [variable, input, wrong] =
        ["secret-variable-1", "secret-input-2", "jig_secret-wrong-key-3"];
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("builder", "invoke", &[]);
    let (collector, endpoint) = Collector::start();
    let setup = Setup::new()
        .environment("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)
        .environment("OTEL_BSP_SCHEDULE_DELAY", "50")
        .arguments(&["--log-level", "trace"]);

    let mut daemon = start_daemon_with_keys(setup, &keys).await;
    let mut request = shell("[ \"$TOKEN\" ] && cat >/dev/null");
    request.env.insert("TOKEN".to_owned(), variable.to_owned());
    request.stdin = input.as_bytes().to_vec().into();
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let new_request = |id: &str| {
        let mut message = with_key(&key, request.clone());
        let metadata = message.metadata_mut();
        metadata.insert("jig-request-id", id.parse().unwrap());
        metadata.insert("traceparent", traceparent.parse().unwrap());
        message
    };

    for id in ["one", "one", "two"] {
        assert_eq!(daemon.run(new_request(id)).await.exit_code, Some(0));
    }

    // Rejected calls as well: one has an invalid variable name, the other a wrong key.
    let mut invalid = request.clone();
    invalid.env.insert("A=B".to_owned(), variable.to_owned());
    daemon.try_run(with_key(&key, invalid)).await.unwrap_err();
    daemon.try_run(with_key(wrong, request.clone())).await.unwrap_err();
    let mut jobs = JobServiceClient::new(daemon.channel());
    let params = json!({"command": "true", "env": {"TOKEN": variable}});
    let submit = SubmitJobRequest {
        tool: "run".to_owned(),
        params_json: params.to_string(),
        ..SubmitJobRequest::default()
    };

    let submitted = jobs.submit_job(with_key(&key, submit)).await.unwrap();
    let wait = WaitJobRequest { job_id: submitted.into_inner().job.unwrap().job_id, wait_ms: None };
    jobs.wait_job(with_key(&key, wait)).await.unwrap();
    daemon.signal(rustix::process::Signal::TERM);
    promptly("the daemon exits", daemon.wait_for_exit()).await;
    let spans = collector.spans_of_trace("0af7651916cd43dd8448eb211c80319c");
    assert!(!spans.is_empty(), "the collector has no spans");

    let spans = format!("{spans:?}");
    for secret in [&*key, variable, input, wrong] {
        assert_eq!(files_containing(&daemon.state_dir(), secret), [""; 0], "{secret}");
        assert!(!daemon.log().contains(secret), "{secret}: {}", daemon.log());
        assert!(!spans.contains(secret), "{secret}");
        assert!(!fs::read_to_string(keys.path()).unwrap().contains(secret));
    }
}
