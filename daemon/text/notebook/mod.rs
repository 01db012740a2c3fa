//! Jupyter notebooks, nbformat 4: what their cells hold, and changing one of them.
//!
//! A notebook is never written anew. Where its parts are in the text is found out, and the text is
//! changed there: everything else keeps its bytes, whatever it is.
//!
//! | file | holds |
//! |---|---|
//! | [`change`] | replacing, inserting, deleting a cell |
//! | [`document`] | a notebook and where its cells are |
//! | [`outputs`] | outputs of cells as text |
//! | [`python`] | what Python writes and JSON does not have |
//! | [`read`] | cells as they are answered |
//! | [`span`] | parts of a JSON text, in place |

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
