//! Names and files by which the file tools would read or change files outside the workspace, or
//! block for ever.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, PermissionsExt as _, symlink},
        net::UnixListener,
    },
};

use jig::api::v1::{DeletePathRequest, ListDirectoryRequest, StatPathRequest};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};

use crate::{
    files::tools::{READ_TOOLS, Tool, WRITE_TOOLS},
    support::{Daemon, Refusal, Setup, build_access_list, eventually, promptly, shell},
};

/// Checks that every read and write tool refuses a path for one of these reasons.
async fn assert_all_tools_fail(daemon: &Daemon, path: &str, reasons: &[&str]) {
    for tool in READ_TOOLS.iter().chain(WRITE_TOOLS) {
        assert_tool_fails(daemon, *tool, path, reasons).await;
    }
}

pub(super) async fn assert_tool_fails(daemon: &Daemon, tool: Tool, path: &str, reasons: &[&str]) {
    let result = promptly("the tool ends", tool.call(daemon, path)).await;
    let status = match result {
        Ok(response) => panic!("{tool:?} {path:?} returned {response}"),
        Err(status) => status,
    };
    let reason = Refusal::from_status(&status).reason;
    assert!(reasons.contains(&reason.as_str()), "{tool:?} {path:?}: {status:?}");
}

#[tokio::test]
async fn case_38_tools_do_not_follow_links_out_of_the_workspace() {
    let daemon = Daemon::start().await;
    let outside = daemon.sibling_path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("f"), "secret").unwrap();
    symlink(outside.join("f"), daemon.file("file")).unwrap();
    symlink(&outside, daemon.file("dir")).unwrap();

    for path in ["file", "/workspace/file"] {
        assert_all_tools_fail(&daemon, path, &["SYMLINK_BLOCKED"]).await;
    }

    for path in ["dir/f", "dir/none", "dir/none/none"] {
        assert_all_tools_fail(&daemon, path, &["SYMLINK_BLOCKED"]).await;
        for tool in [Tool::Stat, Tool::Delete, Tool::MoveFrom, Tool::MoveTo] {
            assert_tool_fails(&daemon, tool, path, &["SYMLINK_BLOCKED"]).await;
        }
    }

    assert_eq!(fs::read_to_string(outside.join("f")).unwrap(), "secret");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
}

#[tokio::test]
async fn case_40_tools_do_not_follow_links_into_proc() {
    let daemon = Daemon::start().await;
    let pid = daemon.pid();
    for (name, target) in [
        ("root", "/proc/self/root/etc/passwd".to_owned()),
        ("cwd", "/proc/self/cwd/..".to_owned()),
        ("daemon", format!("/proc/{pid}/root/etc/passwd")),
        ("fd", "/proc/self/fd/0".to_owned()),
        ("exe", "/proc/self/exe".to_owned()),
    ] {
        symlink(target, daemon.file(name)).unwrap();
        assert_all_tools_fail(&daemon, name, &["SYMLINK_BLOCKED"]).await;
    }

    let path = format!("/proc/{pid}/environ");
    assert_all_tools_fail(&daemon, &path, &["PATH_ESCAPE"]).await;
}

#[tokio::test]
async fn case_41_dangling_link_creates_no_file() {
    let daemon = Daemon::start().await;
    let target = daemon.sibling_path("target");
    symlink(&target, daemon.file("link")).unwrap();
    assert_all_tools_fail(&daemon, "link", &["SYMLINK_BLOCKED"]).await;
    assert!(!target.exists());
    assert!(daemon.file("link").is_symlink());
}

#[tokio::test]
async fn case_42_tools_reject_link_loops_and_chains() {
    let daemon = Daemon::start().await;
    symlink("b", daemon.file("a")).unwrap();
    symlink("a", daemon.file("b")).unwrap();
    symlink(".", daemon.file("self")).unwrap();
    fs::write(daemon.file("0"), "x").unwrap();
    for link in 1..=41 {
        symlink((link - 1).to_string(), daemon.file(&link.to_string())).unwrap();
    }

    for path in ["a", "a/x", "self/self/self/0", "41"] {
        assert_all_tools_fail(&daemon, path, &["SYMLINK_BLOCKED"]).await;
    }
}

