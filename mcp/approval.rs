//! Approvals of calls by the client's user.
//!
//! A call that needs approval waits for an administrator. If the caller is one, and the client can
//! ask its user, the user decides:
//!
//! * Since revision 2026-07-28, the server ends the request with `input_required`. The client
//!   repeats it with the user's answer and the sealed `requestState`, which is valid for the same
//!   caller and parameters only. The repeated call waits for approval again, and gets that answer.
//! * Before, the server sends the client a request during the call (`elicitation/create`).
//!
//! Otherwise the call waits for another administrator, as a call by gRPC does. The daemon checks
//! that the caller may decide; this module only asks.

use std::{pin::Pin, time::Duration};

use rmcp::{
    ErrorData, RoleServer,
    model::{
        ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema,
        InputRequest, InputRequests, InputRequiredResult, InputResponses, ProtocolVersion,
        SealOptions,
    },
    service::RequestContext,
};
use sha2::{Digest as _, Sha256};
use tonic::Status;

use super::{backend::GrpcBackend, server::McpServer, tool_call::ToolCall};
use crate::api::v1::{
    Approval, ApprovalState, DecideApprovalRequest, Decision, GetApprovalRequest,
};

/// Time that a user has to answer.
const ANSWER_TTL: Duration = Duration::from_secs(15 * 60);
/// Content of the sealed state.
const SEALED_PURPOSE: &[u8] = b"approval";
/// Name of the one request for input.
const INPUT_NAME: &str = "approval";
/// Maximum length of a parameter in the question.
const MAX_SHOWN_PARAMETER_BYTES: usize = 1000;
/// Metadata that identifies the caller of a request, and what it acts on.
const CALLER_KEYS: [&str; 4] = ["authorization", "x-api-key", "jig-workspace", "jig-session"];

/// The user's answer to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UserAnswer {
    Allow,
    Deny,
}

/// The answer that the client's user will give. `None` if the client cannot ask.
pub(super) type PendingAnswer = Pin<Box<dyn Future<Output = Option<UserAnswer>> + Send>>;

/// What follows from a pending approval.
pub(super) enum ApprovalStep {
    /// An administrator must decide elsewhere.
    Wait,
    /// The request ends with a question, and the client repeats it with the answer.
    EndWithQuestion(InputRequiredResult),
    /// The client asks its user during the call.
    AskDuringCall(PendingAnswer),
}

impl McpServer {
    /// Returns the user's answer that a repeated request brings.
    ///
    /// # Errors
    ///
    /// Fails if the answer is for another caller or other parameters, or too old.
    pub(super) fn repeated_answer(
        &self,
        call: &ToolCall,
        context: &RequestContext<RoleServer>,
    ) -> Result<Option<UserAnswer>, ErrorData> {
        let (Some(state), Some(responses)) = (&call.request_state, &call.input_responses) else {
            return Ok(None);
        };

        let binding = self.state_binding(call, context);
        let opened = self.state_codec().open_with(state, &binding);
        if !opened.is_ok_and(|content| content == SEALED_PURPOSE) {
            let text = "requestState is not one of this server for this caller, tool and arguments, or is too old: call the tool again without it";
            return Err(ErrorData::invalid_params(text, None));
        }
        parse_answer(INPUT_NAME, responses).map(Some)
    }

    /// Decides how the approval of a call is obtained.
    pub(super) async fn approval_step(
        &self,
        approval_id: &str,
        call: &ToolCall,
        context: &RequestContext<RoleServer>,
    ) -> ApprovalStep {
        let Some(question) = self.question(approval_id, context).await else {
            return ApprovalStep::Wait;
        };
        let version = context.protocol_version();
        if version.is_some_and(|version| version >= ProtocolVersion::V_2026_07_28) {
            return self.question_result(question, call, context);
        }

        let peer = context.peer.clone();
        ApprovalStep::AskDuringCall(Box::pin(async move {
            let result = peer.create_elicitation(question).await.ok()?;
            Some(to_answer(&result))
        }))
    }

    /// Returns the question about a pending approval. `None` if the caller may not decide, or its
    /// client cannot ask.
    pub(super) async fn question(
        &self,
        approval_id: &str,
        context: &RequestContext<RoleServer>,
    ) -> Option<ElicitRequestParams> {
        context.client_capabilities()?.elicitation?;
        // Fails for callers that may not decide.
        let approval = self.approval(approval_id, context).await.ok()?;
        (approval.state() == ApprovalState::Pending).then(|| {
            ElicitRequestParams::FormElicitationParams {
                meta: None,
                message: question_text(&approval),
                requested_schema: ElicitationSchema::new([].into()),
            }
        })
    }

