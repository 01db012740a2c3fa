//! Compares docs/configuration.md with the daemon.

use std::{collections::BTreeSet, fs};

use crate::support::run_jigd;

const PAGE: &str = include_str!("../docs/configuration.md");
/// A key that no table has.
const UNKNOWN_KEY: &str = "no_such_key";

#[test]
fn documented_default_file_is_accepted() {
    let (_, rest) = PAGE.split_once("```toml jigd\n").unwrap();
    let (file, _) = rest.split_once("```").unwrap();
    let directory = tempfile::tempdir().unwrap();

    for name in ["project", "toolchain"] {
        fs::create_dir(directory.path().join(name)).unwrap();
    }

    let path = directory.path().join("jig.toml");
    let root = directory.path().display().to_string();
    let state = directory.path().join("state").display().to_string();
    fs::write(&path, file.replace("/srv", &root)).unwrap();
    let path = path.to_str().unwrap();

    let output = run_jigd(&["--check", "--config", path, "--state-dir", &state]);
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{report}");
    assert!(report.contains("workspace project at "), "{report}");
}

#[test]
fn every_key_has_a_row_and_every_row_a_key() {
    let tables = documented_tables();
    let names = tables.iter().map(|(header, _)| {
        let name = header.trim_matches(['[', ']']);
        name.split('.').next().unwrap().to_owned()
    });
    let names: BTreeSet<String> = names.filter(|name| !name.is_empty()).collect();
    assert!(names.len() > 10, "{names:?}");

    for (header, mut documented) in tables {
        if header.is_empty() {
            documented.extend(names.iter().cloned());
        }
        assert_eq!(documented, known_keys(&header), "{header:?}");
    }
}

/// docs/operate/limits.md has a row for each limit, and names metrics that exist.
#[test]
fn every_limit_of_the_configuration_is_listed_with_its_metric() {
    let page = include_str!("../docs/operate/limits.md");
    let limits = ["limits", "requests", "jobs", "sessions", "approvals"];
    let tables = documented_tables();
    let keys = tables.iter().flat_map(|(header, keys)| {
        let table = header.trim_matches(['[', ']']);
        keys.iter()
            .filter(move |_| limits.contains(&table))
            .map(move |key| format!("{table}.{key}"))
    });
    let missing: Vec<_> = keys.filter(|key| !page.contains(&format!("`{key}`"))).collect();
    assert_eq!(missing, [""; 0]);

    let telemetry = include_str!("../docs/telemetry.md");
    let names = page.split('`').skip(1).step_by(2);
    let metrics = names.filter(|name| name.starts_with("jig.") || name.starts_with("process."));
    let unknown: Vec<_> =
        metrics.filter(|name| !telemetry.contains(&format!("`{name}`"))).collect();
    assert_eq!(unknown, [""; 0]);
}

/// The tables of the page, as header in the file and keys. The header of the top level is empty.
fn documented_tables() -> Vec<(String, BTreeSet<String>)> {
    let (_, rest) = PAGE.split_once("\n## Keys by table\n").unwrap();
    let (section, _) = rest.split_once("\n## ").unwrap();
    let parts = section.split("\n### ").skip(1);
    parts
        .map(|part| {
            let (title, rows) = part.split_once('\n').unwrap();
            let header = title.split('`').nth(1).unwrap_or_default();
            let keys = rows
                .lines()
                .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
                .map(|(key, _)| key.to_owned());
            (header.to_owned(), keys.collect())
        })
        .collect()
}

/// The keys of a table, as the error about an unknown key lists them.
fn known_keys(header: &str) -> BTreeSet<String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jig.toml");

    fs::write(&path, format!("{header}\n{UNKNOWN_KEY} = 1\n")).unwrap();
    let output = run_jigd(&["--check", "--config", path.to_str().unwrap()]);
    let error = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let expected = format!("`{UNKNOWN_KEY}`, expected ");
    let (_, known) = error.split_once(&expected).expect(&error);

    let known = known.lines().next().unwrap();
    known.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}
