//! The files with the secrets of a fleet.

use std::{fmt, fs::File, io::Read as _, os::unix::fs::MetadataExt as _, path::Path};

use super::trusted_path::{GROUP_OTHER_WRITE, open_trusted};

/// Size of a credentials file, or of a key. NATS credentials have about 1 KiB.
const MAX_SECRET_FILE_BYTES: u64 = 64 << 10;
/// Permissions of others, none of which a file with a secret may give.
const OTHER_PERMISSIONS: u32 = 0o007;

/// A secret that was read from a file. Debug output does not contain it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct FleetSecret(Vec<u8>);

impl FleetSecret {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the secret as text. Credentials of NATS are ASCII.
    pub(crate) fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl fmt::Debug for FleetSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("FleetSecret")
    }
}

/// Reads a secret, without the white space around it.
pub(super) fn read_secret(
    path: &Path,
    key: &str,
    problems: &mut Vec<String>,
) -> Option<FleetSecret> {
    let read = open_trusted(path)
        .map_err(|error| error.explain("give the path of the file"))
        .and_then(read_private_file);
    match read {
        Ok(content) => Some(FleetSecret(content.trim_ascii().to_vec())),
        Err(problem) => {
            problems.push(format!("{key} {}: {problem}", path.display()));
            None
        }
    }
}

fn read_private_file(file: File) -> Result<Vec<u8>, String> {
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if metadata.mode() & (GROUP_OTHER_WRITE | OTHER_PERMISSIONS) != 0 {
        return Err(format!(
            "other users can read or change it (mode {:04o}): chmod o-rwx,g-w it",
            metadata.mode() & 0o7777
        ));
    }
    let mut content = Vec::new();
    let mut limited = file.take(MAX_SECRET_FILE_BYTES + 1);
    limited.read_to_end(&mut content).map_err(|error| error.to_string())?;
    match content.len() as u64 {
        0 => Err("is empty".to_owned()),
        1..=MAX_SECRET_FILE_BYTES => Ok(content),
        _ => Err(format!("is larger than {MAX_SECRET_FILE_BYTES} bytes")),
    }
}
