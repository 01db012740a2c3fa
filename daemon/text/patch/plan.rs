//! Plans a patch of several files: computes the outcome for each path, without I/O.
//!
//! Files are patched in order, and a second patch of a file applies to the result of the first.
//! Renames and deletions refer to the files as they were before the patch, regardless of their
//! position in it, as in git. So a patch can swap two files.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use super::{
    apply::{AppliedHunks, apply},
    file_patch::{FilePatch, FilePatchKind},
    hunk::Hunk,
    locate::{CancelCheck, TextLines},
    mismatch::excerpt,
};
use crate::daemon::error::{Error, Reason};

/// Mode of a new executable file.
const EXECUTABLE_MODE: u32 = 0o755;
/// Mode of any other new file.
const REGULAR_MODE: u32 = 0o644;

/// A file before the patch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SourceFile<'a> {
    pub(crate) content: &'a [u8],
    pub(crate) mode: u32,
}

/// The effects of a patch.
#[derive(Debug)]
pub(crate) struct PatchPlan<'a> {
    /// The files of the patch, in order.
    pub(crate) files: Vec<PatchedFile>,
    /// The outcome for each path that changes.
    pub(crate) outcomes: Vec<(String, PathOutcome<'a>)>,
}

/// Report about one file of a patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PatchedFile {
    /// Path after the patch.
    pub(crate) path: String,
    pub(crate) kind: FileChangeKind,
    /// Number of applied hunks.
    pub(crate) hunks: usize,
    /// Maximum number of context lines ignored at an end of a hunk.
    pub(crate) fuzz: usize,
    /// Maximum distance in lines of a hunk from its expected line.
    pub(crate) offset: usize,
}

/// How a patch changes a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileChangeKind {
    Added,
    Modified,
    Deleted,
    Renamed {
        /// Path before the patch.
        from: String,
    },
}

/// The state of a path after a patch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PathOutcome<'a> {
    /// The path is a file with this content.
    Written {
        content: Cow<'a, [u8]>,
        /// New mode. `None` to keep the mode of the existing file, or to use the default.
        mode: Option<u32>,
        /// Path of the file that the content comes from, if it is another one.
        from: Option<String>,
    },
    /// The path does not exist.
    Deleted,
}

/// A file after a part of the patch.
#[derive(Debug, Clone)]
struct PatchedContent<'a> {
    content: Cow<'a, [u8]>,
    mode: Option<u32>,
    /// Path before the patch. `None` for a new file.
    from: Option<String>,
}

/// A path while the patch is applied.
#[derive(Debug, Default)]
struct PathState<'a> {
    original: Option<SourceFile<'a>>,
    current: Option<PatchedContent<'a>>,
    /// Whether the patch created the current file.
    is_new: bool,
    /// Whether the original file was moved or deleted.
    is_taken: bool,
}

#[derive(Debug)]
struct PathStates<'a> {
    by_path: HashMap<String, PathState<'a>>,
    /// Paths whose files the patch deletes or renames.
    vacated: HashSet<String>,
    /// Size of all contents that the patch has created.
    created_bytes: usize,
}

/// Reserves memory for this many bytes of new content, or fails.
pub(crate) type MemoryCheck<'a> = &'a dyn Fn(usize) -> Result<(), Error>;

/// Computes the effects of a patch. `originals` contains the existing file at each path it names.
pub(crate) fn plan<'a>(
    patches: &[FilePatch<'_>],
    originals: &HashMap<String, SourceFile<'a>>,
    max_fuzz: usize,
    check: CancelCheck<'_>,
    hold: MemoryCheck<'_>,
) -> Result<PatchPlan<'a>, Error> {
    let mut states = PathStates::new(patches);
    let mut order = Vec::new();
    for path in patches.iter().flat_map(|patch| [&patch.old, &patch.new]) {
        if states.by_path.contains_key(path) {
            continue;
        }
        let original = originals.get(path).copied();
        let state = PathState {
            original,
            current: original.map(|file| PatchedContent::new(file, path)),
            ..PathState::default()
        };
        states.by_path.insert(path.clone(), state);
        order.push(path);
    }

    let mut files = Vec::with_capacity(patches.len());
    for patch in patches {
        check()?;
        files.push(states.apply_file_patch(patch, max_fuzz, check, hold)?);
    }

    let mut outcomes = Vec::new();
    for path in order {
        let state = states.by_path.remove(path);
        if let Some(outcome) = state.and_then(|state| state.outcome(path)) {
            outcomes.push((path.clone(), outcome));
        }
    }
    Ok(PatchPlan { files, outcomes })
}

