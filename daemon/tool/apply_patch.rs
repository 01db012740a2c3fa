//! `apply_patch`: a unified diff on the files of the workspace, all of it or nothing.
//!
//! [`patch`] works out what becomes of the files; this file brings them together with the
//! workspace.

mod arrangement;

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

use self::arrangement::{Arrangement, Written};
use super::{Done, Scene, Tool, Work, on_files};
use crate::{
    api::v1,
    daemon::{
        catalog::Reading,
        descriptors,
        error::{Error, Reason, Violation},
        store::{
            failure::state_failure,
            session::{Session, Step},
        },
        text::patch::{self, Changed, Fate, File, FilePatch},
        workspace::{
            Content, Original, RelativePath, Room, Stop, Workspace, change::Change, in_parallel,
        },
    },
};

/// Components to take off the names in a patch that says nothing about it.
const DEFAULT_STRIP: u32 = 1;
/// Context lines that may differ, when a request says nothing about it.
const DEFAULT_FUZZ: u32 = 2;
/// Largest file that is patched.
const LARGEST_FILE: u64 = 256 << 20;
/// Most bytes of all files of a patch as they were, and of all as it makes them: they are in memory
/// at once.
const MOST_BYTES: u64 = 512 << 20;
/// Most bytes of paths in the record of a call. Records are small; the artifact has the rest.
const MOST_RECORDED: usize = 16 << 10;

/// The tool.
#[derive(Debug)]
pub(crate) struct ApplyPatch;

impl Tool for ApplyPatch {
    const NAME: &'static str = "apply_patch";
    type Request = v1::ApplyPatchRequest;
    type Response = v1::ApplyPatchResponse;
    type Params = v1::ApplyPatchRequest;

    fn check(
        request: Self::Request,
        _scene: &Scene,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Self::Params>, Error> {
        // The patch is not looked into here: it may be large, and this thread serves others too.
        Ok(violations.is_empty().then_some(request))
    }

    fn files(request: &Self::Params, scene: &Scene) -> Vec<String> {
        // One that cannot be understood is refused when it is applied.
        let patches = patch::parse(&request.unified_diff, strip(request));
        let paths = patches.and_then(|mut patches| resolve(&scene.workspace, &mut patches));
        let paths = paths.unwrap_or_default();
        paths.iter().map(|path| path.as_str().to_owned()).collect()
    }

    fn reading(request: &Self::Params, scene: &Scene) -> Option<Reading> {
        let diff = &request.unified_diff;
        let mut patches = patch::parse(diff, strip(request)).ok()?;
        let leads_back = patches.iter().any(FilePatch::leads_back);
        resolve(&scene.workspace, &mut patches).ok()?;
        let headers: Vec<_> = patches.iter().flat_map(FilePatch::headers).collect();
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
        Some(Reading { field: "unified_diff", text: headers.concat() + diff, leads_back })
    }

    async fn execute(request: Self::Request, work: Work) -> Result<Done<Self::Response>, Error> {
        let (session, step) = (Arc::clone(&work.session), work.step);
        let makes = !request.dry_run.unwrap_or(false);
        let mut done = on_files(work, move |workspace, stop| {
            apply_patch(workspace, &request, &session, step, stop)
        })
        .await?;
        done.facts = facts(&done.response);
        done.event = makes.then_some("patch_applied");
        Ok(done)
    }
}

/// Applies a patch.
fn apply_patch(
    workspace: &Workspace,
    request: &v1::ApplyPatchRequest,
    session: &Session,
    step: Step,
    stop: &Stop,
) -> Result<v1::ApplyPatchResponse, Error> {
    let fuzz = usize::try_from(request.max_fuzz.unwrap_or(DEFAULT_FUZZ)).unwrap_or(usize::MAX);
    let mut patches = patch::parse(&request.unified_diff, strip(request))?;
    let paths = resolve(workspace, &mut patches)?;
    let mut change = workspace.change(&paths, stop)?;
    let originals = read_all(&change, &paths, stop)?;
    let files = originals.iter().map(|(path, original)| {
        let Original { content, mode, .. } = original;
        let mode = *mode;
        ((*path).to_owned(), File { content, mode })
    });
    let room = RefCell::new(Room::default());
    let hold = |bytes: usize| match bytes as u64 {
        bytes if bytes > MOST_BYTES => Err(too_much()),
        bytes => room.borrow_mut().reach(bytes),
    };
    let plan = patch::plan(&patches, &files.collect(), fuzz, &|| stop.check(), &hold)?;
    let arrangement = arrange(&plan.fates, &paths, &originals);

    let mut patch_path = String::new();
    if request.dry_run.unwrap_or(false) {
        arrangement.stage(&mut change, false)?;
    } else {
        arrangement.stage(&mut change, true)?;
        let kept = session.keep_patch(step, request.unified_diff.as_bytes()).map_err(not_kept)?;
        let made = change.commit();
        if made.is_err() {
            session.drop_patch(step);
        }
        made?.written_down()?;
        patch_path = kept;
    }
    Ok(v1::ApplyPatchResponse {
        changed_files: plan.changed.into_iter().map(answer).collect(),
        patch_size_bytes: clamped(request.unified_diff.len()),
        patch_path,
    })
}

/// Components to take off the names in a patch.
fn strip(request: &v1::ApplyPatchRequest) -> usize {
    let strip = request.strip.unwrap_or(DEFAULT_STRIP);
    usize::try_from(strip).unwrap_or(usize::MAX)
}

/// The files at these paths, as far as there are any.
fn read_all<'p>(
    change: &Change<'_>,
    paths: &'p [RelativePath],
    stop: &Stop,
) -> Result<HashMap<&'p str, Original>, Error> {
    let names: BTreeSet<&RelativePath> = paths.iter().collect();
    let is_above_another = |path: &RelativePath| {
        let next = names.range::<RelativePath, _>(path..).nth(1);
        next.is_some_and(|next| next.is_at_or_below(path))
    };
    let room = AtomicU64::new(MOST_BYTES);
    let read = in_parallel(paths, |path| {
        stop.check()?;
        // A directory, if the patch names files in it, is not in the way: they may be deleted.
        if is_above_another(path) && change.is_directory(path) {
            return Ok(None);
        }
        let Some(original) = change.read(path, LARGEST_FILE)? else {
            return Ok(None);
        };
        let bytes = u64::try_from(original.content.len()).unwrap_or(u64::MAX);
        // Nothing else is published with it.
        room.try_update(Ordering::Relaxed, Ordering::Relaxed, |room| room.checked_sub(bytes))
            .map_err(|_| too_much())?;
        Ok(Some((path.as_str(), original)))
    });
    read.into_iter().filter_map(Result::transpose).collect()
}

