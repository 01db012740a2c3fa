//! Secrets appear nowhere: not in the database, the events, the log, or displayed approvals.

use std::{fs, path::Path};

use jig::api::v1::{Decision, RunRequest, WatchApprovalsRequest};

use super::{
    ASK_POLICY, approval_client, decide, decide_request, spawn_write, start_with_policy,
    wait_for_pending_approval, write_request,
};
use crate::support::{shell, start_request};

/// Texts that must appear in none of these.
const SECRETS: [&str; 4] = [
    "hunter2-in-the-environment",
    "hunter2-on-the-standard-input",
    // The standard input in base64, the form of bytes in parameters.
    "aHVudGVyMi1vbi10aGUtc3RhbmRhcmQtaW5wdXQ",
    "hunter2-in-a-file",
];

/// A pattern that matches the command with any secrets.
const COMMAND_PATTERN: &str = r#"^{"command":"true","env":{"TOKEN":"[^"]*"},"stdin":"[^"]*"}$"#;

fn contains_text(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

fn find_secrets(directory: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find_secrets(&path, found);
        } else {
            let bytes = fs::read(&path).unwrap();
            let secrets = SECRETS.iter().filter(|secret| contains_text(&bytes, secret));
            found.extend(secrets.map(|secret| format!("{secret} in {}", path.display())));
        }
    }
}

#[tokio::test]
async fn daemon_neither_stores_nor_displays_secrets() {
    // A rule is matched against the secrets, and stores none of them.
    let daemon = start_with_policy(&format!(
        "{ASK_POLICY}\n[[policy.rules]]\nname = \"x\"\ntool = \"run\"\npattern = \"no such thing\"\naction = \"deny\""
    ))
    .await;
    let request = || RunRequest {
        env: [("TOKEN".to_owned(), SECRETS[0].to_owned())].into(),
        stdin: SECRETS[1].into(),
        ..shell("true")
    };
    let mut displayed = String::new();

    let mut events = approval_client(&daemon)
        .watch_approvals(WatchApprovalsRequest::default())
        .await
        .unwrap()
        .into_inner();
    for decision in [Decision::Deny, Decision::Allow, Decision::Always] {
        let run = daemon.spawn_run(request());
        let approval = wait_for_pending_approval(&daemon).await;
        let mut request = decide_request(&approval, decision);
        // The daemon suggests no pattern for parameters that it does not display.
        assert_eq!(approval.suggested_pattern, "");
        request.pattern = (decision == Decision::Always).then(|| COMMAND_PATTERN.to_owned());
        let decided = decide(&daemon, request).await.unwrap();
        displayed += &format!("{approval:?} {decided:?} {:?}", run.await.unwrap());
    }

    // The rule allows the same command with another secret.
    let mut similar = request();
    similar.stdin = "another".into();
    daemon.run(similar).await;

    let process =
        daemon.start_process(start_request(RunRequest { cwd: Some(".".to_owned()), ..request() }));
    let decision_task = async {
        let approval = wait_for_pending_approval(&daemon).await;
        displayed += &format!("{approval:?}");
        decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();
    };

    let (mut process, ()) = tokio::join!(process, decision_task);
    process.wait_for_exit().await;

    for decision in [Decision::Deny, Decision::Always] {
        let write = spawn_write(&daemon, write_request("f", "hunter2-in-a-file"));
        let approval = wait_for_pending_approval(&daemon).await;
        assert!(approval.parameters.iter().any(|parameter| parameter.value == "<17 bytes>"));
        let decided = decide(&daemon, decide_request(&approval, decision)).await.unwrap();
        displayed += &format!("{approval:?} {decided:?} {:?}", write.await.unwrap());
    }

    for _ in 0..12 {
        displayed += &format!("{:?}", events.message().await.unwrap());
    }

    assert!(displayed.contains("<26 bytes>"), "{displayed}");

    for secret in SECRETS {
        assert!(!displayed.contains(secret), "{secret}: {displayed}");
        assert!(!daemon.log().contains(secret), "{secret}: {}", daemon.log());
    }

    let mut found = Vec::new();
    find_secrets(&daemon.state_dir(), &mut found);
    assert_eq!(found, [""; 0]);
}
