//! Workspaces whose names or paths share a prefix or look alike.

use std::{
    fs,
    os::unix::fs::{chown, symlink},
    sync::Arc,
};

use jig::api::v1::{ReadFileRequest, RunRequest};
use tempfile::TempDir;

use super::file_tools::assert_tool_fails;
use crate::{
    callers::start_daemon_with_keys,
    files::tools::{READ_TOOLS, Tool, WRITE_TOOLS},
    support::{Daemon, KeyFile, Refusal, Setup, shell, with_key},
};

const OTHER_CONTENT: &str = "of the other";

/// Checks that every tool refuses a path outside all workspaces.
async fn assert_all_tools_fail(daemon: &Daemon, path: &str, reasons: &[&str]) {
    let other_tools = [Tool::Stat, Tool::Delete, Tool::MoveFrom, Tool::MoveTo];
    for tool in READ_TOOLS.iter().chain(WRITE_TOOLS).chain(&other_tools) {
        assert_tool_fails(daemon, *tool, path, reasons).await;
    }
}

#[tokio::test]
async fn case_n18_path_with_the_workspace_prefix_is_outside() {
    for (setup, is_l1) in [(Setup::new(), false), (Setup::new().at_l1(), true)] {
        let daemon = setup.start().await;
        let owner = fs::metadata(daemon.workspace()).unwrap();
        let owner = Some(std::os::unix::fs::MetadataExt::uid(&owner));
        let sibling = daemon.sibling_path("workspace-evil");
        fs::create_dir(&sibling).unwrap();
        fs::write(sibling.join("f"), OTHER_CONTENT).unwrap();
        for path in [sibling.clone(), sibling.join("f")] {
            chown(path, owner, owner).unwrap();
        }

        symlink(&sibling, daemon.file("link")).unwrap();
        symlink("../workspace-evil", daemon.file("relative")).unwrap();

        let root = daemon.workspace().display().to_string();

        // The path in sandboxes, and the path on the host.
        for root in ["/workspace", &root] {
            for path in ["-evil/f", "-evil", "/../workspace-evil/f", "/./../workspace-evil"] {
                assert_all_tools_fail(&daemon, &format!("{root}{path}"), &["PATH_ESCAPE"]).await;
            }
        }

        for path in [
            "../workspace-evil/f",
            "./../workspace-evil/f",
            "a/../../workspace-evil/f",
            "..//workspace-evil/f",
        ] {
            assert_all_tools_fail(&daemon, path, &["PATH_ESCAPE"]).await;
        }

        for path in ["link/f", "relative/f"] {
            assert_all_tools_fail(&daemon, path, &["SYMLINK_BLOCKED"]).await;
        }

        // Other spellings of the workspace's path are outside it.
        for path in [
            "/WORKSPACE/f",
            "/Workspace/f",
            "/workspace\u{2215}f",
            "/\u{ff57}orkspace/f",
            "/workspace\u{200b}/f",
            "/workspace /f",
            "/workspac\u{435}/f",
        ] {
            assert_all_tools_fail(&daemon, path, &["PATH_ESCAPE"]).await;
        }

        for cwd in
            [format!("{root}-evil"), "/workspace-evil".to_owned(), "../workspace-evil".to_owned()]
        {
            let request = RunRequest { cwd: Some(cwd), ..shell("cat f") };
            daemon.run_failing(request, "PATH_ESCAPE").await;
        }

        let line = format!("cat {0} link/f relative/f; echo x > {0}", sibling.join("f").display());
        let response = daemon.run(shell(&line)).await;
        assert!(!response.stdout.contains(OTHER_CONTENT), "{is_l1}: {response:?}");
        assert_eq!(fs::read_to_string(sibling.join("f")).unwrap(), OTHER_CONTENT);
        assert_eq!(fs::read_dir(&sibling).unwrap().count(), 1);
    }
}

/// Reads a file of a named workspace. Returns the content, or the reason of the refusal.
async fn read_in_workspace(
    daemon: &Daemon,
    key: &str,
    workspace: &str,
    path: &str,
) -> Result<String, String> {
    let request = ReadFileRequest { path: path.to_owned(), ..ReadFileRequest::default() };
    let mut request = with_key(key, request);
    let value = tonic::metadata::MetadataValue::try_from(workspace.as_bytes()).unwrap();
    request.metadata_mut().insert("jig-workspace", value);

    match daemon.tools().read_file(request).await {
        Ok(response) => Ok(response.into_inner().content),
        Err(status) => Err(Refusal::from_status(&status).reason),
    }
}

#[tokio::test]
async fn case_n18_workspace_key_rejects_similarly_named_workspaces() {
    let directory = TempDir::with_prefix("jig-test-alike-").unwrap();
    let path_of = |name: &str| directory.path().join(name);
    let mut flags = Vec::new();
    for name in ["a-evil", "A", "a.", "a_"] {
        fs::create_dir(path_of(name)).unwrap();
        fs::write(path_of(name).join("f"), OTHER_CONTENT).unwrap();
        flags.extend(["--workspace".to_owned(), format!("{name}={}", path_of(name).display())]);
    }

    fs::create_dir(path_of("a")).unwrap();
    fs::write(path_of("a").join("f"), "own").unwrap();

    // A path with `..` to the same directory.
    let detour = path_of("a-evil/../a").display().to_string();
    flags.extend(["--workspace".to_owned(), format!("a={detour}")]);

    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("a", "admin", &["--for-workspace", "a"]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let daemon = start_daemon_with_keys(Setup::new().arguments(&flags), &keys).await;

    let read = |workspace, path| read_in_workspace(&daemon, &key, workspace, path);

    assert_eq!(read("a", "f").await.unwrap(), "own");

    for name in [
        "a-evil",
        "A",
        "a.",
        "a_",
        "a/",
        "./a",
        "a/../a-evil",
        "a a-evil",
        "a,a-evil",
        "a%2devil",
        "a*",
        "",
        "workspace",
    ] {
        let answer = read(name, "f").await;
        assert!(answer != Ok(OTHER_CONTENT.to_owned()), "{name:?}: {answer:?}");
        assert!(answer.is_err() || name.is_empty(), "{name:?}: {answer:?}");
    }

    for name in ["\u{e1}", "\u{ff41}", "\u{430}"] {
        let answer = read(name, "f").await;
        assert!(answer.is_err(), "{name:?}: {answer:?}");
    }

    for path in ["../a-evil/f", "/workspace/../a-evil/f", "/workspace-evil/f"] {
        assert_eq!(read("a", path).await.unwrap_err(), "PATH_ESCAPE", "{path}");
    }

    let mut run = with_key(&key, shell("cat f ../a-evil/f; ls .."));
    run.metadata_mut().insert("jig-workspace", "a".parse().unwrap());
    let response = daemon.run(run).await;
    assert!(response.stdout.starts_with("own"), "{response:?}");
    assert!(!response.stdout.contains(OTHER_CONTENT), "{response:?}");
    assert!(!response.stdout.contains("a-evil"), "{response:?}");
}
