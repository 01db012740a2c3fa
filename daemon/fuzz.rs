//! Fuzz targets for the parsers: each runs one parser on hostile input and asserts its invariants.
//! `tests/fuzz` calls them. Compiled with `cfg(fuzzing)` only.
//!
//! An input is UTF-8, split into sections at U+001E. Other inputs are ignored. Archives are bytes.

mod archive;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Component, Path, PathBuf},
};

use serde_json::value::RawValue;

pub use self::archive::archive;
use super::{
    error::Error,
    text::{
        diff,
        edit::{self, Occurrence, StringEdit},
        notebook::{CellChange, CellKind, CellSelector, NewCell, Notebook},
        patch::{self, PathOutcome, SourceFile},
    },
    workspace::{RelativePath, compile_globs},
};

const SECTION_SEPARATOR: char = '\u{1e}';
const MOUNT_PATH: &str = "/work/space";
/// Bytes of an error message in addition to six per byte of input: an escaped byte takes six
/// (`\u{7f}`).
const MAX_MESSAGE_BYTES: usize = 8192;
/// Bytes that one edit may add to a text.
const MAX_ADDED_BYTES: usize = 64 << 10;

/// Parses a request's path. The input is one path.
///
/// A path that parses stays in the workspace and equals the result of the standard library.
pub fn path(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    for mount_path in [MOUNT_PATH, "/"].map(Path::new) {
        let model = model_path(text, mount_path);

        let path = match RelativePath::parse(text, mount_path) {
            Ok(path) => path,
            Err(error) => {
                check_error(&error, data);
                assert!(model.is_none() || text.contains('\0'), "{text:?}: {error}");
                continue;
            }
        };

        assert_eq!(Some(Path::new(path.as_str())), model.as_deref());
        let relative = std::str::from_utf8(path.as_bytes()).expect("was a string");
        if !relative.is_empty() {
            let is_invalid = |name: &str| ["", ".", ".."].contains(&name) || name.contains('\0');
            assert!(!relative.split('/').any(is_invalid), "{text:?} → {relative:?}");
        }

        let absolute = path.absolute(mount_path);
        assert!(absolute.starts_with(mount_path));
        for same in [path.as_str(), absolute.to_str().expect("both are UTF-8")] {
            assert_eq!(RelativePath::parse(same, mount_path).ok(), Some(path.clone()));
        }

        if let Some((directory, name)) = path.split() {
            assert!(path.is_at_or_below(&directory) && !directory.is_at_or_below(&path));
            assert!(!name.contains('/'));
            assert_eq!(Path::new(path.as_str()).file_name(), Some(name.as_ref()));
        }
    }
}

