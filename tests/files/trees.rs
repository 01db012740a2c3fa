//! Directories as archives: uploads and downloads of whole trees.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::Path,
    process::{Command, Stdio},
};

use jig::{
    api::v1::{
        DownloadTreeRequest, DownloadTreeSummary, TreeCompression, TreeProblemKind,
        UploadTreeRequest, UploadTreeResponse, UploadTreeStart, WriteMode,
        upload_tree_request::Part,
    },
    archive::{
        END_OF_ARCHIVE, Member, MemberKind, TarReader, ZstdDecoder, padding, write_header,
        zstd_frame,
    },
};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::transfer::{partial_files, pseudo_random_bytes, transfer_client};
use crate::support::{Daemon, Refusal, Setup, eventually, full_size};

/// Size of the messages of an upload.
const CHUNK_BYTES: usize = 100_000;

/// An archive to send.
#[derive(Debug, Default)]
pub(crate) struct Archive(Vec<u8>);

impl Archive {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn file(self, path: &str, content: &[u8]) -> Self {
        let mut archive = self.member(path, MemberKind::File(content.len() as u64));
        archive.0.extend_from_slice(content);
        archive.0.resize(archive.0.len() + padding(content.len() as u64), 0);
        archive
    }

    pub(crate) fn directory(self, path: &str) -> Self {
        self.member(path, MemberKind::Directory)
    }

    pub(crate) fn symlink(self, path: &str, target: &str) -> Self {
        self.member(path, MemberKind::Symlink(target.to_owned()))
    }

    pub(crate) fn hard_link(self, path: &str, target: &str) -> Self {
        self.member(path, MemberKind::HardLink(target.to_owned()))
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn member(mut self, path: &str, kind: MemberKind) -> Self {
        let mode = if kind == MemberKind::Directory { 0o755 } else { 0o644 };
        write_header(&Member { path: path.to_owned(), kind, mode, modified: None }, &mut self.0);
        self
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.raw(&END_OF_ARCHIVE).0
    }
}

pub(crate) async fn upload_tree(
    daemon: &Daemon,
    start: UploadTreeStart,
    archive: Vec<u8>,
) -> Result<UploadTreeResponse, Status> {
    let mut parts = vec![Part::Start(start)];
    parts.extend(archive.chunks(CHUNK_BYTES).map(|data| Part::Data(data.to_vec().into())));
    let messages = parts.into_iter().map(|part| UploadTreeRequest { part: Some(part) });
    let messages = tokio_stream::iter(messages.collect::<Vec<_>>());
    let response = transfer_client(daemon).await.upload_tree(messages).await;
    response.map(tonic::Response::into_inner)
}

/// Uploads an archive, which must be rejected for this reason.
pub(crate) async fn upload_tree_failing(
    daemon: &Daemon,
    start: UploadTreeStart,
    archive: Vec<u8>,
    reason: &str,
) -> Refusal {
    let status = upload_tree(daemon, start, archive).await.unwrap_err();
    let refusal = Refusal::from_status(&status);
    assert_eq!(refusal.reason, reason, "{refusal:?}");
    refusal
}

pub(crate) fn tree_start(path: &str) -> UploadTreeStart {
    UploadTreeStart { path: Some(path.to_owned()), ..UploadTreeStart::default() }
}

pub(crate) async fn download_tree(
    daemon: &Daemon,
    request: DownloadTreeRequest,
) -> Result<(Vec<u8>, DownloadTreeSummary), Status> {
    let mut parts = transfer_client(daemon).await.download_tree(request).await?.into_inner();
    let (mut archive, mut summary) = (Vec::new(), None);
    while let Some(part) = parts.message().await? {
        assert!(summary.is_none(), "the summary is in the last message");
        archive.extend_from_slice(&part.data);
        summary = part.summary;
    }
    Ok((archive, summary.expect("the last message has a summary")))
}

fn tree_request(path: &str) -> DownloadTreeRequest {
    DownloadTreeRequest { path: Some(path.to_owned()), ..DownloadTreeRequest::default() }
}

/// Type, mode, modification time, and content or target of everything below a directory.
pub(crate) fn describe_tree(top: &Path) -> BTreeMap<String, String> {
    let mut entries = BTreeMap::new();
    let mut pending = vec![top.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            let content = if metadata.is_symlink() {
                format!("{:?}", fs::read_link(&path).unwrap())
            } else if metadata.is_dir() {
                pending.push(path.clone());
                String::new()
            } else {
                super::transfer::sha256_hex(&fs::read(&path).unwrap())
            };
            let name = path.strip_prefix(top).unwrap().display().to_string();
            let (mode, seconds, nanos) = (metadata.mode(), metadata.mtime(), metadata.mtime_nsec());
            entries.insert(name, format!("{mode:o} {seconds}.{nanos:09} {content}"));
        }
    }
    entries
}

