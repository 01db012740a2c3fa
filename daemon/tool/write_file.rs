//! `write_file`: creates, overwrites or appends to a file of the workspace.

use std::borrow::Cow;

use base64::{Engine as _, prelude::BASE64_STANDARD};

use super::{Tool, ToolContext, ToolOutput, WorkspaceContext, file_work::run_on_files};
use crate::{
    api::v1::{self, Encoding, WriteMode},
    daemon::{
        checksum::{sha256, sha256_violation},
        error::{Error, Reason, Violation},
        workspace::{CancelToken, FileSnapshot, NewContent, RelativePath, Workspace},
    },
};

/// Most bytes of content, after decoding.
const MAX_CONTENT_BYTES: usize = 10 << 20;
/// Most bytes of an existing file to append to, or to compare with an expected hash.
const MAX_EXISTING_FILE_BYTES: u64 = 256 << 20;

#[derive(Debug)]
pub(crate) struct WriteFile;

/// The validated request.
#[derive(Debug)]
pub(crate) struct Params {
    path: RelativePath,
    content: Vec<u8>,
    mode: WriteMode,
    create_directories: bool,
    expected_sha256: Option<String>,
    file_mode: Option<u32>,
}

impl Tool for WriteFile {
    const NAME: &'static str = "write_file";
    type Request = v1::WriteFileRequest;
    type Response = v1::WriteFileResponse;
    type Params = Params;

    fn validate(
        request: Self::Request,
        workspace_context: &WorkspaceContext,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Params>, Error> {
        let (encoding, mode) = (request.encoding(), request.mode());
        let content = if encoding == Encoding::Base64 {
            BASE64_STANDARD.decode(request.content).map_err(|error| error.to_string())
        } else {
            Ok(request.content.into_bytes())
        };
        let content = content.and_then(|content| match content.len() {
            0..=MAX_CONTENT_BYTES => Ok(content),
            bytes => Err(format!(
                "holds {bytes} bytes; at most {MAX_CONTENT_BYTES} are allowed: upload it instead"
            )),
        });

        if let Err(problem) = &content {
            violations.push(Violation::new("content", problem.clone()));
        }

        let expected = request.expected_sha256.as_deref();
        violations.extend(expected.and_then(|sum| sha256_violation("expected_sha256", sum)));
        if mode == WriteMode::CreateNew && expected.is_some() {
            let problem = "cannot be given for a file that must not exist (WRITE_MODE_CREATE_NEW)";
            violations.push(Violation::new("expected_sha256", problem));
        }

        let path = workspace_context.workspace.resolve(&request.path);
        match content {
            Ok(content) if violations.is_empty() => Ok(Some(Params {
                path: path?,
                content,
                mode,
                create_directories: request.create_directories.unwrap_or(true),
                expected_sha256: request.expected_sha256,
                file_mode: request.file_mode,
            })),
            _ => Ok(None),
        }
    }

    fn affected_paths(params: &Self::Params, _workspace_context: &WorkspaceContext) -> Vec<String> {
        vec![params.path.as_str().to_owned()]
    }

    async fn execute(
        params: Params,
        context: ToolContext,
    ) -> Result<ToolOutput<Self::Response>, Error> {
        run_on_files(context, move |workspace, cancel| write_file(workspace, &params, cancel)).await
    }
}

fn write_file(
    workspace: &Workspace,
    params: &Params,
    cancel: &CancelToken,
) -> Result<v1::WriteFileResponse, Error> {
    let Params { path, content, .. } = params;
    let mut transaction = workspace.begin_transaction(std::slice::from_ref(path), cancel)?;
    if !params.create_directories {
        transaction.require_parent_directories();
    }

    let needs_content = params.mode == WriteMode::Append || params.expected_sha256.is_some();
    let old = if needs_content {
        transaction.read(path, MAX_EXISTING_FILE_BYTES)?
    } else {
        transaction.stat(path)?
    };
    check_old_file(params, old.as_ref())?;

    let bytes_written = content.len() as u64;
    let new = match &old {
        Some(FileSnapshot { content: before, .. }) if params.mode == WriteMode::Append => {
            Cow::Owned([before.as_slice(), content].concat())
        }
        _ => Cow::Borrowed(content),
    };
    let content = NewContent { mode: params.file_mode, ..NewContent::new(&new) };
    transaction.write(path, old.as_ref(), content)?;
    transaction.commit()?.sync_result()?;
    Ok(v1::WriteFileResponse { bytes_written, created: old.is_none(), sha256: sha256(&new) })
}

/// Checks the existing file against the write mode and the expected hash.
fn check_old_file(params: &Params, old: Option<&FileSnapshot>) -> Result<(), Error> {
    let path = &params.path;
    match old {
        Some(_) if params.mode == WriteMode::CreateNew => {
            let text = format!(
                "{:?} already exists: choose another path, or use WRITE_MODE_OVERWRITE",
                path.as_str()
            );
            Err(Error::new(Reason::FileExists, text).with_metadata("path", path.as_str()))
        }
        Some(old) => old.check_sha256(path, params.expected_sha256.as_deref()),
        None if params.expected_sha256.is_some() => {
            let text = format!("there is no file at {:?} to match expected_sha256", path.as_str());
            Err(Error::new(Reason::FileNotFound, text).with_metadata("path", path.as_str()))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    };

    use super::*;

    fn params(workspace: &Workspace, path: &str, content: &str) -> Params {
        Params {
            path: workspace.resolve(path).unwrap(),
            content: content.into(),
            mode: WriteMode::Overwrite,
            create_directories: true,
            expected_sha256: None,
            file_mode: None,
        }
    }

    #[test]
    fn modes_and_expected_hashes_decide_the_result() {
        use Reason as R;
        let (a, b) = (sha256(b"a"), sha256(b"b"));
        for (before, mode, expected, after) in [
            (None, WriteMode::Overwrite, None, Ok("n")),
            (Some("a"), WriteMode::Overwrite, None, Ok("n")),
            (None, WriteMode::CreateNew, None, Ok("n")),
            (Some("a"), WriteMode::CreateNew, None, Err(R::FileExists)),
            (None, WriteMode::Append, None, Ok("n")),
            (Some("a"), WriteMode::Append, None, Ok("an")),
            (Some("a"), WriteMode::Overwrite, Some(&a), Ok("n")),
            (Some("a"), WriteMode::Overwrite, Some(&b), Err(R::StaleFile)),
            (Some("a"), WriteMode::Append, Some(&a), Ok("an")),
            (None, WriteMode::Overwrite, Some(&a), Err(R::FileNotFound)),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("d/f");
            if let Some(before) = before {
                fs::create_dir(directory.path().join("d")).unwrap();
                fs::write(&file, before).unwrap();
            }

            let workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();
            let params = Params {
                mode,
                expected_sha256: expected.map(|hash| hash.to_uppercase()),
                ..params(&workspace, "d/f", "n")
            };
            let result = write_file(&workspace, &params, &CancelToken::new());
            let found = result.as_ref().map(|_| fs::read_to_string(&file).unwrap());

            assert_eq!(
                found.as_deref().map_err(|error| error.reason),
                after,
                "{before:?} {mode:?}"
            );
            match result {
                Ok(response) => {
                    assert_eq!(response.bytes_written, 1);
                    assert_eq!(response.created, before.is_none());
                    assert_eq!(response.sha256, sha256(&fs::read(&file).unwrap()));
                }
                Err(_) => assert_eq!(fs::read_to_string(&file).ok().as_deref(), before),
            }
        }
    }

    #[test]
    fn metadata_is_preserved_and_hard_links_keep_the_old_content() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("f"), "old").unwrap();
        fs::hard_link(at("f"), at("other")).unwrap();
        fs::set_permissions(at("f"), fs::Permissions::from_mode(0o4750)).unwrap();
        std::os::unix::fs::chown(at("f"), Some(1234), Some(4321)).unwrap();
        let set = |name: &str, value: &[u8]| {
            rustix::fs::setxattr(at("f"), name, value, rustix::fs::XattrFlags::empty())
        };
        set("user.jig", b"kept").unwrap();

        let workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();
        write_file(&workspace, &params(&workspace, "f", "new"), &CancelToken::new()).unwrap();

        let metadata = fs::metadata(at("f")).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (1234, 4321));
        assert_eq!(metadata.mode() & 0o7777, 0o750, "no set-user-id bit");

