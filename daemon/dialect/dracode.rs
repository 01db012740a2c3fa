//! DraCode (its "Tool Specifications"): five tools, each answered by a text, also where it failed.

use std::ops::ControlFlow;

use serde_json::json;

use super::{
    answer::{Answer, Data, MOST_SHOWN, code_of, next_part, on_lines},
    pages,
    parameter::{Default, Kind, Parameter, Params, Unknown},
    place::{below, inside, is_missing, is_outside},
    said::Said,
    told::Names,
    vocabulary::{Answering, Call, Dialect, DialectTool, PLAIN, Tools},
};
use crate::daemon::error::{Error, Reason};

/// Most bytes of a text: a bit more than is read of a file, where some bytes are no text.
const MOST_TEXT: usize = MOST_SHOWN / 8 * 9;
/// Files of one page of a listing, and most pages: a model can read no more.
const PAGE: u32 = 10_000;
const MOST_PAGES: usize = 10;
/// Matches of one search: as many as the contract has.
const MOST_MATCHES: u32 = 10_000;
/// Files of these kinds are not searched.
const BINARY: [&str; 7] = [
    "*.[pP][nN][gG]",
    "*.[jJ][pP][gG]",
    "*.[jJ][pP][eE][gG]",
    "*.[gG][iI][fF]",
    "*.[bB][mM][pP]",
    "*.[pP][dD][fF]",
    "*.[zZ][iI][pP]",
];

/// The vocabulary.
pub(super) const DIALECT: Dialect = Dialect {
    name: "dracode",
    tools: &[
        DialectTool {
            name: "list_files",
            description: "List files in a directory with optional recursive search.",
            parameters: &[
                Parameter::new(
                    "directory",
                    Kind::Text,
                    "Optional path relative to workspace root to list files from",
                ),
                Parameter::new("recursive", Kind::Flag, "List files recursively")
                    .or(Default::Flag(false)),
            ],
            uses: &["list_files"],
            call: list_files,
        },
        DialectTool {
            name: "read_file",
            description: "Read the contents of a file in the workspace.",
            parameters: &[FILE.required()],
            uses: &["read_file"],
            call: read_file,
        },
        DialectTool {
            name: "write_file",
            description: "Create or overwrite a file with text content.",
            parameters: &[
                FILE.required(),
                Parameter::new("content", Kind::Text, "Text content to write to the file")
                    .required()
                    .hidden(),
                Parameter::new(
                    "create_directories",
                    Kind::Flag,
                    "Create directories if they do not exist",
                )
                .or(Default::Flag(true)),
            ],
            uses: &["write_file"],
            call: write_file,
        },
        DialectTool {
            name: "search_code",
            description: "Search for text or regex patterns in files with line numbers.",
            parameters: &[
                Parameter::new("query", Kind::Text, "Text or regex to search for").required(),
                Parameter::new(
                    "directory",
                    Kind::Text,
                    "Optional subdirectory relative to workspace root to search in",
                ),
                Parameter::new("pattern", Kind::Text, "Optional file glob pattern (e.g., *.cs)")
                    .or(Default::Text("*")),
                Parameter::new("recursive", Kind::Flag, "Search recursively")
                    .or(Default::Flag(true)),
                Parameter::new("regex", Kind::Flag, "Treat query as regular expression")
                    .or(Default::Flag(false)),
                Parameter::new("case_sensitive", Kind::Flag, "Case sensitive search")
                    .or(Default::Flag(false)),
            ],
            uses: &["search"],
            call: search_code,
        },
        DialectTool {
            name: "run_command",
            description: "Execute a command, without a shell, with timeout and output capture.",
            parameters: &[
                Parameter::new("command", Kind::Text, "Executable or shell command to run")
                    .required(),
                Parameter::new("arguments", Kind::Text, "Optional arguments string"),
                Parameter::new(
                    "timeout_seconds",
                    Kind::Number(0.001, 86_400.0),
                    "Optional timeout in seconds",
                )
                .or(Default::Number(120)),
            ],
            uses: &["run"],
            call: run_command,
        },
    ],
    unknown: Unknown::Ignored,
    is_closed: false,
    refuse,
    marks_errors: false,
    custom: Some(written),
    ..PLAIN
};

const FILE: Parameter =
    Parameter::new("file_path", Kind::Text, "Path to the file relative to workspace root");
/// What the contract calls it.
const OF_FILE: Names = &[("path", "file_path")];

