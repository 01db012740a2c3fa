//! `jig search`: searches files of the workspace and prints matches like grep.

use std::process::ExitCode;

use clap::Args;
use jig::{
    api::v1::{SearchMatch, SearchRequest, SearchResponse},
    client::Client,
};

use super::report_failure;
use crate::{
    cli_error::CliError,
    connection, exit, file_json,
    global::GlobalArgs,
    output,
    style::{AnsiColor, Style},
};

/// Search the text files below a directory, or one file, line by line.
///
/// Example: `jig search -g '*.rs' -C 2 -E 'fn \w+_test' src`.
///
/// Prints `file:line:column:text` for each match and `file-line-text` for context lines. One-letter
/// options are those of ripgrep.
///
/// Exit codes: 0 if something matched, 1 if nothing did, 2 if the arguments are invalid, the search
/// failed, or nothing matched and some files could not be searched.
#[derive(Debug, Args)]
pub(crate) struct SearchArgs {
    /// Text to search for, in upper or lower case. After `--` it may start with `-`.
    #[arg(required_unless_present = "patterns")]
    query: Option<String>,
    /// Directory or file to search, relative to the workspace. Default: the workspace.
    path: Option<String>,
    /// Interpret the query as a regular expression, in the syntax of ripgrep.
    #[arg(short = 'E', long)]
    regex: bool,
    /// Regular expression to search for, instead of the query. Repeatable: any of them matches.
    #[arg(short = 'e', long = "regexp", value_name = "PATTERN", allow_hyphen_values = true)]
    patterns: Vec<String>,
    /// Match upper and lower case exactly.
    #[arg(short = 's', long, overrides_with = "ignore_case")]
    case_sensitive: bool,
    /// Ignore upper and lower case (default).
    #[arg(short = 'i', long, overrides_with = "case_sensitive")]
    ignore_case: bool,
    /// Print line numbers (default).
    #[arg(short = 'n', long = "line-number")]
    _line_number: bool,
    /// Print only the names of files with matches. The default of --max is then 10,000.
    #[arg(short = 'l', long, conflicts_with = "count")]
    files_with_matches: bool,
    /// Print `file:count`, the number of matching lines per file. The default of --max is then
    /// 10,000.
    #[arg(short, long)]
    count: bool,
    /// Search only files that match this glob: `*.rs`, `src/**/*.rs`. Repeatable.
    #[arg(short = 'g', long = "glob", value_name = "G")]
    globs: Vec<String>,
    /// Skip files that match this glob. Repeatable.
    #[arg(long = "exclude", value_name = "G")]
    exclude_globs: Vec<String>,
    /// Number of context lines before and after each match, 0 to 10.
    #[arg(short = 'C', long, value_name = "N", default_value_t = 0)]
    context: u32,
    /// Number of context lines before each match. Overrides -C.
    #[arg(short = 'B', long, value_name = "N")]
    before_context: Option<u32>,
    /// Number of context lines after each match. Overrides -C.
    #[arg(short = 'A', long, value_name = "N")]
    after_context: Option<u32>,
    /// Maximum number of matches to print, 1 to 10,000. Default: 50.
    #[arg(long, value_name = "N")]
    max: Option<u32>,
    /// Also search hidden files and the files in hidden directories.
    #[arg(long)]
    hidden: bool,
    /// Also search files that `.gitignore` and `.ignore` files exclude.
    #[arg(long)]
    no_ignore: bool,
    /// Allow a match to span several lines.
    #[arg(short = 'U', long)]
    multiline: bool,
    /// Maximum depth of directories. Default: unlimited.
    #[arg(long, value_name = "N")]
    depth: Option<u32>,
}

/// Maximum number of matches in a response.
const MAX_MATCHES: u32 = 10_000;

/// Form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct View {
    /// Context lines before each match.
    before: u32,
    /// Context lines after each match.
    after: u32,
    /// Summary per file, printed instead of matches.
    summary: Option<Summary>,
}

/// Line that is printed per file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Summary {
    /// The name of the file.
    Name,
    /// The name of the file and the number of matching lines.
    Count,
}

