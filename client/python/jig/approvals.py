"""Operations of administrators on approvals and rules."""

from __future__ import annotations

from jig.caller import Caller, close_later
from jig.contract import decode_event
from jig.steps import Emit, Steps, StreamSteps, next_item, operation, streaming
from jig.v1.messages import (
    Action,
    Approval,
    CreateRuleResponse,
    DecideApprovalResponse,
    Decision,
    DeleteRuleResponse,
    GetApprovalResponse,
    Rule,
    UpdateRuleResponse,
)


class ApprovalOperations(Caller):
    """Decides about calls that need approval. Without keys, each caller is an administrator.

    Each method can raise `Forbidden`, for callers that are not.
    """

    @operation
    def list_approvals(self, *, decided: bool = False) -> Steps[list[Approval]]:
        """Lists pending calls, oldest first. With `decided`, decided ones too, newest first."""
        return self._pages("ListApprovals", Approval, "approvals", decided=decided)

    @operation
    def get_approval(self, approval_id: str) -> Steps[Approval]:
        """Returns an approval, with all parameters if it is pending. Raises `ApprovalNotFound`."""
        response = yield from self._call(
            "GetApproval", GetApprovalResponse, approval_id=approval_id
        )
        assert response.approval is not None
        return response.approval

    @streaming
    def watch_approvals(self) -> StreamSteps[Approval]:
        """Streams pending calls, oldest first, then each new one and each end of one.

        After a lost connection, pending calls come again.
        """
        with close_later(self._messages(lambda: ("WatchApprovals", {}))) as messages:
            while (message := (yield from next_item(messages))) is not None:
                event = decode_event(message)
                if isinstance(event, Approval):
                    yield Emit(event)

    @operation
    def decide_approval(
        self,
        approval_id: str,
        decision: Decision,
        *,
        comment: str | None = None,
        rule_lifetime_sec: int | None = None,
        pattern: str | None = None,
    ) -> Steps[DecideApprovalResponse]:
        """Allows or denies a pending call. `ALWAYS` allows it and similar ones, by a new rule.

        The rule has `pattern`, by default `Approval.suggested_pattern`, and lasts
        `rule_lifetime_sec` (30 days; up to ten years). The caller of a denied call gets `comment`.

        Raises `ApprovalNotFound`, `ApprovalDecided`, `InvalidRegex` or `InvalidParams`.
        """
        return self._call(
            "DecideApproval",
            DecideApprovalResponse,
            approval_id=approval_id,
            decision=decision,
            comment=comment,
            rule_lifetime_sec=rule_lifetime_sec,
            pattern=pattern,
        )

    @operation
    def list_rules(self) -> Steps[list[Rule]]:
        """Lists rules: those of this service, newest first, then those of the configuration."""
        return self._pages("ListRules", Rule, "rules")

    @operation
    def create_rule(
        self,
        tool: str,
        action: Action,
        *,
        name: str | None = None,
        pattern: str | None = None,
        lifetime_sec: int | None = None,
    ) -> Steps[Rule]:
        """Creates a rule for calls of a tool whose parameters match `pattern` (default: all).

        Raises `InvalidRegex`, `InvalidParams` or `ResourceExhausted` (1,024 rules).
        """
        response = yield from self._call(
            "CreateRule",
            CreateRuleResponse,
            tool=tool,
            action=action,
            name=name,
            pattern=pattern,
            lifetime_sec=lifetime_sec,
        )
        assert response.rule is not None
        return response.rule

    @operation
    def update_rule(
        self, rule_id: str, *, enabled: bool | None = None, lifetime_sec: int | None = None
    ) -> Steps[Rule]:
        """Enables or disables a rule, or changes its lifetime (0: unlimited).

        Raises `RuleNotFound` or `InvalidParams` (a rule of the configuration).
        """
        response = yield from self._call(
            "UpdateRule",
            UpdateRuleResponse,
            rule_id=rule_id,
            enabled=enabled,
            lifetime_sec=lifetime_sec,
        )
        assert response.rule is not None
        return response.rule

    @operation
    def delete_rule(self, rule_id: str) -> Steps[None]:
        """Deletes a rule. Raises `RuleNotFound` or `InvalidParams` (one of the configuration)."""
        yield from self._call("DeleteRule", DeleteRuleResponse, rule_id=rule_id)
