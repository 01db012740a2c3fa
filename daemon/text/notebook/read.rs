//! Cells as they are answered.

use super::{
    document::{Kind, Notebook, Wanted, cell_fields},
    outputs::{self, Output},
    span::{each, string, text_of},
};
use crate::daemon::error::{Error, Reason};

/// Bytes of source, and of what surrounds it, that are answered for a whole notebook; with its
/// outputs it fits into a message.
const MOST_OF_ALL: usize = 3 << 20;
/// Bytes of source that are answered for one cell.
const MOST_OF_ONE: usize = 10 << 20;
/// Bytes that a cell costs beside its source and its id.
const CELL: usize = 64;
/// Most bytes of the language that are answered.
const MOST_LANGUAGE: usize = 64;

/// A cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CellText {
    /// Its id; empty when it has none.
    pub(crate) id: String,
    /// Its position, counted from 0.
    pub(crate) index: usize,
    /// What it is; none when it says nothing that nbformat knows.
    pub(crate) kind: Option<Kind>,
    /// Its text.
    pub(crate) source: String,
    /// Number of its last execution.
    pub(crate) execution_count: Option<u32>,
    /// What its last execution left.
    pub(crate) outputs: Vec<Output>,
}

impl Notebook<'_> {
    /// The cells, or the one that is meant.
    pub(crate) fn read(&self, wanted: Option<&Wanted>) -> Result<Vec<CellText>, Error> {
        let (range, most) = match wanted {
            Some(wanted) => {
                let index = self.find(wanted)?;
                (index..index + 1, MOST_OF_ONE)
            }
            None => (0..self.ids.len(), MOST_OF_ALL),
        };
        let mut cells = Vec::new();
        let (mut left, mut left_of_outputs) = (most, outputs::MOST_OF_ALL);
        for index in range {
            let cell = self.cell(index, &mut left_of_outputs)?;
            let size = cell.source.len() + cell.id.len() + CELL;
            left = left.checked_sub(size).ok_or_else(|| too_large(wanted))?;
            cells.push(cell);
        }
        Ok(cells)
    }

    /// Language of the code cells; empty when the notebook does not say.
    pub(crate) fn language(&self) -> String {
        let inner = |object: &str, key: &str| -> Option<String> {
            let mut found = None;
            each(object, |part| {
                if part.is(key) {
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
            string(&inner(&section, key)?)
        };
        let language = named("kernelspec", "language").or_else(|| named("language_info", "name"));
        let mut language = language.unwrap_or_default();
        language.truncate(language.floor_char_boundary(MOST_LANGUAGE));
        language
    }

    fn cell(&self, index: usize, left_of_outputs: &mut usize) -> Result<CellText, Error> {
        let part = &self.cells.list()[index];
        let fields = cell_fields(part.value, index)?;
        let source = fields.get("source").map(|source| text_of(source, usize::MAX));
        let count = fields.get("execution_count");
        let outputs = fields.get("outputs");
        Ok(CellText {
            id: self.id(index),
            index,
            kind: Kind::of(&fields),
            source: source.map_or(String::new(), |(source, _)| source),
            execution_count: count.and_then(|count| count.parse().ok()),
            outputs: outputs.map_or(Vec::new(), |outputs| outputs::read(outputs, left_of_outputs)),
        })
    }
}

fn too_large(wanted: Option<&Wanted>) -> Error {
    let message = match wanted {
        None => "the cells hold more than 3 MiB of source: read them one by one, by cell_index",
        Some(_) => "the cell holds more than 10 MiB of source: read the notebook as a file",
    };
    Error::new(Reason::FileTooLarge, message)
}
