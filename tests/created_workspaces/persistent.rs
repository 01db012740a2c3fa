//! Persistent homes and `/tmp` of created workspaces.

use std::{fs, os::unix::fs::MetadataExt as _, path::PathBuf};

use jig::api::v1::CreateWorkspaceRequest;

use super::{Creating, in_workspace, named};
use crate::support::{DAEMON_UID, Refusal, Setup, shell};

const PERSISTENT: &str = "home = \"persistent\"\ntmp = \"persistent\"\n";

#[tokio::test]
async fn home_and_tmp_are_the_same_in_each_command_of_a_workspace() {
    for uid in [0, DAEMON_UID] {
        let creating = Creating::start(Setup::new().user(uid), PERSISTENT).await;
        for name in ["a", "b"] {
            creating.create(named(name)).await;
        }

        let script = "stat -c '%U %a' ~ /tmp; ls -A ~ /tmp; echo of-a > /tmp/f; echo of-a > ~/f; \
             ln -s /etc/passwd /tmp/link; mkfifo /tmp/fifo; chmod 711 /tmp";
        let expected = "agent 700\nagent 1777\n/home/agent:\n\n/tmp:\n";
        assert_eq!(creating.output_in("a", script).await, expected);
        assert_eq!(creating.output_in("b", "ls -A ~ /tmp /var/tmp/").await.matches('f').count(), 0);
        let script = "cat /tmp/f ~/f /var/tmp/f; stat -c %a /tmp; findmnt -no OPTIONS --target /tmp; \
             findmnt -no OPTIONS --target ~; ls /dev/shm; touch /dev/shm/f";
        let output = creating.output_in("a", script).await;
        let lines: Vec<_> = output.lines().collect();
        assert_eq!((&lines[..4], lines.len()), (&["of-a", "of-a", "of-a", "711"][..], 6));
        for options in &lines[4..] {
            assert!(options.contains("nosuid") && options.contains("nodev"), "{options}");
        }

        let creating = creating.restart_with_table_of(PERSISTENT).await;
        assert_eq!(creating.output_in("a", "cat /tmp/f ~/f").await, "of-a\nof-a\n");
        for path in creating.directories() {
            let metadata = path.metadata().unwrap();
            assert_eq!(metadata.uid(), uid, "{path:?}");
            let is_persistent = path.extension().is_some_and(|end| end == "persistent");
            assert!(!is_persistent || metadata.mode() & 0o77 == 0, "{path:?}: others enter it");
        }

        // A clone has the files only.
        let clone = CreateWorkspaceRequest { clone_of: Some("a".to_owned()), ..named("clone") };
        creating.create(clone).await;
        assert_eq!(creating.output_in("clone", "find . ~ /tmp -type f").await, "");

        let script = "mkdir -p /tmp/d/e ~/d/e; chmod 0 /tmp/d ~/d /tmp ~";
        creating.output_in("a", script).await;
        for name in ["a", "b", "clone"] {
            creating.delete(name).await.unwrap();
        }
        assert!(creating.directories().is_empty(), "{:?}", creating.directories());
    }
}

#[tokio::test]
async fn directories_become_persistent_when_the_operator_says_so() {
    let creating = Creating::start(Setup::new(), "").await;
    creating.create(named("w")).await;
    creating.output_in("w", "touch /tmp/f ~/f").await;
    assert_eq!(creating.output_in("w", "ls /tmp; ls ~").await, "");
    assert_eq!(creating.directories().len(), 1);

    let creating = creating.restart_with_table_of("tmp = \"persistent\"\n").await;
    creating.output_in("w", "touch /tmp/f ~/f").await;
    assert_eq!(creating.output_in("w", "ls /tmp; ls ~").await, "f\n");

    // What is not used any more is deleted with the workspace.
    let creating = creating.restart_with_table_of("").await;
    assert_eq!(creating.output_in("w", "ls /tmp").await, "");
    creating.delete("w").await.unwrap();
    assert!(creating.directories().is_empty());
}

/// A sandbox that had a run serves the next one although that left files in `/tmp`.
#[tokio::test]
async fn files_in_a_persistent_tmp_do_not_prevent_recycling() {
    for (more, is_recycled) in [(PERSISTENT, true), ("", false)] {
        let creating = Creating::start(Setup::new(), more).await;
        creating.create(named("w")).await;
        let mut numbers = Vec::new();
        for n in 0..8 {
            let command = format!("echo $$; touch /tmp/{n} ~/{n}");
            let number = creating.output_in("w", &command).await;
            numbers.push(number.trim().parse::<u32>().unwrap());
        }
        // Numbers of processes go on in a recycled sandbox.
        assert_eq!(numbers.iter().any(|number| *number > 2), is_recycled, "{numbers:?}");
        let response = creating.daemon.run(in_workspace("w", shell("touch /dev/shm/f"))).await;
        assert_eq!(response.exit_code, Some(0));
        assert_eq!(creating.output_in("w", "ls /dev/shm").await, "");
    }
}

#[tokio::test]
async fn a_directory_that_was_replaced_is_not_mounted() {
    let creating = Creating::start(Setup::new(), PERSISTENT).await;
    creating.create(named("w")).await;
    // Its processes start with the next command.
    let creating = creating.restart_with_table_of(PERSISTENT).await;
    let directories = creating.directories();
    let is_persistent = |path: &&PathBuf| path.extension().is_some_and(|end| end == "persistent");
    let persistent = directories.iter().find(is_persistent).unwrap();
    fs::rename(persistent.join("tmp"), persistent.join("old")).unwrap();
    std::os::unix::fs::symlink("/var/log", persistent.join("tmp")).unwrap();

    let refused = creating.daemon.try_run(in_workspace("w", shell("ls /tmp"))).await.unwrap_err();
    let refusal = Refusal::from_status(&refused);
    assert!(refusal.message.contains("was replaced"), "{refusal:?}");
    creating.delete("w").await.unwrap();
    assert!(creating.directories().is_empty() && fs::exists("/var/log").unwrap());
}

/// What commands leave in `/tmp` and the home directory counts for the bounds of the workspace.
#[tokio::test]
async fn persistent_directories_are_within_the_bounds_of_the_workspace() {
    let creating =
        Creating::start(Setup::new(), &format!("max_bytes = 1000000\n{PERSISTENT}")).await;
    for directory in ["/tmp", "~"] {
        creating.create(named("w")).await;
        creating.output_in("w", &format!("head -c 300000 /dev/zero > {directory}/small")).await;
        let fill = format!("head -c 3000000 /dev/zero > {directory}/large; sleep 1000");
        let filled = creating.daemon.run(in_workspace("w", shell(&fill))).await;
        assert_eq!(filled.limit, "workspace_bytes", "{filled:?}");
        let refused = creating.daemon.try_run(in_workspace("w", shell("ls"))).await.unwrap_err();
        assert_eq!(Refusal::from_status(&refused).reason, "NO_SPACE");
        creating.delete("w").await.unwrap();
    }
}
