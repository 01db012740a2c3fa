//! The user of commands, and the owner of the files they create: on disk the owner of the
//! workspace, inside the sandbox the user of the sandbox.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    path::Path,
};

use tempfile::TempDir;

use crate::support::{Daemon, Setup, shell, with_metadata};

/// A user that is neither root nor a user of sandboxes.
const OTHER_UID: u32 = 1234;
/// An ordinary user that runs a daemon.
const UNPRIVILEGED_UID: u32 = 12345;

/// Checks that commands, tools and the host share files, which belong to `owner` on disk. Returns
/// the user of commands and how the workspace is mapped to it.
async fn check_shared_files(daemon: &Daemon, owner: u32) -> (u32, String) {
    let output = daemon
        .output(shell(
            "echo made > made; mkdir -p directory/inner; echo inner > directory/inner/file; ln -s made link; \
             mkfifo fifo; chmod 750 directory; cp made copy; mv copy moved; echo more >> moved; stat -c %U made",
        ))
        .await;
    assert_eq!(output, "agent\n", "in the sandbox, the command owns its files");

    for name in
        ["made", "directory", "directory/inner", "directory/inner/file", "link", "fifo", "moved"]
    {
        let metadata = daemon.file(name).symlink_metadata().unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (owner, owner), "{name}");
    }
    assert_eq!(daemon.file("directory").metadata().unwrap().mode() & 0o7777, 0o750);
    assert_eq!(daemon.file("made").metadata().unwrap().mode() & 0o7777, 0o644);
    assert_eq!(daemon.read_file("made").await.unwrap(), "made\n");
    assert_eq!(daemon.read_file("/workspace/moved").await.unwrap(), "made\nmore\n");
    assert_eq!(daemon.list_files().await, ["directory/inner/file", "made", "moved"]);

    // A file of the host, read and changed by a command.
    let host_file = daemon.file("theirs");
    fs::write(&host_file, "of the host\n").unwrap();
    fs::set_permissions(&host_file, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&host_file, Some(owner), Some(owner)).unwrap();
    let output = daemon.output(shell("cat theirs; echo changed > theirs; stat -c %U theirs")).await;
    assert_eq!(output, "of the host\nagent\n");
    assert_eq!(fs::read_to_string(&host_file).unwrap(), "changed\n");
    assert_eq!(host_file.metadata().unwrap().uid(), owner);

    let uid: u32 = daemon.output(shell("id -u")).await.trim().parse().unwrap();
    let workspace = daemon.info().await.workspaces.swap_remove(0);
    assert_eq!(workspace.uid, uid);
    assert_eq!(workspace.mount_path, "/workspace");
    assert_ne!(uid, 0);

    (uid, workspace.ownership)
}

#[tokio::test]
async fn root_daemon_shares_files_of_a_root_workspace() {
    let daemon = Daemon::start().await;
    let (_, ownership) = check_shared_files(&daemon, 0).await;
    assert_eq!(ownership, "idmapped");
}

#[tokio::test]
async fn root_daemon_shares_files_of_a_user_workspace() {
    let daemon = Setup::new().workspace_owner(OTHER_UID).start().await;
    check_shared_files(&daemon, OTHER_UID).await;
}

#[tokio::test]
async fn unprivileged_daemon_shares_files_of_its_workspace() {
    let daemon = Setup::new().user(UNPRIVILEGED_UID).start().await;
    let (uid, ownership) = check_shared_files(&daemon, UNPRIVILEGED_UID).await;
    assert_eq!((uid, ownership.as_str()), (UNPRIVILEGED_UID, "own"));
}

