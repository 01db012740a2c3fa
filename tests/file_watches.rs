//! Watches of files: `WatchService.WatchFiles` and `jig watch`.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::{chown, symlink},
    process::{Command, Stdio},
    sync::Arc,
};

use jig::api::v1::{
    ChangeKind, CreateWorkspaceRequest, DeleteWorkspaceRequest, FileType, WatchFilesRequest,
    WatchFilesResponse, WriteFileRequest, watch_files_response::Item,
    watch_service_client::WatchServiceClient, workspace_service_client::WorkspaceServiceClient,
};
use rustix::process::Signal;
use tempfile::TempDir;
use tonic::{IntoRequest, Request, Status, Streaming};

use crate::support::{
    Daemon, KeyFile, Refusal, Setup, eventually, promptly, shell, with_key, with_metadata,
};

/// A watch after its first message.
struct FileWatch {
    messages: Streaming<WatchFilesResponse>,
    directories: u32,
}

impl FileWatch {
    async fn of(daemon: &Daemon, request: impl IntoRequest<WatchFilesRequest>) -> Self {
        Self::try_of(daemon, request).await.unwrap()
    }

    /// Watches on a connection of its own.
    async fn try_of(
        daemon: &Daemon,
        request: impl IntoRequest<WatchFilesRequest>,
    ) -> Result<Self, Refusal> {
        let mut client = WatchServiceClient::new(daemon.new_connection());
        let response = promptly("the watch opens", client.watch_files(request)).await;
        let mut messages = response.map_err(|status| Refusal::from_status(&status))?.into_inner();
        match promptly("the watch is ready", messages.message()).await.unwrap().unwrap().item {
            Some(Item::Ready(ready)) => Ok(Self { messages, directories: ready.directories }),
            item => panic!("expected ready, got {item:?}"),
        }
    }

    async fn next(&mut self) -> Result<Option<Item>, Status> {
        let next = promptly("the watch continues or ends", self.messages.message()).await?;
        Ok(next.map(|message| message.item.unwrap()))
    }

    /// Reads changes up to one of `path`. Returns all, as in `+d/f`.
    async fn changes_until(&mut self, last: &str) -> Vec<String> {
        let mut changes = Vec::new();
        while !changes.iter().any(|change| change == last) {
            match self.next().await.unwrap().unwrap() {
                Item::Changes(message) => changes.extend(message.changes.iter().map(|change| {
                    let kind = match change.kind() {
                        ChangeKind::Created => '+',
                        ChangeKind::Changed => '~',
                        ChangeKind::Deleted => '-',
                        ChangeKind::Rescan => '!',
                        ChangeKind::Unspecified => '?',
                    };
                    let slash = if change.r#type() == FileType::Directory { "/" } else { "" };
                    format!("{kind}{}{slash}", change.path)
                })),
                item => panic!("expected changes, got {item:?}"),
            }
        }
        changes
    }

    /// Reads the stream up to its error.
    async fn error(mut self) -> Refusal {
        loop {
            match self.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without an error"),
                Err(status) => return Refusal::from_status(&status),
            }
        }
    }
}

fn watch_request(path: &str) -> WatchFilesRequest {
    WatchFilesRequest { path: Some(path.to_owned()), ..WatchFilesRequest::default() }
}

fn write_request(path: &str) -> WriteFileRequest {
    WriteFileRequest { path: path.to_owned(), content: "x".to_owned(), ..Default::default() }
}

/// Watches of the daemon, and its queues of events.
fn kernel_watches(daemon: &Daemon) -> (usize, usize) {
    let (mut watches, mut queues) = (0, 0);
    for entry in fs::read_dir(format!("/proc/{}/fdinfo", daemon.pid())).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
        let found = text.lines().filter(|line| line.starts_with("inotify wd:")).count();
        watches += found;
        queues += usize::from(found > 0);
    }
    (watches, queues)
}

#[tokio::test]
async fn changes_of_tools_commands_and_other_programs_are_reported() {
    let daemon = Setup::new().workspace_file("old", "").start().await;
    let mut watch = FileWatch::of(&daemon, watch_request(".")).await;
    assert_eq!(watch.directories, 1);

    daemon.tools().write_file(write_request("f")).await.unwrap();
    let created = watch.changes_until("+f").await;
    assert!(created.iter().all(|change| change.ends_with('f')), "{created:?}");
    daemon.tools().write_file(write_request("f")).await.unwrap();
    let replaced = watch.changes_until("~f").await;
    assert!(replaced.iter().all(|change| change.ends_with('f')), "{replaced:?}");
    daemon.run(shell("mkdir -p a/b/c && echo 1 > a/b/c/g && rm old && touch end")).await;
    let made: BTreeSet<_> = watch.changes_until("+end").await.into_iter().collect();
    for change in ["+a/", "+a/b/", "+a/b/c/", "-old"] {
        assert!(made.contains(change), "{change} {made:?}");
    }
    fs::write(daemon.file("a/b/c/h"), "").unwrap();
    watch.changes_until("+a/b/c/h").await;
    fs::remove_dir_all(daemon.file("a")).unwrap();
    watch.changes_until("-a/").await;
}

