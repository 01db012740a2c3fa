//! RPCs of `ApprovalService`: calls that are pending approval, and the rules of the policy.

use tonic::Streaming;

use super::{call::Client, deadline::CallDeadline, error::CallError, methods::methods};
use crate::api::v1::{
    CreateRuleRequest, CreateRuleResponse, DecideApprovalRequest, DecideApprovalResponse,
    DeleteRuleRequest, DeleteRuleResponse, GetApprovalRequest, GetApprovalResponse,
    ListApprovalsRequest, ListApprovalsResponse, ListRulesRequest, ListRulesResponse,
    UpdateRuleRequest, UpdateRuleResponse, WatchApprovalsRequest, WatchApprovalsResponse,
    watch_approvals_response::Event,
};

/// Stream of pending approvals and their decisions.
#[derive(Debug)]
pub struct ApprovalEvents {
    events: Streaming<WatchApprovalsResponse>,
    deadline: CallDeadline,
}

impl Client {
    /// Streams pending approvals and their decisions.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails.
    pub async fn watch_approvals(
        &self,
        request: WatchApprovalsRequest,
    ) -> Result<ApprovalEvents, CallError> {
        let deadline = self.deadline();
        let mut approvals = self.approvals();
        let events =
            deadline.enforce(approvals.watch_approvals(self.with_context(request))).await?;
        Ok(ApprovalEvents { events: events.into_inner(), deadline })
    }
}

impl ApprovalEvents {
    /// Waits for the next event. Returns `None` when the daemon has ended the stream.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails.
    pub async fn next(&mut self) -> Result<Option<Event>, CallError> {
        loop {
            match self.deadline.enforce(self.events.message()).await? {
                None => return Ok(None),
                Some(WatchApprovalsResponse { event: Some(event) }) => return Ok(Some(event)),
                // A newer daemon may send an event that this client does not know.
                Some(WatchApprovalsResponse { event: None }) => {}
            }
        }
    }
}

methods! { approvals {
    /// Lists one page of approvals, pending and decided.
    list_approvals(ListApprovalsRequest) -> ListApprovalsResponse;
    /// Returns an approval. While it is pending, it includes all parameters of the call.
    get_approval(GetApprovalRequest) -> GetApprovalResponse;
    /// Allows or denies a call that is pending approval.
    decide_approval(DecideApprovalRequest) -> DecideApprovalResponse;
    /// Lists the rules of the policy.
    list_rules(ListRulesRequest) -> ListRulesResponse;
    /// Creates a rule.
    create_rule(CreateRuleRequest) -> CreateRuleResponse;
    /// Enables or disables a rule, or changes its expiry.
    update_rule(UpdateRuleRequest) -> UpdateRuleResponse;
    /// Deletes a rule.
    delete_rule(DeleteRuleRequest) -> DeleteRuleResponse;
} }