impl View {
    fn of(args: &SearchArgs) -> Self {
        let summary = if args.files_with_matches {
            Some(Summary::Name)
        } else if args.count {
            Some(Summary::Count)
        } else {
            None
        };
        let context_lines = |option: Option<u32>| match summary {
            Some(_) => 0,
            None => option.unwrap_or(args.context),
        };
        Self {
            before: context_lines(args.before_context),
            after: context_lines(args.after_context),
            summary,
        }
    }

    /// Removes surplus context. The daemon returns as many lines before a match as after it.
    fn trim_context(self, response: &mut SearchResponse) {
        let (before, after) = (self.before as usize, self.after as usize);
        for found in &mut response.matches {
            let surplus = found.context_before.len().saturating_sub(before);
            found.context_before.drain(..surplus);
            found.context_after.truncate(after);
        }
    }
}

pub(crate) fn search(global: &GlobalArgs, args: SearchArgs) -> ExitCode {
    let view = View::of(&args);
    let result = request(args, view).and_then(|request| search_and_print(global, request, view));
    ExitCode::from(result.unwrap_or_else(|failure| match report_failure(&failure, global.json) {
        exit::FAILURE | exit::USAGE => exit::SEARCH_FAILED,
        code => code,
    }))
}

/// Searches and prints the matches. Returns the exit code.
fn search_and_print(
    global: &GlobalArgs,
    request: SearchRequest,
    view: View,
) -> Result<u8, CliError> {
    connection::call(global, async move |client: Client| Ok(client.search(request).await?))
        .and_then(|mut response| {
            view.trim_context(&mut response);
            print(&response, view, global.json)?;
            Ok(exit_code(&response))
        })
}

fn exit_code(response: &SearchResponse) -> u8 {
    if !response.matches.is_empty() {
        exit::SUCCESS
    } else if response.timed_out || response.files_incomplete > 0 {
        // Matches may be in files that were not searched.
        exit::SEARCH_FAILED
    } else {
        exit::NO_MATCH
    }
}

fn request(args: SearchArgs, view: View) -> Result<SearchRequest, CliError> {
    let (query, path) = match (args.patterns.as_slice(), args.query, args.path) {
        ([], query, path) => (query.unwrap_or_default(), path),
        // With -e, the first argument is the path.
        ([pattern], path, None) => (pattern.clone(), path),
        (patterns, path, None) => {
            let alternatives = patterns.iter().map(|pattern| format!("(?:{pattern})"));
            (alternatives.collect::<Vec<_>>().join("|"), path)
        }
        (_, _, Some(path)) => {
            let text = format!("-e allows only one path; the second is {path:?}");
            return Err(CliError::Usage(text));
        }
    };

    let is_regex = args.regex || !args.patterns.is_empty();
    Ok(SearchRequest {
        query,
        is_regex: is_regex.then_some(true),
        case_sensitive: (args.case_sensitive && !args.ignore_case).then_some(true),
        path,
        globs: args.globs,
        exclude_globs: args.exclude_globs,
        context_lines: Some(view.before.max(view.after)),
        max_results: args.max.or(view.summary.map(|_| MAX_MATCHES)),
        hidden: args.hidden.then_some(true),
        no_ignore: args.no_ignore.then_some(true),
        multiline: args.multiline.then_some(true),
        max_depth: args.depth,
    })
}

fn print(response: &SearchResponse, view: View, as_json: bool) -> Result<(), CliError> {
    if as_json {
        return output::write_json(&file_json::search(response));
    }

    let style = Style::of_stdout();
    let text = match view.summary {
        Some(summary) => summarize(response, summary, style),
        None => matches_text(response, style),
    };
    output::write_stdout(text.as_bytes())?;

    if response.timed_out {
        output::note(
            "timed out: these are the matches so far; narrow the search, or raise --deadline",
        );
    } else if response.truncated {
        output::note(&format!(
            "showing {} of {} matches; raise --max, or narrow the search",
            response.matches.len(),
            response.total_matches
        ));
    }

    if response.files_incomplete > 0 {
        output::note(&incomplete_files_note(response.files_incomplete));
    }
    output::note_truncated_ignore_files(response.truncated_ignore_files);
    Ok(())
}