#[tokio::test]
async fn quiet_watch_sends_keep_alives_until_its_deadline() {
    let daemon = Daemon::start().await;
    let mut request =
        Request::new(WatchFilesRequest { keep_alive_sec: Some(1), ..watch_request(".") });
    request.set_timeout(std::time::Duration::from_secs(4));
    let mut watch = FileWatch::of(&daemon, request).await;
    assert!(matches!(watch.next().await, Ok(Some(Item::KeepAlive(_)))));
    assert_eq!(watch.error().await.reason, "TIMEOUT");
}

#[tokio::test]
async fn invalid_watches_are_refused_with_their_fields() {
    let daemon = Setup::new().workspace_file("f", "").start().await;
    symlink("/etc", daemon.file("out")).unwrap();
    let glob = vec!["[".to_owned()];
    for (request, reason) in [
        (watch_request("none"), "DIRECTORY_NOT_FOUND"),
        (watch_request("f"), "NOT_A_DIRECTORY"),
        (watch_request(".."), "PATH_ESCAPE"),
        (watch_request("/etc"), "PATH_ESCAPE"),
        (watch_request("out"), "SYMLINK_BLOCKED"),
        (WatchFilesRequest { globs: glob.clone(), ..watch_request(".") }, "INVALID_GLOB"),
        (WatchFilesRequest { exclude_globs: glob, ..watch_request(".") }, "INVALID_GLOB"),
        (WatchFilesRequest { max_depth: Some(0), ..watch_request(".") }, "INVALID_PARAMS"),
        (WatchFilesRequest { keep_alive_sec: Some(0), ..watch_request(".") }, "INVALID_PARAMS"),
    ] {
        let refusal = FileWatch::try_of(&daemon, request.clone()).await.err().unwrap();
        assert_eq!(refusal.reason, reason, "{request:?}");
    }
    eventually("nothing is watched", async || kernel_watches(&daemon) == (0, 0)).await;
}

#[tokio::test]
async fn watch_is_limited_to_the_workspaces_and_tools_of_its_key() {
    let keys = Arc::new(KeyFile::new());
    let other = TempDir::with_prefix("jig-test-other-").unwrap();
    let here = keys.add_key("here", "invoke", &["--for-workspace", "workspace"]);
    let reader = keys.add_key("reader", "invoke", &["--for-tool", "read_file"]);
    let setup = Setup::new()
        .arguments(&["--workspace", &format!("other={}", other.path().display())])
        .arguments(&["--keys", &keys.path().display().to_string()])
        .with_resource(Arc::clone(&keys) as _);
    let daemon = setup.start().await;

    let mut request = with_key(&here, watch_request("."));
    request.metadata_mut().insert("jig-workspace", "other".parse().unwrap());
    let refusal = FileWatch::try_of(&daemon, request).await.err().unwrap();
    assert_eq!(refusal.reason, "UNKNOWN_WORKSPACE");
    let refusal = FileWatch::try_of(&daemon, with_key(&reader, watch_request("."))).await;
    assert_eq!(refusal.err().unwrap().reason, "FORBIDDEN");

    let mut watch = FileWatch::of(&daemon, with_key(&here, watch_request("."))).await;
    fs::write(other.path().join("secret"), "").unwrap();
    fs::write(daemon.file("f"), "").unwrap();
    let changes = watch.changes_until("+f").await;
    assert!(changes.iter().all(|change| change.ends_with('f')), "{changes:?}");

    assert!(keys.run_jig_key(&["revoke", "here"]).status.success());
    daemon.reload_config(Daemon::RELOADED).await;
    assert_eq!(watch.error().await.reason, "UNAUTHENTICATED");
    eventually("nothing is watched", async || kernel_watches(&daemon) == (0, 0)).await;
}

#[tokio::test]
async fn watch_ends_when_its_tool_is_disabled_or_the_daemon_drains() {
    let disabled = Setup::new().workspace_table("\n[policy]\ndeny_tools = [\"list_files\"]\n");
    let refusal = FileWatch::try_of(&disabled.start().await, watch_request(".")).await;
    assert_eq!(refusal.err().unwrap().reason, "TOOL_DISABLED");

    let mut daemon = Daemon::start().await;
    let watch = FileWatch::of(&daemon, watch_request(".")).await;
    daemon.signal(Signal::TERM);
    assert_eq!(watch.error().await.reason, "DRAINING");
    daemon.wait_for_exit().await;
}

