//! Bounds on the disk space and the number of files of created workspaces.

mod project_quotas;

use std::{
    fmt::Debug,
    fs,
    os::unix::fs::{FileExt as _, chown},
    path::PathBuf,
    sync::Arc,
};

use futures_util::future::join_all;
use jig::api::v1::{
    CreateDirectoryRequest, CreateWorkspaceRequest, DeletePathRequest, DeleteWorkspaceRequest,
    GetWorkspaceRequest, ListWorkspacesRequest, Outcome, RunResponse, WorkspaceDetails,
    WriteFileRequest, workspace_service_client::WorkspaceServiceClient,
};
use tempfile::TempDir;
use tonic::{Request, transport::Channel};

use crate::support::{Daemon, Refusal, Setup, eventually, shell, with_metadata};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A daemon whose created workspaces have bounds.
struct Bounded {
    daemon: Daemon,
    /// Holds the created workspaces.
    directory: PathBuf,
}

impl Bounded {
    async fn start(max_bytes: u64, max_files: u64) -> Self {
        Self::start_as(0, max_bytes, max_files).await
    }

    async fn start_as(user: u32, max_bytes: u64, max_files: u64) -> Self {
        // Directories take blocks there, as on most disks.
        let directory = TempDir::with_prefix_in("jig-test-bounds-", "/var/tmp").unwrap();
        let uid = Setup::new().user(user).workspace_uid();
        chown(directory.path(), Some(uid), Some(uid)).unwrap();
        let path = directory.path().to_owned();
        Self::start_in(path, Arc::new(directory), user, max_bytes, max_files).await
    }

    /// Starts with workspaces in `path`, which `resource` holds.
    async fn start_in(
        directory: PathBuf,
        resource: Arc<dyn Debug + Send + Sync>,
        user: u32,
        max_bytes: u64,
        max_files: u64,
    ) -> Self {
        let lines = format!("max_bytes = {max_bytes}\nmax_files = {max_files}\n");
        Self::start_with(directory, resource, user, &lines).await
    }

    /// As [`Self::start_in`], with these lines in the table of created workspaces.
    async fn start_with(
        directory: PathBuf,
        resource: Arc<dyn Debug + Send + Sync>,
        user: u32,
        lines: &str,
    ) -> Self {
        let path = directory.to_str().unwrap();
        let table = format!("\n[workspaces_on_demand]\ndirectory = {path:?}\n{lines}");
        let setup = Setup::new().user(user).workspace_table(&table).with_resource(resource);
        Self { daemon: setup.start().await, directory }
    }

    async fn restart(self) -> Self {
        Self { daemon: self.daemon.restart().await, directory: self.directory }
    }

    fn service(&self) -> WorkspaceServiceClient<Channel> {
        WorkspaceServiceClient::new(self.daemon.channel())
    }

    async fn create(&self, request: CreateWorkspaceRequest) -> Result<WorkspaceDetails, Refusal> {
        let created = self.service().create_workspace(request).await;
        let created = created.map_err(|status| Refusal::from_status(&status))?;
        Ok(created.into_inner().workspace.unwrap())
    }

    async fn remove(&self, name: &str) {
        let request = DeleteWorkspaceRequest { name: name.to_owned() };
        self.service().delete_workspace(request).await.unwrap();
    }

    async fn details(&self, name: &str) -> WorkspaceDetails {
        let request = GetWorkspaceRequest { name: name.to_owned() };
        self.service().get_workspace(request).await.unwrap().into_inner().workspace.unwrap()
    }

    /// Bytes and files, as the daemon reports them.
    async fn usage(&self, name: &str) -> (u64, u64) {
        let details = self.details(name).await;
        (details.used_bytes.unwrap(), details.used_files.unwrap())
    }

    async fn write(&self, workspace: &str, path: &str, size: u64) -> Result<(), Refusal> {
        let request = WriteFileRequest {
            path: path.to_owned(),
            content: "x".repeat(usize::try_from(size).unwrap()),
            ..WriteFileRequest::default()
        };
        let written = self.daemon.tools().write_file(inside(workspace, request)).await;
        written.map(drop).map_err(|status| Refusal::from_status(&status))
    }

    async fn delete(&self, workspace: &str, path: &str) {
        let request = DeletePathRequest { path: path.to_owned(), recursive: Some(true) };
        self.daemon.tools().delete_path(inside(workspace, request)).await.unwrap();
    }