    /// Gives the user's answer to the daemon.
    pub(super) async fn decide(
        &self,
        approval_id: &str,
        answer: UserAnswer,
        context: &RequestContext<RoleServer>,
    ) -> Result<(), Status> {
        let decision = match answer {
            UserAnswer::Allow => Decision::Allow,
            UserAnswer::Deny => Decision::Deny,
        };
        let message = DecideApprovalRequest {
            approval_id: approval_id.to_owned(),
            decision: decision.into(),
            comment: "answered in the MCP client".to_owned(),
            ..DecideApprovalRequest::default()
        };
        let request = self.backend().request(context, message)?;
        self.backend().approvals().decide_approval(request).await?;
        Ok(())
    }

    async fn approval(
        &self,
        approval_id: &str,
        context: &RequestContext<RoleServer>,
    ) -> Result<Approval, Status> {
        let message = GetApprovalRequest { approval_id: approval_id.to_owned() };
        let request = self.backend().request(context, message)?;
        let found = self.backend().approvals().get_approval(request).await?.into_inner();
        found.approval.ok_or_else(|| Status::internal("an approval is missing in its response"))
    }

    fn question_result(
        &self,
        question: ElicitRequestParams,
        call: &ToolCall,
        context: &RequestContext<RoleServer>,
    ) -> ApprovalStep {
        let binding = self.state_binding(call, context);
        let options = SealOptions::new().associated_data(&binding).ttl(ANSWER_TTL);
        let state = self.state_codec().seal_with(SEALED_PURPOSE, &options);

        let requests = input_requests(INPUT_NAME, question);
        ApprovalStep::EndWithQuestion(InputRequiredResult::new(Some(requests), Some(state)))
    }

    /// Returns a digest of the caller, the tool and its arguments.
    fn state_binding(&self, call: &ToolCall, context: &RequestContext<RoleServer>) -> [u8; 32] {
        let metadata = self.backend().caller_metadata(context);
        let value = |key| metadata.get(key).map_or(&b""[..], |value| value.as_bytes());
        let caller = CALLER_KEYS.map(value);
        let identity = GrpcBackend::caller_identity(context).unwrap_or_default();
        let call = [identity, self.dialect(), &call.name, &call.arguments_json].map(str::as_bytes);

        let mut digest = Sha256::new();
        for part in caller.into_iter().chain(call) {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        digest.finalize().into()
    }
}

/// Returns the text that asks the user about a call.
fn question_text(approval: &Approval) -> String {
    let tool = match approval.called_name.split_once('/') {
        Some((_, name)) => name,
        None => &approval.tool,
    };
    let mut text = format!("Allow this call of {tool} in workspace {}?", approval.workspace);
    for parameter in &approval.parameters {
        let value = &parameter.value;
        let end = value.floor_char_boundary(MAX_SHOWN_PARAMETER_BYTES);
        let shown = value.get(..end).unwrap_or_default();
        let omitted = value.len() - shown.len() + parameter.omitted_bytes as usize;
        text += &format!("\n{}: {shown}", parameter.name);
        if omitted > 0 {
            text += &format!(" … ({omitted} more bytes)");
        }
    }
    text
}

/// Returns the one question that a client must answer, under a name.
pub(super) fn input_requests(name: &str, question: ElicitRequestParams) -> InputRequests {
    let request = InputRequest::Elicitation(ElicitRequest::new(question));
    InputRequests::from([(name.to_owned(), request)])
}

/// Returns the answer under a name.
pub(super) fn parse_answer(
    name: &str,
    responses: &InputResponses,
) -> Result<UserAnswer, ErrorData> {
    let response = responses.get(name).cloned().unwrap_or_default();
    let result: ElicitResult = serde_json::from_value(response).map_err(|error| {
        let text = format!("inputResponses.{name} is no result of elicitation/create: {error}");
        ErrorData::invalid_params(text, None)
    })?;
    Ok(to_answer(&result))
}

fn to_answer(result: &ElicitResult) -> UserAnswer {
    if result.action == ElicitationAction::Accept { UserAnswer::Allow } else { UserAnswer::Deny }
}