/// Resolves a path with [`Path::components`]. `None` for one that leaves `mount_path`.
fn model_path(text: &str, mount_path: &Path) -> Option<PathBuf> {
    let text = Path::new(text);
    let mut resolved = PathBuf::new();

    for component in text.components() {
        match component {
            Component::Normal(name) => resolved.push(name),
            Component::ParentDir => {
                if !resolved.pop() && !text.has_root() {
                    return None;
                }
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }

    if text.has_root() {
        resolved = Path::new("/").join(resolved).strip_prefix(mount_path).ok()?.to_owned();
    }
    if resolved.as_os_str().is_empty() {
        resolved.push(".");
    }
    Some(resolved)
}

/// Compiles a request's globs. The input is a path, then globs.
///
/// - The same globs decide the same each time.
/// - A glob with `!` excludes what it includes without.
/// - A glob that is the path itself, with each character escaped, includes the path.
pub fn glob(data: &[u8]) {
    let Some(sections) = sections(data) else {
        return;
    };
    let Some((path, patterns)) = sections.split_first() else {
        return;
    };
    let path = match RelativePath::parse(path, Path::new(MOUNT_PATH)) {
        Ok(path) if !path.as_bytes().is_empty() => path,
        _ => return,
    };
    let path = path.as_str();

    match compile_globs(patterns.iter().copied()) {
        Ok(globs) => {
            for is_directory in [false, true] {
                let decide = || globs.matched(path, is_directory).map(|_| ());
                let first = decide();
                assert_eq!(first.is_ignore(), decide().is_ignore());
                assert!(!globs.is_empty() || first.is_none());
            }
        }
        Err(error) => check_error(&error, data),
    }

    for glob in patterns.iter().filter(|glob| !glob.is_empty() && !glob.starts_with('!')) {
        let Ok(plain) = compile_globs([*glob]) else {
            continue;
        };
        let Ok(inverted) = compile_globs([&*format!("!{glob}")]) else {
            panic!("{glob:?} compiles, but not with a leading !");
        };
        for is_directory in [false, true] {
            assert_eq!(
                plain.matched(path, is_directory).is_whitelist(),
                inverted.matched(path, is_directory).is_ignore(),
                "{glob:?} and {path:?}"
            );
        }
    }

    let mut literal = String::from("/");
    for character in path.chars() {
        if character != '/' {
            literal.push('\\');
        }
        literal.push(character);
    }
    match compile_globs([&*literal]) {
        Ok(globs) => assert!(globs.matched(path, false).is_whitelist(), "{literal:?}"),
        Err(error) => panic!("{literal:?}: {error}"),
    }
}

/// Applies string edits. The input is the edits' occurrences (`u`, `f` or `a` each), the text, then
/// the old and the new string of each edit.
///
/// The result equals that of `str::replace` and `str::replacen`.
pub fn edit(data: &[u8]) {
    let Some(sections) = sections(data) else {
        return;
    };
    let [occurrences, text, strings @ ..] = &*sections else {
        return;
    };
    let occurrences = occurrences.chars().map(|letter| match letter {
        'u' => Occurrence::Unique,
        'f' => Occurrence::First,
        _ => Occurrence::All,
    });

    let (mut edits, mut model) = (Vec::new(), Some((*text).to_owned()));
    for (index, (occurrence, pair)) in occurrences.zip(strings.chunks_exact(2)).enumerate() {
        let [old, new] = pair else { return };
        let Ok(edit) = StringEdit::new(index, (*old).to_owned(), (*new).to_owned(), occurrence)
        else {
            assert!(old.is_empty() || old == new);
            return;
        };

        // Edits that multiply the text can grow a tiny input to 256 MiB. Reporting each comparison
        // to the fuzzer would then take most of the time.
        let count = model.as_ref().map_or(0, |text| text.matches(old).count());
        if count * new.len() > MAX_ADDED_BYTES {
            return;
        }

        model = model.and_then(|text| match (count, occurrence) {
            (0, _) | (2.., Occurrence::Unique) => None,
            (_, Occurrence::All) => Some(text.replace(old, new)),
            _ => Some(text.replacen(old, new, 1)),
        });
        edits.push(edit);
    }

    match edit::apply(text, &edits, &|| Ok(()), &|_| Ok(())) {
        Ok(edited) => {
            assert_eq!(Some(&edited.text), model.as_ref());
            assert_eq!(edited.results.len(), edits.len());
            for result in &edited.results {
                assert!((1..=result.occurrences).contains(&result.replacements));
                assert!(result.lines.len() <= result.replacements && result.lines.is_sorted());
            }
        }
        Err(error) => {
            check_error(&error, data);
            assert_eq!(None, model, "{error}");
        }
    }
}

/// Parses and plans a patch. The input is two digits (strip, fuzz), the patch, then the names and
/// contents of files.
///
/// - No result is larger than the largest file plus the patch.
/// - Each path has one outcome.
/// - A diff of the first two contents turns the first into the second.
pub fn patch(data: &[u8]) {
    let Some(sections) = sections(data) else {
        return;
    };
    let [options, text, files @ ..] = &*sections else {
        return;
    };
    let option = |index| options.as_bytes().get(index).map_or(0, |digit| usize::from(*digit % 8));
    let (strip, fuzz) = (option(0), option(1));

    let files: HashMap<String, SourceFile<'_>> = files
        .chunks_exact(2)
        .filter_map(|file| {
            let [name, content] = file else { return None };
            let source = SourceFile { content: content.as_bytes(), mode: 0o644 };
            Some(((*name).to_owned(), source))
        })
        .collect();

    if let Err(error) = check_patch(text, strip, fuzz, &files) {
        check_error(&error, data);
    }
    if let [_, _, _, old, _, new, ..] = &*sections {
        check_diff(old, new);
    }
}

fn check_patch(
    text: &str,
    strip: usize,
    fuzz: usize,
    files: &HashMap<String, SourceFile<'_>>,
) -> Result<(), Error> {
    let mut patches = patch::parse(text, strip)?;
    assert!(!patches.is_empty());

    let mut names = BTreeSet::new();
    for patch in &mut patches {
        for name in [&mut patch.old, &mut patch.new] {
            assert!(!name.is_empty() && name.len() <= 4096 && !name.contains('\0'));
            let path = RelativePath::parse(name, Path::new(MOUNT_PATH))?;
            *name = path.as_str().to_owned();
            names.insert(name.clone());
        }
    }

    let plan = patch::plan(&patches, files, fuzz, &|| Ok(()), &|_| Ok(()))?;
    assert_eq!(plan.files.len(), patches.len());
    for file in &plan.files {
        assert!(file.fuzz <= fuzz && names.contains(&file.path));
    }

    let largest = files.values().map(|file| file.content.len()).max();
    // An added line, and the former last line, may gain a carriage return and a newline.
    let max_bytes = largest.unwrap_or(0) + 3 * (text.len() + 1);
    let mut seen = BTreeSet::new();
    for (path, outcome) in &plan.outcomes {
        assert!(names.contains(path) && seen.insert(path), "{path:?}");
        match (outcome, files.get(path)) {
            (PathOutcome::Deleted, original) => assert!(original.is_some(), "{path:?}"),
            (PathOutcome::Written { content, mode, .. }, original) => {
                assert!(content.len() <= max_bytes, "{path:?}: {} bytes", content.len());
                assert!(std::str::from_utf8(content).is_ok());
                let changes = |file: &SourceFile<'_>| mode.is_some() || file.content != &**content;
                assert!(original.is_none_or(changes), "{path:?} does not change");
            }
        }
    }
    Ok(())
}

fn check_diff(old: &str, new: &str) {
    let text = diff::unified("f", old, new, usize::MAX);
    if old == new {
        assert!(text.is_empty());
        return;
    }

    let source = SourceFile { content: old.as_bytes(), mode: 0o644 };
    let files = HashMap::from([("f".to_owned(), source)]);
    let patches = patch::parse(&text, 1).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    let plan = patch::plan(&patches, &files, 0, &|| Ok(()), &|_| Ok(()))
        .unwrap_or_else(|error| panic!("{text:?}: {error}"));

    match &*plan.outcomes {
        [(_, PathOutcome::Written { content, .. })] => {
            assert_eq!(String::from_utf8_lossy(content), new, "{text:?}");
        }
        outcomes => panic!("{text:?}: {outcomes:?}"),
    }
    assert!(plan.files.iter().all(|file| file.offset == 0 && file.fuzz == 0));
}

/// Changes one cell of a notebook. The input is the change (a letter; the cell, a digit; the kind,
/// a letter), a source, and the notebook.
///
/// - No byte outside the cell changes, and the result parses.
/// - Deleting an inserted cell restores the original text.
/// - Fields that the change does not name keep their values.
pub fn notebook(data: &[u8]) {
    let Some(sections) = sections(data) else {
        return;
    };
    let [options, source, text] = &*sections else {
        return;
    };
    let notebook = match Notebook::parse(text) {
        Ok(notebook) => notebook,
        Err(error) => return check_error(&error, data),
    };
    notebook.language();
    let count = notebook.read_cells(None).expect("an input is small").len();

    let [action, digit, kind, ..] = *options.as_bytes() else {
        return;
    };
    let index = usize::from(digit % 16);
    let kind = match kind {
        b'c' => Some(CellKind::Code),
        b'm' => Some(CellKind::Markdown),
        b'r' => Some(CellKind::Raw),
        _ => None,
    };
    let change = cell_change(action, index, kind, source);

    let edited = match notebook.apply_change(&change) {
        Ok(edited) => edited,
        Err(error) => {
            assert!(index >= count, "{error}");
            return check_error(&error, data);
        }
    };
    let reparsed = match Notebook::parse(&edited.text) {
        Ok(reparsed) => reparsed,
        Err(error) => panic!("{:?}: {error}", edited.text),
    };
    let cells = reparsed.read_cells(None).expect("an input is small");
    assert_eq!(cells.len(), edited.count);

    if let CellChange::Delete(_) = change {
        assert_eq!(cells.len() + 1, count);
    } else {
        let cell = cells.get(index).expect("was written");
        assert_eq!(cell.source, *source);
        assert_eq!(cell.id, edited.id);
        assert!(kind.is_none() || cell.kind == kind);
        if cell.kind == Some(CellKind::Code) {
            assert!(cell.outputs.is_empty() && cell.execution_count.is_none());
        }
    }
    if let CellChange::Insert(..) = change {
        let delete = CellChange::Delete(CellSelector::Index(index));
        let restored = reparsed.apply_change(&delete).expect("the cell exists").text;
        assert!(count == 0 || restored == **text, "{restored:?}");
    }
    check_bytes(text, &edited.text, index, &change);
}

fn cell_change(action: u8, index: usize, kind: Option<CellKind>, source: &str) -> CellChange {
    let selector = CellSelector::Index(index);
    let source = source.to_owned();
    match action {
        b'r' => CellChange::Replace(selector, kind, source),
        b'i' => {
            let kind = kind.unwrap_or(CellKind::Raw);
            CellChange::Insert(Some(selector), NewCell { kind, source })
        }
        _ => CellChange::Delete(selector),
    }
}

/// Compares the bytes around the cell, located by another JSON reader.
fn check_bytes(before: &str, after: &str, index: usize, change: &CellChange) {
    let (Some((array, old)), Some((_, new))) = (cells_of(before), cells_of(after)) else {
        // `serde_json` rejects keys with half a surrogate pair, and Python's NaN.
        return;
    };
    let range = |part: &str| {
        let start = part.as_ptr().addr() - before.as_ptr().addr();
        start..start + part.len()
    };

    let (other_old, other_new, changed) = match change {
        CellChange::Replace(..) => {
            let (old_cell, new_cell) = (old[index], new[index]);
            check_fields(old_cell, new_cell);
            (without(&old, index), without(&new, index), range(old_cell))
        }
        CellChange::Insert(..) => (old, without(&new, index), range(array)),
        CellChange::Delete(_) => (without(&old, index), new, range(array)),
    };
    assert_eq!(other_old, other_new);

    let (head, tail) = (&before[..changed.start], &before[changed.end..]);
    assert!(after.len() >= head.len() + tail.len());
    assert!(after.starts_with(head) && after.ends_with(tail), "{after:?}");
}

/// Returns the array of cells, and each cell, as JSON text.
fn cells_of(text: &str) -> Option<(&str, Vec<&str>)> {
    let fields: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
    let array = fields.get("cells")?.get();
    let cells: Vec<&RawValue> = serde_json::from_str(array).ok()?;
    Some((array, cells.into_iter().map(RawValue::get).collect()))
}

/// Asserts that fields that a replacement does not write are equal in both cells.
fn check_fields(old: &str, new: &str) {
    const WRITTEN_FIELDS: [&str; 5] =
        ["attachments", "cell_type", "execution_count", "outputs", "source"];
    let fields = |cell| -> Option<BTreeMap<String, &RawValue>> { serde_json::from_str(cell).ok() };
    let (Some(old), Some(new)) = (fields(old), fields(new)) else {
        return;
    };
    let others = |fields: &BTreeMap<String, &RawValue>| -> BTreeMap<String, String> {
        fields
            .iter()
            .filter(|(key, _)| !WRITTEN_FIELDS.contains(&&***key))
            .map(|(key, value)| (key.clone(), value.get().to_owned()))
            .collect()
    };
    assert_eq!(others(&old), others(&new));
}

fn without<'a>(cells: &[&'a str], index: usize) -> Vec<&'a str> {
    let mut cells = cells.to_vec();
    cells.remove(index);
    cells
}

fn sections(data: &[u8]) -> Option<Vec<&str>> {
    let text = std::str::from_utf8(data).ok()?;
    Some(text.split(SECTION_SEPARATOR).collect())
}

fn check_error(error: &Error, data: &[u8]) {
    assert!(error.message.len() <= MAX_MESSAGE_BYTES + 6 * data.len(), "{error}");
    for (_, value) in &error.metadata {
        assert!(value.len() <= MAX_MESSAGE_BYTES + data.len(), "{value:?}");
    }
}
