//! `list_directory` and `stat_path`.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt as _, symlink},
        net::UnixListener,
    },
    process::Command,
    time::{Duration, Instant, UNIX_EPOCH},
};

use jig::api::v1::{FileType, ListDirectoryRequest, StatPathRequest, StatPathResponse};

use crate::support::{Daemon, Refusal, Setup};

fn stat_request(path: &str) -> StatPathRequest {
    StatPathRequest { path: path.to_owned() }
}

fn list_request(path: &str) -> ListDirectoryRequest {
    ListDirectoryRequest { path: Some(path.to_owned()), ..ListDirectoryRequest::default() }
}

/// Creates one entry of each file type. The socket exists for as long as its listener.
fn create_all_file_types(daemon: &Daemon) -> UnixListener {
    fs::write(daemon.file("file"), "hello\n").unwrap();
    fs::set_permissions(daemon.file("file"), fs::Permissions::from_mode(0o4640)).unwrap();
    let time = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    let file = fs::File::options().write(true).open(daemon.file("file"));
    file.unwrap().set_modified(time).unwrap();
    fs::create_dir(daemon.file("directory")).unwrap();
    symlink("/etc/passwd", daemon.file("link")).unwrap();
    let status = Command::new("sh")
        .arg("-c")
        .arg("mkfifo fifo && mknod null c 1 3 && mknod loop b 7 200")
        .current_dir(daemon.workspace())
        .status();
    assert!(status.unwrap().success());
    UnixListener::bind(daemon.file("socket")).unwrap()
}

const FILE_TYPES: [(&str, FileType); 7] = [
    ("directory", FileType::Directory),
    ("fifo", FileType::Fifo),
    ("file", FileType::File),
    ("link", FileType::Symlink),
    ("loop", FileType::BlockDevice),
    ("null", FileType::CharacterDevice),
    ("socket", FileType::Socket),
];

#[tokio::test]
async fn tools_describe_every_file_type() {
    let daemon = Daemon::start().await;
    let _socket = create_all_file_types(&daemon);

    let listed = daemon.tools().list_directory(list_request(".")).await;
    let listed = listed.unwrap().into_inner();
    assert_eq!((listed.file_count, listed.directory_count), (6, 1));
    assert!(listed.next_page_token.is_empty());

    let types: Vec<_> = listed.entries.iter().map(|entry| (&*entry.name, entry.r#type())).collect();
    assert_eq!(types, FILE_TYPES);

    for (entry, (name, kind)) in listed.entries.iter().zip(FILE_TYPES) {
        let described = daemon.tools().stat_path(stat_request(name)).await;
        let described: StatPathResponse = described.unwrap().into_inner();
        assert_eq!(described.r#type(), kind, "{name}");
        assert_eq!(described.size_bytes, entry.size_bytes, "{name}");
        assert_eq!(described.mode, entry.mode, "{name}");
        assert_eq!(described.modify_time, entry.modify_time, "{name}");
        assert_eq!(described.sha256.is_some(), kind == FileType::File, "{name}");

        if kind == FileType::File {
            assert_eq!((described.size_bytes, described.mode), (6, 0o4640));
            let time = described.modify_time.unwrap();
            assert_eq!((time.seconds, time.nanos), (1_000_000_000, 123_456_789));
            let hash = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
            assert_eq!(described.sha256.as_deref(), Some(hash));
        }
    }

    let root = daemon.tools().stat_path(stat_request("/workspace")).await;
    assert_eq!(root.unwrap().into_inner().r#type(), FileType::Directory);
}

#[tokio::test]
async fn tools_report_why_a_path_is_unreadable() {
    let daemon = Daemon::start().await;
    let _socket = create_all_file_types(&daemon);
    symlink("directory", daemon.file("link-to-directory")).unwrap();
    fs::write(daemon.file("directory/x"), "").unwrap();

    for (path, stat_reason, list_reason) in [
        ("none", "FILE_NOT_FOUND", "DIRECTORY_NOT_FOUND"),
        ("file/x", "FILE_NOT_FOUND", "NOT_A_DIRECTORY"),
        ("link-to-directory/x", "SYMLINK_BLOCKED", "SYMLINK_BLOCKED"),
        ("..", "PATH_ESCAPE", "PATH_ESCAPE"),
        ("/etc", "PATH_ESCAPE", "PATH_ESCAPE"),
    ] {
        let status = daemon.tools().stat_path(stat_request(path)).await.unwrap_err();
        assert_eq!(Refusal::from_status(&status).reason, stat_reason, "{path}");
        let status = daemon.tools().list_directory(list_request(path)).await.unwrap_err();
        assert_eq!(Refusal::from_status(&status).reason, list_reason, "{path}");
    }

    for (path, reason) in [
        ("link", "SYMLINK_BLOCKED"),
        ("link-to-directory", "SYMLINK_BLOCKED"),
        ("file", "NOT_A_DIRECTORY"),
        ("fifo", "NOT_A_DIRECTORY"),
    ] {
        let status = daemon.tools().list_directory(list_request(path)).await.unwrap_err();
        assert_eq!(Refusal::from_status(&status).reason, reason, "{path}");
    }
}

#[tokio::test]
async fn stat_omits_hashes_of_large_files() {
    let daemon = Daemon::start().await;
    for (name, size, hashed) in [("fits", 256 << 20, true), ("large", (256 << 20) + 1, false)] {
        fs::File::create(daemon.file(name)).unwrap().set_len(size).unwrap();
        if hashed && cfg!(debug_assertions) {
            // In a debug build, hashing the file takes longer than the tool's time limit.
            continue;
        }
        let described = daemon.tools().stat_path(stat_request(name)).await.unwrap().into_inner();
        assert_eq!((described.size_bytes, described.sha256.is_some()), (size, hashed));
    }
}

#[tokio::test]
async fn list_directory_returns_100_000_entries_in_pages() {
    let daemon = Setup::new().start().await;
    let directory = daemon.file("many");
    fs::create_dir(&directory).unwrap();
    for number in 0..100_000 {
        fs::File::create(directory.join(format!("{number:06}"))).unwrap();
    }

    let start = Instant::now();
    let (mut names, mut pages) = (Vec::new(), 0);

    let mut request = ListDirectoryRequest { page_size: Some(10_000), ..list_request("many") };
    loop {
        let page = daemon.tools().list_directory(request.clone()).await;
        let page = page.unwrap().into_inner();
        assert_eq!(page.file_count, 100_000);

        names.extend(page.entries.into_iter().map(|entry| entry.name));
        pages += 1;
        if page.next_page_token.is_empty() {
            break;
        }

        request.page_token = Some(page.next_page_token);
    }

    assert!(names.is_sorted());
    assert_eq!((names.len(), pages), (100_000, 10));
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}
