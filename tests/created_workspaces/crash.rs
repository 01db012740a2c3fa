//! The daemon dies at each step of the creation, the copy and the deletion of a workspace.

use std::{
    fs,
    os::unix::{fs::symlink, process::ExitStatusExt as _},
    path::PathBuf,
};

use jig::api::v1::{CreateWorkspaceRequest, DeleteWorkspaceRequest};
use rustix::process::Signal;

use super::{Creating, in_workspace, named};
use crate::support::{Setup, shell};

const PERSISTENT: &str = "home = \"persistent\"\ntmp = \"persistent\"\n";
const FATAL_STEP: &str = "JIG_DIE_AT_STEP";
/// Steps of the start of a daemon, which makes and removes directories to prove the isolation.
const STEPS_OF_START: u32 = 7;
/// What the source of the copies has, as `find` prints it.
const FILES: &str = "./a\n./a/f\n./a/link\n./g\n";

impl Creating {
    /// Starts the daemon again. It dies at the step with this number, if any.
    async fn restart_to_die_at(self, step: Option<u32>) -> Self {
        let daemon = self.daemon.restart_with(|setup| match step {
            Some(step) => setup.environment(FATAL_STEP, &step.to_string()),
            None => setup.without_variable(FATAL_STEP),
        });
        Self { daemon: daemon.await, directory: self.directory }
    }

    /// Checks that the daemon died by its own hand.
    async fn assert_died(&mut self) {
        let status = self.daemon.wait_for_exit().await;
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()));
    }

    /// Entries of a directory of the state directory.
    fn state_entries(&self, name: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.daemon.state_dir().join(name)).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// Checks that the workspace is whole or not there at all. Returns whether it is there.
    async fn is_whole(&self, files: &str, step: u32) -> bool {
        if self.names().await == ["workspace"] {
            assert!(self.directories().is_empty(), "step {step}: {:?}", self.directories());
            return false;
        }
        assert_eq!(self.directories().len(), 2, "step {step}: {:?}", self.directories());
        assert_eq!(self.output_in("w", "find . -mindepth 1 | sort").await, files, "step {step}");
        true
    }
}

async fn start() -> Creating {
    let creating = Creating::start(Setup::new(), PERSISTENT).await;
    let source = creating.daemon.workspace();
    fs::create_dir(source.join("a")).unwrap();
    for file in ["a/f", "g"] {
        fs::write(source.join(file), file).unwrap();
    }
    symlink("f", source.join("a/link")).unwrap();
    creating
}

#[tokio::test]
async fn creation_leaves_a_whole_workspace_or_none() {
    let empty = named("w");
    let clone = CreateWorkspaceRequest { clone_of: Some("workspace".to_owned()), ..named("w") };
    for (request, files, min_steps) in [(empty, "", 8), (clone, FILES, 14)] {
        let mut creating = start().await;
        for step in STEPS_OF_START + 1.. {
            creating = creating.restart_to_die_at(Some(step)).await;
            // The error of a connection that broke has no details.
            if creating.service().create_workspace(request.clone()).await.is_ok() {
                assert!(
                    step > STEPS_OF_START + min_steps,
                    "the daemon would die at {step} steps only"
                );
                break;
            }
            creating.assert_died().await;
            creating = creating.restart_to_die_at(None).await;
            if creating.is_whole(files, step).await {
                creating.delete("w").await.unwrap();
            }
            assert!(creating.directories().is_empty());
            let journals = creating.state_entries("changes").len();
            assert!(journals <= 1, "step {step}: of the workspace of the configuration only");
        }
    }
}

#[tokio::test]
async fn an_interrupted_deletion_is_completed() {
    let mut creating = start().await;
    let request = CreateWorkspaceRequest { clone_of: Some("workspace".to_owned()), ..named("w") };
    for step in STEPS_OF_START + 1.. {
        creating = creating.restart_to_die_at(None).await;
        creating.create(request.clone()).await;
        creating.output_in("w", "echo temporary > /tmp/f; echo home > ~/f").await;
        creating = creating.restart_to_die_at(Some(step)).await;
        let delete = DeleteWorkspaceRequest { name: "w".to_owned() };
        if creating.service().delete_workspace(delete).await.is_ok() {
            assert!(step > STEPS_OF_START + 8, "the daemon would die at {step} steps only");
            break;
        }
        creating.assert_died().await;

        creating = creating.restart_to_die_at(None).await;
        if creating.is_whole(FILES, step).await {
            assert_eq!(creating.output_in("w", "cat /tmp/f ~/f").await, "temporary\nhome\n");
            creating.delete("w").await.unwrap();
        }
        creating.create(named("w")).await;
        let run = in_workspace("w", shell("ls -A . /tmp ~"));
        let response = creating.daemon.run(run).await;
        assert!(!response.stdout.contains('f'), "step {step}: {response:?}");
        assert_eq!(response.stdout_path, "logs/tool_step_0001_stdout.txt", "step {step}");
        creating.delete("w").await.unwrap();
        assert!(creating.directories().is_empty(), "step {step}: {:?}", creating.directories());
    }
}

/// A daemon that is killed while it proves the isolation leaves a directory, which the next removes.
#[tokio::test]
async fn directories_of_interrupted_starts_are_removed() {
    let creating = Creating::start(Setup::new(), "").await;
    for name in [".probe-1", ".probe-1.persistent"] {
        fs::create_dir_all(creating.directory.path().join(name).join("d")).unwrap();
    }
    let creating = creating.restart_with_table_of("").await;
    assert!(creating.directories().is_empty());
}
