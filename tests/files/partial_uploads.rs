//! Partial files: tampering, crashes, full disks, expiry.

use std::{
    fs::{self, File},
    os::unix::{
        fs::{PermissionsExt as _, symlink},
        process::ExitStatusExt as _,
    },
    path::Path,
};

use jig::api::v1::{
    ListDirectoryRequest, SearchRequest, UploadRequest, UploadStart, upload_request::Part,
};
use rustix::process::Signal;

use super::transfer::{
    chunk, partial_files, pseudo_random_bytes, resumable_start, start_manual_upload, upload,
    upload_failing, upload_offset, upload_start, wait_for_upload_offset,
};
use crate::support::{Daemon, Refusal, Setup, eventually, promptly, shell};

#[tokio::test]
async fn tools_do_not_list_partial_files() {
    let daemon = Daemon::start().await;
    fs::write(daemon.file("file"), "needle\n").unwrap();
    let bytes = [b"needle\n".repeat(10), pseudo_random_bytes(1000)].concat();
    let parts = vec![Part::Start(resumable_start("other", &bytes, "id")), chunk(0, &bytes[..70])];
    let (_sender, _call) = start_manual_upload(&daemon, parts).await;
    wait_for_upload_offset(&daemon, "id", 70).await;
    let [partial_file] = partial_files(&daemon.workspace()).try_into().unwrap();

    // On file systems that cannot swap two files, a second name exists for a moment.
    fs::write(daemon.file(&format!("{partial_file}~")), "needle\n").unwrap();

    // A name that only resembles a partial file.
    fs::write(daemon.file(".jig-notes.tmp"), "needle\n").unwrap();

    let expected = [".jig-notes.tmp", "file"];
    assert_eq!(daemon.list_files().await, expected);

    let mut tools = daemon.tools();
    let request = ListDirectoryRequest::default();
    let listed = tools.list_directory(request).await.unwrap().into_inner();
    let names: Vec<_> = listed.entries.iter().map(|entry| &entry.name).collect();
    assert_eq!(names, expected);
    assert_eq!(listed.file_count, 2);

    let request = SearchRequest {
        query: "needle".to_owned(),
        hidden: Some(true),
        no_ignore: Some(true),
        ..SearchRequest::default()
    };
    let found = tools.search(request).await.unwrap().into_inner();
    let files: Vec<_> = found.matches.iter().map(|found| &found.file).collect();
    assert_eq!(files, expected);
}

/// Ways to tamper with a partial file.
const TAMPERINGS: [fn(&Path); 3] = [
    |path| fs::remove_file(path).unwrap(),
    |path| {
        fs::rename(path, path.with_file_name("stolen")).unwrap();
        symlink("stolen", path).unwrap();
    },
    |path| {
        let file = File::options().write(true).open(path).unwrap();
        file.set_len(2000).unwrap();
    },
];

#[tokio::test]
async fn tampered_upload_can_be_sent_again() {
    let daemon = Daemon::start().await;
    let bytes = pseudo_random_bytes(1000);
    for (number, tamper) in TAMPERINGS.into_iter().enumerate() {
        for before_completion in [true, false] {
            let directory = format!("{number}-{before_completion}");
            let path = format!("{directory}/file");
            let begin = || Part::Start(resumable_start(&path, &bytes, &directory));
            let (sender, call) =
                start_manual_upload(&daemon, vec![begin(), chunk(0, &bytes[..10])]).await;
            wait_for_upload_offset(&daemon, &directory, 10).await;
            let [name] = partial_files(&daemon.file(&directory)).try_into().unwrap();
            let partial_file = daemon.file(&directory).join(name);
            tamper(&partial_file);

            let result = if before_completion {
                let rest = Some(chunk(10, &bytes[10..]));
                sender.send(UploadRequest { part: rest }).await.unwrap();
                drop(sender);
                call.await.unwrap()
            } else {
                // The daemon detects the tampering before the rest arrives.
                let (_sender, second) = start_manual_upload(&daemon, vec![begin()]).await;
                promptly("the daemon rejects the upload", second).await.unwrap()
            };

            let refusal = Refusal::from_status(&result.unwrap_err());
            assert_eq!(refusal.reason, "STALE_FILE", "{path}");
            assert_eq!(refusal.metadata["path"], path);
            assert!(!daemon.file(&path).exists());
            assert_eq!(upload_offset(&daemon, &directory).await, None, "{path}");

            let result = upload(&daemon, vec![begin(), chunk(0, &bytes)]).await;
            assert_eq!(result.unwrap().received_bytes, 1000, "{path}");
            assert!(fs::read(daemon.file(&path)).unwrap() == bytes, "{path}");

            // The daemon leaves a link that it did not create.
            let remaining_count = if partial_file.is_symlink() { 1 } else { 0 };
            assert_eq!(partial_files(&daemon.file(&directory)).len(), remaining_count, "{path}");
        }
    }
}

