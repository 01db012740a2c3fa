//! Downloads of files that change during the download: the client installs one consistent version or
//! nothing.

use std::{
    fs::{self, File},
    io::Write as _,
    process::{Command, Stdio},
};

use jig::client::TransferError;

use super::transfer::{MIB, connect_client, create_read_write, pseudo_random_bytes, sha256_hex};
use crate::support::Daemon;

/// A change of a workspace file during its download.
type ConcurrentChange = fn(&mut File);

#[tokio::test]
async fn client_downloads_again_when_the_file_changes() {
    let daemon = Daemon::start().await;
    let client = connect_client(&daemon.socket()).await;
    let bytes = pseudo_random_bytes(16 << 20);
    let changes: [ConcurrentChange; 3] = [
        |file| file.set_len(5 << 20).unwrap(),
        |file| file.write_all(b"of the same size").unwrap(),
        |file| file.set_len(17 << 20).unwrap(),
    ];

    for change in changes {
        fs::write(daemon.file("file"), &bytes).unwrap();
        let mut writer = File::options().write(true).open(daemon.file("file")).unwrap();
        let mut received = create_read_write(&daemon.sibling_path("back"));
        let mut is_changed = false;

        let summary = client
            .receive_file("file", &mut received, |_, _| {
                if !is_changed {
                    change(&mut writer);
                    is_changed = true;
                }
            })
            .await
            .unwrap();
        let content = fs::read(daemon.file("file")).unwrap();
        assert!(fs::read(daemon.sibling_path("back")).unwrap() == content);
        assert_eq!(summary.size_bytes, content.len() as u64);
        assert_eq!(summary.sha256, sha256_hex(&content));

        fs::remove_file(daemon.sibling_path("back")).unwrap();
    }
}

#[tokio::test]
async fn client_gives_up_on_a_file_that_keeps_changing() {
    let daemon = Daemon::start().await;
    let client = connect_client(&daemon.socket()).await;
    fs::write(daemon.file("file"), pseudo_random_bytes(16 << 20)).unwrap();
    let mut writer = File::options().append(true).open(daemon.file("file")).unwrap();
    let mut received = create_read_write(&daemon.sibling_path("back"));
    let result =
        client.receive_file("file", &mut received, |_, _| writer.write_all(b"x").unwrap()).await;
    let Err(TransferError::Call(error)) = result else {
        panic!("{result:?}");
    };
    assert_eq!(error.name(), "STALE_FILE");
    assert!(error.message.contains("nothing writes to it"), "{error}");
}

#[tokio::test]
async fn cp_does_not_install_a_file_that_keeps_changing() {
    let daemon = Daemon::start().await;
    let here = tempfile::tempdir().unwrap();
    let mut file = File::create(daemon.file("file")).unwrap();
    file.set_len(64 * MIB).unwrap();
    fs::write(here.path().join("out"), "before").unwrap();

    let mut child = Command::new(env!("CARGO_BIN_EXE_jig"))
        .args(["cp", ":file", "out"])
        .current_dir(here.path())
        .env_clear()
        .env("JIG_ADDRESS", format!("unix:{}", daemon.socket().display()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The test writes to the file throughout the copy.
    while child.try_wait().unwrap().is_none() {
        file.write_all(b"x").unwrap();
    }

    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");

    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("jig: STALE_FILE: "), "{stderr}");
    assert_eq!(fs::read(here.path().join("out")).unwrap(), b"before");
    assert_eq!(fs::read_dir(here.path()).unwrap().count(), 1, "no partial file is left");
}
