//! A call as the policy sees it: owned while the call waits, borrowed for one decision.

use std::sync::Arc;

use serde_json::Value;

use crate::{
    api::v1::Risk,
    daemon::{catalog::PolicyText, dialect::Dialect},
};

/// The call as the model made it, in the tool names and parameters of a dialect.
#[derive(Debug, Clone)]
pub(crate) struct DialectCall {
    pub(crate) dialect: &'static Dialect,
    /// The tool's name in the dialect.
    pub(crate) tool: &'static str,
    /// Compact JSON of the given parameters. Empty if they are long and no rule needs them. May
    /// contain secrets: never stored.
    pub(crate) texts: Vec<PolicyText>,
    /// Names and values for approvers, without secrets and without file content.
    pub(crate) preview_params: Vec<(String, String)>,
    /// The given parameters for records. Secrets and file content are replaced by their size.
    pub(crate) record_params: Value,
}

/// The part of a call that rules match, owned for as long as the call waits.
#[derive(Debug)]
pub(crate) struct PolicyRequest {
    pub(crate) tool: &'static str,
    pub(crate) risk: Risk,
    /// Name of the workspace.
    pub(crate) workspace: String,
    /// The parameters as texts. Empty if no rule can match them.
    pub(crate) texts: Vec<PolicyText>,
    pub(crate) dialect_call: Option<Arc<DialectCall>>,
}

/// A borrowed [`PolicyRequest`], for one decision.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PolicyRequestRef<'a> {
    pub(crate) tool: &'a str,
    pub(crate) risk: Risk,
    /// Name of the workspace.
    pub(crate) workspace: &'a str,
    /// The parameters as texts.
    pub(crate) texts: &'a [PolicyText],
    /// For a call in a dialect: the tool and the parameters of the dialect.
    pub(crate) dialect_call: Option<(&'a str, &'a [PolicyText])>,
}

impl PolicyRequest {
    /// Total length of all texts that rules may match.
    pub(crate) fn text_bytes(&self) -> usize {
        let dialect_texts = self.dialect_call.iter().flat_map(|call| &call.texts);
        self.texts.iter().chain(dialect_texts).map(|text| text.text.len()).sum()
    }

    /// Returns the request without any parameters.
    pub(crate) fn without_parameters(&self) -> Self {
        let dialect_call = self
            .dialect_call
            .as_deref()
            .map(|call| Arc::new(DialectCall { texts: Vec::new(), ..call.clone() }));
        Self { dialect_call, ..self.with_parameters(Vec::new()) }
    }

    /// Returns the request with `texts` as its parameters.
    pub(crate) fn with_parameters(&self, texts: Vec<PolicyText>) -> Self {
        Self {
            workspace: self.workspace.clone(),
            texts,
            dialect_call: self.dialect_call.clone(),
            ..*self
        }
    }

    pub(crate) fn to_request_ref(&self) -> PolicyRequestRef<'_> {
        PolicyRequestRef {
            tool: self.tool,
            risk: self.risk,
            workspace: &self.workspace,
            texts: &self.texts,
            dialect_call: self
                .dialect_call
                .as_deref()
                .map(|call| (call.tool, call.texts.as_slice())),
        }
    }
}

impl<'a> PolicyRequestRef<'a> {
    /// The tool's name in the dialect, for a call in a dialect.
    pub(super) fn dialect_tool(&self) -> Option<&'a str> {
        self.dialect_call.map(|(tool, _)| tool)
    }
}
