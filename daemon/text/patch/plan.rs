//! All files of a patch, one after the other: what becomes of each path.
//!
//! A file that a patch changes twice is changed by the second what the first has made of it. Only
//! renames and deletions mean the files from before the patch, wherever they stand in it: git
//! writes them so, and files can change places that way.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use super::{
    apply::apply,
    file_patch::{FilePatch, FilePatchKind},
    hunk::Hunk,
    locate::{CancelCheck, TextLines},
    mismatch::excerpt,
};
use crate::daemon::error::{Error, Reason};

/// Permissions of a new file that can be executed.
const EXECUTABLE_MODE: u32 = 0o755;
/// Permissions of one that cannot.
const REGULAR_MODE: u32 = 0o644;

/// A file before the patch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SourceFile<'a> {
    pub(crate) content: &'a [u8],
    /// Its permissions.
    pub(crate) mode: u32,
}

/// What a patch does.
#[derive(Debug)]
pub(crate) struct PatchPlan<'a> {
    /// The files of the patch, in its order.
    pub(crate) files: Vec<PatchedFile>,
    /// What becomes of each path that does not stay as it is.
    pub(crate) outcomes: Vec<(String, PathOutcome<'a>)>,
}

/// A file of a patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PatchedFile {
    /// Where it is after the patch.
    pub(crate) path: String,
    pub(crate) kind: FileChangeKind,
    /// How many hunks were applied.
    pub(crate) hunks: usize,
    /// Most context lines that were ignored at an end of a hunk.
    pub(crate) fuzz: usize,
    /// Most lines by which a hunk lay away from where the patch said.
    pub(crate) offset: usize,
}

/// What is done to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileChangeKind {
    Added,
    Modified,
    Deleted,
    Renamed {
        /// Where it was before.
        from: String,
    },
}

/// What becomes of a path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PathOutcome<'a> {
    /// A file with this content is there.
    Written {
        content: Cow<'a, [u8]>,
        /// Its permissions, where they are not those that a file there has or gets anyway.
        mode: Option<u32>,
        /// The path of the file that it is made of, where that is another one.
        from: Option<String>,
    },
    /// Nothing is there.
    Deleted,
}

/// A file as it is after some of the patch.
#[derive(Debug, Clone)]
struct PatchedContent<'a> {
    content: Cow<'a, [u8]>,
    mode: Option<u32>,
    /// Where it was before the patch; none for a new one.
    from: Option<String>,
}

/// A path.
#[derive(Debug, Default)]
struct PathState<'a> {
    original: Option<SourceFile<'a>>,
    current: Option<PatchedContent<'a>>,
    /// Whether what is there now was put there by the patch.
    is_new: bool,
    /// Whether what was there was renamed or deleted after something else had been put there.
    is_taken: bool,
}

#[derive(Debug)]
struct PathStates<'a> {
    by_path: HashMap<String, PathState<'a>>,
    /// Paths that the patch deletes or renames.
    vacated: HashSet<String>,
    /// Bytes of all contents that the patch has made.
    created_bytes: usize,
}

/// Asked whether there is memory for this many bytes of new contents.
pub(crate) type MemoryCheck<'a> = &'a dyn Fn(usize) -> Result<(), Error>;