/// Crashes the daemon at each step of an upload of `start` over `old`. The next daemon must know the
/// received bytes, and the upload can be repeated.
async fn crash_at_each_upload_step(
    start: UploadStart,
    bytes: &[u8],
    old: Option<&[u8]>,
    min_steps: usize,
) {
    let resumable = start.upload_id.is_some();
    for step in 1.. {
        let setup = Setup::new().environment("JIG_DIE_AT_STEP", &step.to_string());
        let mut daemon = setup.workspace_table("[files]\nfsync = true").start().await;
        let file = daemon.file(&start.path);
        if let Some(old) = old {
            fs::write(&file, old).unwrap();
        }

        let parts = |offset: usize| {
            let middle = offset.max(bytes.len() / 2);
            vec![
                Part::Start(start.clone()),
                chunk(offset, &bytes[offset..middle]),
                chunk(middle, &bytes[middle..]),
            ]
        };

        if upload(&daemon, parts(0)).await.is_ok() {
            assert!(step > min_steps, "the daemon crashed only {} times", step - 1);
            return;
        }

        let status = daemon.wait_for_exit().await;
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()));

        let daemon = daemon.restart_with(|setup| setup.without_variable("JIG_DIE_AT_STEP")).await;
        let content = fs::read(&file).ok();
        let is_new = content.as_deref() == Some(bytes);
        assert!(is_new || content.as_deref() == old, "step {step}");

        let directory = file.parent().unwrap();
        let partials = || if directory.exists() { partial_files(directory) } else { Vec::new() };
        let records = || {
            let records = fs::read_dir(daemon.state_dir().join("uploads")).into_iter();
            let records = records.flatten().map(Result::unwrap);
            let records = records.map(|entry| fs::read_to_string(entry.path()).unwrap());
            records.collect::<String>()
        };
        assert!(partials().iter().all(|name| records().contains(name)));
        assert!(resumable || partials().is_empty() && records().is_empty());

        let offset = match &start.upload_id {
            Some(id) => upload_offset(&daemon, id).await,
            None => None,
        };
        assert!(!is_new || !resumable || offset == Some(bytes.len() as u64));

        let offset = usize::try_from(offset.unwrap_or(0)).unwrap();
        let response = upload(&daemon, parts(offset)).await.unwrap();
        assert!(!resumable || response.created == old.is_none(), "step {step}");
        assert!(fs::read(&file).unwrap() == bytes, "step {step}");
        assert_eq!(partials(), [] as [&str; 0], "step {step}");
        assert_eq!(records().is_empty(), !resumable, "step {step}");
    }
}

#[tokio::test]
async fn crash_during_upload_leaves_a_whole_file_and_its_records() {
    let bytes = pseudo_random_bytes(1000);
    let bytes = bytes.as_slice();
    crash_at_each_upload_step(resumable_start("file", bytes, "id"), bytes, Some(b"old"), 8).await;
    crash_at_each_upload_step(resumable_start("new/file", bytes, "id"), bytes, None, 9).await;
    crash_at_each_upload_step(upload_start("file", bytes), bytes, Some(b"old"), 8).await;
}

