//! Changes one cell of a notebook.
//!
//! New JSON gets the layout of its surroundings: the same white space, and the source as one string
//! or as an array of lines.

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

/// A change of one cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CellChange {
    /// Replaces the source, and the kind if one is given. Clears the outputs.
    Replace(CellSelector, Option<CellKind>, String),
    /// Inserts a cell after the one with an id, at an index, or at the end.
    Insert(Option<CellSelector>, NewCell),
    Delete(CellSelector),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewCell {
    pub(crate) kind: CellKind,
    pub(crate) source: String,
}

/// A notebook after a change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EditedNotebook {
    pub(crate) text: String,
    /// Id of the replaced, inserted or deleted cell. Empty if it has none.
    pub(crate) id: String,
    /// Number of cells after the change.
    pub(crate) count: usize,
}

impl Notebook<'_> {
    /// Applies a change.
    ///
    /// # Errors
    ///
    /// If there is no such cell, or if the result would be too large to read again.
    pub(crate) fn apply_change(&self, change: &CellChange) -> Result<EditedNotebook, Error> {
        let count = self.ids.len();
        let (splice, id, count) = match change {
            CellChange::Replace(selector, kind, source) => {
                let index = self.cell_index(selector)?;
                let cell = self.replace_cell(index, *kind, source)?;
                (self.cells.replace(index, &cell), self.cell_id(index), count)
            }
            CellChange::Insert(..) if count >= MAX_CELLS => {
                return Err(too_large_error(&format!("have more than {MAX_CELLS} cells")));
            }
            CellChange::Insert(selector, cell) => {
                let index = match selector {
                    None => count,
                    Some(CellSelector::Index(index)) if *index == count => count,
                    Some(index @ CellSelector::Index(_)) => self.cell_index(index)?,
                    Some(id @ CellSelector::Id(_)) => 1 + self.cell_index(id)?,
                };
                let id = self.has_ids.then(|| self.new_id(index, &cell.source));
                let splice = self.insert_cell(index, cell, id.as_deref());
                (splice, id.unwrap_or_default(), count + 1)
            }
            CellChange::Delete(selector) => {
                let index = self.cell_index(selector)?;
                (self.cells.remove(index), self.cell_id(index), count - 1)
            }
        };

        let cells = splice.apply(self.cells.text());
        let field =
            self.fields.position("cells").ok_or_else(|| not_a_notebook("it has no array cells"))?;
        let document = self.fields.text();
        let start = document.as_ptr().addr() - self.text.as_ptr().addr();
        let before = self.text.get(..start).unwrap_or_default();
        let after = self.text.get(start + document.len()..).unwrap_or_default();
        let document = self.fields.replace(field, &cells).apply(document);

        let text = [before, &document, after].concat();
        if text.len() > MAX_TEXT_BYTES {
            return Err(too_large_error("be larger than 256 MiB"));
        }
        Ok(EditedNotebook { text, id, count })
    }

    /// Returns the JSON of a cell with another source, and another kind if one is given.
    fn replace_cell(
        &self,
        index: usize,
        kind: Option<CellKind>,
        source: &str,
    ) -> Result<String, Error> {
        let old = self.cells.entries()[index].value;
        let layout = self.cell_layout(index);
        let fields = cell_fields(old, index)?;
        let (old_kind, old_source) = (CellKind::of_cell(&fields), fields.get("source"));
        let source = self.source_json(source, old_source, &layout);

        let mut cell = CellEditor { text: old.to_owned(), layout };
        if let Some(kind) = kind.filter(|kind| Some(*kind) != old_kind) {
            cell.set_field("cell_type", &format!("\"{}\"", kind.name()))?;
            // nbformat's schema rejects these fields in cells of other kinds.
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
        if kind.or(old_kind) == Some(CellKind::Code) {
            cell.clear_field("outputs", "[]")?;
            cell.clear_field("execution_count", "null")?;
        }
        if JsonContainer::parse(&cell.text, MAX_FIELDS).is_err() {
            let what = format!("have a cell with more than {MAX_FIELDS} fields");
            return Err(too_large_error(&what));
        }
        Ok(cell.text)
    }

    /// Builds the splice that inserts a new cell before the one at `index`.
    fn insert_cell(&self, index: usize, cell: &NewCell, id: Option<&str>) -> TextSplice {
        let cells_layout = JsonLayout::of_container(&self.cells, &self.cells_layout());
        let neighbour = index.saturating_sub(1);
        let layout = self.cell_layout(neighbour);
        let neighbour_source = self.cells.entries().get(neighbour).and_then(|part| {
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
            Some(("source", self.source_json(&cell.source, neighbour_source, &layout))),
        ];
        let members: Vec<_> = members.into_iter().flatten().collect();
        self.cells.insert(index, &layout.object(&members), &cells_layout)
    }

    /// Returns a source as JSON in the form of `model`, the source of a cell with this layout.
    fn source_json(&self, source: &str, model: Option<&str>, cell: &JsonLayout) -> String {
        if model.is_some_and(|model| model.starts_with('"')) {
            return json_string(source);
        }
        let lines: Vec<String> = source.split_inclusive('\n').map(json_string).collect();
        let layout = cell.nested(&self.indent_unit());
        let model = model.filter(|model| model.starts_with('['));
        model.map_or(layout.clone(), |model| JsonLayout::detect(model, &layout)).array(&lines)
    }

    /// Returns an id that no other cell has: 8 hexadecimal digits, as Jupyter makes them. Equal
    /// changes of equal notebooks get equal ids.
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

    /// Returns the layout of the notebook object.
    fn document_layout(&self) -> JsonLayout {
        let none = JsonLayout {
            open: String::new(),
            separator: " ".to_owned(),
            close: String::new(),
            colon: ": ".to_owned(),
        };
        JsonLayout::of_container(&self.fields, &none)
    }

    /// Returns the indentation of one level.
    fn indent_unit(&self) -> String {
        let open = self.document_layout().open;
        open.rsplit_once('\n').map_or(String::new(), |(_, unit)| unit.to_owned())
    }

    /// Returns the layout for an empty array of cells.
    fn cells_layout(&self) -> JsonLayout {
        self.document_layout().nested(&self.indent_unit())
    }

    /// Returns the layout of the cell at an index, or of the first cell of an empty notebook.
    fn cell_layout(&self, index: usize) -> JsonLayout {
        let fallback =
            JsonLayout::of_container(&self.cells, &self.cells_layout()).nested(&self.indent_unit());
        match self.cells.entries().get(index) {
            Some(part) => JsonLayout::detect(part.value, &fallback),
            None => fallback,
        }
    }
}

/// Edits the fields of a cell.
#[derive(Debug)]
struct CellEditor {
    text: String,
    layout: JsonLayout,
}

impl CellEditor {
    fn splice(
        &mut self,
        change: impl FnOnce(&JsonContainer<'_>, &JsonLayout) -> Option<TextSplice>,
    ) -> Result<(), Error> {
        // The text was parsed before, and every splice keeps it valid.
        let parts = JsonContainer::parse(&self.text, MAX_FIELDS + 8).map_err(Error::internal)?;
        if let Some(splice) = change(&parts, &self.layout) {
            self.text = splice.apply(&self.text);
        }
        Ok(())
    }

    /// Sets a field. Appends it if the cell does not have it.
    fn set_field(&mut self, key: &str, value: &str) -> Result<(), Error> {
        self.splice(|parts, layout| match parts.position(key) {
            Some(index) => Some(parts.replace(index, value)),
            None => {
                let end = parts.entries().len();
                Some(parts.insert(end, &layout.member(key, value), layout))
            }
        })
    }

    /// Sets a field to an empty value, unless it has one already in another form.
    fn clear_field(&mut self, key: &str, empty: &str) -> Result<(), Error> {
        self.splice(|parts, _| {
            let index = parts.position(key)?;
            let is_empty = match parts.entries()[index].value {
                array if array.starts_with('[') => JsonContainer::parse(array, 0).is_ok(),
                value => value == empty,
            };
            (!is_empty).then(|| parts.replace(index, empty))
        })
    }

    /// Adds a field after another one, unless the cell has it.
    fn add_field_after(&mut self, other: &str, key: &str, value: &str) -> Result<(), Error> {
        self.add_field(key, value, |parts| Some(parts.position(other)? + 1))
    }

    /// Adds a field before another one, unless the cell has it.
    fn add_field_before(&mut self, other: &str, key: &str, value: &str) -> Result<(), Error> {
        self.add_field(key, value, |parts| parts.position(other))
    }

    fn add_field(
        &mut self,
        key: &str,
        value: &str,
        position: impl FnOnce(&JsonContainer<'_>) -> Option<usize>,
    ) -> Result<(), Error> {
        self.splice(|parts, layout| {
            if parts.position(key).is_some() {
                return None;
            }
            let index = position(parts).unwrap_or(parts.entries().len());
            Some(parts.insert(index, &layout.member(key, value), layout))
        })
    }

    /// Removes a field, including duplicates.
    fn remove_field(&mut self, key: &str) -> Result<(), Error> {
        let parts = JsonContainer::parse(&self.text, MAX_FIELDS + 8).map_err(Error::internal)?;
        if let Some(text) = parts.without(key) {
            self.text = text;
        }
        Ok(())
    }
}

/// Builds the error for a change whose result could not be read again.
fn too_large_error(what: &str) -> Error {
    let message = format!(
        "the notebook would {what}, which is too large to be read again: nothing was changed"
    );
    Error::new(Reason::FileTooLarge, message)
}

fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
