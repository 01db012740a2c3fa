//! `jig cp`: files between this side and the workspace.

use std::{
    fs::{self, File, Permissions},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    os::unix::fs::PermissionsExt as _,
    path::{Component, Path, PathBuf},
    process::{self, ExitCode},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use clap::Args;
use jig::{
    api::v1::{GetUploadRequest, ListFilesRequest, UploadStart, WriteMode},
    client::{Client, sha256_of},
};
use serde_json::{Value, json};

use super::finish;
use crate::{
    connection, escape,
    failure::Failure,
    global::Global,
    local::Local,
    output,
    progress::{Progress, amount},
    style::Style,
};

/// Files up to this size are sent again from the start when the connection is lost.
const SMALL: u64 = 1 << 20;
/// Files on each page of a directory's list.
const PAGE: u32 = 10_000;

/// Copy files into the workspace or out of it, of any size.
///
/// The side that begins with `:` (or `jig:`) is the workspace; exactly one must. A file on this side
/// with such a name is `./:name`. Files appear whole or not at all. A copy whose connection is lost
/// goes on by itself, and one into the workspace that was broken off goes on when it is repeated
/// within a day. Where DST ends with `/`, or is a directory of this side, the copy keeps its name in
/// it. Symbolic links are not followed.
#[derive(Debug, Args)]
pub(crate) struct CpArgs {
    /// What to copy: `file`, or `:file` in the workspace.
    #[arg(value_name = "SRC")]
    source: String,
    /// Where to: `:file` in the workspace, or `file`.
    #[arg(value_name = "DST")]
    destination: String,
    /// Copy a directory with the files in it. Empty directories, `.git` and symbolic links are left
    /// out.
    #[arg(short, long)]
    recursive: bool,
    /// Fail where something is there.
    #[arg(short, long)]
    no_clobber: bool,
    /// Replace the file of the workspace only if this is its SHA-256.
    #[arg(long, value_name = "SHA256", conflicts_with = "recursive")]
    expect: Option<String>,
}

/// One end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Side {
    Here(PathBuf),
    Workspace(String),
}

/// How files are copied.
#[derive(Debug, Clone)]
struct Manner {
    recursive: bool,
    no_clobber: bool,
    expect: Option<String>,
    quiet: bool,
}

/// A file that was copied.
#[derive(Debug)]
struct Copied {
    source: String,
    destination: String,
    size_bytes: u64,
    sha256: String,
    changed: bool,
}

pub(crate) fn cp(global: &Global, args: CpArgs) -> ExitCode {
    let as_json = global.json;
    let manner = Manner {
        recursive: args.recursive,
        no_clobber: args.no_clobber,
        expect: args.expect,
        quiet: as_json,
    };
    let result = match (side(&args.source), side(&args.destination)) {
        (Side::Here(from), Side::Workspace(to)) => {
            connection::call(global, move |client| send(client, from, to, manner))
        }
        (Side::Workspace(from), Side::Here(to)) => {
            connection::call(global, move |client| receive(client, from, to, manner))
        }
        _ => Err(Failure::Usage(
            "exactly one of SRC and DST must begin with `:`, as what is in the workspace does"
                .to_owned(),
        )),
    };
    finish(result.and_then(|copied| print(&copied, as_json)), as_json)
}

fn side(text: &str) -> Side {
    match text.strip_prefix("jig:").or_else(|| text.strip_prefix(':')) {
        Some(path) => Side::Workspace(path.to_owned()),
        None => Side::Here(text.into()),
    }
}

// === Into the workspace ===