#[tokio::test]
async fn watch_ends_with_its_workspace() {
    let directory = Arc::new(TempDir::with_prefix("jig-test-created-").unwrap());
    let setup = Setup::new();
    let uid = setup.workspace_uid();
    chown(directory.path(), Some(uid), Some(uid)).unwrap();
    let path = directory.path().to_str().unwrap();
    let table = format!("\n[workspaces_on_demand]\ndirectory = {path:?}\n");
    let daemon =
        setup.workspace_table(&table).with_resource(Arc::clone(&directory) as _).start().await;
    let mut workspaces = WorkspaceServiceClient::new(daemon.channel());
    let name = "created".to_owned();
    let create = CreateWorkspaceRequest { name: name.clone(), ..Default::default() };
    workspaces.create_workspace(create).await.unwrap();

    let request = with_metadata("jig-workspace", &name, watch_request("."));
    let mut watch = FileWatch::of(&daemon, request).await;
    let write = with_metadata("jig-workspace", &name, write_request("f"));
    daemon.tools().write_file(write).await.unwrap();
    watch.changes_until("+f").await;
    workspaces.delete_workspace(DeleteWorkspaceRequest { name }).await.unwrap();
    assert_eq!(watch.error().await.reason, "UNKNOWN_WORKSPACE");
}

#[tokio::test]
async fn cancelled_watches_leave_nothing_and_their_number_is_limited() {
    let daemon = Daemon::start().await;
    fs::create_dir_all(daemon.file("a/b/c")).unwrap();
    let mut watches = Vec::new();
    let refusal = loop {
        match FileWatch::try_of(&daemon, watch_request(".")).await {
            Ok(watch) => watches.push(watch),
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(watches.len(), 48);
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert!(refusal.message.contains("48 file watches"), "{}", refusal.message);
    // Each queue has two descriptors.
    assert_eq!(kernel_watches(&daemon), (48 * 2 * 4, 48 * 2));

    drop(watches);
    eventually("nothing is watched", async || kernel_watches(&daemon) == (0, 0)).await;
    FileWatch::of(&daemon, watch_request("a")).await;
}

#[tokio::test]
async fn slow_client_gets_a_rescan_and_costs_no_memory() {
    let daemon = Daemon::start().await;
    let mut slow = FileWatch::of(&daemon, watch_request(".")).await;
    let name = "n".repeat(200);
    let before = daemon.resident_bytes();
    // The buffers of the connection are full first, then the kernel's queue.
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let files = 60_000 + 2 * limit.trim().parse::<usize>().unwrap();
    for number in 0..files {
        fs::write(daemon.file(&format!("{name}{}", number % 5000)), "").unwrap();
    }
    let after = daemon.resident_bytes();
    assert!(after < before + (32 << 20), "{before} to {after}");

    slow.changes_until("!./").await;
    fs::write(daemon.file("last"), "").unwrap();
    slow.changes_until("+last").await;
}

#[tokio::test]
async fn case_n8_command_that_swaps_directories_and_links_leads_no_watch_out() {
    let daemon = Daemon::start().await;
    let outside = TempDir::with_prefix("jig-test-outside-").unwrap();
    fs::create_dir(outside.path().join("d")).unwrap();
    fs::create_dir_all(daemon.file("real/d")).unwrap();
    symlink(outside.path(), daemon.file("link")).unwrap();
    let mut watch = FileWatch::of(&daemon, watch_request(".")).await;
    let swap = "for n in $(seq 300); do mv real x; mv link real; mv x link; touch link/d/in-$n; \
                mv real x; mv link real; mv x link; done; touch end";
    let running = daemon.spawn_run(shell(swap));
    let mut number = 0;
    while !running.is_finished() {
        fs::write(outside.path().join(format!("d/secret-{number}")), "").unwrap();
        number += 1;
        tokio::task::yield_now().await;
    }
    running.await.unwrap().unwrap();
    let changes = watch.changes_until("+end").await;
    assert!(changes.iter().any(|change| change.contains("in-")), "{changes:?}");
    assert!(!changes.iter().any(|change| change.contains("secret")), "{changes:?}");
    assert_eq!(kernel_watches(&daemon).0 % 2, 0);
}

#[tokio::test]
async fn jig_watch_prints_a_line_for_each_change() {
    let daemon = Daemon::start().await;
    let mut jig = Command::new(env!("CARGO_BIN_EXE_jig"))
        .args(["--json", "--address", &format!("unix:{}", daemon.socket().display())])
        .args(["watch", "--glob", "*.rs"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(jig.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), r#"{"ready":{"directories":1}}"#);
    fs::write(daemon.file("a.txt"), "").unwrap();
    fs::write(daemon.file("a.rs"), "").unwrap();
    let expected = r#"{"kind":"created","path":"a.rs","type":"FILE_TYPE_FILE"}"#;
    assert_eq!(lines.next().unwrap().unwrap(), expected);
    jig.kill().unwrap();
    jig.wait().unwrap();
    eventually("nothing is watched", async || kernel_watches(&daemon) == (0, 0)).await;
}
