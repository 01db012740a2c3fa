//! Revocation of a key takes effect even if the configuration has errors.

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
    let valid = fs::read_to_string(&config).unwrap();
    let is_accepted = async |key: &str| match daemon.try_run(with_key(key, shell("true"))).await {
        Ok(_) => true,
        Err(status) => {
            assert_eq!(Refusal::from_status(&status).reason, "UNAUTHENTICATED");
            false
        }
    };

    let [workspace, moved] = [daemon.workspace(), daemon.sibling_path("away")];
    fs::rename(&workspace, &moved).unwrap();

    for lines in [
        "",
        "listen = [\"0.0.0.0:1\", \"nonsense\"]\n",
        "[limits]\nprocesses = \"many\"\n",
        "[sandbox]\nbind = [\"/nowhere\"]\nno_such_field = 1\n",
    ] {
        fs::write(&config, format!("{lines}{valid}")).unwrap();
        let key = keys.add_key("gone", "invoke", &[]);
        daemon.reload_config(Daemon::RELOADED).await;
        assert!(is_accepted(&key).await, "{lines}");
        assert!(keys.run_jig_key(&["revoke", "gone"]).status.success());

        // The daemon still reports the error.
        daemon.reload_config("would not start with this configuration").await;
        assert!(!is_accepted(&key).await, "{lines}");
    }

    // The daemon rejects an unknown section, which may be a misspelled policy, and a key file that
    // commands could write.
    fs::rename(&moved, &workspace).unwrap();
    fs::write(&config, format!("[polcy]\ndangerous = \"deny\"\n{valid}")).unwrap();
    daemon.reload_config(Daemon::RELOAD_FAILED).await;
    let directory = path.parent().unwrap();
    fs::write(&config, &valid).unwrap();
    fs::rename(&path, daemon.file("keys.toml")).unwrap();
    std::os::unix::fs::symlink(daemon.file("keys.toml"), directory.join("keys.toml")).unwrap();
    daemon.reload_config(Daemon::RELOAD_FAILED).await;

    assert!(daemon.log().contains("commands could reach"));
}
