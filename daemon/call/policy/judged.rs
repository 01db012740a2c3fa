//! What rules look at of a call, held for as long as it waits.

use super::decision::Asked;
use crate::{api::v1::Risk, daemon::catalog::Text};

/// What rules look at.
#[derive(Debug)]
pub(crate) struct Judged {
    /// The tool.
    pub(crate) tool: &'static str,
    /// Its risk.
    pub(crate) risk: Risk,
    /// Name of the workspace.
    pub(crate) workspace: String,
    /// The parameters; none where they cannot matter.
    pub(crate) texts: Vec<Text>,
}

impl Judged {
    /// Bytes to be looked at.
    pub(crate) fn size(&self) -> usize {
        self.texts.iter().map(|text| text.text.len()).sum()
    }

    /// The same, with these parameters.
    pub(crate) fn with_parameters(&self, texts: Vec<Text>) -> Self {
        Self {
            workspace: self.workspace.clone(),
            texts,
            ..*self
        }
    }

    /// As rules look at it.
    pub(crate) fn asked(&self) -> Asked<'_> {
        Asked {
            tool: self.tool,
            risk: self.risk,
            workspace: &self.workspace,
            texts: &self.texts,
        }
    }
}
