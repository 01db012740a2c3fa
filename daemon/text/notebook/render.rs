//! Cells as they are answered.

use super::{
    document::{CellKind, CellSelector, Notebook, cell_fields},
    json_span::{for_each_entry, parse_multiline_text, parse_string},
    outputs::{self, RenderedCellOutput},
};
use crate::daemon::error::{Error, Reason};

/// Bytes of source, and of what surrounds it, that are answered for a whole notebook; with its
/// outputs it fits into a message.
const MAX_TOTAL_SOURCE_BYTES: usize = 3 << 20;
/// Bytes of source that are answered for one cell.
const MAX_CELL_SOURCE_BYTES: usize = 10 << 20;
/// Bytes that a cell costs beside its source and its id.
const CELL_OVERHEAD_BYTES: usize = 64;
/// Most bytes of the language that are answered.
const MAX_LANGUAGE_BYTES: usize = 64;

/// A cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RenderedCell {
    /// Its id; empty when it has none.
    pub(crate) id: String,
    /// Its position, counted from 0.
    pub(crate) index: usize,
    /// What it is; none when it says nothing that nbformat knows.
    pub(crate) kind: Option<CellKind>,
    /// Its text.
    pub(crate) source: String,
    /// Number of its last execution.
    pub(crate) execution_count: Option<u32>,
    /// What its last execution left.
    pub(crate) outputs: Vec<RenderedCellOutput>,
}

impl Notebook<'_> {
    /// The cells, or the one that is meant.
    pub(crate) fn read_cells(
        &self,
        wanted: Option<&CellSelector>,
    ) -> Result<Vec<RenderedCell>, Error> {
        let (range, most) = match wanted {
            Some(wanted) => {
                let index = self.cell_index(wanted)?;
                (index..index + 1, MAX_CELL_SOURCE_BYTES)
            }
            None => (0..self.ids.len(), MAX_TOTAL_SOURCE_BYTES),
        };
        let mut cells = Vec::new();
        let (mut left, mut left_of_outputs) = (most, outputs::MAX_TOTAL_OUTPUT_BYTES);
        for index in range {
            let cell = self.read_cell(index, &mut left_of_outputs)?;
            let size = cell.source.len() + cell.id.len() + CELL_OVERHEAD_BYTES;
            left = left.checked_sub(size).ok_or_else(|| too_large_error(wanted))?;
            cells.push(cell);
        }
        Ok(cells)
    }

    /// Language of the code cells; empty when the notebook does not say.
    pub(crate) fn language(&self) -> String {
        let inner = |object: &str, key: &str| -> Option<String> {
            let mut found = None;
            for_each_entry(object, |part| {
                if part.has_key(key) {
                    found = Some(part.value.to_owned());
                }
                Ok(())
            })
            .ok()?;
            found
        };
        let metadata = self.fields.get("metadata").unwrap_or_default();
        let named = |section: &str, key: &str| {
            let section = inner(metadata, section)?;
            parse_string(&inner(&section, key)?)
        };
        let language = named("kernelspec", "language").or_else(|| named("language_info", "name"));
        let mut language = language.unwrap_or_default();
        language.truncate(language.floor_char_boundary(MAX_LANGUAGE_BYTES));
        language
    }

    fn read_cell(&self, index: usize, left_of_outputs: &mut usize) -> Result<RenderedCell, Error> {
        let part = &self.cells.entries()[index];
        let fields = cell_fields(part.value, index)?;
        let source = fields.get("source").map(|source| parse_multiline_text(source, usize::MAX));
        let count = fields.get("execution_count");
        let outputs = fields.get("outputs");
        Ok(RenderedCell {
            id: self.cell_id(index),
            index,
            kind: CellKind::of_cell(&fields),
            source: source.map_or(String::new(), |(source, _)| source),
            execution_count: count.and_then(|count| count.parse().ok()),
            outputs: outputs
                .map_or(Vec::new(), |outputs| outputs::render_outputs(outputs, left_of_outputs)),
        })
    }
}

fn too_large_error(wanted: Option<&CellSelector>) -> Error {
    let message = match wanted {
        None => "the cells hold more than 3 MiB of source: read them one by one, by cell_index",
        Some(_) => "the cell holds more than 10 MiB of source: read the notebook as a file",
    };
    Error::new(Reason::FileTooLarge, message)
}
