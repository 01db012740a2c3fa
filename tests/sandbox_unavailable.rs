//! Hosts that cannot isolate commands: no command runs, and errors name the cause and the remedy.

use tonic_health::pb::health_check_response::ServingStatus;

use crate::support::{Daemon, HostProgram, Setup, argv, daemon_binary, run_jigd, shell};

/// A wrapper that simulates a host with `user.max_user_namespaces=0`.
fn compile_no_namespaces_wrapper() -> HostProgram {
    HostProgram::compile("no_namespaces")
}

/// Checks that a daemon runs nothing, and reports the failed step of the isolation, the error of
/// the kernel and the remedy.
async fn check_runs_nothing(daemon: &Daemon, errnos: &[&str], remedy: &str) {
    assert_eq!(daemon.health().await, ServingStatus::NotServing);

    for request in [shell("touch ran"), argv(&["touch", "ran"])] {
        let refusal = daemon.run_failing(request, "SANDBOX_UNAVAILABLE").await;
        let metadata = |name: &str| {
            let value = refusal.metadata.get(name).map_or("", String::as_str);
            assert!(!value.is_empty(), "{name}: {refusal:?}");
            assert!(refusal.message.contains(value), "{name}: {refusal:?}");
            value.to_owned()
        };
        assert!(!metadata("stage").is_empty());
        assert!(errnos.contains(&metadata("errno").as_str()), "{refusal:?}");

        // In a container, the remedy is an option of the container engine.
        let remedy_contains = |text| metadata("remedy").contains(text);
        assert!(
            remedy_contains(remedy) || remedy_contains("--security-opt seccomp=unconfined"),
            "the remedy is named: {refusal:?}"
        );
    }

    assert!(!daemon.file("ran").exists(), "a command ran without a sandbox");

    let info = daemon.info().await;
    let isolation = info.isolation.unwrap();
    assert!(!isolation.ready);
    assert_eq!(isolation.level, "L0");

    let failure = isolation.failure.unwrap();
    assert!(errnos.contains(&failure.errno.as_str()), "{failure:?}");
    assert!(!failure.stage.is_empty(), "{failure:?}");
    assert!(failure.remedy.contains(remedy), "{failure:?}");

    let missing: Vec<_> = isolation.layers.iter().filter(|layer| !layer.applied).collect();
    assert!(!missing.is_empty());

    for layer in missing {
        assert!(!layer.detail.is_empty() && !layer.remedy.is_empty(), "{layer:?}");
    }
    assert_eq!(info.counts.unwrap().sandboxes_idle, 0);
}

#[tokio::test]
async fn host_without_user_namespaces_runs_nothing() {
    let wrapper = compile_no_namespaces_wrapper();
    let daemon = Setup::new().wrapped_by([&wrapper.path]).start().await;
    check_runs_nothing(&daemon, &["ENOSPC"], "user.max_user_namespaces").await;
}

#[tokio::test]
async fn ordinary_user_without_user_namespaces_runs_nothing() {
    let wrapper = compile_no_namespaces_wrapper();
    let daemon = Setup::new().user(12345).wrapped_by([&wrapper.path]).start().await;
    check_runs_nothing(&daemon, &["ENOSPC"], "user.max_user_namespaces").await;
}

#[tokio::test]
async fn seccomp_profile_without_namespaces_runs_nothing() {
    let profile = HostProgram::compile("without_namespaces");
    for setup in [Setup::new(), Setup::new().user(12345)] {
        let daemon = setup.wrapped_by([&profile.path]).start().await;
        check_runs_nothing(&daemon, &["EPERM", "ENOSYS"], "user namespaces").await;
    }
}

#[tokio::test]
async fn root_that_cannot_change_user_runs_nothing() {
    // Root of a user namespace with a single user: the user of commands does not exist in it.
    let wrapper = ["unshare", "--user", "--mount", "--map-root-user"];
    let daemon = Setup::new().wrapped_by(wrapper).start().await;
    check_runs_nothing(&daemon, &["EPERM", "EINVAL"], "user").await;
}

#[tokio::test]
async fn lower_minimum_level_never_disables_the_sandbox() {
    let wrapper = compile_no_namespaces_wrapper();
    for level in ["L1", "L2"] {
        let setup = Setup::new().wrapped_by([&wrapper.path]);
        let daemon = setup.arguments(&["--minimum-level", level]).start().await;
        daemon.run_failing(shell("touch ran"), "SANDBOX_UNAVAILABLE").await;
        assert!(!daemon.file("ran").exists(), "{level}");
        assert_eq!(daemon.health().await, ServingStatus::NotServing, "{level}");
    }

    let refused = run_jigd(&["--minimum-level", "L0", "--workspace", "/tmp"]);
    assert_eq!(refused.status.code(), Some(78), "{refused:?}");
    assert!(refused.stdout.is_empty(), "the daemon does not start: {refused:?}");
}

#[tokio::test]
async fn file_tools_need_no_sandbox() {
    let wrapper = compile_no_namespaces_wrapper();
    let daemon = Setup::new().wrapped_by([&wrapper.path]).start().await;
    std::fs::write(daemon.file("file"), "text\n").unwrap();
    assert_eq!(daemon.read_file("file").await.unwrap(), "text\n");
    assert_eq!(daemon.list_files().await, ["file"]);
}

#[tokio::test]
async fn check_reports_whether_commands_can_run() {
    let directory = tempfile::TempDir::with_prefix("jig-test-").unwrap();

    let workspace = directory.path().join("workspace");
    let state = directory.path().join("state");
    std::fs::create_dir(&workspace).unwrap();

    let arguments = [
        "--check",
        "--workspace",
        workspace.to_str().unwrap(),
        "--state-dir",
        state.to_str().unwrap(),
    ];
    let working = run_jigd(&arguments);
    assert_eq!(working.status.code(), Some(0), "{working:?}");

    let wrapper = compile_no_namespaces_wrapper();
    let failing = std::process::Command::new(&wrapper.path)
        .arg(daemon_binary())
        .args(arguments)
        .output()
        .unwrap();
    assert_eq!(failing.status.code(), Some(78), "{failing:?}");

    let output_text = format!(
        "{}{}",
        String::from_utf8_lossy(&failing.stdout),
        String::from_utf8_lossy(&failing.stderr)
    );
    assert!(
        output_text.contains("ENOSPC") && output_text.contains("user namespaces"),
        "{output_text}"
    );
    assert_eq!(run_jigd(&["--no-such-flag"]).status.code(), Some(64));

    let missing = directory.path().join("missing");
    let missing_workspace = run_jigd(&["--check", "--workspace", missing.to_str().unwrap()]);
    assert_eq!(missing_workspace.status.code(), Some(78), "{missing_workspace:?}");

    let version = run_jigd(&["--version"]);
    assert_eq!(version.status.code(), Some(0));
    assert!(
        String::from_utf8_lossy(&version.stdout).contains(env!("CARGO_PKG_VERSION")),
        "{version:?}"
    );
}
