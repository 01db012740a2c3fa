//! `jig key`: the key file, its output, and rejected commands.

use std::{fs, os::unix::fs::PermissionsExt as _};

use serde_json::Value;

use crate::support::KeyFile;

fn utf8_text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn key_command_creates_lists_and_revokes_keys() {
    let keys = KeyFile::new();
    let output = keys.run_jig_key(&[
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

    let output: Value = serde_json::from_slice(&output.stdout).unwrap();
    let key = output["key"].as_str().unwrap();
    assert_eq!(key.len(), 47);
    assert!(key.starts_with("jig_"));

    let other_key = keys.add_key("ops", "admin", &[]);
    assert_ne!(key, other_key);

    let file = fs::read_to_string(keys.path()).unwrap();
    assert!(!file.contains(key) && !file.contains(&other_key), "{file}");

    let mode = fs::metadata(keys.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let list = keys.run_jig_key(&["list"]);
    let list = utf8_text(&list.stdout);
    assert!(
        list.contains("ci\tread\tworkspaces=a,b tools=all calls_per_second=5 burst=5"),
        "{list}"
    );
    assert!(list.contains("ops\tadmin\tworkspaces=all"), "{list}");
    assert!(!list.contains(key));
    assert!(keys.run_jig_key(&["revoke", "ci"]).status.success());

    let list = keys.run_jig_key(&["list", "--json"]);
    let list: Value = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!(list["keys"].as_array().unwrap().len(), 1);
}

#[test]
fn invalid_key_commands_are_rejected_and_change_nothing() {
    let keys = KeyFile::new();
    keys.add_key("ci", "invoke", &[]);

    let before = fs::read(keys.path()).unwrap();
    for (arguments, code, text) in [
        (&["new", "ci"][..], 1, "already"),
        (&["new", "c i"], 1, "a name has 1 to 64"),
        (&["new", "x", "--role", "king"], 64, "admin"),
        (&["new", "x", "--burst", "1"], 64, "--calls-per-second"),
        (&["new", "x", "--calls-per-second", "0"], 1, "from 1 to"),
        (&["new", "x", "--expires", "soon"], 64, "--expires"),
        (&["new", "x", "--for-tool", "rnu"], 1, "unknown tool \"rnu\". Known: apply_patch,"),
        (&["revoke", "nobody"], 1, "jig key list"),
        (&["revoke"], 64, "NAME"),
    ] {
        let output = keys.run_jig_key(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");

        let stderr = utf8_text(&output.stderr);
        assert!(stderr.contains(text), "{arguments:?}: {output:?}");
        assert!(!stderr.contains("UNKNOWN"), "{stderr}");
        assert!(output.stdout.is_empty(), "{output:?}");
        assert_eq!(fs::read(keys.path()).unwrap(), before);
    }

    fs::write(keys.path(), "[[keys]]\nname = 1\n").unwrap();
    let output = keys.run_jig_key(&["new", "x"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(utf8_text(&output.stderr).contains("line 2"), "{output:?}");
}
