//! Names that the daemon creates, planted by another user before the daemon starts: links, FIFOs,
//! hard links and directories (N24).

use std::{
    fs,
    os::unix::{
        fs::{FileTypeExt as _, chown, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::{Command, Output},
};

use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    process::Signal,
};
use tempfile::TempDir;

use crate::support::{Daemon, Setup, run_jigd, shell};

/// A user other than the daemon's.
const OTHER_UID: u32 = 4242;
/// Names that the daemon creates in its state directory.
const STATE_FILE_NAMES: &[&str] = &[
    "lock",
    "jig.db",
    "jig.db-wal",
    "jig.db-shm",
    "jig.db-journal",
    "life",
    "jobs",
    "sessions",
    "uploads",
    "changes",
    "homes",
];
const VICTIM_CONTENT: &str = "a file of the daemon's user\n";

/// A directory with a workspace, a state directory and a file that must not change. Returns the
/// directory and the paths of the latter two.
fn create_test_directory() -> (TempDir, PathBuf, PathBuf) {
    let directory = TempDir::with_prefix("jig-test-planted-").unwrap();
    let (state, victim) = (directory.path().join("state"), directory.path().join("victim"));
    fs::create_dir(directory.path().join("ws")).unwrap();
    fs::create_dir(directory.path().join("victims")).unwrap();
    fs::create_dir(&state).unwrap();
    fs::write(&victim, VICTIM_CONTENT).unwrap();
    (directory, state, victim)
}

/// Runs a daemon in the directory. It must exit by itself.
fn run_daemon(directory: &Path, listen: &Path) -> Output {
    let path = |name: &str| directory.join(name).display().to_string();
    run_jigd(&[
        "--workspace",
        &path("ws"),
        "--state-dir",
        &path("state"),
        "--listen",
        &format!("unix:{}", listen.display()),
    ])
}

fn create_fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
}

fn chown_to_other_user(path: &Path) {
    std::os::unix::fs::lchown(path, Some(OTHER_UID), Some(OTHER_UID)).unwrap();
}

/// Creates something at a path. The second path is the file that must not change.
type Plant = fn(&Path, &Path);

/// What another user, or a process that came first, can plant at a name, and the daemon's message
/// about it.
const PLANTED_FILES: &[(&str, Plant, &str)] = &[
    (
        "a link to a file",
        |path, victim| {
            symlink(victim, path).unwrap();
            chown_to_other_user(path);
        },
        "belongs to another user",
    ),
    (
        "a link to a directory",
        |path, victim| {
            symlink(victim.with_file_name("victims"), path).unwrap();
            chown_to_other_user(path);
        },
        "belongs to another user",
    ),
    (
        "a link to nothing yet",
        |path, victim| {
            symlink(victim.with_file_name("made"), path).unwrap();
            chown_to_other_user(path);
        },
        "belongs to another user",
    ),
    ("a hard link", |path, victim| fs::hard_link(victim, path).unwrap(), "hard link"),
    ("a FIFO", |path, _| create_fifo(path), "neither a file nor a directory"),
    (
        "a socket",
        |path, _| drop(UnixListener::bind(path).unwrap()),
        "neither a file nor a directory",
    ),
    (
        "another user's file",
        |path, _| {
            fs::write(path, "").unwrap();
            chown_to_other_user(path);
        },
        "belongs to another user",
    ),
    (
        "another user's directory",
        |path, _| {
            fs::create_dir(path).unwrap();
            chown_to_other_user(path);
        },
        "belongs to another user",
    ),
];

#[test]
fn case_n24_daemon_rejects_files_planted_in_its_state_directory() {
    for name in STATE_FILE_NAMES {
        for (what, plant, message) in PLANTED_FILES {
            let (directory, state, victim) = create_test_directory();
            let planted = state.join(name);
            plant(&planted, &victim);
            let output = run_daemon(directory.path(), &directory.path().join("sock"));
            assert!(!output.status.success(), "{what} at {name}: {output:?}");

            let text = String::from_utf8(output.stderr).unwrap();
            for part in [*message, "cannot be trusted", &planted.display().to_string()] {
                assert!(text.contains(part), "{what} at {name}: {text}");
            }
            assert_eq!(fs::read_to_string(&victim).unwrap(), VICTIM_CONTENT, "{what} at {name}");

            let link_target = directory.path().join("made");
            assert!(!link_target.exists(), "{what} at {name}");

            let entries = fs::read_dir(directory.path().join("victims")).unwrap();
            assert_eq!(entries.count(), 0, "{what} at {name}");
        }
    }
}

#[test]
fn case_n24_daemon_rejects_a_state_directory_of_another_user() {
    let (directory, state, _) = create_test_directory();
    chown(&state, Some(OTHER_UID), Some(OTHER_UID)).unwrap();
    let output = run_daemon(directory.path(), &directory.path().join("sock"));
    assert!(!output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("belongs to user 4242"), "{text}");
    assert_eq!(fs::read_dir(&state).unwrap().count(), 0);
}

#[test]
fn case_n24_daemon_rejects_files_planted_at_its_socket() {
    for (what, plant, _) in PLANTED_FILES {
        let (directory, _, victim) = create_test_directory();
        let socket = directory.path().join("sock");
        plant(&socket, &victim);

        // The daemon replaces a socket that no process listens on, and would then serve.
        if socket.symlink_metadata().unwrap().file_type().is_socket() {
            continue;
        }
        let output = run_daemon(directory.path(), &socket);
        assert!(!output.status.success(), "{what}: {output:?}");

        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("a file that is not a socket"), "{what}: {text}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), VICTIM_CONTENT, "{what}");
        assert!(!directory.path().join("made").exists(), "{what}");
    }
}

#[tokio::test]
async fn case_n24_daemon_accepts_a_link_of_its_own_user() {
    // The link leads to another name in the state directory, to which the daemon is confined.
    for user in [None, Some(12345)] {
        let setup = match user {
            Some(user) => Setup::new().user(user),
            None => Setup::new(),
        };
        let daemon = setup.start().await;

        daemon.output(shell("true")).await;
        daemon.signal(Signal::KILL);

        let (sessions, moved) =
            (daemon.state_dir().join("sessions"), daemon.state_dir().join("moved"));
        let status = Command::new("cp").arg("-a").args([&sessions, &moved]).status();
        assert!(status.unwrap().success());

        fs::remove_dir_all(&sessions).unwrap();
        symlink(&moved, &sessions).unwrap();
        std::os::unix::fs::lchown(&sessions, user, user).unwrap();

        let daemon: Daemon = daemon.restart().await;
        assert_eq!(daemon.output(shell("echo here")).await, "here\n");
        assert!(moved.join("default/events.jsonl").exists());
    }
}
