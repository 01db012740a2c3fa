//! Input of a subcommand: an argument, a local file or standard input.

use std::{
    fs::File,
    io::{self, Read},
    path::PathBuf,
};

use clap::Args;

use crate::{cli_error::CliError, local_error::LocalError};

/// Maximum size of the input. The daemon has the same limit.
const MAX_INPUT_BYTES: u64 = 10 << 20;

/// Source of the text: --text, --from, or standard input by default.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct InputSource {
    /// The text itself. Default: read it from --from or standard input.
    #[arg(long, allow_hyphen_values = true)]
    text: Option<String>,
    /// Local file to read the text from; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

impl InputSource {
    /// Reads the whole input.
    pub(crate) fn read_bytes(self) -> Result<Vec<u8>, CliError> {
        match (self.text, self.from) {
            (Some(text), _) => Ok(text.into_bytes()),
            (None, Some(path)) => read_file(path),
            (None, None) => read_file("-".into()),
        }
    }

    /// Reads the whole input, which must be UTF-8 text.
    pub(crate) fn read_string(self) -> Result<String, CliError> {
        utf8_string(self.read_bytes()?)
    }
}

/// Reads a local file; `-` is standard input.
pub(crate) fn read_file(path: PathBuf) -> Result<Vec<u8>, CliError> {
    if path.as_os_str() == "-" {
        let to_error = |error| LocalError::new("cannot read standard input", &error);
        return read_limited("standard input", io::stdin().lock(), to_error);
    }

    let to_error = |error| LocalError::file(&path, &error);
    let file = File::open(&path).map_err(to_error)?;
    read_limited(&format!("the local file {path:?}"), file, to_error)
}

/// Converts the input to text.
pub(crate) fn utf8_string(bytes: Vec<u8>) -> Result<String, CliError> {
    String::from_utf8(bytes).map_err(|_| CliError::Usage("the input must be UTF-8 text".to_owned()))
}

fn read_limited(
    name: &str,
    source: impl Read,
    to_error: impl FnOnce(io::Error) -> LocalError,
) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    source.take(MAX_INPUT_BYTES + 1).read_to_end(&mut bytes).map_err(to_error)?;
    if bytes.len() as u64 > MAX_INPUT_BYTES {
        return Err(CliError::Usage(format!(
            "{name} is larger than 10 MiB: copy whole files with `jig cp`"
        )));
    }
    Ok(bytes)
}
