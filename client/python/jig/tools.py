"""Operations that call tools by name, as models do."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from jig.caller import Caller, close_later
from jig.contract import decode_event
from jig.results import Output
from jig.steps import CallBack, Emit, Steps, StreamSteps, next_item, operation, streaming
from jig.v1.messages import (
    Approval,
    BatchError,
    DecideApprovalResponse,
    Decision,
    GetApprovalResponse,
    GetJobResponse,
    InvokeApproval,
    InvokeBatchResponse,
    InvokeResponse,
    ListToolsResponse,
)
from jig.vendors import ToolCall, ToolFormatName, Vendor, parse_reply, to_messages

MAX_BATCH_CALLS = 20
MAX_TOOL_NAME_BYTES = 64
# Bounds of `InvokeBatchRequest.wait_ms`, in seconds.
MIN_WAIT_SEC = 0.1
MAX_WAIT_SEC = 60.0
# Interval of checks whether pending calls need approval.
APPROVAL_CHECK_SEC = 1.0

InvokeEvent: TypeAlias = InvokeApproval | Output | InvokeResponse
Approve: TypeAlias = Callable[[Approval], Decision | Awaitable[Decision | None] | None]


@dataclass(frozen=True)
class CallOutcome:
    """What became of a tool call."""

    call_id: str
    """Id that the model gave the call, or one made up."""
    name: str
    ok: bool
    """Whether the tool succeeded. A command that ran is a success, whatever its exit code."""
    pending: bool
    """Whether the call continues as a job."""
    job_id: str
    """Job of a pending call. Empty otherwise."""
    approval_id: str
    """Approval that a pending call waits for. Empty without one."""
    output: Mapping[str, Any] | None
    """Result of the tool, if it is an object."""
    error: BatchError | None
    """Why the tool failed."""


@dataclass(frozen=True)
class ToolResults:
    """Results of the tool calls of a reply."""

    messages: list[dict[str, Any]]
    """Messages to append to the conversation. Empty if the reply has no tool call."""
    outcomes: list[CallOutcome]
    """What became of each call, in the order of the calls."""


class ToolOperations(Caller):
    """Lists tools in the form of a vendor, and calls them."""

    @operation
    def tools(
        self, vendor: ToolFormatName, *, names: Sequence[str] = (), dialect: str = ""
    ) -> Steps[list[dict[str, Any]]]:
        """Returns the tools that the caller may use, for `tools` of a request to the vendor.

        `names` selects tools, and `dialect` other names and parameters of them, such as `claude`.

        Raises `InvalidParams`: an unknown dialect or name.
        """
        format = vendor.upper().replace("-", "_")
        response = yield from self._call(
            "ListTools", ListToolsResponse, format=format, names=names, dialect=dialect
        )
        return cast("list[dict[str, Any]]", json.loads(response.tools_json))

    @operation
    def handle(
        self,
        reply: object,
        *,
        dialect: str = "",
        wait_sec: float = 15.0,
        queue: str | None = None,
        approve: Approve | None = None,
    ) -> Steps[ToolResults]:
        """Runs the tool calls of a model's reply. Returns the messages for the next request.

        `reply` is the response of the vendor's package or its JSON, its message, or a list of tool
        calls. Its form identifies the vendor. The calls run concurrently.

        A call that is not done within `wait_sec` (at least 0.1) is pending, and continues as a
        job. Its message tells the model to call `wait_job`.

        `approve` is called with each call that waits for approval. It returns the decision, or
        None to leave it to others. The caller must be an administrator. `AsyncClient` accepts a
        coroutine function. Without it, `outcomes` have the ids of approvals.

        A client with a `request_id` can repeat the same reply with the same `wait_sec`.

        Failures of tools are part of the messages. Raises `InvalidParams` (an unknown dialect),
        `ResourceExhausted` or `Unavailable`.
        """
        calls = parse_reply(reply)
        if not calls:
            return ToolResults([], [])
        # The request id is that of the first batch. Those of others follow from it.
        request_id = self._options.request_id
        batch = Batch(self._with(request_id=""), calls[0].vendor, dialect, queue, approve)
        results: list[dict[str, Any]] = []
        outcomes: list[CallOutcome] = []
        for start in range(0, len(calls), MAX_BATCH_CALLS):
            part = calls[start : start + MAX_BATCH_CALLS]
            first = self._with(request_id=f"{request_id}.{start}") if request_id and start else self
            part_results, part_outcomes = yield from batch.run(first, part, start, wait_sec)
            results += part_results
            outcomes += part_outcomes
        return ToolResults(to_messages(batch.vendor, calls, results), outcomes)

    @operation
    def invoke(
        self, tool: str, params: Mapping[str, Any], *, dialect: str = "", call_id: str = ""
    ) -> Steps[InvokeResponse]:
        """Calls a tool by its name, such as a custom tool of the operator.

        `params` are JSON values by name. A failure of the tool is part of the result: see `ok`,
        `error` and `check()`. `call_id` is repeated in the records of the call.

        Raises `InvalidParams`: an unknown dialect.
        """
        return self._call(
            "Invoke",
            InvokeResponse,
            tool=tool,
            params_json=json.dumps(params),
            dialect=dialect,
            request_id=call_id,
        )

    @streaming
    def invoke_stream(
        self, tool: str, params: Mapping[str, Any], *, dialect: str = "", call_id: str = ""
    ) -> StreamSteps[InvokeEvent]:
        """Calls a tool as `invoke` does, and streams its progress before its result.

        Elements are `InvokeApproval` (the call waits for approval), `Output` and, last, the
        `InvokeResponse`. After a lost connection, the result comes without further output.
        """
        values = {
            "tool": tool,
            "params_json": json.dumps(params),
            "dialect": dialect,
            "request_id": call_id,
        }
        with close_later(self._messages(lambda: ("InvokeStream", values))) as messages:
            while (message := (yield from next_item(messages))) is not None:
                event: InvokeEvent | None = decode_event(message)
                if event is not None:
                    yield Emit(event)


@dataclass(frozen=True)
class Batch:
    """Runs tool calls as batches."""

    caller: Caller
    vendor: Vendor
    dialect: str
    queue: str | None
    approve: Approve | None

    def run(
        self, first: Caller, calls: Sequence[ToolCall], first_index: int, wait_sec: float
    ) -> Steps[tuple[list[dict[str, Any]], list[CallOutcome]]]:
        """Returns the results as the vendor wants them, and the outcomes."""
        end = time.monotonic() + wait_sec
        ids = [call.call_id or f"call_{first_index + index}" for index, call in enumerate(calls)]
        results, outcomes = yield from self.invoke(
            first,
            [
                {
                    "call_id": call_id,
                    "name": to_tool_name(call.name),
                    "arguments_json": call.arguments_json,
                }
                for call_id, call in zip(ids, calls, strict=True)
            ],
            self.slice_sec(wait_sec),
        )
        decided: set[str] = set()
        while any(outcome.pending for outcome in outcomes):
            yield from self.find_approvals(outcomes, decided)
            remaining_sec = end - time.monotonic()
            if remaining_sec < MIN_WAIT_SEC:
                break
            if not (yield from self.wait(results, outcomes, self.slice_sec(remaining_sec))):
                break
        return results, outcomes

    def slice_sec(self, wait_sec: float) -> float:
        """The duration of one wait. It is short if approvals must be found."""
        longest = APPROVAL_CHECK_SEC if self.approve else MAX_WAIT_SEC
        return max(MIN_WAIT_SEC, min(wait_sec, longest))

    def invoke(
        self, caller: Caller, calls: list[dict[str, str]], wait_sec: float
    ) -> Steps[tuple[list[dict[str, Any]], list[CallOutcome]]]:
        response = yield from caller._call(
            "InvokeBatch",
            InvokeBatchResponse,
            calls=calls,
            wait_ms=round(wait_sec * 1000),
            queue=self.queue,
            dialect=self.dialect,
            result_format=self.vendor.upper().replace("-", "_"),
        )
        outcomes = [
            CallOutcome(
                call_id=result.call_id,
                name=result.name,
                ok=result.ok,
                pending=result.pending,
                job_id=result.job_id,
                approval_id="",
                output=result.output,
                error=result.error,
            )
            for result in response.results
        ]
        return json.loads(response.messages_json), outcomes

    def wait(
        self, results: list[dict[str, Any]], outcomes: list[CallOutcome], wait_sec: float
    ) -> Steps[bool]:
        """Waits for pending calls. Replaces the results of those that end.

        Returns whether another wait makes sense. A key can be limited to tools without `wait_job`.
        """
        indexes = [index for index, outcome in enumerate(outcomes) if outcome.pending]
        # The tool `wait_job` writes the result for the model. It returns before the batch does.
        wait_ms = round(max(wait_sec - MIN_WAIT_SEC, 0) * 1000)
        waits = [
            {
                "call_id": outcomes[index].call_id,
                "name": "wait_job",
                "arguments_json": json.dumps(
                    {"job_id": outcomes[index].job_id, "wait_ms": wait_ms}
                ),
            }
            for index in indexes
        ]
        new_results, new_outcomes = yield from self.invoke(
            self.caller, waits, wait_sec + MIN_WAIT_SEC
        )
        for index, result, outcome in zip(indexes, new_results, new_outcomes, strict=True):
            answer = outcome.output
            if outcome.pending or not outcome.ok or answer is None or answer.get("pending"):
                continue
            error = None
            if not answer.get("ok"):
                code = str(answer.get("error_type", "")).upper()
                error = BatchError(code=code, message=str(answer.get("text", "")))
            results[index] = result
            outcomes[index] = replace(
                outcomes[index],
                ok=bool(answer.get("ok")),
                pending=False,
                job_id="",
                approval_id="",
                output=answer.get("output"),
                error=error,
            )
        return all(outcome.ok for outcome in new_outcomes)

    def find_approvals(self, outcomes: list[CallOutcome], decided: set[str]) -> Steps[None]:
        """Sets the approvals of pending calls, and has them decided once."""
        for index, outcome in enumerate(outcomes):
            if not outcome.pending:
                continue
            response = yield from self.caller._call("GetJob", GetJobResponse, job_id=outcome.job_id)
            approval_id = response.job.approval_id if response.job else ""
            outcomes[index] = replace(outcome, approval_id=approval_id)
            if self.approve is None or not approval_id or approval_id in decided:
                continue
            decided.add(approval_id)
            approval = yield from self.caller._call(
                "GetApproval", GetApprovalResponse, approval_id=approval_id
            )
            decision = yield CallBack(self.approve, approval.approval)
            if decision is not None:
                yield from self.caller._call(
                    "DecideApproval",
                    DecideApprovalResponse,
                    approval_id=approval_id,
                    decision=decision,
                )


def to_tool_name(name: str) -> str:
    """Makes a name that a model invented short enough to be reported to it as unknown."""
    return name.encode()[:MAX_TOOL_NAME_BYTES].decode(errors="ignore") or "unnamed"
