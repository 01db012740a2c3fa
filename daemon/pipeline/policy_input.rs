//! What is known of a call before it is decided whether it may be made.

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

/// What is to be decided about.
#[derive(Debug)]
pub(super) struct PolicyInput {
    /// The call.
    pub(super) request: Arc<PolicyRequest>,
    /// What decides: it has said which parameters can matter.
    pub(super) snapshot: Arc<PolicySnapshot>,
    /// What who is asked is told, where that can be.
    pub(super) preview_params: Vec<(String, String)>,
    /// A pattern for the call and its like, where there can be one.
    pub(super) suggested_pattern: Option<String>,
    /// Files that the call names, likewise.
    pub(super) files: Vec<String>,
    /// Where the command that it runs is to begin.
    pub(super) cwd: Option<RelativePath>,
    /// Bytes that the call holds while it waits, about.
    pub(super) held_bytes: usize,
    /// What it was made with, where nobody needs to know that yet.
    pub(super) encoded_request: Option<Arc<EncodedRequest>>,
}

/// Longest parameters that are kept of a call while it waits for a place: those of most calls, and little
/// beside what a call costs that waits. Of longer ones it is not known any more what they were.
pub(super) const MAX_RETAINED_REQUEST_BYTES: usize = 64 << 10;

/// What a call was judged as, and by what.
#[derive(Debug, Clone)]
pub(super) struct ReauthorizationInput {
    pub(super) request: Arc<PolicyRequest>,
    pub(super) snapshot: Arc<PolicySnapshot>,
    /// What it was made with, where nobody had to know its parameters: somebody may, once it has waited.
    pub(super) encoded_request: Option<Arc<EncodedRequest>>,
}

/// What a call was made with.
#[derive(Debug)]
pub(super) struct EncodedRequest {
    /// Full name of the message, where it is not that of the tool.
    pub(super) message_name: Option<&'static str>,
    /// The message.
    pub(super) encoded: Vec<u8>,
}

/// A call that may be made.
#[derive(Debug, Clone, Default)]
pub(crate) struct Authorization {
    /// What has let it in, where that is not the risk of its tool.
    pub(crate) allowed_by: Option<String>,
    /// Until when a place may be waited for, where somebody was asked: that is not to be for nothing.
    pub(super) admission_deadline: Option<Instant>,
    /// Device and inode of the directory that its command was approved to start in.
    pub(super) approved_cwd: Option<(u64, u64)>,
}

impl ReauthorizationInput {
    /// Leaves what is short, so that many can wait. Answers how many bytes that is.
    pub(super) fn drop_large_params(&mut self) -> usize {
        if self.request.text_bytes() > MAX_RETAINED_REQUEST_BYTES {
            self.request = Arc::new(self.request.without_parameters());
        }
        let said = self.encoded_request.as_ref().map(|said| said.encoded.len());
        self.request.text_bytes() + said.unwrap_or_default()
    }
}

impl Authorization {
    /// The approval, where somebody was asked.
    pub(super) fn approval(&self) -> Option<CallApproval> {
        let by = self.admission_deadline.and(self.allowed_by.clone())?;
        Some(CallApproval { approved_by: by, cwd: self.approved_cwd })
    }
}

impl PolicyInput {
    /// What is to be looked at again where it may take long before the call begins.
    pub(super) fn reauthorization_input(&self) -> ReauthorizationInput {
        ReauthorizationInput {
            request: Arc::clone(&self.request),
            snapshot: Arc::clone(&self.snapshot),
            encoded_request: self.encoded_request.clone(),
        }
    }

    /// A call of which nobody needs to know the parameters, as `snapshot` decides.
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

    /// The same, which was made as this in a dialect.
    pub(super) fn with_dialect_call(self, dialect_call: Option<Arc<DialectCall>>) -> Self {
        let bytes = dialect_call.iter().flat_map(|said| &said.texts);
        let bytes: usize = bytes.map(|text| text.text.len()).sum();
        Self {
            held_bytes: self.held_bytes + bytes,
            request: Arc::new(PolicyRequest {
                dialect_call,
                ..self.request.with_parameters(Vec::new())
            }),
            ..self
        }
    }

    /// The same with its parameters, which take so many bytes, and the files that it names.
    pub(super) fn with_params(self, view: PolicyView, files: Vec<String>, size: usize) -> Self {
        let texts = view.texts.iter().map(|text| text.text.len());
        let shown = view.display_params.iter().map(|(_, value)| value.len());
        let named = files.iter().map(String::len);
        Self {
            held_bytes: self.held_bytes + size + texts.chain(shown).chain(named).sum::<usize>(),
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

/// What was given, for those who decide about it.
pub(super) fn policy_view(
    given: &ExplicitParams,
    workspace_context: &WorkspaceContext,
    reading: Option<CanonicalText>,
) -> PolicyView {
    let plain = |path: &str| workspace_context.workspace.resolve(path).ok();
    given.policy_view(|path| plain(path).map(|path| path.to_string()), reading)
}
