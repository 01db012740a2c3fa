"""Tools by name, and the loops of the vendors."""

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

import jig
from jig.tools import Approve
from jig.v1 import reasons
from jig.v1.messages import Approval, Decision, InvokeApproval, InvokeResponse

ARGUMENTS = {"command": "echo said"}
CHAT_CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "run", "arguments": json.dumps(ARGUMENTS)},
}
RESPONSES_CALL = {
    "type": "function_call",
    "call_id": "c1",
    "name": "run",
    "arguments": json.dumps(ARGUMENTS),
}
TOOL_USE = {"type": "tool_use", "id": "c1", "name": "run", "input": ARGUMENTS}
TEXT = {"type": "text", "text": "I run it."}
GEMINI_PART = {"functionCall": {"name": "run", "args": ARGUMENTS}}

REPLIES: list[tuple[jig.Vendor, object]] = [
    ("anthropic", {"role": "assistant", "content": [TEXT, TOOL_USE]}),
    ("anthropic", SimpleNamespace(content=[SimpleNamespace(**TOOL_USE)])),
    ("anthropic", [TOOL_USE]),
    ("openai-responses", {"output": [{"type": "reasoning", "summary": []}, RESPONSES_CALL]}),
    ("openai-responses", SimpleNamespace(output=[SimpleNamespace(**RESPONSES_CALL)])),
    ("openai-chat", {"choices": [{"message": {"content": None, "tool_calls": [CHAT_CALL]}}]}),
    ("openai-chat", {"role": "assistant", "content": "text", "tool_calls": [CHAT_CALL]}),
    ("gemini", {"candidates": [{"content": {"parts": [{"text": "x"}, GEMINI_PART]}}]}),
    (
        "gemini",
        SimpleNamespace(
            parts=[
                SimpleNamespace(
                    text=None,
                    function_call=SimpleNamespace(id=None, name="run", args=ARGUMENTS),
                )
            ]
        ),
    ),
    ("gemini", [{"id": "c1", "name": "run", "args": ARGUMENTS}]),
    ("mcp", {"name": "run", "arguments": ARGUMENTS}),
]


@pytest.mark.parametrize(("vendor", "reply"), REPLIES)
def test_replies_are_handled(client: jig.Client, vendor: jig.Vendor, reply: object) -> None:
    (call,) = jig.parse_reply(reply)
    assert (call.vendor, call.name, json.loads(call.arguments_json)) == (vendor, "run", ARGUMENTS)
    results = client.handle(reply)
    (outcome,) = results.outcomes
    assert outcome.ok and outcome.output is not None and outcome.output["stdout"] == "said\n"
    (message,) = results.messages
    assert message_of(vendor, call.call_id, message) == {"exit_code": 0, "stdout": "said\n"}


def message_of(vendor: jig.Vendor, call_id: str, message: dict[str, Any]) -> Any:
    """Checks the form of a message. Returns the result in it."""
    if vendor == "anthropic":
        assert message["role"] == "user"
        (block,) = message["content"]
        assert (block["type"], block["tool_use_id"]) == ("tool_result", call_id)
        return json.loads(block["content"])
    if vendor == "openai-responses":
        assert (message["type"], message["call_id"]) == ("function_call_output", call_id)
        return json.loads(message["output"])
    if vendor == "openai-chat":
        assert (message["role"], message["tool_call_id"]) == ("tool", call_id)
        return json.loads(message["content"])
    if vendor == "gemini":
        response = message["parts"][0]["functionResponse"]
        assert (message["role"], response.get("id", "")) == ("user", call_id)
        return response["response"]["output"]
    return json.loads(message["content"][0]["text"])


@pytest.mark.parametrize("reply", ["text", {"content": "text"}, {"content": [TEXT]}, [], None])
def test_a_reply_without_tool_calls_has_no_messages(client: jig.Client, reply: object) -> None:
    assert client.handle(reply) == jig.ToolResults([], [])


def test_calls_of_several_vendors_are_rejected(client: jig.Client) -> None:
    with pytest.raises(TypeError, match="several vendors"):
        client.handle([TOOL_USE, CHAT_CALL])


def test_many_calls_and_failures(client: jig.Client) -> None:
    calls = [
        {"type": "tool_use", "id": f"c{number}", "name": "read_file", "input": {"path": "none"}}
        for number in range(25)
    ]
    results = client.handle(calls)
    assert len(results.messages[0]["content"]) == len(results.outcomes) == 25
    error = results.outcomes[24].error
    assert error is not None and error.code == "FILE_NOT_FOUND"
    assert results.messages[0]["content"][24]["is_error"]

    for name in ("no_such_tool", "", "long " * 100):
        (outcome,) = client.handle([{**TOOL_USE, "name": name}]).outcomes
        assert outcome.error is not None and outcome.error.code == "UNKNOWN_TOOL"
    broken = {**CHAT_CALL, "function": {"name": "run", "arguments": "{"}}
    (outcome,) = client.handle([broken]).outcomes
    assert outcome.error is not None and outcome.error.code == "INVALID_PARAMS"


