//! The tools that Anthropic's models are trained on: `bash` (`bash_20250124`) and the text editor
//! (`text_editor_20250728`), each answered by a text.

use serde_json::json;

use super::{
    answer::{Answer, Data, MOST_SHOWN, code_of, on_lines},
    parameter::{Default, Kind, Parameter, Params},
    place::is_missing,
    said::Said,
    vocabulary::{Answering, Call, Dialect, DialectTool, PLAIN, Tools},
};
use crate::daemon::error::{Error, Reason};

/// Largest file that is shown or changed.
const MOST_BYTES: usize = 10 << 20;
/// How deep a directory is shown, and how many of its files.
const DEPTH: u32 = 2;
const MOST_FILES: u32 = 1000;
/// Lines around a change that are shown with it.
const AROUND: i64 = 4;
/// Lines that can be asked for.
const LAST_LINE: i64 = u32::MAX as i64;
/// Characters of a text that an error repeats.
const LONGEST: usize = 500;

/// The vocabulary.
pub(super) const DIALECT: Dialect = Dialect {
    name: "anthropic",
    tools: &[
        DialectTool {
            name: "bash",
            description: "Run a shell command in the workspace, in a shell of its own: variables and the current directory are not kept for the next one.",
            parameters: &[
                Parameter::new(
                    "command",
                    Kind::Text,
                    "The command to run. Required unless restart is true",
                ),
                Parameter::new(
                    "restart",
                    Kind::Flag,
                    "True to begin anew: there is nothing to be restarted",
                )
                .or(Default::Flag(false)),
            ],
            uses: &["run"],
            call: bash,
        },
        DialectTool {
            name: "str_replace_based_edit_tool",
            description: "View, create and edit files. view shows a file with its line numbers, or a directory; create makes or replaces a file; str_replace replaces a text that is in the file once; insert puts a text behind a line.",
            parameters: &[
                Parameter::new(
                    "command",
                    Kind::OneOf(&["view", "create", "str_replace", "insert"]),
                    "What to do",
                )
                .required(),
                Parameter::new("path", Kind::Text, "Path of the file or directory").required(),
                Parameter::new(
                    "view_range",
                    Kind::Integers,
                    "First and last line to view, counted from 1; -1 for the end",
                ),
                Parameter::new("file_text", Kind::Text, "What the file is to hold, for create")
                    .hidden(),
                Parameter::new("old_str", Kind::Text, "Text to replace, for str_replace").hidden(),
                Parameter::new("new_str", Kind::Text, "Text to replace it with, for str_replace")
                    .hidden(),
                Parameter::new(
                    "insert_line",
                    Kind::Integer(0, LAST_LINE),
                    "Line behind which to insert, 0 for the beginning",
                ),
                Parameter::new("insert_text", Kind::Text, "Text to insert").hidden(),
            ],
            uses: &["read_file", "list_files", "write_file", "edit_file"],
            call: edit,
        },
    ],
    refuse,
    reader: "str_replace_based_edit_tool",
    borrowed: &["wait_job"],
    ..PLAIN
};

fn bash(params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let Some(command) = params.text("command") else {
            return match params.flag("restart") {
                true => Ok(Answer::text("tool has been restarted.")),
                false => Err(Error::invalid_field("command", "must be given")),
            };
        };
        let ran = tools.call(Call::new("run", json!({ "command": command }))).await?;
        let text = on_lines(ran.text("stdout"), ran.text("stderr"));
        let outcome = ran.word("outcome", "OUTCOME_");
        Ok(match (outcome.as_str(), ran.number("exit_code")) {
            ("timed_out", _) => {
                let told = "timed out: the command was ended after 120 seconds";
                Answer::text(on_lines(&text, told)).because("timeout", told)
            }
            ("daemon_lost", _) => {
                let told = "the daemon died while the command ran: look how far it came";
                Answer::text(told).because("daemon_lost", told)
            }
            // How a command ended is worth knowing, and no failure of the call.
            ("exited", Some(0)) => Answer::text(text),
            ("exited", Some(code)) if text.is_empty() => {
                Answer::text(format!("the command exited with {code}"))
            }
            ("exited", _) => Answer::text(text),
            (outcome, _) => {
                let by = match ran.text("signal") {
                    "" => String::new(),
                    signal => format!(" by {signal}"),
                };
                let told = format!("the command was ended{by} ({outcome})");
                Answer::text(on_lines(&text, &told))
            }
        })
    })
}