/// Formats a line per file, in the order of the matches.
fn summarize(response: &SearchResponse, summary: Summary, style: Style) -> String {
    let mut text = String::new();
    for matches in response.matches.chunk_by(|first, second| first.file == second.file) {
        let Some(first) = matches.first() else {
            continue;
        };
        text.push_str(&style.paint(AnsiColor::Magenta, &style.escape_name(&first.file)));
        if summary == Summary::Count {
            text.push_str(&format!(":{}", matches.len()));
        }
        text.push('\n');
    }
    text
}

fn incomplete_files_note(files: u32) -> String {
    format!(
        "files that were not searched completely (unreadable for the daemon, or too long a line): {files}"
    )
}

/// Formats the matches, with `--` between groups that are not adjacent. Prints shared context lines
/// once.
fn matches_text(response: &SearchResponse, style: Style) -> String {
    let has_context = response
        .matches
        .iter()
        .any(|found| !found.context_before.is_empty() || !found.context_after.is_empty());

    let mut text = String::new();
    // File and number of the last printed line.
    let mut last: Option<(&str, u32)> = None;
    let mut matches = response.matches.iter().peekable();
    while let Some(found) = matches.next() {
        let before = u32::try_from(found.context_before.len()).unwrap_or(u32::MAX);
        let first = found.line.saturating_sub(before);
        let last_line = last.filter(|(file, _)| *file == found.file).map(|(_, line)| line);
        let is_adjacent = last_line.is_some_and(|line| first <= line.saturating_add(1));
        if has_context && last.is_some() && !is_adjacent {
            text.push_str(&style.paint(AnsiColor::Cyan, "--"));
            text.push('\n');
        }
        let mut at = first;
        for line in &found.context_before {
            if last_line.is_none_or(|printed| at > printed) {
                push_match(&mut text, style, found, at, None, line);
            }
            at = at.saturating_add(1);
        }

        let mut at = found.line;
        for (index, line) in found.content.split('\n').enumerate() {
            let column = (index == 0).then_some(found.column);
            push_match(&mut text, style, found, at, column.or(Some(1)), line);
            at = at.saturating_add(1);
        }

        // Stops before the next match, which prints its own line.
        let until = matches
            .peek()
            .filter(|next| next.file == found.file)
            .map_or(u32::MAX, |next| next.line);
        for line in &found.context_after {
            if at >= until {
                break;
            }
            push_match(&mut text, style, found, at, None, line);
            at = at.saturating_add(1);
        }

        last = Some((&found.file, at.saturating_sub(1)));
    }
    text
}

