//! Shells belong to one caller, one session and one workspace.

use std::sync::Arc;

use jig::api::v1::RunRequest;

use super::{in_shell, remembered};
use crate::{
    callers::start_daemon_with_keys,
    support::{Daemon, KeyFile, Setup, with_key, with_metadata},
};

const SHOW: &str = "echo ${x-unset}; pwd";
const UNSET: &str = "unset\n/workspace\n";

#[tokio::test]
async fn callers_do_not_see_each_others_shells() {
    let keys = Arc::new(KeyFile::new());
    let [one, other] = ["one", "other"].map(|name| keys.add_key(name, "invoke", &[]));
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    let run =
        async |key: &str, command: &str| daemon.output(with_key(key, in_shell(command))).await;

    run(&one, "x=secret; cd /usr").await;
    assert_eq!(run(&other, SHOW).await, UNSET);
    run(&other, "x=other").await;
    assert_eq!(run(&one, SHOW).await, "secret\n/usr\n");
    assert_eq!(run(&other, SHOW).await, "other\n/workspace\n");

    // Even with the same name in another letter case, or as a path.
    for name in ["S", "..", "../s", "a/../s", "", ".s", "s\0", &"s".repeat(65)] {
        let request = RunRequest { shell: Some(name.to_owned()), ..in_shell(SHOW) };
        match daemon.try_run(with_key(&other, request)).await {
            Ok(response) => assert_eq!((name, response.stdout.as_str()), ("S", UNSET)),
            Err(status) => assert!(status.message().contains("shell"), "{name:?}: {status:?}"),
        }
    }
}

#[tokio::test]
async fn sessions_and_names_have_shells_of_their_own() {
    let daemon = Daemon::start().await;
    remembered(&daemon, "x=1; cd /usr").await;

    let other_name = RunRequest { shell: Some("t".to_owned()), ..in_shell(SHOW) };
    assert_eq!(daemon.output(other_name).await, UNSET);
    let other_session = with_metadata("jig-session", "b", in_shell(SHOW));
    assert_eq!(daemon.output(other_session).await, UNSET);
    // Without a shell, a command has nothing of it.
    assert_eq!(daemon.output(RunRequest { shell: None, ..in_shell(SHOW) }).await, UNSET);
    assert_eq!(remembered(&daemon, SHOW).await, "1\n/usr\n");
}

#[tokio::test]
async fn number_of_shells_is_limited() {
    let daemon = Daemon::start().await;
    let named = |number: u32| RunRequest { shell: Some(format!("s{number}")), ..in_shell("x=1") };
    for number in 0..32 {
        daemon.output(named(number)).await;
    }
    let refusal = daemon.run_failing(named(32), "RESOURCE_EXHAUSTED").await;
    assert!(refusal.message.contains("32 shells"), "{refusal:?}");
    // Those that exist go on, and other sessions have their own.
    assert_eq!(
        daemon.output(RunRequest { command: Some("echo $x".to_owned()), ..named(31) }).await,
        "1\n"
    );
    daemon.output(with_metadata("jig-session", "b", named(32))).await;
}

#[tokio::test]
async fn invalid_requests_name_their_fields() {
    let daemon = Daemon::start().await;
    let with_argv = RunRequest { command: None, argv: vec!["true".to_owned()], ..in_shell("") };
    let restart = RunRequest { shell: None, restart_shell: true, ..in_shell("true") };
    let few_files = RunRequest {
        limits: Some(jig::api::v1::LowerLimits {
            open_files: Some(16),
            ..jig::api::v1::LowerLimits::default()
        }),
        ..in_shell("true")
    };
    for (request, field) in
        [(with_argv, "shell"), (restart, "restart_shell"), (few_files, "limits.open_files")]
    {
        let refusal = daemon.run_failing(request, "INVALID_PARAMS").await;
        assert_eq!(refusal.invalid_fields(), [field], "{refusal:?}");
    }
}