    async fn run(&self, workspace: &str, command: &str) -> RunResponse {
        self.daemon.run(inside(workspace, shell(command))).await
    }

    async fn try_run(&self, workspace: &str, command: &str) -> Result<RunResponse, Refusal> {
        let run = self.daemon.try_run(inside(workspace, shell(command))).await;
        run.map_err(|status| Refusal::from_status(&status))
    }

    /// The directories of created workspaces on the host.
    fn directories(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.directory).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

fn named(name: &str) -> CreateWorkspaceRequest {
    CreateWorkspaceRequest { name: name.to_owned(), ..CreateWorkspaceRequest::default() }
}

fn inside<T>(workspace: &str, message: T) -> Request<T> {
    with_metadata("jig-workspace", workspace, message)
}

fn assert_full(refusal: &Refusal, bound: &str) {
    assert_eq!(refusal.reason, "NO_SPACE", "{refusal:?}");
    assert_eq!(refusal.metadata["limit_kind"], bound, "{refusal:?}");
    assert!(refusal.message.contains("delete_path"), "{refusal:?}");
}

#[tokio::test]
async fn file_tools_stay_within_the_bounds_and_deletion_makes_room() {
    let bounded = Bounded::start(MIB, 20).await;
    let created = bounded.create(named("w")).await.unwrap();
    assert_eq!((created.max_bytes, created.max_files), (Some(MIB), Some(20)));
    assert_eq!(created.used_files, Some(1), "its own directory");

    bounded.write("w", "a/b/first", 600 * KIB).await.unwrap();
    let full = bounded.write("w", "second", 600 * KIB).await.unwrap_err();
    assert_full(&full, "workspace_bytes");
    assert_eq!(full.metadata["maximum"], MIB.to_string());
    assert_eq!(full.metadata["workspace"], "w");
    let (bytes, files) = bounded.usage("w").await;
    assert!((600 * KIB..700 * KIB).contains(&bytes), "{bytes}");
    assert_eq!(files, 4, "the rejected change left nothing");

    // A replacement needs room for both contents.
    let replaced = bounded.write("w", "a/b/first", 500 * KIB).await.unwrap_err();
    assert_full(&replaced, "workspace_bytes");
    bounded.delete("w", "a").await;
    bounded.write("w", "second", 600 * KIB).await.unwrap();

    for number in 0..18 {
        bounded.write("w", &format!("empty-{number}"), 0).await.unwrap();
    }
    assert_full(&bounded.write("w", "more", 0).await.unwrap_err(), "workspace_files");
    let directory = CreateDirectoryRequest { path: "d".to_owned() };
    let refused = bounded.daemon.tools().create_directory(inside("w", directory)).await;
    assert_full(&Refusal::from_status(&refused.unwrap_err()), "workspace_files");
    bounded.delete("w", "empty-0").await;
    bounded.write("w", "more", 0).await.unwrap();
    assert_eq!(bounded.usage("w").await.1, 20);
}

#[tokio::test]
async fn a_command_beyond_a_bound_is_ended_and_the_next_rejected() {
    for user in [0, 1000] {
        let bounded = Bounded::start_as(user, 16 * MIB, 2000).await;
        bounded.create(named("w")).await.unwrap();
        let filled = bounded.run("w", "cat /dev/zero > big; sleep 1000").await;
        assert_eq!(filled.outcome(), Outcome::Signaled, "{filled:?}");
        assert_eq!((&*filled.limit, &*filled.signal), ("workspace_bytes", "SIGKILL"));
        assert_full(&bounded.try_run("w", "true").await.unwrap_err(), "workspace_bytes");
        assert_full(&bounded.write("w", "f", 1).await.unwrap_err(), "workspace_bytes");
        bounded.delete("w", "big").await;
        assert_eq!(bounded.run("w", "ls -A; echo freed").await.stdout, "freed\n");

        let many = "mkdir d; i=0; while :; do i=$((i+1)); : > d/$i; done";
        let many = bounded.run("w", many).await;
        assert_eq!((many.outcome(), &*many.limit), (Outcome::Signaled, "workspace_files"));
        // A directory that its user cannot list is counted, too.
        let hidden = bounded.try_run("w", "chmod 0 d").await.unwrap_err();
        assert_full(&hidden, "workspace_files");
        bounded.delete("w", "d").await;
        let short = bounded.run("w", "mkdir d; cd d; seq 3000 | xargs touch; cd ..; chmod 0 d");
        assert!(["", "workspace_files"].contains(&&*short.await.limit));
        assert_full(&bounded.try_run("w", "true").await.unwrap_err(), "workspace_files");
        bounded.delete("w", "d").await;
        assert_eq!(bounded.run("w", "echo again").await.stdout, "again\n");
    }
}

#[tokio::test]
async fn blocks_are_counted_and_not_sizes() {
    let bounded = Bounded::start(MIB, 100).await;
    bounded.create(named("w")).await.unwrap();
    let command = "truncate -s 1G sparse; head -c 300K /dev/zero > f; for i in 1 2 3 4 5 6 7 8; do ln f l$i; done; sync";
    let run = bounded.run("w", command).await;
    assert_eq!((run.exit_code, &*run.limit), (Some(0), ""), "{run:?}");
    let (bytes, files) = bounded.usage("w").await;
    assert!((300 * KIB..400 * KIB).contains(&bytes), "{bytes}");
    assert_eq!(files, 3, "links to one file count once");
    bounded.write("w", "g", 300 * KIB).await.unwrap();

    // The holes of a copy stay holes, but each link becomes a file.
    let clone = CreateWorkspaceRequest { clone_of: Some("w".to_owned()), ..named("c") };
    assert_full_clone(&bounded.create(clone.clone()).await.unwrap_err());
    bounded.run("w", "rm l*").await;
    bounded.create(clone).await.unwrap();
    assert_eq!(bounded.run("c", "stat -c %s sparse f").await.stdout, "1073741824\n307200\n");
}

fn assert_full_clone(refusal: &Refusal) {
    assert_eq!(refusal.reason, "NO_SPACE", "{refusal:?}");
    assert!(refusal.metadata["limit_kind"].starts_with("workspace_"), "{refusal:?}");
    assert!(refusal.message.contains("nothing was created"), "{refusal:?}");
}

#[tokio::test]
async fn a_request_lowers_bounds_and_a_copy_beyond_them_leaves_nothing() {
    let bounded = Bounded::start(8 * MIB, 100).await;
    let lower = CreateWorkspaceRequest { max_bytes: Some(MIB), ..named("lower") };
    let lower = bounded.create(lower).await.unwrap();
    assert_eq!((lower.max_bytes, lower.max_files), (Some(MIB), Some(100)));
    let higher = CreateWorkspaceRequest { max_bytes: Some(1 << 40), ..named("higher") };
    assert_eq!(bounded.create(higher).await.unwrap().max_bytes, Some(8 * MIB));
    let none = CreateWorkspaceRequest { max_bytes: Some(0), ..named("none") };
    let none = bounded.create(none).await.unwrap_err();
    assert_eq!(none.invalid_fields(), ["max_bytes"]);

    bounded.write("higher", "d/f", 2 * MIB).await.unwrap();
    let directories = bounded.directories().len();
    let clone = |max_bytes, max_files| CreateWorkspaceRequest {
        clone_of: Some("higher".to_owned()),
        max_bytes,
        max_files,
        ..named("copy")
    };
    assert_full_clone(&bounded.create(clone(Some(MIB), None)).await.unwrap_err());
    assert_full_clone(&bounded.create(clone(None, Some(2))).await.unwrap_err());
    assert_eq!(bounded.directories().len(), directories);
    let copy = bounded.create(clone(None, None)).await.unwrap();
    assert!(copy.used_bytes.unwrap() >= 2 * MIB, "{copy:?}");
}

#[tokio::test]
async fn uploads_count_before_they_write() {
    let bounded = Bounded::start(MIB, 20).await;
    bounded.create(named("w")).await.unwrap();
    let local = tempfile::tempdir().unwrap();
    let small = local.path().join("small");
    fs::create_dir(&small).unwrap();
    fs::write(local.path().join("large"), vec![1; 2 << 20]).unwrap();
    fs::write(small.join("file"), vec![1; 200 << 10]).unwrap();
    let jig = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_jig"));
        command.args(["--address", &format!("unix:{}", bounded.daemon.socket().display())]);
        command.args(["--workspace", "w"]).current_dir(local.path()).args(arguments);
        command.output().unwrap()
    };
    let uploaded = jig(&["cp", "large", ":large"]);
    let message = String::from_utf8_lossy(&uploaded.stderr).into_owned();
    assert!(!uploaded.status.success() && message.contains("NO_SPACE"), "{message}");
    assert_eq!(bounded.usage("w").await.1, 1, "it left nothing");

