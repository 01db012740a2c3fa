//! What a command takes from its arguments, a file or standard input.

use std::{
    fs::File,
    io::{self, Read},
    path::PathBuf,
};

use clap::Args;

use crate::{cli_error::CliError, local_error::LocalError};

/// Most bytes that one call takes: the daemon's own limit.
const MAX_INPUT_BYTES: u64 = 10 << 20;

/// Where text comes from: standard input, unless something else is given.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct InputSource {
    /// The text itself. Without this and --from, standard input is read.
    #[arg(long, allow_hyphen_values = true)]
    text: Option<String>,
    /// File on this side to read it from; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

impl InputSource {
    /// All of it.
    pub(crate) fn read_bytes(self) -> Result<Vec<u8>, CliError> {
        match (self.text, self.from) {
            (Some(text), _) => Ok(text.into_bytes()),
            (None, Some(path)) => read_file(path),
            (None, None) => read_file("-".into()),
        }
    }

    /// All of it, which must be text.
    pub(crate) fn read_string(self) -> Result<String, CliError> {
        utf8_string(self.read_bytes()?)
    }
}

/// Content of a file on this side; `-` is standard input.
pub(crate) fn read_file(path: PathBuf) -> Result<Vec<u8>, CliError> {
    if path.as_os_str() == "-" {
        let fails = |error| LocalError::new("standard input cannot be read", &error);
        return read_limited("standard input", io::stdin().lock(), fails);
    }
    let fails = |error| LocalError::file(&path, &error);
    let file = File::open(&path).map_err(fails)?;
    read_limited(&format!("the local file {path:?}"), file, fails)
}

/// Bytes that must be text.
pub(crate) fn utf8_string(bytes: Vec<u8>) -> Result<String, CliError> {
    String::from_utf8(bytes)
        .map_err(|_| CliError::Usage("the input must be text in UTF-8".to_owned()))
}

fn read_limited(
    name: &str,
    source: impl Read,
    fails: impl FnOnce(io::Error) -> LocalError,
) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    source.take(MAX_INPUT_BYTES + 1).read_to_end(&mut bytes).map_err(fails)?;
    if bytes.len() as u64 > MAX_INPUT_BYTES {
        return Err(CliError::Usage(format!(
            "{name} is over 10 MiB: copy whole files with `jig cp`"
        )));
    }
    Ok(bytes)
}
