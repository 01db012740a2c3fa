//! `jig completions` and `jig man`: generate shell completions and manual pages.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, Command};
use clap_complete::Shell;

use super::report_and_exit;
use crate::{cli_error::CliError, global::GlobalArgs, local_error::LocalError, output};

/// Print completions for a shell: `jig completions bash >
/// ~/.local/share/bash-completion/completions/jig`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Shell to complete for.
    shell: Shell,
}

/// Print the manual page of jig, or write the pages of all commands and of jigd to a directory.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Directory for the pages, for example `~/.local/share/man/man1`. Created if it is missing.
    directory: Option<PathBuf>,
}

pub(crate) fn completions(
    global: &GlobalArgs,
    args: CompletionsArgs,
    mut command: Command,
) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "jig", &mut script);
    report_and_exit(output::write_stdout(&script), global.json)
}

pub(crate) fn man(global: &GlobalArgs, args: ManArgs, command: Command) -> ExitCode {
    let result = match args.directory {
        None => page(command),
        Some(directory) => write_pages(command, &directory)
            .map_err(|error| LocalError::file(&directory, &error).into()),
    };
    report_and_exit(result, global.json)
}

fn write_pages(command: Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(command, directory)?;
    #[cfg(feature = "daemon")]
    clap_mangen::generate_to(jig::daemon::command("jigd"), directory)?;
    Ok(())
}

fn page(command: Command) -> Result<(), CliError> {
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(command).render(&mut page);
    rendered.map_err(CliError::system)?;
    output::write_stdout(&page)
}