fn edit(mut params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let path = params.str("path").to_owned();
        match params.str("command") {
            "view" => view(&path, params.integers("view_range"), tools).await,
            "create" => {
                let content = required(&mut params, "file_text")?;
                let call = Call::new("write_file", json!({ "path": path, "content": content }))
                    .naming(&[("content", "file_text")]);
                tools.call(call).await?;
                Ok(Answer::text(format!("File created successfully at: {path}")))
            }
            "str_replace" => {
                let old = required(&mut params, "old_str")?;
                if old.is_empty() {
                    return Err(Error::invalid_field("old_str", "must not be empty"));
                }
                let new = params.take("new_str");
                let edits = json!([{ "old_string": old, "new_string": new }]);
                let call =
                    Call::new("edit_file", json!({ "path": path, "edits": edits })).naming(&[
                        ("edits[0].old_string", "old_str"),
                        ("edits[0].new_string", "new_str"),
                    ]);
                let edited = tools.call(call).await?;
                let line = edited.objects("edits").next().unwrap_or_default();
                let line = line.list("lines_changed").first().and_then(|line| line.as_i64());
                changed(&path, line.unwrap_or(1), tools).await
            }
            _ => {
                let text = required(&mut params, "insert_text")?;
                let Some(line) = params.integer("insert_line") else {
                    return Err(Error::invalid_field("insert_line", "must be given"));
                };
                insert(&path, line, &text, tools).await
            }
        }
    })
}

fn required(params: &mut Params, name: &str) -> Result<String, Error> {
    let text = params.text(name).map(str::to_owned);
    text.ok_or_else(|| Error::invalid_field(name, "must be given for this command"))
}

async fn view(path: &str, range: Vec<i64>, tools: &mut dyn Tools) -> Result<Answer, Error> {
    let (first, last) = match *range.as_slice() {
        [] => (1, None),
        [first @ 1..=LAST_LINE, -1] => (first, None),
        [first @ 1..=LAST_LINE, last] if first <= last => (first, Some(last.min(LAST_LINE))),
        _ => {
            let text =
                "must be the first line, counted from 1, and the last one, or -1 for the end";
            return Err(Error::invalid_field("view_range", text));
        }
    };
    match read(path, first, last, tools).await {
        Err(error) if error.reason == Reason::NotAFile && range.is_empty() => {
            directory(path, tools).await
        }
        read => Ok(Answer::text(shown(&read?))),
    }
}

/// As many whole lines as a result shows, and what to do for the others.
fn shown(read: &Data) -> String {
    let mut text = numbered(read);
    let is_part = !read.text("next_path").is_empty();
    if text.len() <= MOST_SHOWN && (is_part || !read.flag("truncated")) {
        return text;
    }
    let most = text.floor_char_boundary(MOST_SHOWN);
    // The last one may not be whole.
    match text.get(..most).and_then(|text| text.rfind('\n')) {
        Some(end) => {
            text.truncate(end);
            let lines = text.lines().count() as u64;
            let (first, total) = (read.count("start_line"), read.count("total_lines"));
            let last = (first + lines).saturating_sub(1);
            text.push_str(&format!(
                "\n[only lines {first} to {last} of {total}: give a view_range for others]"
            ));
        }
        None => {
            text.truncate(most);
            text.push_str("\n[the line is longer: look at it with a command]");
        }
    }
    text
}

