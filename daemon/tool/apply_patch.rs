//! `apply_patch`: a unified diff on the files of the workspace, all of it or nothing.
//!
//! [`patch`] works out what becomes of the files; this file brings them together with the
//! workspace.

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
use super::{Tool, ToolContext, ToolOutput, WorkspaceContext, run_on_files};
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

/// Components to take off the names in a patch that says nothing about it.
const DEFAULT_STRIP: u32 = 1;
/// Context lines that may differ, when a request says nothing about it.
const DEFAULT_FUZZ: u32 = 2;
/// Largest file that is patched.
const MAX_PATCHED_FILE_BYTES: u64 = 256 << 20;
/// Most bytes of all files of a patch as they were, and of all as it makes them: they are in memory
/// at once.
const MAX_TOTAL_FILE_BYTES: u64 = 512 << 20;
/// Most bytes of paths in the record of a call. Records are small; the artifact has the rest.
const MAX_RECORDED_PATH_BYTES: usize = 16 << 10;

/// The tool.
#[derive(Debug)]
pub(crate) struct ApplyPatch;

impl Tool for ApplyPatch {
    const NAME: &'static str = "apply_patch";
    type Request = v1::ApplyPatchRequest;
    type Response = v1::ApplyPatchResponse;
    type Params = v1::ApplyPatchRequest;

    fn validate(
        request: Self::Request,
        _scene: &WorkspaceContext,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Self::Params>, Error> {
        // The patch is not looked into here: it may be large, and this thread serves others too.
        Ok(violations.is_empty().then_some(request))
    }

    fn affected_paths(request: &Self::Params, workspace_context: &WorkspaceContext) -> Vec<String> {
        // One that cannot be understood is refused when it is applied.
        let patches = patch::parse(&request.unified_diff, strip_components(request));
        let paths = patches
            .and_then(|mut patches| resolve_names(&workspace_context.workspace, &mut patches));
        let paths = paths.unwrap_or_default();
        paths.iter().map(|path| path.as_str().to_owned()).collect()
    }

    fn canonical_text(
        request: &Self::Params,
        workspace_context: &WorkspaceContext,
    ) -> Option<CanonicalText> {
        let diff = &request.unified_diff;
        let mut patches = patch::parse(diff, strip_components(request)).ok()?;
        let leads_back = patches.iter().any(FilePatch::has_parent_component);
        resolve_names(&workspace_context.workspace, &mut patches).ok()?;
        let headers: Vec<_> = patches.iter().flat_map(FilePatch::header_lines).collect();
        let mut rest = diff.as_str();
        let is_given = |header: &String| match rest.split_once(header.as_str()) {
            Some((_, behind)) => {
                rest = behind;
                true
            }
            None => false,
        };
        if headers.iter().all(is_given) {
            return None;
        }
        Some(CanonicalText {
            field: "unified_diff",
            text: headers.concat() + diff,
            has_parent_component: leads_back,
        })
    }

    async fn execute(
        request: Self::Request,
        context: ToolContext,
    ) -> Result<ToolOutput<Self::Response>, Error> {
        let (session, step) = (Arc::clone(&context.session), context.step);
        let makes = !request.dry_run.unwrap_or(false);
        let mut done = run_on_files(context, move |workspace, stop| {
            apply_patch(workspace, &request, &session, step, stop)
        })
        .await?;
        done.record_fields = record_fields(&done.response);
        done.record_event = makes.then_some("patch_applied");
        Ok(done)
    }
}

/// Applies a patch.
fn apply_patch(
    workspace: &Workspace,
    request: &v1::ApplyPatchRequest,
    session: &Session,
    step: StepId,
    stop: &CancelToken,
) -> Result<v1::ApplyPatchResponse, Error> {
    let fuzz = usize::try_from(request.max_fuzz.unwrap_or(DEFAULT_FUZZ)).unwrap_or(usize::MAX);
    let mut patches = patch::parse(&request.unified_diff, strip_components(request))?;
    let paths = resolve_names(workspace, &mut patches)?;
    let mut change = workspace.begin_transaction(&paths, stop)?;
    let originals = read_originals(&change, &paths, stop)?;
    let files = originals.iter().map(|(path, original)| {
        let FileSnapshot { content, mode, .. } = original;
        let mode = *mode;
        ((*path).to_owned(), SourceFile { content, mode })
    });
    let room = RefCell::new(MemoryReservation::default());
    let hold = |bytes: usize| match bytes as u64 {
        bytes if bytes > MAX_TOTAL_FILE_BYTES => Err(patch_too_large()),
        bytes => room.borrow_mut().grow_to(bytes),
    };
    let plan = patch::plan(&patches, &files.collect(), fuzz, &|| stop.check(), &hold)?;
    let arrangement = order_changes(&plan.outcomes, &paths, &originals);

    let mut patch_path = String::new();
    if request.dry_run.unwrap_or(false) {
        arrangement.stage(&mut change, false)?;
    } else {
        arrangement.stage(&mut change, true)?;
        let kept =
            session.save_patch(step, request.unified_diff.as_bytes()).map_err(patch_not_stored)?;
        let made = change.commit();
        if made.is_err() {
            session.remove_patch(step);
        }
        made?.sync_result()?;
        patch_path = kept;
    }
    Ok(v1::ApplyPatchResponse {
        changed_files: plan.files.into_iter().map(wire_changed_file).collect(),
        patch_size_bytes: saturating_u32(request.unified_diff.len()),
        patch_path,
    })
}

/// Components to take off the names in a patch.
fn strip_components(request: &v1::ApplyPatchRequest) -> usize {
    let strip = request.strip.unwrap_or(DEFAULT_STRIP);
    usize::try_from(strip).unwrap_or(usize::MAX)
}

/// The files at these paths, as far as there are any.
fn read_originals<'p>(
    change: &FileTransaction<'_>,
    paths: &'p [RelativePath],
    stop: &CancelToken,
) -> Result<HashMap<&'p str, FileSnapshot>, Error> {
    let names: BTreeSet<&RelativePath> = paths.iter().collect();
    let is_above_another = |path: &RelativePath| {
        let next = names.range::<RelativePath, _>(path..).nth(1);
        next.is_some_and(|next| next.is_at_or_below(path))
    };
    let room = AtomicU64::new(MAX_TOTAL_FILE_BYTES);
    let read = parallel_map(paths, |path| {
        stop.check()?;
        // A directory, if the patch names files in it, is not in the way: they may be deleted.
        if is_above_another(path) && change.is_directory(path) {
            return Ok(None);
        }
        let Some(original) = change.read(path, MAX_PATCHED_FILE_BYTES)? else {
            return Ok(None);
        };
        let bytes = u64::try_from(original.content.len()).unwrap_or(u64::MAX);
        // Nothing else is published with it.
        room.try_update(Ordering::Relaxed, Ordering::Relaxed, |room| room.checked_sub(bytes))
            .map_err(|_| patch_too_large())?;
        Ok(Some((path.as_str(), original)))
    });
    read.into_iter().filter_map(Result::transpose).collect()
}

