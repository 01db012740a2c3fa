//! What a command takes from its arguments, a file or standard input.

use std::{
    fs::File,
    io::{self, Read},
    path::PathBuf,
};

use clap::Args;

use crate::{failure::Failure, local::Local};

/// Most bytes that one call takes: the daemon's own limit.
const MOST_BYTES: u64 = 10 << 20;

/// Where text comes from: standard input, unless something else is given.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct Source {
    /// The text itself. Without this and --from, standard input is read.
    #[arg(long, allow_hyphen_values = true)]
    text: Option<String>,
    /// File on this side to read it from; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

impl Source {
    /// All of it.
    pub(crate) fn bytes(self) -> Result<Vec<u8>, Failure> {
        match (self.text, self.from) {
            (Some(text), _) => Ok(text.into_bytes()),
            (None, Some(path)) => of_file(path),
            (None, None) => of_file("-".into()),
        }
    }

    /// All of it, which must be text.
    pub(crate) fn string(self) -> Result<String, Failure> {
        string(self.bytes()?)
    }
}

/// Content of a file on this side; `-` is standard input.
pub(crate) fn of_file(path: PathBuf) -> Result<Vec<u8>, Failure> {
    if path.as_os_str() == "-" {
        let fails = |error| Local::new("standard input cannot be read", &error);
        return read("standard input", io::stdin().lock(), fails);
    }
    let fails = |error| Local::file(&path, &error);
    let file = File::open(&path).map_err(fails)?;
    read(&format!("the local file {path:?}"), file, fails)
}

/// Bytes that must be text.
pub(crate) fn string(bytes: Vec<u8>) -> Result<String, Failure> {
    String::from_utf8(bytes)
        .map_err(|_| Failure::Usage("the input must be text in UTF-8".to_owned()))
}

fn read(
    name: &str,
    source: impl Read,
    fails: impl FnOnce(io::Error) -> Local,
) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    source.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(fails)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(Failure::Usage(format!(
            "{name} is over 10 MiB: copy whole files with `jig cp`"
        )));
    }
    Ok(bytes)
}