async fn read(
    path: &str,
    first: i64,
    last: Option<i64>,
    tools: &mut dyn Tools,
) -> Result<Data, Error> {
    let call = Call::new(
        "read_file",
        json!({
            "path": path,
            "start_line": first,
            "end_line": last,
            "max_bytes": MOST_BYTES,
        }),
    )
    .naming(&[("start_line", "view_range"), ("end_line", "view_range")]);
    tools.call(call).await
}

/// As `cat -n` has it.
fn numbered(read: &Data) -> String {
    let first = usize::try_from(read.count("start_line")).unwrap_or(usize::MAX);
    let content = read.content();
    let lines = content.lines().enumerate();
    let lines = lines.map(|(number, line)| format!("{:>6}\t{line}", first + number));
    lines.collect::<Vec<_>>().join("\n")
}

async fn directory(path: &str, tools: &mut dyn Tools) -> Result<Answer, Error> {
    let call = Call::new(
        "list_files",
        json!({
            "root": path,
            "max_depth": DEPTH,
            "hidden": false,
            "max_results": MOST_FILES,
        }),
    )
    .naming(&[("root", "path")]);
    let listed = tools.call(call).await?;
    let mut text = format!(
        "Here're the files and directories up to {DEPTH} levels deep in {path}, excluding hidden items:"
    );
    for file in listed.texts("files") {
        text.push('\n');
        text.push_str(file);
    }
    if listed.flag("truncated") {
        text.push_str("\n[there are more: view a directory in it]");
    }
    Ok(Answer::text(text))
}

async fn insert(path: &str, line: i64, text: &str, tools: &mut dyn Tools) -> Result<Answer, Error> {
    let mut old = read(path, 1, None, tools).await?;
    if old.flag("truncated") {
        let told = format!("{path:?} is too large to be edited: change it by a command");
        return Err(Error::new(Reason::FileTooLarge, told).with("path", path));
    }
    let sha256 = old.take("sha256");
    let content = old.text("content");
    let lines: Vec<_> = content.split_inclusive('\n').collect();
    let at = usize::try_from(line).unwrap_or(usize::MAX);
    let Some((before, after)) = lines.split_at_checked(at) else {
        let told = format!(
            "Invalid `insert_line` parameter: {line}. It should be within the range of lines of the file: [0, {}]",
            lines.len()
        );
        return Err(Error::new(Reason::LineRangeInvalid, told).with("path", path));
    };
    let mut new = before.concat();
    if !new.is_empty() && !new.ends_with('\n') {
        new.push('\n');
    }
    new.push_str(text);
    if !after.is_empty() && !new.ends_with('\n') {
        new.push('\n');
    }
    new.push_str(&after.concat());
    let call =
        Call::new("write_file", json!({ "path": path, "content": new, "expected_sha256": sha256 }))
            .naming(&[("content", "insert_text")]);
    tools.call(call).await?;
    changed(path, line + 1, tools).await
}

/// What is around a change.
async fn changed(path: &str, line: i64, tools: &mut dyn Tools) -> Result<Answer, Error> {
    let first = (line - AROUND).max(1);
    let around = match read(path, first, Some(line + AROUND), tools).await {
        Ok(around) => numbered(&around),
        // It was changed all the same.
        Err(_) => String::new(),
    };
    Ok(Answer::text(format!(
        "The file {path} has been edited. Here's the result around line {line}:\n{around}"
    )))
}

fn refuse(said: &Said, error: &Error) -> Answer {
    let path = said.text("path");
    let old: String = said.text("old_str").chars().take(LONGEST).collect();
    let text = if error.reason == Reason::StringNotFound {
        format!("No replacement was performed, old_str `{old}` did not appear verbatim in {path}.")
    } else if error.reason == Reason::StringNotUnique {
        format!(
            "No replacement was performed. Multiple occurrences of old_str `{old}` in {path}. Please ensure it is unique"
        )
    } else if is_missing(error) && !path.is_empty() {
        format!("The path {path} does not exist. Please provide a valid path.")
    } else {
        error.to_string()
    };
    Answer::text(text.clone()).because(&code_of(error), text)
}
