//! docs/cli.md: its reference is what `--help` prints, command by command.
//! `JIG_UPDATE_PAGES=1` rewrites it.

use std::{fmt::Write as _, fs, path::Path, process::Command};

use crate::support::run_jigd;

const MAX_COLUMNS: usize = 96;
/// Header of the options that every command of `jig` has. The page shows them once.
const SHARED_OPTIONS: &str = "\nConnection:\n";

#[test]
fn cli_page_shows_what_help_prints() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cli.md");
    let page = fs::read_to_string(&file).unwrap();
    let (introduction, _) = page.split_once("\n## jig\n").unwrap();
    let expected = format!("{introduction}\n{}", reference());

    if std::env::var_os("JIG_UPDATE_PAGES").is_some() {
        fs::write(&file, &expected).unwrap();
    }
    assert!(
        page == expected,
        "docs/cli.md is not what --help prints. Rewrite it with: JIG_UPDATE_PAGES=1 cargo test cli_page"
    );
}

fn reference() -> String {
    let mut page = String::new();
    append(&mut page, &["jig"]);
    let daemon = String::from_utf8(run_jigd(&["--help"]).stdout).unwrap();
    append_section(&mut page, "## jigd", &daemon);
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

/// Appends a command of `jig` and, after it, its subcommands.
fn append(page: &mut String, command: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_jig"))
        .args(&command[1..])
        .arg("--help")
        .env_clear()
        .output()
        .unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");

    let help = String::from_utf8(output.stdout).unwrap();

    let is_root = command.len() == 1;
    let own = if is_root { help.as_str() } else { help.split(SHARED_OPTIONS).next().unwrap() };
    let level = "#".repeat(command.len().min(3) + 1);
    append_section(page, &format!("{level} {}", command.join(" ")), own);

    for subcommand in subcommands(&help) {
        append(page, &[command, &[subcommand]].concat());
    }
}

fn append_section(page: &mut String, title: &str, help: &str) {
    writeln!(page, "{title}\n\n```text").unwrap();
    for line in help.trim_end().lines() {
        append_wrapped(page, line.trim_end());
    }
    page.push_str("```\n\n");
}

/// Appends a line of help, wrapped at [`MAX_COLUMNS`]. Wrapped lines keep the indentation, or that
/// of the description of an option or command.
fn append_wrapped(page: &mut String, line: &str) {
    let text = line.trim_start();
    let mut indent = line.len() - text.len();
    let mut current = " ".repeat(indent);
    if let Some((term, description)) = text.split_once("  ") {
        indent += text.len() - description.trim_start().len();
        let _term = write!(current, "{term:width$}", width = indent - current.len());
    }

    let rest = &line[current.len().min(line.len())..];
    let mut is_empty = true;
    for word in rest.split_whitespace() {
        if !is_empty && current.len() + 1 + word.len() > MAX_COLUMNS {
            writeln!(page, "{current}").unwrap();
            current = " ".repeat(indent);
            is_empty = true;
        }

        if !is_empty {
            current.push(' ');
        }

        current.push_str(word);
        is_empty = false;
    }

    writeln!(page, "{}", current.trim_end()).unwrap();
}

/// The subcommands that a help text lists, without `help`.
fn subcommands(help: &str) -> Vec<&str> {
    let Some((_, after_usage)) = help.split_once("\nUsage: ") else {
        return Vec::new();
    };
    let (usage, after_usage) = after_usage.split_once('\n').unwrap();
    if !usage.ends_with("<COMMAND>") && !usage.ends_with("[COMMAND]") {
        return Vec::new();
    }

    let listed = after_usage.split("\nOptions:\n").next().unwrap();
    let names = listed.lines().filter_map(|line| {
        let line = line.strip_prefix("  ").filter(|line| !line.starts_with(' '))?;
        line.split_whitespace().next()
    });
    names.filter(|name| *name != "help").collect()
}
