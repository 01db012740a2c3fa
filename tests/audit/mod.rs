//! The audit log: a line for each call and each decision.

mod file;

use std::{fs, path::PathBuf};

use jig::api::v1::{
    Decision, ListJobsRequest, RunRequest, SendSignalRequest, job_service_client::JobServiceClient,
    upload_request::Part,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    approvals::{decide, decide_request, spawn_write, wait_for_pending_approval, write_request},
    files::transfer::{chunk, upload, upload_start},
    invoke::{call, invoke},
    jobs::{Jobs, command_job},
    support::{
        Daemon, KeyFile, Setup, argv, curl, eventually, promptly, shell, start_request, with_key,
        with_metadata,
    },
};

/// The directory of an audit log.
#[derive(Debug)]
pub(crate) struct AuditDirectory(TempDir);

impl AuditDirectory {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.path().join("audit.jsonl")
    }

    /// Adds the audit log to a daemon.
    pub(crate) fn of(&self, setup: Setup) -> Setup {
        setup.arguments(&["--audit-log", self.file().to_str().unwrap()])
    }

    pub(crate) fn text(&self) -> String {
        fs::read_to_string(self.file()).unwrap_or_default()
    }

    pub(crate) fn lines(&self) -> Vec<Value> {
        let text = self.text();
        let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits for the line that `is_last` accepts.
    async fn wait_for(&self, what: &str, is_last: impl Fn(&Value) -> bool) {
        eventually(what, async || self.lines().iter().any(&is_last)).await;
    }
}

/// The values of fields; absent ones are null.
fn fields<const N: usize>(line: &Value, names: [&str; N]) -> Value {
    names.map(|name| line[name].clone()).to_vec().into()
}

/// The lines of the log in brief.
fn outline(lines: &[Value]) -> Vec<Value> {
    let names = ["event", "method", "tool", "status", "reason", "outcome"];
    lines.iter().map(|line| fields(line, names)).collect()
}

async fn stop(daemon: &mut Daemon) {
    daemon.signal(Signal::TERM);
    assert!(promptly("the daemon ends", daemon.wait_for_exit()).await.success());
}

