//! Persistent homes, on hosts where the daemon cannot map a home to every user.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, chown},
    process::Output,
};

use jig::api::v1::SandboxFailure;

use crate::support::{DAEMON_UID, Daemon, HostProgram, Setup, shell};

const PERSISTENT_HOME_TABLE: &str = "home = \"persistent\"";
/// Owner of the workspaces.
const WORKSPACE_OWNER_UID: u32 = 4242;
/// Wrapper for a root daemon without CAP_SYS_ADMIN, as in a container.
const WITHOUT_SYS_ADMIN: [&str; 5] =
    ["setpriv", "--inh-caps", "-sys_admin", "--bounding-set", "-sys_admin"];

/// The failure that a daemon reports which runs nothing because of a persistent home.
async fn persistent_home_failure(daemon: &Daemon, level: &str) -> SandboxFailure {
    let mut failures = daemon.assert_runs_nothing().await.into_iter();
    let failure = failures.find(|failure| failure.level == level).unwrap();
    assert_eq!(failure.stage, "persistent_home", "{failure:?}");
    assert!(failure.remedy.contains("home = \"ephemeral\""), "{failure:?}");
    failure
}

#[tokio::test]
async fn home_persists_at_l2() {
    let daemon = Setup::new().workspace_table(PERSISTENT_HOME_TABLE).at_l2().start().await;
    daemon.output(shell("echo kept > ~/f; touch /tmp/f")).await;
    let response = daemon.run(shell("cat ~/f; ls /tmp")).await;
    assert_eq!((response.isolation.as_str(), &*response.stdout), ("L2", "kept\n"));
}

#[tokio::test]
async fn persistent_home_is_rejected_at_l1() {
    let daemon = Setup::new().workspace_table(PERSISTENT_HOME_TABLE).at_l1().start().await;
    let refusal = persistent_home_failure(&daemon, "L1").await;
    assert!(refusal.message.contains("mount"), "{refusal:?}");
    assert_check_reports_not_ready(&daemon.run_check());

    let daemon = Setup::new().workspace_table("tmp = \"persistent\"").at_l1().start().await;
    let failures = daemon.assert_runs_nothing().await;
    assert!(failures.iter().any(|failure| failure.stage == "persistent_tmp"), "{failures:?}");
}

/// Checks that `--check` reports the same as the daemon.
fn assert_check_reports_not_ready(output: &Output) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    assert!(stderr.contains("NOT READY"), "{stderr}");
    assert!(stderr.contains("persistent_home"), "{stderr}");
}

#[tokio::test]
async fn daemon_without_sys_admin_rejects_persistent_homes() {
    let setup = || {
        let setup = Setup::new().workspace_owner(WORKSPACE_OWNER_UID);
        setup.wrapped_by(WITHOUT_SYS_ADMIN)
    };
    let daemon = setup().start().await;
    let response = daemon.run(shell("echo $HOME; touch ~/f")).await;
    assert_eq!(response.isolation, "L3", "the level does not depend on a persistent home");

    for level in ["L3", "L2", "L1"] {
        let setup = setup().workspace_table(PERSISTENT_HOME_TABLE);
        let daemon = setup.arguments(&["--minimum-level", level]).start().await;
        let refusal = persistent_home_failure(&daemon, level).await;
        if level != "L1" {
            assert!(refusal.message.contains("CAP_SYS_ADMIN"), "{refusal:?}");
        }
        assert_check_reports_not_ready(&daemon.run_check());
    }
}

#[tokio::test]
async fn namespace_root_owns_the_home_of_an_unmapped_owner() {
    let daemon = Setup::new()
        .user(DAEMON_UID)
        .workspace_owner(WORKSPACE_OWNER_UID)
        .workspace_table(PERSISTENT_HOME_TABLE)
        .wrapped_by(["unshare", "--user", "--map-root-user"])
        .start()
        .await;

    daemon.output(shell("echo kept > ~/f")).await;
    let daemon = daemon.restart().await;
    assert_eq!(daemon.output(shell("cat ~/f; id -un")).await, "kept\nagent\n");

    let home = only_home(&daemon);
    assert_eq!(home.join("f").metadata().unwrap().uid(), DAEMON_UID);
}

fn only_home(daemon: &Daemon) -> std::path::PathBuf {
    let mut homes = fs::read_dir(daemon.state_dir().join("homes")).unwrap();
    let home = homes.next().unwrap().unwrap().path();
    assert!(homes.next().is_none());
    home
}

#[tokio::test]
async fn home_survives_a_change_of_workspace_owner() {
    let setup =
        || Setup::new().workspace_owner(WORKSPACE_OWNER_UID).workspace_table(PERSISTENT_HOME_TABLE);
    let daemon = setup().start().await;
    let script = "umask 077; mkdir ~/d; echo secret > ~/d/f";
    daemon.output(shell(script)).await;
    chown(daemon.workspace(), Some(5353), Some(5353)).unwrap();
    let daemon = daemon.restart().await;
    let script = "cat ~/d/f; echo more >> ~/d/f; touch ~/g; rm -r ~/d; ls ~";
    assert_eq!(daemon.output(shell(script)).await, "secret\ng\n");

    // Without id-mapped mounts, commands run as the workspace's owner, which does not own the home.
    let injector = HostProgram::compile("inject");
    let injector = injector.path.to_str().unwrap();
    let daemon =
        setup().wrapped_by([injector, "clone:0:0x10000000:0x7e020000=1", "--"]).start().await;
    daemon.output(shell("echo kept > ~/f")).await;
    let home = only_home(&daemon);
    chown(daemon.workspace(), Some(5353), Some(5353)).unwrap();
    let daemon = daemon.restart().await;

    let refusal = persistent_home_failure(&daemon, "L3").await;
    for text in [home.to_str().unwrap(), "4242", "5353", "chown -R"] {
        assert!(refusal.message.contains(text), "{text}: {refusal:?}");
    }

    for path in [&home, &home.join("f")] {
        chown(path, Some(5353), Some(5353)).unwrap();
    }

    let daemon = daemon.restart().await;
    assert_eq!(daemon.output(shell("cat ~/f")).await, "kept\n");
}
