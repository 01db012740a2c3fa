//! Archives of hostile callers: names that leave the tree, links that lead out of it, members that
//! only some readers see, devices, and data that expands (CVE-2025-62518, "zip slip").

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use jig::{
    api::v1::{TreeCompression, UploadTreeStart},
    archive::zstd_frame,
};
use tar::{EntryType, Header};

use crate::{
    files::trees::{Archive, describe_tree, tree_start, upload_tree, upload_tree_failing},
    support::{Daemon, Setup, full_size},
};

/// A header without any checks.
fn raw_header(name: &str, kind: u8, size: u64, target: &str) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_entry_type(EntryType::new(kind));
    header.set_mode(0o6777);
    header.set_size(size);
    header.set_cksum();
    header.as_bytes().to_vec()
}

fn pax_header(records: &str) -> Vec<u8> {
    let mut header = raw_header("pax", b'x', records.len() as u64, "");
    header.extend_from_slice(records.as_bytes());
    header.resize(1024, 0);
    header
}

#[tokio::test]
async fn case_n26_hostile_members_are_rejected() {
    let daemon = Daemon::start().await;
    let outside = daemon.sibling_path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "secret").unwrap();
    fs::write(daemon.file("secret"), "secret").unwrap();
    let before = describe_tree(&outside);
    let secret = outside.join("secret").display().to_string();

    let smuggled = [
        pax_header("12 size=512\n"),
        raw_header("carrier", b'0', 0, ""),
        raw_header("smuggled", b'0', 0, ""),
    ];
    let mut header = Header::new_ustar();
    header.as_old_mut().name[0] = 0xff;
    header.set_size(0);
    header.set_cksum();
    let non_utf8 = header.as_bytes().to_vec();
    let cases: Vec<(Archive, &str, &str)> = vec![
        (Archive::new().raw(&raw_header("../x", b'0', 0, "")), "PATH_ESCAPE", "../x"),
        (Archive::new().raw(&raw_header("/tmp/x", b'0', 0, "")), "PATH_ESCAPE", "/tmp/x"),
        (Archive::new().raw(&raw_header("d/../../x", b'5', 0, "")), "PATH_ESCAPE", "d/../../x"),
        (Archive::new().raw(&raw_header("link", b'2', 0, &secret)), "PATH_ESCAPE", "link"),
        (Archive::new().raw(&raw_header("link", b'2', 0, "../../x")), "PATH_ESCAPE", "link"),
        (Archive::new().raw(&raw_header("hard", b'1', 0, &secret)), "PATH_ESCAPE", "hard"),
        (Archive::new().raw(&raw_header("hard", b'1', 0, "../secret")), "PATH_ESCAPE", "hard"),
        // A file of the workspace that the archive does not have.
        (Archive::new().hard_link("hard", "old"), "INVALID_ARCHIVE", "hard"),
        (Archive::new().symlink("s", "old").hard_link("hard", "s"), "INVALID_ARCHIVE", "hard"),
        // A symbolic link, and a member through it.
        (Archive::new().symlink("d", ".").file("d/x", b""), "SYMLINK_BLOCKED", "d/x"),
        (Archive::new().symlink("d", ".").directory("d/x"), "SYMLINK_BLOCKED", "d/x"),
        (Archive::new().symlink("d", ".").symlink("d/x", "y"), "SYMLINK_BLOCKED", "d/x"),
        (Archive::new().raw(&raw_header("null", b'3', 0, "")), "INVALID_ARCHIVE", "null"),
        (Archive::new().raw(&raw_header("disk", b'4', 0, "")), "INVALID_ARCHIVE", "disk"),
        (Archive::new().raw(&raw_header("pipe", b'6', 0, "")), "INVALID_ARCHIVE", "pipe"),
        (Archive::new().raw(&raw_header("holes", b'S', 1 << 63, "")), "INVALID_ARCHIVE", "holes"),
        (Archive::new().raw(&raw_header("huge", b'0', 1 << 63, "")), "ARCHIVE_TOO_LARGE", "huge"),
        (Archive::new().raw(&smuggled.concat()), "INVALID_ARCHIVE", "carrier"),
        (Archive::new().raw(&pax_header("27 GNU.sparse.realsize=9e18\n")), "INVALID_ARCHIVE", ""),
        (Archive::new().raw(&pax_header("12 path=../x\n")).file("a", b""), "INVALID_ARCHIVE", ""),
        (Archive::new().raw(&pax_header("13 path=../x\n")).file("a", b""), "PATH_ESCAPE", "../x"),
        (
            Archive::new().raw(&pax_header("18 linkpath=../..\n")).symlink("s", "x"),
            "PATH_ESCAPE",
            "s",
        ),
        (Archive::new().file("dir/", b""), "INVALID_ARCHIVE", ""),
        (Archive::new().file(&["d"; 300].join("/"), b""), "ARCHIVE_TOO_LARGE", ""),
        (Archive::new().raw(&non_utf8), "INVALID_ARCHIVE", "\u{fffd}"),
        (Archive::new().file(&"n".repeat(5000), b""), "ARCHIVE_TOO_LARGE", ""),
        (Archive::new().file(&"n".repeat(256), b""), "FILE_NOT_FOUND", ""),
        (
            Archive::new().raw(&pax_header("12 path=a\0b\n")).file("a", b""),
            "INVALID_ARCHIVE",
            "a\0b",
        ),
    ];
    for (archive, reason, member) in cases {
        let _absent = fs::remove_dir_all(daemon.file("t"));
        fs::create_dir(daemon.file("t")).unwrap();
        fs::write(daemon.file("t/old"), "old").unwrap();
        let refusal = upload_tree_failing(&daemon, tree_start("t"), archive.finish(), reason).await;
        if !member.is_empty() {
            assert_eq!(refusal.metadata["member"], *member, "{refusal:?}");
        }
        for name in ["x", "smuggled", "hard", "null", "pipe", "carrier"] {
            assert!(daemon.file("t").join(name).symlink_metadata().is_err(), "{name}");
        }
    }
    assert_eq!(describe_tree(&outside), before);
    assert!(!daemon.log().contains("panic"), "{}", daemon.log());
}

