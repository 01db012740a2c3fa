//! `jig edit`: replaces strings in a file of the workspace.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use jig::{
    api::v1::{Edit, EditFileRequest, EditFileResponse, Occurrence},
    client::Client,
};
use serde_json::Value;

use super::report_and_exit;
use crate::{
    cli_error::CliError,
    connection, file_json,
    global::GlobalArgs,
    input::{read_file, utf8_string},
    output,
    style::Style,
};

/// Replace strings in a file of the workspace, and print the diff.
///
/// Example: `jig edit src/main.rs --old 'port = 80' --new 'port = 8080'`.
///
/// Atomic: makes all replacements or none.
#[derive(Debug, Args)]
pub(crate) struct EditArgs {
    /// File to edit, relative to the workspace.
    path: String,
    /// String to replace. It must occur exactly once, except with --all or --first.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, requires = "new")]
    #[arg(required_unless_present = "edits")]
    old: Option<String>,
    /// Replacement. May be empty.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, requires = "old")]
    new: Option<String>,
    /// Replace all occurrences.
    #[arg(long, requires = "old", conflicts_with = "first")]
    all: bool,
    /// Replace the first occurrence.
    #[arg(long, requires = "old")]
    first: bool,
    /// File with a list of edits, made in this order; `-` is standard input. Example:
    /// `[{"old_string": "a", "new_string": "b", "occurrence": "UNIQUE"}]`. The occurrence is UNIQUE
    /// (default), FIRST or ALL.
    #[arg(long, value_name = "FILE", conflicts_with = "old")]
    edits: Option<PathBuf>,
    /// Print the diff without changing the file.
    #[arg(long)]
    dry_run: bool,
    /// Change the file only if it has this SHA-256.
    #[arg(long, value_name = "SHA256")]
    expect: Option<String>,
}

pub(crate) fn edit(global: &GlobalArgs, args: EditArgs) -> ExitCode {
    let result = request(args).and_then(|request| {
        let response = connection::call(global, async move |client: Client| {
            Ok(client.edit_file(request).await?)
        })?;
        print(&response, global.json)
    });
    report_and_exit(result, global.json)
}

fn request(args: EditArgs) -> Result<EditFileRequest, CliError> {
    let edits = match (args.edits, args.old) {
        (Some(file), _) => parse_edits(&utf8_string(read_file(file)?)?).map_err(CliError::Usage)?,
        (None, old) => {
            let occurrence = match (args.all, args.first) {
                (true, _) => Some(Occurrence::All),
                (_, true) => Some(Occurrence::First),
                _ => None,
            };
            vec![Edit {
                old_string: old.unwrap_or_default(),
                new_string: args.new.unwrap_or_default(),
                occurrence: occurrence.map(Into::into),
            }]
        }
    };
    Ok(EditFileRequest {
        path: args.path,
        edits,
        expected_sha256: args.expect,
        dry_run: args.dry_run.then_some(true),
    })
}

/// Parses a list of edits.
fn parse_edits(json: &str) -> Result<Vec<Edit>, String> {
    let list: Value = serde_json::from_str(json).map_err(|error| format!("--edits: {error}"))?;
    let Some(list) = list.as_array() else {
        return Err("--edits: must be a list of objects".to_owned());
    };

    list.iter()
        .enumerate()
        .map(|(index, edit)| {
            parse_edit(edit).map_err(|problem| format!("--edits: [{index}]: {problem}"))
        })
        .collect()
}

fn parse_edit(edit: &Value) -> Result<Edit, String> {
    const NAMES: [&str; 3] = ["old_string", "new_string", "occurrence"];
    let fields = edit.as_object().ok_or("must be an object")?;
    if let Some(name) = fields.keys().find(|name| !NAMES.contains(&name.as_str())) {
        return Err(format!("unknown field {name:?}; use {}", NAMES.join(", ")));
    }

    let text = |name: &str| match fields.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("{name} must be a string")),
    };
    let occurrence = text("occurrence")?
        .map(|text| {
            let name = text.trim_start_matches("OCCURRENCE_").to_ascii_uppercase();
            Occurrence::from_str_name(&format!("OCCURRENCE_{name}"))
                .ok_or_else(|| format!("occurrence {text:?} is not UNIQUE, FIRST or ALL"))
        })
        .transpose()?;

    Ok(Edit {
        old_string: text("old_string")?.ok_or("old_string is missing")?,
        new_string: text("new_string")?.ok_or("new_string is missing")?,
        occurrence: occurrence.map(Into::into),
    })
}

fn print(response: &EditFileResponse, as_json: bool) -> Result<(), CliError> {
    if as_json {
        return output::write_json(&file_json::edit_file(response));
    }
    output::write_stdout(Style::of_stdout().paint_diff(&response.diff).as_bytes())?;
    if response.diff.is_empty() {
        output::note("nothing changed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli::{Cli, CliCommand};

    fn parse(line: &[&str]) -> Option<EditFileRequest> {
        let words: Vec<OsString> = line.iter().map(OsString::from).collect();
        let CliCommand::Edit(args) = Cli::parse_from(&words).ok()?.command else {
            return None;
        };
        request(args).ok()
    }

    #[test]
    fn flags_reach_the_request() {
        let line = ["jig", "edit", "f", "--old", "-a", "--new", "", "--all", "--dry-run"];
        assert_eq!(
            parse(&line).unwrap(),
            EditFileRequest {
                path: "f".into(),
                edits: vec![Edit {
                    old_string: "-a".into(),
                    new_string: String::new(),
                    occurrence: Some(Occurrence::All.into()),
                }],
                expected_sha256: None,
                dry_run: Some(true),
            }
        );
        for line in [
            &["jig", "edit", "f"][..],
            &["jig", "edit", "f", "--old", "a"],
            &["jig", "edit", "f", "--old", "a", "--new", "b", "--edits", "x"],
            &["jig", "edit", "f", "--old", "a", "--new", "b", "--all", "--first"],
        ] {
            assert_eq!(parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn lists_of_edits_are_parsed() {
        let list = parse_edits(
            r#"[{"old_string": "a", "new_string": "b"},
                {"old_string": "c", "new_string": "", "occurrence": "first"}]"#,
        )
        .unwrap();
        assert_eq!(list[0].occurrence, None);
        assert_eq!(list[1].occurrence, Some(Occurrence::First.into()));
        for (json, expected) in [
            ("{", "--edits"),
            ("{}", "list"),
            ("[1]", "[0]: must be an object"),
            (r#"[{"old_string": "a"}]"#, "new_string is missing"),
            (r#"[{"old_string": 1, "new_string": ""}]"#, "must be a string"),
            (r#"[{"old": "a"}]"#, "unknown field \"old\""),
            (
                r#"[{"old_string": "", "new_string": "", "occurrence": "x"}]"#,
                "not UNIQUE, FIRST or ALL",
            ),
        ] {
            let error = parse_edits(json).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }
}
