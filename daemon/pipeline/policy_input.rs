//! What the policy needs to know about a call, before and after it is decided.

use std::{sync::Arc, time::Instant};

use super::policy::{
    decision::PolicySnapshot,
    request::{DialectCall, PolicyRequest},
};
use crate::{
    api::v1::Risk,
    daemon::{
        catalog::{CanonicalText, ExplicitParams, PolicyView},
        tool::{CallApproval, WorkspaceContext},
        workspace::RelativePath,
    },
};

/// The input of a policy decision.
#[derive(Debug)]
pub(super) struct PolicyInput {
    pub(super) request: Arc<PolicyRequest>,
    /// The policy that decides. It has determined whether the parameters are needed.
    pub(super) snapshot: Arc<PolicySnapshot>,
    /// Names and values that an approver sees, if approval may be needed.
    pub(super) preview_params: Vec<(String, String)>,
    /// A rule pattern that matches similar calls, offered to the approver.
    pub(super) suggested_pattern: Option<String>,
    /// Files that the call names, for the approver.
    pub(super) files: Vec<String>,
    /// The working directory of the command that the call runs.
    pub(super) cwd: Option<RelativePath>,
    /// Approximate memory that the call holds while it waits.
    pub(super) held_bytes: usize,
    /// The encoded request, if the policy did not need its parameters.
    pub(super) encoded_request: Option<Arc<EncodedRequest>>,
}

/// Longest request that a queued call keeps for reauthorization: that of most calls, and small
/// compared with the other costs of a queued call. A longer one is dropped.
pub(super) const MAX_RETAINED_REQUEST_BYTES: usize = 64 << 10;

/// What an authorized call was decided on, kept to repeat the decision.
#[derive(Debug, Clone)]
pub(super) struct ReauthorizationInput {
    pub(super) request: Arc<PolicyRequest>,
    pub(super) snapshot: Arc<PolicySnapshot>,
    /// The encoded request, if the decision did not need its parameters. A later policy may.
    pub(super) encoded_request: Option<Arc<EncodedRequest>>,
}

#[derive(Debug)]
pub(super) struct EncodedRequest {
    /// Full name of the message, if it is not the request of the tool's own RPC.
    pub(super) message_name: Option<&'static str>,
    pub(super) encoded: Vec<u8>,
}

/// The result of authorization.
#[derive(Debug, Clone, Default)]
pub(crate) struct Authorization {
    /// The rule or person that allowed the call. `None` if the risk of the tool did.
    pub(crate) allowed_by: Option<String>,
    /// Set only if a person approved the call: until when the call retries admission, so that the
    /// approval is not wasted.
    pub(super) admission_deadline: Option<Instant>,
    /// Device and inode of the working directory that was approved.
    pub(super) approved_cwd: Option<(u64, u64)>,
}

impl ReauthorizationInput {
    /// Drops long parameters, so that many calls can be queued. Returns the bytes that remain.
    pub(super) fn drop_large_params(&mut self) -> usize {
        if self.request.text_bytes() > MAX_RETAINED_REQUEST_BYTES {
            self.request = Arc::new(self.request.without_parameters());
        }
        let encoded_bytes =
            self.encoded_request.as_ref().map_or(0, |request| request.encoded.len());
        self.request.text_bytes() + encoded_bytes
    }
}

impl Authorization {
    /// Returns the approval, if a person approved the call.
    pub(super) fn approval(&self) -> Option<CallApproval> {
        let approved_by = self.admission_deadline.and(self.allowed_by.clone())?;
        Some(CallApproval { approved_by, cwd: self.approved_cwd })
    }
}

impl PolicyInput {
    /// Returns what is needed to repeat the decision when the call has waited.
    pub(super) fn reauthorization_input(&self) -> ReauthorizationInput {
        ReauthorizationInput {
            request: Arc::clone(&self.request),
            snapshot: Arc::clone(&self.snapshot),
            encoded_request: self.encoded_request.clone(),
        }
    }

    /// Creates the input of a decision by `snapshot`, without any parameters.
    pub(super) fn new(
        tool: &'static str,
        risk: Risk,
        workspace: String,
        snapshot: Arc<PolicySnapshot>,
    ) -> Self {
        Self {
            request: Arc::new(PolicyRequest {
                tool,
                risk,
                workspace,
                texts: Vec::new(),
                dialect_call: None,
            }),
            snapshot,
            preview_params: Vec::new(),
            suggested_pattern: None,
            files: Vec::new(),
            cwd: None,
            held_bytes: 0,
            encoded_request: None,
        }
    }

    /// Adds the call as the model made it in a dialect.
    pub(super) fn with_dialect_call(self, dialect_call: Option<Arc<DialectCall>>) -> Self {
        let texts = dialect_call.iter().flat_map(|call| &call.texts);
        let bytes: usize = texts.map(|text| text.text.len()).sum();

        Self {
            held_bytes: self.held_bytes + bytes,
            request: Arc::new(PolicyRequest {
                dialect_call,
                ..self.request.with_parameters(Vec::new())
            }),
            ..self
        }
    }

    /// Adds the parameters, of `size` bytes in memory, and the files that they name.
    pub(super) fn with_params(self, view: PolicyView, files: Vec<String>, size: usize) -> Self {
        let text_bytes = view.texts.iter().map(|text| text.text.len());
        let preview_bytes = view.display_params.iter().map(|(_, value)| value.len());
        let file_bytes = files.iter().map(String::len);
        let held_bytes: usize = text_bytes.chain(preview_bytes).chain(file_bytes).sum();

        Self {
            held_bytes: self.held_bytes + size + held_bytes,
            request: Arc::new(PolicyRequest {
                tool: self.request.tool,
                risk: self.request.risk,
                workspace: self.request.workspace.clone(),
                texts: view.texts,
                dialect_call: self.request.dialect_call.clone(),
            }),
            preview_params: view.display_params,
            suggested_pattern: view.pattern,
            files,
            ..self
        }
    }
}

/// Renders the explicit parameters for rules and approvers. `canonical` is the canonical form of a
/// field, if the tool has one (`Tool::canonical_text`).
pub(super) fn policy_view(
    params: &ExplicitParams,
    workspace_context: &WorkspaceContext,
    canonical: Option<CanonicalText>,
) -> PolicyView {
    let resolve = |path: &str| workspace_context.workspace.resolve(path).ok();
    params.policy_view(|path| resolve(path).map(|path| path.to_string()), canonical)
}
