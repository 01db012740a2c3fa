//! A parsed notebook and the positions of its cells.

use super::json_span::{JsonContainer, parse_string};
use crate::daemon::error::{Error, Reason};

pub(super) const MAX_CELLS: usize = 100_000;
/// Fields of one JSON object.
pub(super) const MAX_FIELDS: usize = 10_000;

#[derive(Debug)]
pub(crate) struct Notebook<'a> {
    pub(super) text: &'a str,
    pub(super) fields: JsonContainer<'a>,
    pub(super) cells: JsonContainer<'a>,
    /// Id of each cell. `None` for a cell without one.
    pub(super) ids: Vec<Option<String>>,
    /// Whether this minor version of nbformat has cell ids.
    pub(super) has_ids: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CellKind {
    Code,
    Markdown,
    /// Text that is not rendered.
    Raw,
}

/// Selects a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CellSelector {
    /// The first cell with this id.
    Id(String),
    /// The cell at this position, counted from 0.
    Index(usize),
}

impl CellKind {
    /// Returns nbformat's `cell_type`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Code => "code",
            Self::Markdown => "markdown",
            Self::Raw => "raw",
        }
    }

    /// Returns the kind of a cell. `None` for one that nbformat does not define.
    pub(super) fn of_cell(cell: &JsonContainer<'_>) -> Option<Self> {
        let name = cell.get("cell_type").and_then(parse_string)?;
        [Self::Code, Self::Markdown, Self::Raw].into_iter().find(|kind| kind.name() == name)
    }
}

impl<'a> Notebook<'a> {
    /// Parses the text of a notebook.
    ///
    /// # Errors
    ///
    /// If it is not JSON, not nbformat 4, or beyond [`MAX_CELLS`] or [`MAX_FIELDS`].
    pub(crate) fn parse(text: &'a str) -> Result<Self, Error> {
        // Some editors write a byte order mark, which JSON does not allow.
        let document = text.strip_prefix('\u{feff}').unwrap_or(text);
        let document = document.trim_matches([' ', '\t', '\r', '\n']);
        if !document.starts_with('{') {
            return Err(not_a_notebook("its JSON must be an object"));
        }
        let fields = JsonContainer::parse(document, MAX_FIELDS).map_err(|problem| {
            not_a_notebook(&format!("it is not JSON ({problem})")).with_cause(problem)
        })?;

        let number = |key| fields.get(key).and_then(|value| value.parse::<u32>().ok());
        match number("nbformat") {
            Some(4) => {}
            Some(other) => {
                let problem = format!("its nbformat is {other}, and only 4 is supported");
                return Err(not_a_notebook(&problem));
            }
            None => return Err(not_a_notebook("it has no number nbformat")),
        }

        let array = fields
            .get("cells")
            .filter(|cells| cells.starts_with('['))
            .ok_or_else(|| not_a_notebook("it has no array cells"))?;
        let cells = JsonContainer::parse(array, MAX_CELLS)
            .map_err(|problem| not_a_notebook(&format!("its cells cannot be read: {problem}")))?;

        let mut ids = Vec::with_capacity(cells.entries().len());
        for (index, part) in cells.entries().iter().enumerate() {
            ids.push(cell_fields(part.value, index)?.get("id").and_then(parse_string));
        }
        let has_ids = number("nbformat_minor").is_some_and(|minor| minor >= 5);
        Ok(Self { text, fields, cells, ids, has_ids })
    }

    /// Returns the index of the selected cell.
    pub(super) fn cell_index(&self, selector: &CellSelector) -> Result<usize, Error> {
        let count = self.ids.len();
        let (index, name) = match selector {
            CellSelector::Id(id) => (
                self.ids.iter().position(|other| other.as_ref() == Some(id)),
                format!("with the id {id:?}"),
            ),
            CellSelector::Index(index) => {
                (Some(*index).filter(|index| *index < count), format!("at index {index}"))
            }
        };
        index.ok_or_else(|| {
            let cells = match count {
                0 => "it has no cells".to_owned(),
                _ => format!("it has {count} cells, counted from 0"),
            };
            let message = format!("the notebook has no cell {name}: {cells}; read it to see them");
            Error::new(Reason::CellNotFound, message)
        })
    }

    /// Returns the id of a cell. Empty if it has none.
    pub(super) fn cell_id(&self, index: usize) -> String {
        self.ids.get(index).cloned().flatten().unwrap_or_default()
    }
}

/// Parses the fields of a cell.
pub(super) fn cell_fields(cell: &str, index: usize) -> Result<JsonContainer<'_>, Error> {
    if !cell.starts_with('{') {
        return Err(not_a_notebook(&format!("cells[{index}] is not an object")));
    }
    JsonContainer::parse(cell, MAX_FIELDS)
        .map_err(|problem| not_a_notebook(&format!("cells[{index}] cannot be read: {problem}")))
}

/// Builds the error for a file that is not a notebook.
pub(crate) fn not_a_notebook(problem: &str) -> Error {
    let problem =
        format!("must be a Jupyter notebook (nbformat 4), which the file is not: {problem}");
    Error::invalid_field("path", problem)
}
