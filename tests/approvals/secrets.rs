//! What may be secret is nowhere: not in the database, the records, the log, or what is shown.

use std::{fs, path::Path};

use jig::api::v1::{Decision, RunRequest, WatchApprovalsRequest};

use super::{ASK, approvals, decide, decision, file, wait_for_one, with_policy, write};
use crate::support::{shell, started};

/// What is in none of these.
const SECRETS: [&str; 4] = [
    "hunter2-in-the-environment",
    "hunter2-on-the-standard-input",
    // The same in base64, as parameters have bytes.
    "aHVudGVyMi1vbi10aGUtc3RhbmRhcmQtaW5wdXQ",
    "hunter2-in-a-file",
];

/// A pattern for the command, whatever its secrets are.
const LIKE: &str = r#"^{"command":"true","env":{"TOKEN":"[^"]*"},"stdin":"[^"]*"}$"#;

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

fn search(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            search(&path, found);
        } else {
            let bytes = fs::read(&path).unwrap();
            let secrets = SECRETS.iter().filter(|secret| holds(&bytes, secret));
            found.extend(secrets.map(|secret| format!("{secret} in {}", path.display())));
        }
    }
}

#[tokio::test]
async fn what_may_be_secret_is_kept_and_shown_nowhere() {
    // A rule looks at them, and keeps nothing.
    let daemon = with_policy(&format!(
        "{ASK}\n[[policy.rules]]\nname = \"x\"\ntool = \"run\"\npattern = \"no such thing\"\naction = \"deny\""
    ))
    .await;
    let request = || RunRequest {
        env: [("TOKEN".to_owned(), SECRETS[0].to_owned())].into(),
        stdin: SECRETS[1].into(),
        ..shell("true")
    };
    let mut shown = String::new();
    let mut events = approvals(&daemon)
        .watch_approvals(WatchApprovalsRequest::default())
        .await
        .unwrap()
        .into_inner();
    for wish in [Decision::Deny, Decision::Allow, Decision::Always] {
        let run = daemon.begin(request());
        let approval = wait_for_one(&daemon).await;
        let mut request = decision(&approval, wish);
        // None is made of what nobody is shown.
        assert_eq!(approval.suggested_pattern, "");
        request.pattern = (wish == Decision::Always).then(|| LIKE.to_owned());
        let decided = decide(&daemon, request).await.unwrap();
        shown += &format!("{approval:?} {decided:?} {:?}", run.await.unwrap());
    }
    // The rule is for these, whatever they hold, as it says.
    let mut like = request();
    like.stdin = "another".into();
    daemon.run(like).await;
    let watching = daemon.watch(started(RunRequest { cwd: Some(".".to_owned()), ..request() }));
    let deciding = async {
        let approval = wait_for_one(&daemon).await;
        shown += &format!("{approval:?}");
        decide(&daemon, decision(&approval, Decision::Allow)).await.unwrap();
    };
    let (mut watching, ()) = tokio::join!(watching, deciding);
    watching.finish().await;
    for wish in [Decision::Deny, Decision::Always] {
        let writing = write(&daemon, file("f", "hunter2-in-a-file"));
        let approval = wait_for_one(&daemon).await;
        assert!(approval.parameters.iter().any(|parameter| parameter.value == "<17 bytes>"));
        let decided = decide(&daemon, decision(&approval, wish)).await.unwrap();
        shown += &format!("{approval:?} {decided:?} {:?}", writing.await.unwrap());
    }
    for _ in 0..12 {
        shown += &format!("{:?}", events.message().await.unwrap());
    }
    assert!(shown.contains("<26 bytes>"), "{shown}");
    for secret in SECRETS {
        assert!(!shown.contains(secret), "{secret}: {shown}");
        assert!(!daemon.log().contains(secret), "{secret}: {}", daemon.log());
    }
    let mut found = Vec::new();
    search(&daemon.state(), &mut found);
    assert_eq!(found, [""; 0]);
}
