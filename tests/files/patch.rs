//! `apply_patch`: its response, the tree it leaves, and its errors.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    time::{Duration, Instant},
};

use jig::api::v1::{
    ApplyPatchRequest, ApplyPatchResponse,
    FileChange::{Added, Deleted, Modified, Renamed},
    ListArtifactsRequest,
    artifact_service_client::ArtifactServiceClient,
};

use crate::support::{Daemon, Refusal, Setup};

/// A patch with one change of each kind.
const ALL_KINDS_PATCH: &str = "\
diff --git a/changed b/changed
--- a/changed
+++ b/changed
@@ -7,3 +7,3 @@
 1
-2
+two
 3
diff --git a/old b/sub/dir/new
old mode 100644
new mode 100755
similarity index 90%
rename from old
rename to sub/dir/new
diff --git a/gone/below b/gone/below
deleted file mode 100644
--- a/gone/below
+++ /dev/null
@@ -1 +0,0 @@
-x
diff --git a/made b/made
new file mode 100755
--- /dev/null
+++ b/made
@@ -0,0 +1,2 @@
+#!/bin/sh
+true
";

async fn apply(daemon: &Daemon, request: ApplyPatchRequest) -> Result<ApplyPatchResponse, Refusal> {
    let response = daemon.tools().apply_patch(request).await;
    response.map(tonic::Response::into_inner).map_err(|status| Refusal::from_status(&status))
}

fn patch_request(diff: &str) -> ApplyPatchRequest {
    ApplyPatchRequest { unified_diff: diff.to_owned(), ..ApplyPatchRequest::default() }
}

fn create_patch_targets(daemon: &Daemon) {
    fs::write(daemon.file("changed"), "0\n1\n2\n3\n").unwrap();
    fs::write(daemon.file("old"), "same\n").unwrap();
    fs::create_dir(daemon.file("gone")).unwrap();
    fs::write(daemon.file("gone/below"), "x\n").unwrap();
}

