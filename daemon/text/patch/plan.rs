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
    file::{FilePatch, Kind},
    hunk::Hunk,
    misfit::excerpt,
    search::{Check, Text},
};
use crate::daemon::error::{Error, Reason};

/// Permissions of a new file that can be executed.
const EXECUTABLE: u32 = 0o755;
/// Permissions of one that cannot.
const PLAIN: u32 = 0o644;

/// A file before the patch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct File<'a> {
    pub(crate) content: &'a [u8],
    /// Its permissions.
    pub(crate) mode: u32,
}

/// What a patch does.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// The files of the patch, in its order.
    pub(crate) changed: Vec<Changed>,
    /// What becomes of each path that does not stay as it is.
    pub(crate) fates: Vec<(String, Fate<'a>)>,
}

/// A file of a patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Changed {
    /// Where it is after the patch.
    pub(crate) path: String,
    pub(crate) change: Change,
    /// How many hunks were applied.
    pub(crate) hunks: usize,
    /// Most context lines that were ignored at an end of a hunk.
    pub(crate) fuzz: usize,
    /// Most lines by which a hunk lay away from where the patch said.
    pub(crate) offset: usize,
}

/// What is done to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
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
pub(crate) enum Fate<'a> {
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
struct Version<'a> {
    content: Cow<'a, [u8]>,
    mode: Option<u32>,
    /// Where it was before the patch; none for a new one.
    from: Option<String>,
}

/// A path.
#[derive(Debug, Default)]
struct Slot<'a> {
    original: Option<File<'a>>,
    now: Option<Version<'a>>,
    /// Whether what is there now was put there by the patch.
    is_new: bool,
    /// Whether what was there was renamed or deleted after something else had been put there.
    is_taken: bool,
}

#[derive(Debug)]
struct Slots<'a> {
    by_path: HashMap<String, Slot<'a>>,
    /// Paths that the patch deletes or renames.
    leaving: HashSet<String>,
    /// Bytes of all contents that the patch has made.
    made: usize,
}

/// Asked whether there is memory for this many bytes of new contents.
pub(crate) type Hold<'a> = &'a dyn Fn(usize) -> Result<(), Error>;

/// Works out what a patch does. `originals` has what is at each path that it names.
pub(crate) fn plan<'a>(
    patches: &[FilePatch<'_>],
    originals: &HashMap<String, File<'a>>,
    max_fuzz: usize,
    check: Check<'_>,
    hold: Hold<'_>,
) -> Result<Plan<'a>, Error> {
    let leaves = |patch: &&FilePatch<'_>| matches!(patch.kind, Kind::Delete | Kind::Rename);
    let leaving = patches.iter().filter(leaves);
    let mut slots = Slots {
        leaving: leaving.map(|patch| patch.old.clone()).collect(),
        by_path: HashMap::new(),
        made: 0,
    };
    let mut order = Vec::new();
    for path in patches.iter().flat_map(|patch| [&patch.old, &patch.new]) {
        if slots.by_path.contains_key(path) {
            continue;
        }
        let original = originals.get(path).copied();
        let slot = Slot {
            original,
            now: original.map(|file| Version::new(file, path)),
            ..Slot::default()
        };
        slots.by_path.insert(path.clone(), slot);
        order.push(path);
    }
    let mut changed = Vec::with_capacity(patches.len());
    for patch in patches {
        check()?;
        changed.push(slots.change(patch, max_fuzz, check, hold)?);
    }
    let mut fates = Vec::new();
    for path in order {
        let slot = slots.by_path.remove(path);
        if let Some(fate) = slot.and_then(|slot| slot.fate(path)) {
            fates.push((path.clone(), fate));
        }
    }
    Ok(Plan { changed, fates })
}

impl<'a> Slots<'a> {
    fn change(
        &mut self,
        patch: &FilePatch<'_>,
        max_fuzz: usize,
        check: Check<'_>,
        hold: Hold<'_>,
    ) -> Result<Changed, Error> {
        let FilePatch { old, new, kind, executable, hunks } = patch;
        let (version, change) = match kind {
            Kind::Create => (None, Change::Added),
            Kind::Delete => (Some(self.take(old)?), Change::Deleted),
            Kind::Rename => (Some(self.take(old)?), Change::Renamed { from: old.clone() }),
            Kind::Copy => (Some(self.source(old, hold)?), Change::Added),
            Kind::Modify => match self.slot(old).now.take() {
                Some(version) => (Some(version), Change::Modified),
                None if is_whole_file(hunks) => (None, Change::Added),
                None => return Err(not_found(old)),
            },
        };
        let is_made = !matches!(change, Change::Modified | Change::Deleted);
        if is_made && !self.is_vacant(new) {
            return Err(Error::new(
                Reason::FileExists,
                format!("the patch makes {new:?}, but a file is there already: patch that one, or delete it first"),
            )
            .with("path", new));
        }
        let mut version =
            version.unwrap_or(Version { content: Cow::Borrowed(&[]), mode: None, from: None });
        let (mut fuzz, mut offset) = (0, 0);
        if !hunks.is_empty() {
            refuse_binary(old, &version.content)?;
            // Before it is made, too: what the hunks add to it came with the patch.
            hold(self.made + version.content.len())?;
            let applied = apply(old, &version.content, hunks, max_fuzz, check)?;
            (fuzz, offset) = (applied.fuzz, applied.offset);
            let unmade = version.made();
            version.content = Cow::Owned(applied.content);
            self.made = self.made.saturating_sub(unmade) + version.made();
            hold(self.made)?;
        }
        if change == Change::Deleted {
            if !version.content.is_empty() {
                return Err(not_empty(old, &version.content));
            }
        } else {
            if let Some(executable) = executable {
                version.mode = Some(with_execution(version.mode, *executable));
            }
            let slot = self.slot(new);
            slot.now = Some(version);
            slot.is_new |= is_made;
        }
        Ok(Changed { path: new.clone(), change, hunks: hunks.len(), fuzz, offset })
    }