    assert!(jig(&["cp", "-r", "small", ":one"]).status.success());
    fs::write(small.join("second"), vec![1; 900 << 10]).unwrap();
    let uploaded = jig(&["cp", "-r", "small", ":two"]);
    let message = String::from_utf8_lossy(&uploaded.stderr).into_owned();
    assert!(!uploaded.status.success() && message.contains("NO_SPACE"), "{message}");
    assert!(bounded.usage("w").await.0 <= MIB);
    // A partial file has left nothing, and other changes still have room.
    bounded.delete("w", "two").await;
    bounded.write("w", "f", 600 * KIB).await.unwrap();
}

#[tokio::test]
async fn parallel_changes_stay_within_the_bounds() {
    let bounded = Bounded::start(MIB, 1000).await;
    bounded.create(named("w")).await.unwrap();
    for round in 0..3 {
        let names: Vec<_> = (0..64).map(|number| format!("{round}-{number}")).collect();
        let writes = names.iter().map(|name| bounded.write("w", name, 40 * KIB));
        let written = join_all(writes).await;
        let refused: Vec<_> = written.iter().filter_map(|result| result.as_ref().err()).collect();
        refused.iter().for_each(|refusal| assert_full(refusal, "workspace_bytes"));
        let (bytes, files) = bounded.usage("w").await;
        assert!(bytes <= MIB, "{bytes}");
        // Changes in progress may be counted twice, but the room is used.
        assert!(files > 12, "{files}");
        assert_eq!(files - 1, (64 - refused.len()) as u64);
        for (name, _) in names.iter().zip(&written).filter(|(_, result)| result.is_ok()) {
            bounded.delete("w", name).await;
        }
    }
}