fn mode(daemon: &Daemon, path: &str) -> u32 {
    fs::metadata(daemon.file(path)).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn apply_patch_makes_and_reports_all_kinds_of_changes() {
    let daemon = Daemon::start().await;
    create_patch_targets(&daemon);

    let response = apply(&daemon, patch_request(ALL_KINDS_PATCH)).await.unwrap();
    let reported: Vec<_> = response
        .changed_files
        .iter()
        .map(|file| {
            let numbers = (file.hunks, file.fuzz, file.offset);
            (&*file.path, file.change(), &*file.previous_path, numbers)
        })
        .collect();
    let expected = [
        ("changed", Modified, "", (1, 0, 5)),
        ("sub/dir/new", Renamed, "old", (0, 0, 0)),
        ("gone/below", Deleted, "", (1, 0, 0)),
        ("made", Added, "", (1, 0, 0)),
    ];
    assert_eq!(reported, expected);
    assert_eq!(response.patch_size_bytes as usize, ALL_KINDS_PATCH.len());

    let mut files = daemon.list_files().await;
    files.sort_unstable();
    assert_eq!(files, ["changed", "made", "sub/dir/new"]);
    assert_eq!(daemon.read_file("changed").await.unwrap(), "0\n1\ntwo\n3\n");
    assert_eq!(daemon.read_file("sub/dir/new").await.unwrap(), "same\n");
    assert_eq!(daemon.read_file("made").await.unwrap(), "#!/bin/sh\ntrue\n");
    assert_eq!((mode(&daemon, "sub/dir/new"), mode(&daemon, "made")), (0o755, 0o755));

    // The daemon stores the patch, and the call's events list the changed files.
    assert!(response.patch_path.starts_with("diffs/step_"), "{response:?}");

    let (stored, size) = daemon.artifact(&response.patch_path).await;
    assert_eq!((&*stored, size), (ALL_KINDS_PATCH.as_bytes(), stored.len() as u64));

    let events = daemon.state_dir().join("sessions/default/events.jsonl");
    let events = fs::read_to_string(events).unwrap();
    for event in ["patch_applied", "tool_call_finished"] {
        let is_event = |line: &&str| line.contains(event) && line.contains("apply_patch");
        let record = events.lines().find(is_event).unwrap();
        for part in [
            "\"changed_files\":[\"changed\",\"sub/dir/new\",\"gone/below\",\"made\"]",
            "\"changed_files_count\":4",
            &response.patch_path,
        ] {
            assert!(record.contains(part), "{record}");
        }
    }
}

#[tokio::test]
async fn dry_run_gives_the_same_response_without_changes() {
    let daemon = Daemon::start().await;
    create_patch_targets(&daemon);

    let before = daemon.list_files().await;
    let request = ApplyPatchRequest { dry_run: Some(true), ..patch_request(ALL_KINDS_PATCH) };
    let preview = apply(&daemon, request).await.unwrap();
    assert_eq!(preview.patch_path, "");
    assert_eq!(daemon.list_files().await, before);
    assert_eq!(daemon.read_file("changed").await.unwrap(), "0\n1\n2\n3\n");
    assert!(!daemon.state_dir().join("sessions/default/diffs").exists());

    let response = apply(&daemon, patch_request(ALL_KINDS_PATCH)).await.unwrap();
    assert_eq!(preview.changed_files, response.changed_files);
}

#[tokio::test]
async fn dry_run_rejects_conflicting_paths() {
    let daemon = Daemon::start().await;
    create_patch_targets(&daemon);
    fs::create_dir_all(daemon.file("full/of")).unwrap();
    fs::write(daemon.file("full/of/it"), "1\n").unwrap();
    fs::write(daemon.file("full/more"), "1\n").unwrap();
    let add = |path: &str| format!("--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n");
    let delete = |path: &str| format!("--- a/{path}\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n");

    for (diff, reason) in [
        (add("full/more/x"), "NOT_A_DIRECTORY"),
        (add("full"), "NOT_A_FILE"),
        (add("x") + &add("x/y"), "FILE_EXISTS"),
        (delete("full/more") + &add("full"), "FILE_EXISTS"),
        (add("full/more"), "FILE_EXISTS"),
    ] {
        for dry_run in [true, false] {
            let request = ApplyPatchRequest { dry_run: Some(dry_run), ..patch_request(&diff) };
            let refusal = apply(&daemon, request).await.unwrap_err();
            assert_eq!(refusal.reason, reason, "{dry_run} {diff}");
        }
    }

    assert!(daemon.file("full/more").is_file() && !daemon.file("x").exists());

    let diff = delete("full/more") + &delete("full/of/it") + &add("full");
    apply(&daemon, patch_request(&diff)).await.unwrap();
    assert_eq!(fs::read_to_string(daemon.file("full")).unwrap(), "x\n");
}

#[tokio::test]
async fn inapplicable_patches_change_nothing() {
    let daemon = Daemon::start().await;
    create_patch_targets(&daemon);
    symlink("changed", daemon.file("link")).unwrap();
    symlink("gone", daemon.file("way")).unwrap();
    fs::write(daemon.file("binary"), b"1\n\xff\n").unwrap();
    fs::write(daemon.sibling_path("outside"), "1\n").unwrap();
    let first = "--- a/changed\n+++ b/changed\n@@ -1 +1 @@\n-0\n+zero\n";
    let change = |path: &str| format!("--- {path}\n+++ {path}\n@@ -1 +1 @@\n-1\n+2\n");
    let before = daemon.list_files().await;

    for (second, reason) in [
        (change("missing"), "FILE_NOT_FOUND"),
        (change("changed").replace("-1", "-9"), "PATCH_HUNK_FAIL"),
        (change("old"), "PATCH_HUNK_FAIL"),
        (change("binary"), "BINARY_FILE"),
        (change("gone"), "NOT_A_FILE"),
        (change("."), "NOT_A_FILE"),
        (change("link"), "SYMLINK_BLOCKED"),
        (change("../outside"), "PATH_ESCAPE"),
        (change("gone/../../outside"), "PATH_ESCAPE"),
        (change("/etc/passwd"), "PATH_ESCAPE"),
        (change("/workspace/changed"), "PATH_ESCAPE"),
        ("--- a/../outside\n+++ b/../outside\n@@ -1 +1 @@\n-1\n+2\n".into(), "PATH_ESCAPE"),
        ("--- /dev/null\n+++ b/old\n@@ -0,0 +1 @@\n+1\n".into(), "FILE_EXISTS"),
        ("diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n".into(), "SYMLINK_BLOCKED"),
        ("diff --git a/s b/s\nnew file mode 160000\n".into(), "PATCH_PARSE_ERROR"),
        ("diff --git a/old b/old\nindex 1..2\nGIT binary patch\n".into(), "PATCH_PARSE_ERROR"),
        ("@@@ nonsense\n".into(), "PATCH_PARSE_ERROR"),
    ] {
        let diff = format!("{first}{second}");
        let refusal = apply(&daemon, patch_request(&diff)).await.unwrap_err();
        assert_eq!(refusal.reason, reason, "{second}: {refusal:?}");
        assert_eq!(daemon.list_files().await, before, "{second}");
        assert_eq!(daemon.read_file("changed").await.unwrap(), "0\n1\n2\n3\n", "{second}");
    }

    assert!(!daemon.state_dir().join("sessions/default/diffs").exists());
    assert_eq!(fs::read(daemon.sibling_path("outside")).unwrap(), b"1\n");

    let refusal = apply(&daemon, patch_request(&change("old"))).await.unwrap_err();
    assert_eq!(refusal.metadata["path"], "old");
    assert_eq!(refusal.metadata["hunk"], "1");
    assert!(refusal.message.contains("1: \"same\""), "{refusal:?}");

    let refusal = apply(&daemon, patch_request("--- a/f\n+++ b/f\nnothing\n")).await.unwrap_err();
    assert!(refusal.message.contains("line 1"), "{refusal:?}");
}

#[tokio::test]
async fn apply_patch_honors_strip_and_fuzz() {
    let daemon = Daemon::start().await;
    fs::create_dir(daemon.file("b")).unwrap();
    fs::write(daemon.file("b/f"), "1\n2\n3\n").unwrap();
    let stale = "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n one\n-2\n+two\n 3\n";
    let request = |strip, max_fuzz| ApplyPatchRequest {
        strip: Some(strip),
        max_fuzz: Some(max_fuzz),
        ..patch_request(stale)
    };
    let refusal = apply(&daemon, request(1, 2)).await.unwrap_err();
    assert_eq!(refusal.reason, "FILE_NOT_FOUND");

    let refusal = apply(&daemon, request(0, 0)).await.unwrap_err();
    assert_eq!(refusal.reason, "PATCH_HUNK_FAIL");

    let response = apply(&daemon, request(0, 1)).await.unwrap();
    assert_eq!(response.changed_files[0].fuzz, 1);
    assert_eq!(daemon.read_file("b/f").await.unwrap(), "1\ntwo\n3\n");

    for (strip, max_fuzz, field) in [(256, 0, "strip"), (0, 11, "max_fuzz")] {
        let refusal = apply(&daemon, request(strip, max_fuzz)).await.unwrap_err();
        assert_eq!(refusal.invalid_fields(), [field]);
    }
}

#[tokio::test]
async fn slow_patch_ends_at_its_timeout() {
    let daemon = Setup::new().exclusive().start().await;

    // Each hunk almost fits at a million positions, at every fuzz up to the limit.
    let hunk = "@@ -1 +1 @@\n a\n a\n a\n a\n a\n-b\n-a\n c\n c\n c\n c\n c\n";
    fs::write(daemon.file("f"), "a\n".repeat(2_000_000) + &"b\nc\n".repeat(1_000_000)).unwrap();
    let request = ApplyPatchRequest {
        max_fuzz: Some(10),
        ..patch_request(&format!("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+a\n{}", hunk.repeat(1000)))
    };
    let start = Instant::now();
    let refusal = apply(&daemon, request).await.unwrap_err();
    assert!(["TIMEOUT", "PATCH_HUNK_FAIL"].contains(&&*refusal.reason), "{refusal:?}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[tokio::test]
async fn apply_patch_changes_up_to_10_000_files() {
    let daemon = Daemon::start().await;
    let file_diff = |number: usize| {
        format!("--- /dev/null\n+++ b/d{}/f{number}\n@@ -0,0 +1 @@\n+{number}\n", number % 10)
    };
    let small_diff: String = (0..300).map(file_diff).collect();
    let response = apply(&daemon, patch_request(&small_diff)).await.unwrap();
    assert_eq!(response.changed_files.len(), 300);
    assert_eq!(daemon.read_file("d9/f299").await.unwrap(), "299\n");

    // The limit, and one file more.
    let dry_run = |diff: &str| ApplyPatchRequest { dry_run: Some(true), ..patch_request(diff) };
    let large_diff: String = (1000..11_000).map(file_diff).collect();
    let response = apply(&daemon, dry_run(&large_diff)).await.unwrap();
    assert_eq!(response.changed_files.len(), 10_000);

    let refusal = apply(&daemon, dry_run(&(large_diff + &file_diff(0)))).await.unwrap_err();
    assert_eq!(refusal.reason, "PATCH_PARSE_ERROR");

    // After a restart, the daemon finds the end of the event log behind these large records.
    let daemon = daemon.restart().await;
    let refusal = apply(&daemon, patch_request(&file_diff(1))).await.unwrap_err();
    assert_eq!(refusal.reason, "FILE_EXISTS");
}

#[tokio::test]
async fn dry_run_fails_exactly_where_the_patch_fails() {
    let daemon = Setup::new().workspace_table("symlinks = \"within\"").start().await;
    fs::write(daemon.file("fixed"), "1\n").unwrap();
    fs::set_permissions(daemon.file("fixed"), fs::Permissions::from_mode(0o444)).unwrap();
    fs::write(daemon.file("target"), "1\n").unwrap();
    symlink("target", daemon.file("link")).unwrap();
    let long_name = "n".repeat(300);
    let header = |name: &str| format!("diff --git a/{name} b/{name}\n");

    for (diff, reason) in [
        (
            header("fixed") + "--- a/fixed\n+++ b/fixed\n@@ -1 +1 @@\n-1\n+2\n",
            Some("PERMISSION_DENIED"),
        ),
        (
            header("link")
                + "deleted file mode 100644\n--- a/link\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n",
            Some("SYMLINK_BLOCKED"),
        ),
        (format!("--- /dev/null\n+++ b/{long_name}\n@@ -0,0 +1 @@\n+1\n"), Some("FILE_NOT_FOUND")),
        (
            header("fixed")
                + "old mode 100644\nnew mode 100755\n--- a/fixed\n+++ b/fixed\n@@ -1 +1 @@\n-1\n+2\n",
            None,
        ),
    ] {
        for dry_run in [true, false] {
            let request = ApplyPatchRequest { dry_run: Some(dry_run), ..patch_request(&diff) };
            let result = apply(&daemon, request).await;
            let actual = result.err().map(|refusal| refusal.reason);
            assert_eq!(actual.as_deref(), reason, "{dry_run} {diff}");
        }
    }
}

#[tokio::test]
async fn patch_of_too_many_bytes_fails_permanently() {
    let daemon = Daemon::start().await;
    let mut diff = String::new();
    for name in 0..3 {
        let file = fs::File::create(daemon.file(&name.to_string())).unwrap();
        file.set_len(200 << 20).unwrap();
        diff += &format!("--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-1\n+2\n");
    }

    let refusal = apply(&daemon, patch_request(&diff)).await.unwrap_err();
    assert_eq!(refusal.reason, "FILE_TOO_LARGE", "{refusal:?}");
}

#[tokio::test]
async fn patch_that_cannot_be_stored_is_not_applied() {
    let daemon = Setup::new().state_on_small_disk("").start().await;
    fs::write(daemon.file("a"), "1\n").unwrap();

    // Larger than the free space of the state disk, smaller than one message.
    let long_line = "x".repeat(3_500_000);
    let diff = format!("--- a/a\n+++ b/a\n@@ -1 +1,2 @@\n-1\n+2\n+{long_line}\n");
    let state_dir = format!("/proc/{}/root{}", daemon.pid(), daemon.state_dir().display());
    let filler = std::path::Path::new(&state_dir).join("filler");
    fs::write(&filler, vec![0; 1 << 20]).unwrap();

    let refusal = apply(&daemon, patch_request(&diff)).await.unwrap_err();
    assert_eq!(refusal.reason, "NO_SPACE", "{refusal:?}");
    assert_eq!(fs::read_to_string(daemon.file("a")).unwrap(), "1\n");

    let mut artifacts = ArtifactServiceClient::new(daemon.channel());
    let listed = artifacts.list_artifacts(ListArtifactsRequest::default()).await;
    assert!(listed.unwrap().into_inner().artifacts.is_empty());
}
