//! `jig notebook`: reads and edits the cells of a Jupyter notebook.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use jig::{
    api::v1::{
        CellEdit, CellType, EditNotebookRequest, EditNotebookResponse, NotebookCell,
        ReadNotebookRequest, ReadNotebookResponse,
    },
    client::Client,
};

use super::report_and_exit;
use crate::{
    cli_error::CliError,
    connection, file_json,
    global::GlobalArgs,
    input::InputSource,
    output,
    style::{AnsiColor, Style},
};

/// Read or edit the cells of a Jupyter notebook of the workspace.
#[derive(Debug, Args)]
pub(crate) struct NotebookArgs {
    #[command(subcommand)]
    command: NotebookCommand,
}

#[derive(Debug, Subcommand)]
enum NotebookCommand {
    /// Print all cells, or one of them.
    Read {
        /// Notebook to read, relative to the workspace.
        path: String,
        #[command(flatten)]
        cell: CellArgs,
    },
    Edit(NotebookEditArgs),
}

/// Replace, insert or delete one cell. Reads its text from standard input, --text or --from.
#[derive(Debug, Args)]
struct NotebookEditArgs {
    /// Notebook to edit, relative to the workspace.
    path: String,
    #[command(flatten)]
    cell: CellArgs,
    /// Insert a new cell: after --cell, at --index, or at the end.
    #[arg(long, requires = "kind")]
    insert: bool,
    /// Delete the cell instead of replacing it.
    #[arg(long, conflicts_with_all = ["insert", "kind", "text", "from"])]
    delete: bool,
    /// Type of the cell. Default: unchanged.
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<CellTypeArg>,
    #[command(flatten)]
    source: InputSource,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct CellArgs {
    /// Id of the cell, as `jig notebook read` prints it.
    #[arg(long, value_name = "ID")]
    cell: Option<String>,
    /// Index of the cell, counted from 0.
    #[arg(long, value_name = "N")]
    index: Option<u32>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum CellTypeArg {
    Code,
    Markdown,
    Raw,
}

pub(crate) fn notebook(global: &GlobalArgs, args: NotebookArgs) -> ExitCode {
    let result = match args.command {
        NotebookCommand::Read { path, cell } => {
            let request = ReadNotebookRequest { path, cell_id: cell.cell, cell_index: cell.index };
            connection::call(global, async move |client: Client| {
                Ok(client.read_notebook(request).await?)
            })
            .and_then(|response| print(&response, global.json))
        }
        NotebookCommand::Edit(args) => request(args).and_then(|request| {
            let mode = request.mode();
            let response = connection::call(global, async move |client: Client| {
                Ok(client.edit_notebook(request).await?)
            })?;
            print_edit(mode, &response, global.json)
        }),
    };
    report_and_exit(result, global.json)
}

fn request(args: NotebookEditArgs) -> Result<EditNotebookRequest, CliError> {
    let mode = match (args.insert, args.delete) {
        (true, _) => CellEdit::Insert,
        (_, true) => CellEdit::Delete,
        _ => CellEdit::Replace,
    };

    if mode != CellEdit::Insert && args.cell.cell.is_none() && args.cell.index.is_none() {
        return Err(CliError::Usage("no cell given: use --cell or --index".to_owned()));
    }

    let source = match mode {
        CellEdit::Delete => None,
        CellEdit::Insert | CellEdit::Replace | CellEdit::Unspecified => {
            Some(args.source.read_string()?)
        }
    };

    let kind = args.kind.map(|kind| match kind {
        CellTypeArg::Code => CellType::Code,
        CellTypeArg::Markdown => CellType::Markdown,
        CellTypeArg::Raw => CellType::Raw,
    });

    Ok(EditNotebookRequest {
        path: args.path,
        cell_id: args.cell.cell,
        cell_index: args.cell.index,
        mode: Some(mode.into()),
        cell_type: kind.map(Into::into),
        source,
    })
}

fn print(response: &ReadNotebookResponse, as_json: bool) -> Result<(), CliError> {
    if as_json {
        return output::write_json(&file_json::read_notebook(response));
    }
    let style = Style::of_stdout();
    let text: String =
        response.cells.iter().map(|cell| cell_text(cell, &response.language, style)).collect();
    output::write_stdout(text.as_bytes())
}

/// Formats a cell: a header line, its source and its outputs.
fn cell_text(cell: &NotebookCell, language: &str, style: Style) -> String {
    let kind = match cell.r#type() {
        CellType::Code if language.is_empty() => "code",
        CellType::Code => &style.escape_name(language),
        CellType::Markdown => "markdown",
        CellType::Raw | CellType::Unspecified => "raw",
    };

    let mut head = format!("--- [{}] {kind}", cell.index);
    if !cell.id.is_empty() {
        head.push_str(&format!(" {}", style.escape_name(&cell.id)));
    }
    if let Some(count) = cell.execution_count {
        head.push_str(&format!(" (run {count})"));
    }

    let mut text = style.paint(AnsiColor::Cyan, &head);
    text.push('\n');
    push_lines(&mut text, &style.escape_text(&cell.source));

    for output in &cell.outputs {
        let truncated = if output.truncated { ", truncated" } else { "" };
        let head = format!("--- output: {}{truncated}", style.escape_name(&output.r#type));
        text.push_str(&style.paint(AnsiColor::Magenta, &head));
        text.push('\n');
        push_lines(&mut text, &style.escape_text(&output.text));
    }
    text
}

fn push_lines(text: &mut String, lines: &str) {
    text.push_str(lines);
    if !lines.is_empty() && !lines.ends_with('\n') {
        text.push('\n');
    }
}

fn print_edit(
    mode: CellEdit,
    response: &EditNotebookResponse,
    as_json: bool,
) -> Result<(), CliError> {
    if as_json {
        return output::write_json(&file_json::edit_notebook(response));
    }
    let verb = match mode {
        CellEdit::Insert => "inserted",
        CellEdit::Delete => "deleted",
        CellEdit::Replace | CellEdit::Unspecified => "replaced",
    };
    let name = if response.cell_id.is_empty() {
        "the cell"
    } else {
        &Style::of_stdout().escape_name(&response.cell_id)
    };
    output::write_stdout(
        format!("{verb} {name}; the notebook has {} cells\n", response.cell_count).as_bytes(),
    )
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use jig::api::v1::CellOutput;

    use super::*;
    use crate::cli::{Cli, CliCommand};

    fn parse(line: &str) -> Option<EditNotebookRequest> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let CliCommand::Notebook(NotebookArgs { command: NotebookCommand::Edit(args) }) =
            Cli::parse_from(&words).ok()?.command
        else {
            return None;
        };
        request(args).ok()
    }

    #[test]
    fn flags_reach_the_request() {
        let request = parse("jig notebook edit n --insert --type code --text x").unwrap();
        assert_eq!(request.mode(), CellEdit::Insert);
        assert_eq!(request.cell_type(), CellType::Code);
        assert_eq!(request.source.as_deref(), Some("x"));
        let request = parse("jig notebook edit n --delete --index 3").unwrap();
        assert_eq!((request.mode(), request.cell_index), (CellEdit::Delete, Some(3)));
        assert_eq!(request.source, None);
        for line in [
            "jig notebook edit n --text x",
            "jig notebook edit n --insert --text x",
            "jig notebook edit n --delete --index 1 --text x",
            "jig notebook edit n --cell a --index 1 --text x",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn cells_have_headers() {
        let cell = NotebookCell {
            id: "abc".into(),
            index: 2,
            r#type: CellType::Code.into(),
            source: "1 + 1".into(),
            execution_count: Some(7),
            outputs: vec![CellOutput {
                r#type: "stream".into(),
                text: "2\n".into(),
                truncated: true,
            }],
        };
        assert_eq!(
            cell_text(&cell, "python", Style::plain()),
            "--- [2] python abc (run 7)\n1 + 1\n--- output: stream, truncated\n2\n"
        );
    }
}
