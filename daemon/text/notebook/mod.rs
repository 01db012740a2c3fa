//! Jupyter notebooks, nbformat 4: reads cells, and changes one cell at a time.
//!
//! A change never rewrites the notebook. It locates the JSON of a cell in the text and splices the
//! text there, so that everything else keeps its bytes.
//!
//! | module | contents |
//! |---|---|
//! | [`cell_change`] | replaces, inserts and deletes a cell |
//! | [`document`] | parses a notebook and locates its cells |
//! | [`json_span`] | locates and splices the parts of a JSON text |
//! | [`outputs`] | renders outputs of cells as text |
//! | [`python_json`] | accepts JSON with Python's `NaN` and `Infinity` |
//! | [`render`] | cells for a response |

mod cell_change;
mod document;
mod json_span;
mod outputs;
mod python_json;
mod render;

pub(crate) use self::{
    cell_change::{CellChange, NewCell},
    document::{CellKind, CellSelector, Notebook, not_a_notebook},
    render::RenderedCell,
};

#[cfg(test)]
mod tests;
