//! Rules for patches: deny rules match the file names that a patch means, in every spelling.

use std::fs;

use jig::api::v1::{ApplyPatchRequest, Decision};

use super::{ASK_POLICY, decide, decide_request, start_with_policy, wait_for_pending_approval};
use crate::support::{Daemon, Refusal, promptly};

fn patch_request(unified_diff: &str) -> ApplyPatchRequest {
    ApplyPatchRequest { unified_diff: unified_diff.to_owned(), ..ApplyPatchRequest::default() }
}

/// Applies a patch. An error is its reason and the rule that denied it.
async fn apply(daemon: &Daemon, diff: &str) -> Result<(), (String, Option<String>)> {
    let applied = daemon.tools().apply_patch(patch_request(diff)).await;
    applied.map(drop).map_err(|status| {
        let mut refusal = Refusal::from_status(&status);
        (refusal.reason, refusal.metadata.remove("rule_id"))
    })
}

#[tokio::test]
async fn deny_rules_match_every_spelling_of_a_name() {
    let daemon = start_with_policy(
        "[[policy.rules]]\nname = \"secrets\"\ntool = \"apply_patch\"\npattern = 'b/\\.env'\naction = \"deny\"\n[[policy.rules]]\nname = \"prod\"\ntool = \"apply_patch\"\npattern = '\\+\\+\\+ b/prod/x'\naction = \"deny\"",
    )
    .await;
    fs::create_dir_all(daemon.file("prod")).unwrap();
    let creation = |name: &str| format!("--- /dev/null\n+++ {name}\n@@ -0,0 +1 @@\n+x\n");

    for (diff, rule) in [
        (creation("b/.env"), "secrets"),
        (creation(r#""b/\056env""#), "secrets"),
        (creation(r#""b/.e\156v""#), "secrets"),
        (creation(r#""b/.\145nv""#).replace('\n', "\r\n"), "secrets"),
        (creation("b/./.env"), "secrets"),
        (creation(".env"), "secrets"),
        ("diff --git \"a/\\056env\" \"b/\\056env\"\nnew file mode 100644\n".to_owned(), "secrets"),
        (
            "diff --git a/f \"b/\\056env\"\nrename from f\nrename to \"\\056env\"\n".to_owned(),
            "secrets",
        ),
        (creation("b/prod/x"), "prod"),
        (creation("b/prod//x"), "prod"),
        (creation("b/q/../prod/x"), "prod"),
        (creation(r#""b/pr\157d/x""#), "prod"),
        // After an allowed file, whose header is written as git writes it.
        (
            format!("diff --git a/g b/g\n{}{}", creation("b/g"), creation(r#""b/pr\157d/x""#)),
            "prod",
        ),
    ] {
        let (reason, denied_by) = apply(&daemon, &diff).await.unwrap_err();
        assert_eq!(reason, "POLICY_DENIED", "{diff}");
        assert_eq!(denied_by, Some(format!("file:{rule}")), "{diff}");
    }

    assert!(!daemon.file(".env").exists() && !daemon.file("prod/x").exists());

    for diff in [creation("b/g"), creation(r#""b/\150""#), creation("b/prod/y")] {
        apply(&daemon, &diff).await.unwrap();
    }
}

#[tokio::test]
async fn allow_rules_match_the_patch_as_given() {
    let daemon = start_with_policy(
        "[policy]\ndangerous = \"deny\"\n[[policy.rules]]\nname = \"docs\"\ntool = \"apply_patch\"\npattern = '\\+\\+\\+ \"?b/docs/'\naction = \"allow\"",
    )
    .await;
    let creation = |name: &str| format!("--- /dev/null\n+++ {name}\n@@ -0,0 +1 @@\n+x\n");
    for name in ["b/docs/../x", r#""b/d\157cs/x""#, "b//docs/x", "docs/x"] {
        let (reason, denied_by) = apply(&daemon, &creation(name)).await.unwrap_err();
        assert_eq!((reason.as_str(), denied_by), ("POLICY_DENIED", None), "{name}");
    }

    apply(&daemon, &creation("b/docs/x")).await.unwrap();
    apply(&daemon, &creation("b/docs//y")).await.unwrap();
}

#[tokio::test]
async fn always_creates_no_rule_for_patches_with_parent_paths() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let mut tools = daemon.tools();
    let call = tokio::spawn(async move {
        let diff = "--- /dev/null\n+++ b/a/../x\n@@ -0,0 +1 @@\n+x\n";
        tools.apply_patch(patch_request(diff)).await
    });
    let approval = wait_for_pending_approval(&daemon).await;
    assert_eq!(approval.files_affected, ["x"]);
    assert_eq!(approval.suggested_pattern, "");

    for pattern in [None, Some("x".to_owned())] {
        let mut request = decide_request(&approval, Decision::Always);
        request.pattern = pattern;
        let status = decide(&daemon, request).await.unwrap_err();
        assert_eq!(Refusal::from_status(&status).invalid_fields(), ["pattern"]);
    }

    decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();
    promptly("the patch is applied", call).await.unwrap().unwrap();
    assert!(daemon.file("x").exists());
}
