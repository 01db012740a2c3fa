//! Workspaces that callers create while the daemon runs.

mod audit;
mod crash;
mod hostile;
mod idle;
mod invisible;
mod missing_directory;
mod persistent;
mod rules;
mod scale;
mod streams;
mod uploads;

use std::{collections::BTreeMap, fs, path::PathBuf, process::Command, sync::Arc};

use jig::api::v1::{
    CreateWorkspaceRequest, DeleteWorkspaceRequest, GetWorkspaceRequest, ListWorkspacesRequest,
    ReadFileRequest, SubmitJobRequest, UpdateWorkspaceRequest, WorkspaceDetails, WorkspaceLabels,
    WriteFileRequest, job_service_client::JobServiceClient,
    workspace_service_client::WorkspaceServiceClient,
};
use tempfile::TempDir;
use tonic::{Request, transport::Channel};

use crate::support::{
    Daemon, KeyFile, Mark, Refusal, Setup, eventually, shell, start_request, with_key,
    with_metadata,
};

/// A daemon with a directory for created workspaces.
struct Creating {
    daemon: Daemon,
    directory: Arc<TempDir>,
}

impl Creating {
    async fn start(setup: Setup, more: &str) -> Self {
        let directory = Arc::new(TempDir::with_prefix("jig-test-created-").unwrap());
        let uid = setup.workspace_uid();
        std::os::unix::fs::chown(directory.path(), Some(uid), Some(uid)).unwrap();
        let setup = setup
            .workspace_table(&table(&directory, more))
            .with_resource(Arc::clone(&directory) as _);
        Self { daemon: setup.start().await, directory }
    }

    /// Kills the daemon, and starts it again with this table.
    async fn restart_with_table(self, table: &str) -> Self {
        let daemon = self.daemon.restart_with(|setup| setup.workspace_table(table)).await;
        Self { daemon, directory: self.directory }
    }

    /// As [`Self::restart_with_table`], with these lines in the table of created workspaces.
    async fn restart_with_table_of(self, more: &str) -> Self {
        let table = table(&self.directory, more);
        self.restart_with_table(&table).await
    }

    fn service(&self) -> WorkspaceServiceClient<Channel> {
        WorkspaceServiceClient::new(self.daemon.channel())
    }

    async fn create(&self, request: impl tonic::IntoRequest<CreateWorkspaceRequest>) -> Details {
        let created = self.try_create(request).await;
        created.unwrap()
    }

    async fn try_create(
        &self,
        request: impl tonic::IntoRequest<CreateWorkspaceRequest>,
    ) -> Result<Details, Refusal> {
        let created = self.service().create_workspace(request).await;
        let created = created.map_err(|status| Refusal::from_status(&status))?;
        Ok(created.into_inner().workspace.unwrap())
    }

    async fn details(&self, name: &str) -> Details {
        let request = GetWorkspaceRequest { name: name.to_owned() };
        self.service().get_workspace(request).await.unwrap().into_inner().workspace.unwrap()
    }

    async fn delete(&self, name: &str) -> Result<(), Refusal> {
        let request = DeleteWorkspaceRequest { name: name.to_owned() };
        let deleted = self.service().delete_workspace(request).await;
        deleted.map(drop).map_err(|status| Refusal::from_status(&status))
    }

    async fn names(&self) -> Vec<String> {
        let listed = self.service().list_workspaces(ListWorkspacesRequest::default()).await;
        listed.unwrap().into_inner().workspaces.into_iter().map(|it| it.name).collect()
    }

    async fn output_in(&self, workspace: &str, command: &str) -> String {
        self.daemon.output(in_workspace(workspace, shell(command))).await
    }