#[tokio::test]
async fn parallel_commands_are_ended_soon_after_the_bound() {
    let bounded = Bounded::start(64 * MIB, 1000).await;
    bounded.create(named("w")).await.unwrap();
    // Up to 8 MiB per second each.
    let slow = "while :; do head -c 1M /dev/zero >> $$; sleep 0.12; done";
    let runs = (0..4).map(|_| bounded.run("w", slow));
    for run in join_all(runs).await {
        assert_eq!((run.outcome(), &*run.limit), (Outcome::Signaled, "workspace_bytes"));
    }
    let root = bounded.directories().pop().unwrap();
    let output = std::process::Command::new("du").args(["-s", "-B1"]).arg(&root).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let bytes: u64 = text.split_whitespace().next().unwrap().parse().unwrap();
    assert!((64 * MIB..192 * MIB).contains(&bytes), "{bytes}");
}

#[tokio::test]
async fn bounds_and_usage_survive_a_restart() {
    let bounded = Bounded::start(MIB, 20).await;
    let lower = CreateWorkspaceRequest { max_files: Some(10), ..named("w") };
    bounded.create(lower).await.unwrap();
    bounded.write("w", "f", 600 * KIB).await.unwrap();
    let before = bounded.details("w").await;
    let bounded = bounded.restart().await;

    let listed = bounded.service().list_workspaces(ListWorkspacesRequest::default()).await;
    let listed = listed.unwrap().into_inner().workspaces;
    assert_eq!((listed[0].max_files, listed[0].used_bytes), (Some(10), None), "not yet measured");
    assert_full(&bounded.write("w", "g", 600 * KIB).await.unwrap_err(), "workspace_bytes");
    let after = bounded.details("w").await;
    let bounds = |details: &WorkspaceDetails| {
        (details.max_bytes, details.max_files, details.used_bytes, details.used_files)
    };
    assert_eq!(bounds(&after), bounds(&before));
    let info = bounded.daemon.info().await.workspaces_on_demand.unwrap();
    assert_eq!((info.max_bytes, info.max_files, &*info.quota), (Some(MIB), Some(20), "watched"));
}

/// What the operator writes into a workspace is seen after the next command.
#[tokio::test]
async fn a_change_from_outside_is_seen_after_the_next_command() {
    let bounded = Bounded::start(MIB, 20).await;
    bounded.create(named("w")).await.unwrap();
    bounded.run("w", "true").await;
    let root = bounded.directories().pop().unwrap();
    let file = fs::File::create(root.join("f")).unwrap();
    file.write_all_at(&vec![1; 2 << 20], 0).unwrap();
    eventually("commands are rejected", async || bounded.try_run("w", "true").await.is_err()).await;
    bounded.delete("w", "f").await;
    bounded.run("w", "true").await;
}
