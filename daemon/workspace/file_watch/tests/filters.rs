//! What a watch reports and enters.

use super::*;
use crate::daemon::workspace::compile_globs;

#[test]
fn filters_select_what_is_reported_and_watched() {
    let fixture = Fixture::new();
    fixture.mkdir("src/deep/er");
    fixture.mkdir("target/debug");
    fixture.mkdir(".git/objects");
    fixture.mkdir(".hidden");
    fixture.write("src/old.rs");
    let touch = || {
        for path in [
            "a.rs",
            "a.txt",
            "src/old.rs",
            "src/deep/er/b.rs",
            "target/debug/c.rs",
            ".git/HEAD",
            ".hidden/d.rs",
            ".e.rs",
            ".jig-01ARZ3NDEKTSV4RRFFQ69G5FAV.tmp",
        ] {
            let _earlier = fs::remove_file(fixture.path(path));
            fixture.write(path);
        }
    };
    let globs = |globs: &[&str]| compile_globs(globs.iter().copied()).unwrap();
    let filter = |patterns: &[&str], include_hidden, max_depth| WatchFilter {
        globs: globs(patterns),
        include_hidden,
        max_depth,
    };
    for (base, filter, expected, directories) in [
        (
            ".",
            all(),
            "+.e.rs +.hidden/d.rs +a.rs +a.txt +src/deep/er/b.rs +src/old.rs +target/debug/c.rs",
            7,
        ),
        (".", filter(&["!target"], false, None), "+a.rs +a.txt +src/deep/er/b.rs +src/old.rs", 4),
        (
            ".",
            filter(&["*.rs", "!target"], false, None),
            "+.e.rs +a.rs +src/deep/er/b.rs +src/old.rs",
            4,
        ),
        (".", filter(&["/src/*.rs"], true, None), "+src/old.rs", 7),
        ("src", filter(&["deep/**"], true, None), "+src/deep/er/b.rs", 3),
        (".", filter(&[], true, Some(1)), "+.e.rs +a.rs +a.txt", 1),
        ("src", filter(&[], true, Some(2)), "+src/old.rs", 2),
    ] {
        let mut watch = fixture.open(base, filter).unwrap();
        assert_eq!(watch.directories(), directories, "{expected}");
        touch();
        assert_eq!(sorted(&mut watch).join(" "), expected);
    }

    // Directories are reported whether they match or not, unless they are excluded.
    let mut watch = fixture.open(".", filter(&["*.rs", "!target"], true, None)).unwrap();
    fixture.rename("src", "lib");
    fixture.rename("target", "out");
    assert_eq!(
        sorted(&mut watch),
        [
            "+lib/",
            "+lib/deep/",
            "+lib/deep/er/",
            "+lib/deep/er/b.rs",
            "+lib/old.rs",
            "+out/",
            "+out/debug/",
            "+out/debug/c.rs",
            "-src/"
        ]
    );
    // What is excluded now was reported before.
    fixture.rename("out", "target");
    assert_eq!(changes(&mut watch), ["-out/"]);
    fs::remove_dir_all(fixture.path("target")).unwrap();
    assert!(changes(&mut watch).is_empty());
}
