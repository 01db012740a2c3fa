//! What is known of a call before it is decided whether it may be made.

use crate::{api::v1::Risk, daemon::catalog::Told};

/// What is to be decided about.
#[derive(Debug)]
pub(super) struct Subject {
    /// The tool.
    pub(super) tool: &'static str,
    /// Its risk.
    pub(super) risk: Risk,
    /// Name of the workspace.
    pub(super) workspace: String,
    /// The parameters, where they can matter.
    pub(super) told: Option<Told>,
    /// Files that the call names, likewise.
    pub(super) files: Vec<String>,
}