#[tokio::test]
async fn case_43_hard_links_do_not_reach_outside_files() {
    let daemon = Daemon::start().await;
    let outside = daemon.sibling_path("outside");
    fs::write(&outside, "outside").unwrap();
    for command in
        ["ln /etc/passwd here", "ln /usr/bin/env here", "echo x > /tmp/x; ln /tmp/x here"]
    {
        let response = daemon.run(shell(command)).await;
        assert_ne!(response.exit_code, Some(0), "{command}: {response:?}");
    }

    assert!(!daemon.file("here").exists());

    // A hard link made outside the sandbox: writing replaces the name and leaves the outside file.
    fs::hard_link(&outside, daemon.file("here")).unwrap();
    Tool::Write.call(&daemon, "here").await.unwrap();
    assert_eq!(fs::read_to_string(&outside).unwrap(), "outside");
    assert_ne!(fs::read_to_string(daemon.file("here")).unwrap(), "outside");
}

#[tokio::test]
async fn cases_44_and_45_tools_reject_special_files() {
    let daemon = Daemon::start().await;
    let create = |name: &str, kind, device| {
        mknodat(CWD, daemon.file(name), kind, Mode::from_raw_mode(0o666), device).unwrap();
    };
    create("fifo", FileType::Fifo, 0);
    create("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    create("loop", FileType::BlockDevice, rustix::fs::makedev(7, 250));
    let _socket = UnixListener::bind(daemon.file("socket")).unwrap();

    for name in ["fifo", "null", "loop", "socket"] {
        let tools = READ_TOOLS.iter().chain(WRITE_TOOLS);
        for tool in tools.filter(|tool| !tool.accepts_directories()) {
            assert_tool_fails(&daemon, *tool, name, &["NOT_A_FILE"]).await;
        }
        for tool in READ_TOOLS.iter().filter(|tool| tool.accepts_directories()) {
            assert_tool_fails(&daemon, *tool, name, &["NOT_A_DIRECTORY", "NOT_A_FILE"]).await;
        }
        assert_tool_fails(&daemon, Tool::CreateDirectory, name, &["FILE_EXISTS"]).await;
    }

    // Tools that walk the directory skip special files.
    for tool in [Tool::ListFiles, Tool::ListDirectory, Tool::Search] {
        promptly("the tool ends", tool.call(&daemon, ".")).await.unwrap();
    }

    for name in ["fifo", "null", "loop", "socket"] {
        let response = daemon
            .run(shell(&format!(
                "mknod ./new b 7 0; mknod ./new c 1 3; test -e {name} && ! test -e new"
            )))
            .await;
        assert_eq!(response.exit_code, Some(0), "{response:?}");
        Tool::Delete.call(&daemon, name).await.unwrap();
    }
}

#[tokio::test]
async fn case_47_tools_accept_or_reject_unusual_names() {
    let daemon = Daemon::start().await;
    let long = "n".repeat(255);
    for name in [
        "new\nline",
        "-rf",
        "--",
        " ",
        "dot.",
        "space ",
        "\u{202e}rtl",
        "\u{1f600}",
        "*",
        "a\\b",
        "$(id)",
        "'\"",
        "\u{1}",
        &long,
    ] {
        for tool in [Tool::Write, Tool::Read, Tool::Edit, Tool::Stat, Tool::Search] {
            tool.call(&daemon, name)
                .await
                .unwrap_or_else(|status| panic!("{tool:?} {name:?}: {status:?}"));
        }
        assert_eq!(daemon.list_files().await, [name], "{name:?}");
        Tool::Delete.call(&daemon, name).await.unwrap();
    }

    let too_long = "n".repeat(256);
    let reasons = ["INVALID_PARAMS", "FILE_NOT_FOUND", "DIRECTORY_NOT_FOUND", "NOT_A_FILE"];
    for name in ["", "a\0b", &too_long] {
        assert_tool_fails(&daemon, Tool::Read, name, &reasons).await;
        assert_tool_fails(&daemon, Tool::Write, name, &reasons).await;
    }

    fs::write(daemon.file("x").with_file_name(OsStr::from_bytes(b"\xff")), "").unwrap();
    let request = ListDirectoryRequest::default();
    let listed = daemon.tools().list_directory(request).await.unwrap().into_inner();
    assert_eq!((listed.entries.len(), listed.skipped_names), (0, 1));

    let request = DeletePathRequest { path: "dir".to_owned(), recursive: Some(true) };
    daemon.output(shell("mkdir dir; mv ?* dir/ 2>/dev/null; ls dir | wc -l")).await;
    let deleted = daemon.tools().delete_path(request).await.unwrap().into_inner();
    assert_eq!(deleted.deleted_count, 2);
}

#[tokio::test]
async fn case_48_daemon_keeps_the_workspace_that_it_opened() {
    let daemon = Daemon::start().await;
    let before = daemon.workspace();
    let moved = before.with_file_name("moved");
    fs::write(before.join("f"), "inside").unwrap();
    let call =
        daemon.spawn_run(shell("touch began; while ! test -e go; do sleep 0.01; done; cat f"));
    eventually("the command starts", async || before.join("began").exists()).await;

    fs::rename(&before, &moved).unwrap();
    symlink("/etc", &before).unwrap();
    assert_eq!(daemon.read_file("f").await.unwrap(), "inside");

    Tool::Write.call(&daemon, "g").await.unwrap();
    assert!(moved.join("g").exists());
    assert_tool_fails(&daemon, Tool::Read, "passwd", &["FILE_NOT_FOUND"]).await;

    fs::write(moved.join("go"), "").unwrap();
    assert_eq!(call.await.unwrap().unwrap().stdout, "inside");
    assert_eq!(daemon.output(shell("cat f")).await, "inside");

    fs::remove_file(&before).unwrap();
    fs::rename(&moved, &before).unwrap();
}

#[tokio::test]
async fn case_62_tools_preserve_attributes_access_lists_and_modes() {
    for setup in [Setup::new(), Setup::new().user(12345)] {
        let daemon = setup.start().await;
        let script = "mkdir closed && touch closed/f && chmod 000 closed; touch f; chmod 604 f";
        daemon.output(shell(script)).await;
        let response = daemon.run(shell("touch own; chattr +i own")).await;
        assert_ne!(response.exit_code, Some(0), "{response:?}");

        Tool::Delete.call(&daemon, "own").await.unwrap();

        setxattr(daemon.file("f"), "user.mark", b"stays", XattrFlags::empty()).unwrap();
        let list = build_access_list(4);
        let acl = "system.posix_acl_access";
        setxattr(daemon.file("f"), acl, &list, XattrFlags::empty()).unwrap();

        Tool::Write.call(&daemon, "f").await.unwrap();
        let mut buffer = [0; 64];
        let mut get_attribute = |name: &str| {
            let length = rustix::fs::getxattr(daemon.file("f"), name, &mut buffer[..]).unwrap();
            buffer[..length].to_vec()
        };

        assert_eq!(get_attribute("user.mark"), b"stays");
        assert_eq!(get_attribute(acl), list);
        assert_eq!(fs::metadata(daemon.file("f")).unwrap().mode() & 0o777, 0o644);

        Tool::Delete.call(&daemon, "closed").await.unwrap();
        assert!(!daemon.file("closed").exists());
    }

    let daemon = Daemon::start().await;
    fs::write(daemon.file("fixed"), "x").unwrap();
    let path = daemon.file("fixed");
    let set_flags = |flags| {
        let file = fs::File::open(&path).unwrap();
        rustix::fs::ioctl_setflags(&file, flags)
    };
    if set_flags(rustix::fs::IFlags::IMMUTABLE).is_ok() {
        for tool in [Tool::Write, Tool::Upload, Tool::Delete, Tool::MoveFrom] {
            assert_tool_fails(&daemon, tool, "fixed", &["PERMISSION_DENIED"]).await;
        }
        set_flags(rustix::fs::IFlags::empty()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "x");
    }

    assert_eq!(fs::read_dir(daemon.workspace()).unwrap().count(), 1, "no temporary file remains");

    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    let request = StatPathRequest { path: "fixed".to_owned() };
    assert_eq!(daemon.tools().stat_path(request).await.unwrap().into_inner().mode, 0);
}
