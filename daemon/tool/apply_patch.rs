//! `apply_patch`: applies a unified diff to the files of the workspace, atomically.
//!
//! [`patch`] computes the new contents; this file reads the old ones and commits the new ones.

mod ordered_changes;

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use serde_json::{Map, Value};

use self::ordered_changes::{OrderedChanges, WrittenFile};
use super::{Tool, ToolContext, ToolOutput, WorkspaceContext, file_work::run_on_files};
use crate::{
    api::v1,
    daemon::{
        catalog::CanonicalText,
        error::{Error, Reason, Violation},
        fd_exhaustion,
        store::{
            failure::state_failure,
            session::{Session, StepId},
        },
        text::patch::{self, FilePatch, PatchedFile, PathOutcome, SourceFile},
        workspace::{
            CancelToken, FileSnapshot, MemoryReservation, NewContent, RelativePath, Workspace,
            parallel_map, transaction::FileTransaction,
        },
    },
};

/// Components to strip from the paths of a patch, by default.
const DEFAULT_STRIP: u32 = 1;
/// Context lines that may differ, by default.
const DEFAULT_FUZZ: u32 = 2;
/// Largest file that a patch may change.
const MAX_PATCHED_FILE_BYTES: u64 = 256 << 20;
/// Most bytes of all old contents of a patch, and of all new ones: they are in memory at once.
const MAX_TOTAL_FILE_BYTES: u64 = 512 << 20;
/// Most bytes of paths in the record of a call. Records are small; the artifact has all paths.
const MAX_RECORDED_PATH_BYTES: usize = 16 << 10;

#[derive(Debug)]
pub(crate) struct ApplyPatch;

impl Tool for ApplyPatch {
    const NAME: &'static str = "apply_patch";
    type Request = v1::ApplyPatchRequest;
    type Response = v1::ApplyPatchResponse;
    type Params = v1::ApplyPatchRequest;

    fn validate(
        request: Self::Request,
        _workspace_context: &WorkspaceContext,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Self::Params>, Error> {
        // The patch is parsed later: it may be large, and other calls use this thread too.
        Ok(violations.is_empty().then_some(request))
    }

    fn affected_paths(request: &Self::Params, workspace_context: &WorkspaceContext) -> Vec<String> {
        // `execute` rejects a patch that cannot be parsed.
        let paths = patch::parse(&request.unified_diff, strip_components(request))
            .and_then(|mut patches| resolve_names(&workspace_context.workspace, &mut patches))
            .unwrap_or_default();
        paths.iter().map(|path| path.as_str().to_owned()).collect()
    }

    fn canonical_text(
        request: &Self::Params,
        workspace_context: &WorkspaceContext,
    ) -> Option<CanonicalText> {
        let diff = &request.unified_diff;
        let mut patches = patch::parse(diff, strip_components(request)).ok()?;
        let has_parent_component = patches.iter().any(FilePatch::has_parent_component);
        resolve_names(&workspace_context.workspace, &mut patches).ok()?;

        let headers: Vec<_> = patches.iter().flat_map(FilePatch::header_lines).collect();
        let mut rest = diff.as_str();
        let is_given = |header: &String| {
            let found = rest.split_once(header.as_str());
            rest = found.map_or(rest, |(_, after)| after);
            found.is_some()
        };
        if headers.iter().all(is_given) {
            return None;
        }

        Some(CanonicalText {
            field: "unified_diff",
            text: headers.concat() + diff,
            has_parent_component,
        })
    }

    async fn execute(
        request: Self::Request,
        context: ToolContext,
    ) -> Result<ToolOutput<Self::Response>, Error> {
        let (session, step) = (Arc::clone(&context.session), context.step);
        let dry_run = request.dry_run.unwrap_or(false);

        let mut output = run_on_files(context, move |workspace, cancel| {
            apply_patch(workspace, &request, &session, step, cancel)
        })
        .await?;

        output.record_fields = record_fields(&output.response);
        output.record_event = (!dry_run).then_some("patch_applied");
        Ok(output)
    }
}

fn apply_patch(
    workspace: &Workspace,
    request: &v1::ApplyPatchRequest,
    session: &Session,
    step: StepId,
    cancel: &CancelToken,
) -> Result<v1::ApplyPatchResponse, Error> {
    let fuzz = usize::try_from(request.max_fuzz.unwrap_or(DEFAULT_FUZZ)).unwrap_or(usize::MAX);
    let mut patches = patch::parse(&request.unified_diff, strip_components(request))?;
    let paths = resolve_names(workspace, &mut patches)?;
    let mut transaction = workspace.begin_transaction(&paths, cancel)?;
    let originals = read_originals(&transaction, &paths, cancel)?;

    let files = originals.iter().map(|(path, original)| {
        let FileSnapshot { content, mode, .. } = original;
        let mode = *mode;
        ((*path).to_owned(), SourceFile { content, mode })
    });
    let memory = RefCell::new(MemoryReservation::default());
    let reserve = |bytes: usize| match bytes as u64 {
        bytes if bytes > MAX_TOTAL_FILE_BYTES => Err(patch_too_large_error()),
        bytes => memory.borrow_mut().grow_to(bytes),
    };
    let plan = patch::plan(&patches, &files.collect(), fuzz, &|| cancel.check(), &reserve)?;
    let changes = order_changes(&plan.outcomes, &paths, &originals);

    let mut patch_path = String::new();
    if request.dry_run.unwrap_or(false) {
        changes.stage(&mut transaction, true)?;
    } else {
        changes.stage(&mut transaction, false)?;
        patch_path = session
            .save_patch(step, request.unified_diff.as_bytes())
            .map_err(patch_not_stored_error)?;
        let committed = transaction.commit();
        if committed.is_err() {
            session.remove_patch(step);
        }
        committed?.sync_result()?;
    }

    Ok(v1::ApplyPatchResponse {
        changed_files: plan.files.into_iter().map(wire_changed_file).collect(),
        patch_size_bytes: saturating_u32(request.unified_diff.len()),
        patch_path,
    })
}

/// Number of components to strip from the paths of a patch.
fn strip_components(request: &v1::ApplyPatchRequest) -> usize {
    let strip = request.strip.unwrap_or(DEFAULT_STRIP);
    usize::try_from(strip).unwrap_or(usize::MAX)
}

/// Reads the existing files at `paths`.
fn read_originals<'p>(
    transaction: &FileTransaction<'_>,
    paths: &'p [RelativePath],
    cancel: &CancelToken,
) -> Result<HashMap<&'p str, FileSnapshot>, Error> {
    let names: BTreeSet<&RelativePath> = paths.iter().collect();
    let has_other_below = |path: &RelativePath| {
        let next = names.range::<RelativePath, _>(path..).nth(1);
        next.is_some_and(|next| next.is_at_or_below(path))
    };

    let remaining_bytes = AtomicU64::new(MAX_TOTAL_FILE_BYTES);
    let read = parallel_map(paths, |path| {
        cancel.check()?;
        // A directory does not conflict if the patch names files in it: it may delete them.
        if has_other_below(path) && transaction.is_directory(path) {
            return Ok(None);
        }
        let Some(original) = transaction.read(path, MAX_PATCHED_FILE_BYTES)? else {
            return Ok(None);
        };

        let bytes = u64::try_from(original.content.len()).unwrap_or(u64::MAX);
        // Relaxed: the counter publishes no other data.
        remaining_bytes
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes))
            .map_err(|_| patch_too_large_error())?;
        Ok(Some((path.as_str(), original)))
    });
    read.into_iter().filter_map(Result::transpose).collect()
}

