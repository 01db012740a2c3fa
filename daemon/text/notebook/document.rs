//! A notebook, and where its cells are.

use super::json_span::{JsonContainer, parse_string};
use crate::daemon::error::{Error, Reason};

/// Most cells of a notebook.
pub(super) const MAX_CELLS: usize = 100_000;
/// Most fields of an object that is looked into.
pub(super) const MAX_FIELDS: usize = 10_000;

/// A notebook.
#[derive(Debug)]
pub(crate) struct Notebook<'a> {
    /// Its text.
    pub(super) text: &'a str,
    /// Its fields.
    pub(super) fields: JsonContainer<'a>,
    /// Its cells.
    pub(super) cells: JsonContainer<'a>,
    /// Their ids, as far as they have some.
    pub(super) ids: Vec<Option<String>>,
    /// Whether its version of nbformat has ids of cells.
    pub(super) has_ids: bool,
}

/// Kind of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CellKind {
    /// Code.
    Code,
    /// Markdown.
    Markdown,
    /// Text that is not rendered.
    Raw,
}

/// Which cell is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CellSelector {
    /// The one with this id; of several, the first one.
    Id(String),
    /// The one at this position, counted from 0.
    Index(usize),
}

impl CellKind {
    /// Its name in nbformat.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Code => "code",
            Self::Markdown => "markdown",
            Self::Raw => "raw",
        }
    }

    /// That of a cell with these fields.
    pub(super) fn of_cell(cell: &JsonContainer<'_>) -> Option<Self> {
        let name = cell.get("cell_type").and_then(parse_string)?;
        [Self::Code, Self::Markdown, Self::Raw].into_iter().find(|kind| kind.name() == name)
    }
}

impl<'a> Notebook<'a> {
    /// Understands the text of a notebook.
    pub(crate) fn parse(text: &'a str) -> Result<Self, Error> {
        // A byte order mark, which some editors write, is no JSON.
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
                let problem = format!("its nbformat is {other}, and only 4 is understood");
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

    /// Index of the cell that is meant.
    pub(super) fn cell_index(&self, wanted: &CellSelector) -> Result<usize, Error> {
        let count = self.ids.len();
        let (found, name) = match wanted {
            CellSelector::Id(id) => (
                self.ids.iter().position(|has| has.as_ref() == Some(id)),
                format!("with the id {id:?}"),
            ),
            CellSelector::Index(index) => {
                (Some(*index).filter(|index| *index < count), format!("at index {index}"))
            }
        };
        found.ok_or_else(|| {
            let cells = match count {
                0 => "it has no cells".to_owned(),
                _ => format!("it has {count} cells, counted from 0"),
            };
            let message = format!("the notebook has no cell {name}: {cells}; read it to see them");
            Error::new(Reason::CellNotFound, message)
        })
    }

    /// Id of a cell; empty when it has none.
    pub(super) fn cell_id(&self, index: usize) -> String {
        self.ids.get(index).cloned().flatten().unwrap_or_default()
    }
}

/// The fields of a cell.
pub(super) fn cell_fields(cell: &str, index: usize) -> Result<JsonContainer<'_>, Error> {
    if !cell.starts_with('{') {
        return Err(not_a_notebook(&format!("cells[{index}] is no object")));
    }
    JsonContainer::parse(cell, MAX_FIELDS)
        .map_err(|problem| not_a_notebook(&format!("cells[{index}] cannot be read: {problem}")))
}

/// The file is no notebook.
pub(crate) fn not_a_notebook(why: &str) -> Error {
    let problem = format!("must be a Jupyter notebook (nbformat 4), which the file is not: {why}");
    Error::invalid_field("path", problem)
}