/// Works out what a patch does. `originals` has what is at each path that it names.
pub(crate) fn plan<'a>(
    patches: &[FilePatch<'_>],
    originals: &HashMap<String, SourceFile<'a>>,
    max_fuzz: usize,
    check: CancelCheck<'_>,
    hold: MemoryCheck<'_>,
) -> Result<PatchPlan<'a>, Error> {
    let leaves = |patch: &&FilePatch<'_>| {
        matches!(patch.kind, FilePatchKind::Delete | FilePatchKind::Rename)
    };
    let leaving = patches.iter().filter(leaves);
    let mut slots = PathStates {
        vacated: leaving.map(|patch| patch.old.clone()).collect(),
        by_path: HashMap::new(),
        created_bytes: 0,
    };
    let mut order = Vec::new();
    for path in patches.iter().flat_map(|patch| [&patch.old, &patch.new]) {
        if slots.by_path.contains_key(path) {
            continue;
        }
        let original = originals.get(path).copied();
        let slot = PathState {
            original,
            current: original.map(|file| PatchedContent::new(file, path)),
            ..PathState::default()
        };
        slots.by_path.insert(path.clone(), slot);
        order.push(path);
    }
    let mut changed = Vec::with_capacity(patches.len());
    for patch in patches {
        check()?;
        changed.push(slots.apply_file_patch(patch, max_fuzz, check, hold)?);
    }
    let mut fates = Vec::new();
    for path in order {
        let slot = slots.by_path.remove(path);
        if let Some(fate) = slot.and_then(|slot| slot.outcome(path)) {
            fates.push((path.clone(), fate));
        }
    }
    Ok(PatchPlan { files: changed, outcomes: fates })
}

impl<'a> PathStates<'a> {
    fn apply_file_patch(
        &mut self,
        patch: &FilePatch<'_>,
        max_fuzz: usize,
        check: CancelCheck<'_>,
        hold: MemoryCheck<'_>,
    ) -> Result<PatchedFile, Error> {
        let FilePatch { old, new, kind, executable, hunks } = patch;
        let (version, change) = match kind {
            FilePatchKind::Create => (None, FileChangeKind::Added),
            FilePatchKind::Delete => (Some(self.take_content(old)?), FileChangeKind::Deleted),
            FilePatchKind::Rename => {
                (Some(self.take_content(old)?), FileChangeKind::Renamed { from: old.clone() })
            }
            FilePatchKind::Copy => (Some(self.copy_source(old, hold)?), FileChangeKind::Added),
            FilePatchKind::Modify => match self.path_state(old).current.take() {
                Some(version) => (Some(version), FileChangeKind::Modified),
                None if creates_whole_file(hunks) => (None, FileChangeKind::Added),
                None => return Err(not_found_error(old)),
            },
        };
        let is_made = !matches!(change, FileChangeKind::Modified | FileChangeKind::Deleted);
        if is_made && !self.is_vacant(new) {
            return Err(Error::new(
                Reason::FileExists,
                format!("the patch makes {new:?}, but a file is there already: patch that one, or delete it first"),
            )
            .with_metadata("path", new));
        }
        let mut version = version.unwrap_or(PatchedContent {
            content: Cow::Borrowed(&[]),
            mode: None,
            from: None,
        });
        let (mut fuzz, mut offset) = (0, 0);
        if !hunks.is_empty() {
            reject_binary(old, &version.content)?;
            // Before it is made, too: what the hunks add to it came with the patch.
            hold(self.created_bytes + version.content.len())?;
            let applied = apply(old, &version.content, hunks, max_fuzz, check)?;
            (fuzz, offset) = (applied.fuzz, applied.offset);
            let unmade = version.created_bytes();
            version.content = Cow::Owned(applied.content);
            self.created_bytes =
                self.created_bytes.saturating_sub(unmade) + version.created_bytes();
            hold(self.created_bytes)?;
        }
        if change == FileChangeKind::Deleted {
            if !version.content.is_empty() {
                return Err(not_empty_error(old, &version.content));
            }
        } else {
            if let Some(executable) = executable {
                version.mode = Some(with_executable_bit(version.mode, *executable));
            }
            let slot = self.path_state(new);
            slot.current = Some(version);
            slot.is_new |= is_made;
        }
        Ok(PatchedFile { path: new.clone(), kind: change, hunks: hunks.len(), fuzz, offset })
    }