#[tokio::test]
async fn commands_cannot_change_files_of_other_users() {
    for (setup, owner) in [(Setup::new(), 0), (Setup::new().workspace_owner(OTHER_UID), OTHER_UID)]
    {
        let daemon = setup.start().await;

        let other_user = if owner == 0 { OTHER_UID } else { 0 };
        for (name, mode) in [("public", 0o644), ("private", 0o600)] {
            let path = daemon.file(name);
            fs::write(&path, "text\n").unwrap();
            chown(&path, Some(other_user), Some(other_user)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }

        let response =
            daemon.run(shell("cat public; cat private; echo x > public; chmod 777 private")).await;
        assert_ne!(response.exit_code, Some(0));
        assert_eq!(response.stdout, "text\n", "{response:?}");
        assert_eq!(fs::read_to_string(daemon.file("public")).unwrap(), "text\n");

        let mode = daemon.file("private").metadata().unwrap().mode();
        assert_eq!(mode & 0o7777, 0o600);
    }
}

/// A directory outside the workspace that belongs to `owner` and holds one file, and a daemon that
/// binds it.
async fn start_with_bind(setup: Setup, flag: &str, owner: u32) -> (TempDir, Daemon) {
    let directory = TempDir::with_prefix("jig-test-bind-").unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let file = directory.path().join("theirs");
    fs::write(&file, "of the host\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();

    for path in [directory.path(), &file] {
        chown(path, Some(owner), Some(owner)).unwrap();
    }

    let bind = format!("{}:/data", directory.path().display());
    let daemon = setup.arguments(&[flag, &bind]).start().await;
    (directory, daemon)
}

#[tokio::test]
async fn files_created_in_a_writable_bind_belong_to_its_owner() {
    // The owner of the bind, not of the workspace. They differ where possible.
    for (setup, owner) in [
        (Setup::new(), 0),
        (Setup::new(), OTHER_UID),
        (Setup::new().workspace_owner(OTHER_UID), 0),
        (Setup::new().user(UNPRIVILEGED_UID), UNPRIVILEGED_UID),
    ] {
        let workspace_owner = setup.workspace_uid();
        let (bind, daemon) = start_with_bind(setup, "--bind", owner).await;
        let output = daemon
            .output(shell(
                "cat /data/theirs; echo changed > /data/theirs; \
                 echo made > /data/made; mkdir -p /data/directory/inner; echo here > here; \
                 cp here /data/directory; mv here /data/moved; cp /data/made copied_back; \
                 stat -c %U /data /data/theirs /data/made /data/moved copied_back",
            ))
            .await;
        assert_eq!(output, "of the host\nagent\nagent\nagent\nagent\nagent\n");
        for (name, text) in [
            ("theirs", Some("changed\n")),
            ("made", Some("made\n")),
            ("directory", None),
            ("directory/inner", None),
            ("directory/here", Some("here\n")),
            ("moved", Some("here\n")),
        ] {
            let path = bind.path().join(name);
            let metadata = path.symlink_metadata().unwrap();
            assert_eq!((metadata.uid(), metadata.gid()), (owner, owner), "{name}");
            if let Some(text) = text {
                assert_eq!(fs::read_to_string(&path).unwrap(), text, "{name}");
            }
        }
        let copied_back = daemon.file("copied_back").metadata().unwrap();
        assert_eq!((copied_back.uid(), copied_back.gid()), (workspace_owner, workspace_owner));
        assert_eq!(daemon.read_file("copied_back").await.unwrap(), "made\n");
        // A later run finds the files of the first.
        assert_eq!(daemon.output(shell("cat /data/made")).await, "made\n");
    }
}

#[tokio::test]
async fn commands_cannot_change_other_users_files_in_a_bind() {
    // Only the owner of the bind is mapped.
    let (bind, daemon) = start_with_bind(Setup::new(), "--bind", 0).await;

    let theirs = bind.path().join("theirs");
    chown(&theirs, Some(OTHER_UID), Some(OTHER_UID)).unwrap();
    assert_inaccessible(&daemon, &theirs, OTHER_UID).await;

    // A read-only bind is not mapped: permissions of other users apply to commands.
    let (bind, daemon) = start_with_bind(Setup::new(), "--bind-ro", 0).await;
    assert_inaccessible(&daemon, &bind.path().join("theirs"), 0).await;

    let public = bind.path().join("public");
    fs::write(&public, "for all\n").unwrap();
    let output = daemon.output(shell("cat /data/public")).await;
    assert_eq!(output, "for all\n");

    // A daemon of an ordinary user cannot map: files of other users keep their permissions.
    let setup = Setup::new().user(UNPRIVILEGED_UID);
    let (bind, daemon) = start_with_bind(setup, "--bind", OTHER_UID).await;
    assert_inaccessible(&daemon, &bind.path().join("theirs"), OTHER_UID).await;
}

/// Checks that commands can neither read nor change `/data/theirs`, nor change its permissions.
async fn assert_inaccessible(daemon: &Daemon, path: &Path, owner: u32) {
    for command in [
        "cat /data/theirs",
        "echo x > /data/theirs",
        "echo x >> /data/theirs",
        "chmod 666 /data/theirs",
    ] {
        let response = daemon.run(shell(command)).await;
        assert_ne!(response.exit_code, Some(0), "{command}: {response:?}");
        assert_eq!(response.stdout, "");
    }

    assert_eq!(fs::read_to_string(path).unwrap(), "of the host\n");

    let metadata = path.metadata().unwrap();
    assert_eq!((metadata.uid(), metadata.mode() & 0o7777), (owner, 0o600));
}

#[tokio::test]
async fn commands_cannot_create_setuid_root_files() {
    let daemon = Daemon::start().await;

    let response = daemon
        .run(shell("cp /bin/true tool && chmod u+s tool; chmod 4755 tool; chmod g+s tool; exit 1"))
        .await;
    assert!(response.stderr.contains("not permitted"), "{response:?}");

    let metadata = daemon.file("tool").metadata().unwrap();
    assert_eq!(metadata.uid(), 0);
    assert_eq!(metadata.mode() & 0o6000, 0);

    // All other mode bits, the sticky bit too, can be set.
    daemon.output(shell("mkdir shared; chmod 1777 shared; chmod 0 tool; chmod 755 tool")).await;
}

#[tokio::test]
async fn state_of_an_unprivileged_daemon_is_private() {
    let daemon = Setup::new().user(UNPRIVILEGED_UID).start().await;
    daemon.output(shell("true")).await;
    let mode = |path: &std::path::Path| path.metadata().unwrap().mode() & 0o777;
    assert_eq!(daemon.state_dir().metadata().unwrap().uid(), UNPRIVILEGED_UID);
    assert_eq!(mode(&daemon.state_dir()) & 0o077, 0, "other users cannot read outputs of commands");
    assert_eq!(mode(&daemon.socket()), 0o600);
}

#[tokio::test]
async fn each_workspace_of_a_root_daemon_has_its_own_uid() {
    let other_directory = TempDir::with_prefix("jig-test-other-").unwrap();
    let table = format!(
        "home = \"persistent\"\n[[workspaces]]\nname = \"other\"\npath = {:?}",
        other_directory.path()
    );
    let daemon = Setup::new().workspace_table(&table).start().await;
    let script = "echo kept > ~/f; echo made > made; stat -c %U made; id -u";
    let first = daemon.output(shell(script)).await;

    let second = daemon.output(with_metadata("jig-workspace", "other", shell(script))).await;
    let ids: Vec<u32> = [first, second]
        .iter()
        .map(|output| output.strip_prefix("agent\n").unwrap().trim().parse().unwrap())
        .collect();
    assert_eq!(ids, [61_000, 61_001]);

    let workspaces = daemon.info().await.workspaces;
    let reported_uids: Vec<u32> = workspaces.iter().map(|workspace| workspace.uid).collect();
    assert_eq!(reported_uids, ids);

    // On disk, the files of both belong to the owner of their workspace.
    for file in [daemon.file("made"), other_directory.path().join("made")] {
        assert_eq!(file.metadata().unwrap().uid(), 0);
    }

    let report = String::from_utf8(daemon.run_check().stdout).unwrap();
    assert!(report.contains("commands run as uid 61001"), "{report}");

    // A persistent home is found again after a restart, whichever user the workspace gets.
    let path = daemon.workspace().display().to_string();
    let daemon = daemon.restart().await;
    assert_eq!(daemon.output(shell("cat ~/f")).await, "kept\n", "{path}");
}
