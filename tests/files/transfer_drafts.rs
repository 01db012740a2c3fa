//! What there is of an upload before it is complete, whatever becomes of it and of the daemon.

use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::Path,
};

use jig::api::v1::{ListDirectoryRequest, SearchRequest, UploadRequest, upload_request::Part};

use super::transfer::{chunk, comes_to, named, noise, offset, slowly, upload};
use crate::support::{Daemon, Refusal, promptly};

/// Names of the daemon's own files in a directory.
fn drafts(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| name.starts_with(".jig-"))
        .collect()
}

#[tokio::test]
async fn a_draft_is_not_listed() {
    let daemon = Daemon::start().await;
    fs::write(daemon.file("file"), "needle\n").unwrap();
    let bytes = [b"needle\n".repeat(10), noise(1000)].concat();
    let parts = vec![
        Part::Start(named("other", &bytes, "id")),
        chunk(0, &bytes[..70]),
    ];
    let (_sender, _call) = slowly(&daemon, parts).await;
    comes_to(&daemon, "id", 70).await;
    let [draft] = drafts(&daemon.workspace()).try_into().unwrap();
    // Where a file system cannot swap two files, there are two for a moment.
    fs::write(daemon.file(&format!("{draft}~")), "needle\n").unwrap();
    // A name that only looks like one.
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

/// Ways to spoil a draft that lies at a path.
const SPOIL: [fn(&Path); 3] = [
    |draft| fs::remove_file(draft).unwrap(),
    |draft| {
        fs::rename(draft, draft.with_file_name("stolen")).unwrap();
        symlink("stolen", draft).unwrap();
    },
    |draft| {
        let file = File::options().write(true).open(draft).unwrap();
        file.set_len(2000).unwrap();
    },
];

#[tokio::test]
async fn what_was_tampered_with_can_be_sent_again() {
    let daemon = Daemon::start().await;
    let bytes = noise(1000);
    for (number, spoil) in SPOIL.into_iter().enumerate() {
        for at_the_end in [true, false] {
            let directory = format!("{number}-{at_the_end}");
            let path = format!("{directory}/file");
            let begin = || Part::Start(named(&path, &bytes, &directory));
            let (sender, call) = slowly(&daemon, vec![begin(), chunk(0, &bytes[..10])]).await;
            comes_to(&daemon, &directory, 10).await;
            let [draft] = drafts(&daemon.file(&directory)).try_into().unwrap();
            let draft = daemon.file(&directory).join(draft);
            spoil(&draft);
            let answer = if at_the_end {
                let rest = Some(chunk(10, &bytes[10..]));
                sender.send(UploadRequest { part: rest }).await.unwrap();
                drop(sender);
                call.await.unwrap()
            } else {
                // It is seen before the rest comes.
                let (_sender, second) = slowly(&daemon, vec![begin()]).await;
                promptly("an answer", second).await.unwrap()
            };
            let refusal = Refusal::of(&answer.unwrap_err());
            assert_eq!(refusal.reason, "STALE_FILE", "{path}");
            assert_eq!(refusal.metadata["path"], path);
            assert!(!daemon.file(&path).exists());
            assert_eq!(offset(&daemon, &directory).await, None, "{path}");

            let answer = upload(&daemon, vec![begin(), chunk(0, &bytes)]).await;
            assert_eq!(answer.unwrap().received_bytes, 1000, "{path}");
            assert!(fs::read(daemon.file(&path)).unwrap() == bytes, "{path}");
            // What somebody else made is not touched.
            let left = if draft.is_symlink() { 1 } else { 0 };
            assert_eq!(drafts(&daemon.file(&directory)).len(), left, "{path}");
        }
    }
}