    fn path_state(&mut self, path: &str) -> &mut PathState<'a> {
        self.by_path.entry(path.to_owned()).or_default()
    }

    /// Whether something new may be put there.
    fn is_vacant(&mut self, path: &str) -> bool {
        let leaves = self.vacated.contains(path);
        let slot = self.path_state(path);
        slot.current.is_none() || leaves && !slot.is_new
    }

    /// Takes away what is there: what was there before the patch, if the patch has put something
    /// else there already.
    fn take_content(&mut self, path: &str) -> Result<PatchedContent<'a>, Error> {
        let slot = self.path_state(path);
        if let Some(original) = slot.original
            && slot.is_new
            && !slot.is_taken
        {
            slot.is_taken = true;
            return Ok(PatchedContent::new(original, path));
        }
        slot.is_new = false;
        // It is gone from here, also if something new comes.
        slot.is_taken = true;
        slot.current.take().ok_or_else(|| not_found_error(path))
    }

    /// What a copy is made of.
    fn copy_source(
        &mut self,
        path: &str,
        hold: MemoryCheck<'_>,
    ) -> Result<PatchedContent<'a>, Error> {
        let slot = self.path_state(path);
        if let Some(original) = slot.original {
            return Ok(PatchedContent::new(original, path));
        }
        let Some(now) = &slot.current else {
            return Err(not_found_error(path));
        };
        let bytes = now.created_bytes();
        hold(self.created_bytes + bytes)?;
        let copy = self.path_state(path).current.clone();
        self.created_bytes += bytes;
        copy.ok_or_else(|| not_found_error(path))
    }
}

impl<'a> PathState<'a> {
    /// What becomes of its path.
    fn outcome(self, path: &str) -> Option<PathOutcome<'a>> {
        match (self.original, self.current) {
            (None, None) => None,
            (Some(_), None) => Some(PathOutcome::Deleted),
            (Some(SourceFile { content, mode }), Some(now)) => {
                let mode = now.mode.filter(|new| *new != mode);
                (mode.is_some() || *now.content != *content).then_some(PathOutcome::Written {
                    content: now.content,
                    mode,
                    from: now.from.filter(|from| from != path),
                })
            }
            (None, Some(now)) => {
                Some(PathOutcome::Written { content: now.content, mode: now.mode, from: now.from })
            }
        }
    }
}

impl<'a> PatchedContent<'a> {
    /// Bytes of it that the patch has made.
    fn created_bytes(&self) -> usize {
        match &self.content {
            Cow::Borrowed(_) => 0,
            Cow::Owned(content) => content.len(),
        }
    }

    /// A file as it is before the patch.
    fn new(file: SourceFile<'a>, path: &str) -> Self {
        Self {
            content: Cow::Borrowed(file.content),
            mode: Some(file.mode),
            from: Some(path.to_owned()),
        }
    }
}

/// Whether hunks are all of a file: those that make one from nothing look so.
fn creates_whole_file(hunks: &[Hunk<'_>]) -> bool {
    matches!(hunks, [hunk] if hunk.old_lines().next().is_none())
}

/// Permissions after a change of those that git knows.
fn with_executable_bit(mode: Option<u32>, executable: bool) -> u32 {
    match (mode, executable) {
        (None, true) => EXECUTABLE_MODE,
        (None, false) => REGULAR_MODE,
        // Whoever may read it may execute it.
        (Some(mode), true) => mode | (mode & 0o444) >> 2,
        (Some(mode), false) => mode & !0o111,
    }
}

fn reject_binary(path: &str, content: &[u8]) -> Result<(), Error> {
    if std::str::from_utf8(content).is_ok() {
        return Ok(());
    }
    Err(Error::new(
        Reason::BinaryFile,
        format!("{path:?} holds bytes that are not UTF-8: it cannot be patched"),
    )
    .with_metadata("path", path))
}

fn not_found_error(path: &str) -> Error {
    Error::new(
        Reason::FileNotFound,
        format!(
            "the patch changes {path:?}, but no file is there: list its directory to see what is there"
        ),
    )
    .with_metadata("path", path)
}

fn not_empty_error(path: &str, left: &[u8]) -> Error {
    let excerpt = TextLines::split(left, path).map(|text| excerpt(&text, 0));
    Error::new(
        Reason::PatchHunkFail,
        format!(
            "the patch deletes {path:?}, but the file holds more than its hunks remove: make the patch anew. Of what is left, {}",
            excerpt.unwrap_or_default()
        ),
    )
    .with_metadata("path", path)
}