/// A tree with everything that archives keep.
fn create_tree(top: &Path) {
    fs::create_dir_all(top.join("d/empty")).unwrap();
    fs::create_dir_all(top.join("closed")).unwrap();
    for (name, content, mode) in [
        ("a", &b"hello\n"[..], 0o644),
        ("d/run", b"#!/bin/sh\n", 0o755),
        ("d/private", b"", 0o600),
        ("d/\u{e9}\u{1f600} \n", b"x", 0o640),
        ("closed/file", b"y", 0o444),
        ("large", &pseudo_random_bytes(3_000_001), 0o644),
    ] {
        fs::write(top.join(name), content).unwrap();
        fs::set_permissions(top.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let deep = top.join("deep").join("directory-with-a-long-name".repeat(4)).join("e".repeat(90));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("f".repeat(200)), "long").unwrap();
    symlink("a", top.join("link")).unwrap();
    symlink("../a", top.join("d/up")).unwrap();
    symlink("nowhere", top.join("d/dangling")).unwrap();
    symlink(format!("deep/{}", "t".repeat(150)), top.join("long-link")).unwrap();
    let closed = fs::Permissions::from_mode(0o555);
    fs::set_permissions(top.join("closed"), closed).unwrap();
}

/// Runs tar with these arguments and input. Returns its output.
fn run_tar(arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new("tar")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input).ok());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "tar {arguments:?}");
    output.stdout
}

fn decompress(data: &[u8]) -> Vec<u8> {
    let (mut decoder, mut block, mut archive) = (ZstdDecoder::new(), Vec::new(), Vec::new());
    decoder.push(data);
    while decoder.decode(&mut block).unwrap() {
        archive.extend_from_slice(&block);
    }
    decoder.finish().unwrap();
    archive
}

#[tokio::test]
async fn trees_survive_both_directions_with_archives_of_tar() {
    let daemon = Daemon::start().await;
    let local = tempfile::tempdir().unwrap();
    let [original, back] = ["original", "back"].map(|name| local.path().join(name));
    create_tree(&original);
    fs::hard_link(original.join("a"), original.join("d/same")).unwrap();
    let expected = describe_tree(&original);
    let text = original.to_str().unwrap();

    for (format, compression) in
        [("gnu", None), ("pax", Some(TreeCompression::Zstd)), ("pax", None)]
    {
        let archive = run_tar(&["-C", text, "--format", format, "-cf", "-", "."], b"");
        let is_compressed = compression.is_some();
        let sent = if is_compressed {
            archive.chunks(200_000).flat_map(zstd_frame).collect()
        } else {
            archive
        };
        let start = UploadTreeStart {
            compression: compression.map(Into::into),
            ..tree_start(&format!("in/{format}{is_compressed}"))
        };
        let path = start.path.clone().unwrap();
        let response = upload_tree(&daemon, start, sent).await.unwrap();
        assert_eq!((response.files, response.hard_links, response.symlinks), (7, 1, 4));
        let uploaded = daemon.file(&path);
        let found = describe_tree(&uploaded);
        if format == "pax" {
            assert_eq!(found, expected);
        }
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        let inode = |name: &str| uploaded.join(name).metadata().unwrap().ino();
        assert_eq!(inode("a"), inode("d/same"));

        let request =
            DownloadTreeRequest { compression: compression.map(Into::into), ..tree_request(&path) };
        let (received, summary) = download_tree(&daemon, request).await.unwrap();
        assert_eq!(summary.sha256, super::transfer::sha256_hex(&received));
        assert_eq!((summary.files, summary.symlinks, summary.skipped_entries), (8, 4, 0));
        let received = if is_compressed { decompress(&received) } else { received };
        fs::create_dir(&back).unwrap();
        run_tar(&["-C", back.to_str().unwrap(), "-xpf", "-"], &received);
        assert_eq!(describe_tree(&back), found);
        assert_eq!(back.join("a").metadata().unwrap().uid(), fs::metadata(&back).unwrap().uid());
        fs::remove_dir_all(&back).unwrap();
    }
    assert!(!daemon.log().contains("panic"), "{}", daemon.log());
}

