//! Changing one cell of a notebook.
//!
//! What is new is written as what is around it: the same white space, the text of a cell in lines
//! or in one string.

use sha2::{Digest as _, Sha256};

use super::{
    super::edit::LARGEST,
    document::{Kind, MOST_CELLS, MOST_FIELDS, Notebook, Wanted, cell_fields, no_notebook},
    span::{Layout, Parts, Splice},
};
use crate::daemon::{
    checksum::hexadecimal,
    error::{Error, Reason},
};

/// What to do with a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Edit {
    /// Its text becomes another, and its kind where one is given. Outputs are cleared.
    Replace(Wanted, Option<Kind>, String),
    /// A new one comes behind the cell with an id, at an index, or at the end.
    Insert(Option<Wanted>, Cell),
    /// It is taken out.
    Delete(Wanted),
}

/// A new cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    /// What it is.
    pub(crate) kind: Kind,
    /// Its text.
    pub(crate) source: String,
}

/// A notebook after a change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Changed {
    /// Its text.
    pub(crate) text: String,
    /// Id of the cell that was changed, inserted or deleted; empty when it has none.
    pub(crate) id: String,
    /// Cells that there are now.
    pub(crate) count: usize,
}

impl Notebook<'_> {
    /// Makes a change.
    pub(crate) fn edit(&self, edit: &Edit) -> Result<Changed, Error> {
        let count = self.ids.len();
        let (splice, id, count) = match edit {
            Edit::Replace(wanted, kind, source) => {
                let index = self.find(wanted)?;
                let cell = self.replaced(index, *kind, source)?;
                (self.cells.replace(index, &cell), self.id(index), count)
            }
            Edit::Insert(..) if count >= MOST_CELLS => {
                return Err(too_large(&format!("have more than {MOST_CELLS} cells")));
            }
            Edit::Insert(wanted, cell) => {
                let index = match wanted {
                    None => count,
                    Some(Wanted::Index(index)) if *index == count => count,
                    Some(index @ Wanted::Index(_)) => self.find(index)?,
                    Some(id @ Wanted::Id(_)) => 1 + self.find(id)?,
                };
                let id = self.has_ids.then(|| self.new_id(index, &cell.source));
                let splice = self.inserted(index, cell, id.as_deref());
                (splice, id.unwrap_or_default(), count + 1)
            }
            Edit::Delete(wanted) => {
                let index = self.find(wanted)?;
                (self.cells.remove(index), self.id(index), count - 1)
            }
        };
        let cells = splice.apply(self.cells.text());
        let field = self.fields.position("cells");
        let field = field.ok_or_else(|| no_notebook("it has no array cells"))?;
        let document = self.fields.text();
        let lead = document.as_ptr().addr() - self.text.as_ptr().addr();
        let before = self.text.get(..lead).unwrap_or_default();
        let after = self.text.get(lead + document.len()..).unwrap_or_default();
        let document = self.fields.replace(field, &cells).apply(document);
        let text = [before, &document, after].concat();
        if text.len() > LARGEST {
            return Err(too_large("be larger than 256 MiB"));
        }
        Ok(Changed { text, id, count })
    }

    /// A cell with another text, and perhaps kind.
    fn replaced(&self, index: usize, kind: Option<Kind>, source: &str) -> Result<String, Error> {
        let old = self.cells.list()[index].value;
        let layout = self.cell_layout(index);
        let fields = cell_fields(old, index)?;
        let (was, lines) = (Kind::of(&fields), fields.get("source"));
        let source = self.source(source, lines, &layout);
        let mut cell = Text::of(old.to_owned(), layout);
        if let Some(kind) = kind.filter(|kind| Some(*kind) != was) {
            cell.set("cell_type", &format!("\"{}\"", kind.name()))?;
            // As nbformat's schema has it: each of these is an error where it does not belong.
            if kind == Kind::Code {
                cell.remove("attachments")?;
                cell.add_behind("cell_type", "execution_count", "null")?;
                cell.add_before("source", "outputs", "[]")?;
            } else {
                cell.remove("execution_count")?;
                cell.remove("outputs")?;
            }
        }
        cell.set("source", &source)?;
        if kind.or(was) == Some(Kind::Code) {
            cell.clear("outputs", "[]")?;
            cell.clear("execution_count", "null")?;
        }
        if Parts::of(&cell.text, MOST_FIELDS).is_err() {
            let what = format!("have a cell with more than {MOST_FIELDS} fields");
            return Err(too_large(&what));
        }
        Ok(cell.text)
    }

    /// A new cell before the one at `index`.
    fn inserted(&self, index: usize, cell: &Cell, id: Option<&str>) -> Splice {
        let cells = Layout::of_parts(&self.cells, &self.cells_layout());
        let model = index.saturating_sub(1);
        let layout = self.cell_layout(model);
        let lines = self.cells.list().get(model).and_then(|part| {
            let fields = Parts::of(part.value, MOST_FIELDS).ok()?;
            fields.get("source")
        });
        let quoted = |text: &str| format!("\"{text}\"");
        let code = cell.kind == Kind::Code;
        let members = [
            Some(("cell_type", quoted(cell.kind.name()))),
            code.then(|| ("execution_count", "null".to_owned())),
            id.map(|id| ("id", quoted(id))),
            Some(("metadata", "{}".to_owned())),
            code.then(|| ("outputs", "[]".to_owned())),
            Some(("source", self.source(&cell.source, lines, &layout))),
        ];
        let members: Vec<_> = members.into_iter().flatten().collect();
        self.cells.insert(index, &layout.object(&members), &cells)
    }

    /// The text of a cell as JSON, written as that of `model`, another cell with this layout.
    fn source(&self, source: &str, model: Option<&str>, cell: &Layout) -> String {
        if model.is_some_and(|model| model.starts_with('"')) {
            return json(source);
        }
        let lines: Vec<String> = source.split_inclusive('\n').map(json).collect();
        let layout = cell.below(&self.unit());
        let model = model.filter(|model| model.starts_with('['));
        model.map_or(layout.clone(), |model| Layout::of(model, &layout)).array(&lines)
    }

    /// An id that no other cell has: 8 hexadecimal digits, as Jupyter makes them. The same change
    /// makes the same id.
    fn new_id(&self, index: usize, source: &str) -> String {
        let mut hash = Sha256::new();
        for id in self.ids.iter().flatten() {
            hash.update(id);
            hash.update([0]);
        }
        hash.update(index.to_le_bytes());
        hash.update(source);
        let mut attempt = 0_u32;
        loop {
            let digest = hash.clone().chain_update(attempt.to_le_bytes()).finalize();
            let id = hexadecimal(digest.get(..4).unwrap_or_default());
            if !self.ids.iter().flatten().any(|other| *other == id) {
                return id;
            }
            attempt += 1;
        }
    }

    // === Layouts ===

    /// That of the notebook itself.
    fn document_layout(&self) -> Layout {
        let none = Layout {
            open: String::new(),
            gap: " ".to_owned(),
            close: String::new(),
            colon: ": ".to_owned(),
        };
        Layout::of_parts(&self.fields, &none)
    }

    /// By how much each level is indented.
    fn unit(&self) -> String {
        let open = self.document_layout().open;
        open.rsplit_once('\n').map_or(String::new(), |(_, unit)| unit.to_owned())
    }

    /// That of an array of cells that is empty.
    fn cells_layout(&self) -> Layout {
        self.document_layout().below(&self.unit())
    }

    /// That of the cell at an index, or of a first one.
    fn cell_layout(&self, index: usize) -> Layout {
        let fallback = Layout::of_parts(&self.cells, &self.cells_layout()).below(&self.unit());
        match self.cells.list().get(index) {
            Some(part) => Layout::of(part.value, &fallback),
            None => fallback,
        }
    }
}