    fn slot(&mut self, path: &str) -> &mut Slot<'a> {
        self.by_path.entry(path.to_owned()).or_default()
    }

    /// Whether something new may be put there.
    fn is_vacant(&mut self, path: &str) -> bool {
        let leaves = self.leaving.contains(path);
        let slot = self.slot(path);
        slot.now.is_none() || leaves && !slot.is_new
    }

    /// Takes away what is there: what was there before the patch, if the patch has put something
    /// else there already.
    fn take(&mut self, path: &str) -> Result<Version<'a>, Error> {
        let slot = self.slot(path);
        if let Some(original) = slot.original
            && slot.is_new
            && !slot.is_taken
        {
            slot.is_taken = true;
            return Ok(Version::new(original, path));
        }
        slot.is_new = false;
        // It is gone from here, also if something new comes.
        slot.is_taken = true;
        slot.now.take().ok_or_else(|| not_found(path))
    }

    /// What a copy is made of.
    fn source(&mut self, path: &str, hold: Hold<'_>) -> Result<Version<'a>, Error> {
        let slot = self.slot(path);
        if let Some(original) = slot.original {
            return Ok(Version::new(original, path));
        }
        let Some(now) = &slot.now else {
            return Err(not_found(path));
        };
        let bytes = now.made();
        hold(self.made + bytes)?;
        let copy = self.slot(path).now.clone();
        self.made += bytes;
        copy.ok_or_else(|| not_found(path))
    }
}

impl<'a> Slot<'a> {
    /// What becomes of its path.
    fn fate(self, path: &str) -> Option<Fate<'a>> {
        match (self.original, self.now) {
            (None, None) => None,
            (Some(_), None) => Some(Fate::Deleted),
            (Some(File { content, mode }), Some(now)) => {
                let mode = now.mode.filter(|new| *new != mode);
                (mode.is_some() || *now.content != *content).then_some(Fate::Written {
                    content: now.content,
                    mode,
                    from: now.from.filter(|from| from != path),
                })
            }
            (None, Some(now)) => {
                Some(Fate::Written { content: now.content, mode: now.mode, from: now.from })
            }
        }
    }
}

impl<'a> Version<'a> {
    /// Bytes of it that the patch has made.
    fn made(&self) -> usize {
        match &self.content {
            Cow::Borrowed(_) => 0,
            Cow::Owned(content) => content.len(),
        }
    }

    /// A file as it is before the patch.
    fn new(file: File<'a>, path: &str) -> Self {
        Self {
            content: Cow::Borrowed(file.content),
            mode: Some(file.mode),
            from: Some(path.to_owned()),
        }
    }
}

/// Whether hunks are all of a file: those that make one from nothing look so.
fn is_whole_file(hunks: &[Hunk<'_>]) -> bool {
    matches!(hunks, [hunk] if hunk.old_lines().next().is_none())
}

/// Permissions after a change of those that git knows.
fn with_execution(mode: Option<u32>, executable: bool) -> u32 {
    match (mode, executable) {
        (None, true) => EXECUTABLE,
        (None, false) => PLAIN,
        // Whoever may read it may execute it.
        (Some(mode), true) => mode | (mode & 0o444) >> 2,
        (Some(mode), false) => mode & !0o111,
    }
}

fn refuse_binary(path: &str, content: &[u8]) -> Result<(), Error> {
    if std::str::from_utf8(content).is_ok() {
        return Ok(());
    }
    Err(Error::new(
        Reason::BinaryFile,
        format!("{path:?} holds bytes that are not UTF-8: it cannot be patched"),
    )
    .with("path", path))
}

fn not_found(path: &str) -> Error {
    Error::new(
        Reason::FileNotFound,
        format!(
            "the patch changes {path:?}, but no file is there: list its directory to see what is there"
        ),
    )
    .with("path", path)
}

fn not_empty(path: &str, left: &[u8]) -> Error {
    let excerpt = Text::split(left, path).map(|text| excerpt(&text, 0));
    Error::new(
        Reason::PatchHunkFail,
        format!(
            "the patch deletes {path:?}, but the file holds more than its hunks remove: make the patch anew. Of what is left, {}",
            excerpt.unwrap_or_default()
        ),
    )
    .with("path", path)
}
