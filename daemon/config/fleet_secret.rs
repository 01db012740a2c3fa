//! The files with the secrets of a fleet.

use std::{
    fmt,
    fs::File,
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

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

/// A file with a secret, which other programs replace while the daemon runs. It is read at each use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FleetSecretFile {
    path: PathBuf,
    /// The setting that names the file.
    setting: &'static str,
}

impl FleetSecretFile {
    /// Checks that the file can be read now.
    pub(super) fn open(
        path: &Path,
        setting: &'static str,
        problems: &mut Vec<String>,
    ) -> Option<Self> {
        let file = Self { path: path.to_owned(), setting };
        let read = file.read().map_err(|problem| problems.push(problem));
        read.is_ok().then_some(file)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the secret, without the white space around it. An error names the setting and the file,
    /// and says what to do. Blocks.
    pub(crate) fn read(&self) -> Result<FleetSecret, String> {
        let read = open_trusted(&self.path)
            .map_err(|error| error.explain("give the path of the file"))
            .and_then(read_private_file);
        match read {
            Ok(content) => Ok(FleetSecret(content.trim_ascii().to_vec())),
            Err(problem) => Err(self.problem(problem)),
        }
    }

    /// Names the file in a problem with its content.
    pub(crate) fn problem(&self, problem: impl fmt::Display) -> String {
        format!("{} {}: {problem}", self.setting, self.path.display())
    }
}

/// Reads a secret that stays the same while the daemon runs.
pub(super) fn read_secret(
    path: &Path,
    setting: &'static str,
    problems: &mut Vec<String>,
) -> Option<FleetSecret> {
    FleetSecretFile { path: path.to_owned(), setting }
        .read()
        .map_err(|problem| problems.push(problem))
        .ok()
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
