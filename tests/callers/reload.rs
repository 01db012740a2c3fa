//! Taking a key away from a daemon that runs, whatever else is wrong.

use std::{fs, sync::Arc};

use super::start_daemon_with_keys;
use crate::support::{Daemon, KeyFile, Refusal, Setup, shell, with_key};

#[tokio::test]
async fn key_revocation_applies_despite_invalid_restart_settings() {
    let keys = Arc::new(KeyFile::new());
    let path = keys.path();
    keys.add_key("stays", "read", &[]);
    let daemon = start_daemon_with_keys(Setup::new().workspace_table(""), &keys).await;
    let config = daemon.sibling_path("jig.toml");
    let good = fs::read_to_string(&config).unwrap();
    let works = async |key: &str| match daemon.try_run(with_key(key, shell("true"))).await {
        Ok(_) => true,
        Err(refused) => {
            assert_eq!(Refusal::from_status(&refused).reason, "UNAUTHENTICATED");
            false
        }
    };
    let [workspace, away] = [daemon.workspace(), daemon.sibling_path("away")];
    fs::rename(&workspace, &away).unwrap();
    for wrong in [
        "",
        "listen = [\"0.0.0.0:1\", \"nonsense\"]\n",
        "[limits]\nprocesses = \"many\"\n",
        "[sandbox]\nbind = [\"/nowhere\"]\nno_such_field = 1\n",
    ] {
        fs::write(&config, format!("{wrong}{good}")).unwrap();
        let key = keys.add_key("gone", "invoke", &[]);
        daemon.reload_config(Daemon::RELOADED).await;
        assert!(works(&key).await, "{wrong}");
        assert!(keys.run_jig_key(&["revoke", "gone"]).status.success());
        // It is told all the same that it is wrong.
        daemon.reload_config("would not start with this configuration").await;
        assert!(!works(&key).await, "{wrong}");
    }
    // What may be meant to be the policy is not left out, and keys are not taken from where commands write.
    fs::rename(&away, &workspace).unwrap();
    fs::write(&config, format!("[polcy]\ndangerous = \"deny\"\n{good}")).unwrap();
    daemon.reload_config(Daemon::RELOAD_FAILED).await;
    let folder = path.parent().unwrap();
    fs::write(&config, &good).unwrap();
    fs::rename(&path, daemon.file("keys.toml")).unwrap();
    std::os::unix::fs::symlink(daemon.file("keys.toml"), folder.join("keys.toml")).unwrap();
    daemon.reload_config(Daemon::RELOAD_FAILED).await;
    assert!(daemon.log().contains("commands could reach"));
}