fn list_files(params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let directory = params.text("directory").unwrap_or(".");
        inside(directory)?;
        let depth = (!params.flag("recursive")).then_some(1);
        let mut lines = Vec::new();
        let call = Call::new(
            "list_files",
            json!({ "root": directory, "max_depth": depth, "max_results": PAGE }),
        )
        .naming(&[("root", "directory")]);
        let is_all = pages::each(tools, call, MOST_PAGES, |listed| {
            lines.extend(listed.texts("files").map(|file| below(directory, file)));
            ControlFlow::Continue(())
        });
        let is_all = is_all.await?;
        let answer = Answer::text(lines.join("\n"));
        Ok(match is_all {
            true => answer,
            false => answer.cut(format!("these are the first {} files", lines.len())),
        })
    })
}

fn read_file(params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let path = params.str("file_path");
        inside(path)?;
        // Whatever it holds is read as text.
        let call = Call::new(
            "read_file",
            json!({
                "path": path,
                "encoding": "ENCODING_BASE64",
                // From the first line on: a long file is read whole, too.
                "start_line": 1,
                "max_bytes": MOST_SHOWN,
            }),
        )
        .naming(OF_FILE);
        let read = tools.call(call).await?;
        let bytes = read.bytes("content")?;
        let (mut content, mut shown) = (decoded(&bytes), bytes.len());
        if content.len() > MOST_TEXT {
            // For each byte that is no text three may stand.
            shown = MOST_SHOWN / 3;
            content = decoded(bytes.get(..shown).unwrap_or(&bytes));
        }
        match read.text("next_path") {
            "" => {}
            next => content = on_lines(&content, &next_part(next)),
        }
        let all = read.count("size_bytes");
        let is_cut = read.flag("truncated") && read.text("next_path").is_empty();
        let answer = Answer::text(content);
        Ok(match is_cut || shown < bytes.len() {
            true => answer.cut(format!("these are the first {shown} of {all} bytes")),
            false => answer,
        })
    })
}

/// What a file holds, as text: without the mark with which it may begin.
fn decoded(bytes: &[u8]) -> String {
    let content = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    String::from_utf8_lossy(content).into_owned()
}

fn write_file(mut params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let content = params.take("content");
        let path = params.str("file_path");
        inside(path)?;
        let call = Call::new(
            "write_file",
            json!({
                "path": path,
                "content": content,
                "create_directories": params.flag("create_directories"),
            }),
        )
        .naming(OF_FILE);
        tools.call(call).await?;
        Ok(Answer::text("OK"))
    })
}

fn search_code(params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let directory = params.text("directory").unwrap_or(".");
        inside(directory)?;
        let pattern = params.text("pattern").filter(|pattern| *pattern != "*");
        let call = Call::new(
            "search",
            json!({
                "query": params.str("query"),
                "path": directory,
                "globs": pattern.into_iter().collect::<Vec<_>>(),
                "exclude_globs": BINARY,
                "max_depth": (!params.flag("recursive")).then_some(1),
                "is_regex": params.flag("regex"),
                "case_sensitive": params.flag("case_sensitive"),
                "context_lines": 0,
                "max_results": MOST_MATCHES,
                "hidden": true,
                "no_ignore": true,
            }),
        )
        .naming(&[("path", "directory"), ("globs[0]", "pattern")]);
        let found = tools.call(call).await?;
        let lines: Vec<String> = found.objects("matches").map(|found| line(&found)).collect();
        let (shown, total) = (lines.len() as u64, found.count("total_matches"));
        let answer = Answer::text(lines.join("\n"));
        Ok(if found.flag("timed_out") {
            answer.cut("the search timed out: these were found until then".to_owned())
        } else if total > shown {
            answer.cut(format!("these are the first {shown} of {total} matches"))
        } else {
            answer
        })
    })
}

fn line(found: &Data) -> String {
    let (file, line) = (found.text("file"), found.count("line"));
    format!("{file}:{line}: {}", found.text("content"))
}

fn run_command(params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let mut argv = vec![params.str("command").to_owned()];
        argv.extend(split(params.str("arguments")));
        let limit = params.seconds("timeout_seconds");
        let call = Call::new("run", json!({ "argv": argv }))
            .naming(&[("argv[0]", "command"), ("argv", "arguments")]);
        let ran = tools.call(call.within(limit)).await?;
        Ok(written(&ran))
    })
}

/// What a command has written. It is the result, whatever its exit code.
fn written(ran: &Data) -> Answer {
    if ran.text("outcome") == "OUTCOME_TIMED_OUT" {
        return told("timeout", "Error: Process timed out");
    }
    Answer::text(on_lines(ran.text("stdout"), ran.text("stderr")))
}

