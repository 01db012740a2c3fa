//! A call, as it is decided about.

use crate::{api::v1::Risk, daemon::catalog::PolicyText};

/// A call that is decided about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PolicyRequestRef<'a> {
    /// The tool.
    pub(crate) tool: &'a str,
    /// Its risk.
    pub(crate) risk: Risk,
    /// The workspace.
    pub(crate) workspace: &'a str,
    /// The parameters as texts.
    pub(crate) texts: &'a [PolicyText],
    /// Of a call in another vocabulary, its own tool and texts.
    pub(crate) dialect_call: Option<(&'a str, &'a [PolicyText])>,
}

impl<'a> PolicyRequestRef<'a> {
    /// The tool that it was made as, in a dialect.
    pub(super) fn dialect_tool(&self) -> Option<&'a str> {
        self.dialect_call.map(|(tool, _)| tool)
    }
}