    fn directories(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.directory.path()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

type Details = WorkspaceDetails;

/// Lines of a configuration whose created workspaces are in `directory`.
fn table(directory: &TempDir, more: &str) -> String {
    let path = directory.path().to_str().unwrap();
    format!("\n[workspaces_on_demand]\ndirectory = {path:?}\n{more}")
}

fn named(name: &str) -> CreateWorkspaceRequest {
    CreateWorkspaceRequest { name: name.to_owned(), ..CreateWorkspaceRequest::default() }
}

fn in_workspace<T>(workspace: &str, message: T) -> Request<T> {
    with_metadata("jig-workspace", workspace, message)
}

#[tokio::test]
async fn a_created_workspace_is_used_like_any_other_until_it_is_deleted() {
    let creating = Creating::start(Setup::new(), "").await;
    let labels: BTreeMap<_, _> = [("sample".to_owned(), "7".to_owned())].into();
    let request = CreateWorkspaceRequest { labels: labels.clone(), ..named("one") };
    let one = creating.create(request).await;
    assert_eq!((&*one.name, &*one.mount_path, one.on_demand), ("one", "/workspace", true));
    assert_eq!(one.labels, labels);
    assert_eq!(one.owner, format!("uid:{}", rustix::process::getuid().as_raw()));
    assert!(one.create_time.is_some() && one.expire_time.is_none());
    let two = creating.create(named("")).await;
    assert!(two.name.starts_with("ws-"), "{}", two.name);
    assert_eq!(creating.names().await, ["one", "workspace", &two.name]);

    let write = WriteFileRequest {
        path: "d/f".to_owned(),
        content: "hello".to_owned(),
        ..WriteFileRequest::default()
    };
    creating.daemon.tools().write_file(in_workspace("one", write)).await.unwrap();
    assert_eq!(
        creating.output_in("one", "cat d/f; echo more >> d/f; pwd").await,
        "hello/workspace\n"
    );
    let read = ReadFileRequest { path: "d/f".to_owned(), ..ReadFileRequest::default() };
    let read = creating.daemon.tools().read_file(in_workspace("one", read)).await.unwrap();
    assert_eq!(read.into_inner().content, "hellomore\n");
    assert_eq!(creating.output_in(&two.name, "ls -A").await, "");
    assert_eq!(creating.daemon.output(shell("ls -A")).await, "");

    assert_eq!(creating.details("one").await.labels, labels);

    assert_eq!(creating.directories().len(), 2);
    creating.delete("one").await.unwrap();
    assert_eq!(creating.directories().len(), 1);
    let gone = creating.daemon.try_run(in_workspace("one", shell("true"))).await.unwrap_err();
    assert_eq!(Refusal::from_status(&gone).reason, "UNKNOWN_WORKSPACE");
    assert_eq!(creating.delete("one").await.unwrap_err().reason, "UNKNOWN_WORKSPACE");
    assert_eq!(creating.delete("workspace").await.unwrap_err().reason, "FORBIDDEN");
}

#[tokio::test]
async fn a_name_that_is_used_again_has_nothing_of_the_earlier_workspace() {
    let creating = Creating::start(Setup::new(), "").await;
    creating.create(named("w")).await;
    let run =
        |command| with_metadata_pair("jig-request-id", "id", in_workspace("w", shell(command)));
    let first = creating.daemon.run(run("echo 1 > f; echo first")).await;
    assert_eq!(first.stdout, "first\n");
    creating.delete("w").await.unwrap();

    creating.create(named("w")).await;
    let second = creating.daemon.run(run("ls; echo second")).await;
    assert_eq!(second.stdout, "second\n");
    assert_eq!(second.stdout_path, "logs/tool_step_0001_stdout.txt", "the steps begin anew");
}

fn with_metadata_pair<T>(key: &'static str, value: &str, mut request: Request<T>) -> Request<T> {
    request.metadata_mut().insert(key, value.parse().unwrap());
    request
}

#[tokio::test]
async fn created_workspaces_survive_a_restart() {
    let creating = Creating::start(Setup::new(), "").await;
    let request = CreateWorkspaceRequest { ttl_sec: Some(5000), ..named("kept") };
    let before = creating.create(request).await;
    creating.output_in("kept", "echo 1 > f").await;
    let Creating { daemon, directory } = creating;
    let creating = Creating { daemon: daemon.restart().await, directory };

    let after = creating.details("kept").await;
    assert_eq!(after.expire_time, before.expire_time);
    assert_eq!(creating.output_in("kept", "cat f").await, "1\n");
    creating.delete("kept").await.unwrap();
    assert!(creating.directories().is_empty());
}

#[tokio::test]
async fn a_name_that_the_configuration_gets_later_is_the_configurations() {
    let limit = "max_per_caller = 1\n";
    let creating = Creating::start(Setup::new(), limit).await;
    creating.create(named("w")).await;
    creating.output_in("w", "echo 1 > of-the-created").await;
    let configured = Arc::new(TempDir::with_prefix("jig-test-configured-").unwrap());
    let path = configured.path().to_str().unwrap();
    let before = table(&creating.directory, limit);
    let after = format!("{before}\n[[workspaces]]\nname = \"w\"\npath = {path:?}\n");
    let creating = creating.restart_with_table(&after).await;

    assert!(creating.daemon.log().contains("a created workspace is not served"));
    assert_eq!(creating.output_in("w", "ls").await, "");
    assert!(!creating.details("w").await.on_demand);
    assert_eq!(creating.delete("w").await.unwrap_err().reason, "FORBIDDEN");
    assert_eq!(creating.try_create(named("")).await.unwrap_err().reason, "RESOURCE_EXHAUSTED");

    let creating = creating.restart_with_table(&before).await;
    assert_eq!(creating.output_in("w", "ls").await, "of-the-created\n");
    creating.delete("w").await.unwrap();
}

#[tokio::test]
async fn a_clone_has_the_files_and_is_independent() {
    let creating = Creating::start(Setup::new(), "").await;
    creating
        .output_in("workspace", "mkdir -p a/b; echo 1 > a/b/f; ln -s b a/l; chmod 751 a/b/f")
        .await;
    let clone = |name: &str, of: &str| CreateWorkspaceRequest {
        clone_of: Some(of.to_owned()),
        ..named(name)
    };
    creating.create(clone("first", "workspace")).await;
    creating.create(clone("second", "first")).await;
    assert_eq!(
        creating.output_in("second", "cat a/l/f; stat -c %a a/b/f; echo 2 > a/b/f").await,
        "1\n751\n"
    );
    assert_eq!(creating.output_in("first", "cat a/b/f").await, "1\n");
    let missing = creating.try_create(clone("third", "none")).await.unwrap_err();
    assert_eq!(missing.reason, "UNKNOWN_WORKSPACE");
    assert!(!creating.names().await.contains(&"third".to_owned()));
}

#[tokio::test]
async fn deletion_ends_commands_jobs_and_processes() {
    let creating = Creating::start(Setup::new(), "").await;
    creating.create(named("busy")).await;
    let mark = Mark::new();
    // Descendants that leave their session and ignore signals.
    let command = "trap '' TERM; (setsid sleep 1000 & ) ; exec sleep 1000";
    let run = creating.daemon.spawn_run(in_workspace("busy", mark.on(shell(command))));
    let start = in_workspace("busy", mark.on_start(start_request(shell(command))));
    let mut process = creating.daemon.start_process(start).await;
    let submit = SubmitJobRequest {
        tool: "run".to_owned(),
        params_json: serde_json::json!({ "command": command }).to_string(),
        ..SubmitJobRequest::default()
    };
    let mut jobs = JobServiceClient::new(creating.daemon.channel());
    let submitted = jobs.submit_job(in_workspace("busy", submit)).await;
    submitted.unwrap();
    eventually("all commands run", async || mark.processes().len() >= 4).await;

    creating.delete("busy").await.unwrap();
    mark.assert_gone();
    assert!(creating.directories().is_empty());
    let _ended = run.await.unwrap();
    let _ended = process.next_event().await;
    creating.create(named("busy")).await;
    let listed = jobs.list_jobs(in_workspace("busy", Default::default())).await.unwrap();
    assert!(listed.into_inner().jobs.is_empty());
}

#[tokio::test]
async fn workspaces_of_others_are_invisible() {
    let keys = Arc::new(KeyFile::new());
    let [a, b] = ["a", "b"].map(|name| keys.add_key(name, "invoke", &["--create-workspaces"]));
    let admin = keys.add_key("boss", "admin", &[]);
    let plain = keys.add_key("plain", "invoke", &[]);
    let path = keys.path();
    let setup = Setup::new().arguments(&["--keys", path.to_str().unwrap()]);
    let setup = setup.with_resource(Arc::clone(&keys) as _);
    let creating = Creating::start(setup, "max_per_caller = 2\n").await;

    creating.create(with_key(&a, named("of-a"))).await;
    let names = async |key: &str| {
        let request = with_key(key, ListWorkspacesRequest::default());
        let listed = creating.service().list_workspaces(request).await.unwrap().into_inner();
        listed.workspaces.into_iter().map(|workspace| workspace.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&a).await, ["of-a"]);
    assert!(names(&b).await.is_empty());
    assert_eq!(names(&admin).await, ["of-a", "workspace"]);
    assert_eq!(names(&plain).await, ["workspace"]);

    let run = async |key: &str| {
        let request = with_metadata_pair("jig-workspace", "of-a", with_key(key, shell("echo 1")));
        let response = creating.daemon.try_run(request).await;
        response.map_err(|status| Refusal::from_status(&status).reason)
    };
    assert_eq!(run(&a).await.unwrap().stdout, "1\n");
    assert_eq!(run(&admin).await.unwrap().stdout, "1\n");
    for key in [&b, &plain] {
        assert_eq!(run(key).await.unwrap_err(), "UNKNOWN_WORKSPACE");
        let delete = with_key(key, DeleteWorkspaceRequest { name: "of-a".to_owned() });
        let refused = creating.service().delete_workspace(delete).await.unwrap_err();
        assert_eq!(Refusal::from_status(&refused).reason, "UNKNOWN_WORKSPACE");
        let clone = CreateWorkspaceRequest { clone_of: Some("of-a".to_owned()), ..named("stolen") };
        let refused = creating.try_create(with_key(key, clone)).await.unwrap_err();
        assert!(["UNKNOWN_WORKSPACE", "FORBIDDEN"].contains(&&*refused.reason), "{refused:?}");
    }
    let without_workspace = creating.daemon.try_run(with_key(&b, shell("true"))).await.unwrap_err();
    let expected = "set jig-workspace to a workspace that it creates, because the caller sees none";
    assert!(without_workspace.message().contains(expected), "{without_workspace:?}");
    assert_eq!(
        creating.try_create(with_key(&plain, named("x"))).await.unwrap_err().reason,
        "FORBIDDEN"
    );
    assert_eq!(
        creating.try_create(with_key(&b, named("of-a"))).await.unwrap_err().reason,
        "WORKSPACE_EXISTS"
    );
    creating.create(with_key(&a, named("of-a-2"))).await;
    assert_eq!(
        creating.try_create(with_key(&a, named("x"))).await.unwrap_err().reason,
        "RESOURCE_EXHAUSTED"
    );
}

#[tokio::test]
async fn expired_and_idle_workspaces_are_deleted() {
    let creating = Creating::start(Setup::new(), "ttl = \"1h\"\n").await;
    let short = CreateWorkspaceRequest { ttl_sec: Some(1), ..named("short") };
    creating.create(short).await;
    let idle = CreateWorkspaceRequest { idle_timeout_sec: Some(1), ..named("idle") };
    creating.create(idle).await;
    let long = CreateWorkspaceRequest { ttl_sec: Some(u32::MAX), ..named("long") };
    let long = creating.create(long).await;
    let lifetime = long.expire_time.unwrap().seconds - long.create_time.unwrap().seconds;
    assert!((3599..=3601).contains(&lifetime), "at most what the operator allows: {lifetime}");
    eventually("both are deleted", async || {
        creating.names().await == ["long", "workspace"] && creating.directories().len() == 1
    })
    .await;

    let update = UpdateWorkspaceRequest {
        name: "long".to_owned(),
        ttl_sec: Some(1),
        labels: Some(WorkspaceLabels { labels: [("k".to_owned(), "v".to_owned())].into() }),
        ..UpdateWorkspaceRequest::default()
    };
    let updated = creating.service().update_workspace(update).await.unwrap().into_inner();
    assert_eq!(updated.workspace.unwrap().labels["k"], "v");
    eventually("it is deleted", async || creating.names().await == ["workspace"]).await;
}

#[tokio::test]
async fn invalid_requests_create_nothing() {
    let creating = Creating::start(Setup::new(), "").await;
    for name in ["A", "-a", "a-", "a/b", "..", "a b", "workspaces.x", &"n".repeat(64)] {
        let refused = creating.try_create(named(name)).await.unwrap_err();
        assert_eq!(refused.reason, "INVALID_PARAMS", "{name}");
        assert_eq!(refused.invalid_fields(), ["name"]);
    }
    assert_eq!(
        creating.try_create(named("workspace")).await.unwrap_err().reason,
        "WORKSPACE_EXISTS"
    );
    assert!(creating.directories().is_empty());

    let without = Daemon::start().await;
    let mut service = WorkspaceServiceClient::new(without.channel());
    let refused = service.create_workspace(named("a")).await.unwrap_err();
    assert_eq!(Refusal::from_status(&refused).reason, "WORKSPACES_DISABLED");
}

#[tokio::test]
async fn repeated_creation_creates_once() {
    let creating = Creating::start(Setup::new(), "").await;
    let request = || with_metadata("jig-request-id", "create", named(""));
    let first = creating.create(request()).await;
    assert_eq!(creating.create(request()).await.name, first.name);
    assert_eq!(creating.directories().len(), 1);

    creating.delete(&first.name).await.unwrap();
    let deleted = creating.try_create(request()).await.unwrap_err();
    assert_eq!(deleted.reason, "UNKNOWN_WORKSPACE");
    // Another one of the name is not the one of that request.
    creating.create(named(&first.name)).await;
    assert_eq!(creating.try_create(request()).await.unwrap_err().reason, "UNKNOWN_WORKSPACE");
}

/// A run in one created workspace sees no other, whatever the daemon's user.
#[tokio::test]
async fn commands_see_their_workspace_only() {
    for user in [0, 1000] {
        let creating = Creating::start(Setup::new().user(user), "").await;
        creating.create(named("a")).await;
        creating.create(named("b")).await;
        creating.output_in("a", "echo secret > f; chmod 644 f").await;
        let directory = creating.directory.path().display().to_string();
        let probe =
            format!("cat {directory}/*/f ../*/f /proc/*/root/workspace/f 2>/dev/null; id -u");
        let [a, b] = [creating.output_in("a", &probe).await, creating.output_in("b", &probe).await];
        assert!(!b.contains("secret"), "{b}");
        assert_eq!(user == 0, a.lines().last() != b.lines().last(), "ids of their own: {a} {b}");
    }
}

#[tokio::test]
async fn the_command_line_creates_lists_and_deletes() {
    let creating = Creating::start(Setup::new(), "").await;
    let try_jig = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_jig"))
            .args(["--address", &format!("unix:{}", creating.daemon.socket().display())])
            .args(arguments)
            .output()
            .unwrap()
    };
    let jig = |arguments: &[&str]| {
        let output = try_jig(arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(jig(&["workspace", "create", "w", "--label", "a=b", "--ttl", "600"]), "w\n");
    assert_eq!(
        jig(&["--workspace", "w", "run", "--", "sh", "-c", "echo 1 > f; echo done"]),
        "done\n"
    );
    assert_eq!(jig(&["workspace", "create", "x", "--clone", "w"]), "x\n");
    assert_eq!(jig(&["--workspace", "x", "read", "f"]), "1\n");
    let listed = jig(&["workspace", "list", "--label", "a=b"]);
    assert!(listed.contains("w ") && !listed.contains("x "), "{listed}");
    let updated = jig(&["workspace", "update", "w", "--label", "c=d", "--label", "e=f"]);
    assert!(updated.contains(" c=d,e=f\n"), "{updated}");
    let unchanged = try_jig(&["workspace", "update", "w"]);
    assert_eq!(unchanged.status.code(), Some(64), "{unchanged:?}");
    assert_eq!(jig(&["workspace", "list", "--label", "a=b"]).lines().count(), 1);

    // As the page says: the files of the directory, not the directory.
    let project = tempfile::tempdir().unwrap();
    std::fs::write(project.path().join("file"), "copied\n").unwrap();
    let contents = format!("{}/.", project.path().display());
    jig(&["--workspace", "w", "cp", "-r", &contents, ":"]);
    assert_eq!(jig(&["--workspace", "w", "read", "file"]), "copied\n");
    jig(&["workspace", "rm", "w", "x"]);
    assert_eq!(creating.names().await, ["workspace"]);
}