/// The arguments in a text, as .NET starts processes with them (`ProcessStartInfo.Arguments`): blanks end one
/// unless they are within double quotes; of backslashes before a double quote two stand for one, and one that
/// is left makes the quote one of the text, as two of them within quotes do.
fn split(arguments: &str) -> Vec<String> {
    let mut split = Vec::new();
    let mut argument: Option<String> = None;
    let mut is_quoted = false;
    let mut rest = arguments.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            ' ' | '\t' if !is_quoted => split.extend(argument.take()),
            '\\' => {
                let mut number = 1;
                while rest.next_if_eq(&'\\').is_some() {
                    number += 1;
                }
                let argument = argument.get_or_insert_default();
                if rest.peek() == Some(&'"') {
                    argument.extend(std::iter::repeat_n('\\', number / 2));
                    if number % 2 == 1 {
                        argument.extend(rest.next());
                    }
                } else {
                    argument.extend(std::iter::repeat_n('\\', number));
                }
            }
            '"' if is_quoted && rest.next_if_eq(&'"').is_some() => {
                argument.get_or_insert_default().push('"');
            }
            '"' => {
                is_quoted = !is_quoted;
                argument.get_or_insert_default();
            }
            character => argument.get_or_insert_default().push(character),
        }
    }
    split.extend(argument);
    split
}

fn refuse(said: &Said, error: &Error) -> Answer {
    let code = code_of(error);
    let workspace = &said.mount_path;
    let is_of_directory = matches!(said.tool.as_str(), "list_files" | "search_code");
    if is_outside(error) {
        let what = if is_of_directory { "Directory" } else { "File" };
        let text = format!("Error: Access denied. {what} must be in {workspace}");
        return told(&code, text);
    }
    let directory = match said.text("directory") {
        "" => ".",
        directory => directory,
    };
    let file = said.text("file_path");
    let is_directory = error.reason == Reason::NotAFile;
    let text = match said.tool.as_str() {
        "list_files" | "search_code"
            if is_missing(error) || error.reason == Reason::NotADirectory =>
        {
            format!("Error: Directory not found: {directory}")
        }
        "search_code" => format!("Error searching code: {error}"),
        "read_file" if is_missing(error) => {
            format!("Error reading file: Could not find file '{file}'")
        }
        "read_file" if is_directory => {
            format!("Error reading file: Access to the path '{file}' is denied.")
        }
        "read_file" => format!("Error reading file: {error}"),
        "write_file" if is_missing(error) => {
            let parent = file.rsplit_once('/').map_or(".", |(parent, _)| parent);
            format!("Error: Directory does not exist: {parent}")
        }
        "write_file" if is_directory => {
            format!("Error writing file: Access to the path '{file}' is denied.")
        }
        "write_file" => format!("Error writing file: {error}"),
        "run_command" if is_not_started(error) => "Error: Failed to start process".to_owned(),
        "run_command" => format!("Error running command: {error}"),
        _ => format!("Error: {error}"),
    };
    told(&code, text)
}

fn is_not_started(error: &Error) -> bool {
    matches!(error.reason, Reason::SandboxError | Reason::SandboxUnavailable)
}

/// A failure whose text goes to the model as it is.
fn told(code: &str, text: impl Into<String>) -> Answer {
    let text = text.into();
    Answer::text(text.clone()).because(code, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_split_as_dotnet_does() {
        for (text, arguments) in [
            ("", vec![]),
            ("build --no-restore", vec!["build", "--no-restore"]),
            ("  a \t b  ", vec!["a", "b"]),
            (r#""a b" c"#, vec!["a b", "c"]),
            (r#"a"b c"d"#, vec!["ab cd"]),
            (r#""" x"#, vec!["", "x"]),
            (r#""a ""b"" c""#, vec![r#"a "b" c"#]),
            (r#"\"a\" b"#, vec![r#""a""#, "b"]),
            (r#""a\\" b"#, vec![r"a\", "b"]),
            (r#"\\\"a"#, vec![r#"\"a"#]),
            (r"C:\dir\ x", vec![r"C:\dir\", "x"]),
            ("'a b'", vec!["'a", "b'"]),
            (r#""open to the end"#, vec!["open to the end"]),
            ("$(touch x); `y`", vec!["$(touch", "x);", "`y`"]),
        ] {
            assert_eq!(split(text), arguments, "{text}");
        }
    }
}