#[tokio::test]
async fn case_n26_duplicates_and_truncated_archives_leave_one_state() {
    let daemon = Daemon::start().await;
    let archive = Archive::new()
        .file("d/a", b"first")
        .hard_link("hard", "d/a")
        .file("d/a", b"second")
        .symlink("link", "d/a")
        .symlink("link", "hard")
        .directory("d")
        .hard_link("hard", "d/a")
        .finish();
    upload_tree(&daemon, tree_start("t"), archive.clone()).await.unwrap();
    assert_eq!(fs::read(daemon.file("t/hard")).unwrap(), b"second");
    assert_eq!(fs::read_link(daemon.file("t/link")).unwrap(), Path::new("hard"));
    let mut names: Vec<_> = describe_tree(&daemon.file("t")).into_keys().collect();
    names.sort();
    assert_eq!(names, ["d", "d/a", "hard", "link"]);

    // Each cut is an error, and never leaves a part of a file.
    let content = vec![7; 1 << 11];
    let archive = Archive::new().file("a", b"1").file("b", &content).finish();
    for length in (0..archive.len()).step_by(509) {
        let _absent = fs::remove_dir_all(daemon.file("t"));
        let cut = archive[..length].to_vec();
        upload_tree_failing(&daemon, tree_start("t"), cut, "INVALID_PARAMS").await;
        let names: Vec<_> = describe_tree(&daemon.file("t")).into_keys().collect();
        assert!(names.iter().all(|name| ["a", "b"].contains(&name.as_str())), "{names:?}");
        let is_whole = fs::read(daemon.file("t/b")).map_or(true, |found| found == content);
        assert!(is_whole, "{length}");
    }
}

