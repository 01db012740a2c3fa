//! Home directories: ephemeral and persistent ones, and binds for caches.

use std::{fs, os::unix::fs::MetadataExt as _, path::PathBuf};

use super::{failing_lines, run_script, with_each_daemon};
use crate::support::{Daemon, Refusal, Setup, argv, shell, start_request, with_metadata};

with_each_daemon!(
    persistent_home_survives_runs_and_restarts,
    ephemeral_home_starts_empty,
    persistent_home_is_not_limited_by_tmp_bytes,
    persistent_home_gives_no_access_beyond_itself,
    persistent_tmp_survives_runs_and_restarts,
);

const PERSISTENT_HOME: &str = "home = \"persistent\"";

/// The persistent home directories, on the host.
fn host_homes(daemon: &Daemon) -> Vec<PathBuf> {
    let entries = fs::read_dir(daemon.state_dir().join("homes"));
    let entries = entries.into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

async fn persistent_home_survives_runs_and_restarts(setup: Setup) {
    let owner = setup.workspace_uid();
    let daemon = setup.workspace_table(PERSISTENT_HOME).start().await;

    let script = "stat -c '%U %G' ~; stat -c %a ~; ls -A ~; mkdir -p ~/.cache/x; echo kept > ~/.cache/x/f; echo ~";
    assert_eq!(run_script(&daemon, script).await, "agent agent\n700\n/home/agent\n");
    assert_eq!(run_script(&daemon, "cat ~/.cache/x/f; echo more >> ~/.cache/x/f").await, "kept\n");

    // On the host, its files belong to the owner of the workspace.
    let [home] = host_homes(&daemon).try_into().unwrap();
    for path in [home.clone(), home.join(".cache/x/f")] {
        let metadata = path.metadata().unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (owner, owner), "{}", path.display());
    }

    let state = daemon.state_dir().metadata().unwrap();
    assert_eq!(state.mode() & 0o77, 0, "other users cannot enter the state directory");

    // Concurrent runs share the home directory, but not temporary files.
    let wait_script = "mkfifo ~/meet; touch /tmp/own; echo waiting; cat ~/meet";
    let mut watch = daemon.start_process(start_request(shell(wait_script))).await;
    watch.read_until("waiting\n").await;
    assert_eq!(run_script(&daemon, "echo met > ~/meet; ls /tmp").await, "");

    watch.wait_for_exit().await;
    assert!(watch.stdout_text().ends_with("met\n"));

    // It is mounted without setuid and device files.
    let flags = run_script(&daemon, "findmnt -no OPTIONS --target ~").await;
    assert!(flags.contains("nosuid") && flags.contains("nodev"), "{flags}");

    let daemon = daemon.restart().await;
    assert_eq!(run_script(&daemon, "cat ~/.cache/x/f").await, "kept\nmore\n");

    let layers = daemon.info().await.isolation.unwrap().layers;
    let scratch = layers.iter().find(|layer| layer.name == "scratch").unwrap();
    assert!(scratch.detail.contains("persists (sandbox.home)"), "{}", scratch.detail);
}

async fn persistent_tmp_survives_runs_and_restarts(setup: Setup) {
    let owner = setup.workspace_uid();
    let daemon = setup.workspace_table("tmp = \"persistent\"").start().await;
    let script = "stat -c '%U %G %a' /tmp; ls -A /tmp; echo kept > /tmp/f; touch ~/f; mktemp -d; \
         python3 -c 'import tempfile; print(tempfile.gettempdir())'; df --output=fstype /tmp | tail -1";
    let output = run_script(&daemon, script).await;
    assert!(output.starts_with("agent agent 1777\n/tmp/tmp."), "{output}");
    assert!(output.contains("\n/tmp\n"), "{output}");

    let script = "cat /tmp/f /var/tmp/f; ls -A ~; findmnt -no OPTIONS --target /tmp; \
         ! mknod /tmp/null c 1 3; ! ln /tmp/f here; ! rmdir /tmp; ! chmod u+s /tmp/f";
    let output = run_script(&daemon, script).await;
    assert!(output.starts_with("kept\nkept\n"), "{output}");
    let flags = output.lines().nth(2).unwrap();
    assert!(flags.contains("nosuid") && flags.contains("nodev"), "{flags}");

    let tmp = daemon.state_dir().join("tmp");
    let entries: Vec<_> = fs::read_dir(tmp).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [tmp] = &entries[..] else { panic!("{entries:?}") };
    let metadata = tmp.join("f").metadata().unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (owner, owner));
    assert!(host_homes(&daemon).is_empty());

    let daemon = daemon.restart().await;
    assert_eq!(run_script(&daemon, "cat /tmp/f").await, "kept\n");
    let layers = daemon.info().await.isolation.unwrap().layers;
    let scratch = layers.iter().find(|layer| layer.name == "scratch").unwrap();
    assert!(scratch.detail.contains("persists (sandbox.tmp)"), "{}", scratch.detail);
}

async fn ephemeral_home_starts_empty(setup: Setup) {
    let daemon = setup.start().await;
    for _ in 0..3 {
        assert_eq!(run_script(&daemon, "ls -A ~; touch ~/f").await, "");
    }
    assert!(host_homes(&daemon).is_empty());
}

async fn persistent_home_is_not_limited_by_tmp_bytes(setup: Setup) {
    // More than the limits of memory and of temporary files: the home directory is on a disk.
    let setup = setup.workspace_table(&format!(
        "{PERSISTENT_HOME}\n[limits]\nmemory_bytes = 100_000_000\ntmp_bytes = 20_000_000"
    ));
    let daemon = setup.start().await;
    let script = "head -c 150000000 /dev/zero > ~/large; for n in 1 2 3 4 5 6 7 8; do sha256sum ~/large; done | sort -u | wc -l; rm ~/large; \
        ! head -c 30000000 /dev/zero > /tmp/large";
    assert_eq!(run_script(&daemon, script).await, "1\n");
}

