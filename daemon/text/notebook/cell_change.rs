//! Changing one cell of a notebook.
//!
//! What is new is written as what is around it: the same white space, the text of a cell in lines
//! or in one string.

use sha2::{Digest as _, Sha256};

use super::{
    super::edit::MAX_TEXT_BYTES,
    document::{
        CellKind, CellSelector, MAX_CELLS, MAX_FIELDS, Notebook, cell_fields, not_a_notebook,
    },
    json_span::{JsonContainer, JsonLayout, TextSplice},
};
use crate::daemon::{
    checksum::to_hex,
    error::{Error, Reason},
};

/// What to do with a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CellChange {
    /// Its text becomes another, and its kind where one is given. Outputs are cleared.
    Replace(CellSelector, Option<CellKind>, String),
    /// A new one comes behind the cell with an id, at an index, or at the end.
    Insert(Option<CellSelector>, NewCell),
    /// It is taken out.
    Delete(CellSelector),
}

/// A new cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewCell {
    /// What it is.
    pub(crate) kind: CellKind,
    /// Its text.
    pub(crate) source: String,
}

/// A notebook after a change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EditedNotebook {
    /// Its text.
    pub(crate) text: String,
    /// Id of the cell that was changed, inserted or deleted; empty when it has none.
    pub(crate) id: String,
    /// Cells that there are now.
    pub(crate) count: usize,
}

impl Notebook<'_> {
    /// Makes a change.
    pub(crate) fn apply_change(&self, edit: &CellChange) -> Result<EditedNotebook, Error> {
        let count = self.ids.len();
        let (splice, id, count) = match edit {
            CellChange::Replace(wanted, kind, source) => {
                let index = self.cell_index(wanted)?;
                let cell = self.replace_cell(index, *kind, source)?;
                (self.cells.replace(index, &cell), self.cell_id(index), count)
            }
            CellChange::Insert(..) if count >= MAX_CELLS => {
                return Err(too_large_error(&format!("have more than {MAX_CELLS} cells")));
            }
            CellChange::Insert(wanted, cell) => {
                let index = match wanted {
                    None => count,
                    Some(CellSelector::Index(index)) if *index == count => count,
                    Some(index @ CellSelector::Index(_)) => self.cell_index(index)?,
                    Some(id @ CellSelector::Id(_)) => 1 + self.cell_index(id)?,
                };
                let id = self.has_ids.then(|| self.new_id(index, &cell.source));
                let splice = self.insert_cell(index, cell, id.as_deref());
                (splice, id.unwrap_or_default(), count + 1)
            }
            CellChange::Delete(wanted) => {
                let index = self.cell_index(wanted)?;
                (self.cells.remove(index), self.cell_id(index), count - 1)
            }
        };
        let cells = splice.apply(self.cells.text());
        let field = self.fields.position("cells");
        let field = field.ok_or_else(|| not_a_notebook("it has no array cells"))?;
        let document = self.fields.text();
        let lead = document.as_ptr().addr() - self.text.as_ptr().addr();
        let before = self.text.get(..lead).unwrap_or_default();
        let after = self.text.get(lead + document.len()..).unwrap_or_default();
        let document = self.fields.replace(field, &cells).apply(document);
        let text = [before, &document, after].concat();
        if text.len() > MAX_TEXT_BYTES {
            return Err(too_large_error("be larger than 256 MiB"));
        }
        Ok(EditedNotebook { text, id, count })
    }

    /// A cell with another text, and perhaps kind.
    fn replace_cell(
        &self,
        index: usize,
        kind: Option<CellKind>,
        source: &str,
    ) -> Result<String, Error> {
        let old = self.cells.entries()[index].value;
        let layout = self.cell_layout(index);
        let fields = cell_fields(old, index)?;
        let (was, lines) = (CellKind::of_cell(&fields), fields.get("source"));
        let source = self.source_json(source, lines, &layout);
        let mut cell = CellEditor::new(old.to_owned(), layout);
        if let Some(kind) = kind.filter(|kind| Some(*kind) != was) {
            cell.set_field("cell_type", &format!("\"{}\"", kind.name()))?;
            // As nbformat's schema has it: each of these is an error where it does not belong.
            if kind == CellKind::Code {
                cell.remove_field("attachments")?;
                cell.add_field_after("cell_type", "execution_count", "null")?;
                cell.add_field_before("source", "outputs", "[]")?;
            } else {
                cell.remove_field("execution_count")?;
                cell.remove_field("outputs")?;
            }
        }
        cell.set_field("source", &source)?;
        if kind.or(was) == Some(CellKind::Code) {
            cell.clear_field("outputs", "[]")?;
            cell.clear_field("execution_count", "null")?;
        }
        if JsonContainer::parse(&cell.text, MAX_FIELDS).is_err() {
            let what = format!("have a cell with more than {MAX_FIELDS} fields");
            return Err(too_large_error(&what));
        }
        Ok(cell.text)
    }

    /// A new cell before the one at `index`.
    fn insert_cell(&self, index: usize, cell: &NewCell, id: Option<&str>) -> TextSplice {
        let cells = JsonLayout::of_container(&self.cells, &self.cells_layout());
        let model = index.saturating_sub(1);
        let layout = self.cell_layout(model);
        let lines = self.cells.entries().get(model).and_then(|part| {
            let fields = JsonContainer::parse(part.value, MAX_FIELDS).ok()?;
            fields.get("source")
        });
        let quoted = |text: &str| format!("\"{text}\"");
        let code = cell.kind == CellKind::Code;
        let members = [
            Some(("cell_type", quoted(cell.kind.name()))),
            code.then(|| ("execution_count", "null".to_owned())),
            id.map(|id| ("id", quoted(id))),
            Some(("metadata", "{}".to_owned())),
            code.then(|| ("outputs", "[]".to_owned())),
            Some(("source", self.source_json(&cell.source, lines, &layout))),
        ];
        let members: Vec<_> = members.into_iter().flatten().collect();
        self.cells.insert(index, &layout.object(&members), &cells)
    }

    /// The text of a cell as JSON, written as that of `model`, another cell with this layout.
    fn source_json(&self, source: &str, model: Option<&str>, cell: &JsonLayout) -> String {
        if model.is_some_and(|model| model.starts_with('"')) {
            return json_string(source);
        }
        let lines: Vec<String> = source.split_inclusive('\n').map(json_string).collect();
        let layout = cell.nested(&self.indent_unit());
        let model = model.filter(|model| model.starts_with('['));
        model.map_or(layout.clone(), |model| JsonLayout::detect(model, &layout)).array(&lines)
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
            let id = to_hex(digest.get(..4).unwrap_or_default());
            if !self.ids.iter().flatten().any(|other| *other == id) {
                return id;
            }
            attempt += 1;
        }
    }

    // === Layouts ===

    /// That of the notebook itself.
    fn document_layout(&self) -> JsonLayout {
        let none = JsonLayout {
            open: String::new(),
            separator: " ".to_owned(),
            close: String::new(),
            colon: ": ".to_owned(),
        };
        JsonLayout::of_container(&self.fields, &none)
    }

    /// By how much each level is indented.
    fn indent_unit(&self) -> String {
        let open = self.document_layout().open;
        open.rsplit_once('\n').map_or(String::new(), |(_, unit)| unit.to_owned())
    }

    /// That of an array of cells that is empty.
    fn cells_layout(&self) -> JsonLayout {
        self.document_layout().nested(&self.indent_unit())
    }

    /// That of the cell at an index, or of a first one.
    fn cell_layout(&self, index: usize) -> JsonLayout {
        let fallback =
            JsonLayout::of_container(&self.cells, &self.cells_layout()).nested(&self.indent_unit());
        match self.cells.entries().get(index) {
            Some(part) => JsonLayout::detect(part.value, &fallback),
            None => fallback,
        }
    }
}