/// Brings what becomes of the files together with what they were.
fn arrange<'a>(
    fates: &'a [(String, Fate<'a>)],
    paths: &'a [RelativePath],
    originals: &'a HashMap<&str, Original>,
) -> Arrangement<'a> {
    let by_name: HashMap<&str, &RelativePath> =
        paths.iter().map(|path| (path.as_str(), path)).collect();
    let mut arrangement = Arrangement::default();
    for (name, fate) in fates {
        let Some(path) = by_name.get(name.as_str()) else {
            continue;
        };
        let original = originals.get(name.as_str());
        match fate {
            Fate::Deleted => arrangement.deleted.extend(Some(*path).zip(original)),
            Fate::Written { content, mode, from } => {
                let content = Content {
                    bytes: content,
                    mode: *mode,
                    like: from.as_deref().and_then(|from| originals.get(from)),
                };
                let written = Written { original, content };
                arrangement.written.insert(path, written);
            }
        }
    }
    arrangement
}

/// Understands the names in a patch, puts them in order, and answers each once.
fn resolve(
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
                .with("path", "."));
            }
            paths.entry(path.clone()).or_insert_with(|| order.push(path));
        }
    }
    Ok(order)
}

fn answer(file: Changed) -> v1::ChangedFile {
    let (change, previous_path) = match file.change {
        patch::Change::Added => (v1::FileChange::Added, String::new()),
        patch::Change::Modified => (v1::FileChange::Modified, String::new()),
        patch::Change::Deleted => (v1::FileChange::Deleted, String::new()),
        patch::Change::Renamed { from } => (v1::FileChange::Renamed, from),
    };
    v1::ChangedFile {
        path: file.path,
        change: change.into(),
        previous_path,
        hunks: clamped(file.hunks),
        fuzz: clamped(file.fuzz),
        offset: clamped(file.offset),
    }
}

/// What the record of the call says.
fn facts(response: &v1::ApplyPatchResponse) -> Map<String, Value> {
    let files = &response.changed_files;
    let mut bytes = 0;
    let names = files.iter().map(|file| &file.path).take_while(|path| {
        bytes += path.len();
        bytes <= MOST_RECORDED
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

fn too_much() -> Error {
    Error::new(
        Reason::FileTooLarge,
        format!("the files of the patch are over {} MiB together: split it", MOST_BYTES >> 20),
    )
}

/// The patch could not be kept.
fn not_kept(error: io::Error) -> Error {
    if descriptors::are_missing(&error) {
        return descriptors::exhausted(error, "the patch's artifact");
    }
    state_failure(&error).caused_by(error)
}

fn clamped(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