        let mut value = [0; 8];
        let length = rustix::fs::getxattr(at("f"), "user.jig", &mut value[..]).unwrap();
        assert_eq!(&value[..length], b"kept");

        assert_eq!(fs::read_to_string(at("other")).unwrap(), "old");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn links_and_special_files_are_not_written() {
        use Reason as R;
        let outside = tempfile::tempdir().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        symlink(outside.path(), at("out")).unwrap();
        symlink(outside.path().join("f"), at("dangling")).unwrap();
        fs::create_dir(at("d")).unwrap();
        fs::write(at("f"), "").unwrap();
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), fifo, 0o600.into(), 0).unwrap();

        let mut workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();
        workspace.protect(&["safe/in".to_owned()]).unwrap();

        for (path, create_directories, reason) in [
            ("out/f", true, R::SymlinkBlocked),
            ("dangling", true, R::SymlinkBlocked),
            ("d", true, R::NotAFile),
            (".", true, R::NotAFile),
            ("fifo", true, R::NotAFile),
            ("f/x", true, R::NotADirectory),
            ("none/x", false, R::DirectoryNotFound),
            ("safe", true, R::PolicyDenied),
            ("safe/in", true, R::PolicyDenied),
            ("safe/in/x", true, R::PolicyDenied),
        ] {
            let params = Params { create_directories, ..params(&workspace, path, "x") };
            let error = write_file(&workspace, &params, &CancelToken::new()).unwrap_err();
            assert_eq!(error.reason, reason, "{path}: {error}");
        }

        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 5);
    }
}