/// A cell that is being changed.
#[derive(Debug)]
struct CellEditor {
    text: String,
    layout: JsonLayout,
}

impl CellEditor {
    fn new(text: String, layout: JsonLayout) -> Self {
        Self { text, layout }
    }

    fn splice(
        &mut self,
        change: impl FnOnce(&JsonContainer<'_>, &JsonLayout) -> Option<TextSplice>,
    ) -> Result<(), Error> {
        // It was read before, and was changed to something that can be read.
        let parts = JsonContainer::parse(&self.text, MAX_FIELDS + 8).map_err(Error::internal)?;
        if let Some(splice) = change(&parts, &self.layout) {
            self.text = splice.apply(&self.text);
        }
        Ok(())
    }

    /// Gives a field a value, at the end when the cell does not have it.
    fn set_field(&mut self, key: &str, value: &str) -> Result<(), Error> {
        self.splice(|parts, layout| match parts.position(key) {
            Some(index) => Some(parts.replace(index, value)),
            None => {
                let end = parts.entries().len();
                Some(parts.insert(end, &layout.member(key, value), layout))
            }
        })
    }

    /// Gives a field a value that means nothing, unless it has such a one.
    fn clear_field(&mut self, key: &str, nothing: &str) -> Result<(), Error> {
        self.splice(|parts, _| {
            let index = parts.position(key)?;
            let is_empty = match parts.entries()[index].value {
                array if array.starts_with('[') => JsonContainer::parse(array, 0).is_ok(),
                value => value == nothing,
            };
            (!is_empty).then(|| parts.replace(index, nothing))
        })
    }

    /// Adds a field behind another one, unless it is there.
    fn add_field_after(&mut self, other: &str, key: &str, value: &str) -> Result<(), Error> {
        self.add_field(key, value, |parts| Some(parts.position(other)? + 1))
    }

    /// Adds a field before another one, unless it is there.
    fn add_field_before(&mut self, other: &str, key: &str, value: &str) -> Result<(), Error> {
        self.add_field(key, value, |parts| parts.position(other))
    }

    fn add_field(
        &mut self,
        key: &str,
        value: &str,
        place: impl FnOnce(&JsonContainer<'_>) -> Option<usize>,
    ) -> Result<(), Error> {
        self.splice(|parts, layout| {
            if parts.position(key).is_some() {
                return None;
            }
            let index = place(parts).unwrap_or(parts.entries().len());
            Some(parts.insert(index, &layout.member(key, value), layout))
        })
    }

    /// Takes a field out, however often it is there.
    fn remove_field(&mut self, key: &str) -> Result<(), Error> {
        let parts = JsonContainer::parse(&self.text, MAX_FIELDS + 8).map_err(Error::internal)?;
        if let Some(text) = parts.without(key) {
            self.text = text;
        }
        Ok(())
    }
}

/// The notebook would become one that is not read.
fn too_large_error(what: &str) -> Error {
    let message = format!(
        "the notebook would {what}, and such a one could not be read again: nothing was changed"
    );
    Error::new(Reason::FileTooLarge, message)
}

/// A string as JSON.
fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
