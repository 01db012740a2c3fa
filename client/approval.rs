//! Calls that wait to be approved, and the rules that decide without anybody.

use tonic::Streaming;

use super::{call::Client, deadline::CallDeadline, error::CallError, methods::methods};
use crate::api::v1::{
    CreateRuleRequest, CreateRuleResponse, DecideApprovalRequest, DecideApprovalResponse,
    DeleteRuleRequest, DeleteRuleResponse, GetApprovalRequest, GetApprovalResponse,
    ListApprovalsRequest, ListApprovalsResponse, ListRulesRequest, ListRulesResponse,
    UpdateRuleRequest, UpdateRuleResponse, WatchApprovalsRequest, WatchApprovalsResponse,
    watch_approvals_response::Event,
};

/// The calls that wait to be approved, and what becomes of them.
#[derive(Debug)]
pub struct ApprovalEvents {
    events: Streaming<WatchApprovalsResponse>,
    deadline: CallDeadline,
}

impl Client {
    /// Watches the calls that wait to be approved.
    ///
    /// # Errors
    ///
    /// When the call failed.
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
    /// What comes next; nothing when the daemon has ended the stream.
    ///
    /// # Errors
    ///
    /// When the call failed.
    pub async fn next(&mut self) -> Result<Option<Event>, CallError> {
        loop {
            match self.deadline.enforce(self.events.message()).await? {
                None => return Ok(None),
                Some(WatchApprovalsResponse { event: Some(event) }) => return Ok(Some(event)),
                // An event of a newer daemon, which the contract lets us pass over.
                Some(WatchApprovalsResponse { event: None }) => {}
            }
        }
    }
}

methods! { approvals {
    /// Lists one page of the calls that wait to be approved, or have waited.
    list_approvals(ListApprovalsRequest) -> ListApprovalsResponse;
    /// Tells about one of them, with all of its parameters while it waits.
    get_approval(GetApprovalRequest) -> GetApprovalResponse;
    /// Allows a call that waits, or denies it.
    decide_approval(DecideApprovalRequest) -> DecideApprovalResponse;
    /// Lists the rules.
    list_rules(ListRulesRequest) -> ListRulesResponse;
    /// Makes a rule.
    create_rule(CreateRuleRequest) -> CreateRuleResponse;
    /// Switches a rule on or off, or changes when it ends.
    update_rule(UpdateRuleRequest) -> UpdateRuleResponse;
    /// Deletes a rule.
    delete_rule(DeleteRuleRequest) -> DeleteRuleResponse;
} }