impl<'a> PathStates<'a> {
    fn new(patches: &[FilePatch<'_>]) -> Self {
        let vacated = patches
            .iter()
            .filter(|patch| matches!(patch.kind, FilePatchKind::Delete | FilePatchKind::Rename))
            .map(|patch| patch.old.clone())
            .collect();
        Self { vacated, by_path: HashMap::new(), created_bytes: 0 }
    }

    fn apply_file_patch(
        &mut self,
        patch: &FilePatch<'_>,
        max_fuzz: usize,
        check: CancelCheck<'_>,
        hold: MemoryCheck<'_>,
    ) -> Result<PatchedFile, Error> {
        let FilePatch { old, new, kind, executable, hunks } = patch;
        let (file, change) = match kind {
            FilePatchKind::Create => (None, FileChangeKind::Added),
            FilePatchKind::Delete => (Some(self.take_content(old)?), FileChangeKind::Deleted),
            FilePatchKind::Rename => {
                (Some(self.take_content(old)?), FileChangeKind::Renamed { from: old.clone() })
            }
            FilePatchKind::Copy => (Some(self.copy_source(old, hold)?), FileChangeKind::Added),
            FilePatchKind::Modify => match self.path_state(old).current.take() {
                Some(file) => (Some(file), FileChangeKind::Modified),
                None if creates_whole_file(hunks) => (None, FileChangeKind::Added),
                None => return Err(not_found_error(old)),
            },
        };

        let is_created = !matches!(change, FileChangeKind::Modified | FileChangeKind::Deleted);
        if is_created && !self.is_vacant(new) {
            return Err(Error::new(
                Reason::FileExists,
                format!("the patch creates {new:?}, which already exists: patch the file instead, or delete it first"),
            )
            .with_metadata("path", new));
        }

        let mut file =
            file.unwrap_or(PatchedContent { content: Cow::Borrowed(&[]), mode: None, from: None });
        let (mut fuzz, mut offset) = (0, 0);
        if !hunks.is_empty() {
            (fuzz, offset) = self.apply_hunks(old, &mut file, hunks, max_fuzz, check, hold)?;
        }

        if change == FileChangeKind::Deleted {
            if !file.content.is_empty() {
                return Err(not_empty_error(old, &file.content));
            }
        } else {
            if let Some(executable) = executable {
                file.mode = Some(with_executable_bit(file.mode, *executable));
            }
            let state = self.path_state(new);
            state.current = Some(file);
            state.is_new |= is_created;
        }
        Ok(PatchedFile { path: new.clone(), kind: change, hunks: hunks.len(), fuzz, offset })
    }

    /// Applies hunks to a file. Returns fuzz and offset.
    fn apply_hunks(
        &mut self,
        path: &str,
        file: &mut PatchedContent<'a>,
        hunks: &[Hunk<'_>],
        max_fuzz: usize,
        check: CancelCheck<'_>,
        hold: MemoryCheck<'_>,
    ) -> Result<(usize, usize), Error> {
        reject_binary(path, &file.content)?;
        // Reserves memory before the copy is made. The request holds the added lines already.
        hold(self.created_bytes + file.content.len())?;
        let AppliedHunks { content, fuzz, offset } =
            apply(path, &file.content, hunks, max_fuzz, check)?;

        let replaced = file.created_bytes();
        file.content = Cow::Owned(content);
        self.created_bytes = self.created_bytes.saturating_sub(replaced) + file.created_bytes();
        hold(self.created_bytes)?;
        Ok((fuzz, offset))
    }

    fn path_state(&mut self, path: &str) -> &mut PathState<'a> {
        self.by_path.entry(path.to_owned()).or_default()
    }

    /// Whether the patch may create a file at this path.
    fn is_vacant(&mut self, path: &str) -> bool {
        let is_vacated = self.vacated.contains(path);
        let state = self.path_state(path);
        state.current.is_none() || is_vacated && !state.is_new
    }

    /// Moves the content out of a path: the original file, if the patch has already created another
    /// one there, else the current file.
    fn take_content(&mut self, path: &str) -> Result<PatchedContent<'a>, Error> {
        let state = self.path_state(path);
        if let Some(original) = state.original
            && state.is_new
            && !state.is_taken
        {
            state.is_taken = true;
            return Ok(PatchedContent::new(original, path));
        }

        state.is_new = false;
        // The original stays taken even if a new file is created here.
        state.is_taken = true;
        state.current.take().ok_or_else(|| not_found_error(path))
    }