/// A cell that is being changed.
#[derive(Debug)]
struct Text {
    text: String,
    layout: Layout,
}

impl Text {
    fn of(text: String, layout: Layout) -> Self {
        Self { text, layout }
    }

    fn change(
        &mut self,
        change: impl FnOnce(&Parts<'_>, &Layout) -> Option<Splice>,
    ) -> Result<(), Error> {
        // It was read before, and was changed to something that can be read.
        let parts = Parts::of(&self.text, MOST_FIELDS + 8).map_err(Error::internal)?;
        if let Some(splice) = change(&parts, &self.layout) {
            self.text = splice.apply(&self.text);
        }
        Ok(())
    }

    /// Gives a field a value, at the end when the cell does not have it.
    fn set(&mut self, key: &str, value: &str) -> Result<(), Error> {
        self.change(|parts, layout| match parts.position(key) {
            Some(index) => Some(parts.replace(index, value)),
            None => {
                let end = parts.list().len();
                Some(parts.insert(end, &layout.member(key, value), layout))
            }
        })
    }

    /// Gives a field a value that means nothing, unless it has such a one.
    fn clear(&mut self, key: &str, nothing: &str) -> Result<(), Error> {
        self.change(|parts, _| {
            let index = parts.position(key)?;
            let is_empty = match parts.list()[index].value {
                array if array.starts_with('[') => Parts::of(array, 0).is_ok(),
                value => value == nothing,
            };
            (!is_empty).then(|| parts.replace(index, nothing))
        })
    }

    /// Adds a field behind another one, unless it is there.
    fn add_behind(&mut self, other: &str, key: &str, value: &str) -> Result<(), Error> {
        self.add(key, value, |parts| Some(parts.position(other)? + 1))
    }

    /// Adds a field before another one, unless it is there.
    fn add_before(&mut self, other: &str, key: &str, value: &str) -> Result<(), Error> {
        self.add(key, value, |parts| parts.position(other))
    }

    fn add(
        &mut self,
        key: &str,
        value: &str,
        place: impl FnOnce(&Parts<'_>) -> Option<usize>,
    ) -> Result<(), Error> {
        self.change(|parts, layout| {
            if parts.position(key).is_some() {
                return None;
            }
            let index = place(parts).unwrap_or(parts.list().len());
            Some(parts.insert(index, &layout.member(key, value), layout))
        })
    }

    /// Takes a field out, however often it is there.
    fn remove(&mut self, key: &str) -> Result<(), Error> {
        let parts = Parts::of(&self.text, MOST_FIELDS + 8).map_err(Error::internal)?;
        if let Some(text) = parts.without(key) {
            self.text = text;
        }
        Ok(())
    }
}

/// The notebook would become one that is not read.
fn too_large(what: &str) -> Error {
    let message = format!(
        "the notebook would {what}, and such a one could not be read again: nothing was changed"
    );
    Error::new(Reason::FileTooLarge, message)
}

/// A string as JSON.
fn json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
