//! A call, as it is decided about.

use crate::{api::v1::Risk, daemon::catalog::Text};

/// A call that is decided about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    /// The tool.
    pub(crate) tool: &'a str,
    /// Its risk.
    pub(crate) risk: Risk,
    /// The workspace.
    pub(crate) workspace: &'a str,
    /// The parameters as texts.
    pub(crate) texts: &'a [Text],
    /// Of a call in another vocabulary, its own tool and texts.
    pub(crate) said: Option<(&'a str, &'a [Text])>,
}

impl<'a> Asked<'a> {
    /// The tool that it was made as, in a dialect.
    pub(super) fn name(&self) -> Option<&'a str> {
        self.said.map(|(tool, _)| tool)
    }
}