async fn send(
    client: Client,
    from: PathBuf,
    mut to: String,
    manner: Manner,
) -> Result<Vec<Copied>, Failure> {
    if to.is_empty() || to.ends_with('/') {
        let name = from.file_name().and_then(|name| name.to_str());
        to.push_str(name.ok_or_else(|| {
            Failure::Usage("SRC has no name to keep: name the file in DST".to_owned())
        })?);
    }
    let mut copied = Vec::new();
    if !from.is_dir() {
        copied.push(send_one(&client, &from, to, &manner).await?);
        return Ok(copied);
    }
    if !manner.recursive {
        return Err(Failure::Usage(format!(
            "{} is a directory: copy it with -r",
            from.display()
        )));
    }
    let mut open = vec![(from, to)];
    while let Some((directory, to)) = open.pop() {
        let fails = |error| local(&directory, &error);
        let mut entries = Vec::new();
        for entry in fs::read_dir(&directory).map_err(fails)? {
            let entry = entry.map_err(fails)?;
            entries.push((entry.file_name(), entry.file_type().map_err(fails)?));
        }
        entries.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        for (name, kind) in entries {
            let path = directory.join(&name);
            let Some(name) = name.to_str() else {
                output::note(&format!(
                    "left out, its name is not UTF-8: {}",
                    path.display()
                ));
                continue;
            };
            let to = format!("{to}/{name}");
            if kind.is_dir() && name != ".git" {
                open.push((path, to));
            } else if kind.is_file() {
                copied.push(send_one(&client, &path, to, &manner).await?);
            }
        }
    }
    Ok(copied)
}

async fn send_one(
    client: &Client,
    from: &Path,
    to: String,
    manner: &Manner,
) -> Result<Copied, Failure> {
    let fails = |error| local(from, &error);
    let data = fs::metadata(from).map_err(fails)?;
    if !data.is_file() {
        return Err(Local::no_file(from).into());
    }
    let file = File::open(from).map_err(fails)?;
    let (size, sha256) = sha256_of(&file).await.map_err(fails)?;
    let mut start = UploadStart {
        path: to.clone(),
        size_bytes: size,
        sha256: sha256.clone(),
        mode: manner.no_clobber.then(|| WriteMode::CreateNew.into()),
        create_directories: None,
        expected_sha256: manner.expect.clone(),
        file_mode: (data.permissions().mode() & 0o100 != 0).then_some(0o755),
        upload_id: None,
    };
    if size > SMALL {
        start.upload_id = Some(upload_id(client, &start).await?);
    }
    let progress = Arc::new(Progress::new(&to, manner.quiet));
    let show = move |bytes| progress.at(bytes, size);
    let sent = client.send_file(&file, start, show).await;
    sent.map_err(|error| Failure::of_transfer(from, error))?;
    Ok(Copied {
        source: from.display().to_string(),
        destination: format!(":{to}"),
        size_bytes: size,
        sha256,
        changed: false,
    })
}

/// The same for the same copy, so that one that was broken off is found again; but not that of one
/// that is complete, which would not be made again.
async fn upload_id(client: &Client, start: &UploadStart) -> Result<String, Failure> {
    let mut path = DefaultHasher::new();
    start.path.hash(&mut path);
    let path = path.finish();
    let sum = start.sha256.get(..32).unwrap_or_default();
    let id = format!("cp-{path:016x}-{sum}");
    let request = GetUploadRequest {
        upload_id: id.clone(),
    };
    match client.get_upload(request).await {
        Ok(known) if known.complete || known.sha256 != start.sha256 => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let now = now.map_or(0, |now| now.as_nanos());
            Ok(format!("cp-{}-{now}", process::id()))
        }
        Ok(_) => Ok(id),
        Err(error) if error.name() == "UPLOAD_NOT_FOUND" => Ok(id),
        Err(error) => Err(error.into()),
    }
}

// === Out of the workspace ===

async fn receive(
    client: Client,
    from: String,
    mut to: PathBuf,
    manner: Manner,
) -> Result<Vec<Copied>, Failure> {
    let into = to.is_dir() || to.as_os_str().as_encoded_bytes().ends_with(b"/");
    if into {
        let name = Path::new(&from).file_name();
        match name {
            Some(name) => to.push(name),
            None if manner.recursive => {}
            None => {
                let text = "SRC has no name to keep: name the file in DST";
                return Err(Failure::Usage(text.to_owned()));
            }
        }
    }
    if !manner.recursive {
        return Ok(vec![receive_one(&client, from, &to, &manner).await?]);
    }
    let mut pages = client.list_files_by_page(ListFilesRequest {
        root: (!from.is_empty()).then(|| from.clone()),
        max_results: Some(PAGE),
        ..ListFilesRequest::default()
    });
    let mut copied = Vec::new();
    while let Some(page) = pages.next().await? {
        for file in page.files {
            let path = Path::new(&file);
            let is_below = path
                .components()
                .all(|part| matches!(part, Component::Normal(_)));
            if !is_below {
                let text = format!("the daemon lists {file:?}, which leads elsewhere");
                return Err(Failure::Daemon(text));
            }
            let source = match from.trim_end_matches('/') {
                "" if !from.starts_with('/') => file.clone(),
                directory => format!("{directory}/{file}"),
            };
            copied.push(receive_one(&client, source, &to.join(path), &manner).await?);
        }
        if page.skipped_names > 0 {
            output::note(&format!(
                "left out, their names are not UTF-8: {}",
                page.skipped_names
            ));
        }
    }
    Ok(copied)
}