def test_a_request_id_runs_calls_once(client: jig.Client) -> None:
    once = client.with_options(request_id=f"once-{time.monotonic_ns()}")
    command = "echo x >> once; sleep 1"
    calls = [
        {**TOOL_USE, "id": f"c{number}", "input": {"command": command}} for number in range(21)
    ]
    first = once.handle(calls, wait_sec=0.2)
    again = once.handle(calls, wait_sec=0.2)
    assert len({outcome.job_id for outcome in first.outcomes}) == 21
    for one, other in zip(first.outcomes, again.outcomes, strict=True):
        assert one.job_id == other.job_id or not other.pending
        client.wait_job(one.job_id)
    assert client.run("wc -l < once; rm once").stdout == "21\n"


def test_a_slow_call_is_pending(client: jig.Client) -> None:
    slow = {**TOOL_USE, "input": {"command": "sleep 1.5; echo late"}}
    results = client.handle([slow], wait_sec=0.2)
    (outcome,) = results.outcomes
    assert outcome.pending and outcome.job_id in results.messages[0]["content"][0]["content"]
    wait = {"type": "tool_use", "id": "w", "name": "wait_job", "input": {"job_id": outcome.job_id}}
    (waited,) = client.handle([wait]).outcomes
    assert waited.output is not None and waited.output["output"]["stdout"] == "late\n"


@pytest.mark.parametrize("decision", ["ALLOW", "DENY", None])
def test_calls_that_need_approval(client: jig.Client, decision: Decision | None) -> None:
    seen: list[Approval] = []

    def approve(approval: Approval) -> Decision | None:
        seen.append(approval)
        return decision

    call = {**TOOL_USE, "input": {"command": "echo needs-approval"}}
    quick = {**TOOL_USE, "id": "c2"}
    results = client.handle([call, quick], approve=approve, wait_sec=10 if decision else 1.5)
    (approval,) = seen
    first, second = results.outcomes
    assert approval.tool == "run" and second.ok
    assert len(results.messages[0]["content"]) == 2
    if decision is None:
        assert first.pending and first.approval_id == approval.approval_id
        client.cancel_job(first.job_id)
    elif decision == "ALLOW":
        assert first.ok and first.output == {"exit_code": 0, "stdout": "needs-approval\n"}
    else:
        assert first.error is not None and first.error.code == "APPROVAL_DENIED"


def test_approve_can_be_a_coroutine_function(daemon: jig.Daemon) -> None:
    import asyncio

    async def decide(approval: Approval) -> Decision:
        await asyncio.sleep(0)
        return "ALLOW"

    async def check() -> None:
        approve: Approve = decide
        async with jig.AsyncClient(daemon.address, session="coroutine") as client:
            call = {**TOOL_USE, "input": {"command": "echo needs-approval"}}
            results = await client.handle([call], approve=approve)
            assert results.outcomes[0].ok

    asyncio.run(check())


def test_tools_of_each_vendor(client: jig.Client) -> None:
    assert {"name", "description", "input_schema"} <= set(client.tools("anthropic")[0])
    (chat,) = client.tools("openai-chat", names=["run"])
    assert chat["function"]["name"] == "run"
    assert client.tools("openai-responses")[0]["type"] == "function"
    assert client.tools("gemini")[0]["functionDeclarations"]
    assert client.tools("mcp")[0]["inputSchema"]
    assert "Bash" in [tool["name"] for tool in client.tools("anthropic", dialect="claude")]
    with pytest.raises(reasons.InvalidParams):
        client.tools("anthropic", dialect="no-such-dialect")


def test_dialects_and_custom_tools(client: jig.Client) -> None:
    bash = {"type": "tool_use", "id": "b", "name": "Bash", "input": {"command": "echo bash"}}
    assert client.handle([bash], dialect="claude").outcomes[0].ok
    client.write_file("words.txt", "a\nb\na\n")
    counted = client.invoke("count_word", {"word": "a"}, call_id="model-1")
    assert counted.ok and counted.data is not None and counted.data["stdout"] == "2\n"
    assert counted.request_id == "model-1"
    failed = client.invoke("read_file", {"path": "no-such-file"})
    assert not failed.ok and failed.text
    with pytest.raises(reasons.FileNotFound):
        failed.check()
    exited = client.invoke("run", {"command": "exit 1"})
    assert exited.ok and exited.error is not None
    exited.check()


def test_invoke_stream(client: jig.Client) -> None:
    stream = client.invoke_stream("run", {"command": "echo needs-approval"})
    waiting = next(stream)
    assert isinstance(waiting, InvokeApproval)
    client.decide_approval(waiting.approval_id, "ALLOW")
    assert next(stream) == jig.Output("stdout", 0, b"needs-approval\n")
    result = next(stream)
    assert isinstance(result, InvokeResponse) and result.exit_code == 0
    assert list(stream) == []