/// Joins the planned outcome of each path with its original.
fn order_changes<'a>(
    outcomes: &'a [(String, PathOutcome<'a>)],
    paths: &'a [RelativePath],
    originals: &'a HashMap<&str, FileSnapshot>,
) -> OrderedChanges<'a> {
    let by_name: HashMap<&str, &RelativePath> =
        paths.iter().map(|path| (path.as_str(), path)).collect();
    let mut changes = OrderedChanges::default();

    for (name, outcome) in outcomes {
        let Some(path) = by_name.get(name.as_str()) else {
            continue;
        };
        let original = originals.get(name.as_str());
        match outcome {
            PathOutcome::Deleted => changes.deleted.extend(Some(*path).zip(original)),
            PathOutcome::Written { content, mode, from } => {
                let content = NewContent {
                    modified: None,
                    bytes: content,
                    mode: *mode,
                    attributes_from: from.as_deref().and_then(|from| originals.get(from)),
                };
                let written = WrittenFile { original, content };
                changes.written.insert(path, written);
            }
        }
    }

    changes
}

/// Resolves the paths in a patch in place. Returns each once, in order of appearance.
fn resolve_names(
    workspace: &Workspace,
    patches: &mut [FilePatch<'_>],
) -> Result<Vec<RelativePath>, Error> {
    let mut paths = HashMap::new();
    let mut order = Vec::new();
    for patch in patches {
        for name in [&mut patch.old, &mut patch.new] {
            let path = workspace.resolve(name)?;
            *name = path.as_str().to_owned();
            if path.as_bytes().is_empty() {
                return Err(Error::new(
                    Reason::NotAFile,
                    "the patch changes the workspace itself, which is a directory",
                )
                .with_metadata("path", "."));
            }
            paths.entry(path.clone()).or_insert_with(|| order.push(path));
        }
    }

    Ok(order)
}

fn wire_changed_file(file: PatchedFile) -> v1::ChangedFile {
    let (change, previous_path) = match file.kind {
        patch::FileChangeKind::Added => (v1::FileChange::Added, String::new()),
        patch::FileChangeKind::Modified => (v1::FileChange::Modified, String::new()),
        patch::FileChangeKind::Deleted => (v1::FileChange::Deleted, String::new()),
        patch::FileChangeKind::Renamed { from } => (v1::FileChange::Renamed, from),
    };
    v1::ChangedFile {
        path: file.path,
        change: change.into(),
        previous_path,
        hunks: saturating_u32(file.hunks),
        fuzz: saturating_u32(file.fuzz),
        offset: saturating_u32(file.offset),
    }
}

/// The fields of the call's record.
fn record_fields(response: &v1::ApplyPatchResponse) -> Map<String, Value> {
    let files = &response.changed_files;
    let mut bytes = 0;
    let fitting = files.iter().map(|file| &file.path).take_while(|path| {
        bytes += path.len();
        bytes <= MAX_RECORDED_PATH_BYTES
    });
    let names: Vec<Value> = fitting.map(|path| path.as_str().into()).collect();

    [
        ("changed_files", names.into()),
        ("changed_files_count", files.len().into()),
        ("patch_size_bytes", response.patch_size_bytes.into()),
        ("patch_path", response.patch_path.as_str().into()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

fn patch_too_large_error() -> Error {
    Error::new(
        Reason::FileTooLarge,
        format!(
            "the files of the patch exceed {} MiB together: split the patch",
            MAX_TOTAL_FILE_BYTES >> 20
        ),
    )
}

/// The patch could not be stored as an artifact.
fn patch_not_stored_error(error: io::Error) -> Error {
    if fd_exhaustion::is_fd_exhaustion(&error) {
        return fd_exhaustion::fd_exhausted_error(error, "the patch's artifact");
    }
    state_failure(&error).with_cause(error)
}

fn saturating_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
