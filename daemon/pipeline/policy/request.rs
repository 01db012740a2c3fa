//! What rules look at of a call, held for as long as it waits.

use std::sync::Arc;

use serde_json::Value;

use super::request_ref::PolicyRequestRef;
use crate::{
    api::v1::Risk,
    daemon::{catalog::PolicyText, dialect::Dialect},
};

/// What a call of a dialect was made as.
#[derive(Debug, Clone)]
pub(crate) struct DialectCall {
    /// The dialect.
    pub(crate) dialect: &'static Dialect,
    /// Its tool.
    pub(crate) tool: &'static str,
    /// Compact JSON of the parameters as they were given; none where it is long, and nobody looked for it. It
    /// may hold secrets: never to be kept.
    pub(crate) texts: Vec<PolicyText>,
    /// Names and values for people, without what may be secret and without the content of files.
    pub(crate) preview_params: Vec<(String, String)>,
    /// The parameters that were given, for records: of what may be secret and of file content the size.
    pub(crate) record_params: Value,
}

/// What rules look at.
#[derive(Debug)]
pub(crate) struct PolicyRequest {
    /// The tool.
    pub(crate) tool: &'static str,
    /// Its risk.
    pub(crate) risk: Risk,
    /// Name of the workspace.
    pub(crate) workspace: String,
    /// The parameters; none where they cannot matter.
    pub(crate) texts: Vec<PolicyText>,
    /// What it was made as, where that was in a dialect.
    pub(crate) dialect_call: Option<Arc<DialectCall>>,
}

impl PolicyRequest {
    /// Bytes to be looked at.
    pub(crate) fn text_bytes(&self) -> usize {
        let said = self.dialect_call.iter().flat_map(|said| &said.texts);
        let texts = self.texts.iter().chain(said);
        texts.map(|text| text.text.len()).sum()
    }

    /// The same, without its parameters.
    pub(crate) fn without_parameters(&self) -> Self {
        let said = self
            .dialect_call
            .as_deref()
            .map(|said| Arc::new(DialectCall { texts: Vec::new(), ..said.clone() }));
        Self { dialect_call: said, ..self.with_parameters(Vec::new()) }
    }

    /// The same, with these parameters.
    pub(crate) fn with_parameters(&self, texts: Vec<PolicyText>) -> Self {
        Self {
            workspace: self.workspace.clone(),
            texts,
            dialect_call: self.dialect_call.clone(),
            ..*self
        }
    }

    /// As rules look at it.
    pub(crate) fn to_request_ref(&self) -> PolicyRequestRef<'_> {
        PolicyRequestRef {
            tool: self.tool,
            risk: self.risk,
            workspace: &self.workspace,
            texts: &self.texts,
            dialect_call: self
                .dialect_call
                .as_deref()
                .map(|said| (said.tool, said.texts.as_slice())),
        }
    }
}
