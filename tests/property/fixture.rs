//! A daemon whose workspace has the same content before each call.

use std::{fs, os::unix::fs::symlink};

use jig::api::v1::RunLimits;
use serde_json::Value as Json;

use crate::support::{Daemon, Setup, Tree, empty_directory, snapshot_tree};

/// A permitted URL whose server does not respond.
pub(super) const UNREACHABLE_URL: &str = "http://127.0.0.1:1/";
/// Files of the workspace.
pub(super) const FILES: [(&str, &[u8]); 9] = [
    ("a.txt", b"one\ntwo\nthree\ns\xc3\xa9ance\n"),
    ("src/main.rs", b"fn main() {\n    println!(\"two\");\n}\n"),
    ("src/deep/ü b.txt", b"one one\r\ntwo\r\n"),
    ("-dash", b"--two\n"),
    ("quote'\".md", b"# two\n"),
    ("new\nline", b"two"),
    ("data.bin", b"\xff\xfe\0two"),
    ("empty", b""),
    ("book.ipynb", NOTEBOOK),
];
const NOTEBOOK: &[u8] = br#"{"nbformat": 4, "nbformat_minor": 5, "metadata": {"language_info": {"name": "python"}}, "cells": [
 {"id": "first", "cell_type": "code", "source": "one = 1", "metadata": {}, "execution_count": 3, "outputs": []},
 {"id": "two", "cell_type": "markdown", "source": ["two\n", "lines"], "metadata": {}}]}"#;
/// An empty directory of the workspace, and a link that leads out of it.
pub(super) const EMPTY_DIRECTORY: &str = "hollow";
pub(super) const OUTSIDE_LINK: &str = "out";

#[derive(Debug)]
pub(super) struct PropertyFixture {
    pub(super) daemon: Daemon,
    /// The limits of its runs.
    pub(super) limits: RunLimits,
}

impl PropertyFixture {
    /// Starts a daemon without a network.
    pub(super) async fn new() -> Self {
        let setup = Setup::new().workspace_table(
            "[fetch]\nhosts = [\"127.0.0.1\"]\nports = [1]\nallow_addresses = [\"127.0.0.1\"]",
        );
        let daemon = setup.with_network_addresses(&[]).start().await;
        let limits = daemon.info().await.run_limits.unwrap();
        Self { daemon, limits }
    }

    /// Restores the workspace's content.
    pub(super) fn reset_workspace(&self) {
        let workspace = self.daemon.workspace();
        if snapshot_tree(&workspace) == expected_tree() {
            return;
        }

        empty_directory(&workspace);

        for (name, content) in FILES {
            let path = workspace.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        fs::create_dir(workspace.join(EMPTY_DIRECTORY)).unwrap();
        symlink("/", workspace.join(OUTSIDE_LINK)).unwrap();
    }

    /// The workspace: paths with modes and contents.
    pub(super) fn tree(&self) -> Tree {
        snapshot_tree(&self.daemon.workspace())
    }

    /// The started calls of a session: their tools and parameters.
    pub(super) fn started_calls(&self, session: &str) -> Vec<(String, Json)> {
        let path = format!("sessions/{session}/events.jsonl");
        let text = fs::read_to_string(self.daemon.state_dir().join(path)).unwrap_or_default();
        let records = text.lines().map(|line| {
            let record: Json = serde_json::from_str(line).unwrap();
            record
        });

        // Records of step 0 belong to calls that were rejected before a tool started.
        let reached_tool = |record: &Json| record["step"] != 0;
        let started =
            records.filter(|record| record["event"] == "tool_call_started" && reached_tool(record));
        started
            .map(|mut record| {
                let tool = record["tool"].as_str().unwrap().to_owned();
                // A call in a dialect also has the parameters of the contract's tool.
                let name = match record.get("tool_params") {
                    Some(_) => "tool_params",
                    None => "params",
                };
                (tool, record[name].take())
            })
            .collect()
    }
}

fn expected_tree() -> Tree {
    let file = |(name, content): (&str, &[u8])| (name.to_owned(), (0o100_644, content.to_vec()));
    let mut tree: Tree = FILES.into_iter().map(file).collect();
    for directory in ["src", "src/deep", EMPTY_DIRECTORY] {
        tree.insert(directory.to_owned(), (0o40_755, Vec::new()));
    }

    tree.insert(OUTSIDE_LINK.to_owned(), (0o120_777, b"/".to_vec()));
    tree
}