async fn persistent_home_gives_no_access_beyond_itself(setup: Setup) {
    let daemon = setup.workspace_table(PERSISTENT_HOME).start().await;

    let script = "echo kept > ~/f; echo own > w; mkfifo ~/fifo; ln -s /etc/passwd ~/link; \
        python3 -c 'import os, socket; os.chdir(os.environ[\"HOME\"]); socket.socket(socket.AF_UNIX).bind(\"socket\")'";
    run_script(&daemon, script).await;
    for line in [
        "ln ~/f here",
        "ln w ~/here",
        "chmod u+s ~/f",
        "chmod g+s ~",
        "mknod ~/null c 1 3",
        "mv ~ elsewhere",
        "rmdir ~",
        "rm -rf ~ && test ! -e ~",
        "ln -sfnT /tmp ~",
        "ls ~/../../var/log",
    ] {
        let failed = failing_lines(&daemon, line).await;
        assert_eq!(failed.len(), 1, "{line}");
    }

    // Neither its content nor its mode disturbs the next daemon or the next run.
    run_script(&daemon, "echo kept > ~/f; mkfifo ~/fifo; ln -s / ~/link; chmod 000 ~").await;
    let daemon = daemon.restart().await;
    let script = "pwd; stat -c %a ~; chmod 700 ~; cat ~/f; rm ~/*; ls -A ~";
    assert_eq!(run_script(&daemon, script).await, "/workspace\n0\nkept\n");
}

#[tokio::test]
async fn persistent_home_can_fill_its_disk() {
    let fill = "head -c 9000000 /dev/zero > ~/fill";
    let setup = || Setup::new().workspace_table(PERSISTENT_HOME);

    // On the disk of the state directory: no command runs until there is space.
    let daemon = setup().state_on_small_disk("").start().await;
    let response = daemon.run(shell(fill)).await;
    assert!(response.stderr.contains("No space left"), "{response:?}");

    // In another session, as the existing one may have space for one more record in its last page.
    let run = with_metadata("jig-session", "another", shell("touch ran"));
    let refusal = Refusal::from_status(&daemon.try_run(run).await.unwrap_err());
    assert_eq!(refusal.reason, "NO_SPACE", "{refusal:?}");
    assert!(refusal.message.contains("state directory"), "{refusal:?}");
    assert!(!daemon.file("ran").exists());

    let home =
        fs::read_dir(daemon.own_state_file("homes")).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(home.join("fill")).unwrap();
    assert_eq!(daemon.output(shell("ls -A ~")).await, "");

    // On a disk of its own: other commands still run, and a command can free the space.
    let daemon = setup().state_on_small_disk("homes").start().await;
    let response = daemon.run(shell(fill)).await;
    assert!(response.stderr.contains("No space left"), "{response:?}");

    let response = daemon.run(shell("echo beside; ls ~; rm ~/fill")).await;
    assert_eq!(response.stdout, "beside\nfill\n", "{response:?}");
    assert_eq!(response.artifact_error, "");
}

#[tokio::test]
async fn each_workspace_has_its_own_home() {
    let [second, third] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let table = format!(
        "name = \"one\"\n[[workspaces]]\nname = \"two\"\npath = {:?}\n[[workspaces]]\nname = \"..three\"\npath = {:?}\nhome = \"ephemeral\"\n[sandbox]\nhome = \"persistent\"",
        second.path(),
        third.path()
    );
    let daemon = Setup::new().workspace_table(&table).start().await;
    let run = async |workspace: &str, script: &str| {
        daemon.output(with_metadata("jig-workspace", workspace, shell(script))).await
    };

    for workspace in ["one", "two", "..three"] {
        assert_eq!(run(workspace, "ls -A ~; echo x > ~/of-${PWD##*/}").await, "");
    }
    assert_eq!(run("one", "ls -A ~").await, "of-workspace\n");
    assert_eq!(run("two", "rm ~/*; ls -A ~").await, "");
    assert_eq!(run("one", "ls -A ~").await, "of-workspace\n");
    assert_eq!(run("..three", "ls -A ~").await, "");

    let mut names: Vec<String> = host_homes(&daemon)
        .iter()
        .map(|home| home.file_name().unwrap().to_str().unwrap()[..4].to_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["one-", "two-"]);
}

#[tokio::test]
async fn home_belongs_to_the_workspace_owner() {
    let daemon = Setup::new().workspace_owner(4242).workspace_table(PERSISTENT_HOME).start().await;
    assert_eq!(run_script(&daemon, "echo x > ~/f; id -un").await, "agent\n");
    let [home] = host_homes(&daemon).try_into().unwrap();
    assert_eq!(home.join("f").metadata().unwrap().uid(), 4242);
}

#[tokio::test]
async fn bound_caches_are_shared_between_runs() {
    let [caches, config_directory] = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let settings = config_directory.path().join("npmrc");
    fs::write(&settings, "fund=false\n").unwrap();
    let setup = Setup::new().arguments(&[
        "--bind",
        &format!("{}:/cache", caches.path().display()),
        // Files can be added to /etc. Those that the sandbox creates there stay as they are.
        "--bind-ro",
        &format!("{}:/etc/npmrc", settings.display()),
    ]);
    let daemon = setup.start().await;
    run_script(&daemon, "echo kept > /cache/f; ! echo x >> /etc/npmrc").await;

    assert_eq!(daemon.output(argv(&["cat", "/cache/f", "/etc/npmrc"])).await, "kept\nfund=false\n");
    assert_eq!(fs::read_to_string(caches.path().join("f")).unwrap(), "kept\n");
}
