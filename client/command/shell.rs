//! `jig completions` and `jig man`: what shells and man(1) know about `jig`, from its arguments.

use std::{fs, path::PathBuf, process::ExitCode};

use clap::{Args, Command};
use clap_complete::Shell;

use super::finish;
use crate::{failure::Failure, global::Global, local::Local, output};

/// Print the completions of a shell: `jig completions bash > ~/.local/share/bash-completion/completions/jig`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Print the manual page of jig, or write those of all commands to a directory.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Directory for the pages, as `~/.local/share/man/man1`. It is created.
    directory: Option<PathBuf>,
}

pub(crate) fn completions(
    global: &Global,
    args: CompletionsArgs,
    mut command: Command,
) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "jig", &mut script);
    finish(output::stdout(&script), global.json)
}

pub(crate) fn man(global: &Global, args: ManArgs, command: Command) -> ExitCode {
    let result = match args.directory {
        None => page(command),
        Some(directory) => fs::create_dir_all(&directory)
            .and_then(|()| clap_mangen::generate_to(command, &directory))
            .map_err(|error| Local::file(&directory, &error).into()),
    };
    finish(result, global.json)
}

fn page(command: Command) -> Result<(), Failure> {
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(command).render(&mut page);
    rendered.map_err(Failure::system)?;
    output::stdout(&page)
}
