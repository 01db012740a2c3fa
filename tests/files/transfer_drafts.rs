//! What there is of an upload before it is complete, whatever becomes of it and of the daemon.

use std::{fs, path::Path};

use jig::api::v1::{ListDirectoryRequest, SearchRequest, upload_request::Part};

use super::transfer::{chunk, comes_to, named, noise, slowly};
use crate::support::Daemon;

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
