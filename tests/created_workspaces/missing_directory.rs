//! Starts with directories that are missing: a disk that is not mounted, or one removed by hand.

use std::{fs, path::PathBuf};

use jig::api::v1::CreateWorkspaceRequest;

use super::{Creating, named};
use crate::support::{Setup, eventually};

impl Creating {
    async fn restart(self) -> Self {
        Self { daemon: self.daemon.restart().await, directory: self.directory }
    }

    fn only_directory(&self) -> PathBuf {
        self.directories().pop().unwrap()
    }
}

#[tokio::test]
async fn a_start_without_the_disk_of_the_workspaces_loses_nothing() {
    let mut creating = Creating::start(Setup::new(), "").await;
    creating.create(named("w")).await;
    creating.output_in("w", "echo 1 > f").await;
    let mounted = creating.directory.path().to_owned();
    let unmounted = mounted.with_extension("unmounted");
    fs::rename(&mounted, &unmounted).unwrap();
    fs::create_dir(&mounted).unwrap();
    let refused = creating.daemon.fail_to_restart();
    let log = String::from_utf8_lossy(&refused.stderr);
    assert!(log.contains("none of the 1 created workspaces"), "{log}");

    fs::remove_dir(&mounted).unwrap();
    fs::rename(&unmounted, &mounted).unwrap();
    let creating = creating.restart().await;
    assert_eq!(creating.output_in("w", "cat f").await, "1\n");
    creating.delete("w").await.unwrap();
}

#[tokio::test]
async fn a_workspace_without_its_directory_keeps_its_records_until_it_is_deleted() {
    let creating = Creating::start(Setup::new(), "").await;
    creating.create(named("lost")).await;
    creating.output_in("lost", "echo 1 > f").await;
    let lost = creating.only_directory();
    creating.create(named("other")).await;
    let aside = lost.with_extension("aside");
    fs::rename(&lost, &aside).unwrap();
    let creating = creating.restart().await;
    assert!(creating.daemon.log().contains("its directory is missing"));
    assert_eq!(creating.names().await, ["other", "workspace"]);
    let taken = creating.try_create(named("lost")).await.unwrap_err();
    assert_eq!(taken.reason, "WORKSPACE_EXISTS");

    fs::rename(&aside, &lost).unwrap();
    let creating = creating.restart().await;
    assert_eq!(creating.output_in("lost", "cat f").await, "1\n");

    fs::remove_dir_all(&lost).unwrap();
    let creating = creating.restart().await;
    creating.delete("lost").await.unwrap();
    assert_eq!(creating.delete("lost").await.unwrap_err().reason, "UNKNOWN_WORKSPACE");
    creating.create(named("lost")).await;
    assert_eq!(creating.output_in("lost", "ls -A").await, "");
}

#[tokio::test]
async fn a_workspace_without_its_directory_expires() {
    let creating = Creating::start(Setup::new(), "").await;
    creating.create(named("other")).await;
    let other = creating.only_directory();
    let request = CreateWorkspaceRequest { ttl_sec: Some(4), ..named("lost") };
    creating.create(request).await;
    let lost = creating.directories().into_iter().find(|path| *path != other).unwrap();
    fs::remove_dir_all(&lost).unwrap();
    let creating = creating.restart().await;
    assert!(creating.daemon.log().contains("its directory is missing"));
    eventually("its name is free", async || creating.try_create(named("lost")).await.is_ok()).await;
}