#[tokio::test]
async fn each_call_has_one_line() {
    let audit = AuditDirectory::new();
    let mut daemon = audit.of(Setup::new()).workspace_file("f", "text\n").start().await;
    let traced = with_metadata(
        "traceparent",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        shell("exit 3"),
    );
    daemon.run(traced).await;
    daemon.read_file("f").await.unwrap();
    daemon.read_file("missing").await.unwrap_err();
    let invalid = RunRequest { timeout_sec: Some(0), ..shell("true") };
    daemon.try_run(invalid).await.unwrap_err();
    invoke(&daemon, call("claude", "Bash", json!({"command": "true"}))).await;
    invoke(&daemon, call("claude", "Nothing", json!({}))).await;
    let parts = vec![Part::Start(upload_start("sent", b"text")), chunk(0, b"text")];
    upload(&daemon, parts).await.unwrap();
    let mut jobs = JobServiceClient::new(daemon.channel());
    jobs.list_jobs(ListJobsRequest::default()).await.unwrap();
    stop(&mut daemon).await;

    let lines = audit.lines();
    let expected = json!([
        ["daemon_started", null, null, null, null, null],
        ["tool_call", "jig.v1.ToolService/Run", "run", null, null, "exited"],
        ["tool_call", "jig.v1.ToolService/ReadFile", "read_file", null, null, "success"],
        [
            "tool_call",
            "jig.v1.ToolService/ReadFile",
            "read_file",
            null,
            "FILE_NOT_FOUND",
            "file_not_found"
        ],
        ["call", "jig.v1.ToolService/Run", "run", "INVALID_ARGUMENT", "INVALID_PARAMS", null],
        ["tool_call", "jig.v1.InvokeService/Invoke", "run", null, null, "exited"],
        ["call", "jig.v1.InvokeService/Invoke", null, "OK", null, "unknown_tool"],
        ["tool_call", "jig.v1.TransferService/Upload", "upload", null, null, "success"],
        ["call", "jig.v1.JobService/ListJobs", null, "OK", null, null],
        ["daemon_stopped", null, null, null, null, null],
    ]);
    assert_eq!(json!(outline(&lines)), expected);

    for (index, line) in lines.iter().enumerate() {
        assert_eq!(line["sequence"], index + 1, "{line}");
        assert!(line["time"].as_str().unwrap().ends_with('Z'), "{line}");
        if index > 0 && index < lines.len() - 1 {
            assert_eq!(line["principal"], "uid:0", "{line}");
            assert!(line["call_id"].is_string() && line["duration_sec"].is_number(), "{line}");
            assert!(line["trace_id"].is_string() && line["peer"].is_string(), "{line}");
        }
    }
    assert!(lines[0]["version"].is_string() && lines[0]["pid"].is_number());
    assert_eq!(lines[1]["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    let names = ["params", "workspace", "session", "step"];
    let expected = json!([{"command": "exit 3"}, lines[1]["workspace"], "default", 1]);
    assert_eq!(fields(&lines[1], names), expected);
    assert_eq!(lines[2]["params"], json!({"path": "f"}));
    assert_eq!(fields(&lines[5], ["dialect", "called_name"]), json!(["claude", "Bash"]));
}

#[tokio::test]
async fn each_denial_has_one_line_and_no_key_is_written() {
    let audit = AuditDirectory::new();
    let keys = KeyFile::new();
    let [admin, reader] =
        [("boss", "admin"), ("reader", "read")].map(|(name, role)| keys.add_key(name, role, &[]));
    let config = "[[policy.rules]]\nname = \"no\"\ntool = \"run\"\npattern = '\"denied\"'\naction = \"deny\"\n[limits]\nconcurrent_processes = 1";
    let setup = Setup::new().workspace_table(config);
    let setup = setup.arguments(&["--keys", keys.path().to_str().unwrap()]);
    let mut daemon = audit.of(setup).start().await;

    daemon.try_run(with_key("jig_wrong", shell("true"))).await.unwrap_err();
    daemon.try_run(with_key(&reader, shell("true"))).await.unwrap_err();
    daemon.try_run(with_key(&admin, shell("denied"))).await.unwrap_err();
    invoke(&daemon, with_key(&admin, call("", "run", json!({"command": "denied"})))).await;
    let sleep = || with_key(&admin, start_request(argv(&["sleep", "1000"])));
    let first = daemon.processes().start(sleep()).await.unwrap();
    daemon.processes().start(sleep()).await.unwrap_err();
    assert_eq!(curl(&daemon, &["-X", "POST"], "/mcp").status, 401);
    drop(first);
    stop(&mut daemon).await;

    let lines = audit.lines();
    let names = ["event", "method", "principal", "reason", "denied_by"];
    let run = "jig.v1.ToolService/Run";
    let actual: Vec<_> = lines[1..].iter().map(|line| fields(line, names)).collect();
    assert_eq!(
        json!(actual[..6]),
        json!([
            ["auth_failed", run, null, "UNAUTHENTICATED", null],
            ["call_denied", run, "key:reader", "FORBIDDEN", "key:role"],
            ["call_denied", run, "key:boss", "POLICY_DENIED", "rule:file:no"],
            [
                "call_denied",
                "jig.v1.InvokeService/Invoke",
                "key:boss",
                "POLICY_DENIED",
                "rule:file:no"
            ],
            [
                "call",
                "jig.v1.ProcessService/Start",
                "key:boss",
                "RESOURCE_EXHAUSTED",
                "limit:concurrency"
            ],
            ["auth_failed", null, null, "UNAUTHENTICATED", null],
        ])
    );
    for secret in [&admin, &reader, "jig_wrong"] {
        assert!(!audit.text().contains(secret));
    }
}

#[tokio::test]
async fn approvals_and_jobs_and_signals_name_what_they_are_about() {
    let audit = AuditDirectory::new();
    let setup = Setup::new().workspace_table("[policy]\nsafe_write = \"ask\"");
    let mut daemon = audit.of(setup).start().await;

    for decision in [Decision::Allow, Decision::Deny] {
        let write = spawn_write(&daemon, write_request("f", "text"));
        let approval = wait_for_pending_approval(&daemon).await;
        decide(&daemon, decide_request(&approval, decision)).await.unwrap();
        assert_eq!(write.await.unwrap().is_ok(), decision == Decision::Allow);
    }
    let mut jobs = Jobs::of(&daemon);
    let job = jobs.submit(command_job("true")).await;
    jobs.wait(&job).await;
    let process = daemon.start_process(start_request(argv(&["sleep", "1000"]))).await;
    let signal = SendSignalRequest { process_id: process.id.clone(), signal: "SIGKILL".to_owned() };
    daemon.processes().send_signal(signal).await.unwrap();
    audit.wait_for("the process ends", |line| line["outcome"] == "signaled").await;
    stop(&mut daemon).await;

    let lines = audit.lines();
    let of = |event: &str| -> Vec<&Value> {
        lines.iter().filter(|line| line["event"] == event).collect()
    };
    let (requested, decided) = (of("approval_requested"), of("approval_decided"));
    let names = ["tool", "principal", "required_by", "decided_by", "outcome"];
    for (index, state) in ["allowed", "denied"].into_iter().enumerate() {
        let expected = json!(["write_file", "uid:0", "risk:safe_write", null, null]);
        assert_eq!(fields(requested[index], names), expected);
        let expected = json!(["write_file", "uid:0", "risk:safe_write", "uid:0", state]);
        assert_eq!(fields(decided[index], names), expected);
        assert_eq!(requested[index]["approval_id"], decided[index]["approval_id"]);
    }
    let calls = of("tool_call");
    let writes: Vec<_> = calls.iter().filter(|line| line["tool"] == "write_file").collect();
    assert_eq!(writes.len(), 1);
    let id = requested[0]["approval_id"].as_str().unwrap();
    assert_eq!(writes[0]["allowed_by"], format!("approval:{id}"));
    // The content of files is not recorded.
    assert_eq!(writes[0]["params"], json!({"path": "f", "content": "<4 bytes>"}));

    let of_method = |name: &str| -> Vec<&Value> {
        lines.iter().filter(|line| line["method"] == format!("jig.v1.{name}")).collect()
    };
    let decisions = of_method("ApprovalService/DecideApproval");
    assert_eq!(decisions[0]["approval_id"], id);
    assert_eq!(of_method("JobService/SubmitJob")[0]["job_id"], job.as_str());
    let [ended] = of("job_ended")[..] else { panic!("{lines:#?}") };
    let expected = json!([job, "run", "uid:0", "succeeded"]);
    assert_eq!(fields(ended, ["job_id", "tool", "principal", "outcome"]), expected);
    assert!(calls.iter().any(|line| line["job_id"] == job.as_str()), "{lines:#?}");
    let signals = of_method("ProcessService/SendSignal");
    assert_eq!(signals[0]["process_id"], process.id.as_str());
}