#[tokio::test]
async fn large_tree_survives_both_directions() {
    let daemon = Daemon::start().await;
    let count = full_size(20_000, 2_000);
    let mut archive = Archive::new();
    for number in 0..count {
        let path = format!("d{}/e{}/f{number}", number % 37, number % 11);
        archive = archive.file(&path, format!("content {number}").as_bytes());
    }
    let response = upload_tree(&daemon, tree_start("t"), archive.finish()).await.unwrap();
    assert_eq!(response.files, count as u64);
    for number in [0, 1, count / 2, count - 1] {
        let path = format!("t/d{}/e{}/f{number}", number % 37, number % 11);
        let content = fs::read_to_string(daemon.file(&path)).unwrap();
        assert_eq!(content, format!("content {number}"));
    }

    // Members without a time get the current one.
    let modified = fs::metadata(daemon.file("t/d0/e0/f0")).unwrap().modified().unwrap();
    assert!(modified.elapsed().unwrap().as_secs() < 3600);

    let (archive, summary) = download_tree(&daemon, tree_request("t")).await.unwrap();
    assert_eq!(summary.files, count as u64);
    upload_tree(&daemon, tree_start("again"), archive).await.unwrap();
    assert_eq!(describe_tree(&daemon.file("again")), describe_tree(&daemon.file("t")));
}

