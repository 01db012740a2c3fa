//! Names that the daemon makes, taken before it comes to them: by links, FIFOs, hard links and
//! directories of another user (N24).

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

use crate::support::{Daemon, Setup, jigd, shell};

/// Another user than the daemon's.
const OTHER: u32 = 4242;
/// What the daemon makes in its state directory.
const NAMES: &[&str] = &[
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
const VICTIM: &str = "what the daemon's user has\n";

/// A folder with a workspace, a state directory, and a file that must stay as it is.
fn folder() -> (TempDir, PathBuf, PathBuf) {
    let folder = TempDir::with_prefix("jig-test-planted-").unwrap();
    let (state, victim) = (folder.path().join("state"), folder.path().join("victim"));
    fs::create_dir(folder.path().join("ws")).unwrap();
    fs::create_dir(folder.path().join("victims")).unwrap();
    fs::create_dir(&state).unwrap();
    fs::write(&victim, VICTIM).unwrap();
    (folder, state, victim)
}

/// Starts a daemon there, which must end by itself.
fn start(folder: &Path, listen: &Path) -> Output {
    let path = |name: &str| folder.join(name).display().to_string();
    jigd(&[
        "--workspace",
        &path("ws"),
        "--state-dir",
        &path("state"),
        "--listen",
        &format!("unix:{}", listen.display()),
    ])
}

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
}

fn give_away(path: &Path) {
    std::os::unix::fs::lchown(path, Some(OTHER), Some(OTHER)).unwrap();
}

/// Puts something in the place of a name.
type Plant = fn(&Path, &Path);

/// What another user, or whoever got there first, can put there; and what is said of it.
const PLANTS: &[(&str, Plant, &str)] = &[
    (
        "a link to a file",
        |path, victim| {
            symlink(victim, path).unwrap();
            give_away(path);
        },
        "belongs to another user",
    ),
    (
        "a link to a directory",
        |path, victim| {
            symlink(victim.with_file_name("victims"), path).unwrap();
            give_away(path);
        },
        "belongs to another user",
    ),
    (
        "a link to nothing yet",
        |path, victim| {
            symlink(victim.with_file_name("made"), path).unwrap();
            give_away(path);
        },
        "belongs to another user",
    ),
    ("a hard link", |path, victim| fs::hard_link(victim, path).unwrap(), "hard link"),
    ("a FIFO", |path, _| fifo(path), "neither a file nor a directory"),
    (
        "a socket",
        |path, _| drop(UnixListener::bind(path).unwrap()),
        "neither a file nor a directory",
    ),
    (
        "another user's file",
        |path, _| {
            fs::write(path, "").unwrap();
            give_away(path);
        },
        "belongs to another user",
    ),
    (
        "another user's directory",
        |path, _| {
            fs::create_dir(path).unwrap();
            give_away(path);
        },
        "belongs to another user",
    ),
];

#[test]
fn case_n24_what_is_planted_in_the_state_directory_is_refused_and_leads_nowhere() {
    for name in NAMES {
        for (what, plant, said) in PLANTS {
            let (folder, state, victim) = folder();
            let planted = state.join(name);
            plant(&planted, &victim);
            let output = start(folder.path(), &folder.path().join("sock"));
            assert!(!output.status.success(), "{what} at {name}: {output:?}");
            let text = String::from_utf8(output.stderr).unwrap();
            for part in [*said, "cannot be trusted", &planted.display().to_string()] {
                assert!(text.contains(part), "{what} at {name}: {text}");
            }
            assert_eq!(fs::read_to_string(&victim).unwrap(), VICTIM, "{what} at {name}");
            let made = folder.path().join("made");
            assert!(!made.exists(), "{what} at {name}");
            let within = fs::read_dir(folder.path().join("victims")).unwrap();
            assert_eq!(within.count(), 0, "{what} at {name}");
        }
    }
}

#[test]
fn case_n24_a_state_directory_of_another_user_is_refused() {
    let (folder, state, _) = folder();
    chown(&state, Some(OTHER), Some(OTHER)).unwrap();
    let output = start(folder.path(), &folder.path().join("sock"));
    assert!(!output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("belongs to user 4242"), "{text}");
    assert_eq!(fs::read_dir(&state).unwrap().count(), 0);
}

#[test]
fn case_n24_what_is_planted_at_the_socket_is_refused_and_leads_nowhere() {
    for (what, plant, _) in PLANTS {
        let (folder, _, victim) = folder();
        let socket = folder.path().join("sock");
        plant(&socket, &victim);
        // A dead socket is replaced, and then the daemon would serve.
        if socket.symlink_metadata().unwrap().file_type().is_socket() {
            continue;
        }
        let output = start(folder.path(), &socket);
        assert!(!output.status.success(), "{what}: {output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("a file that is no socket"), "{what}: {text}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), VICTIM, "{what}");
        assert!(!folder.path().join("made").exists(), "{what}");
    }
}

#[tokio::test]
async fn case_n24_what_the_daemons_own_user_put_there_is_used() {
    // Within the directory: the daemon is confined to it.
    for user in [None, Some(12345)] {
        let setup = match user {
            Some(user) => Setup::new().user(user),
            None => Setup::new(),
        };
        let daemon = setup.start().await;
        daemon.output(shell("true")).await;
        daemon.signal(Signal::KILL);
        let (sessions, moved) = (daemon.state().join("sessions"), daemon.state().join("moved"));
        let copied = Command::new("cp").arg("-a").args([&sessions, &moved]).status();
        assert!(copied.unwrap().success());
        fs::remove_dir_all(&sessions).unwrap();
        symlink(&moved, &sessions).unwrap();
        std::os::unix::fs::lchown(&sessions, user, user).unwrap();
        let daemon: Daemon = daemon.restart().await;
        assert_eq!(daemon.output(shell("echo here")).await, "here\n");
        assert!(moved.join("default/events.jsonl").exists());
    }
}
