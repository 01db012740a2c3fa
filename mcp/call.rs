//! `tools/call`: runs a tool, and follows it until it has ended.

use rmcp::{
    ErrorData, RoleServer,
    model::{CallToolRequestParams, CallToolResponse},
    service::RequestContext,
};
use tonic::{Status, Streaming};

use super::{
    approval::{ApprovalStep, PendingAnswer, UserAnswer},
    call_error::{to_call_outcome, to_protocol_error},
    progress::ProgressReporter,
    result::{cancelled_outcome, to_tool_result},
    server::McpServer,
    tool_call::ToolCall,
};
use crate::api::v1::{InvokeStreamRequest, InvokeStreamResponse, invoke_stream_response::Event};

/// Notice to the client while its call waits for approval elsewhere.
const APPROVAL_NOTICE: &str = "waiting for the approval of an administrator (jig approvals)";

/// A call in progress.
struct FollowedCall<'a> {
    server: &'a McpServer,
    call: &'a ToolCall,
    context: &'a RequestContext<RoleServer>,
    progress: ProgressReporter,
    /// The answer that the client's user gave before.
    answer: Option<UserAnswer>,
    /// The approval that the client's user is asked about.
    question: Option<(String, PendingAnswer)>,
}

impl McpServer {
    /// Runs a call. A client that cancels the request cancels the call.
    pub(super) async fn call(
        &self,
        params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let call = ToolCall::new(params)?;
        let answer = self.repeated_answer(&call, &context)?;
        let supports_tasks =
            context.client_capabilities().is_some_and(|capabilities| capabilities.supports_tasks());

        // A question that was answered belongs to a call, not to a task.
        let may_become_task = supports_tasks && answer.is_none();
        if may_become_task
            && self.is_read_only(&call.name, &context).await == Some(false)
            && let Some(response) = self.call_as_job(&call, &context).await?
        {
            return Ok(response);
        }

        tokio::select! {
            biased;
            outcome = self.call_in_place(&call, &context, answer) => outcome,
            // Dropping the call ends its stream, and thereby the command.
            () = context.ct.cancelled() => Ok(cancelled_outcome()),
        }
    }

    async fn call_in_place(
        &self,
        call: &ToolCall,
        context: &RequestContext<RoleServer>,
        answer: Option<UserAnswer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let message = InvokeStreamRequest {
            tool: call.name.clone(),
            params_json: call.arguments_json.clone(),
            dialect: self.dialect().to_owned(),
            ..InvokeStreamRequest::default()
        };
        let request = self
            .backend()
            .request_once(context, message)
            .map_err(|status| to_protocol_error(&status))?;
        let followed = FollowedCall {
            server: self,
            call,
            context,
            progress: ProgressReporter::new(context),
            answer,
            question: None,
        };

        let outcome = async {
            let events = self.backend().invocations().invoke_stream(request).await?.into_inner();
            followed.follow(events).await
        };
        match outcome.await {
            Ok(response) => response,
            Err(status) => to_call_outcome(&status).map(CallToolResponse::Complete),
        }
    }
}

impl FollowedCall<'_> {
    /// Follows the call to its result, or to a question.
    async fn follow(
        mut self,
        mut events: Streaming<InvokeStreamResponse>,
    ) -> Result<Result<CallToolResponse, ErrorData>, Status> {
        loop {
            let question = self.question.as_mut();
            tokio::select! {
                event = events.message() => {
                    let event = event?.ok_or_else(|| Status::internal("a call ended without a result"))?;
                    match event.event {
                        Some(Event::Stdout(output) | Event::Stderr(output)) => {
                            self.progress.add_output(&output.data);
                        }
                        Some(Event::PendingApproval(approval)) => {
                            if let Some(end) = self.obtain_approval(approval.approval_id).await? {
                                return Ok(Ok(end));
                            }
                        }
                        Some(Event::Result(response)) => {
                            // A stream that is not read to its end is a cancelled call.
                            events.message().await?;
                            let result = to_tool_result(response, self.server.dialect());
                            return Ok(result.map(CallToolResponse::Complete));
                        }
                        Some(Event::KeepAlive(_)) | None => {}
                    }
                }
                (approval_id, answer) = await_answer(question) => {
                    self.question = None;
                    match answer {
                        Some(answer) => self.give_answer(&approval_id, answer).await?,
                        None => self.progress.add_notice(APPROVAL_NOTICE),
                    }
                }
                () = self.progress.due() => self.progress.send().await,
            }
        }
    }

    /// Obtains the approval of the call. Returns a question if the request ends with it.
    async fn obtain_approval(
        &mut self,
        approval_id: String,
    ) -> Result<Option<CallToolResponse>, Status> {
        if let Some(answer) = self.answer {
            self.give_answer(&approval_id, answer).await?;
            return Ok(None);
        }

        match self.server.approval_step(&approval_id, self.call, self.context).await {
            ApprovalStep::Wait => self.progress.add_notice(APPROVAL_NOTICE),
            ApprovalStep::EndWithQuestion(question) => return Ok(Some(question.into())),
            ApprovalStep::AskDuringCall(answer) => self.question = Some((approval_id, answer)),
        }
        Ok(None)
    }

    /// Gives the user's answer to the daemon. Without the right to decide, the call waits on.
    async fn give_answer(&mut self, approval_id: &str, answer: UserAnswer) -> Result<(), Status> {
        match self.server.decide(approval_id, answer, self.context).await {
            Err(status) if status.code() == tonic::Code::PermissionDenied => {
                self.progress.add_notice(APPROVAL_NOTICE);
                Ok(())
            }
            // Another administrator has decided before.
            Err(status) if status.code() == tonic::Code::FailedPrecondition => Ok(()),
            decided => decided,
        }
    }
}

/// Waits for the answer to the question, if there is one. Cancel safe.
async fn await_answer(
    question: Option<&mut (String, PendingAnswer)>,
) -> (String, Option<UserAnswer>) {
    match question {
        Some((approval_id, answer)) => {
            let answer = answer.await;
            (approval_id.clone(), answer)
        }
        None => std::future::pending().await,
    }
}