#[tokio::test]
async fn existing_entries_are_replaced_only_by_their_own_type() {
    let daemon = Daemon::start().await;
    let restore = || {
        let _absent = fs::remove_dir_all(daemon.file("t"));
        fs::create_dir_all(daemon.file("t/directory/inside")).unwrap();
        fs::write(daemon.file("t/file"), "old").unwrap();
        symlink("old", daemon.file("t/link")).unwrap();
        mknodat(CWD, daemon.file("t/fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    };

    for (archive, replaced, created) in [
        (Archive::new().file("file", b"new"), Ok("file"), "FILE_EXISTS"),
        (Archive::new().symlink("link", "new"), Ok("link"), "FILE_EXISTS"),
        (Archive::new().file("directory", b""), Err("NOT_A_FILE"), "NOT_A_FILE"),
        (Archive::new().file("fifo", b""), Err("NOT_A_FILE"), "NOT_A_FILE"),
        (Archive::new().file("link", b""), Err("SYMLINK_BLOCKED"), "SYMLINK_BLOCKED"),
        (Archive::new().file("link/x", b""), Err("SYMLINK_BLOCKED"), "SYMLINK_BLOCKED"),
        (Archive::new().directory("link"), Err("SYMLINK_BLOCKED"), "SYMLINK_BLOCKED"),
        (Archive::new().directory("file"), Err("FILE_EXISTS"), "FILE_EXISTS"),
        (Archive::new().file("file/x", b""), Err("NOT_A_DIRECTORY"), "NOT_A_DIRECTORY"),
        (Archive::new().symlink("file", "x"), Err("FILE_EXISTS"), "FILE_EXISTS"),
        (Archive::new().symlink("directory", "x"), Err("FILE_EXISTS"), "FILE_EXISTS"),
        // A kind that changes within the archive.
        (Archive::new().file("n", b"").directory("n"), Err("FILE_EXISTS"), "FILE_EXISTS"),
        (Archive::new().directory("n").file("n", b""), Err("NOT_A_FILE"), "NOT_A_FILE"),
        (
            Archive::new().symlink("n", "m").file("n", b""),
            Err("SYMLINK_BLOCKED"),
            "SYMLINK_BLOCKED",
        ),
        (Archive::new().file("n", b"").file("n/m", b""), Err("NOT_A_DIRECTORY"), "NOT_A_DIRECTORY"),
    ] {
        let archive = archive.finish();
        restore();
        let result = upload_tree(&daemon, tree_start("t"), archive.clone()).await;
        match (result, replaced) {
            (Ok(_), Ok(_)) => {}
            (Err(status), Err(reason)) => {
                assert_eq!(Refusal::from_status(&status).reason, reason, "{status:?}");
            }
            (result, expected) => panic!("{result:?}, not {expected:?}"),
        }
        restore();
        let start = UploadTreeStart { mode: Some(WriteMode::CreateNew.into()), ..tree_start("t") };
        upload_tree_failing(&daemon, start, archive, created).await;
        assert_eq!(fs::read_to_string(daemon.file("t/file")).unwrap(), "old");
    }

    let same_twice = Archive::new().file("n", b"1").file("n", b"2").hard_link("n", "n").finish();
    upload_tree(&daemon, tree_start("t"), same_twice).await.unwrap();
    assert_eq!(fs::read_to_string(daemon.file("t/n")).unwrap(), "2");
}

#[tokio::test]
async fn rejected_member_ends_the_tree_after_the_members_before_it() {
    let daemon = Daemon::start().await;
    fs::create_dir_all(daemon.file("t/b")).unwrap();
    let archive = Archive::new().file("a", b"1").file("b", b"2").file("c", b"3").finish();
    let refusal = upload_tree_failing(&daemon, tree_start("t"), archive, "NOT_A_FILE").await;
    assert_eq!(refusal.metadata["member"], "b", "{refusal:?}");
    assert_eq!(refusal.metadata["extracted_members"], "1");
    assert!(refusal.message.contains("with 1 members in place"), "{}", refusal.message);
    assert_eq!(fs::read(daemon.file("t/a")).unwrap(), b"1");
    assert!(!daemon.file("t/c").exists());
    assert_eq!(partial_files(&daemon.file("t")), [""; 0]);
}

#[tokio::test]
async fn interrupted_tree_leaves_no_partial_file() {
    let daemon = Daemon::start().await;
    let archive = Archive::new()
        .directory("d")
        .file("d/small", b"1")
        .file("d/large", &pseudo_random_bytes(4_000_000))
        .finish();
    let (sender, receiver) = mpsc::channel(16);
    let mut transfers = transfer_client(&daemon).await;
    let call = tokio::spawn(async move {
        transfers.upload_tree(ReceiverStream::new(receiver)).await.map(drop)
    });
    let start = UploadTreeRequest { part: Some(Part::Start(tree_start("t"))) };
    sender.send(start).await.unwrap();
    for data in archive[..2_000_000].chunks(CHUNK_BYTES) {
        let data = Part::Data(data.to_vec().into());
        sender.send(UploadTreeRequest { part: Some(data) }).await.unwrap();
    }
    eventually("the large file is being received", async || {
        // Before, the small file is a partial file too.
        daemon.file("t/d/small").exists() && partial_files(&daemon.file("t/d")).len() == 1
    })
    .await;

    call.abort();
    drop(sender);
    eventually("the partial file is removed", async || {
        partial_files(&daemon.file("t/d")).is_empty()
    })
    .await;
    assert_eq!(fs::read(daemon.file("t/d/small")).unwrap(), b"1");
    assert!(!daemon.file("t/d/large").exists());

    // Without the end of the archive, the members are in place, but the call fails.
    let unfinished = Archive::new().file("a", b"1").0;
    let refusal = upload_tree_failing(&daemon, tree_start("t"), unfinished, "INVALID_PARAMS").await;
    assert_eq!(refusal.metadata["extracted_members"], "1");
    assert!(daemon.file("t/a").exists());
}

#[tokio::test]
async fn full_disk_ends_a_tree() {
    let daemon = Setup::new().workspace_on_small_disk().start().await;
    let content = pseudo_random_bytes(600_000);
    let mut archive = Archive::new();
    for number in 0..8 {
        archive = archive.file(&format!("f{number}"), &content);
    }
    let large = Archive::new().file("large", &pseudo_random_bytes(3_000_000)).finish();
    let refusal = upload_tree_failing(&daemon, tree_start("t"), archive.finish(), "NO_SPACE").await;
    let extracted: usize = refusal.metadata["extracted_members"].parse().unwrap();
    assert!((1..4).contains(&extracted), "{refusal:?}");
    upload_tree_failing(&daemon, tree_start("t"), large, "NO_SPACE").await;
    assert_eq!(daemon.list_files().await.len(), extracted);
}

#[tokio::test]
async fn rules_apply_to_each_member() {
    let table = "protected = [\"t/conf\"]\n[[policy.rules]]\nname = \"no-env\"\ntool = \"write_file\"\npattern = '\"path\":\"[^\"]*\\.env\"'\naction = \"deny\"\n[[policy.rules]]\nname = \"private\"\ntool = \"read_file\"\npattern = '\"path\":\"t/private'\naction = \"deny\"";
    let daemon = Setup::new().workspace_table(table).start().await;
    for (archive, rule) in [
        (Archive::new().file("a", b"").file("b/.env", b"KEY=1"), Some("file:no-env")),
        (Archive::new().file("a", b"").file("conf/x", b""), None),
        (Archive::new().file("a", b"").file(".jig-01ARZ3NDEKTSV4RRFFQ69G5FAV.tmp", b""), None),
    ] {
        let archive = archive.finish();
        let refusal = upload_tree_failing(&daemon, tree_start("t"), archive, "POLICY_DENIED").await;
        assert_eq!(refusal.metadata.get("rule_id").map(String::as_str), rule, "{refusal:?}");
        assert_eq!(refusal.metadata["extracted_members"], "1");
        assert!(!daemon.file("t/b").exists());
    }

    fs::create_dir_all(daemon.file("t/private")).unwrap();
    fs::write(daemon.file("t/private/key"), "secret").unwrap();
    let (archive, summary) = download_tree(&daemon, tree_request("t")).await.unwrap();
    assert!(!String::from_utf8_lossy(&archive).contains("secret"));
    assert_eq!(summary.skipped_entries, 1, "{summary:?}");
    assert_eq!(summary.problems[0].path, "private");
    assert_eq!(summary.problems[0].kind(), TreeProblemKind::Denied);
}

#[tokio::test]
async fn download_leaves_out_and_reports_what_it_cannot_archive() {
    let daemon = Daemon::start().await;
    for directory in ["t/keep", "t/target/debug", "t/d"] {
        fs::create_dir_all(daemon.file(directory)).unwrap();
    }
    for (name, content) in
        [("keep/a", "1"), ("keep/a.o", "2"), ("target/debug/x", "3"), ("d/large", "12345")]
    {
        fs::write(daemon.file(&format!("t/{name}")), content).unwrap();
    }
    mknodat(CWD, daemon.file("t/d/fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let invalid = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff");
    let invalid: &std::ffi::OsStr = invalid;
    fs::write(daemon.file("t/d").join(invalid), "").unwrap();
    fs::write(daemon.file("t/.jig-01ARZ3NDEKTSV4RRFFQ69G5FAV.tmp"), "").unwrap();

    let request = DownloadTreeRequest {
        exclude: vec!["*.o".to_owned(), "target/debug".to_owned()],
        max_file_bytes: Some(4),
        ..tree_request("t")
    };
    let (archive, summary) = download_tree(&daemon, request).await.unwrap();
    let mut names = Vec::new();
    let (mut reader, mut input) = (TarReader::new(), archive.as_slice());
    while let Some(event) = reader.next(&mut input).unwrap() {
        if let jig::archive::TarEvent::Member(member) = event {
            names.push(member.path);
        }
    }
    reader.finish().unwrap();
    assert_eq!(names, ["d", "keep", "keep/a", "target"]);
    let problems: Vec<_> =
        summary.problems.iter().map(|problem| (problem.path.as_str(), problem.kind())).collect();
    let expected = [("d/fifo", TreeProblemKind::Special), ("d/\u{fffd}", TreeProblemKind::NotUtf8)];
    assert_eq!(problems, expected);
    assert_eq!((summary.skipped_entries, summary.changed_files), (2, 0));

    symlink("t", daemon.file("link")).unwrap();
    for (path, reason) in [
        ("none", "DIRECTORY_NOT_FOUND"),
        ("t/keep/a", "NOT_A_DIRECTORY"),
        ("link", "SYMLINK_BLOCKED"),
        ("../x", "PATH_ESCAPE"),
    ] {
        let status = download_tree(&daemon, tree_request(path)).await.unwrap_err();
        assert_eq!(Refusal::from_status(&status).reason, reason, "{path}");
    }
}