fn push_match(
    text: &mut String,
    style: Style,
    found: &SearchMatch,
    line: u32,
    column: Option<u32>,
    content: &str,
) {
    let file = style.paint(AnsiColor::Magenta, &style.escape_name(&found.file));
    let number = style.paint(AnsiColor::Green, &line.to_string());
    let start = match column {
        Some(column) => format!("{file}:{number}:{column}:"),
        None => format!("{file}-{number}-"),
    };
    text.push_str(&start);
    text.push_str(&style.escape_text(content.trim_end_matches('\r')));
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, line: u32, content: &str, around: (&[&str], &[&str])) -> SearchMatch {
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
        SearchMatch {
            file: file.into(),
            line,
            column: 2,
            content: content.into(),
            context_before: lines(around.0),
            context_after: lines(around.1),
        }
    }

    fn render(matches: Vec<SearchMatch>) -> String {
        let response = SearchResponse { matches, ..SearchResponse::default() };
        matches_text(&response, Style::plain())
    }

    #[test]
    fn matches_are_printed_like_grep() {
        let none: (&[&str], &[&str]) = (&[], &[]);
        assert_eq!(
            render(vec![found("a", 1, "x", none), found("b", 9, "y\nz", none)]),
            "a:1:2:x\nb:9:2:y\nb:10:1:z\n"
        );
    }

    #[test]
    fn options_follow_ripgrep() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: SearchArgs,
        }
        let parse = |words: &str| {
            let words = ["jig"].into_iter().chain(words.split(' '));
            let args = <Line as clap::Parser>::try_parse_from(words).map(|line| line.args);
            args.map(|args| {
                let view = View::of(&args);
                (view, request(args, view).unwrap())
            })
        };
        let lines = [found("a", 3, "m", (&["l1", "l2"], &["l4", "l5"]))];
        for (words, before, after) in [
            ("-n -i x", 0, 0),
            ("-C 2 x", 2, 2),
            ("-A 1 x", 0, 1),
            ("-B 1 x", 1, 0),
            ("-C 2 -A 1 x", 2, 1),
            ("-l -C 2 x", 0, 0),
        ] {
            let (view, request) = parse(words).unwrap();
            assert_eq!((view.before, view.after), (before, after), "{words}");
            let requested = request.context_lines.unwrap();
            assert_eq!(requested, before.max(after), "{words}");
            let mut response =
                SearchResponse { matches: lines.to_vec(), ..SearchResponse::default() };
            view.trim_context(&mut response);
            let first_match = response.matches.first().unwrap();
            let end: Vec<_> = first_match.context_before.iter().collect();
            assert_eq!(first_match.context_before.len(), before as usize, "{words}");
            assert_eq!(first_match.context_after.len(), after as usize, "{words}");
            assert!(end.last().is_none_or(|line| *line == "l2"), "{words}");
        }
        for (words, case_sensitive, max_results) in [
            ("-s x", Some(true), None),
            ("-s -i x", None, None),
            ("-i -s x", Some(true), None),
            ("-c x", None, Some(10_000)),
            ("-l --max 3 x", None, Some(3)),
        ] {
            let (_, request) = parse(words).unwrap();
            assert_eq!(request.case_sensitive, case_sensitive, "{words}");
            assert_eq!(request.max_results, max_results, "{words}");
        }
        assert!(parse("-l -c x").is_err());
    }

    #[test]
    fn summaries_list_files_and_counts() {
        let none: (&[&str], &[&str]) = (&[], &[]);
        let response = SearchResponse {
            matches: vec![
                found("a", 1, "x", none),
                found("a", 2, "x", none),
                found("b", 9, "x", none),
            ],
            ..SearchResponse::default()
        };
        let style = Style::plain();
        assert_eq!(summarize(&response, Summary::Name, style), "a\nb\n");
        assert_eq!(summarize(&response, Summary::Count, style), "a:2\nb:1\n");
    }

    #[test]
    fn exit_codes_follow_grep() {
        for (count, timed_out, files_incomplete, code) in [
            (1, false, 0, 0),
            (1, true, 0, 0),
            (1, false, 3, 0),
            (0, false, 0, 1),
            (0, true, 0, 2),
            (0, false, 3, 2),
        ] {
            let response = SearchResponse {
                matches: vec![found("a", 1, "x", (&[], &[])); count],
                timed_out,
                files_incomplete,
                ..SearchResponse::default()
            };
            assert_eq!(exit_code(&response), code, "{response:?}");
        }
    }

    #[test]
    fn context_is_printed_once() {
        let matches = vec![
            found("a", 3, "m3", (&["l1", "l2"], &["l4", "m5"])),
            found("a", 5, "m5", (&["m3", "l4"], &["l6", "l7"])),
            found("a", 8, "m8", (&["l6", "l7"], &[])),
            found("a", 20, "m20", (&["l19"], &[])),
            found("b", 1, "m1", (&[], &["l2"])),
        ];
        assert_eq!(
            render(matches),
            "a-1-l1\na-2-l2\na:3:2:m3\na-4-l4\na:5:2:m5\na-6-l6\na-7-l7\na:8:2:m8\n--\n\
             a-19-l19\na:20:2:m20\n--\nb:1:2:m1\nb-2-l2\n"
        );
    }
}
