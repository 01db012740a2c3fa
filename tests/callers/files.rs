//! `jig key`: what it writes, prints and refuses.

use std::{fs, os::unix::fs::PermissionsExt as _};

use serde_json::Value;

use crate::support::KeyFile;

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn keys_are_made_listed_and_revoked() {
    let keys = KeyFile::new();
    let made = keys.jig(&[
        "new",
        "ci",
        "--role",
        "read",
        "--for-workspace",
        "a",
        "--for-workspace",
        "b",
        "--calls-per-second",
        "5",
        "--json",
    ]);
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    let key = made["key"].as_str().unwrap();
    assert_eq!(key.len(), 47);
    assert!(key.starts_with("jig_"));
    let other = keys.add("ops", "admin", &[]);
    assert_ne!(key, other);
    let file = fs::read_to_string(keys.path()).unwrap();
    assert!(!file.contains(key) && !file.contains(&other), "{file}");
    let mode = fs::metadata(keys.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let listed = keys.jig(&["list"]);
    let listed = text(&listed.stdout);
    assert!(
        listed.contains("ci\tread\tworkspaces=a,b tools=all calls_per_second=5 burst=5"),
        "{listed}"
    );
    assert!(listed.contains("ops\tadmin\tworkspaces=all"), "{listed}");
    assert!(!listed.contains(key));
    assert!(keys.jig(&["revoke", "ci"]).status.success());
    let listed = keys.jig(&["list", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["keys"].as_array().unwrap().len(), 1);
}

#[test]
fn what_cannot_be_a_key_is_refused_and_changes_nothing() {
    let keys = KeyFile::new();
    keys.add("ci", "invoke", &[]);
    let before = fs::read(keys.path()).unwrap();
    for (words, code, part) in [
        (&["new", "ci"][..], 1, "already"),
        (&["new", "c i"], 1, "a name has 1 to 64"),
        (&["new", "x", "--role", "king"], 64, "admin"),
        (&["new", "x", "--burst", "1"], 64, "--calls-per-second"),
        (&["new", "x", "--calls-per-second", "0"], 1, "from 1 to"),
        (&["new", "x", "--expires", "soon"], 64, "--expires"),
        (&["new", "x", "--for-tool", "rnu"], 1, "there is no tool \"rnu\"; there are apply_patch,"),
        (&["revoke", "nobody"], 1, "jig key list"),
        (&["revoke"], 64, "NAME"),
    ] {
        let output = keys.jig(words);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {output:?}");
        let told = text(&output.stderr);
        assert!(told.contains(part), "{words:?}: {output:?}");
        assert!(!told.contains("UNKNOWN"), "{told}");
        assert!(output.stdout.is_empty(), "{output:?}");
        assert_eq!(fs::read(keys.path()).unwrap(), before);
    }
    fs::write(keys.path(), "[[keys]]\nname = 1\n").unwrap();
    let output = keys.jig(&["new", "x"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("line 2"), "{output:?}");
}