#[tokio::test]
async fn case_n26_very_many_members_end_with_an_error() {
    let daemon = Daemon::start().await;
    // A million members and one: each is the top of the tree, which exists.
    let members: Vec<u8> = (0..1000)
        .flat_map(|time| {
            let mut header = Header::from_byte_slice(&raw_header("./", b'5', 0, "")).clone();
            header.set_mtime(time);
            header.set_cksum();
            *header.as_bytes()
        })
        .collect();
    let frame = zstd_frame(&members);
    let before = daemon.resident_bytes();
    let start =
        UploadTreeStart { compression: Some(TreeCompression::Zstd.into()), ..tree_start("t") };
    let rejected = [frame.repeat(1000), zstd_frame(&members)].concat();
    upload_tree_failing(&daemon, start, rejected, "ARCHIVE_TOO_LARGE").await;
    assert!(daemon.resident_bytes() < before + (64 << 20), "the members take memory");
}

#[tokio::test]
async fn case_n26_special_bits_are_dropped() {
    let daemon = Daemon::start().await;
    let archive = Archive::new()
        .raw(&raw_header("d", b'5', 0, ""))
        .raw(&raw_header("d/program", b'0', 0, ""))
        .finish();
    upload_tree(&daemon, tree_start("t"), archive).await.unwrap();
    for name in ["t/d", "t/d/program"] {
        let mode = fs::metadata(daemon.file(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o777, "{name}");
    }
}

#[tokio::test]
async fn case_n26_links_are_not_followed_in_a_workspace_that_follows_links() {
    let daemon = Setup::new().workspace_table("symlinks = \"within\"").start().await;
    fs::create_dir_all(daemon.file("other")).unwrap();
    fs::create_dir_all(daemon.file("t")).unwrap();
    std::os::unix::fs::symlink("../other", daemon.file("t/link")).unwrap();
    for archive in [
        Archive::new().file("link/x", b""),
        Archive::new().file("link/new/x", b""),
        Archive::new().directory("link/new"),
        Archive::new().symlink("link/s", "x"),
        Archive::new().file("link/large", &vec![7; 2 << 20]),
    ] {
        let archive = archive.finish();
        upload_tree_failing(&daemon, tree_start("t"), archive, "SYMLINK_BLOCKED").await;
    }
    assert_eq!(fs::read_dir(daemon.file("other")).unwrap().count(), 0);
    // The directory of the tree itself may be reached through a link.
    let archive = Archive::new().file("x", b"1").finish();
    upload_tree(&daemon, tree_start("t/link"), archive).await.unwrap();
    assert_eq!(fs::read(daemon.file("other/x")).unwrap(), b"1");
}

#[tokio::test]
async fn case_n26_bomb_ends_with_an_error() {
    let daemon = Daemon::start().await;
    // A frame with a window of 128 KiB, and blocks of 4 bytes that stand for 128 KiB of zeros each.
    let mut bomb = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x38];
    let block = u32::try_from((128 << 10) << 3).unwrap() | 2;
    let header = raw_header("zeros", b'0', 32 << 30, "");
    let raw_block = u32::try_from(header.len() << 3).unwrap();
    bomb.extend_from_slice(&raw_block.to_le_bytes()[..3]);
    bomb.extend_from_slice(&header);
    for _ in 0..full_size(1 << 18, 1 << 14) {
        bomb.extend_from_slice(&block.to_le_bytes()[..3]);
        bomb.push(0);
    }
    let before = daemon.resident_bytes();
    let start =
        UploadTreeStart { compression: Some(TreeCompression::Zstd.into()), ..tree_start("t") };
    let refusal = upload_tree_failing(&daemon, start.clone(), bomb, "ARCHIVE_TOO_LARGE").await;
    assert!(refusal.message.contains("256 times"), "{}", refusal.message);
    assert!(daemon.resident_bytes() < before + (64 << 20), "the bomb takes memory");
    assert_eq!(fs::read_dir(daemon.file("t")).unwrap().count(), 0);

    let window = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0xff, 0, 0, 0];
    upload_tree_failing(&daemon, start, window, "INVALID_ARCHIVE").await;
}
