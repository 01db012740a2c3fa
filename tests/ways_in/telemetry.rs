//! Trace context and audit log of each way in.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{
    POLICY, run,
    way::{Ask, Way},
};
use crate::{
    agent_sandbox::TABLE,
    audit::AuditDirectory,
    support::{Collector, KeyFile, Setup, hex, promptly},
};

/// The trace of the caller, and its span.
const CALLER: (&str, &str) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");

#[tokio::test(flavor = "multi_thread")]
async fn each_way_in_trusts_the_context_of_callers_as_configured() {
    let (trace, span) = CALLER;
    for mode in [None, Some("parent"), Some("link"), Some("ignore")] {
        let (collector, endpoint) = Collector::start();
        let setup = Setup::new()
            .workspace_table(TABLE)
            .environment("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)
            .environment("OTEL_PROPAGATORS", "tracecontext,baggage");
        let arguments: Vec<_> =
            mode.iter().flat_map(|mode| ["--trust-remote-context", mode]).collect();
        let mut daemon = setup.arguments(&arguments).start().await;

        let traceparent = format!("00-{trace}-{span}-01");
        let headers =
            [("traceparent", &*traceparent), ("tracestate", "vendor=1"), ("baggage", "tenant=7")];
        let is_trusted = mode.is_none_or(|mode| mode == "parent");
        for way in Way::ALL {
            let command = run("echo \"$TRACEPARENT,$TRACESTATE,$BAGGAGE\"");
            let output = way.call(&daemon, &headers, &command).await.unwrap();
            let state = output.split_once(',').unwrap().1;
            assert_eq!(output.contains(trace), is_trusted, "{mode:?} {way:?} {output}");
            // A batch runs jobs, which keep the trace alone.
            let has_state = is_trusted && way != Way::Batch;
            let expected = if has_state { "vendor=1,tenant=7\n" } else { ",\n" };
            assert_eq!(state, expected, "{mode:?} {way:?}");
        }
        daemon.signal(Signal::TERM);
        assert!(promptly("the daemon ends", daemon.wait_for_exit()).await.success());

        let spans = collector.spans();
        let links: Vec<_> = spans.iter().flat_map(|span| &span.links).collect();
        assert_eq!(collector.spans_of_trace(trace).is_empty(), !is_trusted, "{mode:?}");
        assert_eq!(links.is_empty(), mode != Some("link"), "{mode:?}");
        for link in links {
            assert_eq!((&*hex(&link.trace_id), &*hex(&link.span_id)), CALLER);
            assert_eq!(link.trace_state, "vendor=1");
        }
        // Each command has an RPC span, and only these are linked.
        let rpcs = spans.iter().filter(|span| span.name.contains(".v1."));
        assert!(rpcs.clone().count() >= Way::ALL.len());
        if mode == Some("link") {
            assert!(rpcs.clone().all(|span| span.links.len() == 1));
            assert!(rpcs.clone().all(|span| span.parent_span_id.is_empty()));
        }
    }
}

/// The lines of a session, in brief.
fn session_lines(lines: &[Value], session: &str) -> Vec<Value> {
    let of_session = lines.iter().filter(|line| line["session"] == session);
    let tools = of_session.filter(|line| line["event"] != "call" && line["event"] != "job_ended");
    tools
        .map(|line| {
            let mut line = line.clone();
            if let Some(params) = line["params"].as_object_mut() {
                params.retain(|name, _| ["command", "path"].contains(&&**name));
            }
            ["event", "tool", "principal", "params", "outcome", "reason", "denied_by"]
                .map(|name| line[name].clone())
                .to_vec()
                .into()
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_way_in_leaves_the_same_lines_in_the_audit_log() {
    let audit = AuditDirectory::new();
    let keys = KeyFile::new();
    let key = keys.add_key("agent", "admin", &[]);
    let authorization = format!("Bearer {key}");
    let setup = Setup::new()
        .arguments(&["--keys", keys.path().to_str().unwrap()])
        .workspace_table(&format!("{TABLE}\n{POLICY}"));
    let mut daemon = audit.of(setup).workspace_file("f", "text\n").start().await;

    for way in Way::ALL {
        let session = format!("{way:?}");
        let headers = [("authorization", &*authorization), ("jig-session", &*session)];
        way.call(&daemon, &headers, &run("echo out")).await.unwrap();
        way.call(&daemon, &headers, &run("denied")).await.unwrap_err();
        let read = Ask::ReadFile { path: "f".to_owned() };
        if way.has(&read) {
            way.call(&daemon, &headers, &read).await.unwrap();
        }
        let wrong = [("authorization", "Bearer jig_wrong"), ("jig-session", &*session)];
        way.call(&daemon, &wrong, &run("echo out")).await.unwrap_err();
    }
    daemon.signal(Signal::TERM);
    assert!(promptly("the daemon ends", daemon.wait_for_exit()).await.success());

    let lines = audit.lines();
    for way in Way::ALL {
        let command = match way {
            // The standard runs programs.
            Way::AgentSandbox => continue,
            _ => json!({"command": "echo out"}),
        };
        let mut expected = vec![
            json!(["tool_call", "run", "key:agent", command, "exited", null, null]),
            json!([
                "call_denied",
                "run",
                "key:agent",
                null,
                null,
                "POLICY_DENIED",
                "rule:file:no-denied"
            ]),
        ];
        if way.has(&Ask::ReadFile { path: String::new() }) {
            let params = json!({"path": "f"});
            expected.push(json!([
                "tool_call",
                "read_file",
                "key:agent",
                params,
                "success",
                null,
                null
            ]));
        }
        assert_eq!(session_lines(&lines, &format!("{way:?}")), expected, "{way:?}");
    }
    let of_sandbox = session_lines(&lines, "AgentSandbox");
    let events: Vec<_> = of_sandbox.iter().map(|line| line[0].as_str().unwrap()).collect();
    assert_eq!(events, ["tool_call", "call_denied"]);

    let failures = lines.iter().filter(|line| line["event"] == "auth_failed");
    assert_eq!(failures.count(), Way::ALL.len());
    assert!(!audit.text().contains(&key) && !audit.text().contains("jig_wrong"));
    // A call with a line of its own has no second one.
    for line in lines.iter().filter(|line| line["event"] == "call") {
        let is_tool = line["method"] == "jig.v1.ToolService/Run";
        assert!(!is_tool, "{line}");
    }
}
