//! Cells for a response, within its size limits.

use super::{
    document::{CellKind, CellSelector, Notebook, cell_fields},
    json_span::{for_each_entry, parse_multiline_text, parse_string},
    outputs::{self, RenderedCellOutput},
};
use crate::daemon::error::{Error, Reason};

/// Source and other data of the cells in a response for a whole notebook. Together with the outputs
/// they fit into one message.
const MAX_TOTAL_SOURCE_BYTES: usize = 3 << 20;
/// Source and other data in a response for one cell.
const MAX_CELL_SOURCE_BYTES: usize = 10 << 20;
/// Cost of a cell in the response, in addition to its source and id.
const CELL_OVERHEAD_BYTES: usize = 64;
const MAX_LANGUAGE_BYTES: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RenderedCell {
    /// Empty if the cell has none.
    pub(crate) id: String,
    /// Position, counted from 0.
    pub(crate) index: usize,
    /// `None` for a kind that nbformat does not define.
    pub(crate) kind: Option<CellKind>,
    pub(crate) source: String,
    /// Number of the last execution.
    pub(crate) execution_count: Option<u32>,
    /// Outputs of the last execution.
    pub(crate) outputs: Vec<RenderedCellOutput>,
}

impl Notebook<'_> {
    /// Returns all cells, or the selected one.
    ///
    /// # Errors
    ///
    /// If there is no such cell, or if the sources exceed the limit.
    pub(crate) fn read_cells(
        &self,
        selector: Option<&CellSelector>,
    ) -> Result<Vec<RenderedCell>, Error> {
        let (range, mut budget_bytes) = match selector {
            Some(selector) => {
                let index = self.cell_index(selector)?;
                (index..index + 1, MAX_CELL_SOURCE_BYTES)
            }
            None => (0..self.ids.len(), MAX_TOTAL_SOURCE_BYTES),
        };

        let mut cells = Vec::new();
        let mut output_budget_bytes = outputs::MAX_TOTAL_OUTPUT_BYTES;
        for index in range {
            let cell = self.read_cell(index, &mut output_budget_bytes)?;
            let size = cell.source.len() + cell.id.len() + CELL_OVERHEAD_BYTES;
            budget_bytes =
                budget_bytes.checked_sub(size).ok_or_else(|| too_large_error(selector))?;
            cells.push(cell);
        }
        Ok(cells)
    }

    /// Returns the language of the code cells. Empty if the metadata do not contain it.
    pub(crate) fn language(&self) -> String {
        let member = |object: &str, key: &str| -> Option<String> {
            let mut found = None;
            for_each_entry(object, |entry| {
                if entry.has_key(key) {
                    found = Some(entry.value.to_owned());
                }
                Ok(())
            })
            .ok()?;
            found
        };
        let metadata = self.fields.get("metadata").unwrap_or_default();
        let named = |section: &str, key: &str| {
            let section = member(metadata, section)?;
            parse_string(&member(&section, key)?)
        };

        let mut language = named("kernelspec", "language")
            .or_else(|| named("language_info", "name"))
            .unwrap_or_default();
        language.truncate(language.floor_char_boundary(MAX_LANGUAGE_BYTES));
        language
    }

    fn read_cell(
        &self,
        index: usize,
        output_budget_bytes: &mut usize,
    ) -> Result<RenderedCell, Error> {
        let entry = &self.cells.entries()[index];
        let fields = cell_fields(entry.value, index)?;
        let source = fields.get("source").map(|source| parse_multiline_text(source, usize::MAX));
        let count = fields.get("execution_count");
        let outputs = fields.get("outputs");
        Ok(RenderedCell {
            id: self.cell_id(index),
            index,
            kind: CellKind::of_cell(&fields),
            source: source.map_or(String::new(), |(source, _)| source),
            execution_count: count.and_then(|count| count.parse().ok()),
            outputs: outputs.map_or(Vec::new(), |outputs| {
                outputs::render_outputs(outputs, output_budget_bytes)
            }),
        })
    }
}

fn too_large_error(selector: Option<&CellSelector>) -> Error {
    let message = match selector {
        None => "the cells hold more than 3 MiB of source: read them one by one, by cell_index",
        Some(_) => "the cell holds more than 10 MiB of source: read the notebook as a file",
    };
    Error::new(Reason::FileTooLarge, message)
}