/// Brings what becomes of the files together with what they were.
fn order_changes<'a>(
    fates: &'a [(String, PathOutcome<'a>)],
    paths: &'a [RelativePath],
    originals: &'a HashMap<&str, FileSnapshot>,
) -> OrderedChanges<'a> {
    let by_name: HashMap<&str, &RelativePath> =
        paths.iter().map(|path| (path.as_str(), path)).collect();
    let mut arrangement = OrderedChanges::default();
    for (name, fate) in fates {
        let Some(path) = by_name.get(name.as_str()) else {
            continue;
        };
        let original = originals.get(name.as_str());
        match fate {
            PathOutcome::Deleted => arrangement.deleted.extend(Some(*path).zip(original)),
            PathOutcome::Written { content, mode, from } => {
                let content = NewContent {
                    bytes: content,
                    mode: *mode,
                    attributes_from: from.as_deref().and_then(|from| originals.get(from)),
                };
                let written = WrittenFile { original, content };
                arrangement.written.insert(path, written);
            }
        }
    }
    arrangement
}

/// Understands the names in a patch, puts them in order, and answers each once.
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

/// What the record of the call says.
fn record_fields(response: &v1::ApplyPatchResponse) -> Map<String, Value> {
    let files = &response.changed_files;
    let mut bytes = 0;
    let names = files.iter().map(|file| &file.path).take_while(|path| {
        bytes += path.len();
        bytes <= MAX_RECORDED_PATH_BYTES
    });
    let names: Vec<Value> = names.map(|path| path.as_str().into()).collect();
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

fn patch_too_large() -> Error {
    Error::new(
        Reason::FileTooLarge,
        format!(
            "the files of the patch are over {} MiB together: split it",
            MAX_TOTAL_FILE_BYTES >> 20
        ),
    )
}

/// The patch could not be kept.
fn patch_not_stored(error: io::Error) -> Error {
    if fd_exhaustion::is_fd_exhaustion(&error) {
        return fd_exhaustion::fd_exhausted_error(error, "the patch's artifact");
    }
    state_failure(&error).with_cause(error)
}

fn saturating_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