async fn receive_one(
    client: &Client,
    from: String,
    to: &Path,
    manner: &Manner,
) -> Result<Copied, Failure> {
    let fails = |error| local(to, &error);
    if manner.no_clobber && to.symlink_metadata().is_ok() {
        return Err(Local::file_exists(to).into());
    }
    let part = Part::create(to, manner.recursive).map_err(fails)?;
    let mut file = part.file.try_clone().map_err(fails)?;
    let progress = Progress::new(&from, manner.quiet);
    let show = |bytes, size| progress.at(bytes, size);
    let received = client.receive_file(&from, &mut file, show).await;
    let whole = received.map_err(|error| Failure::of_transfer(to, error))?;
    if whole.mode & 0o100 != 0 {
        // Executable for whoever may read it: what the umask leaves.
        let mode = file.metadata().map_err(fails)?.permissions().mode();
        let mode = mode | ((mode & 0o444) >> 2);
        file.set_permissions(Permissions::from_mode(mode))
            .map_err(fails)?;
    }
    if manner.no_clobber {
        fs::hard_link(&part.path, to).map_err(fails)?;
    } else {
        fs::rename(&part.path, to).map_err(fails)?;
    }
    Ok(Copied {
        source: format!(":{from}"),
        destination: to.display().to_string(),
        size_bytes: whole.size_bytes,
        sha256: whole.sha256,
        changed: whole.changed,
    })
}

/// A file that is not whole yet, beside its place. Removed when this is dropped, unless it was
/// moved there.
struct Part {
    path: PathBuf,
    file: File,
}

impl Part {
    fn create(to: &Path, with_parents: bool) -> std::io::Result<Self> {
        let name = to.file_name().ok_or(std::io::ErrorKind::IsADirectory)?;
        if let Some(parent) = to.parent().filter(|_| with_parents) {
            fs::create_dir_all(parent)?;
        }
        let mut part = std::ffi::OsString::from(".");
        part.push(name);
        part.push(format!(".jig-{}.part", process::id()));
        let path = to.with_file_name(part);
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        Ok(Self { path, file })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Gone already when it was moved.
        fs::remove_file(&self.path).ok();
    }
}

fn local(path: &Path, error: &std::io::Error) -> Failure {
    Local::file(path, error).into()
}

fn print(copied: &[Copied], as_json: bool) -> Result<(), Failure> {
    if as_json {
        let files: Vec<Value> = copied.iter().map(Copied::json).collect();
        return output::json(&json!({ "files": files }));
    }
    let style = Style::of_stdout();
    let mut text = String::new();
    for file in copied {
        text.push_str(&format!(
            "{} -> {} ({})\n",
            style.name(&file.source),
            style.name(&file.destination),
            amount(file.size_bytes)
        ));
        if file.changed {
            output::note(&format!(
                "{} was written to while it was copied",
                escape::name(&file.source)
            ));
        }
    }
    output::stdout(text.as_bytes())
}

impl Copied {
    fn json(&self) -> Value {
        json!({
            "source": self.source,
            "destination": self.destination,
            "size_bytes": self.size_bytes,
            "sha256": self.sha256,
            "changed": self.changed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides() {
        for (text, expected) in [
            (":a/b", Side::Workspace("a/b".into())),
            ("jig:a", Side::Workspace("a".into())),
            (":", Side::Workspace(String::new())),
            (":/workspace/a", Side::Workspace("/workspace/a".into())),
            ("a:b", Side::Here("a:b".into())),
            ("./:a", Side::Here("./:a".into())),
        ] {
            assert_eq!(side(text), expected, "{text}");
        }
    }
}
