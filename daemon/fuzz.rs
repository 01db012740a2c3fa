//! What `tests/fuzz` calls with hostile input: the parsers, each with what must hold whatever they
//! are given. Compiled for fuzzing only.
//!
//! An input is UTF-8, in sections between the characters U+001E. What is not, says nothing.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Component, Path, PathBuf},
};

use serde_json::value::RawValue;

use super::{
    error::Error,
    text::{
        diff,
        edit::{self, Edit, Which},
        notebook::{self, Cell, Notebook, Wanted},
        patch::{self, Fate, File},
    },
    workspace::{RelativePath, globs},
};

const SEPARATOR: char = '\u{1e}';
const MOUNT_PATH: &str = "/work/space";
/// Bytes that a message may have beside six for each of the input (`\u{7f}` is how one is shown).
const MESSAGE: usize = 8192;
/// Bytes that an edit may add to a text.
const LARGEST_EDITED: usize = 64 << 10;

/// Paths of requests. The input is one.
///
/// What is understood names nothing out of the workspace, and is what the standard library makes of
/// the path.
pub fn path(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    for mount_path in [MOUNT_PATH, "/"].map(Path::new) {
        let model = model_of_path(text, mount_path);
        let path = match RelativePath::parse(text, mount_path) {
            Ok(path) => path,
            Err(error) => {
                check_error(&error, data);
                assert!(model.is_none() || text.contains('\0'), "{text:?}: {error}");
                continue;
            }
        };
        assert_eq!(Some(Path::new(path.as_str())), model.as_deref());
        let below = std::str::from_utf8(path.as_bytes()).expect("was a string");
        if !below.is_empty() {
            let strange = |name: &str| ["", ".", ".."].contains(&name) || name.contains('\0');
            assert!(!below.split('/').any(strange), "{text:?} → {below:?}");
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

fn model_of_path(text: &str, mount_path: &Path) -> Option<PathBuf> {
    let text = Path::new(text);
    let mut found = PathBuf::new();
    for component in text.components() {
        match component {
            Component::Normal(name) => found.push(name),
            Component::ParentDir => {
                if !found.pop() && !text.has_root() {
                    return None;
                }
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    if text.has_root() {
        found = Path::new("/").join(found);
        found = found.strip_prefix(mount_path).ok()?.to_owned();
    }
    if found.as_os_str().is_empty() {
        found.push(".");
    }
    Some(found)
}

/// Globs of requests. The input is a path and globs.
///
/// Whatever they are, they decide the same each time; a glob with `!` refuses what it takes
/// without; and one that is the path itself, with a backslash before each character, takes it.
pub fn glob(data: &[u8]) {
    let Some(sections) = sections(data) else {
        return;
    };
    let Some((path, wanted)) = sections.split_first() else {
        return;
    };
    let path = match RelativePath::parse(path, Path::new(MOUNT_PATH)) {
        Ok(path) if !path.as_bytes().is_empty() => path,
        _ => return,
    };
    let path = path.as_str();
    match globs(wanted.iter().copied()) {
        Ok(globs) => {
            for is_directory in [false, true] {
                let decided = || globs.matched(path, is_directory).map(|_| ());
                let first = decided();
                assert_eq!(first.is_ignore(), decided().is_ignore());
                assert!(!globs.is_empty() || first.is_none());
            }
        }
        Err(error) => check_error(&error, data),
    }
    for glob in wanted.iter().filter(|glob| !glob.is_empty() && !glob.starts_with('!')) {
        let Ok(plain) = globs([*glob]) else {
            continue;
        };
        let Ok(inverted) = globs([&*format!("!{glob}")]) else {
            panic!("{glob:?} is a glob, but not with ! before it");
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
    match globs([&*literal]) {
        Ok(globs) => assert!(globs.matched(path, false).is_whitelist(), "{literal:?}"),
        Err(error) => panic!("{literal:?}: {error}"),
    }
}

/// Edits of a text. The input is `u`, `f` or `a` for each edit, the text, and the edits: what is
/// old and what is new.
///
/// They do what the standard library's functions on strings do.
pub fn edit(data: &[u8]) {
    let Some(sections) = sections(data) else {
        return;
    };
    let [which, text, strings @ ..] = &*sections else {
        return;
    };
    let kinds = which.chars().map(|which| match which {
        'u' => Which::Unique,
        'f' => Which::First,
        _ => Which::All,
    });
    let (mut edits, mut model) = (Vec::new(), Some((*text).to_owned()));
    for (index, (which, pair)) in kinds.zip(strings.chunks_exact(2)).enumerate() {
        let [old, new] = pair else { return };
        let Ok(edit) = Edit::new(index, (*old).to_owned(), (*new).to_owned(), which) else {
            assert!(old.is_empty() || old == new);
            return;
        };
        // Edits that multiply the text can make 256 MiB of nothing: telling the fuzzer of each
        // comparison then takes longer than all else.
        let found = model.as_ref().map_or(0, |text| text.matches(old).count());
        if found * new.len() > LARGEST_EDITED {
            return;
        }
        model = model.and_then(|text| match (found, which) {
            (0, _) | (2.., Which::Unique) => None,
            (_, Which::All) => Some(text.replace(old, new)),
            _ => Some(text.replacen(old, new, 1)),
        });
        edits.push(edit);
    }
    match edit::apply(text, &edits, &|| Ok(()), &|_| Ok(())) {
        Ok(edited) => {
            assert_eq!(Some(&edited.text), model.as_ref());
            assert_eq!(edited.results.len(), edits.len());
            for result in &edited.results {
                assert!((1..=result.found).contains(&result.replacements));
                assert!(result.lines.len() <= result.replacements && result.lines.is_sorted());
            }
        }
        Err(error) => {
            check_error(&error, data);
            assert_eq!(None, model, "{error}");
        }
    }
}

/// Patches. The input is two digits (components to take off, fuzz), the patch, and the names and
/// contents of files.
///
/// What they make is no larger than what there was and the patch, each path has one fate, and a
/// diff of the first two contents makes the second of the first.
pub fn patch(data: &[u8]) {
    let Some(sections) = sections(data) else {
        return;
    };
    let [options, text, files @ ..] = &*sections else {
        return;
    };
    let option = |index| options.as_bytes().get(index).map_or(0, |digit| usize::from(*digit % 8));
    let (strip, fuzz) = (option(0), option(1));
    let files: HashMap<String, File<'_>> = files
        .chunks_exact(2)
        .filter_map(|file| {
            let [name, content] = file else { return None };
            let content = content.as_bytes();
            let mode = 0o644;
            Some(((*name).to_owned(), File { content, mode }))
        })
        .collect();
    if let Err(error) = patched(text, strip, fuzz, &files) {
        check_error(&error, data);
    }
    if let [_, _, _, old, _, new, ..] = &*sections {
        check_diff(old, new);
    }
}

fn patched(
    text: &str,
    strip: usize,
    fuzz: usize,
    files: &HashMap<String, File<'_>>,
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
    assert_eq!(plan.changed.len(), patches.len());
    for changed in &plan.changed {
        assert!(changed.fuzz <= fuzz && names.contains(&changed.path));
    }
    let largest = files.values().map(|file| file.content.len()).max();
    // A line that is added, or that was the last, may get a carriage return and a newline.
    let most = largest.unwrap_or(0) + 3 * (text.len() + 1);
    let mut seen = BTreeSet::new();
    for (path, fate) in &plan.fates {
        assert!(names.contains(path) && seen.insert(path), "{path:?}");
        match (fate, files.get(path)) {
            (Fate::Deleted, original) => assert!(original.is_some(), "{path:?}"),
            (Fate::Written { content, mode, .. }, original) => {
                assert!(content.len() <= most, "{path:?}: {} bytes", content.len());
                assert!(std::str::from_utf8(content).is_ok());
                let changes = |file: &File<'_>| mode.is_some() || file.content != &**content;
                assert!(original.is_none_or(changes), "{path:?} stays as it is");
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
    let content = old.as_bytes();
    let files = HashMap::from([("f".to_owned(), File { content, mode: 0o644 })]);
    let patches = patch::parse(&text, 1).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    let plan = patch::plan(&patches, &files, 0, &|| Ok(()), &|_| Ok(()));
    let plan = plan.unwrap_or_else(|error| panic!("{text:?}: {error}"));
    match &*plan.fates {
        [(_, Fate::Written { content, .. })] => {
            assert_eq!(String::from_utf8_lossy(content), new, "{text:?}");
        }
        fates => panic!("{text:?}: {fates:?}"),
    }
    assert!(plan.changed.iter().all(|file| file.offset == 0 && file.fuzz == 0));
}

/// Edits of notebooks. The input is what to do (a letter; the cell, a digit; the kind, a letter), a
/// source, and the notebook.
///
/// Around the cell, no byte changes, and the notebook can be read again. What was inserted can be
/// deleted, which brings back what there was. Fields that no edit is about stay as they are.
pub fn notebook(data: &[u8]) {
    let Some(sections) = sections(data) else {
        return;
    };
    let [todo, source, text] = &*sections else {
        return;
    };
    let parsed = match Notebook::parse(text) {
        Ok(parsed) => parsed,
        Err(error) => return check_error(&error, data),
    };
    parsed.language();
    let count = parsed.read(None).expect("it is small").len();
    let [todo, digit, kind, ..] = *todo.as_bytes() else {
        return;
    };
    let index = usize::from(digit % 16);
    let wanted = Wanted::Index(index);
    let kind = match kind {
        b'c' => Some(notebook::Kind::Code),
        b'm' => Some(notebook::Kind::Markdown),
        b'r' => Some(notebook::Kind::Raw),
        _ => None,
    };
    let source = (*source).to_owned();
    let edit = match todo {
        b'r' => notebook::Edit::Replace(wanted.clone(), kind, source.clone()),
        b'i' => {
            let kind = kind.unwrap_or(notebook::Kind::Raw);
            let source = source.clone();
            notebook::Edit::Insert(Some(wanted.clone()), Cell { kind, source })
        }
        _ => notebook::Edit::Delete(wanted.clone()),
    };
    let changed = match parsed.edit(&edit) {
        Ok(changed) => changed,
        Err(error) => {
            assert!(index >= count, "{error}");
            return check_error(&error, data);
        }
    };
    let after = match Notebook::parse(&changed.text) {
        Ok(after) => after,
        Err(error) => panic!("{:?}: {error}", changed.text),
    };
    let cells = after.read(None).expect("it is small");
    assert_eq!(cells.len(), changed.count);
    if let notebook::Edit::Delete(_) = edit {
        assert_eq!(cells.len() + 1, count);
    } else {
        let cell = cells.get(index).expect("was written");
        assert_eq!(cell.source, source);
        assert_eq!(cell.id, changed.id);
        assert!(kind.is_none() || cell.kind == kind);
        if cell.kind == Some(notebook::Kind::Code) {
            assert!(cell.outputs.is_empty() && cell.execution_count.is_none());
        }
    }
    if let notebook::Edit::Insert(..) = edit {
        let undone = after.edit(&notebook::Edit::Delete(wanted));
        let undone = undone.expect("the cell is there").text;
        assert!(count == 0 || undone == **text, "{undone:?}");
    }
    check_bytes(text, &changed.text, index, &edit);
}

/// Compares the bytes around the cell with what another reader finds where.
fn check_bytes(before: &str, after: &str, index: usize, edit: &notebook::Edit) {
    let (Some((array, old)), Some((_, new))) = (cells_of(before), cells_of(after)) else {
        // A key with half of a surrogate pair, or Python's NaN: the other reader refuses it.
        return;
    };
    let range = |part: &str| {
        let start = part.as_ptr().addr() - before.as_ptr().addr();
        start..start + part.len()
    };
    let (kept_old, kept_new, changed) = match edit {
        notebook::Edit::Replace(..) => {
            let (was, is) = (old[index], new[index]);
            check_fields(was, is);
            (without(&old, index), without(&new, index), range(was))
        }
        notebook::Edit::Insert(..) => (old, without(&new, index), range(array)),
        notebook::Edit::Delete(_) => (without(&old, index), new, range(array)),
    };
    assert_eq!(kept_old, kept_new);
    let (head, tail) = (&before[..changed.start], &before[changed.end..]);
    assert!(after.len() >= head.len() + tail.len());
    assert!(after.starts_with(head) && after.ends_with(tail), "{after:?}");
}

/// The array of cells, and the cells.
fn cells_of(text: &str) -> Option<(&str, Vec<&str>)> {
    let fields: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
    let array = fields.get("cells")?.get();
    let cells: Vec<&RawValue> = serde_json::from_str(array).ok()?;
    Some((array, cells.into_iter().map(RawValue::get).collect()))
}

fn check_fields(was: &str, is: &str) {
    let fields = |cell| -> Option<BTreeMap<String, &RawValue>> { serde_json::from_str(cell).ok() };
    let (Some(was), Some(is)) = (fields(was), fields(is)) else {
        return;
    };
    let others = |fields: &BTreeMap<String, &RawValue>| -> BTreeMap<String, String> {
        let touched = ["attachments", "cell_type", "execution_count", "outputs", "source"];
        let fields = fields.iter().filter(|(key, _)| !touched.contains(&&***key));
        fields.map(|(key, value)| (key.clone(), value.get().to_owned())).collect()
    };
    assert_eq!(others(&was), others(&is));
}

fn without<'a>(cells: &[&'a str], index: usize) -> Vec<&'a str> {
    let mut cells = cells.to_vec();
    cells.remove(index);
    cells
}

fn sections(data: &[u8]) -> Option<Vec<&str>> {
    let text = std::str::from_utf8(data).ok()?;
    Some(text.split(SEPARATOR).collect())
}

fn check_error(error: &Error, data: &[u8]) {
    assert!(error.message.len() <= MESSAGE + 6 * data.len(), "{error}");
    for (_, value) in &error.metadata {
        assert!(value.len() <= MESSAGE + data.len(), "{value:?}");
    }
}