#[tokio::test]
async fn daemon_keeps_uploads_in_unreachable_directories() {
    let daemon = Setup::new().user(12345).start().await;
    let bytes = pseudo_random_bytes(1000);
    let begin = || Part::Start(resumable_start("d/file", &bytes, "id"));
    let (_sender, _call) =
        start_manual_upload(&daemon, vec![begin(), chunk(0, &bytes[..10])]).await;
    wait_for_upload_offset(&daemon, "id", 10).await;
    let directory = daemon.file("d");
    let set_mode = |mode| fs::set_permissions(&directory, fs::Permissions::from_mode(mode));
    set_mode(0o000).unwrap();
    let daemon = daemon.restart().await;

    // The daemon cannot read the size of the partial file now.
    assert_eq!(upload_offset(&daemon, "id").await, Some(0));

    let all_parts = || vec![begin(), chunk(0, &bytes)];
    upload_failing(&daemon, all_parts(), "PERMISSION_DENIED").await;
    set_mode(0o755).unwrap();
    let response = upload(&daemon, all_parts()).await.unwrap();
    assert_eq!(response.received_bytes, 990);
    assert!(fs::read(directory.join("file")).unwrap() == bytes);
    assert_eq!(partial_files(&directory), [] as [&str; 0]);
}

#[tokio::test]
async fn upload_resumes_after_disk_space_is_freed() {
    let daemon = Setup::new().workspace_on_small_disk().start().await;
    let bytes = pseudo_random_bytes(1_500_000);
    let upload_from = async |offset: usize| {
        let mut parts = vec![Part::Start(resumable_start("file", &bytes, "id"))];
        let chunks = bytes[offset..].chunks(100_000).enumerate();
        parts.extend(chunks.map(|(number, data)| chunk(offset + number * 100_000, data)));
        upload(&daemon, parts).await
    };

    let mut received_bytes = 0;
    for (fill_bytes, free_bytes) in [(1_500_000, 500_000), (1_000_000, 1_000_000)] {
        let script = format!("head -c {fill_bytes} /dev/zero > fill");
        daemon.output(shell(&script)).await;
        let refusal = Refusal::from_status(&upload_from(received_bytes).await.unwrap_err());
        assert_eq!(refusal.reason, "NO_SPACE", "{refusal:?}");
        assert_eq!(refusal.metadata["path"], "file");
        assert_eq!(upload_offset(&daemon, "id").await, Some(free_bytes as u64));
        received_bytes = free_bytes;
    }

    daemon.output(shell("rm fill")).await;
    let response = upload_from(received_bytes).await.unwrap();
    assert_eq!(response.received_bytes, 500_000);

    let sum = daemon.output(shell("sha256sum < file")).await;
    assert!(sum.starts_with(&response.sha256), "{sum}");
    assert_eq!(daemon.output(shell("ls -A")).await, "file\n");
}

#[tokio::test]
async fn daemon_deletes_expired_uploads() {
    let daemon = Daemon::start().await;
    let bytes = pseudo_random_bytes(1000);
    let begin = Part::Start(resumable_start("file", &bytes, "id"));
    let (_sender, _call) = start_manual_upload(&daemon, vec![begin, chunk(0, &bytes[..10])]).await;
    wait_for_upload_offset(&daemon, "id", 10).await;
    let entries = fs::read_dir(daemon.state_dir().join("uploads")).unwrap();
    let [path] = entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>().try_into().unwrap();

    // Makes the record almost a day old.
    let record = fs::read(&path).unwrap();
    let mut record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let touched = record["touched"].as_u64().unwrap();
    record["touched"] = (touched - 24 * 3600 + 3).into();
    fs::write(&path, record.to_string()).unwrap();
    let daemon = daemon.restart().await;
    eventually("the daemon deletes the partial file", async || {
        partial_files(&daemon.workspace()).is_empty()
    })
    .await;
    assert_eq!(upload_offset(&daemon, "id").await, None);
    eventually("the daemon deletes the record", async || !path.exists()).await;
}