    /// Returns the content for a copy of a path: the original file, if there is one.
    fn copy_source(
        &mut self,
        path: &str,
        hold: MemoryCheck<'_>,
    ) -> Result<PatchedContent<'a>, Error> {
        let state = self.path_state(path);
        if let Some(original) = state.original {
            return Ok(PatchedContent::new(original, path));
        }

        let Some(current) = &state.current else {
            return Err(not_found_error(path));
        };
        let bytes = current.created_bytes();
        hold(self.created_bytes + bytes)?;
        let copy = self.path_state(path).current.clone();
        self.created_bytes += bytes;
        copy.ok_or_else(|| not_found_error(path))
    }
}

impl<'a> PathState<'a> {
    /// Returns the outcome for the path. `None` if nothing changes.
    fn outcome(self, path: &str) -> Option<PathOutcome<'a>> {
        match (self.original, self.current) {
            (None, None) => None,
            (Some(_), None) => Some(PathOutcome::Deleted),
            (Some(SourceFile { content, mode }), Some(current)) => {
                let mode = current.mode.filter(|new| *new != mode);
                (mode.is_some() || *current.content != *content).then_some(PathOutcome::Written {
                    content: current.content,
                    mode,
                    from: current.from.filter(|from| from != path),
                })
            }
            (None, Some(PatchedContent { content, mode, from })) => {
                Some(PathOutcome::Written { content, mode, from })
            }
        }
    }
}

impl<'a> PatchedContent<'a> {
    /// Returns the size of a content that the patch has created, 0 for an original.
    fn created_bytes(&self) -> usize {
        match &self.content {
            Cow::Borrowed(_) => 0,
            Cow::Owned(content) => content.len(),
        }
    }

    /// Wraps a file from before the patch.
    fn new(file: SourceFile<'a>, path: &str) -> Self {
        Self {
            content: Cow::Borrowed(file.content),
            mode: Some(file.mode),
            from: Some(path.to_owned()),
        }
    }
}

/// Whether the hunks can create a file: there is one, without old lines.
fn creates_whole_file(hunks: &[Hunk<'_>]) -> bool {
    matches!(hunks, [hunk] if hunk.old_lines().next().is_none())
}

/// Returns the mode of a file with the executable bit set or cleared.
fn with_executable_bit(mode: Option<u32>, executable: bool) -> u32 {
    match (mode, executable) {
        (None, true) => EXECUTABLE_MODE,
        (None, false) => REGULAR_MODE,
        // Each class that may read the file may execute it.
        (Some(mode), true) => mode | (mode & 0o444) >> 2,
        (Some(mode), false) => mode & !0o111,
    }
}

fn reject_binary(path: &str, content: &[u8]) -> Result<(), Error> {
    if std::str::from_utf8(content).is_ok() {
        return Ok(());
    }
    Err(Error::new(Reason::BinaryFile, format!("{path:?} is not UTF-8: it cannot be patched"))
        .with_metadata("path", path))
}

fn not_found_error(path: &str) -> Error {
    Error::new(
        Reason::FileNotFound,
        format!(
            "the patch changes {path:?}, which does not exist: list its directory for the existing names"
        ),
    )
    .with_metadata("path", path)
}

fn not_empty_error(path: &str, content: &[u8]) -> Error {
    let excerpt = TextLines::split(content, path).map(|text| excerpt(&text, 0));
    Error::new(
        Reason::PatchHunkFail,
        format!(
            "the patch deletes {path:?}, but the file holds more than its hunks remove: create the patch again from the current file. {}",
            excerpt.unwrap_or_default()
        ),
    )
    .with_metadata("path", path)
}
